"""Passwords, permissions and login."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from pamqp import encode

from node.auth import (
    SALT_BYTES,
    LoginRefused,
    PermissionRecord,
    UserDirectory,
    UserRecord,
    hash_password,
    is_loopback,
    log_in,
    matches_password,
    parse_login,
    permits,
)
from node.errors import ConfigError, ConnectionFailure
from tests.support.users import users_with_guest


@pytest.fixture
def directory() -> UserDirectory:
    directory = users_with_guest()
    directory.set_user(UserRecord("alice", hash_password("pässword", b"abcd"), ("monitoring",)))
    return directory


def test_the_hash_is_rabbitmqs() -> None:
    # The worked example of RabbitMQ's documentation: salt 908D C60A, password test12.
    assert hash_password("test12", bytes.fromhex("908DC60A")) == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def test_passwords_match_their_own_hash_only() -> None:
    stored = hash_password("secret", b"salt")
    assert matches_password("secret", stored)
    assert not matches_password("Secret", stored)
    assert not matches_password("", "")
    assert not matches_password("secret", "not base64!")


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (".*", "anything", True),
        ("", "anything", False),
        ("", "", False),
        ("^amq\\.default$", "", True),
        ("^orders-", "orders-1", True),
        ("^orders-", "my-orders-1", False),
        ("orders", "my-orders-1", True),
    ],
)
def test_permission_expressions_are_searched_for(pattern: str, name: str, expected: bool) -> None:
    assert permits(PermissionRecord("u", "/", "", pattern, ""), "write", name) is expected


def test_permissions_belong_to_user_and_vhost(directory: UserDirectory) -> None:
    assert directory.may_enter("guest", "/")
    assert directory.may("guest", "/", "configure", "q")
    assert not directory.may_enter("alice", "/")
    assert not directory.may("alice", "/", "read", "q")
    directory.set_permission(PermissionRecord("alice", "v", "", "", "^a"))
    assert directory.may("alice", "v", "read", "abc")
    assert not directory.may("alice", "v", "write", "abc")
    directory.clear_permission("alice", "v")
    assert not directory.may_enter("alice", "v")


def test_bad_permissions_are_refused(directory: UserDirectory) -> None:
    with pytest.raises(ConfigError, match="not a regular expression"):
        directory.set_permission(PermissionRecord("alice", "/", "(", "", ""))
    with pytest.raises(ConfigError, match="no user 'nobody'"):
        directory.set_permission(PermissionRecord("nobody", "/", "", "", ""))


def test_deleting_a_user_or_vhost_takes_the_permissions(directory: UserDirectory) -> None:
    directory.set_permission(PermissionRecord("alice", "v", "", "", ""))
    directory.forget_vhost("v")
    assert not directory.may_enter("alice", "v")
    assert directory.delete_user("guest")
    assert not directory.delete_user("guest")
    assert directory.permissions() == []
    directory.check_invariants()


def test_a_snapshot_restores(directory: UserDirectory) -> None:
    copy = UserDirectory()
    copy.restore(directory.snapshot())
    copy.check_invariants()
    assert copy.users() == directory.users()
    assert copy.permissions() == directory.permissions()
    assert copy.has_tag("alice", "monitoring")
    assert not copy.has_tag("nobody", "monitoring")


def test_a_password_hash_is_not_shown(directory: UserDirectory) -> None:
    assert "password_hash" not in repr(directory.user("alice"))


def test_both_mechanisms_are_read() -> None:
    assert parse_login("PLAIN", b"\0alice\0p:w") == ("alice", "p:w")
    assert parse_login("PLAIN", b"ignored\0alice\0") == ("alice", "")
    table = encode.field_table({"LOGIN": "alice", "PASSWORD": "pw"})[4:]
    assert parse_login("AMQPLAIN", table) == ("alice", "pw")


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [
        ("PLAIN", b"", 403),
        ("PLAIN", b"\0alice", 403),
        ("PLAIN", b"\0a\0b\0c", 403),
        ("PLAIN", b"\0\xff\0b", 403),
        ("AMQPLAIN", b"", 403),
        ("AMQPLAIN", b"\x05LOG", 403),
        ("AMQPLAIN", encode.field_table({"LOGIN": 1, "PASSWORD": "pw"})[4:], 403),
        ("EXTERNAL", b"", 503),
    ],
)
def test_unreadable_logins(mechanism: str, response: bytes, code: int) -> None:
    with pytest.raises(ConnectionFailure) as caught:
        parse_login(mechanism, response)
    assert caught.value.reply_code == code


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("example.org", False),
    ],
)
def test_what_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_guest_logs_in_from_this_machine_only(directory: UserDirectory) -> None:
    assert log_in(directory, "PLAIN", b"\0guest\0guest", "::1") == "guest"
    with pytest.raises(LoginRefused) as caught:
        log_in(directory, "PLAIN", b"\0guest\0guest", "10.0.0.1")
    assert caught.value.details == "user 'guest' can only connect via localhost"
    assert "localhost" not in caught.value.reply_text
    assert log_in(directory, "PLAIN", "\0alice\0pässword".encode(), "10.0.0.1") == "alice"


def test_a_refusal_does_not_say_what_was_wrong(directory: UserDirectory) -> None:
    texts = set()
    for response in (b"\0alice\0wrong", b"\0nobody\0wrong", b"\0guest\0wrong"):
        with pytest.raises(ConnectionFailure) as caught:
            log_in(directory, "PLAIN", response, "10.0.0.1")
        texts.add(caught.value.reply_text)
    assert texts == {
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    }


def test_whoever_does_not_exist_is_hashed_for_too(directory: UserDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the time of the answer would tell who does."""
    hashed: list[bytes] = []
    sha256 = hashlib.sha256

    def counting(data: bytes) -> Any:
        hashed.append(data)
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", counting)
    for user in ("alice", "nobody"):
        assert not directory.check_password(user, "wrong")
    assert [len(data) for data in hashed] == [SALT_BYTES + len("wrong")] * 2


def test_a_refusal_names_the_user_for_the_log_alone_and_never_the_password(directory: UserDirectory) -> None:
    with pytest.raises(LoginRefused) as caught:
        log_in(directory, "PLAIN", b"\0ali\nce" + b"x" * 500 + b"\0hunter2", "10.0.0.1")
    assert caught.value.details.startswith("user 'ali\\ncexxx"), "no line of the log is the stranger's"
    assert len(caught.value.details) < 200
    assert "hunter2" not in caught.value.details + str(caught.value)
    assert "ali" not in str(caught.value)

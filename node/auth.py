"""Users, permissions and login.

A password is kept as RabbitMQ's ``rabbit_password_hashing_sha256`` keeps it: base64 of a 4-byte salt followed by
SHA-256(salt + password), so hashes can be carried over. Permissions are three regular expressions per user and vhost
(configure, write, read); they are searched for in the resource name, so ``^orders-`` and ``.*`` mean what operators
expect, and the empty expression permits nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pamqp import decode

from node.errors import ConfigError, ConnectionFailure
from node.patterns import is_found, pattern_problem

Action = Literal["configure", "write", "read"]
SALT_BYTES = 4
DEFAULT_USER = "guest"
#: Of a name that somebody claims, so much is written to the log.
SHOWN_NAME_CHARACTERS = 64
#: The default exchange has no name; permissions speak of it by this one.
DEFAULT_EXCHANGE_ALIAS = "amq.default"


@dataclass(frozen=True, slots=True)
class UserRecord:
    name: str
    #: See the top of this module. Empty: no password login.
    password_hash: str = field(repr=False)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PermissionRecord:
    """What a user may do in a vhost."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class Authenticator(Protocol):
    """Who may log in and do what; the broker asks before every operation."""

    def check_password(self, user: str, password: str) -> bool:
        """True if this user exists and has this password."""

    def knows(self, user: str) -> bool:
        """True if this user exists."""

    def is_loopback_only(self, user: str) -> bool:
        """True if the user may connect from this machine only."""

    def may_enter(self, user: str, vhost: str) -> bool:
        """True if the user has permissions of any kind in the vhost."""

    def may(self, user: str, vhost: str, action: Action, name: str) -> bool:
        """True if the user may do this to the queue or exchange ``name``."""

    def has_tag(self, user: str, tag: str) -> bool:
        """True if the user carries this tag (``administrator``, ``impersonator`` ...)."""


def hash_password(password: str, salt: bytes) -> str:
    """The stored form of a password. ``salt``: `SALT_BYTES` random bytes."""
    assert len(salt) == SALT_BYTES, "the salt has a fixed width, because it is cut off again by position"
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def matches_password(password: str, password_hash: str) -> bool:
    """Whether ``password`` belongs to a stored form; in constant time. A malformed stored form matches nothing."""
    try:
        stored = base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError):
        return False
    salt, digest = stored[:SALT_BYTES], stored[SALT_BYTES:]
    return hmac.compare_digest(hashlib.sha256(salt + password.encode()).digest(), digest)


#: Of a password that cannot be sent: it is not text.
_HASH_OF_NOBODY = base64.b64encode(bytes(SALT_BYTES + hashlib.sha256().digest_size)).decode()


def check_pattern(pattern: str) -> None:
    """Raises `ConfigError` if a permission expression cannot be used."""
    if problem := pattern_problem(pattern):
        raise ConfigError(f"permission {pattern!r} is not a regular expression: {problem}")


def permits(permission: PermissionRecord, action: Action, name: str) -> bool:
    pattern: str = getattr(permission, action)
    # As in the reference, nothing written means nothing permitted, not everything.
    return is_found(pattern or "^$", name or DEFAULT_EXCHANGE_ALIAS)


class UserDirectory:
    """Users and permissions in memory: an `Authenticator`, and the state that a cluster replicates."""

    def __init__(self, loopback_users: frozenset[str] = frozenset({DEFAULT_USER})) -> None:
        self._loopback_users = loopback_users
        self._users: dict[str, UserRecord] = {}
        self._permissions: dict[tuple[str, str], PermissionRecord] = {}

    # --- Authenticator ---

    def check_password(self, user: str, password: str) -> bool:
        record = self._users.get(user)
        # Whoever does not exist is hashed for, too, or the time of the answer would tell who does.
        is_right = matches_password(password, _HASH_OF_NOBODY if record is None else record.password_hash)
        return is_right and record is not None

    def knows(self, user: str) -> bool:
        return user in self._users

    def is_loopback_only(self, user: str) -> bool:
        return user in self._loopback_users

    def may_enter(self, user: str, vhost: str) -> bool:
        return (user, vhost) in self._permissions

    def may(self, user: str, vhost: str, action: Action, name: str) -> bool:
        permission = self._permissions.get((user, vhost))
        return permission is not None and permits(permission, action, name)

    def has_tag(self, user: str, tag: str) -> bool:
        record = self._users.get(user)
        return record is not None and tag in record.tags

    # --- listing and changing ---

    def users(self) -> list[UserRecord]:
        return list(self._users.values())

    def user(self, name: str) -> UserRecord | None:
        return self._users.get(name)

    def permissions(self) -> list[PermissionRecord]:
        return list(self._permissions.values())

    def set_user(self, record: UserRecord) -> None:
        """Add a user or replace password and tags."""
        self._users[record.name] = record

    def delete_user(self, name: str) -> bool:
        """Delete a user with all permissions. False if there is none."""
        for key in [key for key in self._permissions if key[0] == name]:
            del self._permissions[key]
        return self._users.pop(name, None) is not None

    def set_permission(self, record: PermissionRecord) -> None:
        """Raises `ConfigError` for an unusable expression or an unknown user."""
        if record.user not in self._users:
            raise ConfigError(f"there is no user {record.user!r}: add the user first")
        for pattern in (record.configure, record.write, record.read):
            check_pattern(pattern)
        self._permissions[record.user, record.vhost] = record

    def clear_permission(self, user: str, vhost: str) -> None:
        self._permissions.pop((user, vhost), None)

    def forget_vhost(self, vhost: str) -> None:
        """The vhost was deleted: its permissions go with it."""
        for key in [key for key in self._permissions if key[1] == vhost]:
            del self._permissions[key]

    def snapshot(self) -> dict[str, Any]:
        """Plain data for `restore`."""
        return {
            "users": [[each.name, each.password_hash, list(each.tags)] for each in self._users.values()],
            "permissions": [
                [each.user, each.vhost, each.configure, each.write, each.read] for each in self._permissions.values()
            ],
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        self._users = {name: UserRecord(name, stored, tuple(tags)) for name, stored, tags in data["users"]}
        self._permissions = {(each[0], each[1]): PermissionRecord(*each) for each in data["permissions"]}

    def check_invariants(self) -> None:
        for user, _ in self._permissions:
            assert user in self._users, "permissions go with their user"


def parse_login(mechanism: str, response: bytes) -> tuple[str, str]:
    """User and password of a ``connection.start-ok``.

    Raises `ConnectionFailure` 503 for a mechanism we do not offer, 403 for a response that cannot be read.
    """
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise _unreadable(mechanism)
        # RFC 4616: authorization identity (ignored, as in the reference), user, password.
        return _text(parts[1], mechanism), _text(parts[2], mechanism)
    if mechanism == "AMQPLAIN":
        # A field table without its length in front.
        try:
            table = decode.field_table(len(response).to_bytes(4, "big") + response)[1]
        except (ValueError, IndexError, OverflowError, OSError, RecursionError) as error:
            raise _unreadable(mechanism) from error
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(user, str) or not isinstance(password, str):
            raise _unreadable(mechanism)
        return user, password
    raise ConnectionFailure(503, f"unknown authentication mechanism '{mechanism}'")


def _text(raw: bytes, mechanism: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(mechanism) from error


class LoginRefused(ConnectionFailure):
    """The refusal (403), which tells the client nothing about what was wrong; ``details`` are for the log."""

    def __init__(self, mechanism: str, details: str) -> None:
        self.details = details
        super().__init__(
            403, f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
        )


def _unreadable(mechanism: str) -> LoginRefused:
    return LoginRefused(mechanism, f"the {mechanism} response cannot be read")


def is_loopback(peer_host: str) -> bool:
    """True for 127.0.0.0/8, ::1 and IPv4 loopback addresses mapped into IPv6."""
    try:
        address = ipaddress.ip_address(peer_host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def log_in(authenticator: Authenticator, mechanism: str, response: bytes, peer_host: str) -> str:
    """The user name of a successful login. Raises `LoginRefused`, or `ConnectionFailure` 503; shows no password."""
    user, password = parse_login(mechanism, response)
    # A stranger chooses the name: nothing in it may look like another line of the log.
    shown = f"user {user[:SHOWN_NAME_CHARACTERS]!r}"
    if not authenticator.check_password(user, password):
        raise LoginRefused(mechanism, f"{shown}: unknown, or the password is wrong")
    if authenticator.is_loopback_only(user) and not is_loopback(peer_host):
        raise LoginRefused(mechanism, f"{shown} can only connect via localhost")
    return user

"""Which node `warrenctl` talks to, and how it finds the cookie."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cluster.cli.targets import Target, resolve_target, working_directory
from cluster.directory import ClusterDirectory, NodeEntry, find_cluster_directory, read_cluster_directory
from node.errors import ConfigError

NODES = (NodeEntry("n1", "127.0.0.1:5672", "127.0.0.1:7001"), NodeEntry("n2", "127.0.0.1:5673", "127.0.0.1:7002"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory whose ``.warren`` holds a cluster."""
    path = tmp_path / ".warren"
    path.mkdir()
    (path / "cookie").write_text("secret of the cluster\n")
    ClusterDirectory(path, NODES).write()
    return tmp_path


def test_what_was_written_is_read(home: Path) -> None:
    assert read_cluster_directory(home / ".warren").nodes == NODES


def test_the_first_node_of_the_nearest_cluster(home: Path) -> None:
    below = home / "a" / "b"
    below.mkdir(parents=True)
    assert resolve_target(None, None, {}, below) == Target("n1", "127.0.0.1:7001", "secret of the cluster")


def test_a_name_is_looked_up(home: Path) -> None:
    assert resolve_target("n2", None, {}, home).address == "127.0.0.1:7002"
    assert resolve_target(None, None, {"WARREN_NODE": "n2"}, home).address == "127.0.0.1:7002"
    with pytest.raises(ConfigError, match="there is no node `n9`"):
        resolve_target("n9", None, {}, home)


def test_an_empty_name_is_no_node(home: Path) -> None:
    """`warrenctl -n "$NODE" stop` with a variable that is not set must not stop another one."""
    with pytest.raises(ConfigError, match="`-n` names no node"):
        resolve_target("", None, {}, home)
    assert resolve_target(None, None, {"WARREN_NODE": ""}, home) == resolve_target(None, None, {}, home)


def test_an_address_is_taken_as_it_is(tmp_path: Path) -> None:
    environment = {"WARREN_COOKIE": "c"}
    assert resolve_target("h:1", None, environment, tmp_path) == Target("h:1", "h:1", "c")
    with pytest.raises(ConfigError, match="a port is a number"):
        resolve_target("h:x", None, environment, tmp_path)


def test_without_any_hint_it_is_this_machine(tmp_path: Path) -> None:
    target = resolve_target(None, None, {}, tmp_path)
    assert target == Target("127.0.0.1:25672", "127.0.0.1:25672", "", is_guess=True)


def test_the_environment_names_the_directory_and_the_option_wins(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    environment = {"WARREN_CLUSTER_DIR": str(other)}
    with pytest.raises(ConfigError, match="there is no cluster in"):
        find_cluster_directory(None, environment, tmp_path)
    found = find_cluster_directory(home / ".warren", environment, tmp_path)
    assert found is not None
    assert found.nodes == NODES


def test_what_another_user_shows_to_nobody_is_in_nobodys_way(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has a cluster in a directory above this one."""
    is_file = Path.is_file

    def look(path: Path) -> bool:
        if path.parent == home / "below" / ".warren":
            raise PermissionError(errno.EACCES, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", look)
    found = find_cluster_directory(None, {}, home / "below")
    assert found is not None
    assert found.nodes == NODES


def test_a_directory_that_was_removed_is_no_place_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert working_directory() == Path("/")


def test_the_cookie_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    assert resolve_target("h:1", None, {"WARREN_COOKIE_FILE": str(secret)}, tmp_path).cookie == "hush"


def test_a_file_of_the_cookie_that_is_no_text_is_a_complaint_that_does_not_show_it(home: Path) -> None:
    remedy = "it is not UTF-8 text; write a secret of letters and digits into it"
    secret = home / ".warren" / "cookie"
    secret.write_bytes(b"hunter2\xff")
    for environment, message in (
        ({}, f"{secret}: cannot read the cluster's cookie: {remedy}"),
        ({"WARREN_COOKIE_FILE": str(secret)}, f"WARREN_COOKIE_FILE: cannot read {secret}: {remedy}"),
    ):
        with pytest.raises(ConfigError) as refused:
            resolve_target("n1", None, environment, home)
        assert str(refused.value) == message


@pytest.mark.parametrize("name", ["WARREN_COOKIE", "WARREN_NODE"])
def test_a_variable_that_is_no_text_is_a_complaint_that_names_it(home: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is not UTF-8 text; "):
        resolve_target(None, None, {name: "hush\udcff:1"}, home)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version":1,"nodes":[{"name":"n1"}]}', '{"version":1,"nodes":[]}'])
def test_a_damaged_descriptor_is_a_complaint(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ConfigError, match=r"cluster\.json"):
        read_cluster_directory(tmp_path)


def test_removing_a_cluster_leaves_what_is_not_its_own(home: Path) -> None:
    path = home / ".warren"
    (path / "n1").mkdir()
    (path / "n1.log").write_text("x")
    (path / "diary").write_text("mine")
    read_cluster_directory(path).remove()
    assert [file.name for file in path.iterdir()] == ["diary"]


def test_without_a_cluster_directory_the_cookie_is_that_of_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home)}
    assert resolve_target("h:1", None, environment, tmp_path).cookie == ""
    cookie = home / ".warren.cookie"
    cookie.touch(0o600)
    cookie.write_text("the secret of a node alone")
    assert resolve_target("h:1", None, environment, tmp_path).cookie == "the secret of a node alone"
    assert resolve_target("h:1", None, environment | {"WARREN_COOKIE": "hush"}, tmp_path).cookie == "hush"


def test_it_is_known_whence_the_cookie_is(home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    cookie = home / ".warren.cookie"
    cookie.touch(0o600)
    cookie.write_text("the secret of a node alone\n")
    for environment, start, source in (
        ({"WARREN_COOKIE": "c"}, home, "WARREN_COOKIE"),
        ({"WARREN_COOKIE_FILE": str(secret)}, home, f"{secret} (WARREN_COOKIE_FILE)"),
        ({"HOME": str(home)}, home, str(home / ".warren" / "cookie")),
        ({"HOME": str(home)}, Path("/"), str(cookie)),
        ({}, Path("/"), ""),
    ):
        assert resolve_target("h:1", None, environment, start).cookie_source == source


def test_tls_files_are_the_environments_all_or_none(tmp_path: Path) -> None:
    given = {"WARREN_SSL_CACERTFILE": "/a", "WARREN_SSL_CERTFILE": "/c", "WARREN_SSL_KEYFILE": "/k"}
    assert resolve_target("h:1", None, given, tmp_path).tls == (Path("/a"), Path("/c"), Path("/k"))
    assert resolve_target("h:1", None, {}, tmp_path).tls is None
    with pytest.raises(ConfigError, match="WARREN_SSL_CERTFILE is not set; TLS needs all of"):
        resolve_target("h:1", None, given | {"WARREN_SSL_CERTFILE": ""}, tmp_path)

"""What a node says that cannot start as it was told to: key, value and remedy, and exit code 78."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PROGRAMS = Path(sys.executable).parent
EXIT_CONFIG = 78


@pytest.fixture(autouse=True)
def _home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node alone makes its cookie in the home of its user."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("WARREN_")}


def settings(data_dir: Path, **others: object) -> dict[str, object]:
    """Of a node alone, on free ports."""
    ports = {"listeners.tcp.default": f"127.0.0.1:{free_port()}", "cluster.listener": f"127.0.0.1:{free_port()}"}
    return {"data_dir": data_dir} | ports | {key.replace("__", "."): value for key, value in others.items()}


def command(given: dict[str, object]) -> list[str]:
    return [str(PROGRAMS / "warren"), "node", *(part for key in given for part in ("--set", f"{key}={given[key]}"))]


def start_in_vain(given: dict[str, object], *before: str) -> tuple[int, str]:
    """Exit code and what the node said; ``before``: a program that starts it."""
    start = [*before, *command(given)]
    result = subprocess.run(start, capture_output=True, text=True, timeout=60, check=False, env=environment())
    return result.returncode, result.stdout + result.stderr


def warrenctl(address: object, *arguments: str, cookie: Path | None = None) -> tuple[int, str]:
    """Exit code and standard error."""
    ask = [str(PROGRAMS / "warrenctl"), "-n", str(address), *arguments]
    secret = {} if cookie is None else {"WARREN_COOKIE_FILE": str(cookie)}
    result = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False, env=environment() | secret)
    return result.returncode, result.stderr


def test_a_data_dir_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("notes")
    exit_code, said = start_in_vain(settings(file))
    assert exit_code == EXIT_CONFIG, said
    assert f"data_dir {file} is a file: set `data_dir` to a directory" in said
    assert "Traceback" not in said


def test_too_few_files_may_be_open(tmp_path: Path) -> None:
    exit_code, said = start_in_vain(settings(tmp_path / "data"), "prlimit", "--nofile=60:60")
    assert exit_code == EXIT_CONFIG, said
    assert "this process may have 60 files open: a node needs 100" in said
    assert "Traceback" not in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("key", ["cluster.listener", "listeners.tcp.default"])
def test_a_port_that_is_in_use(tmp_path: Path, key: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        exit_code, said = start_in_vain(settings(tmp_path / "data") | {key: address})
    assert exit_code == EXIT_CONFIG, said
    expected = (
        f"`{key}`: cannot listen on {address}: Address already in use; stop what uses that port (this node itself"
    )
    assert expected in said
    assert "Traceback" not in said
    assert not (tmp_path / "data").exists(), "nothing was begun"


@pytest.mark.parametrize("key", ["cluster.listener", "listeners.tcp.default"])
def test_an_address_of_another_machine(tmp_path: Path, key: str) -> None:
    exit_code, said = start_in_vain(settings(tmp_path / "data") | {key: "192.0.2.1:25672"})
    assert exit_code == EXIT_CONFIG, said
    assert f"`{key}`: cannot listen on 192.0.2.1:25672: Cannot assign requested address; set `{key}` to" in said
    assert not (tmp_path / "data").exists(), "nothing was begun"


def test_a_data_dir_where_none_can_be_made() -> None:
    exit_code, said = start_in_vain(settings(Path("/proc/nothing/here")))
    assert exit_code == EXIT_CONFIG, said
    assert "data_dir /proc/nothing/here cannot be used (No such file or directory): set `data_dir` to" in said


def test_a_log_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("notes")
    exit_code, said = start_in_vain(settings(tmp_path / "data", log__file=tmp_path / "logs" / "n1.log"))
    assert (exit_code, said) == (EXIT_CONFIG, f"`log.file` {tmp_path}/logs/n1.log cannot be written: File exists\n")


def test_another_name_on_an_old_data_dir(tmp_path: Path) -> None:
    given = settings(tmp_path / "data", node_name="n1")
    node = subprocess.Popen(command(given), stderr=subprocess.DEVNULL, env=environment())
    try:
        assert warrenctl(given["cluster.listener"], "await_startup", "-t", "30", "-q")[0] == 0
        with socket.create_connection(("127.0.0.1", int(str(given["listeners.tcp.default"]).rpartition(":")[2])), 5):
            pass  # clients are served
    finally:
        node.terminate()
        node.wait(30)
    exit_code, said = start_in_vain(given | {"node_name": "n2"})
    assert exit_code == EXIT_CONFIG, said
    assert f"data_dir {tmp_path}/data belongs to node n1, and `node_name` is n2: set `node_name = n1`" in said
    (tmp_path / "data" / "node_name").unlink()  # as an older version left it
    exit_code, said = start_in_vain(given | {"node_name": "n2"})
    assert exit_code == EXIT_CONFIG, said
    assert f"data_dir {tmp_path}/data belongs to a cluster of n1, and `node_name` is n2: set" in said


def test_a_node_without_a_majority_has_not_started_up(tmp_path: Path) -> None:
    """Alone of three: it answers `warrenctl`, and serves nobody."""
    given = settings(tmp_path / "data")
    address = given["cluster.listener"]
    members = {
        f"cluster_formation.classic_config.nodes.{number}": f"n{number}@127.0.0.1:{free_port()}" for number in (2, 3)
    }
    members["cluster_formation.classic_config.nodes.1"] = f"n1@{address}"
    cookie = tmp_path / "cookie"
    cookie.write_text("0123456789abcdef")
    cookie.chmod(0o600)
    given |= members | {"cluster.cookie_file": cookie}
    log = tmp_path / "n1.log"
    with log.open("w") as output:
        node = subprocess.Popen(command(given), stderr=output, env=environment())
    try:
        eventually(lambda: "clients are served once a majority" in log.read_text(), "the node says what it waits for")
        exit_code, errors = warrenctl(address, "await_startup", "-t", "1", "-q", cookie=cookie)
    finally:
        node.terminate()
        node.wait(30)
    assert exit_code == 75
    assert "it runs, but serves no clients" in errors


def test_a_node_alone_has_a_secret_too(tmp_path: Path) -> None:
    """Its user's tools find it in the home; another user is refused."""
    given = settings(tmp_path / "data")
    node = subprocess.Popen(command(given), stderr=subprocess.DEVNULL, env=environment())
    try:
        assert warrenctl(given["cluster.listener"], "await_startup", "-t", "30", "-q")[0] == 0
        (tmp_path / "other").write_text("guessed by another user")
        exit_code, errors = warrenctl(given["cluster.listener"], "status", cookie=tmp_path / "other")
        assert exit_code == 69
        assert "wrong cookie" in errors
    finally:
        node.terminate()
        node.wait(30)
    assert (tmp_path / "home" / ".warren.cookie").stat().st_mode & 0o077 == 0

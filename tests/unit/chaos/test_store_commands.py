"""`warren store` from the command line: what is printed, and the exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaos import open_files
from chaos.cli import main
from chaos.open_files import data_directory_of, processes_using
from node.store.disk.length_file import LENGTHS_NAME
from tests.support.storage_on_disk import NodeOnDisk, fill, snapshot, stay_on, write_v1_queue


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeOnDisk:
    stay_on(monkeypatch)
    node = NodeOnDisk(tmp_path / "n1")
    fill(node)
    node.stop()
    return node


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, arguments)])


def damage(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_inspect_as_tables(node: NodeOnDisk) -> None:
    write_v1_queue_of(node)
    result = run("inspect", node.directory)
    assert result.exit_code == 0
    for text in ("vhost '/'", "queue 'orders' (id 7)", "0.qi", "1.qi", "0.rdq", "2.idx", "stopped cleanly"):
        assert text in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if line.split()[:1] == ["1.qi"]]
    assert row.split()[1:9] == ["7", "1", "0", "7", "0", "4", "3", "0"]
    assert "position 0 of queue 8" in result.stdout
    assert result.stderr == ""


def write_v1_queue_of(node: NodeOnDisk) -> None:
    write_v1_queue(node.directory / "elsewhere", stops_cleanly=True)
    (node.directory / "elsewhere" / "queues" / "9").rename(node.vhost / "queues" / "9")


def test_inspect_as_json(node: NodeOnDisk) -> None:
    result = run("inspect", node.directory, "--formatter", "json")
    document = json.loads(result.stdout)
    assert document["scope"] == "node"
    assert document["totals"]["messages"] == 17
    (vhost,) = document["vhosts"]
    assert [queue["name"] for queue in vhost["queues"]] == ["orders", "bills"]
    assert vhost["queues"][0]["segments"][0]["garbage_bytes"] > 0
    assert vhost["persistent_store"]["files"][0]["oldest"]["queue_id"] == 8


def test_one_queue(node: NodeOnDisk) -> None:
    assert "orders" not in run("inspect", node.directory, "--queue", "bills").stdout
    for command in ("inspect", "verify"):
        result = run(command, node.directory, "--queue", "none")
        assert (result.exit_code, result.stdout) == (64, "")
        assert "there is no queue 'none'" in result.stderr


def test_verify_of_what_is_whole(node: NodeOnDisk) -> None:
    result = run("verify", node.directory)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Checked (queues 2, shared stores 1): everything is as it was written.\n"


def test_verify_lists_damage(node: NodeOnDisk) -> None:
    path = node.shared / "0.rdq"
    damage(path, 100)
    result = run("verify", node.directory)
    assert result.exit_code == 65
    assert f"damage: {path}, byte 64: 143 bytes that are no whole record\n    next: " in result.stdout
    document = json.loads(run("verify", node.directory, "--formatter", "json").stdout)
    assert (document["damage"], document["torn"], document["leftover"]) == (len(document["problems"]), 0, 0)
    assert document["problems"][0]["kind"] == "damage"
    assert document["problems"][0]["path"] == str(path)
    assert document["problems"][0]["offset"] == 64
    assert set(document["problems"][0]) == {"kind", "path", "offset", "what", "consequence"}


def test_verify_of_leftovers_and_unfinished_writes_is_no_failure(node: NodeOnDisk) -> None:
    """As a crash leaves it before the first length was noted."""
    for path in (*node.vhost.rglob("clean.*"), node.vhost / LENGTHS_NAME):
        path.unlink()
    (node.queue() / "clean.terms.tmp").write_bytes(b"")
    content = (node.shared / "0.rdq").read_bytes()
    (node.shared / "0.rdq").write_bytes(content[:-1])
    result = run("verify", node.directory)
    assert result.exit_code == 0
    assert "\ntorn: " in "\n" + result.stdout
    assert "\nleftover: " in "\n" + result.stdout
    assert "0 damaged, 2 unfinished writes of a crash, 1 leftovers." in result.stdout


def test_nothing_changes(node: NodeOnDisk) -> None:
    damage(node.shared / "0.rdq", 100)
    damage(node.queue() / "0.qi", 140)
    before = snapshot(node.directory)
    run("inspect", node.directory)
    run("verify", node.directory)
    assert snapshot(node.directory) == before


def test_the_directory_above_the_nodes_is_answered_with_theirs(node: NodeOnDisk) -> None:
    above = node.directory.parent
    (above / "n2").mkdir()  # a node that has not started yet has nothing to be looked at
    (above / "cookie").write_text("hush")
    for command in ("inspect", "verify"):
        result = run(command, above)
        assert (result.exit_code, result.stdout) == (64, "")
        assert f"{above} is not itself a node's data directory, but holds some: name one of {above}/n1" in result.stderr
        assert "n2" not in result.stderr


def test_a_node_that_has_had_no_queue_is_one_all_the_same(tmp_path: Path) -> None:
    directory = tmp_path / "n1"
    (directory / "raft").mkdir(parents=True)
    (directory / "node_name").write_text("n1")
    for command in ("inspect", "verify"):
        result = run(command, directory)
        assert (result.exit_code, result.stderr) == (0, "")
        assert f"holds some: name one of {directory}" in run(command, tmp_path).stderr


def test_what_is_no_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "processes_using", lambda _directory: [4711])
    for command in ("inspect", "verify"):
        assert run(command, tmp_path / "none").exit_code == 64
        result = run(command, tmp_path)
        assert (result.exit_code, result.stdout) == (64, "")
        assert "is neither a node's data directory" in result.stderr
        assert "4711" not in result.stderr, "who has files open somewhere below is no node on this directory"


def test_a_file_that_cannot_be_read(node: NodeOnDisk) -> None:
    path = node.queue() / "0.qi"
    path.unlink()
    path.mkdir()
    assert run("inspect", node.directory).exit_code == 70
    result = run("verify", node.directory)
    assert result.exit_code == 65
    assert str(path) in result.stdout


def test_an_interrupt_ends_it(node: NodeOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("node.inspection.steps.Steps.begin", interrupt)
    for command in ("inspect", "verify"):
        result = run(command, node.directory)
        assert (result.exit_code, result.stdout) == (130, "")
        assert result.stderr == "Interrupted. Nothing was changed.\n"


def test_a_running_node_is_pointed_out(node: NodeOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def use(directory: Path) -> list[int]:
        asked.append(directory)
        return [4711]

    monkeypatch.setattr(open_files, "processes_using", use)
    result = run("verify", node.queue())
    assert result.exit_code == 0
    assert "a node seems to run on this directory (process 4711)" in result.stderr
    assert asked == [node.directory]


def test_who_has_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own files do not count, so the test pretends to be somebody else."""
    with (tmp_path / "file").open("w"):
        assert processes_using(tmp_path) == []
        own_pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert processes_using(tmp_path) == [own_pid]
        assert processes_using(tmp_path / "fil") == []


def test_the_data_directory_of_a_part(tmp_path: Path) -> None:
    assert data_directory_of(tmp_path / "vhosts" / "a" / "queues" / "7") == tmp_path
    assert data_directory_of(tmp_path) == tmp_path

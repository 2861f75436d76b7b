"""Whose data directory it is, and what can be one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cluster.real_world.data_lock import DataLock
from cluster.runtime.data_directory import (
    INCARNATION_FILE,
    NAME_FILE,
    claim_data_directory,
    incarnation_of,
    keep_data_directory,
    next_incarnation,
)
from cluster.runtime.fresh_start import JOINED_FILE, JoinedCluster, as_joined, joined_cluster
from node.config import build_config
from node.errors import ConfigError, DiskFullError, StorageError
from node.ids import NodeName
from node.store.disk.disk import RealDisk, read_whole, write_durably
from node.store.disk.simulated import CrashStyle, SimulatedDisk

N1, N2 = NodeName("n1"), NodeName("n2")


def start(directory: Path, node: NodeName = N1, voters: tuple[NodeName, ...] = (N1,)) -> None:
    """As a start and an end of a node do it."""
    disk = RealDisk()
    lock = claim_data_directory(disk, str(directory), node, DataLock)
    try:
        keep_data_directory(disk, str(directory), node, voters)
    finally:
        lock.release()


def test_a_directory_stays_its_nodes(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "data"
    start(directory)
    start(directory)
    assert (directory / NAME_FILE).read_text() == "n1\n"


def test_another_nodes_directory_is_refused_and_the_way_out_named(tmp_path: Path) -> None:
    start(tmp_path, N1)
    with pytest.raises(ConfigError) as caught:
        start(tmp_path, N2, (N1, N2))
    assert str(caught.value) == (
        f"data_dir {tmp_path} belongs to node n1, and `node_name` is n2: set `node_name = n1` to go on with what is "
        "stored there, or give n2 a `data_dir` of its own"
    )
    start(tmp_path, N1)  # nothing was changed, and the lock was given back


@pytest.mark.parametrize("left", [None, ""], ids=["older version", "cut short"])
def test_a_directory_without_a_name_is_known_by_its_voters(tmp_path: Path, left: str | None) -> None:
    if left is not None:
        (tmp_path / NAME_FILE).write_text(left)
    with pytest.raises(ConfigError, match=r"belongs to a cluster of n1, n3, and `node_name` is n2: set"):
        start(tmp_path, N2, (NodeName("n3"), N1))
    start(tmp_path, N1, (NodeName("n3"), N1))
    assert (tmp_path / NAME_FILE).read_text() == "n1\n"


def test_the_owner_is_known_after_a_crash() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/data")
    keep_data_directory(disk, "/data", N1, (N1, N2))
    disk.crash(CrashStyle.DROP, random.Random(1))
    assert read_whole(disk, f"/data/{NAME_FILE}") == b"n1\n"


def test_a_directory_that_a_node_has_made_is_there_after_a_crash() -> None:
    disk = SimulatedDisk()
    with pytest.raises(ConfigError, match="in use"):
        claim_data_directory(disk, "/var/lib/warren", N1, refuse)
    keep_data_directory(disk, "/var/lib/warren", N1, ())
    disk.crash(CrashStyle.DROP, random.Random(0))
    assert disk.list("/var/lib/warren") == [NAME_FILE]


def refuse(_data_dir: str) -> DataLock:
    raise ConfigError("in use")


def test_a_directory_above_may_be_one_that_cannot_be_read() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/var/lib")
    disk.fail_syncs = "/var/lib"
    with pytest.raises(ConfigError, match="in use"):
        claim_data_directory(disk, "/var/lib/warren", N1, refuse)


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("notes")
    with pytest.raises(ConfigError, match=rf"data_dir {file} is a file: set `data_dir` to a directory"):
        start(file)
    with pytest.raises(ConfigError, match=rf"data_dir {file}/n1 cannot be used \(Not a directory\): set `data_dir`"):
        start(file / "n1")
    assert file.read_text() == "notes"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["passwd"], "passwd"),
        (["lock", "run"], "run"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
    ],
)
def test_a_directory_of_somebody_else_is_refused_and_left_as_it_is(tmp_path: Path, names: list[str], told: str) -> None:
    for name in names:
        (tmp_path / name).write_text("not ours")
    with pytest.raises(ConfigError) as caught:
        start(tmp_path)
    assert str(caught.value) == (
        f"data_dir {tmp_path} holds what no node of Warren has made ({told}): set `data_dir` to an empty directory, or "
        "to one that does not exist yet"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"not ours"}


@pytest.mark.parametrize(
    "names",
    [
        ["lost+found"],
        [".warren.cookie"],
        ["n1.log"],
        ["lock", "identity.tmp"],
        ["lock", "identity.tmp", "running"],
        ["incarnation", "lock", "raft", "vhosts", "copied by the operator"],
    ],
    ids=[
        "a file system",
        "a home",
        "a log",
        "a first start cut short",
        "a first sync that failed",
        "the first release",
    ],
)
def test_a_directory_that_a_node_may_have_begun_is_taken(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    claim_data_directory(RealDisk(), str(tmp_path), N1, DataLock, others={"n1.log"}).release()


@pytest.mark.parametrize(
    ("number", "reason"), [(2, "No such file or directory"), (30, "Read-only file system"), (36, "File name too long")]
)
def test_a_place_where_no_directory_can_be_is_a_mistake_of_the_operator(
    monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    disk = RealDisk()

    def fail(path: str) -> None:
        raise StorageError(f"mkdir of {path} failed") from OSError(number, reason)

    monkeypatch.setattr(disk, "mkdir", fail)
    with pytest.raises(ConfigError, match=rf"data_dir /proc/x cannot be used \({reason}\): set `data_dir` to"):
        claim_data_directory(disk, "/proc/x", N1, DataLock)


def test_a_disk_that_fails_is_no_mistake_of_the_operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disk = RealDisk()

    def fail(path: str) -> None:
        raise DiskFullError(f"mkdir of {path} failed") from OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "mkdir", fail)
    with pytest.raises(StorageError, match="mkdir"):
        claim_data_directory(disk, str(tmp_path / "new"), N1, DataLock)


def directory_with(name: str, content: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("/data")
    write_durably(disk, f"/data/{name}", content)
    return disk


def test_starts_are_counted() -> None:
    disk = directory_with(INCARNATION_FILE, b"41\n")
    assert next_incarnation(disk, "/data") == incarnation_of(disk, "/data") == 42


@pytest.mark.parametrize("content", [b"", b"?", "²".encode(), "٣".encode(), b"-1", b"9" * 30, b"9" * 5000, b"\xff"])
def test_a_damaged_count_of_starts_is_refused_and_the_way_out_named(content: bytes) -> None:
    disk = directory_with(INCARNATION_FILE, content)
    with pytest.raises(StorageError, match=r"^/data/incarnation should hold the number of starts") as caught:
        incarnation_of(disk, "/data")
    assert str(caught.value).endswith(": restore it, or write a number into it that is higher than that of any start")
    assert len(str(caught.value)) < 500, "however long the file is"


def test_the_cluster_that_was_joined_is_known_by_its_file() -> None:
    joined = joined_cluster(directory_with(JOINED_FILE, b"group = ab\nmember = n2 n2..x:7\n"), "/data")
    assert joined == JoinedCluster("ab", {N2: "n2..x:7"}), "what a member has announced need not be good for anything"
    assert [member.name for member in as_joined(build_config([]), joined).members] == [N1, N2]
    assert joined_cluster(directory_with("other", b""), "/data") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"group = ab\n",
        b"member = n2 h:7\n",
        b"group = ab\nmember = n2\n",
        b"group = ab\nmember = n2 h:\n",
        b"group = ab\nmember = n2 h:7\nmember = n3 h\n",
        b"group = ab\nmember =  h:7\n",
    ],
)
def test_a_damaged_file_of_the_joined_cluster_is_refused_and_the_way_out_named(content: bytes) -> None:
    with pytest.raises(StorageError, match=r"^/data/joined should name the cluster that this node was told") as caught:
        joined_cluster(directory_with(JOINED_FILE, content), "/data")
    assert str(caught.value).endswith(
        ": restore it, or write into it the line `group = ...` of the file `identity` of a member, and "
        "`member = <name> <host:port>` for each of the members"
    )

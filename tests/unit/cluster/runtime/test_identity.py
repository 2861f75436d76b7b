"""What a data directory says of the release that may use it, to this release and to the one before."""

from __future__ import annotations

from random import Random

import pytest

from cluster.metadata.errors import NewerReleaseError
from cluster.runtime.identity import IDENTITY_FILE, IdentityFile
from node.errors import DiskFullError, StorageError
from node.ids import NodeName
from node.store.disk.disk import read_whole, write_durably
from node.store.disk.simulated import CrashStyle, SimulatedDisk

PATH = f"/data/{IDENTITY_FILE}"


def opened(disk: SimulatedDisk) -> IdentityFile:
    return IdentityFile.open(disk, "/data", NodeName("n1"), Random(1))


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("/data")
    return disk


def text_of(disk: SimulatedDisk) -> str:
    return read_whole(disk, PATH).decode()


def test_under_protocol_2_the_file_is_that_of_the_release_before(disk: SimulatedDisk) -> None:
    file = opened(disk)
    file.need(2)
    file.bind("ab" * 16)
    assert text_of(disk) == f"identity = {file.current.identity}\ngroup = {'ab' * 16}\n"
    file.require(2)


def test_from_protocol_3_on_the_release_before_finds_no_identity_and_shows_what_to_do(disk: SimulatedDisk) -> None:
    """It looks for a line ``identity = ``, and puts the text of the file into its refusal."""
    file = opened(disk)
    file.bind("ab" * 16)
    file.need(3)
    disk.crash(CrashStyle.DROP, Random(1))
    lines = text_of(disk).splitlines()
    assert not any(line.startswith("identity = ") for line in lines)
    assert lines[1] == "note = a newer release of Warren uses this directory: start that one, or a later one"
    again = opened(disk)
    assert again.current == file.current
    assert (again.current.protocol, again.current.group) == (3, "ab" * 16)


def test_what_it_needs_never_falls_and_outlives_other_changes(disk: SimulatedDisk) -> None:
    file = opened(disk)
    file.need(4)
    file.need(3)
    file.bind("cd" * 16)
    file.note_log()
    disk.mkdir("/data/raft")
    write_durably(disk, "/data/raft/log", b"")
    assert opened(disk).current.protocol == 4


def test_a_release_that_does_not_speak_it_is_refused(disk: SimulatedDisk) -> None:
    opened(disk).need(4)
    opened(disk).require(4)
    with pytest.raises(NewerReleaseError, match=f"{PATH} needs protocol 4, .* speaks protocol 3: upgrade"):
        opened(disk).require(3)


@pytest.mark.parametrize("number", ["x", "²", "9" * 5000])
def test_a_protocol_that_is_no_number_is_a_broken_file(disk: SimulatedDisk, number: str) -> None:
    opened(disk).need(3)
    write_durably(disk, PATH, text_of(disk).replace("protocol = 3", f"protocol = {number}").encode())
    with pytest.raises(StorageError, match="should hold the identity"):
        opened(disk)


def test_a_failed_sync_is_told_to_who_ends_the_node_and_a_full_disk_is_not(disk: SimulatedDisk) -> None:
    file, told = opened(disk), list[str]()
    file.on_failed = lambda error: told.append(str(error))
    before, room, disk.capacity_bytes = file.current, disk.capacity_bytes, 1
    with pytest.raises(DiskFullError):
        file.need(3)
    disk.capacity_bytes = room
    assert told == []
    disk.fail_syncs = "identity"
    with pytest.raises(StorageError):
        file.need(3)
    assert told == [f"fsync of {PATH}.tmp failed: injected error (errno 5)"]
    assert file.current == before

"""Both disks do the same; the simulated one also fails, fills up and crashes on demand."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from node.errors import DiskFullError, StorageError
from node.store.disk import disk as disk_module
from node.store.disk.disk import Disk, RealDisk, RealFile, read_whole, write_durably
from node.store.disk.simulated import CrashStyle, SimulatedCrashError, SimulatedDisk
from node.store.disk.simulated_inode import Inode
from tests.support.descriptors import open_descriptors


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    disk: Disk = RealDisk() if request.param == "real" else SimulatedDisk()
    directory = str(tmp_path / "d")
    disk.mkdir(directory)
    return disk, directory


def test_a_file_reads_what_was_written(place: tuple[Disk, str]) -> None:
    disk, directory = place
    file = disk.create(f"{directory}/f")
    assert file.append(b"abc") == 0
    assert file.append(b"def") == 3
    file.pwrite(b"X", 1)
    file.pwrite(b"!", 8)
    assert file.pread(100, 0) == b"aXcdef\0\0!"
    assert (file.size, file.has_unsynced) == (9, True)
    file.truncate(2)
    file.sync()
    assert not file.has_unsynced
    file.close()
    assert read_whole(disk, f"{directory}/f") == b"aX"


def test_a_cut_is_begun_and_finished(place: tuple[Disk, str]) -> None:
    disk, directory = place
    file = disk.create(f"{directory}/f")
    file.append(b"abcdef")
    file.sync()
    cut = file.begin_cut(2)
    assert file.pread(2, 0) == b"ab", "what stays can be read meanwhile"
    cut.finish()
    assert cut.is_done
    assert (file.size, file.has_unsynced) == (2, True)
    file.close()
    assert read_whole(disk, f"{directory}/f") == b"ab"


def test_a_simulated_cut_happens_early_or_late() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    file = disk.create("/d/f")
    file.append(b"abcdef")
    lengths = []
    for size in (5, 4, 3, 2):
        cut = file.begin_cut(size)
        lengths.append(len(read_whole(disk, "/d/f")))
        cut.finish()
        assert len(read_whole(disk, "/d/f")) == size
    assert lengths == [6, 4, 4, 2]


@pytest.mark.parametrize("every", [0, 1, 2, 3])
def test_the_cuts_of_a_twin_happen_when_those_of_its_model_would(every: int) -> None:
    disk = SimulatedDisk()
    disk.early_cut_every = every
    disk.mkdir("/d")
    disk.create("/d/f").append(b"abcdef")
    disk.open("/d/f").begin_cut(5).finish()

    def lengths_while_cutting(disk: SimulatedDisk) -> list[int]:
        file = disk.open("/d/f")
        found = []
        for size in (4, 3, 2):
            cut = file.begin_cut(size)
            found.append(len(read_whole(disk, "/d/f")))
            cut.finish()
        return found

    assert lengths_while_cutting(disk.twin()) == lengths_while_cutting(disk)


def test_names(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.create(f"{directory}/b").close()
    disk.create(f"{directory}/a").close()
    disk.mkdir(f"{directory}/sub/below")
    disk.create(f"{directory}/sub/below/x").close()
    assert disk.list(directory) == ["a", "b", "sub"]
    disk.rename(f"{directory}/a", f"{directory}/b")
    disk.unlink(f"{directory}/never-was")
    assert disk.list(directory) == ["b", "sub"]
    disk.remove_directory(f"{directory}/sub")
    disk.remove_directory(f"{directory}/sub")
    assert not disk.exists(f"{directory}/sub")
    assert disk.list(f"{directory}/sub") == []
    disk.sync_directory(directory)
    disk.directory(f"{directory}/gone").sync()
    assert disk.free_bytes(directory) > 0


def test_a_directory_is_renamed_with_everything_in_it(place: tuple[Disk, str]) -> None:
    disk, base = place
    disk.mkdir(f"{base}/queues/7/quarantine")
    disk.mkdir(f"{base}/deleting")
    for path in ("queues/7/0.qi", "queues/7/quarantine/1.bad"):
        file = disk.create(f"{base}/{path}")
        file.append(path.encode())
        file.close()
    disk.rename(f"{base}/queues/7", f"{base}/deleting/7.1")
    assert disk.list(f"{base}/queues") == []
    assert not disk.exists(f"{base}/queues/7")
    assert disk.list(f"{base}/deleting/7.1") == ["0.qi", "quarantine"]
    assert read_whole(disk, f"{base}/deleting/7.1/quarantine/1.bad") == b"queues/7/quarantine/1.bad"
    disk.remove_directory(f"{base}/deleting/7.1")
    assert disk.list(f"{base}/deleting") == []


def test_a_missing_file_is_a_storage_error(place: tuple[Disk, str]) -> None:
    disk, directory = place
    with pytest.raises(StorageError, match="No such file"):
        disk.open(f"{directory}/none")
    with pytest.raises(StorageError, match="No such file"):
        disk.create(f"{directory}/none/f")


def test_write_durably_replaces(place: tuple[Disk, str]) -> None:
    disk, directory = place
    write_durably(disk, f"{directory}/f", b"one")
    write_durably(disk, f"{directory}/f", b"two")
    assert read_whole(disk, f"{directory}/f") == b"two"
    assert disk.list(directory) == ["f"]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count is wanted


def test_a_closed_file_keeps_its_descriptor_until_it_is_synced(tmp_path: Path) -> None:
    before = _descriptors()
    file = RealDisk().create(str(tmp_path / "f"))
    file.append(b"x")
    file.close()
    assert _descriptors() == before + 1
    file.sync()
    assert _descriptors() == before


def test_an_abandoned_file_is_closed_at_once_and_syncs_without_error(tmp_path: Path) -> None:
    before = _descriptors()
    file = RealDisk().create(str(tmp_path / "f"))
    file.append(b"x")
    (tmp_path / "f").unlink()
    file.abandon()
    assert _descriptors() == before
    file.sync()


@pytest.mark.parametrize("ending", ["close", "abandon"])
def test_a_file_ended_during_a_sync_is_closed_by_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    file = RealDisk().create(str(tmp_path / "f"))
    assert isinstance(file, RealFile)
    file.append(b"x")
    before = _descriptors()
    is_syncing, may_end = threading.Event(), threading.Event()

    def slow_sync(fd: int) -> None:
        is_syncing.set()
        assert may_end.wait(10)
        os.fstat(fd)  # raises if the descriptor was closed under our feet

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            file.sync()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert is_syncing.wait(10)
    getattr(file, ending)()
    may_end.set()
    thread.join(10)
    assert failures == []
    assert _descriptors() == before - 1


def test_a_failed_fsync_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk().create(str(tmp_path / "f"))
    file.append(b"x")

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(StorageError, match=r"fsync of .*/f failed: Input/output error"):
        file.sync()
    file.abandon()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data)[:3], offset))
    file = RealDisk().create(str(tmp_path / "f"))
    file.append(b"0123456789")
    assert file.pread(20, 0) == b"0123456789"
    file.abandon()


# -- crashes of the simulated disk


def _crashed(style: CrashStyle, seed: int) -> bytes:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    file = disk.create("/d/f")
    disk.sync_directory("/d")
    file.append(b"safe")
    file.sync()
    file.append(b"-one")
    file.append(b"-two")
    disk.crash(style, random.Random(seed))
    return read_whole(disk, "/d/f")


def test_drop_loses_what_was_not_synced() -> None:
    assert _crashed(CrashStyle.DROP, 1) == b"safe"


def test_subset_keeps_any_of_the_writes_whole() -> None:
    outcomes = {_crashed(CrashStyle.SUBSET, seed) for seed in range(40)}
    assert outcomes == {b"safe", b"safe-one", b"safe\0\0\0\0-two", b"safe-one-two"}


def test_tear_cuts_the_last_surviving_write() -> None:
    outcomes = {_crashed(CrashStyle.TEAR, seed) for seed in range(200)}
    assert {b"safe", b"safe-o", b"safe-one-t"} <= outcomes
    assert all(outcome.startswith(b"safe") for outcome in outcomes)


@pytest.mark.parametrize("ending", ["abandoned", "of an earlier life"])
def test_a_file_that_was_given_up_makes_nothing_durable_any_more(ending: str) -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    write_durably(disk, "/d/f", b"safe")
    given_up = disk.open("/d/f")
    given_up.append(b"-lost")
    if ending == "abandoned":
        given_up.abandon()
    else:
        disk.crash(CrashStyle.DROP, random.Random(1))
        disk.open("/d/f").append(b"-later")
    given_up.sync()
    disk.crash(CrashStyle.DROP, random.Random(1))
    assert read_whole(disk, "/d/f") == b"safe"


def test_a_name_that_was_not_synced_is_lost_with_its_content() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    disk.create("/d/f").sync()
    disk.crash(CrashStyle.DROP, random.Random(1))
    assert disk.list("/d") == []


def test_a_rename_is_all_or_nothing() -> None:
    seen = set()
    for seed in range(20):
        disk = SimulatedDisk()
        disk.mkdir("/d")
        write_durably(disk, "/d/f", b"old")
        new = disk.create("/d/g")
        new.append(b"new")
        new.sync()
        disk.rename("/d/g", "/d/f")
        disk.crash(CrashStyle.SUBSET, random.Random(seed))
        seen.add(read_whole(disk, "/d/f"))
    assert seen == {b"old", b"new"}


@pytest.mark.parametrize(("synced", "left"), [([], []), (["/a"], ["/a/b/f"]), (["/a/b"], [])])
def test_a_new_directory_is_lost_with_all_that_is_in_it_unless_the_one_above_was_synced(
    synced: list[str], left: list[str]
) -> None:
    disk = SimulatedDisk()
    disk.mkdir("/a/b")
    write_durably(disk, "/a/b/f", b"x")
    for directory in synced:
        disk.sync_directory(directory)
    twin = disk.twin()
    for each in (disk, twin):
        each.crash(CrashStyle.DROP, random.Random(0))
        assert list(each.snapshot()) == left


def test_of_new_directories_a_crash_may_leave_any() -> None:
    seen = set()
    for seed in range(40):
        disk = SimulatedDisk()
        for path in ("/a/b", "/a/c/d"):
            disk.mkdir(path)
        disk.crash(CrashStyle.SUBSET, random.Random(seed))
        seen.add((*disk.list("/a"), *disk.list("/a/c")))
    assert seen == {(), ("b",), ("c",), ("c", "d"), ("b", "c"), ("b", "c", "d")}


@pytest.mark.parametrize("style", CrashStyle)
@pytest.mark.parametrize("synced", [[], ["/a"], ["/b"], ["/a", "/b"]])
def test_a_renamed_directory_stays_where_it_is_once_both_parents_are_synced(
    style: CrashStyle, synced: list[str]
) -> None:
    for seed in range(8):
        disk = SimulatedDisk()
        disk.mkdir_durably("/a/7")
        disk.mkdir("/b")
        write_durably(disk, "/a/7/0.qi", b"old")
        disk.rename("/a/7", "/b/7")
        disk.mkdir("/a/7")
        disk.unlink("/b/7/0.qi")
        for parent in synced:
            disk.sync_directory(parent)
        disk.crash(style, random.Random(seed))
        is_moved = disk.list("/b") == ["7"]
        if len(synced) == 2:
            assert is_moved, "durable"
        elif style is CrashStyle.DROP:
            assert not is_moved, "never happened"
            assert disk.snapshot() == {"/a/7/0.qi": b"old"}
        assert is_moved or disk.exists("/a/7"), "it is back"


def test_what_stands_in_the_place_of_a_moved_directory_that_was_removed_stays_where_it_is() -> None:
    disk = SimulatedDisk()
    disk.mkdir_durably("/a/7")
    disk.mkdir_durably("/b")
    disk.rename("/a/7", "/b/7")
    disk.remove_directory("/b/7")
    disk.mkdir_durably("/b/7")
    disk.crash(CrashStyle.DROP, random.Random(0))
    assert (disk.list("/a"), disk.list("/b")) == ([], ["7"])


def test_a_handle_from_before_the_crash_is_dead() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    file = disk.create("/d/f")
    disk.sync_directory("/d")
    file.append(b"x")
    disk.crash(CrashStyle.DROP, random.Random(1))
    file.sync()
    assert read_whole(disk, "/d/f") == b""
    with pytest.raises(AssertionError, match="before the crash"):
        file.append(b"y")


def test_a_full_disk_is_told_from_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match=r"write of /dev/full failed: No space left on device \(errno 28\)"):
        RealDisk().open("/dev/full").pwrite(b"x", 0)
    with pytest.raises(StorageError) as caught:
        RealDisk().open(str(tmp_path / "missing"))
    assert not isinstance(caught.value, DiskFullError)


def test_injected_faults() -> None:
    disk = SimulatedDisk(capacity_bytes=4)
    disk.mkdir("/d")
    file = disk.create("/d/f")
    disk.sync_directory("/d")
    with pytest.raises(DiskFullError, match="No space left"):
        file.append(b"12345")
    file.append(b"1234")
    file.pwrite(b"abcd", 0)
    disk.fail_writes = "/d/"
    with pytest.raises(StorageError, match="errno 5"):
        file.pwrite(b"x", 0)
    disk.fail_reads = "/d/f"
    with pytest.raises(StorageError, match="errno 5"):
        file.pread(1, 0)
    disk.fail_syncs = "/d/f"
    with pytest.raises(StorageError, match="errno 5"):
        file.sync()
    disk.fail_syncs = None
    file.sync()
    disk.crash(CrashStyle.SUBSET, random.Random(1))
    assert read_whole(disk, "/d/f") == b"", "what a failed fsync had under way never reaches the platter"


class HeldBack:
    """Stands for `FREEING`: jobs are done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def run(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def let_go(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> HeldBack:
    freeing = HeldBack()
    monkeypatch.setattr(disk_module, "FREEING", freeing)
    return freeing


def test_nobody_waits_for_a_cut(tmp_path: Path, held_back: HeldBack) -> None:
    path = tmp_path / "f"
    file = RealDisk().create(str(path))
    file.append(b"abcdef")
    cut = file.begin_cut(2)
    waiting = [cut.is_done]
    assert path.read_bytes() == b"abcdef"
    held_back.let_go()
    waiting.append(cut.is_done)
    assert waiting == [False, True]
    assert path.read_bytes() == b"ab"
    file.sync()
    file.close()


def test_a_file_owes_a_sync_while_it_is_being_cut(tmp_path: Path, held_back: HeldBack) -> None:
    """Or who closes it would not see to it that there is one."""
    file = RealDisk().create(str(tmp_path / "f"))
    file.append(b"abcdef")
    cut = file.begin_cut(2)
    owes = []
    for step in (file.sync, held_back.let_go, cut.finish, file.sync):
        step()
        owes.append(file.has_unsynced)
    assert owes == [True, True, True, False]
    file.close()
    assert open_descriptors(tmp_path) == 0


def test_a_descriptor_lives_until_its_file_is_cut(tmp_path: Path, held_back: HeldBack) -> None:
    path = tmp_path / "f"
    file = RealDisk().create(str(path))
    file.append(b"abcdef")
    file.sync()
    cut = file.begin_cut(2)
    file.close()
    assert open_descriptors(tmp_path) == 1
    held_back.let_go()
    cut.finish()
    assert path.read_bytes() == b"ab"
    assert open_descriptors(tmp_path) == 0, "nobody syncs a handle that is closed"


def test_a_cut_that_fails_says_so_to_whoever_finishes_it(
    tmp_path: Path, held_back: HeldBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().create(str(tmp_path / "f"))
    file.append(b"abcdef")
    cut = file.begin_cut(2)

    def refuse(_descriptor: int, _size: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "ftruncate", refuse)
    held_back.let_go()
    with pytest.raises(StorageError, match=r"truncate of .*/f failed"):
        cut.finish()
    file.sync()
    file.close()
    assert open_descriptors(tmp_path) == 0


def test_a_crash_clears_every_fault() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    disk.create("/d/f").append(b"1")
    disk.fail_writes = disk.fail_syncs = disk.fail_reads = disk.full_for = "/d"
    disk.crash_after, disk.fail_sync_after = 1000, 1
    disk.crash(CrashStyle.DROP, random.Random(0))
    write_durably(disk, "/d/f", b"23")
    assert read_whole(disk, "/d/f") == b"23"
    assert disk.crash_after is None


def test_the_simulated_disk_counts_the_handles_that_a_process_has_open() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    first, second, third = disk.create("/d/f"), disk.open("/d/f"), disk.open("/d/f")
    assert disk.open_handles == 3
    for _ in range(2):
        first.close()
        second.abandon()
    assert disk.open_handles == 2, "what is not synced keeps its descriptor"
    first.sync()
    assert disk.open_handles == 1
    disk.crash_after = 1
    disk.lose_handles()
    assert disk.open_handles == 0, "those of a dead process are gone with it"
    disk.create("/d/g").abandon()  # and so is the fault that it died of
    disk.open("/d/f")
    third.close()
    assert disk.open_handles == 1
    disk.crash(CrashStyle.DROP, random.Random(0))
    assert disk.open_handles == 0


def test_a_crash_after_some_operations() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    file = disk.create("/d/f")
    disk.crash_after = 2
    file.append(b"1")
    with pytest.raises(SimulatedCrashError):
        file.append(b"2")


def test_the_simulated_disk_counts_what_was_written_and_not_how_long_files_are() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    file = disk.create("/d/f")
    file.truncate(1000)
    used = [disk.used_bytes]
    for data, offset in ((b"ab", 10), (b"cde", 9), (bytes(5), 990)):
        file.pwrite(data, offset)
        used.append(disk.used_bytes)
    assert used == [0, 2, 3, 8]
    disk.capacity_bytes = disk.used_bytes
    file.pwrite(b"xyz", 9)
    file.truncate(11)
    assert disk.used_bytes == 2


@pytest.mark.parametrize(("chosen", "left"), [(None, b"abcdef"), (2, b"ab\0\0\0\0"), (0, bytes(6))])
def test_a_full_simulated_disk_takes_a_prefix(chosen: int | None, left: bytes) -> None:
    """Of the part inside the file; what it had grown by is cut off."""
    disk = SimulatedDisk()
    disk.mkdir("/d")
    file = disk.create("/d/f")
    disk.sync_directory("/d")
    file.truncate(6)
    disk.capacity_bytes = 7
    if chosen is not None:
        disk.prefix_of = lambda longest: min(longest, chosen)
    with pytest.raises(DiskFullError):
        file.pwrite(b"abcdefgh", 0)
    assert (file.size, read_whole(disk, "/d/f")) == (6, left)
    file.sync()
    disk.crash(CrashStyle.DROP, random.Random(1))
    assert read_whole(disk, "/d/f") == left


@pytest.mark.parametrize(("start", "written", "used"), [(0, 10, 32), (0, 32, 32), (0, 33, 40), (0, 39, 40), (5, 0, 0)])
def test_a_refused_write_has_taken_whole_blocks_as_far_as_the_file_goes(start: int, written: int, used: int) -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    file = disk.create("/d/f")
    file.truncate(40)
    disk.prefix_of = lambda _longest: written
    disk.full_for = "/d/f"
    with pytest.raises(DiskFullError):
        file.pwrite(bytes(40 - start), start)
    assert (disk.used_bytes, file.size) == (used, 40)
    file.truncate(0)
    assert disk.used_bytes == 0


@pytest.mark.parametrize("room", range(12))
def test_a_prefix_is_as_long_as_there_is_room_for(room: int) -> None:
    assert Inode().prefix(0, 10, room) == min(10, room)


def test_room_can_be_refused_to_some_files() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    other, file = disk.create("/d/a"), disk.create("/d/b")
    file.append(b"x")
    disk.full_for = "/d/b"
    other.append(b"1")
    file.pwrite(b"y", 0)
    with pytest.raises(DiskFullError):
        file.append(b"z")

"""The disk that keeps durable lengths: what it notes, what it forgets, and what it says at the next start."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from node.errors import StorageError
from node.store.disk.disk import DiskFile, RealDisk
from node.store.disk.group_commit import GroupCommit
from node.store.disk.guarded import COMPARED_PER_STEP, WRITE_EVERY_MS, GuardedDisk
from node.store.disk.length_file import LENGTHS_NAME, read_lengths
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from tests.support.stores import run_sync_round

VHOST = "/vhost"
QUEUE = f"{VHOST}/queues/7"
SEGMENT = f"{QUEUE}/0.qs"


class Node:
    """A guarded disk through crashes; the test plays the group commit's thread and the clock."""

    def __init__(self) -> None:
        self.below = SimulatedDisk()
        self.below.mkdir_durably(QUEUE)
        self.below.mkdir_durably(f"{VHOST}/msg_store_persistent")
        self.now_ms = 0
        self.start()

    def start(self) -> None:
        self.group_commit = GroupCommit()
        self.disk = GuardedDisk(self.below, VHOST, self.group_commit)

    def crash(self, style: CrashStyle = CrashStyle.DROP) -> list[str]:
        """Returns what the next start says."""
        self.below.crash(style, random.Random(3))
        self.start()
        return [short.path for short in self.disk.short_files_in(QUEUE)]

    def create(self, path: str, size: int) -> DiskFile:
        """A file of so many durable bytes, its name durable too."""
        file = self.disk.create(path)
        file.pwrite(bytes(size), 0)
        file.sync()
        self.disk.sync_directory(path.rpartition("/")[0])
        return file

    def write_notes(self) -> None:
        """A tick of the clock; the notes are durable on return."""
        self.now_ms += WRITE_EVERY_MS
        self.disk.write_notes(self.now_ms)
        run_sync_round(self.group_commit)
        self.disk.check_invariants()

    @property
    def noted(self) -> dict[str, int]:
        return dict(read_lengths(self.below, VHOST).lengths)


@pytest.fixture
def node() -> Node:
    return Node()


def shorten(node: Node, path: str, size: int) -> None:
    """As a broken file system would, behind the back of everybody."""
    file = node.below.open(path)
    file.truncate(size)
    file.sync()


def test_what_was_synced_is_noted_and_missed_when_it_is_cut_off(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.write_notes()
    assert node.noted == {SEGMENT: 100}
    shorten(node, SEGMENT, 99)
    assert node.crash() == [SEGMENT]


def test_every_start_tells_of_it_until_its_owner_has_recovered(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.write_notes()
    shorten(node, SEGMENT, 99)
    assert node.crash() == [SEGMENT]
    node.write_notes()
    assert node.crash() == [SEGMENT]
    node.disk.close()
    assert node.crash() == [SEGMENT]
    node.disk.acknowledge(QUEUE)
    assert node.disk.short_files_in(QUEUE) == []
    run_sync_round(node.group_commit)
    assert node.crash() == []


def test_what_was_written_and_not_synced_is_not_missed(node: Node) -> None:
    file = node.create(SEGMENT, 100)
    file.append(bytes(50))
    node.write_notes()
    assert node.noted == {SEGMENT: 100}
    assert node.crash() == []


def test_a_file_closed_before_its_sync_is_noted_by_it(node: Node) -> None:
    file = node.create(SEGMENT, 100)
    file.append(bytes(50))
    node.group_commit.mark_dirty(file)
    file.close()
    run_sync_round(node.group_commit)
    node.write_notes()
    assert node.noted == {SEGMENT: 150}


def test_notes_are_written_once_a_second(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.write_notes()
    file = node.disk.open(SEGMENT)
    file.append(bytes(10))
    file.sync()
    node.disk.write_notes(node.now_ms + WRITE_EVERY_MS - 1)
    assert node.noted == {SEGMENT: 100}
    node.disk.write_notes(node.now_ms + WRITE_EVERY_MS)
    assert node.noted == {SEGMENT: 110}


def test_many_notes_are_written_and_forgotten_in_bounded_ticks(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of ten million messages has five thousand files."""
    monkeypatch.setattr("node.store.disk.length_file.NOTES_PER_WRITE", 8)
    monkeypatch.setattr("node.store.disk.guarded.FORGOTTEN_PER_TICK", 5)
    for number in range(20):
        node.create(f"{QUEUE}/{number}.qs", 100)
    node.now_ms += WRITE_EVERY_MS
    noted: list[int] = []
    for tick in range(6):
        node.disk.write_notes(node.now_ms + tick)
        noted.append(len(node.noted))
        node.disk.check_invariants()
    assert noted == [8, 16, 20, 20, 20, 20]
    rename_directory(node)
    noted.clear()
    node.now_ms += tick
    for _ in range(3):
        node.write_notes()
        noted.append(len(node.noted))
    assert noted == [15, 10, 5]
    last = min(node.noted)
    node.create(last, 30)
    node.write_notes()
    node.write_notes()
    assert node.noted == {last: 30}, "another file of that name is not forgotten with the old one"
    assert node.crash() == []


def test_what_was_moved_away_is_forgotten_by_a_clean_stop(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.store.disk.length_file.NOTES_PER_WRITE", 2)
    for number in range(5):
        node.create(f"{QUEUE}/{number}.qs", 100)
    node.disk.close()
    node.start()
    assert len(node.noted) == 5
    rename_directory(node)
    node.disk.close()
    assert node.noted == {}


def test_nothing_is_written_while_nothing_changes(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.write_notes()
    before = node.below.operations
    node.write_notes()
    assert node.below.operations == before


def test_short_files_are_told_per_directory_and_then_noted_as_they_are(node: Node) -> None:
    shared = f"{VHOST}/msg_store_persistent/3.rdq"
    node.create(SEGMENT, 100)
    node.create(shared, 200)
    node.write_notes()
    shorten(node, SEGMENT, 50)
    shorten(node, shared, 60)
    node.start()
    assert [str(short) for short in node.disk.short_files_in(QUEUE)] == [
        f"{SEGMENT}: 50 durable bytes are missing at the end, 50 of 100 are left"
    ]
    assert [short.path for short in node.disk.short_files_in(f"{VHOST}/msg_store_persistent")] == [shared]
    for directory in (QUEUE, f"{VHOST}/msg_store_persistent"):
        node.disk.acknowledge(directory)
    run_sync_round(node.group_commit)
    assert node.noted == {SEGMENT: 50, shared: 60}
    assert node.crash() == []


def test_a_missing_file_is_not_missed_and_its_note_goes(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.write_notes()
    node.below.unlink(SEGMENT)
    node.below.sync_directory(QUEUE)
    assert node.crash() == []
    node.write_notes()
    assert node.noted == {}


def delete(node: Node) -> None:
    node.disk.unlink(SEGMENT)


def remove_directory(node: Node) -> None:
    node.disk.remove_directory(QUEUE)
    node.disk.mkdir(QUEUE)


def rename(node: Node) -> None:
    node.disk.rename(SEGMENT, SEGMENT + ".bad")


def rename_directory(node: Node) -> None:
    node.below.mkdir(f"{VHOST}/deleting")
    node.disk.rename(QUEUE, f"{VHOST}/deleting/7")
    node.disk.mkdir(QUEUE)


REMOVALS = [delete, remove_directory, rename, rename_directory]


@pytest.mark.parametrize("remove", REMOVALS)
def test_what_is_gone_is_forgotten(node: Node, remove: Callable[[Node], None]) -> None:
    node.create(SEGMENT, 100)
    node.write_notes()
    remove(node)
    node.write_notes()
    assert node.noted == {}


@pytest.mark.parametrize("remove", REMOVALS)
def test_what_is_begun_anew_under_an_old_name_is_never_a_false_alarm(
    node: Node, remove: Callable[[Node], None]
) -> None:
    """The note of the old file is durable, the new file is shorter, and the crash comes before the next note."""
    node.create(SEGMENT, 100)
    node.write_notes()
    remove(node)
    node.create(SEGMENT, 10)
    assert node.crash() == []


def test_the_note_of_an_emptied_file_is_lowered_first(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.write_notes()
    node.create(SEGMENT, 10)
    assert node.crash() == []


def test_a_file_that_is_replaced_is_noted_again_when_it_was_synced_under_its_name(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.write_notes()
    node.create(SEGMENT + ".tmp", 10)
    node.disk.rename(SEGMENT + ".tmp", SEGMENT)
    node.disk.sync_directory(QUEUE)
    twin = node.below.twin()
    node.write_notes()
    assert node.noted == {}
    node.disk.open(SEGMENT).sync()
    node.write_notes()
    assert node.noted == {SEGMENT: 10}
    twin.crash(CrashStyle.DROP, random.Random(0))
    assert GuardedDisk(twin, VHOST, GroupCommit()).short_files_in(QUEUE) == []


def about_to_be_cut(node: Node, announced: bool) -> DiskFile:
    """A file of 100 bytes, all of them noted, which will have 40."""
    file = node.create(SEGMENT, 100)
    node.write_notes()
    if announced:
        node.disk.announce_cut(SEGMENT, 40)
        run_sync_round(node.group_commit)
    return file


@pytest.mark.parametrize("announced", [True, False])
def test_a_cut_is_no_false_alarm(node: Node, announced: bool) -> None:
    file = about_to_be_cut(node, announced)
    before = node.below.operations
    file.truncate(40)
    assert node.below.operations - before == (1 if announced else 3), "the notes are written and synced first"
    file.sync()
    assert node.crash() == []


def test_a_new_file_under_the_name_of_one_that_was_to_be_cut_is_noted_whole(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.disk.announce_cut(SEGMENT, 40)
    node.disk.unlink(SEGMENT)
    node.create(SEGMENT, 70)
    node.write_notes()
    assert node.noted == {SEGMENT: 70}


@pytest.mark.parametrize("announced", [True, False])
def test_who_opens_a_file_on_its_way_to_a_new_end_raises_no_note(node: Node, announced: bool) -> None:
    """It looks longer than it will be."""
    file = about_to_be_cut(node, announced)
    cut = file.begin_cut(40)
    other = node.disk.open(SEGMENT)
    assert other.size == 100
    other.sync()
    node.write_notes()
    cut.finish()
    other.sync()
    node.write_notes()
    file.sync()
    assert node.crash() == []
    assert node.noted == {SEGMENT: 40}


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_that_got_shorter_before_anybody_looked_is_no_damage(node: Node, announced: bool) -> None:
    file = about_to_be_cut(node, announced)
    file.begin_cut(40)
    node.disk.open(SEGMENT).sync()
    node.write_notes()
    # What the other thread does.
    shorten(node, SEGMENT, 40)
    assert node.crash() == []


def test_a_file_that_was_cut_in_two_pieces_may_grow_again(node: Node) -> None:
    file = node.create(SEGMENT, 100)
    node.disk.announce_cut(SEGMENT, 40)
    run_sync_round(node.group_commit)
    for end in (70, 40):
        file.begin_cut(end).finish()
    file.append(bytes(2))
    file.sync()
    node.write_notes()
    assert node.noted == {SEGMENT: 42}


def test_an_announced_cut_that_never_came_is_no_damage(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.write_notes()
    node.disk.announce_cut(SEGMENT, 40)
    run_sync_round(node.group_commit)
    assert node.crash() == []


def test_a_tick_between_announcement_and_cut_raises_no_note(node: Node) -> None:
    """The file was synced just before, by those who are about to cut it."""
    file = node.create(SEGMENT, 100)
    node.disk.announce_cut(SEGMENT, 40)
    file.sync()
    node.write_notes()
    before = node.below.operations
    file.truncate(40)
    assert node.below.operations - before == 1, "no note was to be lowered"
    file.append(bytes(2))
    file.sync()
    node.write_notes()
    assert node.noted == {SEGMENT: 42}


def test_an_error_of_the_notes_ends_the_noting_and_nothing_else(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.below.fail_writes = LENGTHS_NAME
    node.write_notes()
    node.below.fail_writes = None
    node.write_notes()
    assert node.noted == {}
    assert node.crash() == []


def test_a_cut_file_that_grows_again_is_noted_by_the_handle_that_knows_of_the_cut(node: Node) -> None:
    """A handle from before, with a sync still due, has seen a length that is no more."""
    old = node.create(SEGMENT, 100)
    old.append(b"x")
    old.close()
    new = node.disk.open(SEGMENT)
    new.truncate(40)
    old.sync()
    node.write_notes()
    assert node.noted == {SEGMENT: 40}
    new.append(bytes(5))
    new.sync()
    node.write_notes()
    assert node.noted == {SEGMENT: 45}


def test_a_real_handle_remembers_a_length_that_is_no_more(tmp_path: Path) -> None:
    """The same where each handle has a length of its own."""
    queue = tmp_path / "queues" / "7"
    queue.mkdir(parents=True)
    disk = GuardedDisk(RealDisk(), str(tmp_path), GroupCommit())
    path = str(queue / "0.qs")
    old = disk.create(path)
    old.append(bytes(100))
    old.close()
    new = disk.open(path)
    new.truncate(40)
    old.sync()
    disk.close()
    assert read_lengths(RealDisk(), str(tmp_path)).lengths == {}
    new.close()


def test_a_sync_that_ends_after_the_file_is_gone_notes_nothing(node: Node) -> None:
    """The group commit may still hold a closed file of a segment that was deleted meanwhile."""
    old = node.create(SEGMENT, 100)
    old.close()
    node.disk.unlink(SEGMENT)
    node.create(SEGMENT, 10)
    old.sync()
    node.write_notes()
    assert node.noted == {SEGMENT: 10}


def test_an_abandoned_file_notes_nothing(node: Node) -> None:
    """Its sync does nothing."""
    file = node.disk.create(SEGMENT)
    file.pwrite(bytes(10), 0)
    file.abandon()
    file.sync()
    node.write_notes()
    assert node.noted == {}


def test_a_full_disk_delays_the_notes(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.below.capacity_bytes = node.below.used_bytes
    node.write_notes()
    assert node.noted == {}
    node.below.capacity_bytes += 1000
    node.write_notes()
    assert node.noted == {SEGMENT: 100}


def test_what_is_synced_again_behind_a_sync_that_failed_is_not_missed(node: Node) -> None:
    """The second sync has nothing to write any more, and none of it is on the disk."""
    file = node.create(SEGMENT, 100)
    file.pwrite(bytes(900), 100)
    node.below.on_sync_failed = node.group_commit.distrust
    node.below.fail_syncs = SEGMENT
    with pytest.raises(StorageError):
        file.sync()
    node.below.fail_syncs = None
    file.sync()
    node.disk.close()
    assert node.noted == {SEGMENT: 100}
    assert node.crash() == []


def test_a_clean_stop_leaves_everything_noted(node: Node) -> None:
    node.create(SEGMENT, 100)
    node.disk.close()
    assert node.crash() == []
    assert node.noted == {SEGMENT: 100}


def test_a_guarded_file_says_what_is_not_synced(node: Node) -> None:
    file = node.disk.create(SEGMENT)
    said = [file.has_unsynced]
    for act in (file.sync, lambda: file.pwrite(b"x", 0), file.sync):
        act()
        said.append(file.has_unsynced)
    assert said == [True, False, True, False]
    assert (file.path, file.size) == (SEGMENT, 1)


def test_an_empty_file_that_is_synced_is_not_missed(node: Node) -> None:
    node.create(SEGMENT, 0)
    node.write_notes()
    assert node.noted.get(SEGMENT, 0) == 0
    assert node.crash() == []


def test_files_are_compared_with_their_notes_some_at_a_time(node: Node) -> None:
    for number in range(2 * COMPARED_PER_STEP + 1):
        node.create(f"{QUEUE}/{number}.qs", 10)
    node.write_notes()
    disk = GuardedDisk(node.below, VHOST, GroupCommit(), compares_at_once=False)
    shorten(node, SEGMENT, 9)
    steps = sum(1 for _ in disk.comparison)
    assert 2 <= steps < 10
    assert [short.path for short in disk.short_files_in(QUEUE)] == [SEGMENT]


def test_other_files_pass_through(node: Node) -> None:
    path = f"{QUEUE}/queue.json"
    node.create(path, 30).truncate(3)
    node.write_notes()
    assert node.noted == {}
    assert node.disk.list(QUEUE) == ["queue.json"]
    assert node.disk.exists(path)
    assert node.disk.free_bytes(path) == node.below.free_bytes(path)


def test_missing_notes_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.crash()
    node.create(SEGMENT, 100)
    # Within the first second no length is noted yet.
    assert node.crash() == []
    node.write_notes()
    assert not caplog.messages, "the first start of an empty directory, and what follows, is nothing special"
    node.below.unlink(f"{VHOST}/{LENGTHS_NAME}")
    node.below.sync_directory(VHOST)
    shorten(node, SEGMENT, 99)
    assert node.crash() == [], "nobody can tell"
    (message,) = caplog.messages
    assert f"{VHOST}/{LENGTHS_NAME} is missing" in message
    assert caplog.records[0].levelno == logging.WARNING
    node.crash()
    assert len(caplog.messages) == 1, "also if that start was interrupted at once"


def test_a_full_disk_does_not_keep_a_vhost_without_notes_from_starting() -> None:
    node = Node()
    node.below.unlink(f"{VHOST}/{LENGTHS_NAME}")
    node.below.capacity_bytes = node.below.used_bytes
    node.start()
    node.below.capacity_bytes += 1 << 20
    node.create(SEGMENT, 100)
    node.write_notes()
    assert node.noted == {SEGMENT: 100}

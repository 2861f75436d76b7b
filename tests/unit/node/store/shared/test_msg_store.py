"""The shared store: written once, counted, rolled, read in few calls, compacted, stopped and started."""

from __future__ import annotations

import random

import pytest

from node.errors import DiskFullError, OpenFilesError, StorageError
from node.ids import MsgId
from node.store.disk.disk import DiskFile, read_whole
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import CrashStyle, SimulatedDisk, SimulatedFile
from node.store.formats.record import RECORD_HEADER_BYTES, pack_hole
from node.store.shared import store_files
from node.store.shared.clean_tables import TABLES_NAME
from node.store.shared.compaction.compaction import Reclaimed
from node.store.shared.config import StoreConfig
from node.store.shared.msg_store import MessageStore
from node.store.shared.store_files import TEMPORARY_SUFFIX
from tests.support.messages import msg_id_of
from tests.support.shared_store import STORE_DIRECTORY, SharedStoreNode, envelope_of

#: One record of the messages below.
RECORD_BYTES = 153
#: A file holds three of them.
CONFIG = StoreConfig(file_size_limit_bytes=64 + 3 * RECORD_BYTES)
FIRST_FILE = f"{STORE_DIRECTORY}/0.rdq"


class CountingDisk(SimulatedDisk):
    """Counts bytes written."""

    written_bytes = 0

    def before_write(self, path: str, growth_bytes: int) -> None:
        self.written_bytes += growth_bytes
        super().before_write(path, growth_bytes)


@pytest.fixture
def node() -> SharedStoreNode:
    return SharedStoreNode(CONFIG)


# -- writing, counting, reading


def test_a_message_of_many_queues_is_written_once(node: SharedStoreNode) -> None:
    node.write(1)
    size = node.disk.used_bytes
    node.write(1, 1)
    node.write(1)
    assert node.disk.used_bytes == size
    assert node.store.references_of(msg_id_of(1)) == 4
    for _ in range(3):
        node.store.release(msg_id_of(1))
    assert node.store.read(msg_id_of(1)) == envelope_of(1)
    node.store.release_many([msg_id_of(1)])
    assert not node.store.contains(msg_id_of(1))
    with pytest.raises(KeyError):
        node.store.release(msg_id_of(1))


def test_fan_out_to_ten_queues_writes_one_copy() -> None:
    disk = CountingDisk()
    node = SharedStoreNode(StoreConfig(), disk)
    before = disk.written_bytes
    for _queue in range(10):
        node.write(*range(1, 21), body_bytes=8192)
    one_copy = 20 * len(envelope_of(1, 8192))
    assert disk.written_bytes - before < 1.01 * one_copy
    node.check()


def test_files_roll_and_empty_ones_are_deleted(node: SharedStoreNode) -> None:
    """One batch is split where a file is full; deleting costs one step each, not the release."""
    node.write(*range(1, 8))
    assert node.files() == ["0.rdq", "1.rdq", "2.rdq"]
    node.release(1, 2, 3, 4)
    node.store.maintain()
    assert node.files() == ["1.rdq", "2.rdq"]
    node.check()


def test_many_are_read_with_few_calls_in_the_order_asked_for() -> None:
    disk = CountingDisk()
    node = SharedStoreNode(StoreConfig(), disk)
    node.write(*range(1, 101))
    msg_ids = [msg_id_of(counter) for counter in range(1, 101)]
    random.Random(3).shuffle(msg_ids)
    disk.reads = 0
    assert node.store.read_many(msg_ids) == [node.envelopes[msg_id] for msg_id in msg_ids]
    assert disk.reads == 1
    assert node.store.read_many([msg_ids[0], msg_ids[0]]) == [node.envelopes[msg_ids[0]]] * 2
    with pytest.raises(StorageError, match="has no message"):
        node.store.read(msg_id_of(500))


def test_no_more_is_read_than_what_was_asked_for(node: SharedStoreNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write(*range(1, 41))
    sizes: list[int] = []
    pread = SimulatedFile.pread

    def counted(file: SimulatedFile, size: int, offset: int) -> bytes:
        sizes.append(size)
        return pread(file, size, offset)

    monkeypatch.setattr(SimulatedFile, "pread", counted)
    node.store.read_many([msg_id_of(2), msg_id_of(3), msg_id_of(30)])
    assert sizes == [2 * RECORD_BYTES, RECORD_BYTES]


def test_a_full_disk_leaves_the_store_as_it_was(node: SharedStoreNode) -> None:
    """The batch takes no reference; the same batch succeeds when there is room."""
    node.write(1, 2)
    before = node.store.status()
    node.disk.capacity_bytes = node.disk.used_bytes
    for _ in range(2):
        with pytest.raises(DiskFullError, match="No space left"):
            node.store.write_batch([(msg_id_of(counter), envelope_of(counter)) for counter in (1, 3, 4)])
        assert node.store.status().messages == before.messages
        assert [node.store.references_of(msg_id_of(counter)) for counter in (1, 2, 3)] == [1, 1, 0]
        node.store.check_invariants()
    node.disk.capacity_bytes = 1 << 30
    node.write(1, 3, 4)
    node.check()


@pytest.mark.parametrize("call", ["open", "create"])
def test_want_of_descriptors_leaves_the_store_as_it_was(
    call: str, node: SharedStoreNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the current file, which was closed because others were read, or of the next one."""
    monkeypatch.setattr(store_files, "OPEN_FILES_MAX", 1)
    node.write(*range(1, 6))
    assert node.store.read(msg_id_of(1)) == envelope_of(1)
    before = node.store.status()

    def refuse(path: str) -> DiskFile:
        raise OpenFilesError(f"open of {path} failed")

    with monkeypatch.context() as patch:
        patch.setattr(node.disk, call, refuse)
        with pytest.raises(OpenFilesError):
            node.store.write_batch([(msg_id_of(counter), envelope_of(counter)) for counter in (1, 6, 7, 8)])
    assert node.store.status().messages == before.messages
    assert [node.store.references_of(msg_id_of(counter)) for counter in (1, 6, 7)] == [1, 0, 0]
    node.store.check_invariants()
    node.write(1, 6, 7, 8)
    node.check()


def test_tables_that_cannot_be_written_are_not_kept_open(node: SharedStoreNode) -> None:
    node.write(1)
    node.disk.full_for = TABLES_NAME
    with pytest.raises(DiskFullError):
        node.store.close()
    assert node.disk.open_handles == 0


def test_a_store_file_that_cannot_be_begun_is_not_kept_open_and_takes_no_place(node: SharedStoreNode) -> None:
    node.disk.full_for = ".rdq"
    for _ in range(3):
        with pytest.raises(DiskFullError):
            node.write(1)
    assert (node.disk.open_handles, node.files()) == (0, [])
    node.disk.full_for = None
    node.write(1)
    node.check()


def test_a_failed_write_takes_the_store_out_of_service(node: SharedStoreNode) -> None:
    node.write(1)
    node.disk.fail_writes = ".rdq"
    with pytest.raises(StorageError, match="injected"):
        node.write(2)
    node.disk.fail_writes = None
    with pytest.raises(StorageError, match="out of service"):
        node.write(3)
    assert node.store.read(msg_id_of(1)) == envelope_of(1)
    assert node.store.maintain() == Reclaimed(has_worked=False, is_urgent=False)
    node.store.close()
    node.start()
    assert not node.store.recovery.clean


def test_a_message_that_comes_twice_in_one_batch_is_written_once_and_counted_twice(node: SharedStoreNode) -> None:
    node.write(1, 2, 1)
    assert node.store.status().total_bytes == 2 * RECORD_BYTES
    assert node.store.references_of(msg_id_of(1)) == 2
    node.check()
    node.release(1)
    node.check()
    node.release(1)
    assert not node.store.contains(msg_id_of(1))


# -- stop and start


@pytest.mark.parametrize(("count", "body_bytes", "steps"), [(1000, 10, 3), (10, 300_000, 2), (3, 10, 0)])
def test_a_scan_comes_in_bounded_steps(count: int, body_bytes: int, steps: int) -> None:
    """So many records, or so many bytes, at a time; beside that the file is synced, and the names."""
    node = SharedStoreNode(StoreConfig())
    node.write(*range(count), body_bytes=body_bytes)
    node.sync()
    references = dict(+node.references)
    node.store = MessageStore(
        node.disk, STORE_DIRECTORY, GroupCommit(), node.config, references, opens_at_once=False, may_open_clean=False
    )
    taken = []
    for job in node.store.opening:
        taken.append(job is not None)
        if job is not None:
            job()
    assert taken == [False] * steps + [True, True]
    node.check()


def test_tables_that_cannot_be_read_are_no_reason_not_to_start(node: SharedStoreNode) -> None:
    node.write(1, 2)
    node.stop()
    node.disk.fail_reads = "clean.tables"
    node.start()
    node.disk.fail_reads = None
    assert "clean.tables" in node.store.recovery.dirty_because
    node.check()


def test_a_clean_stop_is_followed_by_a_start_that_reads_no_message() -> None:
    disk = CountingDisk()
    node = SharedStoreNode(CONFIG, disk)
    node.write(*range(1, 9))
    node.write(2)
    node.release(3)
    node.stop()
    asked: list[int] = []
    disk.fail_reads = ".rdq"

    def references() -> dict[MsgId, int]:
        asked.append(1)
        return {}

    node.store = MessageStore(disk, STORE_DIRECTORY, GroupCommit(), CONFIG, references)
    assert node.store.recovery.clean
    assert (node.store.recovery.messages, asked) == (7, [])
    assert "clean.tables" not in node.files()
    disk.fail_reads = None
    node.check()
    node.store.write_batch([(msg_id_of(100), envelope_of(100))])
    node.store.check_invariants()


@pytest.mark.parametrize("is_clean", [True, False])
def test_after_a_start_the_last_file_is_filled_before_another_is_begun(node: SharedStoreNode, is_clean: bool) -> None:
    node.write(1, 2, 3, 4)
    node.sync()
    node.stop()
    node.start(may_open_clean=is_clean)
    node.write(5, 6)
    assert node.files() == ["0.rdq", "1.rdq"]
    node.write(7)
    assert node.files() == ["0.rdq", "1.rdq", "2.rdq"]
    node.check()


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_a_compaction_did_not_finish_is_removed_by_the_next_start(node: SharedStoreNode, is_clean: bool) -> None:
    node.write(1)
    node.sync()
    node.stop()
    node.disk.create(f"{STORE_DIRECTORY}/0.rdq{TEMPORARY_SUFFIX}")
    node.start(may_open_clean=is_clean)
    assert node.store.recovery.clean == is_clean
    assert [name for name in node.disk.list(STORE_DIRECTORY) if name.endswith(TEMPORARY_SUFFIX)] == []
    node.check()


def test_a_crash_after_a_clean_start_is_no_clean_stop(node: SharedStoreNode) -> None:
    node.write(1, 2, 3, 4)
    node.stop()
    node.start()
    node.release(1, 2, 3)
    node.write(5)
    node.disk.crash(CrashStyle.DROP, random.Random(1))
    node.start()
    assert not node.store.recovery.clean
    assert node.store.contains(msg_id_of(4))
    assert not node.store.contains(msg_id_of(5))


def test_a_caller_may_insist_on_a_scan_and_hears_of_its_progress(node: SharedStoreNode) -> None:
    node.write(1, 2, 3, 4)
    node.stop()
    heard: list[tuple[int, int]] = []
    node.store = MessageStore(
        node.disk,
        STORE_DIRECTORY,
        GroupCommit(),
        CONFIG,
        +node.references,
        may_open_clean=False,
        on_progress=lambda done_bytes, total_bytes: heard.append((done_bytes, total_bytes)),
    )
    node.check()
    assert node.store.recovery.dirty_because == "a clean start was not allowed"
    assert heard == sorted(heard)
    assert heard[-1][1] == sum(len(data) for path, data in node.disk.snapshot().items() if path.endswith(".rdq"))


def test_tables_that_do_not_fit_are_not_believed(node: SharedStoreNode) -> None:
    """Whatever byte of them is wrong, and if a file has another size than they say: the files are scanned."""
    node.write(1, 2, 3, 4)
    node.release(2)
    node.stop()
    stopped = node.disk
    path = f"{STORE_DIRECTORY}/clean.tables"
    size = len(stopped.snapshot()[path])
    for offset in range(size):
        node.disk = stopped.twin()
        node.disk.flip_bit(path, offset, offset % 8)
        node.start()
        assert not node.store.recovery.clean
        node.check()
    node.disk = stopped.twin()
    node.disk.open(FIRST_FILE).append(b"x")
    node.start()
    assert "the tables say" in node.store.recovery.dirty_because
    node.check()


def test_an_unfinished_write_is_cut_and_counted(node: SharedStoreNode) -> None:
    node.write(1)
    node.sync()
    torn = 0
    for seed in range(20):
        node.write(2)
        node.crash(CrashStyle.TEAR, seed)
        torn += node.store.recovery.torn
        if node.references[msg_id_of(2)]:
            node.release(2)
        node.check()
    assert torn > 3


def test_a_lost_write_between_two_others_leaves_a_hole_and_no_damage(node: SharedStoreNode) -> None:
    """Then the file is one chain again: it can be compacted, and the next scan finds nothing torn."""
    node.write(1)
    node.sync()
    node.write(2)
    node.write(3)
    file = node.disk.open(FIRST_FILE)
    file.pwrite(bytes(RECORD_BYTES), 64 + RECORD_BYTES)
    file.sync()
    node.disk.crash(CrashStyle.DROP, random.Random(1))
    node.start()
    assert (node.store.recovery.torn, node.store.recovery.corrupt) == (1, [])
    assert [node.store.contains(msg_id_of(counter)) for counter in (1, 2, 3)] == [True, False, True]
    node.start(may_open_clean=False)
    assert (node.store.recovery.torn, node.store.recovery.corrupt) == (0, [])


def test_a_long_lost_write_is_no_damage_either(node: SharedStoreNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its zeros are read in pieces."""
    monkeypatch.setattr("node.store.shared.store_file.SCAN_PIECE_BYTES", RECORD_BYTES // 3)
    test_a_lost_write_between_two_others_leaves_a_hole_and_no_damage(node)


@pytest.mark.parametrize("written_bytes", [1, 4, RECORD_HEADER_BYTES - 1, RECORD_HEADER_BYTES])
def test_a_hole_of_which_only_the_beginning_was_written_is_no_damage(node: SharedStoreNode, written_bytes: int) -> None:
    node.write(1, 2, 3)
    node.stop()
    file = node.disk.open(FIRST_FILE)
    file.pwrite(pack_hole(RECORD_BYTES)[:written_bytes] + bytes(RECORD_BYTES - written_bytes), 64 + RECORD_BYTES)
    node.start(may_open_clean=False)
    assert (node.store.recovery.torn, node.store.recovery.corrupt) == (int(written_bytes < RECORD_HEADER_BYTES), [])
    assert [node.store.contains(msg_id_of(counter)) for counter in (1, 2, 3)] == [True, False, True]


def test_damage_in_the_middle_is_reported_and_never_served(node: SharedStoreNode) -> None:
    node.write(1, 2, 3)
    node.stop()
    node.disk.flip_bit(FIRST_FILE, 64 + RECORD_BYTES + 80)
    node.start(may_open_clean=False)
    assert len(node.store.recovery.corrupt) == 1
    assert [node.store.contains(msg_id_of(counter)) for counter in (1, 2, 3)] == [True, False, True]
    assert len(node.disk.list(f"{STORE_DIRECTORY}/quarantine")) == 1


def test_damage_at_the_end_is_reported_and_cut_off(node: SharedStoreNode) -> None:
    """What is written next stands behind the last whole record. (The quarantine has what was there.)"""
    node.write(1, 2)
    node.stop()
    node.disk.flip_bit(FIRST_FILE, 64 + RECORD_BYTES + 80)
    node.start(may_open_clean=False)
    assert len(node.store.recovery.corrupt) == 1
    assert len(node.disk.snapshot()[FIRST_FILE]) == 64 + RECORD_BYTES
    assert len(node.disk.list(f"{STORE_DIRECTORY}/quarantine")) == 1


def test_of_an_unwritten_end_nothing_is_kept(node: SharedStoreNode) -> None:
    """A file may have grown before a loss of power, and its content not."""
    node.write(1)
    node.stop()
    file = node.disk.open(FIRST_FILE)
    file.truncate(file.size + 100)
    node.start(may_open_clean=False)
    assert (node.store.recovery.torn, node.store.recovery.corrupt) == (1, [])
    assert node.disk.list(f"{STORE_DIRECTORY}/quarantine") == []
    assert len(node.disk.snapshot()[FIRST_FILE]) == 64 + RECORD_BYTES


def test_damage_found_by_a_read_is_an_error(node: SharedStoreNode) -> None:
    node.write(1)
    for offset in range(64, 64 + RECORD_BYTES):
        node.disk.flip_bit(FIRST_FILE, offset, offset % 8)
        with pytest.raises(StorageError, match="damaged"):
            node.store.read(msg_id_of(1))
        node.disk.flip_bit(FIRST_FILE, offset, offset % 8)
    assert node.store.read(msg_id_of(1)) == envelope_of(1)


def test_sync_makes_everything_durable_even_what_a_round_is_syncing_and_nothing_twice(node: SharedStoreNode) -> None:
    node.write(1, 2, 3, 4)
    running = node.group_commit.begin()
    assert running is not None
    node.write(5)
    node.store.sync()
    written = {path: read_whole(node.disk, path) for path in (FIRST_FILE, f"{STORE_DIRECTORY}/1.rdq")}
    assert {path: node.disk.durable_snapshot()[path] for path in written} == written
    running.run()
    node.group_commit.complete(running)
    node.write(6)
    node.sync()
    operations = node.disk.operations
    node.store.sync()
    assert node.disk.operations == operations


def test_a_transient_store_begins_empty_and_is_never_synced() -> None:
    disk = SimulatedDisk()
    group_commit = GroupCommit()

    def start() -> MessageStore:
        return MessageStore(disk, STORE_DIRECTORY, group_commit, CONFIG, {}, is_transient=True)

    store = start()
    store.write_batch([(msg_id_of(counter), envelope_of(counter)) for counter in range(1, 200)])
    store.release_many([msg_id_of(counter) for counter in range(1, 200) if counter % 3])
    while store.maintain().has_worked:
        pass
    for _ in range(300):
        store.maintain()
    assert store.status().compactions > 10
    assert not group_commit.has_dirty
    alive = [msg_id_of(counter) for counter in range(3, 200, 3)]
    assert store.read_many(alive) == [envelope_of(counter) for counter in range(3, 200, 3)]
    store.check_invariants()
    assert store.status().total_bytes < 2.2 * store.status().valid_bytes
    store.close()
    store = start()
    assert disk.list(STORE_DIRECTORY) == []
    assert store.status().messages == 0


# -- what an owner of many small stores looks at


def test_the_status_counts(node: SharedStoreNode) -> None:
    node.write(*range(1, 6))
    node.release(1)
    status = node.store.status()
    assert (status.messages, node.files()) == (4, ["0.rdq", "1.rdq"])
    assert (status.valid_bytes, status.total_bytes) == (4 * RECORD_BYTES, 5 * RECORD_BYTES)
    assert (status.compactions, status.moved_bytes) == (0, 0)


def test_a_message_that_a_batch_names_twice_is_written_once_and_what_is_behind_it_as_well(
    node: SharedStoreNode,
) -> None:
    """A fanout publishes it to several queues in one turn."""
    envelopes = {counter: envelope_of(counter) for counter in (1, 2)}
    node.store.write_batch([(msg_id_of(counter), envelopes[counter]) for counter in (1, 1, 2)])
    assert [node.store.read(msg_id_of(counter)) for counter in (1, 2)] == [envelopes[1], envelopes[2]]
    node.store.release(msg_id_of(1))
    assert node.store.contains(msg_id_of(1)), "it was named twice"


def test_a_store_that_cannot_be_opened_keeps_no_file_open() -> None:
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=500))
    node.write(*range(1, 20))
    node.sync()
    node.disk.crash(CrashStyle.DROP, random.Random(1))
    node.disk.fail_reads = ".rdq"
    with pytest.raises(StorageError):
        node.start()
    assert node.disk.open_handles == 0

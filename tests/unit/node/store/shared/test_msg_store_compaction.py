"""Reclaiming garbage: what each kind does, how fast, and what it does when it cannot."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from node.errors import StorageError
from node.store.disk.disk import DiskFile, sync_file
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import CrashStyle, SimulatedCrashError, SimulatedDisk
from node.store.formats.record import RECORD_HEADER_BYTES
from node.store.shared.compaction import hole_filling, merging
from node.store.shared.compaction.compaction import PAUSE_TICKS, Reclaimed
from node.store.shared.compaction.relocation import STEP_BYTES, read_source
from node.store.shared.config import StoreConfig
from node.store.shared.msg_store import MessageStore
from node.store.shared.store_file import WALK_PIECE_BYTES
from node.store.shared.store_files import StoreFiles
from tests.support.amounts import slow
from tests.support.compacted_store import FILE_BYTES, KINDS, RECORD_BYTES, GuardedNode, node_of, ten_of_forty
from tests.support.messages import msg_id_of
from tests.support.shared_store import STORE_DIRECTORY, SharedStoreNode, envelope_of, shorten_steps

# -- what becomes of the files


def test_holes_are_filled_from_the_end_and_the_file_is_cut() -> None:
    node = node_of("holes")
    node.write(*range(1, 12))
    node.sync()
    # A hole for one record, a hole for four, and the last two records alive.
    node.release(2, 4, 5, 6, 7, 8)
    node.compact()
    node.check()
    assert len(node.disk.snapshot()[f"{STORE_DIRECTORY}/0.rdq"]) == 64 + 4 * RECORD_BYTES
    assert node.store.status().moved_bytes == 2 * RECORD_BYTES, "10 filled the first hole, 9 a part of the second"
    assert node.files() == ["0.rdq", "1.rdq"], "no note is left"
    node.start(may_open_clean=False)
    node.check()


def test_a_file_is_compacted_when_less_than_half_of_it_is_alive() -> None:
    node = node_of("holes")
    node.write(*range(1, 12))
    node.sync()
    node.release(1, 3, 5, 7, 9)
    node.compact()
    assert node.store.status().compactions == 0, "half is not less than half"
    node.release(2)
    node.compact()
    node.check()
    assert node.store.status().compactions == 1
    assert len(node.disk.snapshot()[f"{STORE_DIRECTORY}/0.rdq"]) == 64 + 4 * RECORD_BYTES


def test_descriptors_of_displaced_files_are_given_back_with_the_next_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.store.shared.store_files.OPEN_FILES_MAX", 1)
    monkeypatch.setattr(hole_filling, "STEP_RECORDS", 2)
    node = ten_of_forty("holes")
    elsewhere = msg_id_of(41)
    opened: list[DiskFile] = []
    open_file = SimulatedDisk.open

    def watched(disk: SimulatedDisk, path: str) -> DiskFile:
        opened.append(open_file(disk, path))
        return opened[-1]

    monkeypatch.setattr(SimulatedDisk, "open", watched)
    while node.store.status().compactions < 3:
        node.store.maintain()
        node.store.read(elsewhere)
        node.sync()
    assert opened
    assert [file.path for file in opened if file.has_unsynced] == []


def test_a_displaced_file_that_was_synced_is_not_synced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.store.shared.store_files.OPEN_FILES_MAX", 1)
    node = ten_of_forty("holes")
    for counter in (4, 14, 24, 34):
        node.store.read(msg_id_of(counter - counter % 4))
    assert not node.sync()


def test_a_store_that_is_out_of_service_asks_for_nothing() -> None:
    node = ten_of_forty("holes")
    node.release(4, 8, 12, 16, 20, 24, 28)
    assert node.store.maintain().is_urgent
    node.disk.fail_writes = ".rdq"
    with pytest.raises(StorageError):
        node.store.write_batch([(msg_id_of(100), envelope_of(100))])
    nothing = Reclaimed(has_worked=False, is_urgent=False)
    assert node.store.maintain() == nothing, "the node would look after it for ever"


def test_a_merged_file_is_noted_under_its_name() -> None:
    node = GuardedNode(StoreConfig(file_size_limit_bytes=FILE_BYTES, compaction="merge"))
    node.write(*range(1, 42))
    node.sync()
    node.release(*(counter for counter in range(1, 41) if counter % 4))
    node.compact()
    files = {path.rpartition("/")[2]: len(data) for path, data in node.disk.snapshot().items() if path.endswith("rdq")}
    assert max(files) > "4.rdq", "a file was made by merging"
    assert node.note() == files


def test_neighbours_are_merged_when_most_is_garbage() -> None:
    node = ten_of_forty("merge")
    node.compact()
    node.check()
    assert len(node.files()) <= 3
    status = node.store.status()
    assert status.total_bytes <= 2 * status.valid_bytes
    assert status.compactions >= 2


def test_records_that_fit_no_hole_are_copied_to_another_file() -> None:
    node = node_of("holes")
    node.write(*range(1, 9))
    node.write(9, body_bytes=400)
    node.write(10)
    node.sync()
    # Three holes for two records each.
    node.release(1, 2, 4, 5, 7, 8)
    node.compact()
    node.check()
    status = node.store.status()
    assert "0.rdq" not in node.files()
    assert status.total_bytes == status.valid_bytes


@pytest.mark.parametrize(("kind", "suffix"), [("holes", ".holes"), ("merge", ".tmp")])
def test_garbage_of_an_earlier_life_is_reclaimed_though_nobody_writes(kind: str, suffix: str) -> None:
    """The first steps wait for no sync: where nothing is written none comes."""
    node = ten_of_forty(kind)
    node.stop()
    node.start()
    for _ in range(50):
        node.store.maintain()
    assert [name for name in node.files() if name.endswith(suffix)]


def test_a_file_with_nothing_alive_is_deleted() -> None:
    node = ten_of_forty("holes")
    node.release(*range(4, 41, 4))
    node.compact()
    assert node.files() == ["4.rdq"]
    node.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", range(1, 12))
def test_a_file_of_which_everything_is_settled_while_it_is_compacted_goes_at_once(kind: str, steps: int) -> None:
    """However far its compaction has come; nothing is left of that either."""
    node = ten_of_forty(kind)
    for _ in range(steps):
        node.store.maintain()
        node.sync()
    node.release(*range(4, 41, 4))
    assert node.store.maintain().has_worked
    node.compact()
    assert len(node.files()) == 1, "the file that takes writes"
    assert node.store.status().total_bytes == RECORD_BYTES
    node.check()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_old_goes_before_the_new_is_durable(kind: str) -> None:
    node = ten_of_forty(kind)
    before = node.disk.snapshot()
    for _ in range(100):
        node.store.maintain()
    after = node.disk.snapshot()
    assert before.items() <= after.items(), "the files are as they were"
    assert len(after) > len(before), "but a note is written, or a copy"
    node.check()


@pytest.mark.parametrize("seeds", [range(15), slow(range(15, 100))], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_messages_settled_and_written_again_while_compaction_is_under_way(kind: str, seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        node = ten_of_forty(kind)
        alive = list(range(4, 41, 4))
        for _ in range(60):
            node.store.maintain()
            if rng.random() < 0.3:
                node.sync()
            if alive and rng.random() < 0.2:
                counter = rng.choice(alive)
                node.release(counter)
                alive.remove(counter)
                if rng.random() < 0.5:
                    node.write(counter)
            node.check()
        node.compact()
        node.crash(CrashStyle.DROP, seed)
        node.check()


@pytest.mark.parametrize("kind", KINDS)
def test_records_bigger_than_a_step_are_moved_by_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def bounded(files: StoreFiles, number: int, size: int, offset: int) -> bytes:
        assert size <= STEP_BYTES
        return read_source(files, number, size, offset)

    for module in (hole_filling, merging):
        monkeypatch.setattr(module, "read_source", bounded)
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=1 << 20, compaction=kind))
    big = STEP_BYTES * 3 // 2
    node.write(*range(1, 21), body_bytes=big)
    node.sync()
    node.release(*(counter for counter in range(1, 20) if counter % 3))
    node.compact()
    node.check()
    status = node.store.status()
    assert status.moved_bytes > 2 * big
    assert status.total_bytes < 2 * status.valid_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_behind_a_record_bigger_than_a_step_is_moved_like_what_is_before_it(kind: str) -> None:
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=1 << 20, compaction=kind))
    for counter in range(1, 121):
        node.write(counter, body_bytes=STEP_BYTES * 3 // 2 if counter % 4 == 2 else 1000)
    node.sync()
    before = len(node.files())
    node.release(*(counter for counter in range(1, 120) if counter % 12 > 3))
    node.compact()
    node.check()
    assert len(node.files()) <= before
    assert node.store.status().total_bytes < 2 * node.store.status().valid_bytes


# -- how fast


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_copies_more_than_an_eighth_of_a_megabyte(kind: str) -> None:
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=4 << 20, compaction=kind))
    node.write(*range(1, 3000), body_bytes=4096)
    node.sync()
    node.release(*(counter for counter in range(1, 3000) if counter % 5 > 1))
    most = 0
    for _ in range(400):
        before = node.store.status().moved_bytes
        node.store.maintain()
        most = max(most, node.store.status().moved_bytes - before)
        node.sync()
    assert node.store.status().total_bytes < 2 * node.store.status().valid_bytes
    assert STEP_BYTES // 2 < most <= STEP_BYTES + WALK_PIECE_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_as_short_where_most_was_settled_since_its_file_was_surveyed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def counted(files: StoreFiles, number: int, size: int, offset: int) -> bytes:
        nonlocal read
        read += size
        return read_source(files, number, size, offset)

    for module in (hole_filling, merging):
        monkeypatch.setattr(module, "read_source", counted)
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=4 << 20, compaction=kind))
    node.write(*range(1, 3000), body_bytes=4096)
    node.sync()
    node.release(*(counter for counter in range(1, 3000) if counter % 5 > 1))
    while not node.store.status().moved_bytes:
        node.store.maintain()
        node.sync()
    node.release(*(counter for counter in range(1, 3000) if counter % 5 < 2 and counter % 100))
    most = 0
    for _ in range(400):
        read = 0
        node.store.maintain()
        most = max(most, read)
        node.sync()
    assert STEP_BYTES // 2 < most <= STEP_BYTES + 5000
    node.check()


@pytest.mark.parametrize("kind", KINDS)
def test_disk_use_stays_near_twice_the_live_data(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 % released in random order, files of 64 KiB, steps of 2 KiB.

    The owner's turn: some messages are settled; one step, and four more while there is work and it is urgent. Every
    fifth turn a round of fsync ends.
    """
    shorten_steps(monkeypatch, step_bytes=2048, step_records=15)
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=64 * 1024, compaction=kind))
    count = 12_000
    node.write(*range(1, count + 1), body_bytes=500)
    node.sync()
    order = list(range(1, count + 1))
    random.Random(5).shuffle(order)
    worst = 0.0
    released = 0
    for turn in range(count):
        if released < count * 4 // 5:
            node.release(*order[released : released + 3])
            released += 3
        for _ in range(5):
            if node.store.maintain() != Reclaimed(has_worked=True, is_urgent=True):
                break
        if turn % 5 == 0:
            node.sync()
        status = node.store.status()
        worst = max(worst, node.disk.used_bytes / status.valid_bytes)
        if released >= count * 4 // 5 and turn % 500 == 0 and status.total_bytes < 1.75 * status.valid_bytes:
            break
    assert worst < 2.2
    node.check()


def test_the_store_asks_for_more_steps_only_while_garbage_piles_up() -> None:
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=FILE_BYTES))
    node.write(*range(1, 1001))
    node.sync()
    node.release(*range(1, 1001, 10))
    assert not any(node.store.maintain().has_worked for _ in range(50)), "a tenth is garbage: nothing to do"
    node.release(*(counter for counter in range(1, 1001) if counter % 10 in (2, 3, 4, 5, 6, 7)))
    for what in ("chosen", "asked for, but the disk needs time"):
        assert node.store.maintain() == Reclaimed(has_worked=False, is_urgent=True), what
    assert node.store.maintain() == Reclaimed(has_worked=True, is_urgent=True)
    while (came_of_it := node.store.maintain()).has_worked:
        pass
    assert came_of_it.is_urgent, "it goes on with the next round of fsync, not with the next tick"
    node.compact()
    assert node.store.maintain() == Reclaimed(has_worked=False, is_urgent=False)


# -- when it cannot


def test_a_full_disk_stops_compaction_and_nothing_else() -> None:
    for kind in KINDS:
        node = ten_of_forty(kind)
        free = node.disk.capacity_bytes
        node.disk.capacity_bytes = node.disk.used_bytes
        node.compact()
        assert node.store.failure is None
        assert not [name for name in node.files() if name.endswith((".tmp", ".holes"))]
        node.check()
        node.disk.capacity_bytes = free
        node.write(100)
        for _ in range(PAUSE_TICKS - 1):
            node.store.tick()
            assert not any(node.store.maintain().has_worked for _ in range(5)), "however often it is asked"
        node.store.tick()
        node.compact()
        assert node.store.status().total_bytes <= 2 * node.store.status().valid_bytes
        node.check()


def test_a_note_for_which_there_is_no_room_is_not_kept_open() -> None:
    node = ten_of_forty("holes")
    node.disk.full_for = ".holes"
    for _ in range(8):
        node.store.maintain()
    node.disk.full_for = None
    assert "0.holes" not in node.files()
    node.stop()
    assert node.disk.open_handles == 0


def test_a_file_that_cannot_be_deleted_lets_compaction_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ten_of_forty("holes")
    node.release(*range(4, 41, 4))

    def refused(_disk: SimulatedDisk, path: str) -> None:
        raise StorageError(f"unlink of {path} failed")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedDisk, "unlink", refused)
        assert node.store.maintain() == Reclaimed(has_worked=False, is_urgent=False)
    assert node.store.failure is None
    for _ in range(PAUSE_TICKS):
        assert node.store.maintain() == Reclaimed(has_worked=False, is_urgent=False)
        node.store.tick()
    node.compact()
    assert node.files() == ["4.rdq"]
    node.check()


def test_a_write_that_fails_inside_a_file_leaves_its_note_until_the_store_stops() -> None:
    node = ten_of_forty("holes")
    for _ in range(8):
        node.store.maintain()
    assert "0.holes" in node.files()
    node.sync()
    node.disk.fail_writes = "0.rdq"
    for _ in range(3 * PAUSE_TICKS):
        node.store.tick()
        node.store.maintain()
        node.sync()
    node.disk.fail_writes = None
    assert "0.holes" in node.files()
    node.check()
    twin = node.twin()
    twin.references = node.references.copy()
    twin.crash(CrashStyle.TEAR, seed=1)
    twin.check()
    node.stop()
    assert not [name for name in node.files() if name.endswith(".holes")]
    node.start()
    assert node.store.recovery.clean
    node.check()
    node.compact()
    node.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_live_record_keeps_its_file_out_of_compaction(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    node = ten_of_forty(kind)
    path = f"{STORE_DIRECTORY}/0.rdq"
    # The first live record is the fourth.
    node.disk.flip_bit(path, 64 + 3 * RECORD_BYTES + 60)
    content = node.disk.snapshot()[path]
    node.compact()
    assert len(node.disk.snapshot()[path]) == len(content)
    with pytest.raises(StorageError, match="damaged"):
        node.store.read(msg_id_of(4))
    assert node.store.read(msg_id_of(8)) == envelope_of(8)
    node.store.check_invariants()
    assert node.store.maintain() == Reclaimed(has_worked=False, is_urgent=False)
    (told,) = caplog.messages
    assert "file 0 has a live record that cannot be read" in told
    assert "it is not compacted any more" in told


@pytest.mark.parametrize("kind", KINDS)
def test_a_trouble_that_lasts_is_told_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """And the next one, when something was compacted between them, is told again."""
    node = ten_of_forty(kind)
    for times in (1, 1, 1, 2):
        if times == 2:
            node.compact()
            node.write(*range(42, 83))
            node.sync()
            node.release(*(counter for counter in range(42, 83) if counter % 4))
        node.disk.fail_writes = STORE_DIRECTORY
        node.compact()
        assert ["compaction pauses" in message for message in caplog.messages] == [True] * times
        node.disk.fail_writes = None
        for _ in range(PAUSE_TICKS):
            node.store.tick()


def test_compaction_keeps_away_from_a_file_in_which_the_start_found_damage() -> None:
    node = node_of("holes")
    node.write(*range(1, 12))
    node.sync()
    node.disk.flip_bit(f"{STORE_DIRECTORY}/0.rdq", 64 + 5 * RECORD_BYTES + 80)
    node.disk.crash(CrashStyle.DROP, random.Random(1))
    node.start()
    assert len(node.store.recovery.corrupt) == 1
    node.release(1, 2, 3, 4, 5, 7, 8, 9)
    before = node.disk.reads
    for _ in range(100):
        node.store.maintain()
    assert node.disk.reads == before


def test_compaction_keeps_away_from_a_gap_that_is_too_small_for_a_hole() -> None:
    node = node_of("holes")
    node.write(*range(1, 12))
    node.sync()
    path = f"{STORE_DIRECTORY}/0.rdq"
    at, gap = 64 + 5 * RECORD_BYTES, bytes(RECORD_HEADER_BYTES - 1)
    file = node.disk.open(path)
    file.pwrite(gap + node.disk.snapshot()[path][at:], at)
    file.sync()
    node.disk.crash(CrashStyle.DROP, random.Random(1))
    node.start()
    assert (node.store.recovery.torn, node.store.recovery.corrupt) == (1, [])
    node.check()
    node.release(*range(1, 9))
    before = node.disk.reads
    for _ in range(100):
        node.store.maintain()
    assert node.disk.reads == before
    node.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_big_record_is_noticed_behind_its_last_piece(kind: str) -> None:
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=1 << 20, compaction=kind))
    node.write(*range(1, 14), body_bytes=STEP_BYTES * 3 // 2)
    node.sync()
    path = f"{STORE_DIRECTORY}/0.rdq"
    node.disk.flip_bit(path, len(node.disk.snapshot()[path]) - 10)
    node.release(1, 2, 3, 4, 5, 7, 8, 9, 10, 11)
    before = len(node.disk.snapshot()[path])
    node.compact()
    assert len(node.disk.snapshot()[path]) == before, "the evidence stays"
    with pytest.raises(StorageError, match="damaged"):
        node.store.read(msg_id_of(6))
    node.store.check_invariants()
    node.stop()
    node.start(may_open_clean=False)
    assert len(node.store.recovery.corrupt) == 1


def test_a_note_goes_after_its_file() -> None:
    """All messages of a file are settled while its holes are filled. Whatever of the names survives a crash, the file
    is never there without the note that excuses what is in its holes."""
    for seed in range(40):
        node = ten_of_forty("holes")
        for _ in range(8):
            node.store.maintain()
        node.sync()
        for _ in range(8):
            node.store.maintain()
        assert node.store.status().moved_bytes
        node.release(*range(4, 41, 4))
        for _ in range(12):
            node.store.maintain()
        assert "0.holes" not in node.files()
        node.crash(CrashStyle.TEAR, seed)


def test_what_a_note_names_is_a_hole_after_a_crash_and_its_file_as_long_as_it_was() -> None:
    """The last range ends where the file does."""
    node = node_of("holes")
    node.write(*range(1, 12))
    node.sync()
    node.release(2, 4, 5, 6, 9, 10)
    before = node.store.status()
    while "0.holes" not in node.files():
        node.store.maintain()
    node.sync()
    node.crash(CrashStyle.DROP, seed=0)
    assert node.files() == ["0.rdq", "1.rdq"]
    assert node.store.status().total_bytes == before.total_bytes
    node.compact()
    node.check()
    assert node.store.status().total_bytes == 5 * RECORD_BYTES


@pytest.mark.parametrize("synced", ["names", "note"])
def test_power_fails_while_a_process_cleans_up_after_a_killed_one(synced: str) -> None:
    """The kernel had all that the killed process wrote, but the disk had not: the note first has to be durable."""
    for after in range(1, 12):
        for seed in range(6):
            node = ten_of_forty("holes")
            for _ in range(8):
                node.store.maintain()
            assert "0.holes" in node.files()
            durable = node.durable()
            # One of the two was synced by somebody, the other was not.
            if synced == "names":
                node.disk.sync_directory(STORE_DIRECTORY)
            else:
                sync_file(node.disk, f"{STORE_DIRECTORY}/0.holes")
            node.disk.crash_after = after
            with suppress(SimulatedCrashError):
                node.start()
            node.disk.crash(CrashStyle.TEAR, random.Random(seed))
            node.start()
            node.check_survivors(durable)


@pytest.mark.parametrize("kind", ["holes", "merge"])
def test_flush_durability_frees_no_original_before_its_copy_is_synced(kind: str) -> None:
    """Nobody waits for the sync of what is new; what was durable stays so wherever it is moved to."""
    node = SharedStoreNode(
        StoreConfig(file_size_limit_bytes=FILE_BYTES, confirm_after_sync=False, compaction=kind), SimulatedDisk()
    )
    node.write(*range(1, 42))
    node.sync()
    node.release(*[counter for counter in range(1, 41) if counter % 4])
    for _ in range(60):
        node.store.maintain()
        disk = node.disk.twin()
        disk.crash(CrashStyle.DROP, random.Random(1))
        survivors = MessageStore(disk, STORE_DIRECTORY, GroupCommit(), node.config, lambda: dict(+node.references))
        assert all(survivors.contains(msg_id) for msg_id in +node.references)
    assert node.store.status().total_bytes > node.store.status().valid_bytes, "the originals wait"
    node.compact()
    assert node.store.status().total_bytes == node.store.status().valid_bytes
    node.check()

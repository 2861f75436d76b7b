"""How hole filling cuts a file: in pieces, durably, at ends of records, and while nobody waits."""

from __future__ import annotations

import random

import pytest

from node.errors import StorageError
from node.store.disk.guarded import WRITE_EVERY_MS
from node.store.disk.length_file import LENGTHS_NAME
from node.store.disk.simulated import CrashStyle, SimulatedCut, SimulatedFile
from node.store.formats.record import HEADER_BYTES
from node.store.shared.compaction import hole_filling
from node.store.shared.compaction.compaction import PAUSE_TICKS
from node.store.shared.config import StoreConfig
from tests.support.compacted_store import FILE_BYTES, RECORD_BYTES, GuardedNode, node_of, ten_of_forty
from tests.support.messages import msg_id_of
from tests.support.shared_store import STORE_DIRECTORY, SharedStoreNode


@pytest.mark.parametrize("released", [(2, 4, 5, 6, 7, 8), (4, 5, 6, 7, 8, 9, 10)], ids=["filled", "cut only"])
def test_the_loop_does_not_wait_for_the_note_of_a_file_that_is_cut(released: tuple[int, ...]) -> None:
    node = GuardedNode(StoreConfig(file_size_limit_bytes=FILE_BYTES, compaction="holes"))
    node.write(*range(1, 12))
    node.sync()
    assert node.note()["0.rdq"] == FILE_BYTES
    node.release(*released)
    while node.store.status().compactions == 0:
        # Only the rounds of the group commit may sync the notes.
        node.disk.fail_syncs = LENGTHS_NAME
        node.store.maintain()
        node.disk.fail_syncs = None
        node.sync()
    assert len(node.disk.snapshot()[f"{STORE_DIRECTORY}/0.rdq"]) < FILE_BYTES
    node.disk.crash(CrashStyle.DROP, random.Random(0))
    node.start()
    assert node.guard.short_files_in(STORE_DIRECTORY) == []


def test_the_loop_does_not_wait_for_notes_though_the_file_is_synced_between_two_cuts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look at another file displaces the one that is cut, which is synced then, and its length is noted."""
    monkeypatch.setattr(hole_filling, "CUT_BYTES", RECORD_BYTES)
    monkeypatch.setattr("node.store.shared.store_files.OPEN_FILES_MAX", 1)
    node = GuardedNode(StoreConfig(file_size_limit_bytes=FILE_BYTES, compaction="holes"))
    node.write(*range(1, 12))
    node.sync()
    node.note()
    node.release(1, 2, 3, 4, 5, 6)
    now_ms = WRITE_EVERY_MS
    noted: list[int] = []
    while node.store.status().compactions == 0:
        node.disk.fail_syncs = LENGTHS_NAME
        node.store.maintain()
        node.disk.fail_syncs = None
        node.store.read(msg_id_of(11))
        node.sync()
        now_ms += WRITE_EVERY_MS
        noted.append(node.note(now_ms)["0.rdq"])
    assert list(dict.fromkeys(noted)) == [FILE_BYTES, 64 + 4 * RECORD_BYTES]
    node.disk.crash(CrashStyle.DROP, random.Random(0))
    node.start()
    assert node.guard.short_files_in(STORE_DIRECTORY) == []


def lengths_while_compacting(node: SharedStoreNode, settle: tuple[int, ...] = ()) -> list[int]:
    """Bytes of records that file 0 has, one after the other.

    After each a crash may come, and finds a whole chain. What is in ``settle`` is released after the first record
    was moved.
    """
    lengths: list[int] = []
    # Else some lengths are passed over within one step.
    node.disk.early_cut_every = 0
    while node.store.status().compactions == 0:
        node.store.maintain()
        if settle and node.store.status().moved_bytes:
            node.release(*settle)
            settle = ()
        lengths.append(len(node.disk.snapshot()[f"{STORE_DIRECTORY}/0.rdq"]) - 64)
        node.sync()
        for seed in range(3):
            twin = node.twin()
            twin.disk.crash(CrashStyle.SUBSET, random.Random(seed))
            twin.start()
            assert (twin.store.recovery.torn, twin.store.recovery.corrupt) == (0, [])
            twin.check()
    return list(dict.fromkeys(lengths))


@pytest.mark.parametrize(
    ("released", "settled", "lengths"),
    [
        pytest.param((1, 2, 3, 4, 5, 6), (), [10, 8, 6, 4], id="behind what was moved away"),
        pytest.param((4, 5, 6, 7, 8, 9, 10), (), [10, 8, 6, 4, 3], id="what was dead before"),
        # Only 10 and 7 are moved, into a hole for six.
        pytest.param((1, 2, 3, 4, 5, 6), (8, 9), [10, 8, 6, 4, 2], id="what nobody filled of a hole"),
    ],
)
def test_a_file_is_cut_in_pieces_at_ends_of_records(
    released: tuple[int, ...], settled: tuple[int, ...], lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freeing ten megabytes at once takes the file system some milliseconds."""
    monkeypatch.setattr(hole_filling, "CUT_BYTES", 2 * RECORD_BYTES)
    # A step for each record.
    monkeypatch.setattr(hole_filling, "STEP_RECORDS", 2)
    node = node_of("holes")
    node.write(*range(1, 12))
    node.sync()
    node.release(*released)

    assert lengths_while_compacting(node, settled) == [records * RECORD_BYTES for records in lengths]


@pytest.mark.parametrize("shorter_bytes", [1, 11, 12, 13])
def test_no_mark_is_used_to_which_no_hole_record_leads(shorter_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole record takes twelve bytes; less than that before a mark there is none."""
    monkeypatch.setattr(hole_filling, "CUT_BYTES", RECORD_BYTES)
    node = node_of("holes")
    node.write(*range(1, 10))
    node.write(10, body_bytes=100 - shorter_bytes)
    # The last of file 0, and the first of the next.
    node.write(11, 12)
    node.sync()
    # 11 fills the place of 1, and 10 that of 2 but for some bytes.
    node.release(1, 2, 3, 4, 5, 6, 7, 8, 9)

    lengths = lengths_while_compacting(node)

    assert lengths[-1] == 2 * RECORD_BYTES - shorter_bytes
    assert len(lengths) == (10 if shorter_bytes >= 12 else 9), "by a record each time, but for what was moved"


def test_a_file_is_never_cut_before_what_was_moved_behind_the_old_place_of_something_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hole_filling, "CUT_BYTES", 1)
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=6_480, compaction="holes"))
    for counter, body_bytes in enumerate((100, 30, 30, 5_000, 1_000, 100), 1):
        node.write(counter, body_bytes=body_bytes)
    node.sync()
    # 5 fits the hole of 4 only; then 3, which lies before that, fits the hole of 1.
    node.release(1, 4)
    node.compact()
    assert node.store.status().compactions == 1
    assert node.store.status().moved_bytes > 1_000
    node.check()
    node.start(may_open_clean=False)
    node.check()


def test_what_was_moved_is_synced_before_the_rest_is_cut_though_readers_have_displaced_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.store.shared.store_files.OPEN_FILES_MAX", 1)
    # A step for each record.
    monkeypatch.setattr(hole_filling, "STEP_RECORDS", 2)
    node = ten_of_forty("holes")
    elsewhere = msg_id_of(41)
    while node.store.status().compactions < 3:
        node.store.maintain()
        node.store.read(elsewhere)
        node.sync()
        node.store.read(elsewhere)
        node.check_every_crash(seed=1)


class SlowCuts:
    """While it is closed, files on their way to a new end do not arrive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_closed = True
        self.under_way = 0
        monkeypatch.setattr(SimulatedCut, "is_done", property(lambda _cut: not self.is_closed))
        finish = SimulatedCut.finish

        def begin_counted(file: SimulatedFile, size: int) -> SimulatedCut:
            self.under_way += 1
            return SimulatedCut(file, size, is_early=False)

        def finish_counted(cut: SimulatedCut) -> None:
            finish(cut)
            self.under_way -= 1

        monkeypatch.setattr(SimulatedFile, "begin_cut", begin_counted)
        monkeypatch.setattr(SimulatedCut, "finish", finish_counted)


def compacted_until_a_cut(monkeypatch: pytest.MonkeyPatch) -> tuple[SharedStoreNode, SlowCuts]:
    cuts = SlowCuts(monkeypatch)
    node = ten_of_forty("holes")
    whole = [len(data) for data in node.disk.snapshot().values()]
    node.compact()
    assert [len(data) for data in node.disk.snapshot().values()][: len(whole)] == whole, "no file is shorter yet"
    return node, cuts


def test_a_file_on_its_way_to_a_new_end_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    node, cuts = compacted_until_a_cut(monkeypatch)
    assert not node.store.maintain().has_worked
    node.check()
    before = node.store.status()
    cuts.is_closed = False
    node.compact()
    node.check()
    assert node.store.status().total_bytes < before.total_bytes
    assert node.store.status().compactions > before.compactions


def test_a_file_on_its_way_to_a_new_end_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = compacted_until_a_cut(monkeypatch)
    node.release(*range(4, 41, 4))
    node.compact()
    assert node.files() == ["4.rdq"]
    node.check()


def test_a_store_is_closed_when_its_files_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    node, cuts = compacted_until_a_cut(monkeypatch)
    assert cuts.under_way
    node.stop()
    assert not cuts.under_way
    node.start()
    node.check()
    status = node.store.status()
    sizes = [len(data) for name, data in node.disk.snapshot().items() if name.endswith(".rdq")]
    assert sum(sizes) == status.total_bytes + HEADER_BYTES * len(sizes)


def test_a_store_is_out_of_service_when_its_files_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next start would find files that are still getting shorter."""
    node, cuts = compacted_until_a_cut(monkeypatch)
    assert cuts.under_way
    node.store.abandon()
    assert not cuts.under_way
    node.start()
    node.check()


def test_a_file_that_cannot_be_cut_is_as_long_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    node, cuts = compacted_until_a_cut(monkeypatch)
    before = node.store.status()
    cuts.is_closed = False

    def refuse(_cut: SimulatedCut) -> None:
        raise StorageError("truncate failed")

    with monkeypatch.context() as broken:
        broken.setattr(SimulatedCut, "finish", refuse)
        node.store.maintain()
    assert node.store.status().total_bytes == before.total_bytes
    for _ in range(PAUSE_TICKS):
        node.store.tick()
    node.compact()
    node.check()
    assert node.store.status().total_bytes < before.total_bytes

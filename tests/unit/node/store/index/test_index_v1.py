"""What the index of version 1 writes, when, and what it tells of a damaged one.

Segments have 8 entries here and a journal is full with 12 records. The model that all these promises are checked
against at random is in tests/property/node/test_queue_index_stateful.py.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from node.errors import DiskFullError, StorageError
from node.message import Message
from node.store.disk.simulated import CrashStyle
from node.store.index.index import IN_SHARED_STORE, UNKNOWN_PLACE, PagedMessage, Range, RecoveryReport
from node.store.index.v1.index import QueueIndexV1
from node.store.index.v1.recovery import recover_v1
from node.store.index.v1.scan import IN_SEGMENT, Problem, stored_entries
from node.store.steps import run_through
from tests.support.index_driver import DIRECTORY, SMALL, V1Driver, count_references_v1


@pytest.fixture
def driver() -> V1Driver:
    return V1Driver()


def files(driver: V1Driver) -> list[str]:
    return [name for name in driver.disk.list(DIRECTORY) if name != "quarantine"]


def fill_journals(driver: V1Driver) -> None:
    """Twelve messages in the first two segments, their journal gone."""
    driver.publish(12)
    driver.sync()
    driver.flush()
    assert files(driver) == ["0.idx", "1.idx"]


# -- what is written


def test_a_turn_is_one_write(driver: V1Driver) -> None:
    driver.publish(1)
    driver.flush()
    before = driver.disk.operations
    driver.publish(3)
    driver.publish(2)
    driver.settle([0])
    driver.flush()
    assert driver.disk.operations == before + 1


def test_what_is_settled_within_the_turn_touches_no_file(driver: V1Driver) -> None:
    driver.settle(driver.publish(5))
    driver.flush()
    assert files(driver) == []


def test_what_is_settled_while_in_the_journal_never_reaches_a_segment(driver: V1Driver) -> None:
    for _ in range(30):
        seq_ids = driver.publish(2)
        driver.sync()
        driver.settle(seq_ids)
        driver.sync()
        assert not [name for name in files(driver) if name.endswith(".idx")]
    assert len(files(driver)) <= 3, "journals that were full are deleted"


def test_a_full_journal_goes_into_the_segments_and_is_deleted_when_they_are_durable(driver: V1Driver) -> None:
    driver.publish(1)
    driver.flush()
    assert files(driver) == ["0.jif"]
    driver.publish(11)
    driver.flush()
    assert sorted(files(driver)) == ["0.idx", "0.jif", "1.idx"]
    driver.flush()
    assert "0.jif" in files(driver), "what was moved is not durable yet"
    driver.sync()
    driver.flush()
    assert files(driver) == ["0.idx", "1.idx"]
    driver.check()


def test_a_full_journal_is_moved_in_pieces(driver: V1Driver) -> None:
    driver.publish(11)
    driver.sync()
    driver.publish(1, big=True)
    driver.flush()
    assert files(driver) == ["0.idx", "0.jif"]
    driver.check()
    assert not driver.index.journals.moved
    for _ in range(12):
        driver.flush()
        driver.check()
    assert driver.index.journals.moved


def test_a_settled_segment_is_deleted_without_being_written_again(driver: V1Driver) -> None:
    fill_journals(driver)
    size = driver.disk.snapshot()[f"{DIRECTORY}/0.idx"]
    driver.settle(range(7))
    driver.flush()
    assert driver.disk.snapshot()[f"{DIRECTORY}/0.idx"] == size
    driver.settle([7])
    driver.flush()
    assert sorted(files(driver)) == ["1.idx", "1.jif"]


def test_acks_reach_the_segment_with_the_journal(driver: V1Driver) -> None:
    fill_journals(driver)
    driver.settle([1, 2, 3])
    driver.publish(11)
    for _ in range(8):
        driver.sync()
    assert "1.jif" not in files(driver)
    driver.die()
    assert sorted(driver.verify_crash()) == [0, *range(4, 23)]


def test_a_small_message_is_embedded_and_a_big_one_shared(driver: V1Driver) -> None:
    driver.publish(1)
    driver.publish(1, big=True)
    driver.publish(1, big=True, persistent=False)
    driver.flush()
    assert len(driver.persistent_store.messages) == 1
    assert len(driver.transient_store.messages) == 1
    places = [paged.place for _, paged in driver.index.entries(0, 3, 3)]
    assert places == [UNKNOWN_PLACE, IN_SHARED_STORE, IN_SHARED_STORE]
    driver.settle([0, 1, 2])
    assert not driver.persistent_store.messages
    assert not driver.transient_store.messages


def test_a_transient_message_marks_no_journal_for_the_sync(driver: V1Driver) -> None:
    driver.publish(1)
    driver.sync()
    driver.publish(1, persistent=False)
    driver.settle([0])
    driver.flush()
    assert not driver.group_commit.has_dirty


# -- reading


def test_reading_merges_the_journal_over_the_segment(driver: V1Driver) -> None:
    fill_journals(driver)
    driver.settle([3])
    driver.publish_at({3: driver.message(big=True)})
    driver.publish(2)
    driver.flush()
    driver.check()


def test_only_two_segments_stay_parsed(driver: V1Driver) -> None:
    driver.publish(64)
    driver.sync()
    driver.read_all()
    assert len(driver.index.files._parsed) == 2


def test_a_segment_that_is_deleted_is_not_kept_open_for_reading(driver: V1Driver) -> None:
    fill_journals(driver)
    open_before = driver.disk.open_handles
    driver.read_all()
    assert driver.disk.open_handles == open_before + 2
    driver.settle(list(range(8)))
    driver.flush()
    assert files(driver) == ["1.idx", "1.jif"]
    assert driver.disk.open_handles == open_before + 2


def test_settling_a_whole_embedded_segment_reads_nothing(driver: V1Driver) -> None:
    fill_journals(driver)
    driver.disk.fail_reads = DIRECTORY
    settled = driver.index.settle_range(0, 100, is_sized=False)
    assert (settled.messages, settled.persistent) == (12, 12)
    driver.index.flush(12)
    assert driver.index.count_live(0, 100) == 0


def test_a_full_segment_costs_counters_only() -> None:
    entries, segments = 1024, 20
    driver = V1Driver(replace(SMALL, v1_segment_entries=entries, v1_journal_entries_max=2048))
    driver.index.publish({seq_id: driver.message() for seq_id in range(entries * segments)})
    driver.index.close(entries * segments)
    assert driver.index.count_live(0, 1 << 40) == entries * segments
    assert driver.index.memory_bytes < segments * 200 + 10_000
    driver.index.settle_range(0, 5)
    assert driver.index.memory_bytes < segments * 200 + 10_000 + entries // 8 + 28 * entries


# -- starting again


def test_a_clean_stop_leaves_segments_only_and_the_start_reads_none(driver: V1Driver) -> None:
    driver.publish(20)
    driver.sync()
    driver.settle([2, 3, 17])
    driver.publish(1, persistent=False)
    index = driver.index
    index.drop_transient()
    index.close(driver.next_seq_id)
    assert sorted(files(driver)) == ["0.idx", "1.idx", "2.idx"]
    driver.disk.fail_reads = DIRECTORY
    driver.index = driver._make()
    report = RecoveryReport(clean=True)
    assert run_through(recover_v1(driver.index, report, index.terms(), store_is_damaged=False)).end_seq_id == 24
    assert (report.clean, report.messages, report.transient) == (True, 17, 0)
    assert list(driver.index.live(0, 100)) == [0, 1, *range(4, 17), 18, 19]


def test_transient_entries_that_survived_a_clean_stop_are_dropped(driver: V1Driver) -> None:
    driver.publish(2)
    driver.publish(3, persistent=False)
    driver.publish(1, big=True, persistent=False)
    driver.index.close(driver.next_seq_id)
    driver.recover(driver.index.terms())
    assert (driver.report.clean, driver.report.messages, driver.report.transient) == (True, 2, 4)
    assert list(driver.index.live(0, 10)) == [0, 1]


def test_transient_entries_are_dropped_after_a_crash(driver: V1Driver) -> None:
    driver.publish(9)
    driver.publish(3, persistent=False)
    driver.sync()
    driver.crash(CrashStyle.DROP, 0)
    assert sorted(driver.verify_crash()) == list(range(9))
    assert driver.report.transient == 3
    driver.crash(CrashStyle.DROP, 0)
    assert driver.report.transient == 0, "dropped once"


def test_terms_that_do_not_fit_the_files_lead_to_a_scan(driver: V1Driver) -> None:
    driver.publish(5)
    driver.sync()
    driver.index.close(driver.next_seq_id)
    terms = driver.index.terms()
    for wrong in (b"", terms[:-1], terms[:10] + b"x" + terms[11:]):
        driver.recover(wrong)
        assert not driver.report.clean
        assert driver.report.corrupt == 1
        assert len(driver.read_all()) == 5


def test_an_entry_whose_message_is_lost_is_dropped(driver: V1Driver) -> None:
    """Never wholly written if the store is sound; damage if the store is damaged."""
    driver.publish(2, big=True)
    driver.sync()
    driver.disk.crash(CrashStyle.DROP, random.Random(0))
    for store_is_damaged, counts in ((False, (1, 0)), (True, (0, 1))):
        disk = driver.disk
        index = driver._make()
        assert isinstance(index, QueueIndexV1)
        report = RecoveryReport(clean=False)
        if driver.persistent_store.contains(driver.live[0].msg_id):
            driver.persistent_store.release(driver.live[0].msg_id)
        before = disk.snapshot()
        run_through(recover_v1(index, report, None, store_is_damaged=store_is_damaged))
        assert (report.torn, report.corrupt) == counts
        assert list(index.live(0, 10)) == [1]
        # The second round finds the same files.
        index.abandon()
        for path in disk.snapshot():
            disk.unlink(path)
        for path, content in before.items():
            disk.create(path).pwrite(content, 0)


def test_damage_is_reported_quarantined_and_gone_after_the_recovery(driver: V1Driver) -> None:
    fill_journals(driver)
    driver.publish(3)
    driver.sync()
    for path in (f"{DIRECTORY}/0.idx", f"{DIRECTORY}/1.jif"):
        driver.disk.flip_bit(path, 120)
    driver.recover(None)
    assert driver.report.corrupt == 2
    assert "0.idx: damage at 64" in driver.report.problems[1]
    assert len(driver.disk.list(f"{DIRECTORY}/quarantine")) == 2
    assert sorted(driver.read_all()) == [*range(1, 12), 13, 14]
    driver.recover(None)
    assert driver.report.corrupt == 0
    assert sorted(driver.read_all()) == [*range(1, 12), 13, 14]


def test_damage_found_while_running_is_an_error_for_what_it_hit_only(driver: V1Driver) -> None:
    fill_journals(driver)
    driver.disk.flip_bit(f"{DIRECTORY}/0.idx", 120)
    with pytest.raises(StorageError, match=r"seq id 0 .*damaged or missing"):
        driver.index.entries(0, 1, 1)
    assert driver.index.read([(1, _paged(driver.live[1]))]) == [driver.live[1].envelope()]


def test_a_record_damaged_behind_our_back_is_not_served(driver: V1Driver) -> None:
    fill_journals(driver)
    driver.publish(1)
    driver.sync()
    for seq_id, path in ((0, f"{DIRECTORY}/0.idx"), (12, f"{DIRECTORY}/1.jif")):
        entries = driver.index.entries(seq_id, seq_id + 1, 1)
        assert driver.index.read(entries) == [driver.live[seq_id].envelope()]
        driver.disk.flip_bit(path, 120)
        with pytest.raises(StorageError, match=f"seq id {seq_id} in {path} is damaged"):
            driver.index.read(entries)


def test_an_index_of_other_segments_is_refused(driver: V1Driver) -> None:
    fill_journals(driver)
    driver.index.close(driver.next_seq_id)
    terms = driver.index.terms()
    driver.config = replace(SMALL, v1_segment_entries=32)
    for given in (None, terms):
        with pytest.raises(StorageError, match="segments of another size"):
            driver.recover(given)


def test_a_failed_fsync_keeps_the_journal(driver: V1Driver) -> None:
    driver.publish(12)
    driver.flush()
    driver.disk.fail_syncs = "0.idx"
    sync_round = driver.group_commit.begin()
    assert sync_round is not None
    with pytest.raises(StorageError) as failure:
        sync_round.run()
    driver.group_commit.fail(sync_round, failure.value)
    # That a second fsync would go well means nothing.
    driver.disk.fail_syncs = None
    driver.flush()
    assert "0.jif" in files(driver)
    with pytest.raises(StorageError, match="cannot be closed cleanly"):
        driver.index.close(driver.next_seq_id)
    assert "0.jif" in files(driver)


# -- a full disk


def test_what_a_full_disk_refused_is_still_collected(driver: V1Driver) -> None:
    driver.publish(5, big=True)
    driver.sync()
    driver.settle([1])
    driver.publish(3, big=True)
    driver.publish(3)
    driver.disk.capacity_bytes = driver.disk.used_bytes
    for _ in range(2):
        with pytest.raises(DiskFullError):
            driver.index.flush(driver.next_seq_id)
        driver.index.check_invariants()
        assert len(driver.persistent_store.messages) == 4, "references are taken when the entries are written"
        assert driver.index.is_unflushed(5)
        assert not driver.index.is_live(1)
    driver.disk.capacity_bytes = 1 << 20
    driver.flush()
    driver.check()


def test_a_full_disk_keeps_journals_from_being_moved_and_nothing_else(driver: V1Driver) -> None:
    driver.publish(11)
    driver.sync()
    driver.publish(1)
    driver.disk.capacity_bytes = driver.disk.used_bytes + 90
    for _ in range(3):
        driver.flush()
        driver.check()
    assert "1.idx" not in files(driver)
    driver.disk.capacity_bytes = 1 << 20
    for _ in range(15):
        driver.sync()
        driver.check()
    assert files(driver) == ["0.idx", "1.idx"]


def test_in_a_queue_that_is_not_durable_everything_is_transient(driver: V1Driver) -> None:
    index = QueueIndexV1(
        driver.disk,
        DIRECTORY,
        1,
        is_durable=False,
        group_commit=driver.group_commit,
        persistent_store=driver.persistent_store,
        transient_store=driver.transient_store,
        config=SMALL,
    )
    index.publish({seq_id: driver.message(big=seq_id % 2 == 0) for seq_id in range(30)})
    assert index.flush(30) == 0
    index.flush(30)
    sync_round = driver.group_commit.begin()
    assert sync_round is not None
    assert sync_round.files == [driver.transient_store], "only the test's own store asks for a sync"
    assert len(driver.transient_store.messages) == 15
    assert not any(paged.persistent for _, paged in index.entries(0, 30, 30))
    names = [name.rpartition(".")[2] for name in files(driver)]
    assert names == ["idx"] * 4, "the journal waited for no sync"
    index.publish({30: driver.message()})
    assert [paged.persistent for _, paged in index.entries(30, 31, 1)] == [False]
    assert index.settle_range(29, 31, keep=[29]).persistent == 0
    index.publish({30: driver.message()})
    index.drop_transient()
    index.flush(31)
    assert not driver.transient_store.messages
    assert index.count_live(0, 31) == 0
    index.check_invariants()


# -- for the store and the tools


def test_references_are_counted_in_all_files(driver: V1Driver) -> None:
    driver.publish(2)
    driver.publish(10, big=True)
    driver.sync()
    driver.publish(2, big=True)
    driver.publish(1, big=True, persistent=False)
    driver.settle([2, 12])
    driver.flush()
    assert count_references_v1(driver.disk, DIRECTORY) == driver.persistent_store.references
    assert sum(driver.persistent_store.references.values()) == 10


def test_tools_see_every_entry_and_every_problem(driver: V1Driver) -> None:
    fill_journals(driver)
    driver.publish(2)
    driver.sync()
    driver.disk.flip_bit(f"{DIRECTORY}/1.idx", 80)
    problems: list[Problem] = []
    before = driver.disk.operations
    entries = list(stored_entries(driver.disk, DIRECTORY, problems.append))
    assert driver.disk.operations == before, "read only"
    assert [entry.seq_id for entry in entries] == [*range(8), *range(9, 14)]
    assert [entry.journal for entry in entries] == [IN_SEGMENT] * 11 + [1, 1]
    assert [(problem.path, problem.torn) for problem in problems] == [(f"{DIRECTORY}/1.idx", False)]


def test_deleting_gives_every_reference_back_in_pieces(driver: V1Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.store.shared.port.REFERENCES_PER_STEP", 5)
    driver.publish(10, big=True)
    driver.sync()
    driver.publish(5, big=True)
    driver.publish(5, big=True, persistent=False)
    driver.flush()
    driver.publish(1, big=True)
    left = [sum(driver.persistent_store.references.values()) for _ in driver.index.delete(DIRECTORY)]
    assert left == [10, 7, 2, 0, 0], "a segment of 8 entries is two pieces"
    assert not driver.persistent_store.references
    assert not driver.transient_store.references
    assert (driver.index.memory_bytes, driver.disk.open_handles) == (V1Driver().index.memory_bytes, 0)


def test_settle_range_counts_pending_and_written(driver: V1Driver) -> None:
    driver.publish(3)
    driver.flush()
    driver.publish(3, big=True)
    assert driver.index.settle_range(1, 5, keep=[3]) == Range(3, 14 + 14 + 94, 3, 14 + 14 + 94)


def _paged(message: Message) -> PagedMessage:
    return PagedMessage(message.msg_id, len(message.body), message.persistent)

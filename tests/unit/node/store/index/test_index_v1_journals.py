"""How an index of version 1 carries journals over, what it deletes when, and how little of it waits for what.

Segments have 8 entries and a journal is full with 12 records, as in tests/unit/node/store/index/test_index_v1.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from node.errors import DiskFullError, StorageError
from node.ids import MsgId
from node.store.disk.group_commit import SyncRound
from node.store.disk.simulated import CrashStyle
from node.store.index.index import IN_SHARED_STORE, UNKNOWN_PLACE, RecoveryReport
from node.store.index.v1.index import DELETIONS_MAX
from node.store.index.v1.journal import Journal
from node.store.index.v1.recovery import recover_v1
from node.store.steps import run_through
from tests.support.index_driver import DIRECTORY, QUEUE_ID, SMALL, MemorySharedStore, V1Driver
from tests.support.messages import ORIGIN, make_message


@pytest.fixture
def driver() -> V1Driver:
    return V1Driver()


def files(driver: V1Driver) -> list[str]:
    return sorted(driver.disk.list(DIRECTORY))


def publish_spread(driver: V1Driver, count: int) -> list[int]:
    """One message in each of so many segments."""
    seq_ids = [driver.next_seq_id + 8 * number for number in range(count)]
    driver.publish_at({seq_id: driver.message() for seq_id in seq_ids})
    driver.next_seq_id += 8 * count
    return seq_ids


def run_round(driver: V1Driver) -> SyncRound:
    sync_round = driver.group_commit.begin()
    assert sync_round is not None
    sync_round.run()
    driver.group_commit.complete(sync_round)
    return sync_round


# -- collecting


def test_what_is_collected_is_known(driver: V1Driver) -> None:
    """Each thing that a flush would write, alone."""
    seen = [driver.index.has_unflushed]
    for collect in (lambda: driver.publish(1), lambda: driver.settle([0])):
        collect()
        seen.append(driver.index.has_unflushed)
        driver.flush()
        seen.append(driver.index.has_unflushed)
    assert seen == [False, True, False, True, False]


def test_the_encoded_form_at_hand_is_written_and_forgotten_with_its_message(driver: V1Driver) -> None:
    index = driver.index
    first, second, third = [driver.message() for _ in range(3)]
    index.publish({0: first, 1: first}, {0: second.envelope(), 1: second.envelope()})
    index.settle([1], [first])
    index.publish({1: third})
    index.flush(2)
    assert index.read(index.entries(0, 2, 2)) == [second.envelope(), third.envelope()]


def test_a_message_is_embedded_below_the_limit(driver: V1Driver) -> None:
    """Body and properties together, 60 bytes here."""
    properties_bytes = len(make_message(1).properties)
    bodies = [bytes(59 - properties_bytes), bytes(60 - properties_bytes)]
    driver.index.publish({at: make_message(at + 1, body=body) for at, body in enumerate(bodies)})
    driver.index.flush(2)
    assert [paged.place for _, paged in driver.index.entries(0, 2, 2)] == [UNKNOWN_PLACE, IN_SHARED_STORE]


def test_asking_for_a_part_finds_collected_and_written_entries_of_it(driver: V1Driver) -> None:
    driver.publish(4)
    driver.flush()
    driver.publish(4)
    index = driver.index
    assert list(index.live(2, 6)) == [2, 3, 4, 5]
    assert list(index.live(5, 7)) == [5, 6]
    assert index.count_live(5, 7) == 2
    assert [seq_id for seq_id, _ in index.entries(2, 6, 9)] == [2, 3, 4, 5]
    assert [seq_id for seq_id, _ in index.entries(5, 7, 9)] == [5, 6]
    assert [seq_id for seq_id, _ in index.entries(0, 8, 5)] == [0, 1, 2, 3, 4]
    assert index.read(index.entries(2, 6, 4)) == [driver.live[seq_id].envelope() for seq_id in range(2, 6)]
    assert index.settle_range(3, 7, keep=[4, 7]).messages == 3
    assert list(index.live(0, 9)) == [0, 1, 2, 4, 7]


def test_few_segments_far_apart_are_found(driver: V1Driver) -> None:
    """More numbers lie between them than there are segments."""
    for seq_id in (3, 803, 1603):
        driver.publish_at({seq_id: driver.message()})
    driver.next_seq_id = 1604
    driver.flush()
    index = driver.index
    assert list(index.live(0, 1604)) == [3, 803, 1603]
    assert list(index.live(8, 1600)) == [803]
    assert [seq_id for seq_id, _ in index.entries(0, 1604, 2)] == [3, 803]
    assert index.count_live(4, 1604) == 2


# -- carrying over


def test_a_message_settled_while_its_journal_is_moved_never_reaches_a_segment(driver: V1Driver) -> None:
    seq_ids = publish_spread(driver, 12)
    driver.flush()
    assert "0.jif" in files(driver)
    assert not driver.disk.exists(f"{DIRECTORY}/11.idx"), "its turn has not come"
    driver.settle(seq_ids[-1:])
    driver.publish(1)
    for _ in range(20):
        driver.sync()
        driver.check()
    assert "0.jif" not in files(driver)
    assert "11.idx" not in files(driver)


def test_acks_of_what_is_in_a_segment_and_of_what_is_still_in_the_journal(driver: V1Driver) -> None:
    """One run of acks of which only a part must be written to the segment."""
    driver.publish(4)
    driver.sync()
    driver.next_seq_id = 8
    publish_spread(driver, 12)
    for _ in range(20):
        driver.sync()
    driver.publish_at({4: driver.message(), 5: driver.message(persistent=False)})
    driver.sync()
    driver.settle([2, 3, 4])
    driver.flush()
    driver.check()
    driver.publish(12)
    for _ in range(12):
        driver.sync()
        driver.check()
    assert not [name for name in files(driver) if name.endswith(".jif")]
    driver.die()
    assert {0, 1, 2, 3, 4, 5} & driver.verify_crash().keys() == {0, 1}


def test_a_journal_full_early_has_the_one_before_moved_at_once(driver: V1Driver) -> None:
    publish_spread(driver, 20)
    driver.flush()
    moved = [name for name in files(driver) if name.endswith(".idx")]
    assert 0 < len(moved) < 20, "one file costs as much as many entries"
    publish_spread(driver, 12)
    driver.flush()
    driver.check()
    assert len([name for name in files(driver) if name.endswith(".idx")]) > 20
    driver.sync()
    driver.flush()
    assert "0.jif" not in files(driver)
    driver.check()


def test_a_flush_moves_twice_what_was_written_and_a_file_counts_like_eight_entries() -> None:
    driver = V1Driver(replace(SMALL, v1_journal_entries_max=100))
    driver.publish(92)
    driver.flush()
    for flush in range(3):
        driver.publish(8)
        driver.flush()
        assert [name for name in files(driver) if name.endswith(".idx")] == [f"{each}.idx" for each in range(flush + 1)]
    driver.check()


def test_more_acks_than_one_flush_moves(driver: V1Driver) -> None:
    """They go in one piece, and the publishes behind them one by one."""
    driver.publish(8)
    driver.sync()
    publish_spread(driver, 12)
    for _ in range(20):
        driver.sync()
    for seq_id in (0, 2, 4, 6):
        driver.settle([seq_id])
        driver.flush()
    driver.publish_at({seq_id: driver.message(persistent=False) for seq_id in (0, 2)})
    driver.flush()
    for _ in range(6):
        driver.publish(1)
        driver.flush()
        driver.check()
    for _ in range(20):
        driver.sync()
        driver.check()
    assert not [name for name in files(driver) if name.endswith(".jif")]


def test_a_moved_journal_waits_for_the_round_after_the_last_of_it_was_moved(driver: V1Driver) -> None:
    """A round that began before has not synced what was moved meanwhile."""
    publish_spread(driver, 12)
    driver.flush()
    early = driver.group_commit.begin()
    assert early is not None
    early.run()
    while not driver.index.journals.moved:
        driver.flush()
    driver.group_commit.complete(early)
    driver.flush()
    assert "0.jif" in files(driver)
    paths = {getattr(file, "path", "") for file in run_round(driver).files}
    assert {f"{DIRECTORY}/0.jif", f"{DIRECTORY}/11.idx"} <= paths
    assert f"{DIRECTORY}/11.idx" in driver.disk.durable_snapshot(), "the round synced its name"
    driver.flush()
    assert "0.jif" not in files(driver)


def test_a_moved_journal_waits_for_the_sync_of_its_segments_though_confirms_wait_for_none() -> None:
    driver = V1Driver(replace(SMALL, confirm_after_sync=False))
    driver.publish(12)
    driver.flush()
    driver.flush()
    assert files(driver) == ["0.idx", "0.jif", "1.idx"], "what was durable in the journal is not yet in the segments"
    run_round(driver)
    driver.flush()
    assert files(driver) == ["0.idx", "1.idx"]


def test_damage_of_a_journal_is_not_moved_into_a_segment(driver: V1Driver) -> None:
    driver.publish(11)
    driver.sync()
    driver.disk.flip_bit(f"{DIRECTORY}/0.jif", 120)
    driver.publish(1)
    with pytest.raises(StorageError, match=r"0\.jif is damaged at 64: its checksum does not fit"):
        driver.index.flush(driver.next_seq_id)
    assert files(driver) == ["0.jif"]


def test_what_was_published_in_disorder_is_moved_in_order(driver: V1Driver) -> None:
    """Then a reader of the segment need not read it to the end."""
    driver.publish_at({5: driver.message(persistent=False)})
    driver.flush()
    driver.publish_at({3: driver.message(persistent=False)})
    driver.next_seq_id = 6
    driver.publish(10)
    driver.flush()
    assert driver.index.live_entries.segments[0].is_written_once
    driver.check()


# -- deleting


def test_segments_that_are_finished_together_are_deleted_in_turns() -> None:
    driver = V1Driver(replace(SMALL, v1_journal_entries_max=100))
    count = DELETIONS_MAX + 1
    publish_spread(driver, count)
    driver.restart()
    assert len(files(driver)) == count
    driver.index.settle_range(0, driver.next_seq_id)
    driver.index.flush(driver.next_seq_id)
    assert len([name for name in files(driver) if name.endswith(".idx")]) == 1
    assert driver.index.has_unflushed
    driver.index.flush(driver.next_seq_id)
    assert not [name for name in files(driver) if name.endswith(".idx")]
    assert not driver.index.has_unflushed


def test_a_stop_forgets_all_that_is_finished() -> None:
    """More than one flush would."""
    driver = V1Driver(replace(SMALL, v1_journal_entries_max=100))
    publish_spread(driver, 3 * DELETIONS_MAX)
    driver.flush()
    driver.index.settle_range(0, driver.next_seq_id)
    driver.index.close(driver.next_seq_id)
    assert files(driver) == []
    assert not driver.index.live_entries.segments


def test_the_segment_that_is_appended_to_is_deleted_when_it_is_past(driver: V1Driver) -> None:
    driver.publish(10)
    driver.flush()
    driver.settle([8, 9])
    driver.flush()
    assert 1 in driver.index.live_entries.segments, "more will come"
    driver.restart()
    driver.check()
    assert 1 in driver.index.live_entries.segments
    driver.next_seq_id = 16
    driver.publish(1)
    driver.flush()
    assert 1 not in driver.index.live_entries.segments


def test_a_settled_tail_is_deleted_with_the_journal_that_acks_it(driver: V1Driver) -> None:
    """No ack is appended to a file that is going to be deleted."""
    driver.publish(12)
    for _ in range(3):
        driver.sync()
    assert files(driver) == ["0.idx", "1.idx"]
    size = driver.disk.snapshot()[f"{DIRECTORY}/1.idx"]
    for seq_id in (8, 9, 10, 11):
        driver.settle([seq_id])
        driver.flush()
    assert driver.disk.snapshot()[f"{DIRECTORY}/1.idx"] == size
    driver.index.close(driver.next_seq_id)
    assert files(driver) == ["0.idx"]


def test_the_deletion_of_a_segment_is_made_durable(driver: V1Driver) -> None:
    """Else a crash could bring back thousands that were acked."""
    driver.publish(12)
    for _ in range(3):
        driver.sync()
    # The journal that will have the acks is there already: its name is no reason to sync the directory.
    driver.publish(1)
    driver.sync()
    driver.settle(range(8))
    driver.flush()
    run_round(driver)
    driver.crash(CrashStyle.DROP, 0)
    assert sorted(driver.verify_crash()) == [8, 9, 10, 11, 12]


def test_journals_are_never_numbered_twice(driver: V1Driver) -> None:
    driver.publish(12)
    driver.restart()
    driver.publish(1)
    driver.sync()
    assert files(driver) == ["0.idx", "1.idx", "1.jif"]
    driver.crash(CrashStyle.DROP, 0)
    driver.after_recovery(driver.verify_crash())
    driver.publish(1)
    driver.flush()
    assert files(driver) == ["0.idx", "1.idx", "2.jif"]


# -- a full disk


class FullStore(MemorySharedStore):
    """A shared store that takes nothing."""

    def write_batch(self, items: Sequence[tuple[MsgId, bytes]]) -> None:
        raise DiskFullError("the disk is full")


def test_if_one_store_is_full_the_other_gets_its_references_back(driver: V1Driver) -> None:
    driver.publish(2, big=True)
    driver.publish(1, big=True, persistent=False)
    stores = driver.index.live_entries.stores
    assert isinstance(stores, dict)
    stores[False] = FullStore(driver.group_commit)
    with pytest.raises(DiskFullError):
        driver.index.flush(driver.next_seq_id)
    assert not driver.persistent_store.references
    assert driver.index.has_unflushed_publishes
    stores[False] = driver.transient_store
    driver.flush()
    driver.check()
    assert sum(driver.persistent_store.references.values()) == 2


def test_a_full_disk_at_the_beginning_of_a_journal(driver: V1Driver) -> None:
    driver.publish(3)
    for room_bytes in (0, 64, 80):
        driver.disk.capacity_bytes = driver.disk.used_bytes + room_bytes
        with pytest.raises(DiskFullError):
            driver.index.flush(driver.next_seq_id)
    driver.disk.capacity_bytes = 1 << 20
    driver.sync()
    driver.crash(CrashStyle.DROP, 0)
    assert sorted(driver.verify_crash()) == [0, 1, 2]
    assert driver.report.torn == 0


def test_the_half_of_a_write_to_a_journal_is_taken_back(driver: V1Driver) -> None:
    driver.publish(1)
    driver.flush()
    driver.publish(4)
    assert not driver.flush_without_room(120, lambda longest: longest)
    # Nobody is told that these ever were.
    driver.settle([1, 2, 3, 4])
    driver.flush()
    driver.die()
    assert sorted(driver.verify_crash()) == [0]


# -- recovery


def test_an_ack_behind_its_publish_in_the_journals_counts(driver: V1Driver) -> None:
    driver.publish(3)
    driver.flush()
    driver.settle([1])
    driver.sync()
    driver.die()
    assert sorted(driver.verify_crash()) == [0, 2]


def test_of_two_records_in_a_segment_the_last_is_read(driver: V1Driver) -> None:
    """A position that was used again."""
    driver.publish(11)
    driver.sync()
    driver.publish(1)
    for _ in range(14):
        driver.sync()
    driver.settle([9, 11])
    driver.publish_at({9: driver.message(), 11: driver.message(big=True)})
    driver.publish(12)
    for _ in range(14):
        driver.sync()
    assert not [name for name in files(driver) if name.endswith(".jif")]
    driver.index.files.close()
    # Alone, so that nothing else makes it read on.
    assert [paged.msg_id for _, paged in driver.index.entries(9, 10, 1)] == [driver.live[9].msg_id]
    driver.check()
    driver.die()
    driver.after_recovery(driver.verify_crash())
    assert not driver.index.live_entries.segments[1].is_written_once
    assert len(driver.check()) == 24


def test_a_segment_of_which_only_a_journal_has_something_is_written_anew(driver: V1Driver) -> None:
    """All that its file has was acked, and one position was used again: a process died before that was moved."""
    driver.publish(12)
    driver.sync()
    assert "0.idx" in files(driver)
    for _ in range(3):
        driver.sync()
    driver.settle([8, 9, 10, 11])
    driver.flush()
    driver.publish_at({9: driver.message()})
    driver.flush()
    assert "1.idx" in files(driver)
    driver.die()
    driver.after_recovery(driver.verify_crash())
    assert sorted(driver.live) == [*range(8), 9]
    contents = driver.disk.snapshot()
    assert len(contents[f"{DIRECTORY}/1.idx"]) * 3 < len(contents[f"{DIRECTORY}/0.idx"]), "of what was acked nothing"
    driver.check()


def test_what_a_journal_has_to_remember_is_counted_as_memory(driver: V1Driver) -> None:
    empty = driver.index.memory_bytes
    driver.publish(8)
    driver.flush()
    with_publishes = driver.index.memory_bytes
    driver.settle(list(range(4)))
    driver.flush()
    assert with_publishes - empty > 8 * 50
    assert with_publishes - driver.index.memory_bytes > 4 * 50


def test_a_damaged_header_is_told(driver: V1Driver) -> None:
    driver.publish(12)
    for _ in range(3):
        driver.sync()
    driver.disk.flip_bit(f"{DIRECTORY}/0.idx", 1)
    driver.recover(None)
    assert driver.report.corrupt == 1
    assert "0.idx" in driver.report.problems[0]
    assert len(driver.read_all()) == 12


def test_a_stop_syncs_what_it_wrote(driver: V1Driver) -> None:
    driver.publish(20)
    driver.publish(2, big=True)
    driver.index.close(driver.next_seq_id)
    assert driver.disk.durable_snapshot() == driver.disk.snapshot()
    assert files(driver) == ["0.idx", "1.idx", "2.idx"]


def test_a_recovery_syncs_what_it_found_and_wrote(driver: V1Driver) -> None:
    driver.publish(9)
    driver.flush()
    driver.die()
    assert driver.disk.durable_snapshot() == driver.disk.snapshot()
    assert files(driver) == ["0.idx", "1.idx"]


def test_a_recovery_syncs_what_was_moved_before_it(driver: V1Driver) -> None:
    """Nothing is missing in the segments, but no round has run."""
    driver.publish(12)
    for _ in range(10):
        driver.flush()
    assert driver.index.journals.moved
    driver.die()
    assert driver.disk.durable_snapshot() == driver.disk.snapshot()
    assert files(driver) == ["0.idx", "1.idx"]


def test_the_journals_win(driver: V1Driver) -> None:
    """Position 3 was settled and used again, 4 only settled; the segment has both as they were."""
    driver.publish(12)
    for _ in range(3):
        driver.sync()
    driver.settle([3, 4])
    driver.publish_at({3: driver.message()})
    driver.sync()
    driver.die()
    found = driver.verify_crash()
    assert sorted(found) == [0, 1, 2, 3, *range(5, 12)]
    assert found[3] == driver.live[3].envelope()
    driver.after_recovery(found)
    # The journals are gone: the segment knows it now.
    driver.die()
    assert driver.verify_crash() == found


def close_with_twelve(driver: V1Driver) -> bytes:
    driver.publish(12)
    driver.index.close(driver.next_seq_id)
    return driver.index.terms()


@pytest.mark.parametrize("change", ["shorter", "missing", "journal"])
def test_files_that_are_not_those_of_the_stop_are_scanned(driver: V1Driver, change: str) -> None:
    terms = close_with_twelve(driver)
    path = f"{DIRECTORY}/1.idx"
    if change == "shorter":
        driver.disk.open(path).truncate(len(driver.disk.snapshot()[path]) - 1)
    elif change == "missing":
        driver.disk.unlink(path)
    else:
        Journal(driver.disk, DIRECTORY, QUEUE_ID, 5, 8)
    driver.recover(terms)
    assert not driver.report.clean
    assert driver.report.problems == [f"{DIRECTORY}: the files are not those that the clean stop left; scanning"]
    assert len(driver.read_all()) == {"shorter": 11, "missing": 8, "journal": 12}[change]


def test_a_scan_tells_how_far_it_is_and_removes_what_was_not_finished(driver: V1Driver) -> None:
    close_with_twelve(driver)
    driver.disk.create(f"{DIRECTORY}/0.idx.tmp")
    told: list[tuple[int, int]] = []
    driver.index = driver._make()
    run_through(
        recover_v1(
            driver.index,
            RecoveryReport(clean=False),
            None,
            store_is_damaged=False,
            progress=lambda done, total: told.append((done, total)),
        )
    )
    assert told == [(1, 2), (2, 2)]
    assert files(driver) == ["0.idx", "1.idx"]


def test_nothing_is_left_of_an_index_that_is_given_up(driver: V1Driver) -> None:
    driver.publish(20)
    driver.flush()
    driver.settle([3])
    driver.publish(2)
    driver.index.abandon()
    driver.index.check_invariants()
    assert not driver.index.has_unflushed
    assert driver.index.count_live(0, 99) == 0


def test_a_scan_tells_what_it_found(driver: V1Driver) -> None:
    """Also of what only the journals had, which goes into the segments as what it is."""
    driver.publish(3)
    driver.publish(2, big=True)
    driver.sync()
    references = driver.count_references()
    driver.index = driver._make()
    report = RecoveryReport(clean=False)
    recovered = run_through(recover_v1(driver.index, report, None, store_is_damaged=False))
    assert (report.messages, report.body_bytes) == (5, sum(len(message.body) for message in driver.live.values()))
    assert recovered == (8, {ORIGIN: driver.live[4].msg_id})
    assert driver.count_references() == references
    driver.check()

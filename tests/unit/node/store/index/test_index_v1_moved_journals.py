"""What becomes of a journal of version 1 that is carried over: how much at a time, and what is left of it.

Segments have 8 entries and a journal is full with 12 records, as in tests/unit/node/store/index/test_index_v1.py.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from node.errors import DiskFullError
from node.store.index.v1.index import QueueIndexV1
from tests.support.index_driver import DIRECTORY, QUEUE_ID, SMALL, V1Driver


@pytest.fixture
def driver() -> V1Driver:
    return V1Driver()


def files(driver: V1Driver, suffix: str) -> list[str]:
    return sorted(name for name in driver.disk.list(DIRECTORY) if name.endswith(suffix))


def publish_spread(driver: V1Driver, count: int) -> None:
    """One message in each of so many segments."""
    driver.publish_at({driver.next_seq_id + 8 * number: driver.message() for number in range(count)})
    driver.next_seq_id += 8 * count


def test_a_segment_finished_while_its_journal_is_moved_counts_like_one_entry() -> None:
    driver = V1Driver(replace(SMALL, v1_journal_entries_max=40))
    driver.publish_at({8 * number + at: driver.message() for number in range(20) for at in range(2)})
    driver.next_seq_id = 8 * 20
    driver.restart()
    driver.settle([8 * number for number in range(20)])
    driver.flush()
    for count in (19, 1):
        publish_spread(driver, count)
        driver.flush()
    assert len(files(driver, ".jif")) == 1, "it is full, and hardly moved yet"
    driver.settle([8 * number + 1 for number in range(20)])
    driver.flush()
    # Twice 20 records: 19 segments to forget, and three to be written.
    assert files(driver, ".idx") == ["20.idx", "21.idx", "22.idx"]
    driver.check()


@pytest.mark.parametrize("confirm_after_sync", [True, False])
def test_a_journal_that_is_moved_is_not_kept_open(confirm_after_sync: bool) -> None:
    driver = V1Driver(replace(SMALL, confirm_after_sync=confirm_after_sync))
    open_before = driver.disk.open_handles
    for _ in range(3):
        driver.publish(12)
        for _ in range(4):
            driver.sync()
        assert not files(driver, ".jif")
    assert driver.disk.open_handles == open_before


def test_nor_is_one_of_which_nothing_has_to_be_durable(driver: V1Driver) -> None:
    driver.disk.mkdir("/transient")
    index = QueueIndexV1(
        driver.disk,
        "/transient",
        QUEUE_ID,
        is_durable=False,
        group_commit=driver.group_commit,
        persistent_store=driver.persistent_store,
        transient_store=driver.transient_store,
        config=SMALL,
    )
    open_before = driver.disk.open_handles
    index.publish({seq_id: driver.message() for seq_id in range(12)})
    for _ in range(4):
        index.flush(12)
    assert driver.disk.list("/transient") == ["0.idx", "1.idx"]
    assert driver.disk.open_handles == open_before
    assert driver.group_commit.begin() is None


def test_what_the_journal_before_owes_is_given_back_when_the_next_one_is_full(
    driver: V1Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are never two on their way, and the one before cannot go while it owes."""
    monkeypatch.setattr("node.store.index.owed_references.OWED_PER_FLUSH", 1)
    driver.publish_at({8 * number: driver.message(big=True) for number in range(12)})
    driver.next_seq_id = 8 * 12
    driver.flush()
    driver.settle_range(1, driver.next_seq_id)
    references = driver.persistent_store.references
    assert sum(references.values()) == 12
    publish_spread(driver, 12)
    driver.flush()
    assert "1.jif" in files(driver, ""), "on its way at once, like the one before"
    assert sum(references.values()) < 5
    for _ in range(12):
        driver.sync()
    assert not files(driver, ".jif")
    assert sum(references.values()) == 1, "of the one that is left"


def test_a_stop_moves_a_full_journal_and_the_one_behind_it() -> None:
    driver = V1Driver()
    publish_spread(driver, 12)
    driver.flush()
    publish_spread(driver, 3)
    driver.flush()
    assert files(driver, ".jif") == ["0.jif", "1.jif"]
    driver.index.close(driver.next_seq_id)
    assert files(driver, "") == sorted(f"{number}.idx" for number in range(15))


def test_a_segment_that_never_had_a_file_is_forgotten_without_a_sync(driver: V1Driver) -> None:
    driver.publish(9)
    driver.sync()
    driver.settle(range(8))
    driver.flush()
    assert 0 not in driver.index.live_entries.segments
    assert driver.group_commit.begin() is None


def test_a_segment_of_which_only_its_journal_has_living_messages_is_written_from_its_begin(driver: V1Driver) -> None:
    """Its file goes with the acks that only the journal had: another crash does not bring back what they settled."""
    driver.publish(3)
    driver.restart()
    assert files(driver, "") == ["0.idx"]
    driver.settle(range(3))
    driver.publish(1)
    driver.sync()
    for _ in range(2):
        driver.die()
        assert files(driver, "") == ["0.idx"]
        assert list(driver.verify_crash()) == [3]
        assert driver.report.messages == 1


def test_a_recovery_syncs_each_segment_once(driver: V1Driver) -> None:
    publish_spread(driver, 5)
    driver.restart()
    driver.disk.synced.clear()
    driver.die()
    segments = [path for path in driver.disk.synced if path.endswith(".idx")]
    assert segments == [f"{DIRECTORY}/{number}.idx" for number in range(5)]


def test_what_several_journals_have_of_a_segment_is_written_in_the_order_of_positions() -> None:
    """So it may be read as far as is wanted, and no further."""
    driver = V1Driver(replace(SMALL, v1_journal_entries_max=2))
    # Full journals cannot be moved: the disk has room for no segment.
    driver.disk.full_for = ".idx"
    for first in (1, 0):
        driver.publish_at({first: driver.message(), first + 2: driver.message()})
        with suppress(DiskFullError):
            driver.flush()
    assert len(files(driver, ".jif")) == 2
    driver.disk.full_for = None
    driver.next_seq_id = 4
    driver.die()
    assert sorted(driver.verify_crash()) == [0, 1, 2, 3]
    assert driver.index.live_entries.segments[0].is_written_once

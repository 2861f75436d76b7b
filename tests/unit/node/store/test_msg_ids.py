"""The msg_ids that an index gives in bulk, for digests. (At random: `IndexDriver.check`, which all its tests call.)"""

from __future__ import annotations

import pytest

from tests.support.converting_driver import ConvertingDriver
from tests.support.index_driver import V1, V2, IndexDriver, IndexKind
from tests.support.messages import msg_id_of


@pytest.fixture(params=[V1, V2], ids=["v1", "v2"])
def driver(request: pytest.FixtureRequest) -> IndexDriver:
    """Segments have 8 entries, a journal of version 1 is full with 12 records."""
    return IndexDriver(request.param)


def numbers(driver: IndexDriver, first: int, end: int) -> list[int]:
    """Number of the message at each position of [first, end), 0 where nothing is live."""
    msg_ids = driver.index.msg_ids(first, end)
    assert len(msg_ids) == 16 * (end - first)
    pieces = [msg_ids[at : at + 16] for at in range(0, len(msg_ids), 16)]
    assert all(piece[:8] in (b"origin-1", bytes(8)) for piece in pieces)
    return [int.from_bytes(piece[8:], "big") for piece in pieces]


def test_nothing_is_zeros(driver: IndexDriver) -> None:
    assert driver.index.msg_ids(5, 25) == bytes(16 * 20)


def test_pending_and_written_in_embedded_and_shared_bodies(driver: IndexDriver) -> None:
    driver.publish(2)
    driver.publish(1, big=True)
    driver.flush()
    driver.publish(2)
    assert driver.index.msg_ids(0, 1) == msg_id_of(1)
    assert numbers(driver, 0, 6) == [1, 2, 3, 4, 5, 0]
    assert numbers(driver, 3, 4) == [4], "pending, and nothing else"
    driver.settle([4])
    assert numbers(driver, 1, 6) == [2, 3, 4, 0, 0]


def test_settled_ones_are_zeros_before_their_acks_are_written(driver: IndexDriver) -> None:
    driver.publish(8)
    driver.sync()
    driver.settle([0, 3, 4])
    assert numbers(driver, 0, 8) == [0, 2, 3, 0, 0, 6, 7, 8]
    driver.flush()
    assert numbers(driver, 0, 8) == [0, 2, 3, 0, 0, 6, 7, 8]
    driver.settle([1, 2, 5, 6, 7])
    assert numbers(driver, 0, 8) == [0] * 8


def test_a_stretch_over_segments_that_begins_and_ends_within(driver: IndexDriver) -> None:
    for _ in range(5):
        driver.publish(6)
        driver.sync()
    driver.settle_range(8, 16)
    driver.sync()
    assert numbers(driver, 5, 27) == [6, 7, 8, *[0] * 8, *range(17, 28)], "one segment of four has no file any more"
    assert numbers(driver, 17, 19) == [18, 19]


def test_a_position_that_was_filled_again(driver: IndexDriver) -> None:
    driver.publish(20)
    driver.sync()
    driver.settle([3, 19])
    driver.publish_at({3: driver.message(), 19: driver.message()})
    assert numbers(driver, 2, 5) == [3, 21, 5]
    driver.flush()
    assert (numbers(driver, 2, 5), numbers(driver, 19, 20)) == ([3, 21, 5], [22])


def test_entries_in_journals_and_in_segments() -> None:
    driver = IndexDriver(V1)
    driver.publish(12)
    driver.sync()
    driver.publish(3)
    driver.flush()
    driver.settle([9, 13])
    names = [name for name in driver.disk.list("/queue") if name != "quarantine"]
    assert {name.rpartition(".")[2] for name in names} == {"idx", "jif"}
    assert numbers(driver, 0, 16) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 11, 12, 13, 0, 15, 0]


@pytest.mark.parametrize(("old", "new"), [(V1, V2), (V2, V1)], ids=["1->2", "2->1"])
def test_what_is_in_both_indexes_of_a_conversion_counts_once(old: IndexKind, new: IndexKind) -> None:
    driver = ConvertingDriver(old, new)
    driver.publish(12)
    driver.sync()
    driver.begin()
    driver.step(6)
    driver.publish(2)
    driver.settle([1, 9])
    assert driver.converting.is_in_both(2)
    assert numbers(driver, 0, 15) == [1, 0, 3, 4, 5, 6, 7, 8, 9, 0, 11, 12, 13, 14, 0]
    driver.finish()
    assert numbers(driver, 0, 15) == [1, 0, 3, 4, 5, 6, 7, 8, 9, 0, 11, 12, 13, 14, 0]

"""A conversion on a disk that is full, or that fails, and what it leaves of an earlier one."""

from __future__ import annotations

from contextlib import suppress

import pytest

from node.errors import DiskFullError, StorageError
from node.store.index.conversion import CURSOR_FORMAT, CURSOR_NAME, _read_cursors, conversion_source, versions_on_disk
from tests.support.converting_driver import ConvertingDriver
from tests.support.index_driver import DIRECTORY, QUEUE_ID, V1, V2, IndexKind

VERSIONS = {"v1": 1, "v2": 2}
CURSOR_PATH = f"{DIRECTORY}/{CURSOR_NAME}"
ROOM_BYTES = 1 << 30


@pytest.fixture(params=[(V1, V2), (V2, V1)], ids=["1->2", "2->1"])
def driver(request: pytest.FixtureRequest) -> ConvertingDriver:
    kinds: tuple[IndexKind, IndexKind] = request.param
    return ConvertingDriver(*kinds)


def fill(driver: ConvertingDriver) -> None:
    """More than one segment, of everything."""
    driver.publish(9)
    driver.publish(3, big=True)
    driver.publish(2, persistent=False)
    driver.publish(6)
    driver.sync()


def source(driver: ConvertingDriver) -> int:
    return VERSIONS[driver.kind.name]


def test_copies_that_do_not_fit_on_the_disk_are_made_later(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    refused = 0
    for room_bytes in range(0, 2000, 50):
        driver.disk.capacity_bytes = driver.disk.used_bytes + room_bytes
        try:
            driver.converting.step(20)
        except DiskFullError:
            refused += 1
            driver.check()
            assert not driver.index.has_unflushed_publishes, "nothing is left that a flush would make a second copy of"
            continue
        break
    assert refused > 1
    driver.disk.capacity_bytes = ROOM_BYTES
    driver.check()
    assert driver.old.count_live(0, 99) == 18, "the copies are not durable yet"
    driver.finish()
    driver.check()
    assert len(driver.live) == 20
    assert sum(driver.persistent_store.references.values()) == 3


def test_a_full_disk_in_pieces(driver: ConvertingDriver) -> None:
    """Copies of which a part was written go on their way with the rest, and only when they are durable."""
    fill(driver)
    driver.begin()
    assert driver.new is not None
    for room_bytes in range(0, 2000, 50):
        driver.disk.capacity_bytes = driver.disk.used_bytes + room_bytes
        with suppress(DiskFullError):
            driver.converting.step(20)
        if driver.new.count_live(0, 99):
            break
    driver.disk.capacity_bytes = ROOM_BYTES
    # What is copied already, alone.
    driver.converting.step(1)
    driver.converting.step(1)
    assert conversion_source(driver.disk, DIRECTORY) is None, "no round has run"
    driver.check()
    driver.finish()
    driver.check()
    assert len(driver.live) == 20


def test_a_cursor_that_does_not_fit_on_the_disk_is_written_later(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    driver.step(20)
    driver.sync()
    driver.disk.capacity_bytes = driver.disk.used_bytes
    for room_bytes in (0, 10):
        driver.disk.capacity_bytes = driver.disk.used_bytes + room_bytes
        with pytest.raises(DiskFullError):
            driver.converting.step(20)
        driver.check()
        assert conversion_source(driver.disk, DIRECTORY) is None
    driver.disk.capacity_bytes = ROOM_BYTES
    driver.step(20)
    assert conversion_source(driver.disk, DIRECTORY) == source(driver)
    header = CURSOR_FORMAT.header(source(driver), QUEUE_ID)
    assert driver.disk.snapshot()[CURSOR_PATH].startswith(header)
    driver.finish()
    driver.check()
    assert driver.converting.is_finished


def test_a_cursor_that_cannot_be_written_is_an_error(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    driver.step(20)
    driver.sync()
    driver.disk.create(CURSOR_PATH)
    driver.disk.fail_writes = CURSOR_NAME
    open_before = driver.disk.open_handles
    with pytest.raises(StorageError):
        driver.step(20)
    assert driver.disk.open_handles == open_before
    assert driver.old.count_live(0, 99) == 18, "the transient ones need no cursor"


def test_the_cursor_of_an_earlier_conversion_in_the_other_direction_does_not_count(driver: ConvertingDriver) -> None:
    earlier = ConvertingDriver(driver.new_kind, driver.kind)
    fill(earlier)
    earlier.begin()
    for _ in range(2):
        earlier.step(6)
        earlier.sync()
    assert conversion_source(earlier.disk, DIRECTORY) == 3 - source(driver)
    driver.disk.create(CURSOR_PATH).pwrite(earlier.disk.snapshot()[CURSOR_PATH], 0)
    fill(driver)
    driver.begin()
    assert driver.old.count_live(0, 99) == 20
    assert not driver.disk.exists(CURSOR_PATH)
    driver.step(4)
    driver.sync()
    driver.step(4)
    assert conversion_source(driver.disk, DIRECTORY) == source(driver)
    assert driver.disk.snapshot()[CURSOR_PATH].startswith(CURSOR_FORMAT.header(source(driver), QUEUE_ID))
    driver.finish()
    driver.check()


def test_the_cursor_is_durable_with_its_name(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    for _ in range(2):
        driver.step(4)
        driver.sync()
    assert conversion_source(driver.disk, DIRECTORY) == source(driver)
    content = driver.disk.snapshot()[CURSOR_PATH]
    assert driver.disk.durable_snapshot()[CURSOR_PATH] == content


def test_the_cursor_is_not_kept_open(driver: ConvertingDriver) -> None:
    driver.publish(8)
    driver.sync()
    driver.begin()
    open_handles = []
    for _ in range(7):
        driver.step(1)
        driver.sync()
        open_handles.append(driver.disk.open_handles)
    assert open_handles[-1] <= open_handles[0] + 1, "old may have a new file for its acks"


def test_a_step_leaves_nothing_collected(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    for _ in range(2):
        driver.converting.step(4)
        assert not driver.index.has_unflushed_publishes
        driver.sync()
    driver.converting.step(4)
    assert driver.old.count_live(0, 99) == 16
    assert not driver.old.has_unflushed


def test_what_waits_in_either_index_is_seen(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    seen = [driver.index.has_unflushed]
    for collect in (lambda: driver.settle([19]), lambda: driver.publish(1)):
        collect()
        seen.append(driver.index.has_unflushed)
        driver.flush()
        seen.append(driver.index.has_unflushed)
    assert seen == [False, True, False, True, False], "nothing; an ack in old; a message in new"


def test_a_part_of_what_is_in_both_is_settled(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    driver.step(12)
    driver.settle_range(3, 6)
    assert driver.converting.is_in_both(6)
    driver.check()
    driver.settle_range(0, 12, keep=[0, 11])
    driver.check()
    assert [seq_id for seq_id in range(13) if driver.converting.is_in_both(seq_id)] == [0, 11]


def test_transient_messages_of_either_index_are_dropped(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    driver.publish(1, persistent=False)
    driver.flush()
    driver.index.drop_transient()
    assert list(driver.index.live(0, 99)) == [*range(12), *range(14, 20)]


@pytest.mark.parametrize("end", ["delete", "abandon"])
def test_nothing_is_left_of_an_index_that_is_given_up(driver: ConvertingDriver, end: str) -> None:
    fill(driver)
    driver.begin()
    for _ in range(2):
        driver.step(4)
        driver.sync()
    driver.step(4)
    if end == "delete":
        list(driver.index.delete(DIRECTORY))
    else:
        driver.index.abandon()
    assert driver.index.count_live(0, 99) == 0
    driver.index.check_invariants()
    # Nothing waits to be settled either.
    assert not driver.index.has_unflushed
    assert not any(driver.converting.is_in_both(seq_id) for seq_id in range(20))


def test_a_damaged_copy_of_the_cursor_does_not_count(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    for _ in range(3):
        driver.step(4)
        driver.sync()
    assert _read_cursors(driver.disk, DIRECTORY) == [position << 1 | source(driver) - 1 for position in (4, 8)]
    driver.disk.flip_bit(CURSOR_PATH, 1024)
    assert _read_cursors(driver.disk, DIRECTORY) == [4 << 1 | source(driver) - 1, -1]


def test_the_end_of_a_conversion_is_durable(driver: ConvertingDriver) -> None:
    fill(driver)
    driver.begin()
    driver.finish()
    assert driver.disk.durable_snapshot().keys() == driver.disk.snapshot().keys()
    assert CURSOR_PATH not in driver.disk.durable_snapshot()


def test_only_numbered_files_tell_a_version(driver: ConvertingDriver) -> None:
    for suffix in ("idx", "jif", "qi"):
        driver.disk.create(f"{DIRECTORY}/other.{suffix}")
    assert versions_on_disk(driver.disk, DIRECTORY) == set()

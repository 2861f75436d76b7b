"""The notes of durable lengths: what is kept, what is lowered when, and what a crash leaves of them."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from node.errors import DiskFullError, StorageError
from node.store.disk.length_file import (
    LENGTHS_NAME,
    SUFFIXES,
    FileKey,
    LengthFile,
    file_key,
    read_lengths,
    short_files,
)
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.formats.record import HEADER_BYTES

DIRECTORY = "/vhost"
PATH = f"{DIRECTORY}/{LENGTHS_NAME}"
SLOT_BYTES = 32
FIRST, SECOND = FileKey(1, 7, 0), FileKey(2, 7, 0)


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir(DIRECTORY)
    return disk


def noted(disk: SimulatedDisk) -> dict[FileKey, int]:
    """What a start would read."""
    found: dict[FileKey, int] = {}
    for path, length in read_lengths(disk, DIRECTORY).lengths.items():
        key = file_key(path.removeprefix(DIRECTORY + "/"))
        assert key is not None
        found[key] = length
    return found


def noted_after_crash(disk: SimulatedDisk) -> dict[FileKey, int]:
    twin = disk.twin()
    twin.crash(CrashStyle.DROP, random.Random(0))
    return noted(twin)


def with_synced_notes(disk: SimulatedDisk, lengths: Mapping[FileKey, int]) -> LengthFile:
    notes = LengthFile(disk, DIRECTORY)
    for key, length in lengths.items():
        notes.raise_to(key, length)
    assert notes.write() is notes
    notes.sync()
    return notes


def test_what_is_noted_already_is_not_written_again(disk: SimulatedDisk) -> None:
    notes = with_synced_notes(disk, {FIRST: 100})
    before = disk.operations
    for length in (100, 99, 0):
        notes.raise_to(FIRST, length)
        assert not notes.has_changes
    assert notes.write() is None
    assert disk.operations == before
    assert noted(disk) == {FIRST: 100}


@pytest.fixture(params=["its own notes", "notes that it found"])
def first_at_100(request: pytest.FixtureRequest, disk: SimulatedDisk) -> LengthFile:
    """A process that has noted a length durably, or one that has written nothing yet."""
    notes = with_synced_notes(disk, {FIRST: 100})
    return notes if request.param == "its own notes" else LengthFile(disk, DIRECTORY)


@pytest.mark.parametrize(
    "path",
    [
        "queues/7/3.qi",
        "queues/7/3.qs",
        "queues/7/3.jif",
        "queues/7/3.idx",
        "queues/7/seq.bounds",
        "msg_store_persistent/12.rdq",
    ],
)
def test_every_store_file_has_a_key_that_leads_back_to_it(path: str) -> None:
    key = file_key(path)
    assert key is not None
    assert key.path == path


@pytest.mark.parametrize(
    "path",
    [
        "vhost.json",
        "queues/7/queue.json",
        "queues/7/3.idx.tmp",
        "queues/7/x.qi",
        "queues/x/3.qi",
        "queues/7/quarantine/3.qi",
        "queues/7/0.rdq",
        "queues/7/other.bounds",
        "7/3.qi",
        "deleting/7/3.qi",
        "msg_store_transient/0.rdq",
        "msg_store_persistent/x.rdq",
        "msg_store_persistent/0.rdq.tmp",
    ],
)
def test_other_files_have_none(path: str) -> None:
    assert file_key(path) is None


def test_what_was_written_and_synced_survives_a_crash_and_what_was_not_does_not(disk: SimulatedDisk) -> None:
    notes = LengthFile(disk, DIRECTORY)
    notes.raise_to(FIRST, 100)
    assert notes.write() is notes
    notes.sync()
    notes.raise_to(FIRST, 200)
    notes.raise_to(SECOND, 50)
    notes.write()
    assert noted(disk) == {FIRST: 200, SECOND: 50}
    assert noted_after_crash(disk) == {FIRST: 100}
    notes.check_invariants()


def test_neighbours_are_written_at_once(disk: SimulatedDisk) -> None:
    keys = [FileKey(1, 7, number) for number in range(6)]
    notes = with_synced_notes(disk, dict.fromkeys(keys, 100))
    for key in keys[:2] + keys[3:]:
        notes.raise_to(key, 200)
    before = disk.operations
    notes.write()
    assert disk.operations == before + 2
    assert noted(disk) == dict.fromkeys(keys, 200) | {keys[2]: 100}


def test_a_note_is_only_raised_by_what_was_synced(disk: SimulatedDisk) -> None:
    notes = LengthFile(disk, DIRECTORY)
    notes.raise_to(FIRST, 100)
    notes.write()
    notes.raise_to(FIRST, 60)
    assert notes.write() is None
    assert noted(disk) == {FIRST: 100}


def test_lowering_is_written_at_once_and_durable_with_the_next_sync(
    disk: SimulatedDisk, first_at_100: LengthFile
) -> None:
    notes = first_at_100
    notes.lower(FIRST, 40)
    assert noted(disk) == {FIRST: 40}
    assert noted_after_crash(disk) == {FIRST: 100}
    notes.sync()
    assert noted_after_crash(disk) == {FIRST: 40}


def test_lowering_for_good_syncs_once_and_only_if_a_crash_could_bring_more_back(
    disk: SimulatedDisk, first_at_100: LengthFile
) -> None:
    notes = first_at_100
    notes.lower(FIRST, 40)
    notes.lower_for_good(FIRST, 40)
    assert noted_after_crash(disk) == {FIRST: 40}
    before = disk.operations
    notes.lower_for_good(FIRST, 40)
    notes.lower_for_good(SECOND, 0)
    assert disk.operations == before


def test_a_lower_note_that_cannot_be_written_is_not_forgotten(disk: SimulatedDisk, first_at_100: LengthFile) -> None:
    notes = first_at_100
    disk.fail_writes = PATH
    with pytest.raises(StorageError):
        notes.lower(FIRST, 40)
    disk.fail_writes = None
    notes.check_invariants()
    assert notes.write() is notes
    assert noted(disk) == {FIRST: 40}


def test_a_higher_note_under_way_counts_until_the_lower_one_is_synced(
    disk: SimulatedDisk, first_at_100: LengthFile
) -> None:
    """100 is durable, 200 was written and may be; then 150: a crash may find any of the three."""
    notes = first_at_100
    notes.raise_to(FIRST, 200)
    notes.write()
    notes.lower(FIRST, 150)
    before = disk.operations
    notes.lower_for_good(FIRST, 150)
    assert disk.operations > before
    assert noted_after_crash(disk) == {FIRST: 150}
    notes.check_invariants()


def test_a_file_that_is_gone_gives_its_slot_to_another_when_that_is_durable(
    disk: SimulatedDisk, first_at_100: LengthFile
) -> None:
    notes = first_at_100
    notes.forget(FIRST)
    notes.write()
    notes.raise_to(SECOND, 50)
    notes.write()
    # Not durable yet: SECOND has a slot of its own, or a crash could find neither.
    assert len(disk.snapshot()[PATH]) == HEADER_BYTES + 2 * SLOT_BYTES
    notes.sync()
    third, fourth = FileKey(1, 8, 0), FileKey(1, 9, 0)
    notes.raise_to(third, 1)
    notes.write()
    assert len(disk.snapshot()[PATH]) == HEADER_BYTES + 2 * SLOT_BYTES
    notes.raise_to(fourth, 2)
    notes.write()
    assert noted(disk) == {SECOND: 50, third: 1, fourth: 2}
    notes.check_invariants()


def test_a_file_that_comes_and_goes_between_two_writes_takes_no_slot(disk: SimulatedDisk) -> None:
    notes = LengthFile(disk, DIRECTORY)
    notes.raise_to(FIRST, 100)
    notes.forget(FIRST)
    notes.write()
    assert disk.snapshot() == {}
    notes.check_invariants()


def test_a_file_that_comes_again_keeps_its_slot(disk: SimulatedDisk) -> None:
    notes = LengthFile(disk, DIRECTORY)
    notes.raise_to(FIRST, 100)
    notes.write()
    notes.forget(FIRST)
    notes.write()
    notes.raise_to(FIRST, 30)
    notes.sync()
    notes.write()
    notes.check_invariants()
    assert noted(disk) == {FIRST: 30}
    assert len(disk.snapshot()[PATH]) == HEADER_BYTES + SLOT_BYTES


def test_a_full_disk_loses_no_change(disk: SimulatedDisk) -> None:
    notes = LengthFile(disk, DIRECTORY)
    notes.raise_to(FIRST, 100)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(DiskFullError):
        notes.write()
    disk.capacity_bytes += HEADER_BYTES + SLOT_BYTES
    notes.raise_to(SECOND, 50)
    with pytest.raises(DiskFullError):
        notes.write()
    notes.check_invariants()
    disk.capacity_bytes += SLOT_BYTES
    notes.write()
    assert noted(disk) == {FIRST: 100, SECOND: 50}


def test_a_sync_in_the_middle_of_a_write_makes_nothing_of_it_durable(
    disk: SimulatedDisk, first_at_100: LengthFile
) -> None:
    """The other thread may sync between two slots of one write."""
    notes = first_at_100
    notes.forget(FIRST)

    def sync_first() -> None:
        disk.on_operation = None
        notes.sync()

    disk.on_operation = sync_first
    notes.write()
    notes.lower_for_good(FIRST, 0)
    assert noted_after_crash(disk) == {}


def test_the_next_start_reads_it_and_syncs_what_it_read(disk: SimulatedDisk) -> None:
    notes = with_synced_notes(disk, {FIRST: 100})
    notes.lower(FIRST, 40)
    # A process dies, the system does not: what it wrote is there, and not durable.
    again = LengthFile(disk, DIRECTORY)
    assert again.lengths == {f"{DIRECTORY}/queues/7/0.qi": 40}
    assert noted_after_crash(disk) == {FIRST: 40}
    again.raise_to(SECOND, 5)
    again.close()
    assert noted_after_crash(disk) == {FIRST: 40, SECOND: 5}


def three_notes(disk: SimulatedDisk) -> dict[FileKey, int]:
    notes = LengthFile(disk, DIRECTORY)
    for number in range(3):
        notes.raise_to(FileKey(number + 1, 7, number), 100 + number)
    notes.close()
    return noted(disk)


def test_every_flipped_bit_is_noticed_and_costs_one_note_at_most(disk: SimulatedDisk) -> None:
    whole = three_notes(disk)
    assert len(whole) == 3
    for offset in range(len(disk.snapshot()[PATH])):
        twin = disk.twin()
        twin.flip_bit(PATH, offset, offset % 8)
        ((begin, _),) = read_lengths(twin, DIRECTORY).problems
        assert begin == (0 if offset < HEADER_BYTES else offset - offset % SLOT_BYTES), f"bit of byte {offset}"
        found = noted(twin)
        assert found.items() <= whole.items()
        assert len(found) >= 2
        notes = LengthFile(twin, DIRECTORY)
        assert notes.unreadable == 1
        notes.check_invariants()
        assert not read_lengths(twin, DIRECTORY).problems, "written anew"


def test_a_note_in_another_slot_is_not_believed(disk: SimulatedDisk) -> None:
    three_notes(disk)
    content = disk.snapshot()[PATH]
    first, second, third = (HEADER_BYTES + slot * SLOT_BYTES for slot in range(3))
    disk.open(PATH).pwrite(content[second:third] + content[first:second], first)
    assert noted(disk).keys() == {FileKey(3, 7, 2)}
    assert LengthFile(disk, DIRECTORY).unreadable == 2


def test_every_cut_is_noticed(disk: SimulatedDisk) -> None:
    whole = three_notes(disk)
    for size in range(len(disk.snapshot()[PATH])):
        twin = disk.twin()
        twin.open(PATH).truncate(size)
        assert read_lengths(twin, DIRECTORY).problems, f"cut to {size}"
        assert noted(twin).items() <= whole.items()
        notes = LengthFile(twin, DIRECTORY)
        assert notes.unreadable == 1 or size >= HEADER_BYTES, "of slots that no header speaks of none is missing"
        assert notes.unreadable
        notes.check_invariants()


def test_a_torn_note_is_lost_and_nothing_else(disk: SimulatedDisk) -> None:
    three_notes(disk)
    for seed in range(40):
        twin = disk.twin()
        notes = LengthFile(twin, DIRECTORY)
        notes.raise_to(FileKey(1, 7, 0), 5000)
        notes.write()
        twin.crash(CrashStyle.TEAR, random.Random(seed))
        found = noted(twin)
        assert {number: found[FileKey(number + 1, 7, number)] for number in (1, 2)} == {1: 101, 2: 102}
        assert found.get(FileKey(1, 7, 0), 5000) in (100, 5000)


def test_short_files_are_those_with_less_than_was_noted(disk: SimulatedDisk) -> None:
    directory = f"{DIRECTORY}/queues/7"
    disk.mkdir(directory)
    for name, size in (("0.qi", 10), ("0.qs", 9), ("1.qi", 11)):
        disk.create(f"{directory}/{name}").pwrite(bytes(size), 0)
    lengths = {f"{directory}/{name}": 10 for name in ("0.qi", "0.qs", "1.qi", "missing.qi")}
    (short,) = short_files(disk, lengths)
    assert str(short) == f"{directory}/0.qs: 1 durable bytes are missing at the end, 9 of 10 are left"


def test_the_order_of_kinds_is_part_of_the_format() -> None:
    assert SUFFIXES == (".qi", ".qs", ".jif", ".idx", ".bounds", ".rdq")

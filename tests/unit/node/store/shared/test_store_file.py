"""A walk through a store file has the system fetch what it is going to read, so that no step waits for the disk."""

from __future__ import annotations

from itertools import pairwise
from zlib import crc32

import pytest

from node.store.disk.simulated import SimulatedDisk, SimulatedFile
from node.store.formats.record import (
    HEADER_BYTES,
    KIND_MESSAGE,
    RECORD_HEADER_BYTES,
    Damage,
    pack_hole,
    pack_store_record_header,
)
from node.store.shared.location_table import LocationTable
from node.store.shared.store_file import STEPS_AHEAD, WALK_PIECE_BYTES, ChainWalk, scan_store_file

Range = tuple[int, int]


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """What the disk was told of."""
    ranges: list[Range] = []
    monkeypatch.setattr(SimulatedFile, "will_read", lambda _, size, offset: ranges.append((offset, offset + size)))
    return ranges


def file_of_holes(hole_bytes: int, count: int) -> tuple[SimulatedFile, int]:
    """The file and its end."""
    disk = SimulatedDisk()
    disk.mkdir("/store")
    file = disk.create("/store/1.rdq")
    assert isinstance(file, SimulatedFile)
    for number in range(count):
        file.pwrite(pack_hole(hole_bytes), HEADER_BYTES + number * hole_bytes)
    end = HEADER_BYTES + count * hole_bytes
    file.truncate(end)
    return file, end


def test_a_scan_reads_neighbouring_records_with_one_call() -> None:
    file, end = file_of_holes(hole_bytes=100, count=2000)
    reads: list[int] = []
    assert list(scan_store_file(file, on_read=reads.append)) == []
    assert len(reads) == 1
    assert reads[0] >= end - HEADER_BYTES


def test_every_byte_is_announced_once_and_some_steps_ahead(announced: list[Range]) -> None:
    file, end = file_of_holes(hole_bytes=100, count=200)
    walk = ChainWalk(LocationTable(), 1, end)
    until = []
    while not walk.is_done:
        while not walk.will_step(file, 1000):
            pass
        until.append(announced[-1][1])
        walk.step(file, 1000, 1000)
    assert announced[0][0] == HEADER_BYTES
    assert all(start < end for start, end in announced), "nothing means everything to the system"
    assert all(before[1] == after[0] for before, after in pairwise(announced))
    assert until == [min(HEADER_BYTES + (step + STEPS_AHEAD) * 1000, end) for step in range(20)]


def test_the_first_step_waits_until_some_are_announced_a_few_at_a_time(announced: list[Range]) -> None:
    file, end = file_of_holes(hole_bytes=100, count=200)
    walk = ChainWalk(LocationTable(), 1, end)
    said = [walk.will_step(file, 1000) for _ in range(3)]
    assert said == [False, False, True]
    assert [stop - start for start, stop in announced] == [4000, 4000, 4000]
    walk.step(file, 1000, 1000)
    assert walk.will_step(file, 1000), "the others go on"
    assert announced[3:] == [(HEADER_BYTES + 12_000, HEADER_BYTES + 13_000)]


def test_a_file_that_is_announced_with_one_call_is_not_read_at_once_either(announced: list[Range]) -> None:
    file, end = file_of_holes(hole_bytes=100, count=20)
    walk = ChainWalk(LocationTable(), 1, end)
    assert [walk.will_step(file, 1000) for _ in range(2)] == [False, True]
    assert announced == [(HEADER_BYTES, end)]


def test_of_big_records_no_more_is_fetched_than_before_their_size_is_known(announced: list[Range]) -> None:
    file, end = file_of_holes(hole_bytes=2 * WALK_PIECE_BYTES, count=50)
    walk = ChainWalk(LocationTable(), 1, end)
    while not walk.will_step(file, 2 * WALK_PIECE_BYTES):
        pass
    before = len(announced)
    while not walk.is_done:
        walk.step(file, 2 * WALK_PIECE_BYTES, 1000)
        assert walk.will_step(file, 2 * WALK_PIECE_BYTES)
    assert len(announced) == before


@pytest.mark.parametrize(
    ("zeros_from", "zeros_to", "is_torn"),
    [
        (12_288, 20_000, True),
        (16_384, 20_000, True),
        (16_384, 19_999, False),
        (16_385, 20_000, False),
        (12_288, 16_384, False),
    ],
    ids=["two pages", "the last page", "not to the end", "a part of a page", "a page within"],
)
def test_a_record_of_which_the_last_pages_never_came_is_unfinished(
    zeros_from: int, zeros_to: int, *, is_torn: bool
) -> None:
    disk = SimulatedDisk()
    disk.mkdir("/store")
    file = disk.create("/store/1.rdq")
    file.truncate(HEADER_BYTES)
    envelope = bytes(range(1, 256)) * 40
    envelopes = [envelope[: 10_000 - RECORD_HEADER_BYTES - HEADER_BYTES], envelope[: 10_000 - RECORD_HEADER_BYTES]]
    for each in envelopes:
        file.append(pack_store_record_header(KIND_MESSAGE, len(each), crc32(each)) + each)
    assert file.size == 20_000
    file.pwrite(bytes(zeros_to - zeros_from), zeros_from)
    whole, damage = scan_store_file(file)
    assert whole.offset == HEADER_BYTES
    assert damage == Damage(10_000, 10_000, is_torn)

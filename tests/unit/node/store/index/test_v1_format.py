"""Records of version 1: what is written, what a scan finds, what counts as torn and what as damage."""

from __future__ import annotations

import pytest

from node.store.formats.record import HEADER_BYTES, JOURNAL_FORMAT, SEGMENT_FORMAT
from node.store.index.v1.format import (
    KIND_ACK,
    KIND_EMBEDDED,
    KIND_SHARED,
    RECORD_BYTES,
    SHARED_PAYLOAD,
    BadPiece,
    Publish,
    Record,
    ack_count,
    checksum_seed,
    describe,
    files_of,
    pack_acks,
    pack_publishes,
    place_offset,
    place_size,
    scan_records,
)
from tests.support.messages import make_message

SEED = checksum_seed(JOURNAL_FORMAT, 3)
SMALL = make_message(1, body=b"abc")
BIG = make_message(2, body=bytes(100), persistent=False)


def journal() -> bytes:
    """An ack of two positions, a small message, a big one."""
    parts = [JOURNAL_FORMAT.header(3, 7)]
    offset = pack_acks([(5, 2)], SEED, HEADER_BYTES, parts)
    publishes = [
        Publish(8, KIND_EMBEDDED, True, SMALL.envelope()),
        Publish(9, KIND_SHARED, False, SHARED_PAYLOAD.pack(BIG.msg_id, 100)),
    ]
    pack_publishes(publishes, SEED, offset, parts)
    return b"".join(parts)


def test_records_are_found_as_they_were_written() -> None:
    data = journal()
    ack, small, big = scan_records(data, SEED)
    assert isinstance(ack, Record)
    assert isinstance(small, Record)
    assert isinstance(big, Record)
    assert (ack.kind, ack.seq_id, ack_count(data, ack.offset)) == (KIND_ACK, 5, 2)
    assert (small.seq_id, small.persistent, describe(data, small.offset, False)) == (8, True, (SMALL.msg_id, 3))
    assert (big.seq_id, big.persistent, describe(data, big.offset, True)) == (9, False, (BIG.msg_id, 100))
    assert data[small.offset + RECORD_BYTES : small.end] == SMALL.envelope()
    assert big.end == len(data)
    assert (place_offset(big.place), place_size(big.place)) == (big.offset, big.end - big.offset)


def test_a_record_is_readable_only_in_its_place_of_its_file() -> None:
    data = journal()
    assert not [f for f in scan_records(data, checksum_seed(JOURNAL_FORMAT, 4)) if isinstance(f, Record)]
    assert not [f for f in scan_records(data, checksum_seed(SEGMENT_FORMAT, 3)) if isinstance(f, Record)]
    moved = data[:HEADER_BYTES] + b"x" + data[HEADER_BYTES:]
    assert not [f for f in scan_records(moved, SEED) if isinstance(f, Record)]


def test_behind_damage_the_scan_finds_its_way_again() -> None:
    data = bytearray(journal())
    ack, small, big = scan_records(bytes(data), SEED)
    assert isinstance(small, Record)
    for offset in range(small.offset, small.end):
        damaged = data.copy()
        damaged[offset] ^= 0x10
        found = list(scan_records(bytes(damaged), SEED))
        assert found == [ack, BadPiece(small.offset, small.end, torn=False), big]


@pytest.mark.parametrize("cut_bytes", range(1, RECORD_BYTES + SHARED_PAYLOAD.size))
def test_an_unfinished_write_at_the_end_is_torn(cut_bytes: int) -> None:
    data = journal()
    *whole, last = scan_records(data, SEED)
    assert isinstance(last, Record)
    assert list(scan_records(data[:-cut_bytes], SEED)) == [
        *whole,
        BadPiece(last.offset, last.end - cut_bytes, torn=True),
    ]


def test_zeros_to_the_end_are_the_end() -> None:
    data = journal()
    assert list(scan_records(data + bytes(5000), SEED))[-1] == BadPiece(len(data), len(data) + 5000, torn=True)


@pytest.mark.parametrize(("page_start", "torn"), [(4096, True), (4095, False), (4097, False)])
def test_a_page_that_was_never_written_makes_a_record_torn(page_start: int, torn: bool) -> None:
    parts = [JOURNAL_FORMAT.header(3, 7)]
    pack_publishes([Publish(at, KIND_EMBEDDED, True, b"x" * 9000) for at in (1, 2)], SEED, HEADER_BYTES, parts)
    data = b"".join(parts)
    first, second = scan_records(data, SEED)
    assert isinstance(first, Record)
    holed = data[:page_start] + bytes(4096) + data[page_start + 4096 :]
    assert list(scan_records(holed, SEED)) == [BadPiece(first.offset, first.end, torn), second]


def test_a_hole_is_torn_and_what_is_behind_it_counts() -> None:
    data = journal()
    ack, small, big = scan_records(data, SEED)
    assert isinstance(small, Record)
    holed = data[: small.offset] + bytes(small.end - small.offset) + data[small.end :]
    assert list(scan_records(holed, SEED)) == [ack, BadPiece(small.offset, small.end, torn=True), big]


def test_a_wrong_checksum_at_the_end_is_damage() -> None:
    data = bytearray(journal())
    data[-1] ^= 1
    *_, last = scan_records(bytes(data), SEED)
    assert isinstance(last, BadPiece)
    assert not last.torn


def test_files_are_found_by_number() -> None:
    names = ["10.idx", "9.idx", "x.idx", "9.jif", "9.idx.tmp", "queue.json"]
    assert files_of(names, SEGMENT_FORMAT) == [9, 10]
    assert files_of(names, JOURNAL_FORMAT) == [9]


@pytest.mark.parametrize("cut_bytes", [0, 5])
def test_what_follows_a_record_can_be_scanned_alone(cut_bytes: int) -> None:
    """Offsets are those of the file; damage in the middle and an unfinished end are told as in the whole."""
    data = journal()
    ack, small, _ = scan_records(data, SEED)
    assert isinstance(ack, Record)
    assert isinstance(small, Record)
    holed = data[: small.offset] + bytes(small.end - small.offset) + data[small.end : len(data) - cut_bytes]
    first, *rest = scan_records(holed, SEED)
    assert first == ack
    assert rest[0] == BadPiece(small.offset, len(holed) if cut_bytes else small.end, torn=True)
    assert list(scan_records(holed[ack.end :], SEED, ack.end, ack.end)) == rest

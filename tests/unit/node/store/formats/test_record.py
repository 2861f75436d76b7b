"""The formats, by their bytes; torn and corrupt told apart."""

from __future__ import annotations

import pytest

from node.store.formats.record import (
    HEADER_BYTES,
    INDEX_FORMAT,
    KIND_HOLE,
    KIND_MESSAGE,
    QUEUE_STORE_FORMAT,
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    SLOT_BYTES,
    Damage,
    ScannedRecord,
    Slot,
    is_torn_record,
    is_torn_slot,
    pack_hole,
    pack_holes_note,
    pack_record,
    pack_slot,
    pack_store_record_header,
    scan_records,
    unpack_holes_note,
    unpack_record,
    unpack_slot,
    unpack_store_record_header,
)

SLOT = Slot(True, False, b"0123456789abcdef", 64, 40, 1000)


def test_header() -> None:
    header = INDEX_FORMAT.header(3, 9)
    assert len(header) == HEADER_BYTES
    assert header[:5] == b"WRQI\x02"
    assert INDEX_FORMAT.problem(header + b"rest", 3, 9) == ""
    assert "another file's" in INDEX_FORMAT.problem(header, 4, 9)
    assert "another file's" in QUEUE_STORE_FORMAT.problem(header, 3, 9)
    assert "damaged" in INDEX_FORMAT.problem(header[:20] + bytes(44) + b"a slot", 3, 9)
    assert "damaged" in INDEX_FORMAT.problem(b"X" + header[1:], 3, 9)
    assert "never written" in INDEX_FORMAT.problem(bytes(200), 3, 9)


def test_a_header_that_a_crash_cut_short_is_no_damage() -> None:
    """Nothing stands behind it, so nothing that was synced is lost with it."""
    header = INDEX_FORMAT.header(3, 9)
    for written in range(HEADER_BYTES):
        assert "never written" in INDEX_FORMAT.problem(header[:written], 3, 9)
        assert "never written" in INDEX_FORMAT.problem(header[:written] + bytes(200), 3, 9)


def test_slot_bytes() -> None:
    data = pack_slot(5, SLOT)
    assert len(data) == SLOT_BYTES
    assert data[:28].hex() == "01010028" + b"0123456789abcdef".hex() + "00000040" + "000003e8"
    assert unpack_slot(5, data) == SLOT


def test_a_slot_in_the_wrong_place_is_refused() -> None:
    assert unpack_slot(6, pack_slot(5, SLOT)) is None
    assert unpack_slot(5 + 4096, pack_slot(5, SLOT)) is None


def test_any_flipped_bit_of_a_slot_is_seen() -> None:
    data = pack_slot(5, SLOT)
    for bit in range(SLOT_BYTES * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert unpack_slot(5, bytes(damaged)) is None


def test_a_slot_cut_anywhere_is_torn_and_not_damaged() -> None:
    data = pack_slot(5, SLOT)
    for written in range(1, SLOT_BYTES):
        assert is_torn_slot(5, data[:written] + bytes(SLOT_BYTES - written)), f"{written} bytes were written"


def test_a_slot_with_a_wrong_checksum_is_damaged_and_not_torn() -> None:
    data = pack_slot(5, SLOT)
    assert not is_torn_slot(5, data[:-1] + bytes((data[-1] ^ 1,)))
    assert not is_torn_slot(6, data)


def test_record() -> None:
    data = b"...." + pack_record(7, b"envelope")
    assert unpack_record(data, 4, 7) == b"envelope"
    assert unpack_record(data, 4, 8) is None
    assert unpack_record(data[:-1], 4, 7) is None
    assert unpack_record(data, 4 + RECORD_HEADER_BYTES, 7) is None


@pytest.mark.parametrize(
    ("damage", "torn"),
    [
        (lambda data: data[:-1], True),
        (lambda data: bytes(len(data)), True),
        (lambda data: data[:4096] + bytes(4096) + data[8192:], True),
        (lambda data: data[:20] + b"?" + data[21:], False),
        (lambda data: data[:5000] + bytes(10) + data[5010:], False),
    ],
)
def test_torn_records_are_short_or_have_a_hole(damage: object, torn: bool) -> None:
    assert callable(damage)
    data = damage(pack_record(1, b"x" * 9000))
    assert unpack_record(data, 0, 1) is None
    assert is_torn_record(data, 0, 9000) == torn


def test_scan_resumes_behind_damage() -> None:
    first, second, third = (pack_record(0, text) for text in (b"first", b"second", b"third"))
    damaged = bytearray(second)
    damaged[-1] ^= 1
    data = b"HH" + first + bytes(damaged) + third
    at = 2 + len(first)
    assert list(scan_records(data, 2)) == [
        ScannedRecord(2, b"first"),
        Damage(at, len(second), torn=False),
        ScannedRecord(at + len(second), b"third"),
    ]


def test_what_only_looks_like_a_record_is_passed_over() -> None:
    """A message may contain what marks a record, and so may what is left of one."""
    first, second, third = (pack_record(0, bytes((RECORD_MARK, 0)) * 20), pack_record(0, b"two"), pack_record(0, b"3"))
    damaged = first[:-1] + b"!"
    found = list(scan_records(damaged + second + third, 0))
    assert found[0] == Damage(0, len(first), torn=False)
    assert len(found) == 3


def test_scan_tells_a_torn_tail_from_a_damaged_last_record() -> None:
    first, second = pack_record(0, b"first"), pack_record(0, b"second")
    for cut in range(1, len(second)):
        assert list(scan_records(first + second[:cut], 0))[1:] == [Damage(len(first), cut, torn=True)]
    damaged = second[:-1] + b"!"
    assert list(scan_records(first + damaged, 0))[1:] == [Damage(len(first), len(second), torn=False)]


def test_scan_passes_a_hole() -> None:
    record = pack_record(0, b"record")
    assert list(scan_records(bytes(100) + record, 0)) == [Damage(0, 100, torn=True), ScannedRecord(100, b"record")]


def test_every_flipped_bit_of_a_store_record_header_is_seen() -> None:
    """The length above all: a record must not look cut off, or longer than it is."""
    for header in (pack_store_record_header(KIND_MESSAGE, 5000, 0x12345678), pack_hole(4096)):
        assert unpack_store_record_header(header, 0) is not None
        for bit in range(8 * len(header)):
            flipped = bytearray(header)
            flipped[bit // 8] ^= 1 << bit % 8
            assert unpack_store_record_header(bytes(flipped), 0) is None
        for size in range(len(header)):
            assert unpack_store_record_header(header[:size], 0) is None


def test_store_record_header_bytes() -> None:
    header = pack_store_record_header(KIND_MESSAGE, 5, 0xAABBCCDD)
    assert header[:8].hex() == "00000005aabbccdd"
    assert header[10:].hex() == "a701"
    assert unpack_store_record_header(b"xx" + header, 2) == (KIND_MESSAGE, 5, 0xAABBCCDD)
    hole = pack_hole(12 + 5)
    assert (hole[:8].hex(), hole[10:].hex()) == ("0000000500000000", "a702"), "as earlier releases wrote it"
    assert unpack_store_record_header(hole, 0) == (KIND_HOLE, 5, 0)


def test_a_note_of_holes_is_whole_or_not_there() -> None:
    note = pack_holes_note(7, [64, 200, 300, 4000])
    assert unpack_holes_note(7, note) == [(64, 200), (300, 4000)]
    assert unpack_holes_note(8, note) is None
    for size in range(len(note)):
        assert unpack_holes_note(7, note[:size]) is None
    for offset in range(len(note)):
        assert unpack_holes_note(7, note[:offset] + bytes((note[offset] ^ 1,)) + note[offset + 1 :]) is None

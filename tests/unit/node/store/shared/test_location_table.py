"""The location table: a dict's behaviour at a tenth of its memory, and no operation that takes long."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from node.ids import MsgId, OriginId
from node.store.shared.location_table import ENTRY_BYTES, PAGE_ENTRIES, Location, LocationTable
from tests.support.amounts import slow
from tests.support.messages import msg_id_of

#: Ten channels publish in turn, as ids look in real life.
ORIGINS = [OriginId(random.Random(number).randbytes(8)) for number in range(10)]
#: The promise of the module text.
BYTES_PER_MESSAGE_MAX = 44


def table_of(count: int) -> LocationTable:
    table = LocationTable()
    for counter in range(count):
        table.add(msg_id_of(counter, ORIGINS[counter % 10]), 1, counter, 5000, 1)
    return table


def test_an_entry_is_found_moved_counted_and_released() -> None:
    table = LocationTable()
    msg_id = msg_id_of(1)
    table.add(msg_id, 3, 64, 5000, 1)
    assert table.get(msg_id) == Location(file=3, offset=64, size=5000, references=1)
    assert table.retain(msg_id)
    assert table.release(msg_id) is None
    assert table.move(msg_id, (3, 65), (4, 0)) == 0, "it is not there"
    assert table.move(msg_id, (3, 64), (4, 128)) == 5000
    assert table.is_at(msg_id, 4, 128)
    assert table.release(msg_id) == Location(4, 128, 5000, 1)
    assert msg_id not in table
    assert table.get(msg_id) is None
    assert not table.retain(msg_id)
    with pytest.raises(KeyError):
        table.release(msg_id)


def test_it_behaves_as_a_dict_does() -> None:
    rng = random.Random(1)
    table = LocationTable()
    model: dict[bytes, list[int]] = {}
    for step in range(20_000):
        # It grows, shrinks to almost nothing, and grows again.
        grows = (step // 4000) % 2 == 0
        msg_id = msg_id_of(rng.randrange(3000), ORIGINS[rng.randrange(10)])
        fields = model.get(msg_id)
        if fields is None:
            assert msg_id not in table
            if grows or rng.random() < 0.2:
                model[msg_id] = [step, step * 2, step + 1, 1]
                table.add(msg_id, *model[msg_id])
        elif rng.random() < 0.3:
            fields[3] += 1
            assert table.retain(msg_id)
        else:
            fields[3] -= 1
            released = table.release(msg_id)
            assert (released is not None) == (not fields[3])
            if not fields[3]:
                del model[msg_id]
    table.check_invariants()
    assert dict(table.items()) == {msg_id: Location(*fields) for msg_id, fields in model.items()}
    for remaining in list(model):
        while table.release(remaining) is None:
            pass
    table.check_invariants()
    assert len(table) == 0


def test_bytes_of_two_neighbours_are_not_mistaken_for_an_id() -> None:
    """The end of an entry and the beginning of the next may spell an id that is in the same page."""
    table = LocationTable()
    first = msg_id_of(1)
    table.add(first, 0, 0x01020304, 0x05060708, 0x090A0B0C)
    spelled = MsgId(bytes.fromhex("000000000102030405060708090a0b0c"))
    assert spelled not in table
    assert table.get(spelled) is None
    assert not table.retain(spelled)
    assert not table.is_at(spelled, 0x01020304, 0x05060708)
    assert table.move(spelled, (0x01020304, 0x05060708), (7, 8)) == 0
    with pytest.raises(KeyError):
        table.release(spelled)
    table.add(spelled, 6, 7, 9, 1)
    assert spelled in table
    assert table.move(spelled, (6, 7), (7, 8)) == 9
    assert table.is_at(spelled, 7, 8)
    assert table.retain(spelled)
    assert table.get(spelled) == Location(7, 8, 9, 2)
    assert table.release(spelled) is None
    assert table.release(spelled) == Location(7, 8, 9, 1)
    assert table.get(first) == Location(0, 0x01020304, 0x05060708, 0x090A0B0C)


@pytest.mark.parametrize("count", [8_400, slow(20_000), slow(33_000), slow(50_000)])
def test_a_message_costs_forty_bytes(count: int) -> None:
    ids = [msg_id_of(counter, ORIGINS[counter % 10]) for counter in range(count)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table = LocationTable()
        for msg_id in ids:
            table.add(msg_id, 1, 2, 3, 1)
        measured = tracemalloc.get_traced_memory()[0] - before
        assert measured / count < BYTES_PER_MESSAGE_MAX
        for msg_id in ids[: count * 19 // 20]:
            table.release(msg_id)
        assert tracemalloc.get_traced_memory()[0] - before < measured / 10, "a purge gives memory back"
    finally:
        tracemalloc.stop()


def test_no_operation_moves_more_than_one_page() -> None:
    """Pages stay small, whatever the ids: growing and searching cost the same at any size."""
    table = table_of(60_000)
    assert max(len(page) for page in table._pages) <= 4 * PAGE_ENTRIES * ENTRY_BYTES


def test_a_dump_brings_the_same_table_back() -> None:
    table = table_of(5000)
    dump = b"".join(table.dump())
    assert dict(load(dump).items()) == dict(table.items())
    load(dump).check_invariants()
    load(b"".join(LocationTable().dump())).check_invariants()
    for wrong in (dump[:-1], dump[:12], b"", dump[:7] + bytes((dump[7] ^ 1,)) + dump[8:]):
        with pytest.raises(ValueError, match=r"cut off|does not fill"):
            load(wrong)


def load(dump: bytes) -> LocationTable:
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        data = dump[position : position + size]
        position += size
        if len(data) < size:
            raise ValueError("cut off")
        return data

    table = LocationTable()
    table.load(read)
    return table

"""The tables of records: how much of them is made, or let go of, in one turn of the loop."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from cluster.metadata.masterships import RECORDS_PER_PIECE, Masterships, RecordTables
from cluster.metadata.records import MastershipRecord
from node.ids import Epoch, NodeName, QueueId
from node.pieces import Pieces

_Value = TypeVar("_Value")


def tables_of(count: int, ends: list[None]) -> RecordTables:
    """Of so many queues on n1, as from a snapshot; adds to ``ends`` for each piece that another follows."""
    n1 = NodeName("n1")
    records = [MastershipRecord(QueueId(number), Epoch(1), n1, complete=(n1,)) for number in range(count)]
    since: list[Any] = [(record.queue_id, []) for record in records]
    return counted(RecordTables.read(records, since, [], None), ends)


def counted(pieces: Pieces[_Value], ends: list[None]) -> _Value:
    try:
        while True:
            ends.append(next(pieces))
    except StopIteration as end:
        value: _Value = end.value
        return value


@pytest.mark.parametrize(
    ("count", "full_pieces"),
    [(0, 0), (RECORDS_PER_PIECE - 1, 0), (RECORDS_PER_PIECE, 1), (2 * RECORDS_PER_PIECE - 1, 1)],
)
def test_records_are_read_in_pieces_of_so_many(count: int, full_pieces: int) -> None:
    ends: list[None] = []
    tables = tables_of(count, ends)
    assert len(ends) == 2 * full_pieces, "for the records, and for since when who is a mirror"
    masterships = Masterships()
    masterships.adopt(tables)
    masterships.check_invariants()
    assert len(masterships.records) == masterships.master_count[NodeName("n1")] == count


def test_records_are_let_go_of_in_pieces_of_so_many_until_none_is_left() -> None:
    tables = tables_of(RECORDS_PER_PIECE + 1, [])
    left = [(len(tables.records), len(tables.mirror_since)) for _ in tables.dissolve()]
    whole = RECORDS_PER_PIECE + 1
    assert left == [(1, whole), (0, whole), (0, 1), (0, 0)]

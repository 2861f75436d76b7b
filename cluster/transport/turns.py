"""Work in pieces, one in each turn of the loop."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from node.pieces import Pieces

_T = TypeVar("_T")

#: Rows of a listing that are made, encoded or decoded in one turn: a few milliseconds.
ROWS_PER_TURN = 100


async def in_turns(pieces: Pieces[_T]) -> _T:
    """What the work returns. What fits in one piece takes no further turn."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            value: _T = end.value
            return value
        await asyncio.sleep(0)

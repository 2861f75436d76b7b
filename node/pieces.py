"""Long work of the loop, cut into pieces, so that it can turn between them.

Written as a generator, straight on, like work that nobody interrupts. Each ``yield`` ends a piece that takes a fraction
of a millisecond, or a few at most; whoever has the work goes on with it whenever it likes, and ends with what the
generator returns. Work that also waits for the disk: `node.store.steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

_T = TypeVar("_T")
_Item = TypeVar("_Item")

#: See the module text.
Pieces = Generator[None, None, _T]


def at_once(pieces: Pieces[_T]) -> _T:
    """Do all of it now. Raises what it raises."""
    try:
        while True:
            next(pieces)
    except StopIteration as end:
        value: _T = end.value
        return value


def make_each(make: Callable[[_Item], _T], items: Iterable[_Item], per_piece: int) -> Pieces[list[_T]]:
    """``make`` of each of ``items``, so many in one piece. What is iterated must stay as it is until the end."""
    made: list[_T] = []
    for item in items:
        made.append(make(item))
        if len(made) % per_piece == 0:
            yield
    return made

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


class InTurns:
    """Pieces that are done some in each turn of the loop, until there is none: for work that comes in between, too.

    ``step`` does the next piece, and returns false if there is none. It is not to raise; if it does by mistake, the
    other pieces have their turn all the same. ``call_soon`` as of a loop; ``clock`` (seconds) goes on within a turn of
    it. A turn begins no piece after ``turn_s``, or after ``per_turn``.
    """

    def __init__(
        self,
        step: Callable[[], bool],
        turn_s: float,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        per_turn: int,
    ) -> None:
        self._step = step
        self._turn_s = turn_s
        self._call_soon = call_soon
        self._clock = clock
        self._per_turn = per_turn
        #: A turn is coming, or this is one.
        self.is_under_way = False

    def go_on(self) -> None:
        """There is something to do: begin with it now, unless a turn is coming."""
        if not self.is_under_way:
            self._turn()

    def go_on_soon(self) -> None:
        """As `go_on`, but for whoever is in the midst of something: begin in a turn that is coming."""
        if not self.is_under_way:
            self.is_under_way = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self.is_under_way = True
        end_s = self._clock() + self._turn_s
        left = self._per_turn
        try:
            while self._step():
                left -= 1
                if not left or self._clock() >= end_s:
                    self._call_soon(self._turn)
                    return
        except Exception:
            self._call_soon(self._turn)  # otherwise nothing would ever be done again
            raise
        self.is_under_way = False

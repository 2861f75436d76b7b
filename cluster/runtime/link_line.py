"""Who waits for a link that is full: in one line for each node, so that everybody comes to his turn.

Queues with consumers on the node wait there, and answers that carry a message. Whoever is in front goes on when there
is room. Who comes meanwhile is not served before those in the line, whatever room he finds (`LinkLine.has_others`);
and whoever has not got all he wanted when the link is full again comes behind the others. The lines have their turns
one after the other: one for a fast link, which is never full again, holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from node.ids import NodeName
from node.pieces import InTurns

#: Those who go on have so much of a turn of the loop.
TURN_S = 0.002


class LinkLine:
    """See the top of this module.

    ``is_full``: of the link as it is now; whenever it is no longer, `room_came` is called. The other arguments: see
    `node.pieces.InTurns`.
    """

    def __init__(
        self,
        is_full: Callable[[NodeName], bool],
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        per_turn: int,
    ) -> None:
        self._is_full = is_full
        #: Who waits, in order; no node without.
        self._lines: dict[NodeName, dict[Hashable, Callable[[], None]]] = {}
        #: The one whose first in line goes on just now.
        self._going_on: NodeName | None = None
        self._turns = InTurns(self._next_goes_on, TURN_S, call_soon, clock, per_turn)

    def wait(self, node: NodeName, key: Hashable, go_on: Callable[[], None]) -> None:
        """``key`` is who waits; if he does already he keeps his place. ``go_on`` does not raise."""
        self._lines.setdefault(node, {}).setdefault(key, go_on)
        if not self._is_full(node):
            self._turns.go_on_soon()

    def has_others(self, node: NodeName) -> bool:
        """Somebody waits, and it is not he who asks: it is not his turn."""
        return node in self._lines and node != self._going_on

    def room_came(self, node: NodeName) -> None:
        """The link to this node is full no longer, or it is gone. (Who sees that is in the midst of writing.)"""
        if node in self._lines:
            self._turns.go_on_soon()

    def clear(self) -> None:
        """Whatever they wait for, they want it no more."""
        self._lines.clear()

    def _next_goes_on(self) -> bool:
        for node, line in self._lines.items():
            if not self._is_full(node):
                go_on = line.pop(next(iter(line)))
                del self._lines[node]
                if line:
                    self._lines[node] = line  # behind those for other links, who may find room all the time
                self._going_on = node
                try:
                    go_on()
                finally:
                    self._going_on = None
                return True
        return False

    def check_invariants(self, is_full: Callable[[NodeName], bool]) -> None:
        """``is_full``: of the link as it was when it was last asked for, so that to look changes nothing."""
        assert self._going_on is None, "nobody looks while somebody goes on"
        for node, line in self._lines.items():
            assert line, "a line has somebody in it"
            assert self._turns.is_under_way or is_full(node), "whoever waits has a turn coming, or room will come"

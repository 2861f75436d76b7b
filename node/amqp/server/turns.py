"""How long the connections of a server may work on what they have read before the loop goes on.

A loop reads a readable socket more than once before it looks at anything else: libuv up to 32 times 256 KB, that is
eight megabytes of publishes, or four hundred thousand acks, of one client. Carried out at once, they would keep all the
others waiting, and heartbeats and replication with them, for a tenth of a second and more.

So the connections share `TURN_S` of each iteration of the loop. Whoever finds it used up stops reading its socket, says
what to call, and is called in a later turn, in order of asking. Work is cut into pieces that take about a millisecond
(`node.amqp.codec.READ_LIMIT`, `node.amqp.deliveries.SETTLE_LIMIT`); the last one begun is finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

#: Begin no piece of work after so much of a turn.
TURN_S = 0.002


class InputTurns:
    """``call_soon`` as of a loop: what it is given runs in the next iteration. ``clock`` as of `AmqpServer`."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float]) -> None:
        self._call_soon = call_soon
        self._clock = clock
        #: ``None``: nobody has worked since the last turn ended.
        self._end_s: float | None = None
        self._waiting: deque[Callable[[], None]] = deque()

    def may_go_on(self) -> bool:
        """There is time for another piece of work. The first to ask begins a turn."""
        if self._end_s is None:
            self._end_s = self._clock() + TURN_S
            self._call_soon(self._next)
            return True
        return self._clock() < self._end_s

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` once, in a later turn, when there is time."""
        self.may_go_on()
        self._waiting.append(go_on)

    def _next(self) -> None:
        self._end_s = None
        while self._waiting and self.may_go_on():
            self._waiting.popleft()()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        assert not self._waiting or self._end_s is not None, "whoever waits has a turn coming"

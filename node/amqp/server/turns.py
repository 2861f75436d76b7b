"""How long the connections of a server may work on what they have read before the loop goes on.

A loop reads a readable socket more than once before it looks at anything else: libuv up to 32 times 256 KB, that is
eight megabytes of publishes, or four hundred thousand acks, of one client. Carried out at once, they would keep all the
others waiting, and heartbeats and replication with them, for a tenth of a second and more.

So the connections share `TURN_S` of each iteration of the loop. Whoever finds it used up stops reading its socket, says
what to call, and is called in a later turn, in order of asking. Work is cut into pieces that take about a millisecond
(`node.amqp.codec.READ_LIMIT`, `node.amqp.deliveries.SETTLE_LIMIT`); the last one begun is finished.

A turn has no time at all while the owner of the server must not read, for instance because its process stood still and
does not know yet what it has missed. It is asked once a turn, and is expected to say yes or to stop the server soon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

#: Begin no piece of work after so much of a turn.
TURN_S = 0.002


class InputTurns:
    """``call_soon`` as of a loop: what it is given runs in the next iteration. ``clock`` and ``may_read`` as of
    `AmqpServer`."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        may_read: Callable[[], bool] = lambda: True,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._may_read = may_read
        #: ``None``: nobody has worked since the last turn ended.
        self._end_s: float | None = None
        self._waiting: deque[Callable[[], None]] = deque()

    def may_go_on(self) -> bool:
        """There is time for another piece of work. The first to ask begins a turn."""
        if self._end_s is None:
            is_open = self._may_read()
            self._end_s = self._clock() + TURN_S if is_open else -inf
            self._call_soon(self._next)
            return is_open
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

"""How fast an address may guess passwords.

The first failures cost nothing: a program with an old password in its configuration is told at once. From then on each
attempt from that address, a right one too, waits before it is looked at, longer with every failure; an answer that
came at once for the right password only would tell the guesser to hang up on all others. A minute without a failure
and all is forgotten.

The connection that waits is one in its handshake, of which a listener has a limited number
(`node.amqp.server.listener.HANDSHAKES_MAX`), and nobody else waits for it.
"""

from __future__ import annotations

FAILURES_FREE = 10
DELAY_STEP_S = 0.25
DELAY_MAX_S = 4.0
#: Of the time that a handshake may take: who waits is looked at before it is over.
HANDSHAKE_SHARE_MAX = 0.5
FORGET_AFTER_S = 60.0
#: Addresses remembered; of more the one that failed least recently is forgotten.
ADDRESSES_MAX = 10_000


class LoginThrottle:
    """Of one listener. Times in seconds, monotonic."""

    def __init__(self, handshake_timeout_s: float) -> None:
        self._delay_max_s = min(DELAY_MAX_S, HANDSHAKE_SHARE_MAX * handshake_timeout_s)
        #: By address, least recent failure first: how many, and when the last.
        self._failures: dict[str, tuple[int, float]] = {}

    def delay_s(self, address: str, now_s: float) -> float:
        """How long an attempt from there must wait."""
        count, last_s = self._failures.get(address, (0, now_s))
        if now_s - last_s >= FORGET_AFTER_S:
            del self._failures[address]
            return 0.0
        return min(self._delay_max_s, DELAY_STEP_S * max(0, count - FAILURES_FREE + 1))

    def failed(self, address: str, now_s: float) -> None:
        """An attempt from there was refused."""
        count, last_s = self._failures.pop(address, (0, now_s))
        if now_s - last_s >= FORGET_AFTER_S:
            count = 0
        self._failures[address] = (count + 1, now_s)
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]

    def check_invariants(self) -> None:
        assert len(self._failures) <= ADDRESSES_MAX, "what is remembered is bounded"
        times = [last_s for _, last_s in self._failures.values()]
        assert times == sorted(times), "the least recent failure comes first"

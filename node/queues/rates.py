"""How fast messages come and go, and how many of them may be in memory (mission Q6; semantics 3.3).

Four rates, exponentially weighted with a half-life of five seconds: messages in and out, and pending acks in and out.
*Duration* is how long the messages in memory would last at these rates. The node's memory monitor compares the
durations of all queues and answers with one duration for all; a queue translates it back into a number of messages,
its `target_ram_count`. So a fast queue may keep many messages in memory and a slow one few.
"""

from __future__ import annotations

import math

#: A rate forgets half of the past in so many seconds.
HALF_LIFE_S = 5.0
#: Below this sum of rates (messages per second) a queue counts as idle: its messages last for ever.
IDLE_RATE = 0.01
#: Without anybody asking for durations the rates are brought up to date so often.
TICK_MS = 1000


class Rate:
    """Events per second, exponentially weighted."""

    __slots__ = ("_count", "per_s")

    def __init__(self) -> None:
        self.per_s = 0.0
        self._count = 0

    def add(self, count: int) -> None:
        """So many events happened."""
        self._count += count

    def roll(self, elapsed_s: float) -> None:
        """So much time passed since the last call."""
        weight = math.exp(-elapsed_s / HALF_LIFE_S * math.log(2))
        self.per_s = (self._count / elapsed_s) * (1 - weight) + self.per_s * weight
        self._count = 0


class QueueRates:
    """The four rates of one queue, and its duration."""

    __slots__ = ("_last_ms", "_ram_pending_before", "_ram_ready_before", "ack_in", "ack_out", "egress", "ingress")

    def __init__(self) -> None:
        #: Messages published; messages fetched.
        self.ingress = Rate()
        self.egress = Rate()
        #: Messages that began to wait for their ack; acks.
        self.ack_in = Rate()
        self.ack_out = Rate()
        self._last_ms: int | None = None
        self._ram_ready_before = 0
        self._ram_pending_before = 0

    @property
    def sum_per_s(self) -> float:
        """All rates together."""
        return self.ingress.per_s + self.egress.per_s + self.ack_in.per_s + self.ack_out.per_s

    def tick(self, now_ms: int) -> None:
        """Bring the rates up to date, at most once in `TICK_MS`."""
        if self._last_ms is None or now_ms - self._last_ms >= TICK_MS:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> None:
        if self._last_ms is None:
            self._last_ms = now_ms
        elapsed_ms = now_ms - self._last_ms
        if elapsed_ms > 0:
            self._last_ms = now_ms
            for rate in (self.ingress, self.egress, self.ack_in, self.ack_out):
                rate.roll(elapsed_ms / 1000)

    def duration_s(self, now_ms: int, ram_ready: int, ram_pending: int) -> float:
        """How long the messages in memory last; infinite for an idle queue. Brings the rates up to date."""
        self._roll(now_ms)
        total = ram_ready + self._ram_ready_before + ram_pending + self._ram_pending_before
        self._ram_ready_before, self._ram_pending_before = ram_ready, ram_pending
        if self.sum_per_s < IDLE_RATE:
            return math.inf
        return total / (4 * self.sum_per_s)

    def target_ram_count(self, duration_s: float) -> int | None:
        """Messages that last ``duration_s``; ``None``: no limit. An idle queue may keep none if there is a limit."""
        return None if math.isinf(duration_s) else int(duration_s * self.sum_per_s)

"""Whether this process itself stood still: what it saw late then was not late."""

from __future__ import annotations

from chaos.clients.ports import Recorder
from chaos.record.kinds import Kind

#: To be ticked so often.
TICK_S = 0.05
#: Without a tick for so long it stood still.
STALL_US = 250_000


class StallWatch:
    """Records `STALL` when ticks stay away."""

    def __init__(self, record: Recorder, now_us: int) -> None:
        self._record = record
        self._last_us = now_us

    def tick(self, now_us: int) -> None:
        if now_us - self._last_us >= STALL_US:
            self._record.note(Kind.STALL, now_us, self._last_us)
        self._last_us = now_us

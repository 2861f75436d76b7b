"""When to look at the room on the disk, and when to raise the alarm.

The alarm must come before the disk is full, without asking the system all the time. Nothing we know writes faster than
`FASTEST_WRITER_BYTES_PER_S`, so with so many bytes left above the limit we may look away for the time it would take to
write them, twice that in fact, as the reference does: the limit is a warning, and lies well above zero.

A disk that cannot be measured (a network volume that hangs, a platform that does not say) raises no alarm and keeps the
one that there is; it is tried again every `RETRY_INTERVAL_MS`, and said once.
"""

from __future__ import annotations

#: The reference's figure for a fast disk in normal use.
FASTEST_WRITER_BYTES_PER_S = 250_000_000
#: No more often than this: asking is cheap, but not free on a network volume.
INTERVAL_MIN_MS = 100
#: No more seldom: somebody else may be filling the disk, too.
INTERVAL_MAX_MS = 10_000
#: While the alarm is set publishers wait for its end, so it is looked for more often than the reference does (10 s).
ALARMED_INTERVAL_MS = 1000
RETRY_INTERVAL_MS = 10_000


class DiskMonitor:
    """See the module text. Times are milliseconds of one monotonic clock."""

    __slots__ = ("_limit_bytes", "_next_check_ms", "failure", "free_bytes", "is_alarmed")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._next_check_ms = 0
        #: Room on the disk when it was last measured; ``None`` before that, and while it cannot be.
        self.free_bytes: int | None = None
        #: Why the disk cannot be measured; empty if it can.
        self.failure = ""
        #: There was less room than the limit at the last measurement.
        self.is_alarmed = False

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

    def set_limit(self, limit_bytes: int) -> None:
        """From now on so much must be free; the next check is due at once."""
        self._limit_bytes = limit_bytes
        self._next_check_ms = 0

    def is_due(self, now_ms: int) -> bool:
        return now_ms >= self._next_check_ms

    def measured(self, free_bytes: int, now_ms: int) -> None:
        """So much is free at ``now_ms``."""
        self.failure = ""
        self.free_bytes = free_bytes
        self.is_alarmed = free_bytes < self._limit_bytes
        if self.is_alarmed:
            self._next_check_ms = now_ms + ALARMED_INTERVAL_MS
            return
        time_to_limit_ms = 2 * (free_bytes - self._limit_bytes) * 1000 // FASTEST_WRITER_BYTES_PER_S
        self._next_check_ms = now_ms + max(INTERVAL_MIN_MS, min(INTERVAL_MAX_MS, time_to_limit_ms))

    def could_not_measure(self, reason: str, now_ms: int) -> bool:
        """Asking failed. True if that is news."""
        was_known = bool(self.failure)
        self.failure = reason
        self.free_bytes = None
        self._next_check_ms = now_ms + RETRY_INTERVAL_MS
        return not was_known

    def check_invariants(self) -> None:
        assert self._limit_bytes >= 0, "a limit is a number of bytes"
        assert not (self.failure and self.free_bytes is not None), "a figure that could not be measured is not shown"

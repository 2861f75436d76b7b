"""When a connection was alive for certain, as seen from this end.

That bytes were *read* now does not say that the other end was alive now: they may have lain in the buffers for a while.
But what was not there yet when the buffer was seen to be empty was sent after that, but for the time on the way. So the
sign of life that some bytes give is the latest moment before they came at which nothing lay there: the buffer was read
to its end, or was looked at and found empty.
"""

from __future__ import annotations


class SignsOfLife:
    """Of one connection. Times in microseconds."""

    def __init__(self, now_us: int) -> None:
        #: Nothing lay in the buffer.
        self._empty_us = now_us
        #: What was read last was sent after this.
        self.last_us = now_us
        #: What was read before that was sent after this: for a farewell, which is no sign of life.
        self.before_last_us = now_us

    def found_empty(self, now_us: int) -> None:
        """Somebody looked, and nothing had come."""
        self._empty_us = now_us

    def read(self, is_all: bool, now_us: int) -> None:
        """Bytes came; ``is_all``: nothing is left behind them."""
        self.before_last_us, self.last_us = self.last_us, self._empty_us
        if is_all:
            self._empty_us = now_us

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the times contradict themselves."""
        assert self.before_last_us <= self.last_us <= self._empty_us, "signs of life follow each other"

"""How far a long look at many files is."""

from __future__ import annotations

from collections.abc import Callable

#: Told what is read next: a queue's directory or a store's, how many of them are done, and how many there are.
Progress = Callable[[str, int, int], None]


class Steps:
    """Counts what was looked at."""

    def __init__(self, total: int, on_progress: Progress) -> None:
        self._done = 0
        self._total = total
        self._on_progress = on_progress

    def begin(self, what: str) -> None:
        """The next directory."""
        self._on_progress(what, self._done, self._total)
        self._done += 1

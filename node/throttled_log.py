"""Lines of a log that a stranger, or a peer that tries again and again, can cause as often as he likes.

The first of a kind is written. What follows within a minute is counted, and the count written at the end of the minute;
so the log says what goes on without being filled by it. Numbers that stand alone make no kind (`kind_of`): a peer that
is refused counts its attempts.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

PERIOD_S = 60.0
#: Kinds that are counted apart; more are counted as one, or whoever chooses the kind would choose our memory.
KINDS_MAX = 256
_REST = "others"
#: Digits that are neither part of a word or an address nor the value of anything but an index.
_NUMBER = re.compile(r"(?:(?<=index=)|(?<![\w.:/@=-]))\d+(?!\w|[.:/@-]\w)")


def kind_of(text: str) -> str:
    """The text but for its numbers: what differs only in these is the same, said again.

    Names, addresses and ids (``n2``, ``10.0.0.1:5672``, ``queue_id=7``) are told apart; how far a log was
    (``as_of_index=80``) is a number like others.
    """
    return _NUMBER.sub("#", text)


class ThrottledLog:
    """Writes to ``logger``. ``call_later`` as of a loop, by default of the running one."""

    def __init__(
        self, logger: logging.Logger, call_later: Callable[[float, Callable[[], None]], object] | None = None
    ) -> None:
        self._logger = logger
        self._call_later = call_later or (lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call))
        #: By kind, how often it came since its last line.
        self._unwritten: dict[str, int] = {}

    def write(self, kind: str, text: str, level: int = logging.WARNING) -> None:
        """``text`` at once, or later a count of ``kind`` (whatever numbers are in it)."""
        kind = kind_of(kind)
        if kind not in self._unwritten and len(self._unwritten) >= KINDS_MAX:
            kind = _REST
        if kind in self._unwritten:
            self._unwritten[kind] += 1
            return
        self._logger.log(level, "%s", text)
        self._begin_period(kind, text, level)

    def _begin_period(self, kind: str, text: str, level: int) -> None:
        self._unwritten[kind] = 0
        self._call_later(PERIOD_S, lambda: self._end_period(kind, text, level))

    def _end_period(self, kind: str, text: str, level: int) -> None:
        count = self._unwritten.pop(kind)
        if count:
            self._logger.log(level, "%d more like this in the last minute: %s", count, text)
            self._begin_period(kind, text, level)

    def check_invariants(self) -> None:
        assert len(self._unwritten) <= KINDS_MAX + 1, "kinds are bounded"

"""Lines of the nodes' logs near a moment: what the cluster itself said when a message was lost."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

#: So long before the first moment and behind the last, lines are told.
AROUND_US = 300_000
LINES_MAX = 60
#: How a line begins in the logs of Warren (local time) and of RabbitMQ, and in most others.
_BEGIN = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)[.,](?P<fraction>\d{1,6})\d* ?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)


def time_us(line: str) -> int | None:
    """Microseconds since the epoch; None if the line does not begin with a time."""
    found = _BEGIN.match(line)
    if found is None:
        return None
    zone = (found["zone"] or "").replace("Z", "+00:00")
    try:
        at = datetime.fromisoformat(f"{found['time'].replace(' ', 'T')}.{found['fraction']:0<6}{zone}")
    except ValueError:
        return None
    # One without a zone is of here.
    return round((at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)


def lines_near(logs: Iterable[tuple[str, Path]], moments_us: Sequence[int]) -> list[tuple[str, str]]:
    """Name of the node and line, of all logs together by time. ``logs``: name and path; one that is gone says nothing.

    Of more than `LINES_MAX` those nearest to the last moment are told: that is where something showed.
    """
    if not moments_us:
        return []
    first_us, last_us = min(moments_us) - AROUND_US, max(moments_us) + AROUND_US
    found = [(at_us, name, line) for name, path in logs for at_us, line in _timed(path) if first_us <= at_us <= last_us]
    nearest = heapq.nsmallest(LINES_MAX, found, key=lambda each: abs(each[0] - max(moments_us)))
    return [(name, line) for _, name, line in sorted(nearest)]


def _timed(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that have a time; a trace behind one is left out."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                at_us = time_us(line)
                if at_us is not None:
                    yield at_us, line.rstrip("\n")
    except OSError:
        return

"""When service was missing, from counts in short buckets of time.

**Wanted.** A client that does not ask for anything misses nothing. So a *window* is a time in which somebody wanted
service all the time, and nobody got it:

- of *publishing*: nothing of the queue was confirmed, although messages were intended before it that were not confirmed
  before its end. Intended is the time at which the publisher should have published by its rate, however late it did.
- of *consuming*: nothing of the queue was delivered, although messages were confirmed before it that were delivered
  after it, and its consumers wanted deliveries (`CONSUMING`: they are subscribed or trying to be, and neither hold nor
  stand still).

A message that never was confirmed is wanted until it was given up, or its publisher ended. One that never was
delivered is not missed here: it is lost, and no window without end.

**Buckets** are `BUCKET_US` long, and counts of them can be added up wherever they were made, in any order: whoever has
a billion events adds them up where they are, and windows are found in what is left, some thousands of rows. A window
begins and ends on the border of a bucket, so it may be up to two buckets shorter than the time without service.

**Causes.** A window is put down to the faults that held, or had ended less than `AFTERMATH_US` ago, when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

BUCKET_US = 10_000
#: Shorter ones are not told of: they are what scheduling makes of a busy machine.
WINDOW_US_MIN = 200_000
AFTERMATH_US = 10_000_000


class Service(StrEnum):
    """What was missing."""

    PUBLISH = "publish"
    CONSUME = "consume"


@dataclass(frozen=True, slots=True)
class Bucket:
    """What happened to one queue in ``[number * BUCKET_US, (number + 1) * BUCKET_US)``."""

    number: int
    #: Messages whose intended time it is, and messages that were confirmed for the first time, or given up.
    intended: int = 0
    concluded: int = 0
    #: Messages that were confirmed for the first time and are delivered later; those that are delivered for the first
    #: time and were confirmed before.
    stored: int = 0
    fetched: int = 0
    #: Rows.
    confirms: int = 0
    deliveries: int = 0
    #: Deliveries of what had been delivered before.
    repeats: int = 0
    #: Messages that were confirmed here, and are LOST or VANISHED.
    lost: int = 0

    @property
    def begin_us(self) -> int:
        return self.number * BUCKET_US


@dataclass(frozen=True, slots=True)
class Window:
    """A time without service, microseconds since the epoch."""

    service: Service
    queue: int
    begin_us: int
    end_us: int

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which something was so; ``end_us`` None: to the end."""

    begin_us: int
    end_us: int | None = None

    def may_have_caused(self, first_us: int, last_us: int) -> bool:
        """True if it may be why something happened between these: it held, or had ended a short time ago."""
        return self.begin_us <= last_us and (self.end_us is None or first_us <= self.end_us + AFTERMATH_US)


def windows(queue: int, buckets: Iterable[Bucket], consuming: Sequence[Span]) -> list[Window]:
    """Every window of a queue that is at least `WINDOW_US_MIN` long, by its beginning.

    ``buckets``: ascending, those in which nothing happened may be left out. ``consuming``: when its consumers wanted
    deliveries.
    """
    buckets = list(buckets)
    publish = _silences(buckets, lambda each: each.intended - each.concluded, lambda each: each.confirms)
    consume = _silences(buckets, lambda each: each.stored - each.fetched, lambda each: each.deliveries)
    found = [Window(Service.PUBLISH, queue, begin, end) for begin, end in publish]
    for begin, end in consume:
        for span in consuming:
            clipped = (max(begin, span.begin_us), end if span.end_us is None else min(end, span.end_us))
            if clipped[0] < clipped[1]:
                found.append(Window(Service.CONSUME, queue, *clipped))
    return sorted(
        (each for each in found if each.length_us >= WINDOW_US_MIN), key=lambda each: (each.begin_us, each.service)
    )


def _silences(
    buckets: Sequence[Bucket], change: Callable[[Bucket], int], served: Callable[[Bucket], int]
) -> Iterator[tuple[int, int]]:
    """Times between two buckets in which somebody was served, all of which somebody waited."""
    waiting = 0
    #: Border at which somebody began to wait without being served since; None: nobody does.
    since: int | None = None
    for each in buckets:
        if served(each):
            if since is not None and since < each.number:
                yield since * BUCKET_US, each.number * BUCKET_US
            since = None
        waiting += change(each)
        if waiting <= 0:
            if since is not None and since < each.number:
                yield since * BUCKET_US, each.number * BUCKET_US
            since = None
        elif since is None:
            since = each.number + 1
    if since is not None and buckets and since <= buckets[-1].number:
        yield since * BUCKET_US, (buckets[-1].number + 1) * BUCKET_US


def causes(window: Window, faults: Iterable[tuple[int, Span]]) -> list[int]:
    """Numbers of the faults to which it is put down."""
    return [number for number, span in faults if span.may_have_caused(window.begin_us, window.begin_us + BUCKET_US)]


def longest_us(found: Iterable[Window], service: Service) -> int:
    """Zero if there is none."""
    return max((each.length_us for each in found if each.service is service), default=0)

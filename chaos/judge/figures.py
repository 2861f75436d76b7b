"""What a record shows over time: counts that add up, and what was said of the cluster meanwhile.

All of it is small, whatever the size of the record: windows (`chaos.judge.windows`), the ledger (`chaos.judge.ledger`)
and the curves of a report are made of it without the record. Two programs count it, this one and the Spark job
(`chaos.spark_judge.figures`), and must agree.

**Of a message**, here one attempt to publish it, as in `chaos.judge`:

- It was *intended* at the least ``t_lo_us`` of its `PUBLISH` rows, less what that row says it was late (``number``).
- It was *concluded* at the least ``t_lo_us`` of its `CONFIRM` and `GIVEN_UP` rows, if it is confirmed or given up.
- It was *fetched* at the least ``t_lo_us`` of its `DELIVER` rows.

**Counts**, each in the bucket (`chaos.judge.windows.BUCKET_US`) of its queue in which it lies: *intended* counts first
attempts only, since others are intended when the first was. *Concluded*. *Stored*: confirmed messages by the moment at
which they were concluded, if they were fetched later; the same ones are *fetched* when they were. *Confirms* and
*deliveries*: rows `CONFIRM` and `DELIVER` by their ``t_lo_us``. *Repeats*: deliveries without the first one of each
message. *Lost*: what is LOST or VANISHED, by the moment at which it was concluded.

**Latencies**: of each confirmed message, from intended to concluded, by the bin (`chaos.judge.latency`) and by the step
of time in which it was concluded. Steps are as long as `STEPS_MAX` of them need to cover the whole time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from chaos.judge.latency import bin_of
from chaos.judge.windows import BUCKET_US, Bucket
from chaos.record.kinds import Ending, Kind
from chaos.record.message_key import unpack
from chaos.record.schema import Event

STEPS_MAX = 480
#: Lengths of steps, all of them some buckets.
_STEPS_US = tuple(
    milliseconds * 1_000
    for milliseconds in (100, 250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000)
)
#: Rows without a message that are kept as they are.
NOTICES = frozenset(
    {
        Kind.CHANNEL_OPEN,
        Kind.CHANNEL_OVER,
        Kind.BLOCKED,
        Kind.UNBLOCKED,
        Kind.PROMOTED,
        Kind.DEMOTED,
        Kind.MIRROR_JOINED,
        Kind.MIRROR_LEFT,
        Kind.SYNC_BEGIN,
        Kind.SYNC_END,
        Kind.SYNC_CANCELLED,
        Kind.FAULT_BEGIN,
        Kind.FAULT_END,
        Kind.PHASE,
        Kind.STALL,
        Kind.DEPTH,
        Kind.EMPTIED,
        Kind.CONSUMING,
    }
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one record, see the module. Microseconds since the epoch."""

    #: From the first to the last moment at which a message was published, concluded or fetched; both zero if none was.
    begin_us: int
    end_us: int
    #: By queue: what happened, ascending; without the buckets in which nothing did.
    buckets: Mapping[int, Sequence[Bucket]]
    #: By the number of a step (its begin is ``number * step_us``), by the number of a bin: messages.
    latencies: Mapping[int, Mapping[int, int]]
    #: Rows of `NOTICES`, by time.
    notices: Sequence[Event]

    @property
    def step_us(self) -> int:
        return step_us(self.begin_us, self.end_us)


def step_us(begin_us: int, end_us: int) -> int:
    """How long a step is, in a record of this length."""
    return next((each for each in _STEPS_US if (end_us - begin_us) // each < STEPS_MAX), _STEPS_US[-1])


def is_notice(event: Event) -> bool:
    """Channels that their client closed are no news."""
    return event.kind in NOTICES and (event.kind != Kind.CHANNEL_OVER or event.number != Ending.BY_CLIENT)


def by_time(event: Event) -> tuple[int, int, int]:
    """A key to sort rows by."""
    return event.t_lo_us, event.process, event.event


class _Times:
    """Of one message, see the module."""

    __slots__ = ("concluded_us", "fetched_us", "intended_us", "kinds", "published_us")

    def __init__(self) -> None:
        self.kinds: set[int] = set()
        self.published_us: int | None = None
        self.intended_us: int | None = None
        self.concluded_us: int | None = None
        self.fetched_us: int | None = None

    def add(self, event: Event) -> None:
        self.kinds.add(event.kind)
        match event.kind:
            case Kind.PUBLISH:
                self.published_us = _least(self.published_us, event.t_lo_us)
                self.intended_us = _least(self.intended_us, event.t_lo_us - event.number)
            case Kind.CONFIRM | Kind.GIVEN_UP:
                self.concluded_us = _least(self.concluded_us, event.t_lo_us)
            case Kind.DELIVER:
                self.fetched_us = _least(self.fetched_us, event.t_lo_us)

    @property
    def is_confirmed(self) -> bool:
        return Kind.CONFIRM in self.kinds and Kind.RETURN not in self.kinds


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def figures_of(events: Iterable[Event], lost: Collection[int]) -> Figures:
    """Count in plain Python. ``lost``: keys of the messages that are LOST or VANISHED."""
    counted: dict[int, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    messages: dict[int, _Times] = defaultdict(_Times)
    notices: list[Event] = []

    def count(what: str, key: int, at_us: int, much: int = 1) -> None:
        counted[unpack(key).queue][at_us // BUCKET_US][what] += much

    for event in events:
        if not event.message:
            if is_notice(event):
                notices.append(event)
            continue
        messages[event.message].add(event)
        if event.kind == Kind.CONFIRM:
            count("confirms", event.message, event.t_lo_us)
        elif event.kind == Kind.DELIVER:
            count("deliveries", event.message, event.t_lo_us)
            count("repeats", event.message, event.t_lo_us)
    for key, times in messages.items():
        _count_message(key, times, key in lost, count)
    moments = [
        at_us
        for times in messages.values()
        for at_us in (times.published_us, times.concluded_us, times.fetched_us)
        if at_us is not None
    ]
    begin_us, end_us = min(moments, default=0), max(moments, default=0)
    return Figures(
        begin_us,
        end_us,
        {
            queue: [Bucket(number, **counts) for number, counts in sorted(of_queue.items())]
            for queue, of_queue in sorted(counted.items())
        },
        _latencies(messages.values(), step_us(begin_us, end_us)),
        sorted(notices, key=by_time),
    )


def _count_message(key: int, times: _Times, is_lost: bool, count: Callable[..., None]) -> None:
    concluded_us, fetched_us = times.concluded_us, times.fetched_us
    if times.intended_us is not None and unpack(key).attempt == 1:
        count("intended", key, times.intended_us)
    if fetched_us is not None:
        count("repeats", key, fetched_us, -1)
    if concluded_us is None:
        return
    if times.is_confirmed or Kind.GIVEN_UP in times.kinds:
        count("concluded", key, concluded_us)
    if times.is_confirmed and fetched_us is not None and concluded_us < fetched_us:
        count("stored", key, concluded_us)
        count("fetched", key, fetched_us)
    if is_lost:
        count("lost", key, concluded_us)


def _latencies(messages: Iterable[_Times], length_us: int) -> dict[int, dict[int, int]]:
    found: dict[int, Counter[int]] = defaultdict(Counter)
    for times in messages:
        if times.is_confirmed and times.intended_us is not None and times.concluded_us is not None:
            found[times.concluded_us // length_us][bin_of(times.concluded_us - times.intended_us)] += 1
    return {step: dict(sorted(bins.items())) for step, bins in sorted(found.items())}

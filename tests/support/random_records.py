"""Small records that nothing is promised of: few messages, channels and moments, many ties, so that the corners of the
definitions are met. Only what a recorder cannot do wrong is kept: events have numbers, a channel has one process."""

from __future__ import annotations

from collections import Counter
from random import Random

from chaos.judge.findings import QueueFacts
from chaos.record.kinds import Flag, Kind, Stray
from chaos.record.message_key import MessageKey
from chaos.record.schema import Event
from tests.support.records_side_by_side import SmallRecord

#: Processes by number, with their channels.
_PUBLISHING = {1: (100, 101), 2: (110,)}
_CONSUMING = {3: (200, 201), 4: (210,)}
_BROKER, _HARNESS = 5, 6
_ENDS = (Kind.ACK, Kind.ACK, Kind.ACK_PROVEN, Kind.ACK_PROVEN, Kind.REQUEUE, Kind.REQUEUE, Kind.DISCARD, Kind.RELEASE)
_ANSWERS = (Kind.CONFIRM, Kind.CONFIRM, Kind.CONFIRM, Kind.REFUSE, Kind.RETURN, Kind.UNRESOLVED, Kind.GIVEN_UP)
_REMOVED = (Kind.EXPIRED, Kind.DROPPED, Kind.PURGED, Kind.DEAD_LETTERED)
#: How often which row is told: what the record is mostly about.
_SUBJECTS = {
    "repeats": {
        "publish": 1, "answer": 1, "deliver": 5, "end": 8, "settled": 2, "removed": 1, "promoted": 2, "disturbed": 1,
    },
    "classes": {
        "publish": 4, "answer": 4, "stray": 1, "deliver": 3, "foreign": 1, "end": 2, "settled": 1, "removed": 1,
        "left": 2, "emptied": 1, "promoted": 1, "disturbed": 1, "answered": 2, "held": 2, "listed": 2,
    },
}  # fmt: skip


class _Record:
    """Tells one row after the other."""

    def __init__(self, random: Random) -> None:
        self.events: list[Event] = []
        self._random = random
        self._numbers: Counter[int] = Counter()
        #: Rows are told in the order of time, more or less, or in none.
        self._is_ascending = random.random() < 0.5
        self._now_us = 0
        self._span_us = random.choice((3, 8, 20, 60))
        self.keys = [
            MessageKey(1, random.choice((1, 1, 1, 2)), random.randint(1, 3), random.choice((1, 1, 2))).pack()
            for _ in range(random.randint(1, 8))
        ]
        #: Deliveries, by message.
        self._delivered: dict[int, list[tuple[int, int]]] = {}
        self._tags = 0
        #: Flags of a delivery are likely to be these.
        self.is_flagged_often = random.random() < 0.5

    def row(self, process: int, kind: Kind, **columns: int) -> None:
        """At any time, of any length."""
        self._numbers[process] += 1
        self._now_us += self._random.choice((0, 1, 1, 3, 6))
        lo = self._now_us if self._is_ascending else self._random.randint(0, self._span_us)
        hi = lo + self._random.choice((0, 0, 0, 1, 4))
        self.events.append(Event(process, self._numbers[process], kind, lo, hi, **columns))  # type: ignore[arg-type]

    def tell(self, what: str, key: int | None = None) -> None:
        getattr(self, f"_{what}")(key or self._random.choice(self.keys))

    def end(self) -> list[Event]:
        """Every process with its end, in no order."""
        for process in list(self._numbers):
            self.row(process, Kind.PROCESS_END)
        self._random.shuffle(self.events)
        return self.events

    def _publish(self, key: int) -> None:
        process = 1 if self._random.random() < 0.9 else 2
        channel = self._random.choice((*_PUBLISHING[process], _PUBLISHING[process][0], _PUBLISHING[process][0]))
        self.row(process, Kind.PUBLISH, message=key, channel=channel, tag=self._random.randint(1, 9))

    def _answer(self, key: int) -> None:
        self.row(1, self._random.choice(_ANSWERS), message=key, channel=100)

    def _stray(self, key: int) -> None:
        self.row(
            1, Kind.STRAY, message=self._random.choice((0, key)), channel=100, number=self._random.choice([*Stray])
        )

    def _deliver(self, key: int) -> None:
        flags = self._flags(Flag.REDELIVERED, 0.8 if self.is_flagged_often else 0.2)
        flags |= self._flags(Flag.NO_ACK, 0.1) | self._flags(Flag.CORRUPT, 0.05)
        process, channel, tag = self._place()
        self._delivered.setdefault(key, []).append((channel, tag))
        queue = 2 if self._random.random() < 0.03 else 0
        self.row(process, Kind.DELIVER, message=key, channel=channel, tag=tag, flags=flags, queue=queue)

    def _foreign(self, _: int) -> None:
        process, channel, tag = self._place()
        self.row(process, Kind.DELIVER, channel=channel, tag=tag, flags=self._flags(Flag.CORRUPT, 0.3), queue=1)

    def _end(self, key: int) -> None:
        process, channel, tag = 3, 200, 1
        if self._delivered.get(key) and self._random.random() < 0.9:
            channel, tag = self._random.choice(self._delivered[key])
            process = next(each for each, channels in _CONSUMING.items() if channel in channels)
        self.row(process, self._random.choice(_ENDS), message=key, channel=channel, tag=tag)

    def _requeue(self, key: int) -> None:
        process = self._random.choice([*_CONSUMING])
        channel, tag = self._random.choice(self._delivered.get(key, [(_CONSUMING[process][0], 1)]))
        process = next(each for each, channels in _CONSUMING.items() if channel in channels)
        for kind in (Kind.REQUEUE, Kind.ACK_PROVEN):
            self.row(process, kind, message=key, channel=channel, tag=tag)

    def _place(self) -> tuple[int, int, int]:
        """Of a delivery that is not there yet, or of any."""
        process = self._random.choice([*_CONSUMING])
        self._tags += 1
        tag = self._tags if self._random.random() < 0.9 else self._random.randint(1, 3)
        return process, self._random.choice(_CONSUMING[process]), tag

    def _settled(self, key: int) -> None:
        self.row(_BROKER, Kind.SETTLED, message=key, flags=self._flags(Flag.EVERYWHERE, 0.3))

    def _removed(self, key: int) -> None:
        self.row(_BROKER, self._random.choice(_REMOVED), message=key)

    def _answered(self, key: int) -> None:
        self.row(_BROKER, Kind.ANSWERED, message=key, epoch=self._random.randint(1, 3))

    def _left(self, key: int) -> None:
        self.row(_HARNESS, Kind.LEFT, message=key)

    def _emptied(self, _: int) -> None:
        self.row(_HARNESS, Kind.EMPTIED, queue=self._random.choice((1, 1, 2)))

    def _promoted(self, _: int) -> None:
        self.row(_HARNESS, Kind.PROMOTED, queue=self._random.choice((1, 1, 1, 2)), epoch=self._random.randint(1, 3))

    def _disturbed(self, _: int) -> None:
        self.row(_HARNESS, Kind.DISTURBED, queue=self._random.choice((1, 1, 1, 2)))

    def _held(self, key: int) -> None:
        self.row(_BROKER, Kind.HELD, message=key, node=self._random.randint(1, 2))

    def _listed(self, _: int) -> None:
        flags = self._flags(Flag.SYNCHRONISED, 0.8)
        self.row(
            _BROKER, Kind.LISTED, queue=self._random.choice((1, 1, 2)), node=self._random.randint(1, 3), flags=flags
        )

    def _flags(self, flag: Flag, probability: float) -> int:
        return int(flag) if self._random.random() < probability else 0


def _what(random: Random, record: _Record) -> list[tuple[str, int | None]]:
    """What is told, and of which message; of any if it does not matter."""
    keys = record.keys
    subject = random.choice([*_SUBJECTS, "order", "order"])
    if subject == "order":
        record.is_flagged_often = False
        late = random.sample(keys, len(keys))
        told: list[tuple[str, int | None]] = [("publish", key) for key in keys]
        told += [("deliver", key) for key in late]
        if random.random() < 0.5:
            told[len(keys) : len(keys)] = [("deliver", keys[0]), ("requeue", keys[0])]
        others = random.choices(("end", "deliver", "promoted"), (8, 2, 1), k=random.randint(0, 6))
        for each in others:
            told.insert(random.randint(len(keys), len(told)), (each, random.choice(keys)))
        return told
    weights = _SUBJECTS[subject]
    return [(each, None) for each in random.choices([*weights], [*weights.values()], k=random.randint(4, 30))]


def random_record(seed: int) -> SmallRecord:
    """The same for the same seed."""
    random = Random(seed)
    record = _Record(random)
    for what, key in _what(random, record):
        record.tell(what, key)
    queue = QueueFacts(random.random() < 0.2, is_drained=random.random() < 0.5, is_known=random.random() < 0.9)
    return SmallRecord(record.end(), {1: frozenset({1}), 2: frozenset({2})}, queue)

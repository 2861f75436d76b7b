"""Small histories to check the checkers with."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from chaos.history import Event, Kind

PUBLISHER, CONSUMER, HARNESS, OBSERVER, NEMESIS = 100, 200, 1, 2, 3
_PROC_KINDS = {PUBLISHER: "pub", CONSUMER: "con", HARNESS: "harness", OBSERVER: "observer", NEMESIS: "nemesis"}
#: Microseconds between two events.
STEP_US = 1_000


class HistoryBuilder:
    """Appends events one millisecond apart; each process numbers its own. `events` adds the ends."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._numbers: dict[int, int] = defaultdict(int)
        self.now_us = 0

    def add(self, proc_id: int, kind: Kind, **fields: Any) -> None:
        self._numbers[proc_id] += 1
        self.now_us += STEP_US
        proc_kind = _PROC_KINDS.get(proc_id, "con")
        self._events.append(
            Event(
                self._numbers[proc_id], proc_id, proc_kind, 1, self.now_us * 1000, self.now_us, self.now_us,
                kind.value, queue_id=fields.pop("queue_id", 0), **fields,
            )
        )  # fmt: skip

    def publish(self, seq: int, *, attempt: int = 1, channel_id: int = 1) -> None:
        self.add(PUBLISHER, Kind.PUB_INVOKE, pub_id=0, seq=seq, attempt=attempt, channel_id=channel_id)

    def answer(self, seq: int, kind: Kind = Kind.CONFIRM, *, attempt: int = 1) -> None:
        self.add(PUBLISHER, kind, pub_id=0, seq=seq, attempt=attempt, channel_id=1)

    def deliver(
        self, seq: int, *, attempt: int = 1, redelivered: bool = False, proc_id: int = CONSUMER, crc_ok: bool = True
    ) -> None:
        self.add(
            proc_id, Kind.DELIVER, pub_id=0, seq=seq, attempt=attempt, channel_id=proc_id, consumer_id=0,
            redelivered=redelivered, crc_ok=crc_ok,
        )  # fmt: skip

    def ack(self, seq: int, *, attempt: int = 1, proc_id: int = CONSUMER) -> None:
        self.add(proc_id, Kind.ACK_SENT, pub_id=0, seq=seq, attempt=attempt, channel_id=proc_id, consumer_id=0)

    def whole(self, seq: int) -> None:
        """A message whose life is as it should be."""
        self.publish(seq)
        self.answer(seq)
        self.deliver(seq)
        self.ack(seq)

    def events(self) -> list[Event]:
        """Everything so far, each process ended."""
        for proc_id in list(self._numbers):
            self.add(proc_id, Kind.PROC_END)
        return list(self._events)


def random_history(chance: random.Random, messages: int) -> list[Event]:
    """A history full of anomalies, of every kind that the checkers know."""
    build = HistoryBuilder()
    order = list(range(1, messages + 1))
    for seq in order:
        for attempt in range(1, chance.choice((1, 1, 1, 2, 3)) + 1):
            if chance.random() < 0.97:
                build.publish(seq, attempt=attempt)
            for _ in range(chance.choice((1, 1, 1, 1, 2))):
                kinds = (Kind.CONFIRM, Kind.CONFIRM, Kind.CONFIRM, Kind.PUB_UNKNOWN, Kind.NACK, Kind.RETURN)
                build.answer(seq, chance.choice(kinds), attempt=attempt)
            if chance.random() < 0.03:
                build.add(HARNESS, chance.choice((Kind.BROWSE, Kind.EXPIRE)), pub_id=0, seq=seq, attempt=attempt)
    deliveries = [
        (seq + chance.choice((0, 0, 0, 0, 3)), seq, chance.choice((1, 1, 2))) for seq in order if chance.random() < 0.95
    ]
    for _, seq, attempt in sorted(deliveries):
        for number in range(chance.choice((1, 1, 1, 2, 3))):
            proc_id = chance.choice((CONSUMER, CONSUMER + 1))
            redelivered = chance.random() < (0.8 if number else 0.05)
            crc_ok = chance.random() < 0.98
            build.deliver(seq, attempt=attempt, redelivered=redelivered, proc_id=proc_id, crc_ok=crc_ok)
            if chance.random() < 0.8:
                build.ack(seq, attempt=attempt, proc_id=proc_id)
        if chance.random() < 0.05:
            build.add(OBSERVER, Kind.PROMOTE, epoch=2, result=1, detail="{}")
        if chance.random() < 0.02:
            build.add(HARNESS, Kind.CONFIRM_STRAY)
            build.add(CONSUMER, Kind.DELIVER, redelivered=False, crc_ok=False, channel_id=CONSUMER)
    return cut(chance, build.events())


def cut(chance: random.Random, events: Sequence[Event]) -> list[Event]:
    """Sometimes lose one event, so that a record has a hole."""
    kept = list(events)
    if chance.random() < 0.5:
        del kept[chance.randrange(len(kept))]
    return kept

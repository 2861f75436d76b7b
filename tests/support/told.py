"""Records that are told line by line: a process each for two publishers, two consumers, the broker and the harness.

    story = Told()
    story.publish(1).confirm(1).deliver(1, on="A").ack(1, on="A")

Every event happens a second after the one before, unless it is told ``during`` an interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from chaos.judge.findings import Finding, Name, QueueFacts, RunFacts
from chaos.judge.reference import Reference
from chaos.record.kinds import Flag, Kind
from chaos.record.message_key import MessageKey
from chaos.record.schema import Event

SECOND_US = 1_000_000
QUEUE = 1
PUBLISHER = 1
#: Processes.
PUBLISHING, BROKER, HARNESS = 1, 8, 9
CONSUMING = {"A": 2, "B": 3}
#: Channels of consumers; that of the publisher is 100.
CHANNELS = {"A": 200, "B": 300}


def key(number: int, attempt: int = 1, queue: int = QUEUE) -> int:
    """Of a message of the publisher."""
    return MessageKey(queue, PUBLISHER, number, attempt).pack()


class Told:
    """Collects events. Every method returns the story, to go on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now_us = 0
        self._numbers: Counter[int] = Counter()
        self._tags: dict[tuple[int, int], int] = {}

    def add(self, process: int, kind: Kind, during: tuple[float, float] | None = None, **columns: int | str) -> Told:
        """Any event; ``during``: seconds."""
        self._now_us += SECOND_US
        lo, hi = (self._now_us, self._now_us) if during is None else (int(at * SECOND_US) for at in during)
        self._numbers[process] += 1
        self.events.append(Event(process, self._numbers[process], kind, lo, hi, **columns))  # type: ignore[arg-type]
        return self

    # -- publisher

    def publish(self, *numbers: int, attempt: int = 1, channel: int = 100) -> Told:
        for number in numbers:
            self.add(PUBLISHING, Kind.PUBLISH, message=key(number, attempt), channel=channel, tag=number)
        return self

    def answer(self, kind: Kind, *numbers: int, attempt: int = 1, number: int = 0) -> Told:
        for each in numbers:
            self.add(PUBLISHING, kind, message=key(each, attempt), channel=100, tag=each, number=number)
        return self

    def confirm(self, *numbers: int, attempt: int = 1) -> Told:
        return self.answer(Kind.CONFIRM, *numbers, attempt=attempt)

    def confirmed(self, *numbers: int) -> Told:
        """Published, and confirmed."""
        return self.publish(*numbers).confirm(*numbers)

    # -- consumers

    def deliver(
        self,
        *numbers: int,
        on: str = "A",
        attempt: int = 1,
        flags: int = 0,
        during: tuple[float, float] | None = None,
    ) -> Told:
        for number in numbers:
            channel = CHANNELS[on]
            tag = self._tags[channel, key(number, attempt)] = len(self._tags) + 1
            message = key(number, attempt)
            self.add(CONSUMING[on], Kind.DELIVER, during, message=message, channel=channel, tag=tag, flags=flags)
        return self

    def again(self, *numbers: int, on: str = "B", during: tuple[float, float] | None = None) -> Told:
        """Delivered with REDELIVERED."""
        return self.deliver(*numbers, on=on, flags=Flag.REDELIVERED, during=during)

    def end(
        self,
        kind: Kind,
        *numbers: int,
        on: str = "A",
        attempt: int = 1,
        during: tuple[float, float] | None = None,
    ) -> Told:
        """What was done with the latest delivery of each in this channel."""
        for number in numbers:
            channel, message = CHANNELS[on], key(number, attempt)
            tag = self._tags[channel, message]
            self.add(CONSUMING[on], kind, during, message=message, channel=channel, tag=tag)
        return self

    def ack(self, *numbers: int, on: str = "A") -> Told:
        return self.end(Kind.ACK, *numbers, on=on)

    def prove(self, *numbers: int, on: str = "A") -> Told:
        return self.end(Kind.ACK_PROVEN, *numbers, on=on)

    def release(self, *numbers: int, on: str = "A", during: tuple[float, float] | None = None) -> Told:
        return self.end(Kind.RELEASE, *numbers, on=on, during=during)

    def settled(self, *numbers: int, on: str = "A") -> Told:
        """Delivered, acknowledged, and proven."""
        return self.deliver(*numbers, on=on).ack(*numbers, on=on).prove(*numbers, on=on)

    # -- others

    def broker(self, kind: Kind, *numbers: int, epoch: int = 1, flags: int = 0, node: int = 1) -> Told:
        for number in numbers:
            self.add(BROKER, kind, message=key(number), epoch=epoch, flags=flags, node=node)
        return self

    def promote(self, epoch: int, during: tuple[float, float] | None = None) -> Told:
        return self.add(HARNESS, Kind.PROMOTED, during, queue=QUEUE, epoch=epoch, node=2)

    def disturb(self, during: tuple[float, float] | None = None, queue: int = QUEUE) -> Told:
        return self.add(HARNESS, Kind.DISTURBED, during, queue=queue, fault=1)

    def left(self, *numbers: int) -> Told:
        for number in numbers:
            self.add(HARNESS, Kind.LEFT, message=key(number))
        return self

    # -- the judgement

    def complete(self) -> list[Event]:
        """All events, and an end of each process."""
        ends = [Event(process, count + 1, Kind.PROCESS_END, 0, 0) for process, count in self._numbers.items()]
        return [*self.events, *ends]

    def judged(
        self, queue: QueueFacts | None = None, slack_us: int | None = 2 * SECOND_US, processes: tuple[int, ...] = ()
    ) -> list[Finding]:
        """What the reference finds, with all processes that told something and ``processes`` in the roster."""
        roster: Mapping[int, frozenset[int]] = {
            process: frozenset({PUBLISHER}) if process == PUBLISHING else frozenset()
            for process in {*self._numbers, *processes}
        }
        facts = RunFacts(roster, [queue or QueueFacts()], slack_us)
        return Reference(self.complete(), facts).findings()

    def names(self, **facts: object) -> list[tuple[Name, int]]:
        """Names of the findings, and numbers of their messages (zero for none)."""
        return [(each.name, each.message >> 8 & 0xFFFF_FFFF) for each in self.judged(**facts)]  # type: ignore[arg-type]

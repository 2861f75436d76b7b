"""Many small records as one, so that one job of Spark judges them all.

Each gets its own queues, publishers, channels and processes, so that none can touch another. What is said of a whole
run (its slack, whether it is complete) must be the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chaos.judge.findings import Finding, QueueFacts, RunFacts
from chaos.record.message_key import unpack
from chaos.record.schema import Event

#: More than any small record has.
PROCESSES, CHANNELS, PUBLISHERS = 20, 1_000, 2


@dataclass(frozen=True, slots=True)
class SmallRecord:
    """Complete: every process has its end. About the first queue, and publishers up to `PUBLISHERS`."""

    events: Sequence[Event]
    #: Publishers by the process that records for them.
    publishing: dict[int, frozenset[int]]
    queue: QueueFacts


class SideBySide:
    """Some small records, numbered from zero."""

    def __init__(self, records: Sequence[SmallRecord], slack_us: int | None) -> None:
        self._records = records
        self._slack_us = slack_us

    def events(self) -> Iterator[Event]:
        for number, record in enumerate(self._records):
            for event in record.events:
                yield event._replace(
                    process=number * PROCESSES + event.process,
                    message=event.message and self.key(number, event.message),
                    queue=self._queue(number, event.queue),
                    channel=event.channel and number * CHANNELS + event.channel,
                )

    def facts(self) -> RunFacts:
        processes = {
            number * PROCESSES + process: frozenset(
                number * PUBLISHERS + publisher for publisher in record.publishing.get(process, ())
            )
            for number, record in enumerate(self._records)
            for process in {event.process for event in record.events}
        }
        return RunFacts(processes, [record.queue for record in self._records], self._slack_us)

    def events_of(self, number: int) -> Sequence[Event]:
        return self._records[number].events

    def queue(self, number: int) -> QueueFacts:
        return self._records[number].queue

    def of(self, number: int, findings: Sequence[Finding]) -> list[Finding]:
        """Findings about one of them, as if it had been judged alone, sorted."""
        found = [
            finding._replace(
                message=self._own_key(number, finding.message),
                process=finding.process and finding.process - number * PROCESSES,
            )
            for finding in findings
            if self.number(finding) == number
        ]
        return sorted(found)

    def key(self, number: int, message: int) -> int:
        """Of a message of one of them."""
        key = unpack(message)
        return key._replace(queue=number + 1, publisher=number * PUBLISHERS + key.publisher).pack()

    def _queue(self, number: int, queue: int) -> int:
        """Its own one, or another that nobody has."""
        return 0 if not queue else number + 1 if queue == 1 else len(self._records) + queue

    def _own_key(self, number: int, message: int) -> int:
        if not message:
            return 0
        key = unpack(message)
        return key._replace(queue=1, publisher=key.publisher - number * PUBLISHERS).pack()

    def number(self, finding: Finding) -> int:
        """Of the record that it is about."""
        if finding.message:
            return unpack(finding.message).queue - 1
        return (finding.process - 1) // PROCESSES

"""A whole record, block by block.

A block is a burst of messages to all queues that is over before the next begins: whatever was sent has been settled,
and nothing but counters goes from one to the next (numbers of events, publishes, deliveries, channels, epochs). So a
block is made, planted in, numbered, written and forgotten, and memory is that of one block however long the record.
Every queue of a block draws from a generator of its own, seeded with the seed, the block and the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from chaos.generator.anomalies import ANOMALIES
from chaos.generator.delivering import Delivering
from chaos.generator.planted import Planted, Sown
from chaos.generator.planting import REPLICA_LOST, Planter, Remainder
from chaos.generator.publishing import Outcome, Publishing
from chaos.generator.rows import Counters, Numbers, Rows
from chaos.generator.shape import NODES, Layout, Shape
from chaos.generator.telling import QueueState, Telling, Told, legal_findings
from chaos.judge.findings import Finding, Name
from chaos.record.kinds import Ending, Flag, Kind
from chaos.record.message_key import QUEUE_SHIFT
from chaos.record.process_record import write_table
from chaos.record.schema import EVENTS_DIRECTORY, EventClass

#: The first moment, in microseconds since the epoch: any, but the same for the same seed.
START_US = 1_700_000_000_000_000
#: Between opening the channels and publishing, and from the last event of a burst to the next, at least.
LULL_US = 100_000


@dataclass(slots=True)
class Generated:
    """What is known of a record that was generated."""

    #: Findings that are legal, as far as they were counted: of these names, all.
    legal: Counter[Name] = field(default_factory=Counter)
    planted: list[Planted] = field(default_factory=list)
    #: Anomalies by name that found fewer places than were asked for.
    missing: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    #: Those that found room.
    failovers: int = 0


class History:
    """Makes the record of a shape, with ``plant`` anomalies of each class."""

    def __init__(self, shape: Shape, plant: int = 0) -> None:
        self.layout = Layout(shape)
        self.generated = Generated()
        self._shape = shape
        #: What is planted near the end of a burst may come two slacks behind it.
        self._lull_us = max(LULL_US, 6 * shape.slack_us)
        self._counters = Counters()
        self._faults = 0
        self._clock_us = START_US
        self._states = [
            QueueState(
                queue,
                np.zeros(shape.publishers, np.int64),
                np.zeros(shape.publishers, np.int64),
                np.zeros(shape.consumers, np.int64),
            )
            for queue in range(1, shape.queues + 1)
        ]
        self._left: list[Numbers] = []
        self._planter = Planter(self.layout, plant, ANOMALIES)

    def tables(self, run: str) -> Iterator[tuple[EventClass, int, pa.Table]]:
        """Class, process and rows, part by part. May be asked for once."""
        for block in range(self._shape.blocks):
            yield from self._numbered(run, *self._block(block))
        yield from self._numbered(run, *self._closing())
        self.generated.missing = self._planter.missing
        self.generated.legal += self._planter.legal

    def _numbered(self, run: str, rows: Rows, sown: list[Sown]) -> Iterator[tuple[EventClass, int, pa.Table]]:
        numbered = rows.numbered(self._counters)
        self.generated.rows += len(numbered.columns["event"])
        for label in sown:
            # The rows themselves are those that were added, in that order: their process is still known.
            process = int(rows.columns["process"][label.place]) if label.place >= 0 else 0
            event = int(numbered.event_of_place[label.place]) if label.place >= 0 else 0
            assert event or label.place < 0, "the row that shows an anomaly is there"
            self.generated.planted.append(Planted(label.anomaly, Finding(label.name, label.message, process, event)))
        for process, table in numbered.process_tables(run):
            yield self._class_of(process), process, table

    def _class_of(self, process: int) -> EventClass:
        if process == Layout.HARNESS:
            return EventClass.CONTROL
        return EventClass.BROKER if self._shape.tap and process == Layout.TAP else EventClass.CLIENT

    # --- a block

    def _block(self, block: int) -> tuple[Rows, list[Sown]]:
        rows = Rows()
        shape = self._shape
        is_first, is_last = block == 0, block == shape.blocks - 1
        if is_first:
            self._begin(rows)
        rows.describe(rows.add(Kind.PHASE, Layout.HARNESS, self._clock_us), f"burst {block + 1}")
        start_us = self._clock_us + self._lull_us
        told: list[Told] = []
        for state in self._states:
            rng = np.random.default_rng([shape.seed, block, state.queue])
            telling = Telling(self.layout, state, self._counters, rows)
            if is_first:
                telling.open(self._clock_us + 1)
            counts = self._counts(block, state.queue)
            failovers = self._failovers(block, state.queue)
            publishing = Publishing(self.layout, state.queue, rng, keep_left=is_last)
            published = publishing.publish(counts, state.sequences, start_us, failovers)
            delivering = Delivering(self.layout, state.queue, rng)
            deliveries = delivering.deliver(published)
            delivering.check(deliveries)
            telling.promote(published, self._faults)
            self._faults += len(published.outages)
            told.append(telling.tell(published, deliveries))
            state.sequences += counts
            self.generated.legal += legal_findings(told[-1], shape.tap)
            self._left.append(published.key[published.outcome == Outcome.LEFT])
        rows.seal()
        end_us = int(rows.columns["t_hi_us"].max())
        sown = self._planter.plant(block, rows, told, self._counters, end_us + self._lull_us // 2)
        self._clock_us = end_us + self._lull_us
        self.generated.failovers = self._faults
        return rows, sown

    def _begin(self, rows: Rows) -> None:
        """What was there is thrown away, and everybody knows the masters."""
        for state in self._states:
            rows.describe(rows.add(Kind.EMPTIED, Layout.HARNESS, self._clock_us, queue=state.queue), "purge")
            node = int(state.master(1))
            rows.add(Kind.PROMOTED, Layout.HARNESS, self._clock_us, queue=state.queue, node=node, epoch=1)
        self._clock_us += 1_000

    def _counts(self, block: int, queue: int) -> Numbers:
        """Messages of each of a queue's publishers: all have the same share, up to one."""
        shape = self._shape
        size = min(shape.block_messages, shape.messages - block * shape.block_messages)
        every = shape.queues * shape.publishers
        first = (queue - 1) * shape.publishers
        return np.array(
            [size // every + (1 if first + slot < size % every else 0) for slot in range(shape.publishers)], np.int64
        )

    def _failovers(self, block: int, queue: int) -> int:
        """How many of all fall into this block, and on this queue."""
        shape = self._shape
        return sum(
            1
            for number in range(shape.failovers)
            if shape.block_of_failover(number) == block and number % shape.queues == queue - 1
        )

    # --- the end

    def _closing(self) -> tuple[Rows, list[Sown]]:
        """Everything is drained, what is left is looked at, and all processes end."""
        rows, sown = Rows(), list[Sown]()
        rows.describe(rows.add(Kind.PHASE, Layout.HARNESS, self._clock_us), "drain")
        left = np.sort(np.concatenate([*self._left, *(remainder.keys for remainder in self._planter.remainders)]))
        self._planter.take_from_replicas(left)
        for state in self._states:
            for slot in range(self._shape.publishers):
                process = self.layout.publisher_process(state.queue, slot)
                self._close(rows, process, int(state.publisher_channels[slot]))
            for slot in range(self._shape.consumers):
                process = self.layout.consumer_process(state.queue, slot)
                channel = int(state.consumer_channels[slot])
                rows.add(Kind.UNSUBSCRIBED, process, self._clock_us + 10, channel=channel, queue=state.queue)
                self._close(rows, process, channel)
            its = left[left >> QUEUE_SHIFT == state.queue]
            places = self._look(rows, state, its)
            self._sow_left(sown, self._planter.remainders, its, places)
            self._list(rows, sown, state, its)
        end_us = self._clock_us + self._lull_us
        rows.add(Kind.PROCESS_END, list(self.layout.processes), np.full(len(self.layout.processes), end_us))
        return rows, sown

    def _close(self, rows: Rows, process: int, channel: int) -> None:
        rows.add(Kind.CHANNEL_OVER, process, self._clock_us + 20, channel=channel, number=int(Ending.BY_CLIENT))

    def _look(self, rows: Rows, state: QueueState, left: Numbers) -> Numbers:
        """Looking into a queue is done on another channel of its first consumer."""
        process = self.layout.consumer_process(state.queue, 0)
        rows.add(Kind.DEPTH, Layout.HARNESS, self._clock_us + 30, queue=state.queue, number=len(left))
        channel = int(self._counters.new_channels(1)[0])
        rows.add(Kind.CHANNEL_OPEN, process, self._clock_us + 40, channel=channel, node=process % NODES + 1)
        moments = self._clock_us + 50 + np.arange(len(left))
        places = rows.add(Kind.LEFT, process, moments, message=left, channel=channel, tag=np.arange(1, len(left) + 1))
        rows.add(
            Kind.CHANNEL_OVER, process, self._clock_us + 60 + len(left), channel=channel, number=int(Ending.BY_CLIENT)
        )
        return places

    @staticmethod
    def _sow_left(sown: list[Sown], remainders: list[Remainder], left: Numbers, places: Numbers) -> None:
        for remainder in remainders:
            for key in remainder.keys.tolist():
                at = int(np.searchsorted(left, key))
                if at < len(left) and left[at] == key:
                    sown.append(Sown(remainder.anomaly, Name.STUCK, key, int(places[at])))

    def _list(self, rows: Rows, sown: list[Sown], state: QueueState, left: Numbers) -> None:
        """The tap tells what each replica holds in the end: all of it, but for what is planted."""
        if not self._shape.tap:
            return
        for node in range(1, NODES + 1):
            lacking = self._planter.lacking(state.queue, node, left)
            held = np.setdiff1d(left, lacking)
            rows.add(Kind.HELD, Layout.TAP, np.full(len(held), self._clock_us + 70), message=held, node=node)
            listed = rows.add(
                Kind.LISTED,
                Layout.TAP,
                self._clock_us + 80,
                queue=state.queue,
                node=node,
                flags=int(Flag.SYNCHRONISED),
            )
            sown += [Sown(REPLICA_LOST, Name.REPLICA_LOST, key, int(listed[0])) for key in lacking.tolist()]


def write_history(
    history: History, run_directory: Path, run: str, progress: Callable[[int], None] = lambda rows: None
) -> Generated:
    """Write it as processes would. ``progress`` is told of the rows that were written. Raises `FileExistsError`."""
    events = run_directory / EVENTS_DIRECTORY
    events.mkdir(parents=True)
    parts: Counter[int] = Counter()
    for event_class, process, table in history.tables(run):
        directory = events / f"class={event_class}"
        directory.mkdir(exist_ok=True)
        write_table(directory / f"{process:06d}-{parts[process]:06d}.parquet", table)
        parts[process] += 1
        progress(table.num_rows)
    return history.generated

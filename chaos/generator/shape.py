"""What a history is to be like, and who is in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from chaos.judge.findings import QueueFacts, RunFacts
from chaos.record.message_key import PUBLISHERS_MAX, QUEUES_MAX

#: Nodes of the cluster that the history pretends to have; a queue's master moves round among them.
NODES = 3
#: Reading takes up to a tenth of the slack.
SLACK_MIN_US = 10_000


@dataclass(frozen=True, slots=True)
class Shape:
    """A history without any violation. Shares are of messages, between 0 and 1."""

    seed: int = 1
    #: Messages, without the further attempts at them.
    messages: int = 100_000
    queues: int = 4
    #: Of each queue; likewise the consumers.
    publishers: int = 2
    consumers: int = 3
    #: Unacknowledged deliveries of a consumer at most, about: what is requeued may be held beside them.
    prefetch: int = 50
    #: Published in a second, in all queues together.
    rate: int = 20_000
    #: Of one queue each, in turn.
    failovers: int = 2
    #: Of the queues, the last `undrained_queues` keep `left` of their last block; the `expiring_queues` before them
    #: remove `expired` by themselves.
    undrained_queues: int = 1
    expiring_queues: int = 1
    left: float = 0.002
    expired: float = 0.01
    #: Held by a channel that goes, and delivered again.
    redelivered: float = 0.01
    #: Given back by their consumers, once or several times, and dropped by them.
    requeued: float = 0.005
    discarded: float = 0.005
    #: Unanswered when the publisher's connection goes, and tried again.
    unresolved: float = 0.005
    refused: float = 0.002
    returned: float = 0.002
    #: The broker tells (`EventClass.BROKER`): some five more rows for each message.
    tap: bool = False
    #: Longest time from the sending of a delivery to its reading; the history itself takes a tenth of it.
    slack_us: int = 20_000
    #: Messages that are made at a time: some 700,000 rows, of which all columns are in memory.
    block_messages: int = 131_072

    def __post_init__(self) -> None:
        for is_possible, words in (
            (0 < self.queues <= QUEUES_MAX, f"there are 1 to {QUEUES_MAX} queues"),
            (0 < self.publishers * self.queues <= PUBLISHERS_MAX, f"there are 1 to {PUBLISHERS_MAX} publishers"),
            (self.undrained_queues + self.expiring_queues < self.queues, "at least one queue is an ordinary one"),
            (min(self.messages, self.consumers, self.prefetch, self.rate, self.block_messages) > 0, "all are above 0"),
            (self.slack_us >= SLACK_MIN_US, f"the slack is at least {SLACK_MIN_US} microseconds"),
        ):
            if not is_possible:
                raise ValueError(words)

    @property
    def blocks(self) -> int:
        return -(-self.messages // self.block_messages)

    def block_of_failover(self, number: int) -> int:
        """Of the failover with this number, from 0: they are spread over the run."""
        return int((number + 0.5) * self.blocks / self.failovers)


class Layout:
    """Numbers of the processes: the harness, the tap if there is one, all publishers, all consumers. From 1."""

    HARNESS = 1
    TAP = 2

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def publisher(self, queue: int, slot: int) -> int:
        """Number of the publisher in message keys: no two queues share one."""
        return (queue - 1) * self.shape.publishers + slot + 1

    def publisher_process(self, queue: int, slot: int) -> int:
        return self._first_publisher + self.publisher(queue, slot) - 1

    def consumer_process(self, queue: int, slot: int) -> int:
        shape = self.shape
        return self._first_publisher + shape.queues * shape.publishers + (queue - 1) * shape.consumers + slot

    @property
    def _first_publisher(self) -> int:
        return self.TAP + (1 if self.shape.tap else 0)

    @cached_property
    def processes(self) -> dict[int, frozenset[int]]:
        """All of them, with the publishers that each records for."""
        shape = self.shape
        roster: dict[int, frozenset[int]] = {self.HARNESS: frozenset()}
        if shape.tap:
            roster[self.TAP] = frozenset()
        for queue in range(1, shape.queues + 1):
            for slot in range(shape.publishers):
                roster[self.publisher_process(queue, slot)] = frozenset({self.publisher(queue, slot)})
            for slot in range(shape.consumers):
                roster[self.consumer_process(queue, slot)] = frozenset()
        return dict(sorted(roster.items()))

    def is_undrained(self, queue: int) -> bool:
        return queue > self.shape.queues - self.shape.undrained_queues

    def is_expiring(self, queue: int) -> bool:
        return not self.is_undrained(queue) and queue > (
            self.shape.queues - self.shape.undrained_queues - self.shape.expiring_queues
        )

    def facts(self) -> RunFacts:
        """What a judge must know of the run."""
        queues = [
            QueueFacts(may_remove=self.is_expiring(queue), is_drained=not self.is_undrained(queue))
            for queue in range(1, self.shape.queues + 1)
        ]
        return RunFacts(self.processes, queues, self.shape.slack_us)

"""What a client has published and settled since its last ``tx.commit`` or ``tx.rollback``, and how it is committed.

What is promised, and what is not (as RabbitMQ has it)
  - Until ``tx.commit`` nothing of it has happened: no message is in a queue, no settlement is done.
  - A publish that may not be (no such exchange, no permission ...) fails when it is made, and the channel with it; so
    nothing of the transaction happens. The exchanges are looked up once more before the first publish of a commit: one
    that was deleted meanwhile fails the commit while nothing of it has happened. Routes are those of the commit.
  - A commit hands over all publishes, in order, then all settlements, and answers ``commit-ok`` when every queue is
    answerable for its messages, as by a confirm. Refused publishes make it fail (406) after the fact: the others stay.
    It does not wait for settlements: like every acknowledgement, they are lost with the link that they were on.
  - Whoever gets no answer knows nothing. A node that dies in the middle leaves some of it done; publishes come before
    settlements, so what was consumed is delivered again rather than lost.
  - No other client sees all of it at the same moment: queues get their parts one after the other. A large commit is
    even worked off over many turns of the loop, others publishing in between. But it is not left off: a client that
    goes away in the middle, or closes its channel, has it carried out to the end first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from node.amqp.channel_events import Settlement
from node.amqp.frames import Publishes, weight_bytes
from node.amqp.ports import BrokerChannel, PublishRequest, Work
from node.amqp.settling import SETTLE_LIMIT, SettleWork
from node.amqp.unacked import Unacked, UnackedTable

#: Publishes that one call of the broker is given: as many as one read of the socket brings (`node.amqp.codec`).
PUBLISH_LIMIT = 64


class Transaction:
    """Kept in memory until the client decides."""

    __slots__ = ("publishes", "samples", "settlements", "size_bytes")

    def __init__(self) -> None:
        #: Without publish sequence numbers.
        self.publishes: list[PublishRequest] = []
        #: One publish to each exchange.
        self.samples: dict[str, PublishRequest] = {}
        #: Weight of what was published.
        self.size_bytes = 0
        #: Consecutive settlements of one kind lie together.
        self.settlements: list[tuple[Settlement, UnackedTable]] = []

    @property
    def is_small(self) -> bool:
        """It can be committed at once."""
        return len(self.publishes) <= PUBLISH_LIMIT and sum([len(each) for _, each in self.settlements]) <= SETTLE_LIMIT

    def publish(self, item: Publishes) -> list[PublishRequest]:
        """Returns what was added."""
        self.size_bytes += weight_bytes(item)
        requests = list(map(PublishRequest, item.messages, item.mandatory, [0] * len(item.messages)))
        self.publishes += requests
        for request in requests:
            self.samples.setdefault(request.message.exchange, request)
        return requests

    def settle(self, settlement: Settlement, entries: UnackedTable) -> None:
        """These were taken from the channel's table."""
        if self.settlements and self.settlements[-1][0] is settlement:
            self.settlements[-1][1].absorb(entries)
        else:
            self.settlements.append((settlement, entries))

    def settle_one(self, settlement: Settlement, tag: int, entry: Unacked) -> None:
        """As `settle`."""
        if not self.settlements or self.settlements[-1][0] is not settlement:
            self.settlements.append((settlement, UnackedTable()))
        self.settlements[-1][1].put(tag, entry)

    def all_settled(self) -> UnackedTable:
        """What was settled, in whichever way. The transaction is of no use then."""
        entries = UnackedTable()
        for _, some in self.settlements:
            entries.absorb(some)
        return entries


class CommitWork:
    """A large transaction on its way to the queues. Implements `Work`."""

    __slots__ = ("_issue", "_published", "_publishes", "_rest", "_settlements")

    def __init__(self, transaction: Transaction, issue: Callable[[int], range]) -> None:
        """``issue`` gives numbers to so many publishes."""
        self._publishes = transaction.publishes
        self._published = 0
        self._issue = issue
        self._settlements = deque(SettleWork(settlement, entries) for settlement, entries in transaction.settlements)
        #: Of the last publishes: those that go to many queues are work themselves.
        self._rest: Work | None = None

    def step(self, broker: BrokerChannel) -> bool:
        """See `Work`."""
        if self._rest is not None:
            if self._rest.step(broker):
                self._rest = None
            return False
        if self._published < len(self._publishes):
            requests = self._publishes[self._published : self._published + PUBLISH_LIMIT]
            self._published += len(requests)
            seqs = self._issue(len(requests))
            numbered = [each._replace(publish_seq=seq) for each, seq in zip(requests, seqs, strict=True)]
            self._rest = broker.publish(numbered)
            return False
        if self._settlements and self._settlements[0].step(broker):
            self._settlements.popleft()
        return not self._settlements

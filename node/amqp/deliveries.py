"""The deliveries of a channel: their tags, which are unacked, which are held back, and how they are settled.

Channel-wide prefetch. The queue knows only the prefetch of a consumer, and that few may be on their way to one whose
channel has a limit: as many as that, and no more than there is room for (`node.amqp.grants`). What exceeds the limit is
held here, in order, and released by settlements, within a transaction by its commit. Held deliveries have no delivery
tag yet. If the session in which they came ends they are gone (`forget_source`), for the queue gives them again. What
`basic.get` took does not count. Consumers without acks do not count either, and get what comes: it has left its queue
for good, so whatever was held of it would be lost with the consumer. (The reference makes them wait while the limit is
reached; there it is the queue that keeps their messages.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from node.amqp.channel_events import ChannelEffect, Delivered, Settle, Settlement
from node.amqp.frames import SETTLE_MULTIPLE, SETTLE_NEGATIVE, SETTLE_REQUEUE
from node.amqp.grants import Consumer, Grants
from node.amqp.ports import DeliverySource, Got
from node.amqp.settling import LONG_SETTLEMENT, SETTLE_LIMIT, SettleWork
from node.amqp.transaction import Transaction
from node.amqp.unacked import UnackedTable, group_by_source
from node.amqp.writers import pack_deliveries, pack_get_ok
from node.ids import SeqId
from node.queues.backing_queue import Delivery


class Refused(NamedTuple):
    """This tag is not unacked."""

    tag: int
    #: ``SETTLE_`` bits of the settlement that named it.
    bits: int


class Interrupted(NamedTuple):
    """First this is to be done, then the ``rest`` settled: (tag, ``SETTLE_`` bits) each."""

    work: SettleWork
    rest: list[tuple[int, int]]


#: Deliveries of one queue for one consumer.
_Batch = tuple[Consumer, DeliverySource, Sequence[Delivery]]


class Deliveries:
    """Appends frames to the connection's ``output`` and effects to those of the channel."""

    __slots__ = (
        "_counted",
        "_effects",
        "_frame_max",
        "_gets",
        "_grants",
        "_held",
        "_next_tag",
        "_number",
        "_output",
        "_over",
        "limit",
        "unacked",
    )

    def __init__(self, number: int, frame_max: int, output: list[bytes], effects: deque[ChannelEffect]) -> None:
        self.unacked = UnackedTable()
        #: Deliveries to consumers that may be out on the whole channel; 0 = no limit.
        self.limit = 0
        #: Those that are out: unacked, or settled in a transaction that is not committed. And of `basic.get`.
        self._counted = self._gets = 0
        self._number = number
        self._frame_max = frame_max
        self._output = output
        self._effects = effects
        #: Above the limit, in order.
        self._held: deque[_Batch] = deque()
        #: Sources whose deliveries are not to be sent. These leave ``_held`` together, before anything comes or goes:
        #: when a node is lost, thousands of queues may say so in one turn.
        self._over: set[DeliverySource] = set()
        self._grants = Grants(effects)
        self._next_tag = 1

    @property
    def held_count(self) -> int:
        """Deliveries held back by the limit."""
        return sum(len(deliveries) for _, source, deliveries in self._held if source not in self._over)

    # --- out ---

    def send(self, more: _Batch | None = None) -> None:
        """Send what is held, and then ``more``, as far as the limit allows; the rest is held."""
        self._drop_over()
        held, limit = self._held, self.limit
        if more is not None:
            if more[0].no_ack:
                self._send(*more)
            else:
                held.append(more)
        while held and (not limit or self._counted < limit):
            consumer, source, deliveries = held.popleft()
            if limit and len(deliveries) > (room := limit - self._counted):
                held.appendleft((consumer, source, deliveries[room:]))
                deliveries = deliveries[:room]
            self._counted += len(deliveries)
            self._send(consumer, source, deliveries)
        if self._grants.is_waiting:
            self._grants.report(self._room)

    @property
    def _room(self) -> int | None:
        return self.limit - self._counted if self.limit else None

    def _send(self, consumer: Consumer, source: DeliverySource, deliveries: Sequence[Delivery]) -> None:
        first_tag = self._next_tag
        self._next_tag += len(deliveries)
        if not consumer.no_ack:
            self.unacked.add(first_tag, source, consumer.tag, deliveries)
        self._output.append(pack_deliveries(self._number, consumer.packed_tag, first_tag, deliveries, self._frame_max))
        if self.limit and not consumer.no_ack:
            self._grants.add(consumer, source, deliveries)
        else:
            self._effects.append(Delivered(source, consumer.tag, len(deliveries)))

    def send_got(self, got: Got, no_ack: bool) -> None:
        """The answer to ``basic.get``: it counts against no limit."""
        tag = self._next_tag
        self._next_tag += 1
        if not no_ack:
            self._gets += 1
            self.unacked.add(tag, got.source, "", [got.delivery])
        self._output.append(pack_get_ok(self._number, tag, got.delivery, got.remaining, self._frame_max))

    def take_back(self, consumer: Consumer) -> None:
        """The consumer is gone: what was held for it, or came too early, goes back to its queue."""
        self._drop_over()
        self._grants.forget(consumer)
        back = [(source, deliveries) for owner, source, deliveries in self._held if owner is consumer]
        if back:
            self._held = deque(held for held in self._held if held[0] is not consumer)
        for source, deliveries in back + (consumer.early or []):
            self.requeue(source, deliveries)

    def forget_source(self, source: DeliverySource, starting: Consumer | None) -> None:
        """Its queue has taken back whatever was not settled: what was held of that, or came too early for the consumer
        that is being started, is not sent. But what is not to be acknowledged was not taken back."""
        if self._held:
            self._over.add(source)
        if starting is not None and starting.early and not starting.no_ack:
            starting.early = [early for early in starting.early if early[0] != source]

    def _drop_over(self) -> None:
        if self._over:
            self._held = deque(held for held in self._held if held[1] not in self._over)
            self._over.clear()

    def requeue(self, source: DeliverySource, deliveries: Sequence[Delivery]) -> None:
        """Deliveries that were not sent go back to their queue."""
        self.perform(Settlement.REQUEUE, {source: [delivery.seq_id for delivery in deliveries]})

    # --- settled ---

    def settled(self, entries: UnackedTable) -> None:
        """These do not count any longer."""
        gets = sum([not entry.consumer_tag for entry in entries]) if self._gets else 0
        self._gets -= gets
        self._counted -= len(entries) - gets

    def settle(
        self, settlements: Sequence[tuple[int, int]], transaction: Transaction | None
    ) -> Refused | Interrupted | None:
        """Settle, or note in the transaction, what the client acked, nacked or rejected: (tag, ``SETTLE_`` bits) each.

        Returns the first of them whose tag is not unacked, or that names very much; what comes before it is settled.
        ``None``: all are.
        """
        groups: dict[DeliverySource, list[SeqId]] = {}
        current = Settlement.ACK
        left = iter(settlements)
        try:
            for tag, bits in left:
                settlement = _settlement(bits)
                if settlement is not current:
                    self.perform(current, groups)
                    groups, current = {}, settlement
                if bits & SETTLE_MULTIPLE:
                    entries = self.unacked.take_through(tag)
                    if entries is None:
                        return Refused(tag, bits)
                    if transaction is not None:
                        transaction.settle(settlement, entries)
                        continue
                    self.settled(entries)
                    if len(entries) > LONG_SETTLEMENT:
                        return Interrupted(SettleWork(settlement, entries), list(left))
                    for source, seq_ids in group_by_source(entries).items():
                        groups.setdefault(source, []).extend(seq_ids)
                    continue
                entry = self.unacked.take(tag)
                if entry is None:
                    return Refused(tag, bits)
                if transaction is not None:
                    transaction.settle_one(settlement, tag, entry)
                    continue
                if entry.consumer_tag:
                    self._counted -= 1
                else:
                    self._gets -= 1
                group = groups.get(entry.source)
                if group is None:
                    groups[entry.source] = [entry.seq_id]
                else:
                    group.append(entry.seq_id)
        finally:
            self.perform(current, groups)
        if self._held or self._grants.is_waiting:
            self.send()
        return None

    def perform(self, settlement: Settlement, groups: Mapping[DeliverySource, Sequence[SeqId]]) -> None:
        """Tell the broker."""
        # What is requeued goes back at once, or the queue would send later messages between earlier ones.
        for source, seq_ids in groups.items():
            limit = max(1, len(seq_ids)) if settlement is Settlement.REQUEUE else SETTLE_LIMIT
            for at in range(0, len(seq_ids), limit):
                self._effects.append(Settle(settlement, source, seq_ids[at : at + limit]))

    def recover(self) -> SettleWork | None:
        """Everything unacked goes back to its queue; if it is very much, by the work that is returned."""
        entries = self.unacked.take_through(0)
        assert entries is not None, "0 takes whatever there is"
        self.settled(entries)
        if len(entries) > LONG_SETTLEMENT:
            return SettleWork(Settlement.REQUEUE, entries)
        self.perform(Settlement.REQUEUE, group_by_source(entries))
        return None

    def drop(self) -> None:
        """The channel fails: the broker requeues all that is out or held."""
        self.unacked = UnackedTable()
        self._held.clear()
        self._over.clear()
        self._grants.clear()
        self._counted = self._gets = 0

    def check_invariants(self, consumers: Mapping[str, Consumer]) -> None:
        """Raise `AssertionError` if the state contradicts itself, or does not go with those who consume."""
        self.unacked.check_invariants()
        self._grants.check_invariants(self._room)
        gets = sum([not entry.consumer_tag for entry in self.unacked])
        assert gets <= self._gets, "what was got is counted"
        assert len(self.unacked) - gets <= self._counted, "what is unacked counts"
        if self._held:
            assert self.limit, "deliveries are held only under a channel-wide limit"
            assert self._counted >= self.limit, "deliveries are held only while the limit is reached"
        for consumer, _, deliveries in self._held:
            assert not consumer.no_ack, "what is not to be acknowledged has left its queue, and is sent"
            assert consumers.get(consumer.tag) is consumer, "nothing is held for a consumer that is gone"
            assert deliveries, "an empty batch would never be released"


def _settlement(bits: int) -> Settlement:
    if not bits & SETTLE_NEGATIVE:
        return Settlement.ACK
    return Settlement.REQUEUE if bits & SETTLE_REQUEUE else Settlement.DISCARD

"""Settlements that name more deliveries than one turn of the loop can settle."""

from __future__ import annotations

from node.amqp.channel_events import Settlement
from node.amqp.ports import BrokerChannel, DeliverySource
from node.amqp.unacked import UnackedTable, group_by_source

#: Deliveries that one call of the broker acks or discards: one settlement may name all that are out.
SETTLE_LIMIT = 256
#: What names more is `SettleWork`.
LONG_SETTLEMENT = 1024


class SettleWork:
    """Settles the entries of a table, step by step. Implements `Work`.

    What goes back to its queue in pieces is told so, and the queue delivers nothing before the last of them
    (`BrokerChannel.requeue`), or it would send later messages between earlier ones.
    """

    __slots__ = ("_entries", "_settlement", "_sources")

    def __init__(self, settlement: Settlement, entries: UnackedTable) -> None:
        self._settlement = settlement
        self._entries = entries
        #: Queues that were told to expect more (a dict for its order).
        self._sources: dict[DeliverySource, None] = {}

    def step(self, broker: BrokerChannel) -> bool:
        """See `Work`."""
        entries = self._entries
        for source, seq_ids in group_by_source(entries.take_some(SETTLE_LIMIT)).items():
            if self._settlement is Settlement.ACK:
                broker.ack(source, seq_ids)
            elif self._settlement is Settlement.DISCARD:
                broker.discard(source, seq_ids)
            else:
                self._sources[source] = None
                broker.requeue(source, seq_ids, more_follow=True)
        if len(entries):
            return False
        for source in self._sources:
            broker.requeue(source, [], more_follow=False)
        return True

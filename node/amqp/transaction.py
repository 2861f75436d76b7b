"""What a client has published and settled since its last ``tx.commit`` or ``tx.rollback``."""

from __future__ import annotations

from node.amqp.channel_events import Settlement
from node.amqp.frames import Publishes, weight_bytes
from node.amqp.ports import PublishRequest
from node.amqp.unacked import Unacked

#: A settlement and the entries of the unacked table, by delivery tag, that it took.
TakenEntries = tuple[Settlement, dict[int, Unacked]]


class Transaction:
    """Kept in memory until the client decides."""

    __slots__ = ("publishes", "settlements", "size_bytes")

    def __init__(self) -> None:
        #: Without publish sequence numbers.
        self.publishes: list[PublishRequest] = []
        #: Weight of what was published.
        self.size_bytes = 0
        self.settlements: list[TakenEntries] = []

    def publish(self, item: Publishes) -> None:
        self.size_bytes += weight_bytes(item)
        self.publishes += map(PublishRequest, item.messages, item.mandatory, [0] * len(item.messages))

    def settle(self, settlement: Settlement, entries: dict[int, Unacked]) -> None:
        self.settlements.append((settlement, entries))

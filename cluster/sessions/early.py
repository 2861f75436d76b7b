"""`EarlyDeliveries`: what the consumers of one channel are delivered before its client can be told of it.

Deliveries may arrive in one frame with the master's answer to `consume`, before the client has been told that its
consumer exists. They are early: kept from the asking on (`starting`) until the caller has told its client (`started`).
What other consumers of that channel are delivered of the same queue meanwhile stands behind them: a channel has
everything of a queue in the order in which it was handed out (AMQP 0-9-1, 4.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from node.ids import QueueId
from node.queues.backing_queue import Delivery


class EarlyDelivery(NamedTuple):
    """Of a session, to one consumer."""

    queue_id: QueueId
    session: int
    consumer_tag: str
    deliveries: Sequence[Delivery]


class EarlyDeliveries:
    """Of one channel; see the top of this module."""

    __slots__ = ("_kept", "_starting")

    def __init__(self) -> None:
        #: Tags of consumers of which the client has yet to be told. (A dict for its order; there is one as a rule.)
        self._starting: dict[str, None] = {}
        self._kept: list[EarlyDelivery] = []

    def starting(self, consumer_tag: str) -> None:
        """The queue is about to be asked for this consumer."""
        self._starting[consumer_tag] = None

    def keeps(self, early: EarlyDelivery) -> bool:
        """False if it is not early, but may be handed on at once."""
        is_early = early.consumer_tag in self._starting
        if is_early or (self._kept and any(kept.queue_id == early.queue_id for kept in self._kept)):
            self._kept.append(early)
            return True
        return False

    def started(self, consumer_tag: str) -> list[EarlyDelivery]:
        """The client knows of this consumer. Returns what may be handed on now, in order."""
        del self._starting[consumer_tag]
        due: list[EarlyDelivery] = []
        kept: list[EarlyDelivery] = []
        behind: dict[QueueId, None] = {}
        for early in self._kept:
            if early.consumer_tag in self._starting or early.queue_id in behind:
                behind[early.queue_id] = None
                kept.append(early)
            else:
                due.append(early)
        self._kept = kept
        return due

    def given_up(self, consumer_tag: str) -> list[EarlyDelivery]:
        """There will be no such consumer. Returns what stood behind its deliveries."""
        self._kept = [early for early in self._kept if early.consumer_tag != consumer_tag]
        return self.started(consumer_tag)

    def __len__(self) -> int:
        """Consumers that are being started."""
        return len(self._starting)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if something would never be handed on."""
        assert self._starting or not self._kept, "what is kept waits for a consumer that is being started"

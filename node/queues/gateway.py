"""How a broker channel reaches a queue, wherever its master is.

`cluster.sessions` implements it, for a node that is alone as for a cluster, where a queue's master may be elsewhere and
may move. The channel does not notice the difference:

- publishes to one queue from one channel arrive in order, each exactly once (a gateway that must send again
  relies on `BackingQueue.is_duplicate`);
- the gateway keeps the channel's credit towards each queue (`node.flow.credit`) and tells when it is used up; a
  blocked channel may publish all the same, it is merely expected to stop soon;
- after a move, consumers continue by themselves or are cancelled (`ConsumerSpec.cancel_on_failover`); deliveries
  of the earlier `session` can no longer be settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from node.flow.credit import Hop
from node.ids import ChannelKey, Epoch, QueueId, SeqId
from node.message import Message
from node.queues.backing_queue import Delivery
from node.queues.events import ConsumerSpec


class QueueChannelSink(Protocol):
    """What queues tell a broker channel."""

    def queue_delivered(
        self, queue_id: QueueId, session: int, consumer_tag: str, deliveries: Sequence[Delivery]
    ) -> None: ...

    def queue_confirmed(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None: ...

    def queue_rejected(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None: ...

    def queue_cancelled_consumer(self, queue_id: QueueId, consumer_tag: str) -> None: ...

    def queue_session_over(self, queue_id: QueueId, session: int) -> None:
        """What was delivered in this session can be settled no longer: what a client has not seen, it is not to see."""

    def queue_hop_changed(self, hop: Hop) -> None:
        """A hop from the channel to a queue, or to what lies on the way there, was blocked or freed."""


class QueueGateway(Protocol):
    """All queues of the cluster, as one broker's channels reach them."""

    def open_channel(self, sink: QueueChannelSink) -> ChannelKey:
        """Register a channel; its key names it in every later call."""

    def publish(
        self, channel: ChannelKey, queue_id: QueueId, messages: Sequence[Message], publish_seqs: Sequence[int]
    ) -> None:
        """Enqueue, in order. ``publish_seqs[i]`` is 0 if nobody waits for the confirm of ``messages[i]``.

        A queue that no longer exists confirms at once (the reference treats it so).
        """

    def settle_ack(self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]) -> None: ...

    def settle_requeue(
        self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId], more_follow: bool = False
    ) -> None:
        """``more_follow``: see `QueueProcess.requeue`."""

    def settle_discard(
        self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]
    ) -> None: ...

    def grant(self, channel: ChannelKey, queue_id: QueueId, session: int, consumer_tag: str, count: int) -> None:
        """``count`` deliveries to this consumer were written to its socket."""

    async def consume(self, channel: ChannelKey, queue_id: QueueId, spec: ConsumerSpec) -> None:
        """Raises `ChannelError` 403 (exclusive use), 404 (no such queue, or no master available)."""

    async def cancel(self, channel: ChannelKey, queue_id: QueueId, consumer_tag: str) -> None: ...

    async def get(self, channel: ChannelKey, queue_id: QueueId, no_ack: bool) -> tuple[int, Delivery, int] | None:
        """``(session, delivery, remaining ready)`` or ``None``."""

    async def purge(self, queue_id: QueueId) -> int: ...

    async def counts(self, queue_id: QueueId) -> tuple[int, int]:
        """``(ready, consumers)``."""

    async def delete_if(self, queue_id: QueueId, if_unused: bool, if_empty: bool) -> tuple[int, Epoch]:
        """Check the conditions at the master and seal the queue against further use: number of ready messages, and the
        epoch in which this holds.

        Raises `ChannelError` 406 if a condition fails. The caller then submits the `DeleteQueue` command
        (`node.broker.deletion`).
        """

    async def delete_abandoned(self, queue_id: QueueId) -> None:
        """`delete_if`, or what followed it, failed: the command may have been submitted, and may be carried out yet.

        The master keeps the queue sealed until that is decided: it asks for the same deletion until it is answered.
        """

    def busiest_queue(self, channel: ChannelKey) -> QueueId | None:
        """The queue that owes the channel the most confirms, ``None`` if none owes any."""

    def close_channel(self, channel: ChannelKey) -> None:
        """Requeue its unacked messages, remove its consumers, forget it."""

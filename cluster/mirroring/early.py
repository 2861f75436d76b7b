"""What a master says that is ahead of this node in the metadata log: it waits here.

A master attaches as soon as *it* has applied the record that names its mirrors; the mirror's node may be behind. Two
things would go wrong if it answered at once. It may not know yet that it is a mirror. Or, worse, it still plays the
part that an older record gave it and that newer ones, on their way, take away and give back: it would take the
attach in its old part, be called synchronised, and then close that copy with the transient messages in it. So an
attach says how far its master was in the log (`Attach.as_of_index`), and waits, with what follows it, until this node
is as far.

Bounded by the masters, which stream no more than their window before the first answer, and in number of queues.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.mirroring.messages import Attach, Ops
from node.ids import NodeName, QueueId

#: Queues whose master may speak before its record is applied here: a whole node's failover, with room to spare.
EARLY_QUEUES_MAX = 10_000


class EarlyMessages:
    """By queue: the latest attach that came too early, and the operations after it."""

    def __init__(self) -> None:
        self._waiting: dict[QueueId, list[tuple[NodeName, Attach | Ops]]] = {}

    def is_early(self, message: Attach | Ops, applied_index: int) -> bool:
        """True if the message is ahead of a node that has applied the log up to here, or follows one that waits."""
        if isinstance(message, Attach):
            return message.as_of_index > applied_index
        return message.queue_id in self._waiting

    def keep(self, node: NodeName, message: Attach | Ops) -> None:
        """An attach takes the place of what waited before it; operations without an attach are of no use."""
        queue_id = message.queue_id
        if isinstance(message, Attach):
            self._waiting.pop(queue_id, None)
            self._waiting[queue_id] = [(node, message)]
            if len(self._waiting) > EARLY_QUEUES_MAX:
                del self._waiting[next(iter(self._waiting))]
        elif (waiting := self._waiting.get(queue_id)) is not None:
            waiting.append((node, message))

    def due(self, applied_index_of: Callable[[QueueId], int]) -> list[QueueId]:
        """Queues whose messages need not be kept waiting, each having followed the log up to there."""
        return [queue_id for queue_id in self._waiting if self._is_due(queue_id, applied_index_of(queue_id))]

    def take(self, queue_id: QueueId, applied_index: int) -> list[tuple[NodeName, Attach | Ops]]:
        """What has waited, in its order, if it need not wait any longer."""
        return self._waiting.pop(queue_id) if self._is_due(queue_id, applied_index) else []

    def _is_due(self, queue_id: QueueId, applied_index: int) -> bool:
        waiting = self._waiting.get(queue_id)
        return waiting is not None and not self.is_early(waiting[0][1], applied_index)

    def forget_queue(self, queue_id: QueueId) -> None:
        self._waiting.pop(queue_id, None)

    def forget_node(self, node: NodeName) -> None:
        """Its link broke: nothing of the conversation will follow."""
        for queue_id in [queue_id for queue_id, waiting in self._waiting.items() if waiting[0][0] == node]:
            del self._waiting[queue_id]

    def check_invariants(self) -> None:
        assert len(self._waiting) <= EARLY_QUEUES_MAX, "what waits is bounded"
        for queue_id, waiting in self._waiting.items():
            assert isinstance(waiting[0][1], Attach), "what waits begins with an attach"
            assert not any(isinstance(message, Attach) for _, message in waiting[1:]), "and with the latest"
            assert all(message.queue_id == queue_id for _, message in waiting), "each queue has its own"

"""What the cluster has committed about its queues while it ran: looked at after every turn in which a node has learned.

Checked at each look, on each node alone: a queue's epochs only grow, and one epoch has one master for ever, whoever
looks. Noted, for the judge: promotions, and when a queue was *interrupted*, that is down, or back at its master in a
new epoch. An interruption closes the copies that nobody else could take over, and what lives in memory only goes with
them, though no process has died: as with RabbitMQ's pause_minority, whose nodes stop their queues.
"""

from __future__ import annotations

from collections.abc import Callable

from chaos.history import Kind, ProcessLog
from cluster.composition import Node
from cluster.metadata.records import MastershipRecord
from node.ids import Epoch, NodeName, QueueId


class RecordWatch:
    """See the module text. ``queue_number`` tells which queue of the workload one is, if it is one."""

    def __init__(
        self,
        log: ProcessLog,
        queue_number: Callable[[str], int | None],
        violate: Callable[[str, str], None],
    ) -> None:
        self._log = log
        self._queue_number = queue_number
        self._violate = violate
        #: Node and life -> how far it had applied the log when it was looked at.
        self._looked_at: dict[tuple[str, int], int] = {}
        #: The same -> the epochs it had reached.
        self._known: dict[tuple[str, int], dict[QueueId, Epoch]] = {}
        #: The newest that anybody has seen.
        self.newest: dict[QueueId, MastershipRecord] = {}
        self._masters: dict[tuple[QueueId, Epoch], NodeName] = {}
        #: Queue of the workload -> when it was interrupted, in microseconds.
        self.interruptions: dict[int, list[int]] = {}
        #: Queue of the workload -> when the cluster has said that it was promoted with a loss.
        self.lossy: dict[int, list[int]] = {}

    def look(self, name: str, life: int, node: Node) -> None:
        """Cheap unless the node has applied something since the last look."""
        index = node.raft.applied_index
        if self._looked_at.get((name, life)) == index:
            return
        self._looked_at[name, life] = index
        known = self._known.setdefault((name, life), {})
        for queue_id, record in node.runtime.metadata.state.masterships.items():
            epoch = known.get(queue_id, record.epoch)
            if record.epoch < epoch:
                self._violate("epoch", f"queue {queue_id} of {name} went from epoch {epoch} back to {record.epoch}")
            known[queue_id] = record.epoch
            before = self.newest.get(queue_id)
            if record is not before:
                self._see(name, node, queue_id, before, record)

    def _see(
        self, name: str, node: Node, queue_id: QueueId, before: MastershipRecord | None, record: MastershipRecord
    ) -> None:
        master = self._masters.setdefault((queue_id, record.epoch), record.master)
        if master != record.master:
            self._violate(
                "two masters", f"queue {queue_id}, epoch {record.epoch}: {name} has {record.master}, others {master}"
            )
        if before is not None and record.epoch < before.epoch:
            return  # this node is behind
        self.newest[queue_id] = record
        queue = node.runtime.records.find_queue(queue_id)
        number = None if queue is None else self._queue_number(queue.name)
        if number is None or before is None:
            return
        is_new_epoch = record.epoch > before.epoch
        if record.lossy_promotions > before.lossy_promotions:
            self.lossy.setdefault(number, []).append(self._log.now_us())
        if record.is_down or (is_new_epoch and record.master == before.master):
            self.interruptions.setdefault(number, []).append(self._log.now_us())
        if is_new_epoch:
            self._log.record(
                Kind.PROMOTE, queue_id=number, epoch=record.epoch, t_lo_us=max(1, self._log.now_us() - 10_000_000)
            )

"""What the queues of a node ask of those around them: `cluster.runtime.queue_set`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroringSettings
from cluster.mirroring.messages import MirrorMessage
from cluster.mirroring.reports import MirroringReport
from cluster.runtime.recoveries import OpenedInSteps
from node.ids import NodeName, QueueId
from node.queues.events import QueueEffect
from node.queues.options import QueueOptions
from node.topology.records import QueueRecord


class QueueFiles(OpenedInSteps, Protocol):
    """Local storage of queues, over all vhosts."""

    def delete_queue(self, queue: QueueRecord) -> None:
        """Delete the files of a queue that is not open."""


class MirrorLinks(Protocol):
    """The way to the other nodes."""

    def send(self, node: NodeName, message: MirrorMessage) -> None: ...

    def linked_nodes(self) -> Sequence[NodeName]:
        """Nodes that can be reached now."""

    def is_congested_now(self, node: NodeName) -> bool:
        """Much waits to be sent to this node, with what was said to it in this turn."""

    def is_full_now(self, node: NodeName) -> bool:
        """Messages to consumers there have to wait; never of this node itself."""

    def when_room(self, node: NodeName, key: Hashable, go_on: Callable[[], None]) -> None:
        """Call this when they need not any more, or the link is gone; ``key`` is who waits. It does not raise."""


class QueueSettings(Protocol):
    """What is committed about queues."""

    def applied_index_of(self, queue_id: QueueId, /) -> int:
        """Index of the last entry of the metadata log whose consequences for this queue are carried out here."""

    def is_mirror(self, queue_id: QueueId, /) -> bool:
        """As far as the log is applied here, there is a queue of this id, and this node is one of its mirrors; what
        follows from that may be still to come."""

    def was_consumed(self, queue: QueueRecord, /) -> bool:
        """By now it is committed that the queue had a consumer: it may be so since the record was handed out."""

    def mirroring_settings(self, queue: QueueRecord) -> MirroringSettings: ...

    def queue_options(self, queue: QueueRecord) -> QueueOptions: ...


class EffectsPort(Protocol):
    """Where the channels are."""

    def dispatch(self, queue: QueueRecord, effects: Sequence[QueueEffect]) -> None: ...

    def role_ended(self, queue_id: QueueId) -> None:
        """The queue process of this queue is gone from this node."""

    def role_began(self, record: MastershipRecord) -> None:
        """This node has taken up the role that ``record`` gives it, some time after the record was applied."""


class ClusterPort(Protocol):
    """Who has the cluster decide."""

    def storage_failed(self, record: MastershipRecord, *, is_damaged: bool) -> None:
        """This node cannot keep its copy: the cluster should go on without it. Said again under each new record, and
        after a while.

        ``is_damaged``: the copy itself cannot be relied on.
        """

    def report(self, record: MastershipRecord, report: MirroringReport) -> None:
        """Something that the metadata group must know."""

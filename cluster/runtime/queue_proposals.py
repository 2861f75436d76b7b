"""What the queues of this node have the cluster decide, by commits to the metadata group.

Nothing is repeated here, and no answer is waited for: who said it says it again (a master that is not in service, a
copy that failed), or it is no longer true. One thing is kept in mind: a mirror that was dropped because it did not
answer is offered its place again, once its drop is committed and it can be spoken to.
"""

from __future__ import annotations

import logging
from typing import Protocol

from cluster.metadata.commands import AddMirror, Command, DropMirror, MirrorFollows, MirrorSynchronised, MoveMaster
from cluster.metadata.mastership import heirs
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.reports import (
    MirroringReport,
    ReportFenced,
    ReportFollows,
    ReportMirrorStalled,
    ReportSynchronised,
    ReportTakesService,
)
from cluster.runtime.background import Background
from cluster.runtime.metadata_group import MetadataGroup
from cluster.runtime.records import Records
from cluster.runtime.service_requests import ServiceRequests
from node.ids import NodeName, QueueId

log = logging.getLogger(__name__)


class LinkView(Protocol):
    """Who can be spoken to."""

    def is_up(self, node: NodeName) -> bool: ...


class QueueProposals:
    """See the top of this module. Implements `cluster.runtime.queue_set.ClusterPort`."""

    def __init__(
        self, node: NodeName, metadata: MetadataGroup, records: Records, links: LinkView, background: Background
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._records = records
        self._links = links
        self._background = background
        self._service_requests = ServiceRequests(node, metadata.change, background.spawn)
        #: Mirrors that this node had dropped from queues it masters.
        self._dropped: set[tuple[QueueId, NodeName]] = set()

    def propose(self, command: Command) -> None:
        """Have it committed, if the cluster agrees; a refusal is logged."""
        self._background.spawn(self._metadata.change(command), f"proposal {command}")

    def storage_failed(self, record: MastershipRecord, *, is_damaged: bool) -> None:
        """A master that fails hands over to its oldest synchronised (else complete) mirror; a mirror leaves."""
        if record.master != self._node:
            self.propose(DropMirror(record.queue_id, record.epoch, self._node))
        elif candidates := heirs(record):
            self.propose(MoveMaster(record.queue_id, record.epoch, candidates[0], is_old_lost=is_damaged))
        else:
            log.error(
                "queue %d has no other complete copy that is up: it is unavailable until this node has room on its "
                "disk and descriptors again, or, if it wants neither, until what is wrong is mended and it restarts",
                record.queue_id,
            )

    def report(self, record: MastershipRecord, report: MirroringReport) -> None:
        """What mirroring has found out about a queue that this node masters."""
        queue_id, epoch = record.queue_id, record.epoch
        if isinstance(report, ReportSynchronised):
            self.propose(MirrorSynchronised(queue_id, epoch, report.node, self._records.applied_index_of(queue_id)))
        elif isinstance(report, ReportFollows):
            self.propose(MirrorFollows(queue_id, epoch, report.node, self._records.applied_index_of(queue_id)))
        elif isinstance(report, ReportTakesService):
            self._service_requests.ask(record)
        elif isinstance(report, ReportMirrorStalled):
            log.warning("queue %d: mirror on %s does not answer, dropping it", queue_id, report.node)
            self._dropped.add((queue_id, report.node))
            self.propose(DropMirror(queue_id, epoch, report.node))
        elif isinstance(report, ReportFenced):
            log.warning("queue %d: epoch %d is fenced by %d", queue_id, epoch, report.known_epoch)

    # --- mirrors that were dropped ---

    def node_down(self, node: NodeName) -> None:
        """The cluster has declared it down: what it had will come back with it."""
        self._dropped = {entry for entry in self._dropped if entry[1] != node}

    def readmit(self) -> None:
        """Now and then: offer the mirrors that were dropped their places again."""
        for queue_id, node in sorted(self._dropped):
            record = self._records.mastership(queue_id)
            if record is None or record.master != self._node:
                self._dropped.discard((queue_id, node))
            elif (
                node not in record.mirrors  # its drop may come yet
                and self._links.is_up(node)
                and self._metadata.consensus.has_quorum
            ):
                self._dropped.discard((queue_id, node))
                self.propose(AddMirror(queue_id, record.epoch, node))

    def check_invariants(self) -> None:
        assert all(node != self._node for _, node in self._dropped), "a master is not a mirror of its own queue"

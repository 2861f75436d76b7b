"""What the queues of this node have the cluster decide, by commits to the metadata group.

Almost nothing is repeated here, and no answer is waited for: who said it says it again (a master that is not in
service, or whose mirror is not known yet to have everything; a copy that failed), or it is no longer true. What is said
again while it is being decided is passed over. One thing is kept in mind: who is to have its *place* among the mirrors
of a queue again. Its master offers it to a mirror that was dropped because it did not answer, once its drop is
committed and it can be spoken to; a node whose copy was out of service for want of room asks for its own. Both do so
again and again, one proposal at a time, until the record names the mirror or no policy wants it.

A proposal that nobody has decided in time may be decided later. A drop that comes behind the offer would put the mirror
out again: so there is no offer while a drop is under way, its own by a copy that failed included, and a place of which
one was given up is kept in mind. And a master whose copy has room again withdraws the move that it had asked for: it
would end a mastership that goes on, and call a good copy lost.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from cluster.metadata.commands import AddMirror, Command, DropMirror, MirrorFollows, MirrorSynchronised, MoveMaster
from cluster.metadata.errors import NoQuorumError, UnwantedMirrorError
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
from cluster.runtime.stalled_mirrors import StalledMirrors
from cluster.runtime.undecided import Undecided
from node.ids import Epoch, NodeName, QueueId

log = logging.getLogger(__name__)

#: A link that was cut for long has one of each queue; making an offer takes a twentieth of a millisecond.
OFFERS_PER_TURN = 100


class LinkView(Protocol):
    """Who can be spoken to."""

    def is_up(self, node: NodeName) -> bool: ...


class _Place:
    """A mirror is to have it again."""

    __slots__ = ("is_drop_undecided", "is_wanted", "under_way")

    def __init__(self) -> None:
        #: False while the copy here is out of service, whose place it is: it is given up.
        self.is_wanted = True
        #: Proposals about it that have no answer yet.
        self.under_way = 0
        #: A drop got no answer in time, so it may still come.
        self.is_drop_undecided = False


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
        #: Of mirrors that this node had dropped from queues it masters, and of its own copies that have room again.
        self._places: dict[tuple[QueueId, NodeName], _Place] = {}
        self._stalled = StalledMirrors(records.describe)
        #: They are being gone through.
        self._is_readmitting = False
        #: What was said of mirrors, kind and about whom, and is not decided yet.
        self._said: Undecided[tuple[type[Command], QueueId, Epoch, NodeName]] = Undecided(background)
        #: Moves away from copies of this node that have failed, which are not decided yet.
        self._moves: Undecided[QueueId] = Undecided(background)

    def propose(self, command: Command) -> None:
        """Have it committed, if the cluster agrees; a refusal is logged."""
        self._background.spawn(self._metadata.change(command), f"proposal {command}")

    def storage_failed(self, record: MastershipRecord, *, is_damaged: bool) -> None:
        """A master that fails hands over to its oldest synchronised (else complete) mirror; a mirror leaves."""
        key = record.queue_id, self._node
        place = self._places.pop(key, None)
        if record.master != self._node:
            # Told for each record that names the copy still, so there may be several at once.
            place = self._places[key] = place or _Place()
            place.is_wanted = False
            self._propose_about(place, DropMirror(record.queue_id, record.epoch, self._node))
            return
        self._service_requests.withdraw(record.queue_id)
        if candidates := heirs(record):
            move = MoveMaster(record.queue_id, record.epoch, candidates[0], is_old_lost=is_damaged)
            self._moves.propose(record.queue_id, self._metadata.change(move), f"proposal {move}")
        else:
            log.error(
                "%s has no other complete copy that is up: it is unavailable until this node has room on its disk and "
                "descriptors again, or, if it wants neither, until what is wrong is mended and it restarts (`warren "
                "store verify` on the directory of the stopped node says what is wrong); deleting it gives it up",
                self._records.describe(record.queue_id),
            )

    def goes_on(self, queue_id: QueueId) -> None:
        """The copy of this node, which masters the queue, is about to be opened again."""
        self._moves.withdraw(queue_id)

    def report(self, record: MastershipRecord, report: MirroringReport) -> None:
        """What mirroring has found out about a queue that this node masters."""
        queue_id, epoch = record.queue_id, record.epoch
        if isinstance(report, ReportSynchronised):
            self._say(MirrorSynchronised(queue_id, epoch, report.node, self._records.applied_index_of(queue_id)))
        elif isinstance(report, ReportFollows):
            self._say(MirrorFollows(queue_id, epoch, report.node, self._records.applied_index_of(queue_id)))
        elif isinstance(report, ReportTakesService):
            self._service_requests.ask(record)
        elif isinstance(report, ReportMirrorStalled):
            if self._metadata.consensus.has_quorum:
                self._stalled.stalled(queue_id, report.node)
            place = self._places.setdefault((queue_id, report.node), _Place())
            self._propose_about(place, DropMirror(queue_id, epoch, report.node))
        elif isinstance(report, ReportFenced):
            log.warning("%s: epoch %d is fenced by %d", self._records.describe(queue_id), epoch, report.known_epoch)

    def _say(self, command: MirrorSynchronised | MirrorFollows) -> None:
        """Unless the same is being decided: the group proposes that again by itself, and who says it again and again
        while it cannot keep up would only give it more to do."""
        said = type(command), command.queue_id, command.epoch, command.node
        if said not in self._said:
            self._said.propose(said, self._metadata.change(command), f"proposal {command}")

    # --- places of mirrors ---

    def node_down(self, node: NodeName) -> None:
        """The cluster has declared it down: what it had comes back with it, unless a drop is decided behind that."""
        self._places = {
            key: place
            for key, place in self._places.items()
            if key[1] != node or place.under_way or place.is_drop_undecided
        }

    def ask_for_place(self, record: MastershipRecord) -> None:
        """The copy of this node, which no record names, may be opened again: it is to be a mirror until it fails."""
        key = record.queue_id, self._node
        place = self._places.get(key)
        if place is None or not place.is_wanted:
            place = self._places[key] = place or _Place()
            place.is_wanted = True
            self._look_at(key)

    def readmit(self) -> None:
        """Every few seconds: ask for the places that are not taken yet, for some in each turn of the loop."""
        self._stalled.look(has_quorum=self._metadata.consensus.has_quorum)
        if self._places and not self._is_readmitting:
            self._is_readmitting = True
            self._background.spawn(self._readmit(), "offering mirrors their places")

    async def _readmit(self) -> None:
        try:
            for number, key in enumerate(sorted(self._places), 1):
                if key in self._places:
                    self._look_at(key)
                if number % OFFERS_PER_TURN == 0:
                    await asyncio.sleep(0)
        finally:
            self._is_readmitting = False

    def _look_at(self, key: tuple[QueueId, NodeName]) -> None:
        (queue_id, node), place = key, self._places[key]
        record = self._records.mastership(queue_id)
        if record is None or (record.master == self._node) == (node == self._node):
            del self._places[key]  # the queue is gone, or has another master, who has nothing to do with it
        elif place.under_way:
            return
        elif node in record.mirrors or not place.is_wanted:
            if not place.is_drop_undecided:
                del self._places[key]
        elif (
            record.in_service
            and (node == self._node or self._links.is_up(node))
            and self._metadata.consensus.has_quorum
        ):
            self._propose_about(place, AddMirror(queue_id, record.epoch, node))

    def _propose_about(self, place: _Place, command: DropMirror | AddMirror) -> None:
        place.under_way += 1
        self._background.spawn(self._change_about(place, command), f"proposal {command}")

    async def _change_about(self, place: _Place, command: DropMirror | AddMirror) -> None:
        is_over = False
        try:
            await self._metadata.change(command)
            if isinstance(command, DropMirror):
                self._stalled.dropped(command.queue_id, command.node)
            # A drop that was given up was proposed before the offer: by now it is decided, or lost.
            is_over = isinstance(command, AddMirror)
        except NoQuorumError:
            place.is_drop_undecided |= isinstance(command, DropMirror)
            raise
        except UnwantedMirrorError:
            is_over = True
            raise
        finally:
            place.under_way -= 1
            key = command.queue_id, command.node
            if is_over and not place.under_way and self._places.get(key) is place:
                del self._places[key]

    def check_invariants(self) -> None:
        assert all(place.under_way >= 0 for place in self._places.values()), "what is under way ends once"

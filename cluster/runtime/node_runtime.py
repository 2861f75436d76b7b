"""One node at work: joins the parts, and knows the order in which they start and stop.

Who hears what::

    mesh  --frames, links-->  Switchboard --+--> QueueSet (mirroring), ClusterGateway and SessionHost (sessions)
                                            +--> Membership --down--> the leader proposes NodeDown
    consensus  --committed->  MetadataGroup --events--> Roles --> QueueSet, then the routes of ClusterGateway
    clock      --tick------>  Housekeeping ----> Membership, QueueSet, ResourceAlarms, storage
    turn       --effects--->  QueueEffects ----> ClusterGateway (channels here), SessionHost (channels elsewhere)
    turn       --reports--->  QueueProposals --> MetadataGroup
    disk       --durable--->  QueueSet (confirms, acknowledgements)

Three circles cannot be closed by constructors, because both sides call each other: queues and channels
(`QueueEffects.connect`), the node and its mesh (`OutgoingFrames.connect`), the metadata group with those who follow and
decide its changes (`MetadataGroup.follow` and `join`). The first is closed here, the others by `NodeRuntime.connect`.

Order of stop: the mirrors are told how far messages were delivered, then the cluster that this node stops, which makes
masters of synchronised mirrors; when they serve, another node takes over the metadata group, if this one leads it; what
runs in the background ends, the queues are closed, what they wrote is synced, and the files are closed last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from cluster.metadata.records import MastershipRecord
from cluster.raft.messages import Message
from cluster.runtime.background import Background
from cluster.runtime.housekeeping import Housekeeping, RoomWatch
from cluster.runtime.membership import Membership
from cluster.runtime.metadata_group import Consensus, MetadataGroup
from cluster.runtime.outside import ResourceProbe, Worker
from cluster.runtime.queue_deletions import QueueDeletions
from cluster.runtime.queue_effects import QueueEffects
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.queue_proposals import QueueProposals
from cluster.runtime.queue_set import QueueSet
from cluster.runtime.reclaimer import Reclaimer
from cluster.runtime.records import Records
from cluster.runtime.resource_alarms import ResourceAlarms
from cluster.runtime.roles import Roles
from cluster.runtime.switchboard import FrameCarrier, OutgoingFrames, Switchboard
from cluster.runtime.sync_thread import SyncThread
from cluster.sessions.gateway import ClusterGateway
from cluster.sessions.host import SessionHost
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.auth import UserDirectory
from node.config import NodeConfig
from node.errors import StorageError
from node.flow.credit import FlowControl
from node.ids import Incarnation, NodeName, QueueId
from node.queues.stored_copies import UNKNOWN_REACH
from node.store.disk.group_commit import GroupCommit
from node.store.steps import Job
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)


#: A stop waits so long for the mirrors to know how far messages were delivered, and for masters that stop as well.
END_KNOWN_S = 0.5
END_LOOK_S = 0.01
#: Closing a queue is a millisecond of work or two; after so long the loop may do something else.
CLOSE_SLICE_S = 0.01
#: And so long for those who take over its queues: they need a commit, while it may lead.
HANDED_OVER_S = 1.0


class Surroundings(Protocol):
    """What of the world the runtime uses by itself; see `cluster.composition.World`."""

    @property
    def probe(self) -> ResourceProbe: ...

    @property
    def clock(self) -> Callable[[], float]: ...

    @property
    def worker(self) -> Callable[[str], Worker]: ...

    @property
    def speaks_protocol(self) -> int: ...

    @property
    def slice_pieces(self) -> int: ...


class NodeRuntime:
    """See the top of this module. The parts are attributes, for those who compose, administer or test a node."""

    def __init__(
        self,
        config: NodeConfig,
        incarnation: Incarnation,
        group_commit: GroupCommit,
        files: NodeQueueFiles,
        surroundings: Surroundings,
        *,
        now_ms: Callable[[], int],
        on_fatal: Callable[[str], None],
    ) -> None:
        """``now_ms``: the clock of the loop's timers. ``on_fatal``: the node must stop, with this reason."""
        self.config = config
        self.node = config.node_name
        self.incarnation = incarnation
        self._loop = asyncio.get_running_loop()
        self._files = files
        #: The clock that its deadlines go by.
        self.now_ms = self._now_ms = now_ms
        self._on_fatal = on_fatal
        self._started_ms = now_ms()
        self._clock = clock = surroundings.clock

        self.background = Background(self._loop)
        self.links = OutgoingFrames(self._loop, clock, surroundings.slice_pieces)
        self.metadata = MetadataGroup(
            self.node, incarnation, UserDirectory(config.loopback_users), surroundings.speaks_protocol
        )
        self.records = Records(config, self.metadata.state, self.metadata.followed)
        self.flow = _flow_control(config)
        self.sync_thread = SyncThread(
            self._loop,
            surroundings.worker("sync"),
            group_commit,
            flush=lambda: None,  # the group commit flushes its buffers itself
            on_durable=self._durable,
            on_failure=self._sync_failed,
            on_nothing=self._nothing_written,
        )
        self._recovery_worker = surroundings.worker("recovery")
        self.proposals = QueueProposals(self.node, self.metadata, self.records, self.links, self.background)
        self.effects = QueueEffects(self.node, self._queue_unused)
        self.queues = QueueSet(
            self.node,
            files,
            group_commit,
            links=self.links,
            settings=self.records,
            effects=self.effects,
            cluster=self.proposals,
            request_sync=self.sync_thread.request,
            call_soon=self._loop.call_soon,
            run_job=self._recover,
            clock=clock,
            incarnation=incarnation,
            flow=self.flow,
            slice_pieces=surroundings.slice_pieces,
        )
        files.on_queue_changed = self.queues.touch
        files.on_vhost_wanted = self.queues.open_vhost
        files.is_vhost_awaited = self.queues.awaits_vhost
        self._join_channels(surroundings)
        self._join_parts(surroundings)

    def _join_channels(self, surroundings: Surroundings) -> None:
        """Channels here with queues anywhere, and queues here with channels anywhere."""
        clock = surroundings.clock
        self.gateway = ClusterGateway(
            self.node,
            self.queues,
            self.links,
            self.records.mastership,
            self.records.find_queue,
            self._loop,
            self.flow,
            incarnation=self.incarnation,
            clock=clock,
            slice_pieces=surroundings.slice_pieces,
        )
        self.sessions = SessionHost(
            self.queues,
            self.links,
            call_soon=self._loop.call_soon,
            clock=clock,
            per_turn=surroundings.slice_pieces,
        )
        self.deletions = QueueDeletions(
            self.node, self.metadata, self.queues, self.background, self._arrivals, self.sessions.is_attaching
        )
        self.queues.on_deletion_open = self.deletions.settle
        self.gateway.note_consumer = self.deletions.note_consumer
        self.effects.connect(self.gateway, self.sessions)

    def _join_parts(self, surroundings: Surroundings) -> None:
        """Those that know the others."""
        clock, spoken = surroundings.clock, surroundings.speaks_protocol
        self.alarms = ResourceAlarms.as_configured(self.config, surroundings.probe, self.queues.paging)
        self.alarms.on_own_change = self.links.send_to_all
        self.membership = Membership(
            self.config,
            self.incarnation,
            self.metadata,
            self.background,
            self._now_ms,
            spoken,
            links=self.links,
            queues=self.queues,
            channels=self.gateway,
            sessions=self.sessions,
            alarms=self.alarms,
            dropped=self.proposals,
        )
        self.roles = Roles(
            self.node,
            self.metadata.state,
            self.records,
            self.queues,
            routes=self.gateway,
            hosted=self.sessions,
            files=self._files,
            membership=self.membership,
            clock=clock,
            on_fatal=self._on_fatal,
        )
        self._files.on_unseen = self.roles.look_for_leftovers
        room = RoomWatch(
            self.node,
            self.records,
            self.queues,
            self.alarms,
            self.roles,
            self.membership,
            self.proposals,
            call_soon=self._loop.call_soon,
            clock=clock,
            per_turn=surroundings.slice_pieces,
        )
        self.housekeeping = Housekeeping(
            self._loop,
            self._now_ms,
            flow=self.flow,
            membership=self.membership,
            queues=self.queues,
            alarms=self.alarms,
            files=self._files,
            reclaimer=Reclaimer(self._loop, self._files, self.sync_thread.request, clock),
            proposals=self.proposals,
            room=room,
            request_sync=self.sync_thread.request,
        )
        self.switchboard = Switchboard(
            self.membership,
            consensus=self._receive_consensus,
            mirroring=self.queues,
            entry=self.gateway,
            sessions=self.sessions,
            alarms=self.alarms,
            room_came=self.links.room_came,
        )

    # --- life ---

    def connect(self, mesh: FrameCarrier, consensus: Consensus) -> None:
        """Close the circles with what was made around this node. Nothing is sent or heard before."""
        self.links.connect(mesh)
        self.metadata.follow(self.roles)
        self.metadata.join(consensus)

    def start(self) -> None:
        """Begin to tick; `activate` follows when the cluster can decide."""
        self.membership.members_restored()  # what the own snapshot says of them nobody was told
        self.housekeeping.start()

    async def activate(self) -> None:
        """Tell the cluster that this node is up, then take the roles that the records give it."""
        await self.membership.join()
        await self.roles.take_up_all()

    async def stop(self) -> None:
        """Orderly stop: the cluster learns of it before the queues close."""
        self.background.is_stopping = True
        self.membership.begin_stop()
        self.housekeeping.stop()
        await self._end_masterships()
        masters = self.queues.mastered()
        await self.membership.say_goodbye()
        await self._masters_handed_over(masters)
        await self.metadata.hand_over()
        await self.background.stop()
        await self._give_up_all()
        await self.background.stop()  # what a queue that could not be closed has asked for
        self.links.nobody_waits()
        self._recovery_worker.close()
        await self.sync_thread.stop()
        self._files.close()

    async def _end_masterships(self) -> None:
        """Deliver nothing any more, and have it known how far that has come, as far as somebody is there to know.

        Nodes that stop together tell each other: a mirror waits a moment for a master that may be stopping, too.
        """
        self.queues.begin_end()
        deadline_s = self._loop.time() + END_KNOWN_S
        while not self.queues.is_end_known and self.links.linked_nodes() and self._loop.time() < deadline_s:  # noqa: ASYNC110 - many queues
            await asyncio.sleep(END_LOOK_S)

    async def _give_up_all(self) -> None:
        """Queue by queue: what the others still say is heard meanwhile, and this node keeps its promises to them."""
        slice_end_s = self._clock() + CLOSE_SLICE_S
        for _ in self.roles.give_up_all():
            if self._clock() >= slice_end_s:
                await asyncio.sleep(0)
                slice_end_s = self._clock() + CLOSE_SLICE_S

    async def _masters_handed_over(self, queue_ids: Sequence[QueueId]) -> None:
        """Until others serve the queues that were served here, as far as the goodbye has made masters of others."""
        records = self.metadata.state.masterships
        waiting = list(queue_ids)
        deadline_s = self._loop.time() + HANDED_OVER_S
        while waiting and self._loop.time() < deadline_s:
            await asyncio.sleep(END_LOOK_S)
            waiting = [queue_id for queue_id in waiting if self._is_on_its_way(records.get(queue_id))]

    def _is_on_its_way(self, record: MastershipRecord | None) -> bool:
        """Another node is to serve the queue, and does not yet."""
        if record is None or record.in_service or record.is_down or record.master == self.node:
            return False
        master = self.metadata.state.members.get(record.master)
        return master is not None and master.is_up

    def _receive_consensus(self, messages: Sequence[Message]) -> None:
        self.metadata.consensus.receive(messages)

    def _queue_unused(self, queue: QueueRecord, may_return: bool) -> None:
        self.deletions.unused(queue, may_return)

    def member_names(self) -> list[NodeName]:
        """Of the cluster, by name; what the configuration lists counts only until the log says who they are."""
        state, voters = self.metadata.state, self.metadata.consensus.voters
        decided = {*voters, *state.members, *state.admissions.admitted} if voters else set()
        names = {self.node, *(decided or (member.name for member in self.config.members))}
        return sorted(name for name in names if not state.admissions.is_forgotten(name))

    def unlinked_members(self) -> list[NodeName]:
        """Members that this node cannot speak to."""
        return [name for name in self.member_names() if name != self.node and not self.links.is_up(name)]

    def _arrivals(self) -> int | None:
        """See `Membership.arrivals`; ``None`` while some node that counts as up is not linked, or stands still."""
        members = self.metadata.state.members.values()
        others = [member.node for member in members if member.is_up and member.node != self.node]
        return self.membership.arrivals if all(map(self._is_at_work, others)) else None

    def _is_at_work(self, peer: NodeName) -> bool:
        return self.links.is_up(peer) and self.membership.is_at_work(peer)

    def _recover(self, job: Job, on_done: Callable[[BaseException | None], None]) -> None:
        """What a recovery waits for is done beside the loop."""
        self._recovery_worker.run(job).add_done_callback(lambda future: on_done(future.exception()))

    def _nothing_written(self) -> None:
        self.queues.nothing_written()

    def _durable(self) -> None:
        self.queues.durable_advanced()

    def _sync_failed(self, error: StorageError) -> None:
        """After a failed fsync nothing that this process wrote can be trusted: stop, let a mirror take over."""
        self._on_fatal(f"the disk failed, this node stops: {error}")

    # --- facts and limits ---

    @property
    def uptime_s(self) -> float:
        return (self._now_ms() - self._started_ms) / 1000

    def copy_reach(self, queue: QueueRecord) -> int | None:
        """How far what this node has of a queue is (`node.queues.stored_copies`); ``None``: it has nothing of it.

        What is not durable is in memory, as long as this node has a part in the queue. Raises `StorageError`.
        """
        if not queue.durable:
            return UNKNOWN_REACH if queue.queue_id in self.queues.roles else None
        return self._files.stored_reach(queue)

    def set_memory_watermark(self, watermark: MemoryWatermark) -> None:
        """Until this node stops."""
        self.alarms.set_memory_watermark(watermark, self._now_ms())

    def set_disk_free_limit(self, limit: DiskFreeLimit) -> None:
        """Until this node stops."""
        self.alarms.set_disk_limit(limit, self._now_ms())

    def check_invariants(self, touched: Collection[QueueId] | None = None) -> None:
        """Of everything; if ``touched`` is given, of what is small, and of these queues."""
        self.membership.check_invariants()
        self.proposals.check_invariants()
        self.queues.check_invariants(touched)
        self.links.check_invariants()
        self.gateway.check_invariants()
        self.sessions.check_invariants()
        if touched is None:
            self.metadata.state.check_invariants()
            self.metadata.followed.check_invariants()
        self.alarms.check_invariants()
        self.sync_thread.check_invariants()
        self._files.check_invariants()


def _flow_control(config: NodeConfig) -> FlowControl:
    return FlowControl(
        in_process=config.credit_flow_default_credit,
        store=config.msg_store_credit_disc_bound,
        between_nodes=config.cluster_credit,
    )

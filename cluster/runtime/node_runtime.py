"""One node at work: joins the pure machines (metadata, queues, mirroring, sessions) to mesh, disk and clock.

Who hears what::

    mesh  --consensus-->  RaftDriver  --committed-->  MetadataGroup  --events-->  follow the records (roles, routes)
    mesh  --frames----->  QueueSet (mirroring) / ClusterGateway, SessionHost (sessions)
    mesh  --links------>  FailureDetector --down--> the leader proposes NodeDown
    clock --tick------->  ResourceAlarms --change--> the broker here, the nodes elsewhere
    turn  --effects---->  ClusterGateway (channels here), SessionHost (channels elsewhere)
    disk  --durable---->  QueueSet (confirms, acknowledgements)

Order on a change of mastership: first this node takes up its own role, then the routes of its channels are told, so a
route that finds its master here finds the queue process too.

A node takes part in nothing before its own `NodeUp` is applied (`activate`): what the log says about an earlier life
must not start roles.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from cluster.membership.detector import DetectorConfig, FailureDetector, Verdict, VerdictChange, proposes_node_down
from cluster.membership.messages import NodeAlarms
from cluster.metadata.commands import (
    AddMirror,
    Command,
    DropMirror,
    MirrorFollows,
    MirrorSynchronised,
    MoveMaster,
    NodeDown,
    NodeUp,
)
from cluster.metadata.events import (
    Event,
    MastershipChanged,
    MemberChanged,
    PolicyChanged,
    QueueCreated,
    QueueDeleted,
)
from cluster.metadata.mastership import heirs
from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import RULES_VERSION
from cluster.mirroring.master import MirroringSettings
from cluster.mirroring.messages import Attach, AttachRefused, AttachReply, MirrorMessage, Ops, OpsAck
from cluster.mirroring.reports import (
    MirroringReport,
    ReportFenced,
    ReportFollows,
    ReportMirrorStalled,
    ReportSynchronised,
    ReportTakesService,
)
from cluster.policy.validation import usable_setting
from cluster.raft.messages import Message as RaftMessage
from cluster.runtime.mastership_log import log_change
from cluster.runtime.metadata_group import MetadataGroup
from cluster.runtime.presence import Presence
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.queue_set import QueueSet
from cluster.runtime.raft_driver import RaftDriver
from cluster.runtime.reclaimer import Reclaimer
from cluster.runtime.resource_alarms import ResourceAlarms
from cluster.runtime.service_requests import ServiceRequests
from cluster.runtime.sync_thread import SyncThread
from cluster.runtime.system_probe import ResourceProbe
from cluster.sessions.gateway import ClusterGateway
from cluster.sessions.host import SessionHost
from cluster.sessions.messages import (
    SessionConfirm,
    SessionConsumerCancelled,
    SessionCredit,
    SessionDeliver,
    SessionMessage,
    SessionOpened,
    SessionReply,
)
from cluster.transport.mesh import Mesh
from cluster.wire.convert import QueueFrameMessage
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.auth import UserDirectory
from node.config import NodeConfig
from node.errors import StorageError, WarrenError
from node.flow.credit import FlowControl
from node.ids import Incarnation, NodeName, QueueId
from node.queues.events import DeleteUnused, QueueEffect
from node.queues.options import QueueOptions, queue_options
from node.store.disk.group_commit import GroupCommit
from node.topology.commands import DeleteQueue
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

_MIRRORING = (Attach, AttachReply, AttachRefused, Ops, OpsAck)
_TO_ENTRY_NODE = (
    SessionOpened,
    SessionDeliver,
    SessionConfirm,
    SessionCredit,
    SessionConsumerCancelled,
    SessionReply,
)
#: Throttles, stalls and silences are measured in seconds; a tenth of one is fine enough.
TICK_S = 0.1
#: A tick that comes so much too late means that this node was frozen, or its loop was busy: it heard nobody meanwhile.
PAUSE_MS = 500
#: A peer that is dead may still be up for the cluster (its `NodeUp` was on the way when it died, or the proposal of its
#: `NodeDown` got lost): looked at this often.
REPROPOSE_EVERY_TICKS = 10
#: Taking up roles opens files; after so long the loop may do something else, so that no peer takes this node for dead.
TAKE_UP_SLICE_S = 0.05
#: A mirror that was dropped because it did not answer is offered its place again this often.
READMIT_EVERY_TICKS = 50
#: Copies of queues that are out of service because the disk was full wait for room, looked for this often.
LOOK_FOR_ROOM_EVERY_TICKS = 10
#: Room that makes opening them worth while, whatever the limit of the alarm: with less they would soon fail again.
ROOM_MIN_BYTES = 16 * 1024 * 1024
#: An election takes two seconds at most; a cluster that has not noted a shutdown by then has other troubles.
GOODBYE_TIMEOUT_S = 5.0


class NodeRuntime:
    """See the top of this module. Implements `MeshHandler` and `RuntimePort`."""

    def __init__(
        self,
        config: NodeConfig,
        incarnation: Incarnation,
        group_commit: GroupCommit,
        files: NodeQueueFiles,
        probe: ResourceProbe,
        on_fatal: Callable[[str], None],
        on_quorum: Callable[[bool], None],
    ) -> None:
        """``on_fatal``: the node must stop, with this reason. ``on_quorum``: serve clients, or stop serving them."""
        self.config = config
        self.node = config.node_name
        self.incarnation = incarnation
        self._loop = asyncio.get_running_loop()
        self._on_fatal = on_fatal
        self._on_quorum = on_quorum
        self._files = files
        self._outgoing: dict[NodeName, list[QueueFrameMessage]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticks = 0
        self._ticked_ms = self._now_ms()
        #: Peers whose `NodeDown` is being proposed.
        self._proposed_down: set[NodeName] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._reclaimer = Reclaimer(self._loop, files, self.request_sync)
        self._is_active = False
        self.is_stopping = False
        self.is_serving = False  #: Clients are served (kept by the daemon).
        #: Told the vhost whose policies changed (the daemon's broker forgets its routes).
        self.on_policy_changed: Callable[[str], None] = lambda _vhost: None
        self._started_s = self._loop.time()
        #: Mirrors that this node had dropped from queues it masters.
        self._dropped: set[tuple[QueueId, NodeName]] = set()
        self.metadata = MetadataGroup(self.node, incarnation, self, UserDirectory(config.loopback_users))
        self.sync_thread = SyncThread(
            self._loop,
            group_commit,
            flush=lambda: None,  # the group commit flushes its buffers itself
            on_durable=self._durable,
            on_failure=self._sync_failed,
        )
        self.flow = FlowControl(
            in_process=config.credit_flow_default_credit,
            store=config.msg_store_credit_disc_bound,
            between_nodes=config.cluster_credit,
        )
        self.queues = QueueSet(
            self.node,
            files,
            group_commit,
            self,
            call_soon=self._loop.call_soon,
            incarnation=incarnation,
            flow=self.flow,
        )
        files.on_queue_changed = self.queues.touch
        self.alarms = ResourceAlarms.as_configured(config, probe, self.queues)
        self.alarms.on_own_change = self._tell_alarms
        self.gateway = ClusterGateway(
            self.node, self.queues, self, self.mastership, self.find_queue, self._loop, self.flow
        )
        self.sessions = SessionHost(self.queues, self.send)
        self._service_requests = ServiceRequests(self.node, self.metadata.change, self.spawn)
        self._presence = Presence(self.node, self.metadata.state, self.queues.is_failed, self._announce, self.spawn)
        peers = [member.name for member in config.members if member.name != self.node]
        detector_config = DetectorConfig(down_after_ms=config.cluster_silence_timeout_ms)
        self._detector = FailureDetector(detector_config, peers, self._now_ms())
        self.mesh: Mesh
        self.raft: RaftDriver

    # --- life ---

    def start(self, mesh: Mesh, raft: RaftDriver) -> None:
        """Begin to listen and tick; `activate` follows when the cluster knows that this node is up."""
        self.mesh = mesh
        self.raft = raft
        #: Incarnations of the peers that this node is linked with.
        self._linked_lives: dict[NodeName, Incarnation] = {}
        self.metadata.proposer = raft
        self._tick()

    async def activate(self) -> None:
        """Tell the cluster that this node is up, then take the roles that the records give it."""
        await self._announce()
        self._is_active = True
        self._forget_deleted_queues()
        slice_end_s = self._loop.time() + TAKE_UP_SLICE_S
        for queue_id in list(self.metadata.state.masterships):
            self._take_up(queue_id)
            if self._loop.time() >= slice_end_s:
                await asyncio.sleep(0)
                slice_end_s = self._loop.time() + TAKE_UP_SLICE_S

    async def stop(self) -> None:
        """Orderly stop: the cluster learns of it before the queues close."""
        self.is_stopping = True
        self._presence.end()
        if self._ticker is not None:
            self._ticker.cancel()
        self._reclaimer.stop()
        if self.config.is_clustered and self._is_active:
            await self._say_goodbye()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._is_active = False
        self.queues.close()
        await self.sync_thread.stop()
        self._files.close()

    async def _say_goodbye(self) -> None:
        """Have the cluster note the shutdown, unless too few are left to decide anything: then nobody is waited for."""
        goodbye = self._loop.create_task(self.metadata.change(NodeDown(self.node, self.incarnation, "shutdown")))
        deadline_s = self._loop.time() + GOODBYE_TIMEOUT_S
        while not goodbye.done() and self._majority_may_live() and self._loop.time() < deadline_s:
            await asyncio.wait({goodbye}, timeout=TICK_S)
        goodbye.cancel()
        try:
            await goodbye
        except asyncio.CancelledError:
            log.warning("the cluster could not be told of the shutdown: no majority has answered")
        except WarrenError as error:
            log.warning("the cluster could not be told of the shutdown: %s", error)

    def _majority_may_live(self) -> bool:
        members = self.config.members
        gone = sum(
            member.name != self.node and self._detector.verdict(member.name) is Verdict.DOWN for member in members
        )
        return 2 * (len(members) - gone) > len(members)

    async def _announce(self) -> None:
        await self.metadata.change(
            NodeUp(
                self.node,
                self.incarnation,
                str(self.config.cluster_advertised_address),
                str(self.config.amqp_advertised_address),
                RULES_VERSION,
            )
        )

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._ticks += 1
        now_ms = self._now_ms()
        pause_ms = now_ms - self._ticked_ms - int(TICK_S * 1000)
        self._ticked_ms = now_ms
        self.flow.advance(now_ms)
        if pause_ms >= PAUSE_MS:
            log.warning("this node stood still for %d ms", pause_ms)
            self._detector.excuse(pause_ms, now_ms)
        self._verdicts(self._detector.tick(now_ms))
        if self._ticks % REPROPOSE_EVERY_TICKS == 0:
            self._propose_all_down()
            if self._is_active:
                self._presence.tick()
        self.queues.tick(now_ms)
        self.alarms.tick(now_ms)
        if self._files.maintain(now_ms):
            self.request_sync()
        self._reclaimer.tick()
        if self._dropped and self._ticks % READMIT_EVERY_TICKS == 0:
            self._readmit()
        if self._ticks % LOOK_FOR_ROOM_EVERY_TICKS == 0:
            self._look_for_room(now_ms)

    def spawn(self, work: Awaitable[Any], what: str) -> None:
        """Run something in the background; its failure is logged, not lost."""

        async def run() -> None:
            try:
                await work
            except WarrenError as error:
                log.log(logging.DEBUG if self.is_stopping else logging.INFO, "%s: %s", what, error)
            except Exception:
                log.exception("%s failed", what)

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _propose(self, command: Command) -> None:
        self.spawn(self.metadata.change(command), f"proposal {command}")

    # --- facts ---

    @property
    def uptime_s(self) -> float:
        return self._loop.time() - self._started_s

    @property
    def applied_index(self) -> int:
        return self.metadata.state.applied_index

    def mastership(self, queue_id: QueueId) -> MastershipRecord | None:
        return self.metadata.state.masterships.get(queue_id)

    def find_queue(self, queue_id: QueueId) -> QueueRecord | None:
        return self.metadata.topology.queue_by_id(queue_id)

    def queue_record(self, queue_id: QueueId) -> QueueRecord:
        queue = self.find_queue(queue_id)
        assert queue is not None, "a mastership record belongs to a queue that exists"
        return queue

    def _policy(self, queue: QueueRecord) -> Mapping[str, Any]:
        policy = self.metadata.state.policy_of_queue(queue)
        return {} if policy is None else policy.definition

    def mirroring_settings(self, queue: QueueRecord) -> MirroringSettings:
        policy = self._policy(queue)
        return MirroringSettings(
            is_durable=queue.durable,
            sync_automatically=policy.get("ha-sync-mode") == "automatic",
            sync_batch_messages=usable_setting(policy, "ha-sync-batch-size", self.config.mirroring_sync_batch_size),
            sync_throughput_bytes=self.config.mirroring_sync_max_throughput_bytes,
        )

    def queue_options(self, queue: QueueRecord) -> QueueOptions:
        return queue_options(queue.arguments, self._policy(queue))

    # --- committed changes ---

    def on_restored(self) -> None:
        """Also that this node counts as dead may be what it learns by a snapshot (`Presence.tick`)."""
        if self._is_active:
            self._forget_deleted_queues()
            for queue_id in list(self.metadata.state.masterships):
                self._take_up(queue_id)
            for peer in self.mesh.up_peers:
                self.queues.link_up(peer)  # a mirror may have been dropped and taken back by what was skipped

    def _take_up(self, queue_id: QueueId) -> None:
        """The role that the present record gives this node, if the queue still exists."""
        record = self.mastership(queue_id)
        if record is None:
            return
        queue = self.queue_record(queue_id)
        try:
            self.queues.follow(queue, record)
            self.gateway.mastership_changed(record)
        except Exception as error:
            self.queues.fail(queue, record, error)
        self._presence.queue_changed(queue_id)

    def _forget_deleted_queues(self) -> None:
        known = self.metadata.state.masterships.keys()
        for queue_id, role in list(self.queues.roles.items()):
            if queue_id not in known:
                self.queues.queue_deleted(role.queue)
        for queue_id in self.gateway.routed_queues():
            if queue_id not in known:
                self.gateway.queue_deleted(queue_id)
        try:
            self._files.delete_unknown(self.metadata.topology.vhosts(), known)
        except StorageError as error:
            log.error("files of queues that no longer exist stay on the disk: %s", error)
        except Exception:
            log.exception("files of queues that no longer exist stay on the disk")

    def on_committed(self, events: Sequence[Event]) -> None:
        for event in events:
            try:
                self._follow(event)
            except Exception as error:
                if not self._is_contained(event, error):
                    # The log goes on, this node does not: whoever half follows the records is worse than nobody.
                    log.exception("this node cannot follow %s", type(event).__name__)
                    self._on_fatal(f"a committed change could not be followed: {error!r}")
                    return

    def _is_contained(self, event: Event, error: Exception) -> bool:
        """Whether following ``event`` failed for one queue only, which is out of service here now: the same would
        happen at the next start, and the node goes on without it."""
        try:
            if isinstance(event, QueueCreated):
                self.queues.fail(event.queue, event.mastership, error)
            elif isinstance(event, MastershipChanged):
                self.queues.fail(self.queue_record(event.queue_id), event.new, error)
            elif isinstance(event, QueueDeleted):
                name = event.queue.queue_name
                log.error("%s was deleted, and something of it stays here: %r", name, error, exc_info=error)
                self.gateway.queue_deleted(event.queue.queue_id)
            else:
                return False
        except Exception:
            log.exception("queue %s could not be taken out of service", event)
            return False
        return True

    def _follow(self, event: Event) -> None:
        if isinstance(event, MemberChanged):
            self._member_changed(event)
        elif not self._is_active:
            return
        elif isinstance(event, QueueCreated):
            self.queues.follow(event.queue, event.mastership)
        elif isinstance(event, MastershipChanged):
            self._mastership_changed(event)
        elif isinstance(event, QueueDeleted):
            self.queues.queue_deleted(event.queue)
            self.gateway.queue_deleted(event.queue.queue_id)
        elif isinstance(event, PolicyChanged):
            self.queues.policy_changed()
            self.on_policy_changed(event.vhost)

    def _mastership_changed(self, event: MastershipChanged) -> None:
        queue = self.queue_record(event.queue_id)
        log_change(queue, event)
        self.queues.follow(queue, event.new, is_discarded=self.node in event.discarded)
        self.gateway.mastership_changed(event.new)
        self._presence.queue_changed(event.queue_id)

    def _member_changed(self, event: MemberChanged) -> None:
        is_up = event.new is not None and event.new.is_up
        self.raft.peers_changed()
        if event.node != self.node:
            if event.new is not None and is_up:
                self.alarms.node_up(event.node)
                if self._linked_lives.get(event.node, event.new.incarnation) != event.new.incarnation:
                    # The link is to its earlier life. What was heard there is not true of this one.
                    self.queues.link_up(event.node)
            else:
                self.alarms.node_down(event.node, is_linked=self.is_up(event.node))
                self.sessions.node_lost(event.node)
                self._dropped = {entry for entry in self._dropped if entry[1] != event.node}
        elif not is_up and self._is_active and not self.is_stopping:
            log.warning("the cluster declared this node down, but it is alive: announcing it again")
            self._presence.say()

    # --- MeshHandler ---

    def on_consensus(self, peer: NodeName, messages: list[RaftMessage]) -> None:
        self._verdicts(self._detector.heard(peer, self._now_ms()))
        self.raft.receive(messages)

    def on_queue_frames(self, peer: NodeName, messages: list[QueueFrameMessage]) -> None:
        self._verdicts(self._detector.heard(peer, self._now_ms()))
        for message in messages:
            if isinstance(message, _MIRRORING):
                self.queues.receive(peer, message)
            elif isinstance(message, _TO_ENTRY_NODE):
                self.gateway.receive(peer, message)
            elif isinstance(message, NodeAlarms):
                self.alarms.receive(peer, message)
            else:
                self.sessions.receive(peer, message)

    def on_link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        self._verdicts(self._detector.heard(peer, self._now_ms()))
        self._linked_lives[peer] = incarnation
        self.raft.link_up(peer)
        self._append(peer, self.alarms.own_alarms())
        self.queues.link_up(peer)
        self.gateway.link_up(peer)

    def on_link_down(self, peer: NodeName, reason: str) -> None:
        self._verdicts(self._detector.link_reset(peer))
        self._linked_lives.pop(peer, None)
        self.raft.peers_changed()
        self.queues.link_down(peer)
        self.gateway.link_down(peer)
        self.alarms.link_lost(peer)
        self.sessions.node_lost(peer)

    def on_peer_refused(self, peer: NodeName) -> None:
        self._verdicts(self._detector.reconnect_refused(peer))

    def on_link_uncongested(self, peer: NodeName) -> None:
        self.gateway.link_free(peer)

    def _verdicts(self, changes: Sequence[VerdictChange]) -> None:
        for change in changes:
            if change.verdict is not Verdict.DOWN:
                continue
            log.warning("%s is %s", change.peer, "dead" if change.is_certain else "silent for too long")
            if change.is_certain:
                self.raft.peer_down(change.peer)
            self._propose_down(change.peer)

    # --- RaftListener ---

    def on_applied(self, index: int) -> None:
        """What was applied was heard of through `on_committed`; masters that were ahead of it are heard now."""
        self.queues.log_applied()

    def on_leader_change(self, leader: NodeName | None) -> None:
        """A new leader proposes what the one before it could not."""
        log.info("the metadata group is led by %s", leader)
        self._propose_all_down()

    def on_quorum_lost(self) -> None:
        if self.config.cluster_partition_handling == "pause_minority":
            log.error("no quorum: this node pauses, client connections are closed (pause_minority)")
            self._on_quorum(False)

    def on_quorum_regained(self) -> None:
        if self.config.cluster_partition_handling == "pause_minority":
            log.info("quorum regained: this node serves clients again")
            self._on_quorum(True)

    def on_storage_failed(self, error: StorageError) -> None:
        self._on_fatal(f"the metadata group failed here, this node stops: {error}")

    def _propose_all_down(self) -> None:
        """Every peer that is dead as far as this node can tell, and up for the cluster."""
        if self.raft.leader == self.node:
            for member in self.config.members:
                if member.name != self.node and self._detector.verdict(member.name) is Verdict.DOWN:
                    self._propose_down(member.name)

    def _propose_down(self, peer: NodeName) -> None:
        member = self.metadata.state.members.get(peer)
        if member is None or not member.is_up or not proposes_node_down(self.node, self.raft.leader, peer):
            return
        if peer not in self._proposed_down:
            self._proposed_down.add(peer)
            self.spawn(self._declare_down(NodeDown(peer, member.incarnation)), f"declaring {peer} down")

    async def _declare_down(self, command: NodeDown) -> None:
        try:
            await self.metadata.change(command)
        finally:
            self._proposed_down.discard(command.node)

    # --- RuntimePort and Links ---

    def send(self, node: NodeName, message: SessionMessage) -> None:
        self._append(node, message)

    def send_to_node(self, node: NodeName, message: MirrorMessage) -> None:
        self._append(node, message)

    def _append(self, node: NodeName, message: QueueFrameMessage) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush_outgoing)
        self._outgoing.setdefault(node, []).append(message)

    def set_memory_watermark(self, watermark: MemoryWatermark) -> None:
        """Until this node stops."""
        self.alarms.set_memory_watermark(watermark, self._now_ms())

    def set_disk_free_limit(self, limit: DiskFreeLimit) -> None:
        """Until this node stops."""
        self.alarms.set_disk_limit(limit, self._now_ms())

    def _tell_alarms(self, alarms: NodeAlarms) -> None:
        for peer in self.mesh.up_peers:
            self._append(peer, alarms)

    def _flush_outgoing(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for node, messages in outgoing.items():
            try:
                self.mesh.send_queue_frames(node, messages)
            except Exception as error:
                # Part of the conversation is lost, as with a broken link; the other nodes get theirs.
                log.exception("messages for %s could not be sent", node)
                self.mesh.reset_link(node, f"messages could not be sent: {error!r}")

    def is_congested(self, node: NodeName) -> bool:
        return self.mesh.is_congested(node)

    def is_up(self, node: NodeName) -> bool:
        return node in self.mesh.up_peers

    def linked_nodes(self) -> Sequence[NodeName]:
        return self.mesh.up_peers

    def dispatch_effects(self, queue: QueueRecord, effects: Sequence[QueueEffect]) -> None:
        here: list[QueueEffect] = []
        elsewhere: list[QueueEffect] = []
        for effect in effects:
            if isinstance(effect, DeleteUnused):
                self.spawn(self.metadata.submit(DeleteQueue(queue.vhost, queue.name, queue.queue_id)), "auto-delete")
            elif effect.channel.node == self.node:
                here.append(effect)
            else:
                elsewhere.append(effect)
        if here:
            self.gateway.local_effects(queue.queue_id, here)
        if elsewhere:
            self.sessions.remote_effects(queue.queue_id, elsewhere)

    def role_ended(self, queue_id: QueueId) -> None:
        self.gateway.queue_stopped(queue_id)
        self.sessions.queue_stopped(queue_id)

    def storage_failed(self, record: MastershipRecord, *, is_damaged: bool) -> None:
        """A master that fails hands over to its oldest synchronised (else complete) mirror; a mirror leaves."""
        if record.master != self.node:
            self._propose(DropMirror(record.queue_id, record.epoch, self.node))
        elif candidates := heirs(record):
            self._propose(MoveMaster(record.queue_id, record.epoch, candidates[0], is_old_lost=is_damaged))
        else:
            log.error(
                "queue %d has no other complete copy that is up: it is unavailable until the disk of this node has "
                "room again, or, if it is not merely full, until what is wrong is mended and this node restarts",
                record.queue_id,
            )

    def report(self, record: MastershipRecord, report: MirroringReport) -> None:
        if isinstance(report, ReportSynchronised):
            self._propose(
                MirrorSynchronised(record.queue_id, record.epoch, report.node, self.metadata.state.applied_index)
            )
        elif isinstance(report, ReportFollows):
            self._propose(MirrorFollows(record.queue_id, record.epoch, report.node, self.metadata.state.applied_index))
        elif isinstance(report, ReportTakesService):
            self._service_requests.ask(record)
        elif isinstance(report, ReportMirrorStalled):
            log.warning("queue %d: mirror on %s does not answer, dropping it", record.queue_id, report.node)
            self._dropped.add((record.queue_id, report.node))
            self._propose(DropMirror(record.queue_id, record.epoch, report.node))
        elif isinstance(report, ReportFenced):
            log.warning("queue %d: epoch %d is fenced by %d", record.queue_id, record.epoch, report.known_epoch)

    def request_sync(self) -> None:
        self.sync_thread.request()

    def _readmit(self) -> None:
        for queue_id, node in list(self._dropped):
            record = self.mastership(queue_id)
            if record is None or record.master != self.node:
                self._dropped.discard((queue_id, node))
            elif node not in record.mirrors and self.is_up(node) and self.raft.has_quorum:  # its drop may come yet
                self._dropped.discard((queue_id, node))
                self._propose(AddMirror(queue_id, record.epoch, node))

    # --- the disk ---

    def _look_for_room(self, now_ms: int) -> None:
        """Open what a full disk has put out of service, if it is no longer full.

        A copy that others can replace waits until they have: opened, it lacks what was in memory only, and as long as
        the record calls it synchronised nobody would know.
        """
        starved = self.queues.starved()
        if not starved or not self.alarms.has_room(ROOM_MIN_BYTES, now_ms):
            return
        for queue_id in starved:
            record = self.mastership(queue_id)
            if record is None:
                continue
            if record.is_down:
                self.queues.forgive(queue_id)
                self._presence.queue_changed(queue_id)
            elif record.master == self.node and not record.synchronised:
                log.info("queue %d: the disk has room again, the queue goes on", queue_id)
                self.queues.forgive(queue_id)
                self._take_up(queue_id)
            elif self.node not in (record.master, *record.mirrors):
                self.queues.forgive(queue_id)
                self._propose(AddMirror(queue_id, record.epoch, self.node))

    def _durable(self) -> None:
        self.queues.durable_advanced()

    def _sync_failed(self, error: StorageError) -> None:
        """After a failed fsync nothing that this process wrote can be trusted: stop, let a mirror take over."""
        self._on_fatal(f"the disk failed, this node stops: {error}")

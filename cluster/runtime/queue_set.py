"""`QueueSet`: every queue this node has a part in, and the turn that moves their effects.

Roles follow the mastership records, and nothing else: `follow` is called with each record that the metadata group
applied, and takes this node from whatever it was to whatever the record says. A promoted mirror becomes a master over
the same local queue; a fenced master becomes a mirror over the same local queue; a node that the record no longer
names drops its copy if the policy removed it, and keeps the files if it was merely declared down.

The turn. Calls into a queue only mark it (`touch`). Once per turn of the event loop each marked queue is drained:
effects go to the sessions, operations to the mirrors, reports to the metadata group, acknowledgements to the master;
then one group commit is asked for all of them. So a thousand publishes of one socket read cost one drain, one frame
per mirror and a share of one fsync.

Durability comes back as generations (`node.store.disk.group_commit`): a queue touched while generation g was open is
looked at again when g is on disk.

Failing storage. A `StorageError` of one queue takes this node's copy of that queue out of service and nothing else:
process and sessions end, the files stay as they are, and the cluster is asked to go on without this copy
(`RuntimePort.storage_failed`). The copy is opened again only after this node has left the record and come back.

Any other exception while one queue is opened, driven or changed is a mistake of ours. It is met in the same way: the
next start would meet the same mistake, and one queue out of service is better than no node in service. But such a copy
is as good as before: it counts as complete until a master goes on without it, and its files are kept even then, whereas
a copy whose disk failed is deleted once no other node can need it.

A full disk is the exception: it has damaged nothing, and may have room again. Copies that went out of service for want
of it (`DiskFullError`) are remembered; whoever watches the disk says when it is worth while to open them again
(`forgive`), which is the recovery of a restart, of this queue alone.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from cluster.metadata.mastership import heirs
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.early import EarlyMessages
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.messages import Attach, MirrorMessage, Ops
from cluster.mirroring.mirror import MirrorReplica, demote
from cluster.mirroring.reports import MirroringReport
from cluster.runtime.roles import MasterRole, MirrorRole, Role
from node.alarms.memory_monitor import PagingQueue
from node.errors import DiskFullError, StorageError
from node.flow.credit import FlowControl
from node.ids import Incarnation, NodeName, QueueId
from node.queues.events import QueueEffect
from node.queues.local_replica import LocalReplica
from node.queues.options import QueueOptions
from node.queues.queue_process import QueueProcess
from node.store.disk.group_commit import GroupCommit
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: No queue is drained after so much of a turn: the others of this node wait for the next one, after the sockets.
TURN_S = 0.002
#: A proposal gives up after half a minute without a quorum: that a copy failed is told again after this.
FAILURE_REPEAT_MS = 35_000
#: Attach ids that a master may use between two openings of its copy; a restart has 4096 such lives.
ATTACH_IDS_PER_LIFE = 1 << 20


class QueueFiles(Protocol):
    """Local storage of queues, over all vhosts."""

    def open_queue(self, queue: QueueRecord, index_version: int | None) -> LocalReplica:
        """Open what the disk holds of this queue, or create it; ``index_version`` ``None``: as configured."""

    def delete_queue(self, queue: QueueRecord) -> None:
        """Delete the files of a queue that is not open."""


class RuntimePort(Protocol):
    """What a queue set needs of the node around it."""

    def send_to_node(self, node: NodeName, message: MirrorMessage) -> None: ...

    @property
    def applied_index(self) -> int:
        """How far this node has applied the metadata log."""

    def linked_nodes(self) -> Sequence[NodeName]:
        """Nodes that can be reached now."""

    def dispatch_effects(self, queue: QueueRecord, effects: Sequence[QueueEffect]) -> None: ...

    def role_ended(self, queue_id: QueueId) -> None:
        """The queue process of this queue is gone from this node."""

    def storage_failed(self, record: MastershipRecord, *, is_damaged: bool) -> None:
        """This node cannot keep its copy: the cluster should go on without it. Said again under each new record, and
        after a while.

        ``is_damaged``: the copy itself cannot be relied on.
        """

    def report(self, record: MastershipRecord, report: MirroringReport) -> None:
        """Something that the metadata group must know."""

    def request_sync(self) -> None:
        """Ask for a group commit at the end of this turn."""

    def mirroring_settings(self, queue: QueueRecord) -> MirroringSettings: ...

    def queue_options(self, queue: QueueRecord) -> QueueOptions: ...


class Failure(NamedTuple):
    """Why this node's copy of a queue is out of service."""

    #: The record under which the cluster was told.
    record: MastershipRecord
    #: Its disk failed: what it holds cannot be relied on.
    is_damaged: bool


class QueueSet:
    """Roles of one node. Implements `cluster.sessions.ports.LocalQueues`."""

    def __init__(
        self,
        node: NodeName,
        files: QueueFiles,
        group_commit: GroupCommit,
        port: RuntimePort,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        incarnation: Incarnation,
        flow: FlowControl | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._clock = clock
        self._flow = flow or FlowControl()
        #: A restarted node that masters the same epoch again must not repeat its attach ids.
        self._attach_id_base = incarnation << 32
        self._files = files
        self._group_commit = group_commit
        self._port = port
        self._call_soon = call_soon
        self.roles: dict[QueueId, Role] = {}
        self._processes: dict[QueueId, QueueProcess] = {}
        #: Queues whose copy here is out of service.
        self._failed: dict[QueueId, Failure] = {}
        self._failures_told_ms = 0
        #: Queues whose copy here went out of service because the disk was full.
        self._starved: set[QueueId] = set()
        self._dirty: dict[QueueId, None] = {}
        self._turn_is_scheduled = False
        #: What masters said that have applied more of the log than we.
        self._early = EarlyMessages()
        #: Opened by the `follow` that is under way, and not yet in a role.
        self._unclaimed: LocalReplica | None = None
        #: generation -> queues touched while it was open.
        self._touched: dict[int, set[QueueId]] = {}

    # --- LocalQueues ---

    def process(self, queue_id: QueueId) -> QueueProcess | None:
        """The queue process, if this node masters the queue."""
        return self._processes.get(queue_id)

    def touch(self, queue_id: QueueId) -> None:
        """The queue was called and may have written: drain it in this turn, look again when that is on disk."""
        self._touched.setdefault(self._group_commit.open_generation, set()).add(queue_id)
        self._drain_soon(queue_id)

    def _drain_soon(self, queue_id: QueueId) -> None:
        self._dirty[queue_id] = None
        if not self._turn_is_scheduled:
            self._turn_is_scheduled = True
            self._call_soon(self._turn)

    def run(self, queue_id: QueueId) -> None:
        """Drain one queue now: what it has to say goes before the answer that follows."""
        role = self.roles.get(queue_id)
        if isinstance(role, MasterRole):
            with self._guarded(queue_id):
                self._drain_master(role)

    def out_of_service(self, queue_id: QueueId, error: Exception) -> None:
        """The storage of this queue, or the queue itself, failed in somebody's hands: its role here ends."""
        role = self.roles.get(queue_id)
        if role is not None:
            self._fail(role.queue, role.record, error)
        elif not isinstance(error, StorageError):
            log.error("queue %d, of which this node has no copy in service: %r", queue_id, error, exc_info=error)

    def fail(self, queue: QueueRecord, record: MastershipRecord, error: Exception) -> None:
        """This node could not follow ``record``: its copy, if the record gives it one, goes out of service."""
        if self._node in record.mirrors or (self._node == record.master and not record.is_down):
            self._fail(queue, record, error)
        else:
            log.error("%s: its record could not be followed: %r", queue.queue_name, error, exc_info=error)

    @contextmanager
    def _guarded(self, queue_id: QueueId) -> Iterator[None]:
        """Whatever happens to one queue, the others go on."""
        try:
            yield
        except Exception as error:
            self.out_of_service(queue_id, error)

    def _fail(self, queue: QueueRecord, record: MastershipRecord, error: Exception) -> None:
        queue_id = queue.queue_id
        if isinstance(error, StorageError):
            log.error("%s: this node's copy is out of service: %s", queue.queue_name, error)
        else:
            log.error(
                "%s: this node's copy is out of service: %r, which is a mistake of this program. Its files are kept. "
                "A restart of this node opens it again; deleting the queue gives it up",
                queue.queue_name,
                error,
                exc_info=error,
            )
        self._failed[queue_id] = Failure(record, is_damaged=isinstance(error, StorageError))
        if isinstance(error, DiskFullError):
            self._starved.add(queue_id)
        unclaimed, self._unclaimed = self._unclaimed, None
        if queue_id in self.roles:
            self._close(self.roles[queue_id], delete=False)
        elif unclaimed is not None:
            self._close_files(queue, unclaimed, delete=False)
        self._port.storage_failed(record, is_damaged=self._failed[queue_id].is_damaged)

    def is_failed(self, queue_id: QueueId) -> bool:
        """True while this node's copy is out of service."""
        return queue_id in self._failed

    def starved(self) -> list[QueueId]:
        """Queues whose copy here is out of service because the disk was full."""
        return sorted(self._starved)

    def forgive(self, queue_id: QueueId) -> None:
        """Forget why this copy is out of service: the next `follow` opens it again."""
        self._starved.discard(queue_id)
        self._failed.pop(queue_id, None)
        # Its mirrors must not take what a master says in its second life for what it said in its first.
        self._attach_id_base += ATTACH_IDS_PER_LIFE

    # --- roles ---

    def follow(self, queue: QueueRecord, record: MastershipRecord, *, is_discarded: bool = False) -> None:
        """Take the role that a newly applied record gives this node; ``is_discarded``: by policy it holds no copy."""
        queue_id = record.queue_id
        role = self.roles.get(queue_id)
        if role is not None and record.epoch < role.record.epoch:
            return  # an older record cannot take a role away
        is_master = record.master == self._node and not record.is_down
        failure = self._failed.get(queue_id)
        if failure is not None:
            self._failed[queue_id] = failure._replace(record=record)
        if not is_master and self._node not in record.mirrors:
            # A damaged copy is of use only as long as no other has everything that it has.
            is_damaged = failure is not None and failure.is_damaged
            if not is_damaged or self._node not in record.complete:
                self._leave(queue, delete=is_discarded or is_damaged)
            return
        if failure is not None:
            if record != failure.record:
                self._port.storage_failed(record, is_damaged=failure.is_damaged)
            return
        try:
            if is_master:
                self._become_master(queue, record, role)
            else:
                self._become_mirror(queue, record, role)
        except Exception as error:
            self._fail(queue, record, error)
        finally:
            self._unclaimed = None

    def queue_deleted(self, queue: QueueRecord) -> None:
        """The queue no longer exists in the cluster: nothing of it stays here."""
        self._starved.discard(queue.queue_id)
        self._early.forget_queue(queue.queue_id)
        if queue.queue_id in self.roles or queue.queue_id in self._failed:
            # Every entry node tells its own clients when it applies the deletion, so the last effects go nowhere.
            self._leave(queue, delete=True)
        else:
            self._delete_files(queue)

    def _become_master(self, queue: QueueRecord, record: MastershipRecord, role: Role | None) -> None:
        if isinstance(role, MasterRole) and record.epoch > role.record.epoch:
            # A snapshot skipped the commits between, in which another node may have been the master: what this
            # process knows of deliveries and consumers is of the past.
            role = self._demote(queue, record, role)
        if isinstance(role, MasterRole):
            role.record = record
            role.mirrored.set_record(record)
        elif isinstance(role, MirrorRole):
            if not role.replica.may_promote(record):
                return  # a later master has spoken to us already: its record is on the way
            log.info("%s: promoted to master in epoch %d, depth %d", queue.queue_name, record.epoch, role.local.ready)
            settings = self._port.mirroring_settings(queue)
            mirrored = role.replica.promote(self._node, record, settings, self._attach_id_base)
            self._start_master(queue, record, role.local, mirrored)
        else:
            local = self._open(queue)
            if self._node not in record.complete:
                # Others have served meanwhile; what they have delivered is not on this disk.
                local.mark_delivered_below(local.next_seq_id)
            mirrored = MirroredQueue(
                self._node,
                local,
                record,
                self._port.mirroring_settings(queue),
                delivered_below=local.next_seq_id,  # what the disk still has may have been delivered, all of it
                trusted_origins={},  # the copy may have been incomplete when this node stopped
                attach_id_base=self._attach_id_base,
            )
            self._start_master(queue, record, local, mirrored)
        self.touch(record.queue_id)

    def _open(self, queue: QueueRecord) -> LocalReplica:
        options = self._port.queue_options(queue)
        local = self._unclaimed = self._files.open_queue(queue, options.index_version)
        local.set_lazy(options.is_lazy)
        return local

    def _start_master(
        self, queue: QueueRecord, record: MastershipRecord, local: LocalReplica, mirrored: MirroredQueue
    ) -> None:
        process = QueueProcess(queue, mirrored, self._port.queue_options(queue), self._flow)
        self.roles[record.queue_id] = MasterRole(queue, record, local, mirrored, process)
        self._processes[record.queue_id] = process
        for node in self._port.linked_nodes():
            mirrored.mirror_link_up(node)

    def _become_mirror(self, queue: QueueRecord, record: MastershipRecord, role: Role | None) -> None:
        if isinstance(role, MirrorRole):
            role.record = record
            role.replica.adopt_epoch(record.epoch)
            return
        if isinstance(role, MasterRole):
            log.warning("%s: fenced by epoch %d, now a mirror of %s", queue.queue_name, record.epoch, record.master)
            self._demote(queue, record, role)
        else:
            local = self._open(queue)
            local.mark_none_delivered()
            replica = MirrorReplica(record.queue_id, local, record.epoch, queue.durable)
            self.roles[record.queue_id] = MirrorRole(queue, record, local, replica)
        self._hear_early(record.queue_id)
        self.touch(record.queue_id)

    def _demote(self, queue: QueueRecord, record: MastershipRecord, role: MasterRole) -> MirrorRole:
        """End a mastership; its queue goes on as a mirror's."""
        self._end_process(record.queue_id)
        mirror = MirrorRole(queue, record, role.local, demote(role.mirrored, record.epoch))
        self.roles[record.queue_id] = mirror
        return mirror

    def _leave(self, queue: QueueRecord, *, delete: bool) -> None:
        """This node holds no copy any more; the files stay unless ``delete``."""
        role = self.roles.get(queue.queue_id)
        self._early.take(queue.queue_id, self._port.applied_index)  # nobody is left whom it was said to
        was_failed = queue.queue_id in self._failed
        if queue.queue_id not in self._starved:
            self._failed.pop(queue.queue_id, None)  # else not before there is room (`forgive`)
        if role is not None:
            self._close(role, delete=delete)
        if delete and (role is not None or was_failed):
            self._delete_files(queue)

    def _close(self, role: Role, *, delete: bool) -> None:
        """End a role and its hold on the files, as far as the disk lets us."""
        queue_id = role.queue.queue_id
        del self.roles[queue_id]
        self._end_process(queue_id)
        self._dirty.pop(queue_id, None)
        if isinstance(role, MirrorRole):
            # The master goes on delivering; if this copy is opened as a master's, nobody is left to ask.
            role.local.mark_delivered_below(role.local.next_seq_id)
        self._close_files(role.queue, role.local, delete=delete)

    @staticmethod
    def _close_files(queue: QueueRecord, local: LocalReplica, *, delete: bool) -> None:
        try:
            if delete:
                local.delete()
            else:
                local.terminate()
        except StorageError as error:
            log.warning("%s: its files could not be closed cleanly: %s", queue.queue_name, error)
        except Exception:
            log.exception("%s: its files could not be closed cleanly", queue.queue_name)

    def _delete_files(self, queue: QueueRecord) -> None:
        try:
            self._files.delete_queue(queue)
        except StorageError as error:
            log.error("%s: its files could not be deleted and stay on the disk: %s", queue.queue_name, error)
        except Exception:
            log.exception("%s: its files could not be deleted and stay on the disk", queue.queue_name)

    def _end_process(self, queue_id: QueueId) -> None:
        if self._processes.pop(queue_id, None) is not None:
            self._port.role_ended(queue_id)

    # --- the mesh ---

    def receive(self, node: NodeName, message: MirrorMessage) -> None:
        """One mirroring message of another node."""
        queue_id = message.queue_id
        role = self.roles.get(queue_id)
        if isinstance(role, MasterRole):
            # An attach comes from another master: of the past, and is refused, or of the future, and fences us.
            with self._guarded(queue_id):
                role.mirrored.receive(node, message)
            if isinstance(message, Attach | Ops) and message.epoch > role.record.epoch:
                self._early.keep(node, message)
        elif isinstance(message, Attach | Ops):
            if role is None or self._early.is_early(message, self._port.applied_index):
                if queue_id not in self._failed:
                    self._early.keep(node, message)
                return
            self._early.forget_queue(queue_id)
            with self._guarded(queue_id):
                role.replica.receive(node, message)
        else:
            return
        self.touch(queue_id)

    def _hear_early(self, queue_id: QueueId) -> None:
        for node, message in self._early.take(queue_id, self._port.applied_index):
            self.receive(node, message)

    def log_applied(self) -> None:
        """This node has applied more of the metadata log: masters that were ahead are heard now."""
        for queue_id in self._early.due(self._port.applied_index):
            if isinstance(self.roles.get(queue_id), MirrorRole):
                self._hear_early(queue_id)

    def link_up(self, node: NodeName) -> None:
        for queue_id, role in list(self.roles.items()):
            if isinstance(role, MasterRole):
                with self._guarded(queue_id):
                    role.mirrored.mirror_link_up(node)
                self.touch(queue_id)

    def link_down(self, node: NodeName) -> None:
        for queue_id, role in list(self.roles.items()):
            with self._guarded(queue_id):
                if isinstance(role, MasterRole):
                    role.mirrored.mirror_link_down(node)
                    self.touch(queue_id)
                elif role.record.master == node:
                    role.replica.link_lost()
        self._early.forget_node(node)

    # --- the turn ---

    def _turn(self) -> None:
        self._turn_is_scheduled = False
        end_s = self._clock() + TURN_S
        dirty, self._dirty = deque(self._dirty), {}
        while dirty and self._clock() < end_s:
            queue_id = dirty.popleft()
            role = self.roles.get(queue_id)
            if role is None:
                continue
            with self._guarded(queue_id):
                if isinstance(role, MasterRole):
                    self._drain_master(role)
                else:
                    self._drain_mirror(role)
        if dirty:
            # Before those that were touched meanwhile, which may be the same again and again.
            touched, self._dirty = self._dirty, {}
            for queue_id in (*dirty, *touched):
                self._drain_soon(queue_id)
        self._port.request_sync()

    def _drain_master(self, role: MasterRole) -> None:
        effects = role.process.drain()
        if role.process.has_more:
            self._drain_soon(role.queue.queue_id)
        if effects:
            self._port.dispatch_effects(role.queue, effects)
        for node, message in role.mirrored.take_messages(self._port.applied_index):
            self._port.send_to_node(node, message)
        for report in role.mirrored.take_reports():
            self._port.report(role.record, report)

    def _drain_mirror(self, role: MirrorRole) -> None:
        for node, message in role.replica.take_messages():
            self._port.send_to_node(node, message)

    def durable_advanced(self) -> None:
        """A group commit round is on disk: those who wrote in it may have confirms or acknowledgements to give."""
        durable = self._group_commit.durable_generation
        for generation in [generation for generation in self._touched if generation <= durable]:
            for queue_id in self._touched.pop(generation):
                role = self.roles.get(queue_id)
                if role is not None:
                    self._drain_soon(queue_id)  # a mirror looks for itself when it is drained

    def tick(self, now_ms: int) -> None:
        """Time passes: throttled synchronisation goes on, stalled mirrors are noticed."""
        for queue_id, role in list(self.roles.items()):
            if isinstance(role, MasterRole):
                with self._guarded(queue_id):
                    if role.mirrored.wants_tick:
                        role.mirrored.tick(now_ms)
                        if role.mirrored.wants_turn:
                            self.touch(queue_id)
        if self._failed and now_ms - self._failures_told_ms >= FAILURE_REPEAT_MS:
            self._failures_told_ms = now_ms
            self._repeat_failures()

    def _repeat_failures(self) -> None:
        """The cluster may not have heard of copies that failed here: tell it again, where others can go on."""
        for record, is_damaged in list(self._failed.values()):
            is_master = record.master == self._node and not record.is_down
            if self._node in record.mirrors or (is_master and heirs(record)):
                self._port.storage_failed(record, is_damaged=is_damaged)

    # --- paging (`node.alarms.memory_monitor.PagingQueues`) ---

    def paging_queue_ids(self) -> Sequence[QueueId]:
        """Every queue with a copy here: mirrors hold as much memory as masters."""
        return list(self.roles)

    def ram_durations_s(self, queue_ids: Sequence[QueueId], now_ms: int) -> list[float]:
        """Seconds of its traffic that each of these queues holds in memory; those that are gone are left out."""
        durations_s: list[float] = []
        for queue_id in queue_ids:
            if queue_id in self.roles:
                with self._guarded(queue_id):
                    durations_s.append(self.roles[queue_id].local.ram_duration_s(now_ms))
        return durations_s

    def set_ram_duration_targets(self, queue_ids: Sequence[QueueId], seconds: float) -> None:
        """How many seconds of traffic these queues may hold in memory. What they page out is written at once."""
        for queue_id in queue_ids:
            role = self.roles.get(queue_id)
            if role is not None:
                copy: PagingQueue = role.local
                with self._guarded(queue_id):
                    copy.set_ram_duration_target(seconds)
        self._port.request_sync()

    def policy_changed(self) -> None:
        """Policies may have changed what queues want: mode, limits and the way of synchronisation hold at once."""
        for queue_id, role in list(self.roles.items()):
            with self._guarded(queue_id):
                options = self._port.queue_options(role.queue)
                role.local.set_lazy(options.is_lazy)
                role.local.set_index_version(options.index_version)
                if isinstance(role, MasterRole):
                    role.process.set_options(options)
                    role.mirrored.set_settings(self._port.mirroring_settings(role.queue))
                    self.touch(queue_id)

    def close(self) -> None:
        """Orderly stop: leave every local queue as clean recovery wants it."""
        for role in list(self.roles.values()):
            self._close(role, delete=False)

    def check_invariants(self) -> None:
        self._early.check_invariants()
        masters = {queue_id for queue_id, role in self.roles.items() if isinstance(role, MasterRole)}
        assert masters == set(self._processes), "exactly the queues mastered here have a process"
        assert not self.roles.keys() & self._failed.keys(), "a copy out of service plays no role"
        for role in self.roles.values():
            role.local.check_invariants()
            if isinstance(role, MasterRole):
                role.process.check_invariants()

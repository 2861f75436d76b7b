"""`QueueSet`: every queue this node has a part in, and the turn that moves their effects.

Roles follow the mastership records, and nothing else: `follow` is called with each record that the metadata group
applied, and takes this node from whatever it was to whatever the record says. A promoted mirror becomes a master over
the same local queue; a fenced master becomes a mirror over the same local queue; a node that the record no longer
names drops its copy if the policy removed it, and keeps the files if it was merely declared down.

The turn. Calls into a queue only mark it (`touch`). Once per turn of the event loop each marked queue is drained:
effects go to the sessions, operations to the mirrors, reports to the metadata group, acknowledgements to the master;
then one group commit is asked for all of them. So a thousand publishes of one socket read cost one drain, one frame
per mirror and a share of one fsync.

Durability comes back as generations (`node.store.group_commit`): a queue touched while generation g was open is
looked at again when g is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.messages import Attach, AttachRefused, AttachReply, MirrorMessage, Ops, OpsAck
from cluster.mirroring.mirror import MirrorReplica, demote
from cluster.mirroring.reports import MirroringReport
from cluster.runtime.roles import MasterRole, MirrorRole, Role
from node.errors import StorageError
from node.ids import Incarnation, NodeName, QueueId
from node.queues.events import QueueEffect
from node.queues.options import QueueOptions
from node.queues.queue_process import QueueProcess
from node.queues.variable_queue import VariableQueue
from node.store.group_commit import GroupCommit
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: Queues whose master may speak before its record is applied here: a whole node's failover, with room to spare.
EARLY_QUEUES_MAX = 10_000


class QueueFiles(Protocol):
    """Local storage of queues, over all vhosts."""

    def open_queue(self, queue: QueueRecord) -> VariableQueue:
        """Open what the disk holds of this queue, or create it."""

    def delete_queue(self, queue: QueueRecord) -> None:
        """Delete the files of a queue that is not open."""


class RuntimePort(Protocol):
    """What a queue set needs of the node around it."""

    def send_to_node(self, node: NodeName, message: MirrorMessage) -> None: ...

    def linked_nodes(self) -> Sequence[NodeName]:
        """Nodes that can be reached now."""

    def dispatch_effects(self, queue: QueueRecord, effects: Sequence[QueueEffect]) -> None: ...

    def role_ended(self, queue_id: QueueId) -> None:
        """The queue process of this queue is gone from this node."""

    def report(self, record: MastershipRecord, report: MirroringReport) -> None:
        """Something that the metadata group must know."""

    def request_sync(self) -> None:
        """Ask for a group commit at the end of this turn."""

    def mirroring_settings(self, queue: QueueRecord) -> MirroringSettings: ...

    def queue_options(self, queue: QueueRecord) -> QueueOptions: ...


class QueueSet:
    """Roles of one node. Implements `cluster.sessions.entry.LocalQueues`."""

    def __init__(
        self,
        node: NodeName,
        files: QueueFiles,
        group_commit: GroupCommit,
        port: RuntimePort,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        incarnation: Incarnation,
    ) -> None:
        self._node = node
        #: A restarted node that masters the same epoch again must not repeat its attach ids.
        self._attach_id_base = incarnation << 32
        self._files = files
        self._group_commit = group_commit
        self._port = port
        self._call_soon = call_soon
        self.roles: dict[QueueId, Role] = {}
        self._processes: dict[QueueId, QueueProcess] = {}
        self._dirty: dict[QueueId, None] = {}
        self._turn_is_scheduled = False
        #: What masters said before the record that makes us their mirror was applied here.
        self._early: dict[QueueId, list[tuple[NodeName, Attach | Ops]]] = {}
        #: generation -> queues touched while it was open.
        self._touched: dict[int, set[QueueId]] = {}

    # --- LocalQueues ---

    def process(self, queue_id: QueueId) -> QueueProcess | None:
        """The queue process, if this node masters the queue."""
        return self._processes.get(queue_id)

    def touch(self, queue_id: QueueId) -> None:
        """The queue was called and may have written: drain it in this turn, look again when that is on disk."""
        self._dirty[queue_id] = None
        self._touched.setdefault(self._group_commit.open_generation, set()).add(queue_id)
        if not self._turn_is_scheduled:
            self._turn_is_scheduled = True
            self._call_soon(self._turn)

    def run(self, queue_id: QueueId) -> None:
        """Drain one queue now: what it has to say goes before the answer that follows."""
        role = self.roles.get(queue_id)
        if isinstance(role, MasterRole):
            self._drain_master(role)

    # --- roles ---

    def follow(self, queue: QueueRecord, record: MastershipRecord, *, dropped_by_policy: bool = False) -> None:
        """Take the role that a newly applied record gives this node."""
        queue_id = record.queue_id
        role = self.roles.get(queue_id)
        if role is not None and record.epoch < role.record.epoch:
            return  # an older record cannot take a role away
        if record.master == self._node and not record.is_down:
            self._become_master(queue, record, role)
        elif self._node in record.mirrors:
            self._become_mirror(queue, record, role)
        elif role is not None:
            self._leave(role, delete=dropped_by_policy)

    def queue_deleted(self, queue: QueueRecord) -> None:
        """The queue no longer exists in the cluster: nothing of it stays here."""
        self._early.pop(queue.queue_id, None)
        role = self.roles.get(queue.queue_id)
        if role is None:
            self._files.delete_queue(queue)
        else:
            # Every entry node tells its own clients when it applies the deletion, so the last effects go nowhere.
            self._leave(role, delete=True)

    def _become_master(self, queue: QueueRecord, record: MastershipRecord, role: Role | None) -> None:
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
            local = self._files.open_queue(queue)
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

    def _start_master(
        self, queue: QueueRecord, record: MastershipRecord, local: VariableQueue, mirrored: MirroredQueue
    ) -> None:
        process = QueueProcess(queue, mirrored, self._port.queue_options(queue))
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
            self._end_process(record.queue_id)
            local, replica = role.local, demote(role.mirrored, record.epoch)
        else:
            local = self._files.open_queue(queue)
            replica = MirrorReplica(record.queue_id, local, record.epoch, queue.durable)
        self.roles[record.queue_id] = MirrorRole(queue, record, local, replica)
        for node, message in self._early.pop(record.queue_id, ()):
            self.receive(node, message)
        self.touch(record.queue_id)

    def _leave(self, role: Role, *, delete: bool) -> None:
        queue_id = role.queue.queue_id
        del self.roles[queue_id]
        self._end_process(queue_id)
        self._dirty.pop(queue_id, None)
        if delete:
            role.local.delete()
            self._files.delete_queue(role.queue)
        else:
            role.local.terminate()

    def _end_process(self, queue_id: QueueId) -> None:
        if self._processes.pop(queue_id, None) is not None:
            self._port.role_ended(queue_id)

    # --- the mesh ---

    def receive(self, node: NodeName, message: MirrorMessage) -> None:
        """One mirroring message of another node."""
        role = self.roles.get(message.queue_id)
        if isinstance(role, MasterRole) and isinstance(message, AttachReply | AttachRefused | OpsAck):
            role.mirrored.receive(node, message)
        elif isinstance(message, Attach | Ops):
            if not isinstance(role, MirrorRole):
                self._keep_early(node, message)
                return
            role.replica.receive(node, message)
        else:
            return
        self.touch(message.queue_id)

    def _keep_early(self, node: NodeName, message: Attach | Ops) -> None:
        """A master that has applied its record before we have: what it says waits until we are its mirror.

        Bounded by the master, which streams no more than its window before our first answer, and in number of queues.
        """
        if isinstance(message, Attach):
            self._early.pop(message.queue_id, None)
            self._early[message.queue_id] = [(node, message)]
            if len(self._early) > EARLY_QUEUES_MAX:
                del self._early[next(iter(self._early))]
        elif (waiting := self._early.get(message.queue_id)) is not None:
            waiting.append((node, message))

    def link_up(self, node: NodeName) -> None:
        for queue_id, role in self.roles.items():
            if isinstance(role, MasterRole):
                role.mirrored.mirror_link_up(node)
                self.touch(queue_id)

    def link_down(self, node: NodeName) -> None:
        for queue_id, role in self.roles.items():
            if isinstance(role, MasterRole):
                role.mirrored.mirror_link_down(node)
                self.touch(queue_id)
            elif role.record.master == node:
                role.replica.link_lost()
        for queue_id, waiting in list(self._early.items()):
            if waiting[0][0] == node:
                del self._early[queue_id]

    # --- the turn ---

    def _turn(self) -> None:
        self._turn_is_scheduled = False
        dirty, self._dirty = self._dirty, {}
        for queue_id in dirty:
            role = self.roles.get(queue_id)
            if role is None:
                continue
            try:
                if isinstance(role, MasterRole):
                    self._drain_master(role)
                else:
                    self._drain_mirror(role)
            except StorageError:
                log.exception("%s: storage failed, the queue is out of service on this node", role.queue.queue_name)
        self._port.request_sync()

    def _drain_master(self, role: MasterRole) -> None:
        effects = role.process.drain()
        if effects:
            self._port.dispatch_effects(role.queue, effects)
        for node, message in role.mirrored.take_messages():
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
                if isinstance(role, MirrorRole):
                    role.replica.durable_advanced()
                if role is not None:
                    self._dirty[queue_id] = None
        if self._dirty and not self._turn_is_scheduled:
            self._turn_is_scheduled = True
            self._call_soon(self._turn)

    def tick(self, now_ms: int) -> None:
        """Time passes: throttled synchronisation goes on, stalled mirrors are noticed."""
        for queue_id, role in self.roles.items():
            if isinstance(role, MasterRole) and role.record.mirrors:
                role.mirrored.tick(now_ms)
                if role.mirrored.wants_turn:
                    self.touch(queue_id)

    def policy_changed(self) -> None:
        """Policies may have changed what queues want: limits and the way of synchronisation hold at once."""
        for queue_id, role in self.roles.items():
            if isinstance(role, MasterRole):
                role.process.set_options(self._port.queue_options(role.queue))
                settings = self._port.mirroring_settings(role.queue)
                if settings.sync_automatically and not role.mirrored.settings.sync_automatically:
                    role.mirrored.start_sync()
                role.mirrored.set_settings(settings)
                self.touch(queue_id)

    def close(self) -> None:
        """Orderly stop: leave every local queue as clean recovery wants it."""
        for role in list(self.roles.values()):
            self._leave(role, delete=False)

    def check_invariants(self) -> None:
        masters = {queue_id for queue_id, role in self.roles.items() if isinstance(role, MasterRole)}
        assert masters == set(self._processes), "exactly the queues mastered here have a process"
        for role in self.roles.values():
            role.local.check_invariants()
            if isinstance(role, MasterRole):
                role.process.check_invariants()

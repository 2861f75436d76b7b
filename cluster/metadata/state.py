"""The replicated state machine: everything the cluster agrees on, changed only by committed requests.

Every node applies the same requests in the same order and so holds the same state, byte for byte (`snapshot`). For that
`apply` is deterministic: no clock, no chance, no iteration over sets, queues always in the order of their ids.

`apply` either changes what the command says, or returns an error and changes nothing. What changed comes back as
events; the runtime of each node acts on those that concern it (become master, start a mirror, delete a queue ...).

`apply` is also total: an entry is committed once and for ever, so what raises here raises on every node and at every
start. Bytes that are no command are passed over, a command with fields of the wrong types is refused before it is
looked at (`cluster.metadata.wellformed`), and if carrying out a command fails all the same, which is a mistake of
ours, the command is refused and its half of a change is taken back (`cluster.metadata.history`). Only what is about
this process and not about the command, want of memory or stack, still raises: other nodes may have carried it out.

**In pieces.** What looks at every queue would hold the loop for a tenth of a second with ten thousand of them. So
`apply_in_pieces` yields after each queue, and whoever carries out the log goes on in a later turn; it begins no other
entry before. Readers in between see some queues as they were before the command and some as they are after it, each by
itself whole (`check_invariants` says what else holds); members and policies have changed already. Nobody acts on that:
what changed is told when the command is done, as ever. Nothing of it is remembered anywhere: a process that ends in the
middle begins again from its snapshot and log, and snapshots are taken between commands only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from cluster.metadata import mastership as rules
from cluster.metadata.admissions import Admissions
from cluster.metadata.codec import decode_request, encode_in_pieces, encode_request
from cluster.metadata.commands import (
    AdmitNode,
    ChangeTopology,
    ClearPolicy,
    Command,
    ForcePromote,
    ForgetNode,
    FoundCluster,
    NodeDown,
    NodeUp,
    RaiseProtocol,
    Request,
    SetPolicy,
    TakeService,
    UserCommand,
)
from cluster.metadata.errors import (
    AlreadyFoundedError,
    ChangeFailedError,
    EarlierLifeError,
    NoSuchPolicyError,
    NoSuchVhostError,
    OutcomeUnknownError,
    QueuesWouldBeDeletedError,
    RefusedChangeError,
    StaleVhostChangeError,
)
from cluster.metadata.events import (
    AccessEnded,
    Applied,
    ChangeReason,
    Event,
    MemberChanged,
    PolicyChanged,
    QueueCreated,
    QueueDeleted,
)
from cluster.metadata.history import History
from cluster.metadata.kinds import COMMANDS_HAVE_A_TIME, FIRST_PROTOCOL, NEWEST_PROTOCOL
from cluster.metadata.master_locator import locate_master
from cluster.metadata.masterships import Masterships, RecordTables
from cluster.metadata.protocol import ClusterProtocol
from cluster.metadata.record_changes import RecordChanges
from cluster.metadata.records import (
    MastershipRecord,
    MemberRecord,
    PolicyRecord,
    is_owned_by_connection_of,
    sorted_values,
)
from cluster.metadata.requests import AppliedRequests
from cluster.metadata.snapshots import read_snapshot
from cluster.metadata.together import check_together
from cluster.metadata.user_changes import change_users, found_cluster
from cluster.metadata.wellformed import check_command
from cluster.policy.matching import PolicyMatches
from cluster.policy.placement import CurrentPlacement, suggest_nodes
from cluster.policy.validation import PolicyError, validate_policy
from node.auth import UserDirectory
from node.errors import AmqpError, ConfigError, ConnectionFailure
from node.ids import NodeName, QueueId
from node.pieces import Pieces, at_once
from node.topology.commands import CreateVhost, DeclareQueue, DeleteExchange, DeleteQueue, DeleteVhost
from node.topology.content import TopologyContent
from node.topology.records import QueueRecord
from node.topology.topology import Topology


class MetadataState(RecordChanges):
    """See the module's essay. Readers may look at everything; only `apply` and `restore` change anything."""

    def __init__(self, users: UserDirectory | None = None, spoken: int = NEWEST_PROTOCOL) -> None:
        """``spoken``: the protocol of this node (`cluster.metadata.protocol`)."""
        self.topology = Topology()
        self.users = users if users is not None else UserDirectory()
        #: Every node that was ever up and is not forgotten.
        self.members: dict[NodeName, MemberRecord] = {}
        self._matches = PolicyMatches()
        #: By (vhost, name), for readers.
        self.policies: Mapping[tuple[str, str], PolicyRecord] = self._matches.policies
        self.admissions = Admissions()
        self._table = Masterships()
        #: The records, for readers.
        self.masterships: Mapping[QueueId, MastershipRecord] = self._table.records
        #: Index of the last entry of the Raft log that is applied.
        self.applied_index = 0
        #: Version of the rules that hold now, see `mastership.TAKING_SERVICE`.
        self.rules_version = 1
        #: It has, or had, a vhost: nobody is to make another one unasked.
        self.is_founded = False
        self.versions = ClusterProtocol(spoken)
        #: A command is being carried out in pieces.
        self.is_changing = False
        #: Told the vhost whose policies changed, before anybody sees a queue that follows them: what was concluded from
        #: them is forgotten. (With a snapshot everything changes, which the observers of the topology hear.)
        self.on_policies_changed: Callable[[str], None] = lambda _vhost: None
        self._requests = AppliedRequests()
        self._events: list[Event] = []
        #: Whence this state can be made again, if a command breaks off in the middle.
        self._history = History(self.snapshot(), 0)

    # ------------------------------------------------------------------ reading

    @property
    def protocol(self) -> int:
        """The protocol that all members speak: what the cluster may use (`cluster.metadata.protocol`)."""
        return self.versions.protocol

    @property
    def has_times(self) -> bool:
        """Commands may say of when they are."""
        return self.protocol >= COMMANDS_HAVE_A_TIME

    @property
    def as_of_index(self) -> int:
        """What a command that is about what is known now may say of itself."""
        return self.applied_index if self.has_times else 0

    # ------------------------------------------------------------------ applying

    def pass_over(self, index: int) -> None:
        """The entry at ``index`` carries bytes that are no command."""
        self.applied_index = index

    def apply(self, index: int, request: Request, payload: bytes | None = None) -> Applied:
        """As `apply_in_pieces`, all at once."""
        return at_once(self.apply_in_pieces(index, request, payload))

    def apply_in_pieces(self, index: int, request: Request, payload: bytes | None = None) -> Pieces[Applied]:
        """Carry out the request committed at ``index``. Its id is one that `decode_request` would give.

        ``payload``: the bytes that it was decoded from, if the caller has them. To be brought to its end before
        anything else is applied, restored or taken a snapshot of.
        """
        assert index > self.applied_index, "entries are applied in order, each once"
        assert not self.is_changing, "one entry at a time"
        self.applied_index = index
        request_id = request.request_id
        if self._requests.is_of_earlier_life(request_id):
            return Applied(error=EarlierLifeError(request_id.node, request_id.incarnation))
        if objection := self.versions.objection(request.command, self.members, self.admissions.admitted):
            return Applied(error=objection)
        if not self._requests.admit(request_id):
            # Who still waits for it has not seen the first one carried out, or refused.
            return Applied(error=OutcomeUnknownError())
        self.is_changing = True
        try:
            check_command(request.command)
            result = yield from self._carry_out(request.command)
            events = tuple(self._events)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            if isinstance(error, AmqpError | RefusedChangeError | PolicyError | ConfigError) and not self._events:
                self.is_changing = False
                self._history.add(index, request_id, None)
                return Applied(error=error)
            self._undo(request)
            failure = ChangeFailedError(request.command, error)
            failure.__cause__ = error
            return Applied(error=failure)
        self.is_changing = False
        self._events.clear()
        self._history.add(index, request_id, encode_request(request) if payload is None else payload)
        return Applied(result, None, events)

    def _undo(self, request: Request) -> None:
        """Carrying out ``request`` broke off: become what was before, except that the request is done with.

        In one turn, however long it takes: nobody may see a state that is older than what was told.
        """
        index, history = self.applied_index, self._history
        self._events.clear()
        self.restore(history.base)
        for past in history.past:
            self.applied_index = past.at_index
            self._requests.admit(past.request_id)
            if past.payload is not None:
                at_once(self._carry_out(decode_request(past.payload).command))
        self._events.clear()
        self.is_changing = False
        self.applied_index = index
        self._requests.admit(request.request_id)
        self.begin_history(self.snapshot(), index)  # the next time there is less to do

    def begin_history(self, snapshot: bytes, index: int) -> None:
        """``snapshot`` is of the state after the entry at ``index``: what came before need not be kept any longer."""
        if index >= self._history.begin:
            self._history = self._history.from_snapshot(snapshot, index)

    def _carry_out(self, command: Command) -> Pieces[Any]:
        if isinstance(command, UserCommand):
            change_users(self.users, self.topology, command, self._events)
            return None
        match command:
            case ChangeTopology():
                return (yield from self._change_topology(command))
            case TakeService():
                yield from self._take_service(command)
            case ForcePromote():
                self._force_promote(command)
            case NodeUp():
                yield from self._node_up(command)
            case NodeDown():
                yield from self._node_down(command)
            case ForgetNode():
                return (yield from self._forget_node(command))
            case AdmitNode():
                self._admit_node(command)
            case FoundCluster():
                self._found(command)
            case RaiseProtocol():
                self.versions.raise_to(command)
                self.rules_version = max(self.rules_version, rules.version_with(command.protocol))
            case SetPolicy():
                yield from self._set_policy(command.policy)
            case ClearPolicy():
                yield from self._clear_policy(command)
            case _:
                self._change_mirrors(command)
        return None

    def _found(self, command: FoundCluster) -> None:
        if self.is_founded:
            raise AlreadyFoundedError
        found_cluster(self.users, self.topology, command, self.as_of_index)
        self.is_founded = True

    # --- topology

    def _change_topology(self, change: ChangeTopology) -> Pieces[Any]:
        command = change.command
        topology = self.topology
        if isinstance(command, DeleteVhost):
            return (yield from self._delete_vhost(command))
        if isinstance(command, DeleteExchange | DeleteQueue):
            self._check_deletion(command)
            yield from topology.unbind_all(command)
        match command:
            case DeclareQueue():
                is_new = topology.queue(command.vhost, command.name) is None
                origin = self.members.get(change.origin)
                if is_new and (origin is None or not origin.is_up):
                    raise ConnectionFailure(541, f"node {change.origin} was declared down before it could declare")
                queue: QueueRecord = topology.apply(command, QueueId(self.applied_index))
                if is_new:
                    self._place_new_queue(queue, change.origin)
                return queue
            case DeleteQueue():
                deleted: QueueRecord | None = topology.apply(command)
                if deleted is not None:
                    self._queue_is_gone(deleted)
                return deleted
            case _:
                result = topology.apply(command, made_at_index=self.as_of_index)
                self.is_founded = self.is_founded or isinstance(command, CreateVhost)
                return result

    def _check_deletion(self, command: DeleteExchange | DeleteQueue) -> None:
        """Raise what refuses it, before anything is changed."""
        if isinstance(command, DeleteQueue):
            self._table.check_deletion(self.topology.queue(command.vhost, command.name), command)
        else:
            self.topology.check_exchange_deletion(command)

    def _delete_vhost(self, command: DeleteVhost) -> Pieces[tuple[QueueRecord, ...]]:
        if 0 < command.as_of_index < self.topology.made_at_index(command.vhost):
            raise StaleVhostChangeError(command.vhost)
        deleted = tuple(self.topology.queues(command.vhost))
        for queue in deleted:
            self._delete_queue(queue)
            yield
        yield from self.topology.remove_exchanges(command.vhost)
        self.topology.apply(command)
        for vhost, name in [key for key in self.policies if key[0] == command.vhost]:
            self._matches.remove(vhost, name)
        self.users.forget_vhost(command.vhost)
        self._events.append(AccessEnded())
        return deleted

    def _place_new_queue(self, queue: QueueRecord, origin: NodeName) -> None:
        definition = self._mirroring(queue)
        running = self.running_nodes()
        is_exclusive = queue.exclusive_owner is not None
        master = origin if is_exclusive else locate_master(queue, definition, origin, running, self._table.master_count)
        wanted = suggest_nodes(definition, CurrentPlacement(master), running)
        record = rules.new_record(queue.queue_id, wanted)
        self._put_record(record)
        self._events.append(QueueCreated(queue, record))

    def _delete_queue(self, queue: QueueRecord) -> None:
        self.topology.apply(DeleteQueue(queue.vhost, queue.name, queue.queue_id))
        self._queue_is_gone(queue)

    def _queue_is_gone(self, queue: QueueRecord) -> None:
        self._table.remove(queue.queue_id)
        self._events.append(QueueDeleted(queue))

    def _queues(self) -> list[QueueRecord]:
        """All queues in the order of their ids, which is the same on every node."""
        return sorted(self.topology.all_queues(), key=lambda queue: queue.queue_id)

    # --- members

    def _node_up(self, command: NodeUp) -> Pieces[None]:
        node = command.node
        old = self.members.get(node)
        if old is not None and command.incarnation < old.incarnation:
            return  # about a life that is over
        self.versions.check_arrival(command)
        self.admissions.arrive(command, old)
        self.versions.note_arrival(command)
        self._turn(node)
        self.rules_version = max(self.rules_version, min(command.rules_version, rules.TAKING_SERVICE))
        is_restart = old is not None and command.incarnation > old.incarnation
        is_unnoticed = is_restart and old is not None and old.is_up
        self._put_member(
            MemberRecord(node, command.cluster_address, command.amqp_address, command.incarnation, is_up=True)
        )
        self._table.node_up(node)
        for queue in self._queues():
            if is_unnoticed:
                self._restarted_unnoticed(queue, node)
            else:
                self._returned(queue, node, is_restart)
            yield
        for queue in self._queues():
            self._place(queue)
            yield

    def _returned(self, queue: QueueRecord, node: NodeName, is_restart: bool) -> None:
        record = self.masterships[queue.queue_id]
        # A node that lives closes its copy when it leaves the record; what was in memory only is gone then, too.
        has_left = record.is_down or node not in (record.master, *record.mirrors)
        is_copy_lost = not queue.durable and (is_restart or (has_left and self.rules_version >= rules.TAKING_SERVICE))
        self._follow(
            queue, rules.node_up(record, node, is_copy_lost), "master_returned" if record.is_down else "elected"
        )

    def _restarted_unnoticed(self, queue: QueueRecord, node: NodeName) -> None:
        """``node`` runs under a new incarnation although nobody saw it go: what lived in its memory is gone."""
        if is_owned_by_connection_of(queue, node):
            self._delete_queue(queue)
            return
        record = self.masterships[queue.queue_id]
        restarted = rules.node_restarted(record, node, self._is_loss_allowed(queue, "failure"), queue.durable)
        is_master_still = restarted is not None and restarted.master == node
        self._follow(queue, restarted, "master_restarted" if is_master_still else "elected")
        if restarted is not None and node in restarted.mirrors:
            # What was said of it before this moment was said of its life before.
            self._table.mirror_begins_anew(queue.queue_id, node, self.applied_index)

    def _node_down(self, command: NodeDown) -> Pieces[None]:
        node = command.node
        old = self.members.get(node)
        if old is None or not old.is_up or old.incarnation != command.incarnation:
            return  # it is down already, or back in another life
        self._put_member(replace(old, is_up=False), is_stopped=command.reason == "shutdown")
        for queue in self._queues():
            if is_owned_by_connection_of(queue, node):
                self._delete_queue(queue)
            else:
                self._lose_replica(queue, node, command.reason)
            yield
        for queue in self._queues():
            self._place(queue, "exactly")
            yield

    def _lose_replica(self, queue: QueueRecord, node: NodeName, reason: Literal["failure", "shutdown"]) -> None:
        record = self.masterships[queue.queue_id]
        is_loss_allowed = self._is_loss_allowed(queue, reason)
        # Of a queue that is not durable a node has nothing any more when it has left the record.
        is_asked = queue.durable and node == record.master and self.rules_version >= rules.ELECTING_DROPPED
        up = self.running_nodes() if is_asked else ()
        self._follow(queue, rules.node_down(record, node, is_loss_allowed, queue.durable, up), "elected")

    def _follow(self, queue: QueueRecord, new: MastershipRecord | None, elected: ChangeReason) -> None:
        """Take over what the rules make of a record; ``None``: delete the queue. ``elected``: why the epoch rose."""
        if new is None:
            self._delete_queue(queue)
            return
        old = self.masterships[queue.queue_id]
        reason: ChangeReason = "mirrors"
        if new.is_down and not old.is_down:
            reason = "master_down"
        elif new.epoch != old.epoch:
            reason = elected
        self._change_record(new, reason)

    def _forget_node(self, command: ForgetNode) -> Pieces[tuple[str, ...]]:
        node = command.node
        self.admissions.check_forgetting(command, self.members.get(node))
        yield from self._check_forgetting(command)
        self.admissions.forget(command, self.members.get(node))
        for queue in self._queues():
            self._follow(queue, rules.forget_node(self.masterships[queue.queue_id], node), "forced")
            yield
        self._requests.end_lives(node, self.admissions.forgotten[node])
        self.members.pop(node, None)
        self.versions.forget(node)
        self._turn(node)
        deleted = tuple(str(event.queue.queue_name) for event in self._events if isinstance(event, QueueDeleted))
        self._events.append(MemberChanged(node, None))
        return deleted

    def _check_forgetting(self, command: ForgetNode) -> Pieces[None]:
        """Raise `QueuesWouldBeDeletedError` if that would delete what it is not to, before anything is changed."""
        if command.is_confirmed:
            return
        lost, deleted = frozenset(command.lost_queues), []
        for queue in self._queues():
            is_left = rules.forget_node(self.masterships[queue.queue_id], command.node) is not None
            if queue.durable and not is_left and queue.queue_id not in lost:
                deleted.append(str(queue.queue_name))
            yield
        if deleted:
            raise QueuesWouldBeDeletedError(deleted)

    def _admit_node(self, command: AdmitNode) -> None:
        is_another = self.admissions.admit(command, self.members.get(command.node))
        self._requests.end_lives(command.node, self.admissions.admitted[command.node].after_incarnation)
        if is_another:
            self._turn(command.node)

    def _turn(self, node: NodeName) -> None:
        if self.has_times:
            self.admissions.turn(node, self.applied_index)

    def _put_member(self, new: MemberRecord, *, is_stopped: bool = False) -> None:
        if new != self.members.get(new.node):
            self.members[new.node] = new
            self._events.append(MemberChanged(new.node, new, is_stopped))

    # --- policies

    def _set_policy(self, policy: PolicyRecord) -> Pieces[None]:
        validate_policy(policy)
        if not self.topology.has_vhost(policy.vhost):
            raise NoSuchVhostError(policy.vhost)
        self._matches.put(policy)
        yield from self._policies_changed(policy.vhost)

    def _clear_policy(self, command: ClearPolicy) -> Pieces[None]:
        if self._matches.remove(command.vhost, command.name) is None:
            raise NoSuchPolicyError
        yield from self._policies_changed(command.vhost)

    def _policies_changed(self, vhost: str) -> Pieces[None]:
        self.on_policies_changed(vhost)
        self._events.append(PolicyChanged(vhost))
        for queue in self._queues():
            if queue.vhost == vhost:
                self._place(queue)
                yield

    # ------------------------------------------------------------------ snapshot

    def snapshot(self) -> bytes:
        """The whole state as bytes: equal on all nodes that have applied the same entries. Between commands only."""
        return b"".join(self.snapshot_pieces())

    def snapshot_pieces(self) -> Iterator[bytes]:
        """What `snapshot` gives, piece by piece: the state as it was at this call, whatever is applied meanwhile."""
        return encode_in_pieces(
            {
                **self.versions.snapshot(),
                "applied_index": self.applied_index,
                "rules_version": self.rules_version,
                "is_founded": self.is_founded,
                "topology": self.topology.snapshot(),
                "users": self.users.snapshot(),
                "members": sorted_values(self.members),
                "admissions": self.admissions.snapshot(),
                "policies": sorted_values(self.policies),
                "masterships": sorted_values(self.masterships),
                "mirror_since": self._table.mirror_since_snapshot(),
                **({} if self.protocol == FIRST_PROTOCOL else {"left": self._table.left_snapshot()}),
                "requests": self._requests.snapshot(),
            }
        )

    def restore(self, data: bytes) -> None:
        """As `restore_in_pieces`, all at once."""
        at_once(at_once(self.restore_in_pieces(data)))

    def restore_in_pieces(self, data: bytes) -> Pieces[Pieces[None]]:
        """Replace the whole state by a snapshot's. Raises `CodecError` for bytes that are none, `NewerReleaseError`.

        It is read aside: readers see the state of before until the last piece. What is returned lets go of that state,
        which takes time, too, and can be done when there is some.
        """
        restored = yield from read_snapshot(data, self.versions.check_snapshot)
        self.applied_index = restored.applied_index
        self.rules_version = restored.rules_version
        self.is_founded = restored.is_founded
        old = self.topology.adopt(restored.topology), self._table.adopt(restored.masterships)
        self.users.restore(restored.users)
        self.members = {member.node: member for member in restored.members}
        self.admissions.restore(restored.admissions)
        self._matches.restore(restored.policies)
        self._requests.restore(restored.requests)
        self.versions.restore(restored.protocol)
        self._history = History(data, self.applied_index)
        return _dissolve(*old)

    def check_invariants(self) -> None:
        self.topology.check_invariants()
        self.users.check_invariants()
        self._requests.check_invariants()
        self._table.check_invariants()
        self._matches.check_invariants()
        self.versions.check_invariants(self.members)
        check_together(self.topology, self.masterships, self.members, self.policies, is_changing=self.is_changing)


def _dissolve(topology: TopologyContent, tables: RecordTables) -> Pieces[None]:
    yield from topology.dissolve()
    yield from tables.dissolve()

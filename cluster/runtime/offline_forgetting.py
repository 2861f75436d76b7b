"""Forgetting members that are gone for good on a node that is down: `warrenctl forget_cluster_node --offline`.

Where a majority is gone nobody can commit anything, so the survivor is told while it is stopped that what it has is the
truth. That is an act of the operator: what the others had committed and this node never heard of is lost, and they must
not come back as they were. What it takes, all of it in the survivor's own directory:

- *The log goes on by itself.* Every entry that is here counts, committed or not: the majority that is gone may have
  committed it. Behind them, in a term above all of them, come the commits that would have come if the group could still
  decide: each of the nodes is down (`NodeDown`), and forgotten (`ForgetNode`), by the rules that hold online. So the
  queues fare as they do there: a copy that is left serves, what it may lack is counted, and queues of which nobody else
  had anything are deleted. Then the nodes lose their votes.
- *What the directory has counts*, whatever the record says. A record knows of complete copies, and of mirrors that were
  up: a mirror that stopped before the others is no part of it any more, since the master went on without it, and its
  directory may well have everything all the same. So what only forgotten nodes had all of is served by this node, if
  it has any storage of it and the record names no mirror that followed the master: as if this node were up (`NodeUp`)
  and an operator had promoted it (`ForcePromote`). Of the disks of other members only the record can tell.
- *The group gets a new name*, and remembers the old one as superseded (`cluster.runtime.admission`): nodes of the old
  group are no peers of the new one, whatever they elect among themselves.

**Order.** The identity notes first that this has begun, and a node does not start from such a directory; then the log
is written, in one batch, which is there whole or not at all; then the new group is. Whoever is interrupted is told to
run it again, and what is done already is not done twice.

What the voters that are left have in their logs may differ from the truth, even in what they have committed; they drop
it when they meet this node, and keep their queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from cluster.metadata.codec import CodecError, NewerKindError, decode_request, encode_request
from cluster.metadata.commands import Command, ForcePromote, ForgetNode, NodeDown, NodeUp, Request, RequestId
from cluster.metadata.errors import NewerReleaseError
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import MetadataState
from cluster.raft.core import RestoredState
from cluster.raft.log import RaftLog
from cluster.raft.messages import Entry, EntryKind, HardState, Ready
from cluster.raft.storage import RaftStorage
from cluster.runtime.data_directory import OWN_NAMES, incarnation_of, next_incarnation, owner_of
from cluster.runtime.identity import IDENTITY_BYTES, RAFT_DIRECTORY, IdentityFile, read_identity
from node.errors import ConfigError
from node.ids import Incarnation, NodeName, QueueId
from node.queues.stored_copies import stored_reach
from node.store.disk.disk import Disk
from node.store.disk.distrust import OwnDisk, Use, reread_if_marked


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What it would come to."""

    node: NodeName
    forgotten: tuple[NodeName, ...]
    #: Members that are left, this node among them; a majority of them is needed from now on.
    remaining: tuple[NodeName, ...]
    #: Queues of which only the forgotten nodes had anything.
    deleted_queues: tuple[str, ...]
    #: Queues that a copy will serve which may lack messages.
    lossy_queues: tuple[str, ...]
    #: Queues that wait for another member that is left, which has everything.
    waiting_queues: tuple[str, ...]
    #: Entries at the end of the log of which this node does not know whether they were committed.
    uncertain_entries: int
    #: Of queues that are deleted, or served by a copy that may lack messages: who had everything.
    last_complete: dict[str, tuple[NodeName, ...]] = field(default_factory=dict)
    #: Where the forgotten nodes were, by name.
    addresses: dict[NodeName, str] = field(default_factory=dict)
    entries: tuple[Entry, ...] = field(default=(), repr=False)


def plan_forgetting(disk: OwnDisk, data_dir: str, names: Sequence[str]) -> Forgetting:
    """Find out what forgetting these nodes comes to. Writes nothing.

    Raises `ConfigError` if they cannot be forgotten here, or not by this release, `StorageError` for a directory that
    cannot be read.
    """
    reread_if_marked(disk, data_dir, OWN_NAMES)
    node = NodeName(owner_of(disk, data_dir))
    restored = RaftStorage.read(disk, f"{data_dir}/{RAFT_DIRECTORY}")
    identity = read_identity(disk, data_dir)
    if not node or restored is None or identity is None or (not restored.entries and not restored.snapshot.index):
        raise ConfigError(f"{data_dir} holds nothing of a cluster: there is nobody to be forgotten")
    IdentityFile(disk, data_dir, identity).require(NEWEST_PROTOCOL)
    if identity.is_log_dropped:
        raise ConfigError(
            f"what {node} has of the metadata was given up for what the cluster has that goes on: start {node}, to "
            "learn that"
        )
    raft_log = RaftLog(restored.snapshot, restored.entries, restored.hard_state.commit)
    forgotten = tuple(dict.fromkeys(NodeName(name) for name in names))
    state = _replayed(restored)
    addresses = {name: state.members[name].cluster_address for name in forgotten if name in state.members}
    if identity.forgetting and not any(name in _known(raft_log, state) for name in forgotten):
        return Forgetting(node, forgotten, raft_log.voters, (), (), (), 0)  # all but the last step is done
    _check(node, forgotten, raft_log, state)
    before = dict(state.masterships)
    names_before = {queue.queue_id: str(queue.queue_name) for queue in state.topology.all_queues()}
    entries = _entries(disk, data_dir, node, forgotten, raft_log, restored.hard_state, state)
    records = state.masterships
    deleted = [queue_id for queue_id in names_before if queue_id not in records]
    lossy = [queue_id for queue_id, record in records.items() if _is_lossy(before[queue_id], record)]
    waiting = [queue_id for queue_id, record in records.items() if record.is_down and node not in record.complete]
    deleted_queues, lossy_queues, waiting_queues = (
        tuple(names_before[queue_id] for queue_id in queue_ids) for queue_ids in (deleted, lossy, waiting)
    )
    return Forgetting(
        node,
        forgotten,
        tuple(voter for voter in raft_log.voters if voter not in forgotten),
        deleted_queues,
        lossy_queues,
        waiting_queues,
        raft_log.last_index - raft_log.commit,
        {names_before[queue_id]: before[queue_id].complete for queue_id in (*deleted, *lossy)},
        addresses,
        entries,
    )


def _is_lossy(before: MastershipRecord, record: MastershipRecord) -> bool:
    """A copy serves, or is about to, that may lack something."""
    is_awaited = record.is_down or record.in_service or record.master in record.complete
    return record.lossy_promotions > before.lossy_promotions or not is_awaited


def carry_out(disk: OwnDisk, data_dir: str, plan: Forgetting, chance: Random) -> None:
    """Do what was planned just before. The directory is locked by the caller. Raises `StorageError`."""
    use = Use(disk, data_dir)
    current = read_identity(disk, data_dir)
    assert current is not None, "it was read for the plan"
    file = IdentityFile(disk, data_dir, current)
    if not current.forgetting:
        file.begin_forgetting(chance.randbytes(IDENTITY_BYTES).hex())
    if plan.entries:
        next_incarnation(disk, data_dir)
        storage, _ = RaftStorage.open(disk, f"{data_dir}/{RAFT_DIRECTORY}")
        last = plan.entries[-1]
        hard_state = HardState(last.term, plan.node, last.index)
        storage.append(Ready(1, (), None, plan.entries, hard_state, True, (), ()))
        storage.sync()
        storage.close()
    file.end_forgetting()
    use.end()


def _replayed(restored: RestoredState) -> MetadataState:
    """The state after everything that the log has. Raises `NewerReleaseError`, as a node that starts from it would."""
    state = MetadataState()
    try:
        if restored.snapshot.index:
            state.restore(restored.snapshot.data)
    except NewerKindError as error:
        raise NewerReleaseError(f"a snapshot of the metadata ({error})", "a protocol", NEWEST_PROTOCOL) from None
    for entry in restored.entries:
        if entry.kind is not EntryKind.COMMAND or entry.index <= restored.snapshot.index:
            continue
        try:
            state.apply(entry.index, decode_request(entry.payload), entry.payload)
        except NewerKindError as error:
            what = f"entry {entry.index} of the metadata log ({error})"
            raise NewerReleaseError(what, "a protocol", NEWEST_PROTOCOL) from None
        except CodecError:
            state.pass_over(entry.index)
    return state


def _known(raft_log: RaftLog, state: MetadataState) -> set[NodeName]:
    """Who votes, is a member, or was admitted to become one."""
    return {*raft_log.voters, *state.members, *state.admissions.admitted}


def _check(node: NodeName, forgotten: Sequence[NodeName], raft_log: RaftLog, state: MetadataState) -> None:
    """Raises `ConfigError`."""
    voters = raft_log.voters
    known = _known(raft_log, state)
    for name in forgotten:
        if name == node:
            raise ConfigError(f"{node} cannot be forgotten by itself: its own directory is what is to go on")
        if name not in known:
            raise ConfigError(f"{name} is no member of the cluster of {', '.join(sorted(known))}")
    if node not in voters or state.admissions.is_forgotten(node):
        raise ConfigError(f"{node} does not vote in the cluster of {', '.join(voters)}: it cannot go on for it")


def _entries(
    disk: Disk,
    data_dir: str,
    node: NodeName,
    forgotten: Sequence[NodeName],
    raft_log: RaftLog,
    hard_state: HardState,
    state: MetadataState,
) -> tuple[Entry, ...]:
    """What is to follow in the log; ``state`` is taken along. Raises `ConfigError`, `StorageError`."""
    term = max(hard_state.term, raft_log.last_term) + 1
    #: That of `carry_out`, which begins a life for it.
    incarnation = Incarnation(incarnation_of(disk, data_dir) + 1)
    entries: list[Entry] = []

    def commit(command: Command) -> None:
        index = raft_log.last_index + len(entries) + 1
        request = Request(RequestId(node, incarnation, len(entries) + 1), command)
        applied = state.apply(index, request)
        if applied.error is not None:
            raise ConfigError(f"the nodes cannot be forgotten: {applied.error}") from applied.error
        entries.append(Entry(index, term, EntryKind.COMMAND, encode_request(request)))

    for name in forgotten:
        member = state.members.get(name)
        if member is not None and member.is_up:
            commit(NodeDown(name, member.incarnation))
    inherited = _inherited(disk, data_dir, forgotten, state)
    own = state.members.get(node)
    if inherited and own is not None and not own.is_up:
        addresses = own.cluster_address, own.amqp_address
        commit(NodeUp(node, incarnation, *addresses, state.protocol))
    for queue_id in inherited:
        if not state.masterships[queue_id].in_service:
            commit(ForcePromote(queue_id, node))
    for name in forgotten:
        commit(ForgetNode(name, name in raft_log.voters))
    for name in forgotten:
        if name in raft_log.voters:
            index = raft_log.last_index + len(entries) + 1
            entries.append(Entry(index, term, EntryKind.REMOVE_VOTER, name.encode()))
    return tuple(entries)


def _inherited(disk: Disk, data_dir: str, forgotten: Sequence[NodeName], state: MetadataState) -> list[QueueId]:
    """Queues that wait for forgotten nodes only, and that this directory has something of."""
    return [
        queue_id
        for queue_id, record in sorted(state.masterships.items())
        if record.is_down
        and not record.following
        and set(record.complete) <= set(forgotten)
        and (queue := state.topology.queue_by_id(queue_id)) is not None
        and queue.durable
        and stored_reach(disk, data_dir, queue.vhost, queue_id) is not None
    ]

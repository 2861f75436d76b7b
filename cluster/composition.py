"""One node, put together by one function out of its configuration and a world.

`World` names everything by which a node touches what is outside of it. Nothing below this module reads a clock, makes a
disk, opens a socket, starts a thread or draws a random number by itself (`tests/test_architecture.py` sees to it): it
is handed the part of the world that it needs. So the same node runs as a process (`cluster.real_world`) and in a
simulator that has many of them in one process.

What is in the world, and what is not:

- *The loop is not.* Tasks, timers and the time of deadlines come from `asyncio.get_running_loop()`: a simulator brings
  a loop with virtual time.
- *The clock* measures work. The time of a loop is for deadlines, and virtual time stands still while one callback runs;
  whatever ends a slice of work after some milliseconds goes by `World.clock`, which goes on.
- *Chance* is everything that differs between two runs of one node: elections, salts, identities of connections, names
  of queues, tags of consumers. Numbers that the incarnation makes unique are not chance.
- *Workers* carry out what blocks: fsync. One for the queues, one for the metadata log. What frees space in the
  background belongs to the disk.
- *The disk* holds everything a node remembers, and *the lock* keeps a second node away from it while this one lives.
- *The carrier* is the way to the other nodes, and theirs and the operators' to this one; *listen*: how clients arrive.

Order of start: disk and metadata log, mesh (so that the others can be heard), metadata group (which is founded if all
of its nodes are new), this node's roles, and only then the listener for clients. Order of stop: clients are closed with
320, the cluster is told, queues are closed cleanly, mesh and metadata log go last.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.raft.core import RaftConfig
from cluster.raft.storage import RaftStorage
from cluster.runtime.admin import NodeAdmin
from cluster.runtime.admin_peers import AdminPeers
from cluster.runtime.admission import Admission
from cluster.runtime.applier import SLICE_PIECES
from cluster.runtime.client_service import ClientService, cannot_listen
from cluster.runtime.consensus_events import ConsensusEvents
from cluster.runtime.data_directory import (
    OWN_NAMES,
    DirectoryLock,
    claim_data_directory,
    count_on_from,
    keep_data_directory,
    next_incarnation,
)
from cluster.runtime.driver_config import DriverConfig
from cluster.runtime.ending import Ending, Failure
from cluster.runtime.founding import found
from cluster.runtime.fresh_start import JoinedCluster, as_joined, carry_out_reset, joined_cluster
from cluster.runtime.group_members import GroupMembers
from cluster.runtime.identity import IdentityFile
from cluster.runtime.joining import Joining
from cluster.runtime.node_runtime import NodeRuntime
from cluster.runtime.outside import ResourceProbe, SystemFacts, Worker
from cluster.runtime.protocol_watch import ProtocolWatch
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.raft_driver import RaftDriver
from cluster.transport.admin_caller import AdminCaller
from cluster.transport.admin_port import ExitCode, exit_code_of
from cluster.transport.carrier import Carrier
from cluster.transport.mesh import Mesh
from cluster.transport.mesh_port import MeshTiming
from cluster.transport.outbox import OutboxLimits
from node.amqp.connection import ConnectionLimits
from node.amqp.server import AmqpServer, AmqpServerConfig
from node.amqp.server.bounds import ClientBounds, client_bounds
from node.amqp.server.sockets import Listen
from node.broker import Broker
from node.config import NodeConfig
from node.errors import ShortageError, StorageError, WarrenError
from node.ids import Incarnation, NodeName, QueueId
from node.store.disk.distrust import OwnDisk, Use, reread_if_marked
from node.store.disk.group_commit import FLUSHED_MAX, GroupCommit
from node.store.shared.config import StoreConfig

log = logging.getLogger(__name__)

PRODUCT = "Warren"


@dataclass(frozen=True)
class World:
    """Everything a node touches outside of itself. See the top of this module."""

    disk: OwnDisk
    #: Keep others away from a directory of the disk, as long as this node lives. Raises `ConfigError`, `OSError`.
    lock: Callable[[str], DirectoryLock]
    probe: ResourceProbe
    system: SystemFacts
    chance: Random
    #: Seconds, going on within a turn of the loop.
    clock: Callable[[], float]
    #: A new worker, by the name of its thread. Raises `StorageError` if there can be none.
    worker: Callable[[str], Worker]
    #: For AMQP clients.
    listen: Listen
    #: The way to the other nodes, and theirs and the operators' to this one.
    carrier: Carrier
    #: What the admin services of other nodes are asked through.
    admin_caller: AdminCaller
    #: The protocol of this node's release; a lower one is for a node that behaves as an older release does.
    speaks_protocol: int = NEWEST_PROTOCOL
    #: What concerns every queue is done in pieces, so many in one turn of the loop: committed changes, news of links,
    #: time that passes; and so many queues write when a group commit begins.
    slice_pieces: int = SLICE_PIECES
    #: Of what may wait for a link to another node.
    link_limits: OutboxLimits = field(default_factory=OutboxLimits)


class Node:
    """A node from its first claim on the data directory to its end. Use: `run`; or `start`, later `close`."""

    def __init__(
        self,
        config: NodeConfig,
        world: World,
        ending: Ending,
        runtime: NodeRuntime,
        *,
        mesh: Mesh,
        raft: RaftDriver,
        admission: Admission,
        members: GroupMembers,
        clients: ClientService,
        admin: NodeAdmin,
        peers: AdminPeers,
        lock: DirectoryLock,
        use: Use,
    ) -> None:
        self.config = config
        self._world = world
        self._ending = ending
        self.runtime = runtime
        self.mesh = mesh
        self.raft = raft
        self._admission = admission
        self._members = members
        self.clients = clients
        self.admin = admin
        self._peers = peers
        self._lock = lock
        self._use = use
        self._joining: asyncio.Task[None] | None = None

    @property
    def failure(self) -> Failure | None:
        """Why the node has ended, or ends, without being asked to."""
        return self._ending.failure

    @property
    def begins_again(self) -> bool:
        """After `run` it is to be composed again, and run."""
        return self._ending.begins_again and self._ending.failure is None

    def stop(self) -> None:
        """Begin an orderly stop: `run` closes everything and returns."""
        self._ending.stop()

    async def run(self) -> None:
        """Serve until `stop` or a failure. Raises `ConfigError` if an address cannot be listened on."""
        joining = await self.start()
        stopping = asyncio.create_task(self._ending.wait())
        await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            joining.result()
            await stopping
        await self.close()

    async def start(self) -> asyncio.Task[None]:
        """Be heard and answer operators; the task ends when the node has joined its cluster, or failed to.

        Raises `ConfigError` if an address cannot be listened on.
        """
        try:
            await self.mesh.start(self.admin)
        except OSError as error:
            raise cannot_listen("cluster.listener", self.config.cluster_listener, error) from None
        self.raft.start()
        self._admission.start()
        self._members.follow()
        self.runtime.start()
        self._joining = asyncio.create_task(self._join())
        return self._joining

    async def _join(self) -> None:
        """Become a member, take up roles, found what every cluster has, serve clients."""
        if self.config.is_clustered:
            names = ", ".join(member.name for member in self.config.members)
            log.info("joining the cluster of %s; clients are served once a majority of them runs", names)
        try:
            await self._members.wait_for_vote()
            await self.runtime.activate()
            await found(self.config, self.runtime.metadata, self._world.chance)
            await self.clients.open(self.raft.pause if self.config.pauses_minority else None)
        except WarrenError as error:
            self._ending.fail(str(error), exit_code_of(error))

    async def close(self) -> None:
        """Take everything apart, in the reverse order of the start."""
        self._ending.close()
        if self._joining is not None:
            self._joining.cancel()
        await self.clients.stop()
        await self.runtime.stop()
        await self._peers.close()
        await self.mesh.stop()
        await self.raft.stop()
        self._world.probe.close()
        self._use.end()
        self._lock.release()

    def check_invariants(self, touched: Collection[QueueId] | None = None) -> None:
        """See `NodeRuntime.check_invariants`."""
        self.runtime.check_invariants(touched)
        self.mesh.check_invariants()
        self.raft.check_invariants()
        self._admission.check_invariants()
        self.clients.check_invariants()


def compose_node(config: NodeConfig, world: World) -> Node:
    """A node that is ready to start: its directory is claimed, and what the metadata group knows is restored.

    To be called on the loop that it will run on. Raises `ConfigError` if the directory cannot be this node's, and
    `StorageError`.
    """
    config, lock, use, joined, identity, incarnation = _claim_directory(config, world)
    log.info("%s %s, node %s, start %d", PRODUCT, world.system.version, config.node_name, incarnation)
    ending = Ending()
    runtime = _runtime(config, world, incarnation, ending, use)
    broker = _broker(config, world, runtime)
    clients = _clients(config, world, broker, ending, lambda: not config.pauses_minority or raft.may_read_clients())
    runtime.roles.on_access_ended = lambda: clients.access_ended(broker.objection)
    addresses = {NodeName(member.name): str(member.cluster_address) for member in config.members}
    admission = _admission(config, world, runtime, identity, incarnation, ending, joined)
    mesh = _mesh(config, world, runtime, addresses, incarnation, admission)
    members = GroupMembers(
        config.node_name,
        runtime.metadata.state,
        addresses,
        lambda: identity.current.identity,
        admission.linked_identities,
        admission.introduced,
        runtime.membership.watch,
    )
    runtime.membership.on_repeat = partial(_look_around, admission, members)
    protocol = _protocol_watch(config, world, runtime, identity, incarnation, members)
    events = ConsensusEvents(
        runtime.queues,
        runtime.membership,
        pauses=config.pauses_minority,
        has_served=lambda: clients.has_roles,
        lacks=runtime.unlinked_members,
        after_applied=members.follow,
        on_pause=clients.pause_changed,
        on_fatal=ending.fail,
    )
    raft = _raft(config, world, runtime, mesh, events, admission)
    keep_data_directory(world.disk, str(config.data_dir), config.node_name, raft.core.voters)
    identity.note_log()
    admission.join(raft)
    members.join(raft, mesh)
    protocol.join(raft, mesh)
    runtime.connect(mesh, raft)
    peers = AdminPeers(mesh.address_of, world.admin_caller)
    joining = Joining(
        config, world.disk, raft, runtime.metadata.state, identity, world.admin_caller, ending.begin_again
    )
    admin = NodeAdmin(runtime, peers, clients, ending.stop, world.probe, world.system, world.chance, joining)
    return Node(
        config,
        world,
        ending,
        runtime,
        mesh=mesh,
        raft=raft,
        admission=admission,
        members=members,
        clients=clients,
        admin=admin,
        peers=peers,
        lock=lock,
        use=use,
    )


class _Claim(NamedTuple):
    """What a data directory says of the node that it is, once it is this node's."""

    #: As configured, or as it was when the node joined a cluster.
    config: NodeConfig
    lock: DirectoryLock
    use: Use
    joined: JoinedCluster | None
    identity: IdentityFile
    incarnation: Incarnation


def _claim_directory(config: NodeConfig, world: World) -> _Claim:
    """Raises `ConfigError` if the directory cannot be this node's, and `StorageError`."""
    data_dir = str(config.data_dir)
    lock = claim_data_directory(world.disk, data_dir, config.node_name, world.lock, _log_within(config))
    reread_if_marked(world.disk, data_dir, OWN_NAMES)
    use = Use(world.disk, data_dir)
    carry_out_reset(world.disk, data_dir)
    joined = joined_cluster(world.disk, data_dir)
    config = as_joined(config, joined)
    identity = IdentityFile.open(world.disk, data_dir, config.node_name, world.chance)
    identity.require(world.speaks_protocol)
    return _Claim(config, lock, use, joined, identity, next_incarnation(world.disk, data_dir))


def _log_within(config: NodeConfig) -> tuple[str, ...]:
    """What of the data directory is the node's log or the way to it: the log was there before the node."""
    log_file = config.log_file
    if log_file is None or not log_file.is_relative_to(config.data_dir):
        return ()
    return log_file.relative_to(config.data_dir).parts[:1]


def _mesh(
    config: NodeConfig,
    world: World,
    runtime: NodeRuntime,
    addresses: Mapping[NodeName, str],
    incarnation: Incarnation,
    admission: Admission,
) -> Mesh:
    return Mesh(
        config.node_name,
        incarnation,
        str(config.cluster_listener),
        addresses,
        runtime.switchboard,
        world.carrier,
        random_bytes=world.chance.randbytes,
        cookie=config.cluster_cookie,
        timing=MeshTiming(silence_timeout_ms=config.cluster_silence_timeout_ms),
        limits=world.link_limits,
        gate=admission,
    )


def _disk_failed(ending: Ending, error: StorageError) -> None:
    """After a failed sync nothing that this process wrote can be trusted."""
    ending.fail(f"the disk failed, this node stops: {error}", exit_code_of(error))


def _admission(
    config: NodeConfig,
    world: World,
    runtime: NodeRuntime,
    identity: IdentityFile,
    incarnation: Incarnation,
    ending: Ending,
    joined: JoinedCluster | None,
) -> Admission:
    identity.on_failed = partial(_disk_failed, ending)

    def begin_again(after: Incarnation) -> None:
        try:
            count_on_from(world.disk, str(config.data_dir), after)
        except ShortageError:
            raise
        except StorageError as error:
            _disk_failed(ending, error)
            raise
        ending.begin_again()

    return Admission(
        config.node_name,
        incarnation,
        [NodeName(member.name) for member in config.members] or [config.node_name],
        identity,
        str(config.cluster_advertised_address),
        runtime.metadata.state,
        world.speaks_protocol,
        now_ms=runtime.now_ms,
        told_to_join="" if joined is None else joined.group,
        on_refused=lambda reason: ending.fail(reason, ExitCode.CONFIG),
        count_on_from=begin_again,
        begin_again=ending.begin_again,
        admit_node=runtime.metadata.change,
        spawn=runtime.background.spawn,
    )


def _look_around(admission: Admission, members: GroupMembers) -> None:
    admission.look()
    members.follow()


def _protocol_watch(
    config: NodeConfig,
    world: World,
    runtime: NodeRuntime,
    identity: IdentityFile,
    incarnation: Incarnation,
    members: GroupMembers,
) -> ProtocolWatch:
    watch = ProtocolWatch(
        config.node_name,
        incarnation,
        world.speaks_protocol,
        runtime.metadata.state,
        identity,
        change=runtime.metadata.change,
        spawn=runtime.background.spawn,
    )
    runtime.metadata.held_back_by = watch.held_back_by
    members.on_followed = watch.follow
    watch.on_risen = runtime.gateway.note_consumers
    return watch


def _runtime(config: NodeConfig, world: World, incarnation: Incarnation, ending: Ending, use: Use) -> NodeRuntime:
    loop = asyncio.get_running_loop()
    group_commit = GroupCommit(min(FLUSHED_MAX, world.slice_pieces))

    def sync_failed(error: StorageError) -> None:
        # Nothing is confirmed from now on, whatever other syncs say.
        group_commit.distrust(error)
        with suppress(RuntimeError):  # the loop is closed, this node has ended
            loop.call_soon_threadsafe(_disk_failed, ending, error)

    use.on_failed = sync_failed
    files = NodeQueueFiles(world.disk, str(config.data_dir), group_commit, _store_config(config), world.clock)
    runtime = NodeRuntime(
        config,
        incarnation,
        group_commit,
        files,
        world,
        now_ms=lambda: int(loop.time() * 1000),
        on_fatal=ending.fail,
    )
    runtime.alarms.on_directory_gone = sync_failed
    return runtime


def _store_config(config: NodeConfig) -> StoreConfig:
    return StoreConfig(
        embed_below_bytes=config.queue_index_embed_msgs_below_bytes,
        file_size_limit_bytes=config.msg_store_file_size_limit_bytes,
        compaction=config.msg_store_compaction,
        io_batch_messages=config.msg_store_io_batch_messages,
        queue_version=config.queue_version,
        v1_segment_entries=config.queue_index_segment_entries,
        v1_journal_entries_max=config.queue_index_journal_entries_max,
        v2_segment_entries=config.queue_index_v2_segment_entries,
        confirm_after_sync=config.durability == "fsync",
    )


def _broker(config: NodeConfig, world: World, runtime: NodeRuntime) -> Broker:
    cluster_name = config.members[0].name if config.members else config.node_name
    broker = Broker(
        config.node_name,
        runtime.metadata,
        runtime.metadata.state.users,
        runtime.gateway,
        random_bytes=world.chance.randbytes,
        properties={
            "product": PRODUCT,
            "version": world.system.version,
            "platform": f"Python {world.system.python_version}",
            "cluster_name": f"warren@{cluster_name}",
            "information": "Licensed under the terms of this distribution",
        },
        alternate_exchange=runtime.records.alternate_exchange,
        flow=runtime.flow,
    )
    runtime.metadata.state.on_policies_changed = broker.router.forget_routes
    runtime.alarms.on_reason = broker.set_alarm
    return broker


def _clients(
    config: NodeConfig, world: World, broker: Broker, ending: Ending, may_read: Callable[[], bool]
) -> ClientService:
    bounds = client_bounds(world.system.open_files_max)
    if bounds.shortage:
        log.warning("%s", bounds.shortage)
    numbers = itertools.count(1)
    return ClientService(
        config.amqp_listener,
        lambda: _amqp_server(config, world, broker, bounds, may_read, numbers),
        broker.delete_abandoned_queues,
        ending,
    )


def _amqp_server(
    config: NodeConfig,
    world: World,
    broker: Broker,
    bounds: ClientBounds,
    may_read: Callable[[], bool],
    numbers: Iterator[int],
) -> AmqpServer:
    limits = ConnectionLimits(
        frame_max=config.frame_max_bytes,
        channel_max=config.channel_max,
        heartbeat_s=config.heartbeat_s,
        max_message_size_bytes=config.max_message_size_bytes,
        handshake_timeout_s=config.handshake_timeout_ms / 1000,
    )
    return AmqpServer(
        broker,
        AmqpServerConfig(limits, bounds.connections, bounds.handshakes),
        listen=world.listen,
        chance=world.chance,
        clock=world.clock,
        numbers=numbers,
        may_read=may_read,
    )


def _raft(
    config: NodeConfig, world: World, runtime: NodeRuntime, mesh: Mesh, events: ConsensusEvents, admission: Admission
) -> RaftDriver:
    storage, restored = RaftStorage.open(world.disk, f"{config.data_dir}/raft")
    return RaftDriver(
        RaftConfig(
            config.node_name,
            heartbeat_interval_ms=config.raft_heartbeat_ms,
            election_timeout_min_ms=config.raft_election_timeout_ms,
            election_timeout_max_ms=2 * config.raft_election_timeout_ms,
            proposal_age_max_ms=config.quorum_grace_ms,
        ),
        storage,
        restored,
        runtime.metadata,
        listener=events,
        send=mesh.send_consensus,
        worker=world.worker("raft-sync"),
        clock=world.clock,
        slice_pieces=world.slice_pieces,
        driver_config=DriverConfig(
            quorum_grace_ms=config.quorum_grace_ms,
            pauses_clients=config.pauses_minority,
            silence_timeout_ms=config.cluster_silence_timeout_ms,
        ),
        seed=world.chance.getrandbits(64),
        may_answer=admission.may_answer,
    )

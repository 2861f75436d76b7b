"""One node as a process: puts the parts together, runs until told to stop, takes them apart in the reverse order.

Order of start: disk and metadata log, mesh (so that the others can be heard), metadata group, this node's roles, and
only then the listener for clients. Order of stop: clients are closed with 320, the cluster is told, queues are closed
cleanly, mesh and metadata log go last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import signal
import sys
from importlib.metadata import PackageNotFoundError, version

import uvloop

from cluster.metadata.commands import AddUser, SetPermissions
from cluster.raft.core import RaftConfig
from cluster.raft.storage import RaftStorage
from cluster.runtime.admin import NodeAdmin
from cluster.runtime.admin_peers import AdminPeers
from cluster.runtime.collector import tune_collector
from cluster.runtime.data_directory import claim_data_directory, keep_data_directory
from cluster.runtime.node_runtime import NodeRuntime
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.raft_driver import RaftDriver
from cluster.runtime.system_probe import SystemProbe, raise_open_files_limit
from cluster.transport.admin_port import ExitCode, exit_code_of
from cluster.transport.grpc_admin_caller import GrpcAdminCaller
from cluster.transport.grpc_carrier import GrpcCarrier
from cluster.transport.mesh import Mesh
from cluster.transport.mesh_port import MeshTiming
from node.amqp.connection import ConnectionLimits
from node.amqp.server import AmqpServer, AmqpServerConfig
from node.amqp.server.listing import ConnectionListing
from node.auth import SALT_BYTES, hash_password
from node.broker import Broker
from node.config import Address, NodeConfig
from node.errors import ConfigError, StorageError, WarrenError
from node.ids import Incarnation, NodeName
from node.store.disk.disk import Disk, RealDisk, read_whole, write_durably
from node.store.disk.group_commit import GroupCommit
from node.store.shared.config import StoreConfig
from node.topology.commands import CreateVhost
from node.topology.records import ExchangeRecord

log = logging.getLogger(__name__)

PRODUCT = "Warren"


def product_version() -> str:
    try:
        return version("warren-mq")
    except PackageNotFoundError:
        return "unknown"


def next_incarnation(disk: Disk, data_dir: str) -> Incarnation:
    """Count a start of this node, durably, before anything else of it can be seen by others."""
    path = f"{data_dir}/incarnation"
    number = 1
    if disk.exists(path):
        text = read_whole(disk, path).decode(errors="replace").strip()
        if not text.isdigit():
            raise StorageError(f"{path} should hold the number of starts of this node and holds {text!r}")
        number = int(text) + 1
    write_durably(disk, path, str(number).encode())
    return Incarnation(number)


class Daemon:
    """A running node."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self._stop_requested = asyncio.Event()
        self._failure = ""
        self._failure_code = ExitCode.SOFTWARE
        self._server: AmqpServer | None = None
        self._serving = asyncio.Lock()
        #: This node has taken up its roles: before that clients would find neither vhosts nor queues.
        self._has_joined = False
        self._background: set[asyncio.Task[None]] = set()

    # --- life ---

    async def run(self) -> int:
        """Serve until a signal, `stop` or a failure; the exit code of the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        self._open()
        tune_collector(asyncio.get_running_loop())
        try:
            await self._mesh.start(self._admin)
        except OSError as error:
            raise _cannot_listen("cluster.listener", self.config.cluster_listener, error) from None
        self._raft.start()
        self._runtime.start(self._mesh, self._raft)
        starting = asyncio.create_task(self._join())
        stopping = asyncio.create_task(self._stop_requested.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await stopping
        else:
            starting.cancel()
        await self._close()
        if self._failure:
            log.error("stopped: %s", self._failure)
            return self._failure_code
        log.info("stopped")
        return ExitCode.OK

    def stop(self) -> None:
        """Begin an orderly stop."""
        self._stop_requested.set()

    def _open(self) -> None:
        config = self.config
        disk = RealDisk()
        data_dir = str(config.data_dir)
        self._lock = claim_data_directory(disk, data_dir, config.node_name)
        self._incarnation = next_incarnation(disk, data_dir)
        log.info("%s %s, node %s, start %d", PRODUCT, product_version(), config.node_name, self._incarnation)
        group_commit = GroupCommit()
        store_config = StoreConfig(
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
        files = NodeQueueFiles(disk, data_dir, group_commit, store_config)
        self._probe = SystemProbe(disk, data_dir)
        self._runtime = NodeRuntime(
            config, self._incarnation, group_commit, files, self._probe, self._fail, self._quorum_changed
        )
        peers = {NodeName(member.name): str(member.cluster_address) for member in config.members}
        self._mesh = Mesh(
            config.node_name,
            self._incarnation,
            str(config.cluster_listener),
            peers,
            self._runtime,
            GrpcCarrier(),
            cookie=config.cluster_cookie,
            timing=MeshTiming(silence_timeout_ms=config.cluster_silence_timeout_ms),
        )
        voters = [NodeName(member.name) for member in config.members] or [config.node_name]
        storage, restored = RaftStorage.open(disk, f"{data_dir}/raft", voters)
        self._raft = RaftDriver(
            RaftConfig(
                config.node_name,
                heartbeat_interval_ms=config.raft_heartbeat_ms,
                election_timeout_min_ms=config.raft_election_timeout_ms,
                election_timeout_max_ms=2 * config.raft_election_timeout_ms,
            ),
            storage,
            restored,
            self._runtime.metadata,
            listener=self._runtime,
            send=self._mesh.send_consensus,
            seed=secrets.randbits(64),
        )
        keep_data_directory(disk, data_dir, config.node_name, self._raft.core.voters)
        self._broker = Broker(
            config.node_name,
            self._runtime.metadata,
            self._runtime.metadata.state.users,
            self._runtime.gateway,
            random_bytes=secrets.token_bytes,
            properties=self._server_properties(),
            alternate_exchange=self._alternate_exchange,
            flow=self._runtime.flow,
        )
        self._runtime.on_policy_changed = self._broker.router.forget_routes
        self._runtime.alarms.on_reason = self._broker.set_alarm
        self._peers = AdminPeers(lambda node: peers[node], GrpcAdminCaller(config.cluster_cookie))
        self._admin = NodeAdmin(self._runtime, self._peers, self._connections, self.stop, product_version())

    async def _join(self) -> None:
        """Become a member, take up roles, found what every cluster has, serve clients."""
        if self.config.is_clustered:
            names = ", ".join(member.name for member in self.config.members)
            log.info("joining the cluster of %s; clients are served once a majority of them runs", names)
        try:
            await self._runtime.activate()
            await self._found()
            self._has_joined = True
            if self._raft.has_quorum:
                await self._serve()
        except WarrenError as error:
            self._fail(str(error), exit_code_of(error))

    async def _found(self) -> None:
        """The default vhost and user, once in the life of a cluster; whoever is first makes them."""
        config, metadata = self.config, self._runtime.metadata
        if metadata.topology.vhosts():
            return
        await metadata.submit(CreateVhost(config.default_vhost))
        if metadata.state.users.user(config.default_user) is None:
            password_hash = hash_password(config.default_pass, secrets.token_bytes(SALT_BYTES))
            await self._ignore_refusal(AddUser(config.default_user, password_hash, ("administrator",)))
        await metadata.change(SetPermissions(config.default_vhost, config.default_user, ".*", ".*", ".*"))

    async def _ignore_refusal(self, command: AddUser) -> None:
        try:
            await self._runtime.metadata.change(command)
        except WarrenError as error:
            log.info("another node was faster: %s", error)

    async def _close(self) -> None:
        for task in list(self._background):
            task.cancel()
        if self._server is not None:
            await self._server.stop()
        await self._runtime.stop()
        await self._peers.close()
        await self._mesh.stop()
        await self._raft.stop()
        self._probe.close()

    # --- serving clients ---

    async def _serve(self) -> None:
        async with self._serving:
            if self._server is not None or self._stop_requested.is_set():
                return
            config = self.config
            limits = ConnectionLimits(
                frame_max=config.frame_max_bytes,
                channel_max=config.channel_max,
                heartbeat_s=config.heartbeat_s,
                max_message_size_bytes=config.max_message_size_bytes,
                handshake_timeout_s=config.handshake_timeout_ms / 1000,
            )
            server = AmqpServer(self._broker, AmqpServerConfig(limits))
            try:
                await server.start(*config.amqp_listener)
            except OSError as error:
                raise _cannot_listen("listeners.tcp.default", config.amqp_listener, error) from None
            self._server = server
            self._runtime.is_serving = True

    async def _pause(self) -> None:
        async with self._serving:
            if self._server is not None:
                self._runtime.is_serving = False
                server, self._server = self._server, None
                await server.stop("the node has lost contact with the majority of the cluster (pause_minority)")

    def _quorum_changed(self, has_quorum: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._resume() if has_quorum else self._pause())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _resume(self) -> None:
        if not self._has_joined:
            return  # `_join` serves when it is ready
        try:
            await self._serve()
            await self._broker.delete_abandoned_queues()
        except ConfigError as error:
            self._fail(str(error), exit_code_of(error))
        except WarrenError as error:
            log.warning("exclusive queues of connections that have ended may remain: %s", error)

    def _fail(self, reason: str, exit_code: ExitCode = ExitCode.SOFTWARE) -> None:
        """End the process; the first reason is the one that counts."""
        if not self._failure:
            self._failure, self._failure_code = reason, exit_code
        self.stop()

    def _connections(self) -> list[ConnectionListing]:
        return [] if self._server is None else self._server.connections()

    def _alternate_exchange(self, exchange: ExchangeRecord) -> str | None:
        """Argument or policy, whichever holds (RabbitMQ: the argument wins)."""
        settings = self._runtime.metadata.state.exchange_settings(exchange)
        name: str | None = settings.get("alternate-exchange")
        return name

    def _server_properties(self) -> dict[str, object]:
        return {
            "product": PRODUCT,
            "version": product_version(),
            "platform": f"Python {platform.python_version()}",
            "cluster_name": f"warren@{self.config.members[0].name if self.config.members else self.config.node_name}",
            "information": "Licensed under the terms of this distribution",
        }


def _cannot_listen(key: str, address: Address, error: OSError) -> ConfigError:
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return ConfigError(
        f"`{key}`: cannot listen on {address}: {reason}; stop what uses that port, or set `{key}` to another address"
    )


def configure_logging(config: NodeConfig) -> None:
    if config.log_file is None:
        handler: logging.Handler = logging.StreamHandler()
    else:
        config.log_file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(config.log_file)
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s.%(msecs)03d [%(levelname)s] %(name)s: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        handlers=[handler],
    )


def run(config: NodeConfig) -> int:
    """Run one node in the foreground until SIGTERM or SIGINT; returns the exit code."""
    try:
        configure_logging(config)
    except OSError as error:
        print(f"`log.file` {config.log_file} cannot be written: {error.strerror}", file=sys.stderr)
        return ExitCode.CONFIG
    log.debug("at most %d files can be open", raise_open_files_limit())
    try:
        return uvloop.run(_run(config))
    except ConfigError as error:
        log.error("%s", error)
        return ExitCode.CONFIG
    except (StorageError, OSError) as error:
        log.error("cannot start: %s", error)
        return ExitCode.SOFTWARE


async def _run(config: NodeConfig) -> int:
    return await Daemon(config).run()

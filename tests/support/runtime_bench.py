"""A real `NodeRuntime` and metadata state under a fake mesh and a fake log; time passes when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from cluster.metadata.codec import decode_request, encode_request
from cluster.metadata.commands import (
    ChangeTopology,
    Command,
    NodeDown,
    NodeUp,
    RaiseProtocol,
    Request,
    RequestId,
    SetPolicy,
)
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.metadata.records import MastershipRecord, PolicyRecord
from cluster.real_world.world import ThreadWorker
from cluster.runtime.applier import SLICE_PIECES
from cluster.runtime.node_runtime import NodeRuntime
from cluster.runtime.outside import Worker
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.standing import Pause
from cluster.wire.convert import QueueFrameMessage
from node.config import build_config, parse_settings
from node.ids import Incarnation, NodeName, QueueId
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import SimulatedDisk
from node.store.shared.config import StoreConfig
from node.topology.commands import CreateVhost, DeclareQueue
from tests.support.resources import FakeProbe

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
CONFIG = """
node_name = n1
cluster_formation.classic_config.nodes.1 = n1@127.0.0.1:25672
cluster_formation.classic_config.nodes.2 = n2@127.0.0.1:25673
cluster_formation.classic_config.nodes.3 = n3@127.0.0.1:25674
cluster.cookie = correct horse battery
"""


class FakeMesh:
    """Links that are up when the test says so; what is sent is kept."""

    def __init__(self) -> None:
        self.up_peers: list[NodeName] = [N2, N3]
        self.sent: list[tuple[NodeName, QueueFrameMessage]] = []
        self.reset: list[NodeName] = []
        self.broken: set[NodeName] = set()
        self.congested: set[NodeName] = set()
        #: Of these, those where messages to consumers are part of what waits.
        self.marked: set[NodeName] = set()

    def is_congested(self, peer: NodeName) -> bool:
        return peer in self.congested

    def mark(self, peer: NodeName) -> None:
        self.marked.add(peer)

    def is_full(self, peer: NodeName) -> bool:
        return peer in self.congested & self.marked

    def send_queue_frames(self, peer: NodeName, messages: Sequence[QueueFrameMessage]) -> None:
        if peer in self.broken:
            raise ValueError("cannot be encoded")
        self.sent += [(peer, message) for message in messages]

    def reset_link(self, peer: NodeName, reason: str) -> None:
        self.reset.append(peer)


class FakeLog:
    """A Raft log that commits at once, or not at all."""

    def __init__(self, bench: RuntimeBench) -> None:
        self.bench = bench
        self.leader: NodeName | None = N1
        self.voters = (N1,)
        self.has_quorum = True
        self.pause: Pause | None = None
        #: What is applied here all peers have applied, too.
        self.is_visible = True
        #: Nothing that is proposed is ever answered.
        self.is_silent = False
        self.proposed: list[Command] = []
        self.index = 0

    def commit(self, command: Command, request_id: RequestId | None = None) -> Any:
        self.index += 1
        request_id = request_id or RequestId(NodeName("test"), Incarnation(1), self.index)
        payload = encode_request(Request(request_id, command))
        applied = self.bench.runtime.metadata.apply(self.index, payload)
        if applied.error is not None:
            raise applied.error
        return applied.outcome

    async def propose(self, payload: bytes, request_id: RequestId) -> Any:
        command = decode_request(payload).command
        self.proposed.append(command)
        if self.is_silent:
            await asyncio.Event().wait()
        if not self.has_quorum:
            raise TimeoutError("no quorum")
        return self.commit(command, request_id)

    async def wait_visible(self, index: int, peers: Callable[[], Collection[NodeName]]) -> bool:
        return self.is_visible

    async def hand_over(self, may_lead: Callable[[NodeName], bool]) -> NodeName | None:
        return None

    def receive(self, messages: Sequence[object]) -> None: ...

    def peer_down(self, peer: NodeName) -> None: ...

    def peer_begins_anew(self, peer: NodeName) -> None: ...

    def peers_changed(self) -> None: ...

    def link_up(self, peer: NodeName) -> None: ...

    def link_down(self, peer: NodeName) -> None: ...


class RuntimeBench:
    """n1 of three nodes; time passes when the test says so."""

    slice_pieces = SLICE_PIECES

    def __init__(self, disk: Disk | None = None, data_dir: str = "/data") -> None:
        """``disk``: in place of one in memory."""
        self.now_ms = 0
        self.fatal: list[str] = []
        self.disk = SimulatedDisk()
        group_commit = GroupCommit()
        self.probe = FakeProbe()
        self.speaks_protocol = NEWEST_PROTOCOL
        self.now_s = self.look_s = 0.0
        self.files = NodeQueueFiles(disk or self.disk, data_dir, group_commit, StoreConfig(), self.clock)
        self.mesh = FakeMesh()
        self.log = FakeLog(self)
        config = build_config(parse_settings(CONFIG, "node.conf"))
        self.runtime = NodeRuntime(
            config,
            Incarnation(1),
            group_commit,
            self.files,
            self,
            now_ms=lambda: self.now_ms,
            on_fatal=self.fatal.append,
        )
        self.runtime.connect(self.mesh, self.log)
        self.runtime.start()

    # --- the world ---

    def clock(self) -> float:
        """Seconds; each look at it costs as many as the test says."""
        self.now_s += self.look_s
        return self.now_s

    def worker(self, name: str) -> Worker:
        return ThreadWorker(name)

    # --- what tests do ---

    async def active(self) -> RuntimeBench:
        """All three nodes are up, and everything is mirrored everywhere."""
        for node in (N2, N3):
            self.log.commit(NodeUp(node, Incarnation(1), f"{node}:1", f"{node}:2", NEWEST_PROTOCOL))
        self.log.commit(ChangeTopology(CreateVhost("/"), N1))
        self.log.commit(SetPolicy(PolicyRecord("/", "ha", "^", {"ha-mode": "all"}, 0, "all")))
        await self.runtime.activate()
        return self

    def raise_protocol(self) -> None:
        """All members speak the newest."""
        members = sorted((name, member.incarnation) for name, member in self.runtime.metadata.state.members.items())
        self.log.commit(RaiseProtocol(NEWEST_PROTOCOL, tuple(members)))

    def declare(self, name: str = "q", origin: NodeName = N1, *, durable: bool = True) -> QueueId:
        queue_id: QueueId = self.log.commit(ChangeTopology(DeclareQueue("/", name, durable=durable), origin)).queue_id
        return queue_id

    def record(self, queue_id: QueueId) -> MastershipRecord:
        return self.runtime.metadata.state.masterships[queue_id]

    def stand_aside(self) -> None:
        """As before `NodeRuntime.activate`: the runtime takes no notice of what is committed about queues."""
        self.runtime.roles._is_active = self.runtime.membership._has_joined = False

    def take_part(self) -> None:
        """As after it, with the roles it had."""
        self.runtime.roles._is_active = self.runtime.membership._has_joined = True

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def pass_time(self, ms: int, *, heard: Sequence[NodeName] = (N2, N3)) -> None:
        """Tick by tick, hearing from some peers."""
        for _ in range(ms // 100):
            self.now_ms += 100
            for peer in heard:
                self.runtime.switchboard.on_consensus(peer, [])
            self.tick()
        await self.settle()

    def tick(self) -> None:
        self.runtime.housekeeping.tick()
        self.runtime.check_invariants()

    async def close(self) -> None:
        self.runtime.housekeeping.stop()
        await self.runtime.sync_thread.stop()

    def downs(self) -> list[NodeName]:
        return [command.node for command in self.log.proposed if isinstance(command, NodeDown)]


def lose(bench: RuntimeBench, peer: NodeName) -> None:
    """The peer's process is gone."""
    bench.mesh.up_peers.remove(peer)
    bench.runtime.switchboard.on_link_down(peer, "reset")
    bench.runtime.switchboard.on_peer_refused(peer)

"""Three Raft drivers over real meshes and real files in one loop: elect, propose anywhere, lose nodes, come back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest

from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.raft.core import ProposalRefusedError, RaftConfig
from cluster.raft.messages import AppendRequest, ForwardedProposal, Heartbeat, Message
from cluster.raft.storage import RaftStorage
from cluster.real_world.world import ThreadWorker
from cluster.runtime.applier import Applied
from cluster.runtime.driver_config import DriverConfig
from cluster.runtime.raft_driver import RaftDriver
from cluster.runtime.standing import Pause
from cluster.transport.grpc_carrier import GrpcCarrier
from cluster.transport.mesh import Mesh
from cluster.transport.mesh_port import MeshTiming
from cluster.wire.convert import QueueFrameMessage
from node.errors import ConfigError, StorageError
from node.ids import Incarnation, NodeName
from node.pieces import Pieces
from node.store.disk.disk import RealDisk
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

RANDOM_BYTES = Random(1).randbytes

pytestmark = pytest.mark.integration

NAMES = [NodeName("n1"), NodeName("n2"), NodeName("n3")]
TIMING = MeshTiming(backoff_min_ms=5, backoff_max_ms=50)
DRIVER_CONFIG = DriverConfig(retry_interval_ms=200, quorum_grace_ms=1000, snapshot_entries=20)


class Words:
    """State machine: the list of words ever said, each once per request id. ``!`` is refused."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.seen: set[str] = set()
        self.restored = 0

    def apply_in_pieces(self, index: int, payload: bytes) -> Pieces[Applied]:
        yield
        request_id, word = json.loads(payload)
        if request_id in self.seen:
            return Applied(request_id)
        self.seen.add(request_id)
        if word == "!":
            return Applied(request_id, error=ValueError("no shouting"))
        self.words.append(word)
        return Applied(request_id, outcome=len(self.words))

    protocol = NEWEST_PROTOCOL

    wants_snapshot = is_declared_down = False

    def snapshot_pieces(self) -> Iterator[bytes]:
        data = json.dumps([self.words, sorted(self.seen)]).encode()
        return iter([data[at : at + 100] for at in range(0, len(data), 100)])

    def snapshot_taken(self, index: int, data: bytes) -> None: ...

    def restore(self, data: bytes) -> None:
        self.words, seen = json.loads(data)
        self.seen = set(seen)
        self.restored += 1

    def restore_in_pieces(self, data: bytes) -> Pieces[None]:
        yield
        self.restore(data)


class Node:
    """A mesh, a driver, and what they report."""

    def __init__(self, name: NodeName, addresses: dict[NodeName, str], directory: Path, incarnation: int) -> None:
        self.name = name
        self.state = Words()
        self.reports: list[str] = []
        storage, restored = RaftStorage.open(RealDisk(), str(directory / name), NAMES)
        self.mesh = Mesh(
            name,
            Incarnation(incarnation),
            addresses[name],
            addresses,
            self,
            GrpcCarrier(),
            random_bytes=RANDOM_BYTES,
            timing=TIMING,
        )
        self.driver = RaftDriver(
            RaftConfig(name, heartbeat_interval_ms=30, election_timeout_min_ms=300, election_timeout_max_ms=600),
            storage,
            restored,
            self.state,
            listener=self,
            send=self.mesh.send_consensus,
            worker=ThreadWorker("raft-sync"),
            clock=time.monotonic,
            slice_pieces=50,
            seed=incarnation * 10 + NAMES.index(name),
            driver_config=DRIVER_CONFIG,
        )
        self._requests = 0
        self._incarnation = incarnation

    async def start(self) -> None:
        await self.mesh.start()
        self.driver.start()

    async def stop(self) -> None:
        await self.driver.stop()
        await self.mesh.stop()

    async def say(self, word: str, timeout_ms: int = 8000) -> object:
        self._requests += 1
        request_id = f"{self.name}/{self._incarnation}/{self._requests}"
        return await self.driver.propose(json.dumps([request_id, word]).encode(), request_id, timeout_ms)

    def on_consensus(self, peer: NodeName, messages: list[Message]) -> None:
        self.driver.receive(messages)
        self.driver.check_invariants()

    def on_queue_frames(self, peer: NodeName, messages: list[QueueFrameMessage]) -> None:
        raise AssertionError("no queues in these tests")

    def on_link_up(self, peer: NodeName, incarnation: Incarnation) -> None: ...

    def on_link_down(self, peer: NodeName, reason: str) -> None: ...

    def on_link_uncongested(self, peer: NodeName) -> None: ...

    def on_link_room(self, peer: NodeName) -> None: ...

    def on_peer_refused(self, peer: NodeName) -> None:
        self.driver.peer_down(peer)

    def on_applied(self, index: int) -> None:
        assert index == self.driver.applied_index

    def on_leader_change(self, leader: NodeName | None) -> None:
        self.reports.append(f"leader {leader}")

    def on_pause(self, pause: Pause | None) -> None:
        self.reports.append("quorum regained" if pause is None else pause.hindrance.value)

    def on_storage_failed(self, error: Exception) -> None:
        self.reports.append(f"failed: {error}")


class Group:
    """The nodes that run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in NAMES}
        self.nodes: dict[NodeName, Node] = {}
        self.incarnation = 0

    async def start(self, *names: NodeName) -> None:
        self.incarnation += 1
        for name in names:
            self.nodes[name] = Node(name, self.addresses, self.directory, self.incarnation)
        for name in names:
            await self.nodes[name].start()

    async def stop(self, name: NodeName) -> None:
        await self.nodes.pop(name).stop()

    def leader(self) -> NodeName | None:
        """The leader that all running nodes agree on."""
        leaders = {node.driver.leader for node in self.nodes.values()}
        leader = leaders.pop()
        return leader if not leaders and leader in self.nodes else None

    async def elect(self) -> NodeName:
        await eventually_async(lambda: self.leader() is not None, "there is a leader")
        leader = self.leader()
        assert leader is not None
        return leader


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path)
    yield group
    for name in list(group.nodes):
        await group.stop(name)


async def test_every_node_proposes_and_reads_its_own_write(group: Group) -> None:
    await group.start(*NAMES)
    for name in NAMES:
        node = group.nodes[name]
        outcome = await node.say(f"by {name}")
        assert node.state.words[int(str(outcome)) - 1] == f"by {name}"
    await eventually_async(
        lambda: all(len(node.state.words) == 3 for node in group.nodes.values()), "every node has the three words"
    )
    assert len({tuple(node.state.words) for node in group.nodes.values()}) == 1


async def test_many_proposals_at_once_are_each_applied_once(group: Group) -> None:
    await group.start(*NAMES)
    said = [f"{name} {i}" for i in range(700) for name in NAMES]
    await asyncio.gather(*(group.nodes[NodeName(word[:2])].say(word) for word in said))
    await eventually_async(
        lambda: all(len(node.state.words) >= len(said) for node in group.nodes.values()), "every node has what was said"
    )
    for node in group.nodes.values():
        assert sorted(node.state.words) == sorted(said)


async def test_more_proposals_than_the_window_wait_for_their_turn(group: Group) -> None:
    await group.start(*NAMES)
    leader = await group.elect()
    follower = next(name for name in NAMES if name != leader)
    node = group.nodes[follower]
    outcomes = await asyncio.gather(*(node.say(str(i)) for i in range(2500)))
    assert sorted(int(str(outcome)) for outcome in outcomes) == list(range(1, 2501))


async def test_what_waits_goes_to_a_leader_at_its_first_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when it is due again, if another word of the leader came first, by which it could not be stamped."""
    sent: list[Message] = []
    monkeypatch.setattr(Mesh, "send_consensus", lambda _mesh, _peer, messages: sent.extend(messages))
    monkeypatch.setitem(globals(), "DRIVER_CONFIG", DriverConfig(retry_interval_ms=600_000))
    node = Node(NAMES[1], dict.fromkeys(NAMES, "127.0.0.1:1"), tmp_path, 1)
    node.driver.start()
    node.driver.receive([AppendRequest(NAMES[0], NAMES[1], 5, 0, 0, (), 0)])
    saying = asyncio.ensure_future(node.say("late"))
    await eventually_async(lambda: node.reports == ["leader n1"], "the leader is known")
    assert not [message for message in sent if isinstance(message, ForwardedProposal)]
    node.driver.receive([Heartbeat(NAMES[0], NAMES[1], 5, 0, 0, 70_000, 0)])
    await eventually_async(lambda: any(isinstance(message, ForwardedProposal) for message in sent), "it is forwarded")
    saying.cancel()
    await node.driver.stop()


async def test_a_refused_command_raises_at_the_proposer(group: Group) -> None:
    await group.start(*NAMES)
    with pytest.raises(ValueError, match="no shouting"):
        await group.nodes[NAMES[1]].say("!")


async def test_the_others_go_on_when_the_leader_dies_and_it_catches_up_by_snapshot(group: Group) -> None:
    await group.start(*NAMES)
    dead = await group.elect()
    survivors = [node for name, node in group.nodes.items() if name != dead]
    await survivors[0].say("before")
    last_words = [asyncio.ensure_future(node.say(f"while dying {node.name}")) for node in survivors]
    await group.stop(dead)
    await asyncio.gather(*last_words)
    for i in range(60):
        await survivors[i % 2].say(str(i))
    assert group.leader() != dead
    await group.start(dead)
    returned = group.nodes[dead]
    await eventually_async(lambda: len(returned.state.words) == 63, "the node that returned has every word")
    assert returned.state.words == survivors[0].state.words
    assert await returned.say("back") == 64


async def test_a_snapshot_that_somebody_waits_for_needs_no_further_entry(group: Group) -> None:
    await group.start(*NAMES)
    node = group.nodes[NAMES[0]]
    await node.say("before")
    log = node.driver.core.log
    assert log.snapshot.index == 0
    node.state.wants_snapshot = True
    await eventually_async(lambda: log.snapshot.index > 0, "the snapshot is taken")
    assert log.snapshot.index == log.applied


async def test_without_a_majority_nothing_is_decided_and_it_is_reported(group: Group) -> None:
    await group.start(*NAMES)
    leader = await group.elect()
    await group.nodes[leader].say("all here")
    for name in NAMES:
        if name != leader:
            await group.stop(name)
    node = group.nodes[leader]
    with pytest.raises(TimeoutError, match="no decision within 300 ms"):
        await node.say("lonely", timeout_ms=300)
    await eventually_async(lambda: "no_quorum" in node.reports, "the loss of the quorum is reported")
    assert not node.driver.has_quorum
    assert node.state.words == ["all here"]
    await group.start(next(name for name in NAMES if name != leader))
    await eventually_async(
        lambda: node.reports[-1] == "quorum regained" or "quorum regained" in node.reports,
        "the quorum is reported again",
    )
    await node.say("together")
    assert node.state.words[-1] == "together"


async def test_everything_is_there_after_a_restart_of_all(group: Group) -> None:
    await group.start(*NAMES)
    for i in range(50):
        await group.nodes[NAMES[i % 3]].say(str(i))
    words = group.nodes[NAMES[49 % 3]].state.words
    for name in NAMES:
        await group.stop(name)
    await group.start(*NAMES)
    await group.nodes[NAMES[0]].say("again")
    assert group.nodes[NAMES[0]].state.words == [*words, "again"]
    assert group.nodes[NAMES[0]].state.restored > 0, "snapshots were taken"


async def test_a_transfer_moves_the_lead(group: Group) -> None:
    await group.start(*NAMES)
    leader = await group.elect()
    await group.nodes[leader].say("first")
    target = next(name for name in NAMES if name != leader)
    group.nodes[leader].driver.core.transfer_leadership(int(asyncio.get_running_loop().time() * 1000), target)
    await eventually_async(lambda: group.leader() == target, "the target leads")


async def test_a_failed_disk_stops_the_driver(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    await group.start(*NAMES)
    leader = await group.elect()
    node = group.nodes[leader]

    def fail(self: RaftStorage) -> None:
        if self is node.driver._storage:
            raise StorageError("broken disk")
        original(self)

    original = RaftStorage.sync
    monkeypatch.setattr(RaftStorage, "sync", fail)
    with pytest.raises(StorageError, match="broken disk"):
        await node.say("lost")
    assert node.reports[-1] == "failed: broken disk"
    with pytest.raises(StorageError, match="broken disk"):
        await node.say("refused")


async def test_a_state_machine_that_contradicts_itself_stops_the_driver(group: Group) -> None:
    await group.start(*NAMES)
    node = group.nodes[await group.elect()]

    def contradict(index: int, payload: bytes) -> Pieces[Applied]:
        yield
        raise AssertionError("entries are applied in order")

    node.state.apply_in_pieces = contradict  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="entries are applied in order"):
        await node.say("lost")
    assert node.reports[-1].startswith("failed: what is committed cannot be carried out")


async def test_what_this_release_does_not_know_stops_the_driver_and_is_called_by_its_name(group: Group) -> None:
    await group.start(*NAMES)
    node = group.nodes[await group.elect()]

    def not_know(index: int, payload: bytes) -> Pieces[Applied]:
        yield
        raise ConfigError("upgrade this node")

    node.state.apply_in_pieces = not_know  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"^upgrade this node$"):
        await node.say("lost")
    assert node.reports[-1] == "failed: upgrade this node"


async def test_stopping_refuses_who_waits(group: Group) -> None:
    await group.start(NAMES[0])
    node = group.nodes[NAMES[0]]
    waiting = asyncio.ensure_future(node.say("nobody hears"))
    await asyncio.sleep(0.05)
    await group.stop(NAMES[0])
    with pytest.raises(ProposalRefusedError, match="stopping"):
        await waiting

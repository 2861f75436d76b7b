"""Whatever the network does: one link delivers a beginning of what was said on it, and a healed network has a link.

Each seed is one run: the same again with `-k "[7]"`. What is said carries the number of the link at its sender and a
position in it, so that loss in the middle, doubles, and words of one link in another would show.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from chaos.sim import carrier
from cluster.mirroring.messages import HorizonOp, Ops
from cluster.transport.carrier import IncomingStream, StreamKind
from cluster.transport.mesh import Mesh
from cluster.wire.convert import QueueFrameMessage
from node.ids import Epoch, Incarnation, NodeName, QueueId, SeqId
from tests.support.amounts import few_fast
from tests.support.mesh_listener import Listener
from tests.support.mesh_nodes import N1, N2, N3, PATIENCE_S, TIMING, MeshNodes

NAMES = N1, N2, N3
STEPS = 60


@pytest.fixture(autouse=True)
def narrow_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "WINDOW_BYTES", 4096)
    monkeypatch.setattr(carrier, "WINDOW_STEP_BYTES", 1024)


class Checker(Listener):
    """A node that says numbers to every peer and checks what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.mesh: Mesh | None = None
        #: By peer, of the link that is up: our number for it, what was said on it and what was heard.
        self.link: dict[NodeName, int] = {}
        self.said: dict[NodeName, int] = {}
        #: The sender's number for its link, and the last position.
        self.heard: dict[NodeName, tuple[int, int]] = {}
        self.links = 0
        self.total_heard = 0

    def on_link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        assert peer not in self.link, "up follows down"
        super().on_link_up(peer, incarnation)
        self.links += 1
        self.link[peer] = self.links
        self.said[peer] = 0
        self.heard.pop(peer, None)
        if self.mesh is not None:
            # The first words travel while the peer may still wait for the end of the handshake.
            self.mesh.send_queue_frames(peer, self.say(peer, 1, 8))

    def on_link_down(self, peer: NodeName, reason: str) -> None:
        super().on_link_down(peer, reason)
        del self.link[peer]

    def say(self, peer: NodeName, count: int, size_bytes: int) -> list[Ops]:
        first = self.said[peer] + 1
        self.said[peer] += count
        filler = tuple(HorizonOp(SeqId(number)) for number in range(size_bytes // 8))
        epoch = Epoch(self.link[peer])
        return [Ops(QueueId(1), epoch, 1, index, filler) for index in range(first, first + count)]

    def on_queue_frames(self, peer: NodeName, messages: list[QueueFrameMessage]) -> None:
        assert peer in self.link, "nothing is heard before a link is up"
        for message in messages:
            assert isinstance(message, Ops)
            link, position = self.heard.get(peer, (message.epoch, 0))
            assert message.epoch == link, "words of one link never reach another"
            assert message.first_index == position + 1, "a beginning of what was said, each word once"
            self.heard[peer] = link, message.first_index
            self.total_heard += 1


class Storm:
    """Three nodes and what befalls them, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.nodes = MeshNodes(*NAMES, seed=seed)
        self.chance = Random(seed)
        self.starts = dict.fromkeys(NAMES, 0)
        self.nodes.set_delay(0, self.chance.choice((0, 0.001, 0.05)))

    async def start(self, name: NodeName) -> None:
        self.starts[name] += 1
        checker = Checker()
        checker.mesh = await self.nodes.start(name, self.starts[name], listener=checker)

    def checker(self, name: NodeName) -> Checker:
        checker = self.nodes.listeners[name]
        assert isinstance(checker, Checker)
        return checker

    def talk(self) -> None:
        for name, mesh in self.nodes.meshes.items():
            for peer in mesh.up_peers:
                messages = self.checker(name).say(peer, self.chance.randint(1, 5), self.chance.choice((8, 80, 800)))
                mesh.send_queue_frames(peer, messages)

    async def step(self) -> None:
        chance, nodes = self.chance, self.nodes
        one, other = chance.sample(NAMES, 2)
        what = chance.randrange(10)
        if what == 0:
            nodes.reset(one, other)
        elif what == 1:
            nodes.cut(one, other)
        elif what in (2, 3):
            nodes.heal(one, other)
        elif what == 4:
            nodes.refuse(one, other, chance.random() < 0.5)
        elif what == 5 and one in self.nodes.meshes:
            self.nodes.meshes[one].reset_link(other, "storm")
        elif what == 6 and one in self.nodes.meshes:
            end = chance.choice((self.nodes.stop, self.nodes.kill, self.nodes.lose))
            await end(one)
        elif what in (7, 8) and one not in self.nodes.meshes:
            await self.start(one)
        for _ in range(chance.randrange(5)):
            self.talk()
            await asyncio.sleep(chance.choice((0, 0.001, 0.02, 1, 5)))
        self.nodes.check_invariants()

    async def calm(self) -> None:
        for one in NAMES:
            for other in NAMES:
                self.nodes.heal(one, other)
                self.nodes.refuse(one, other, False)
            if one not in self.nodes.meshes:
                await self.start(one)
        # A link that one side still believes in may have to be found silent first.
        await self.nodes.until(lambda: all(len(mesh.up_peers) == 2 for mesh in self.nodes.meshes.values()))
        await asyncio.sleep(10)
        assert all(len(mesh.up_peers) == 2 for mesh in self.nodes.meshes.values())
        self.talk()
        await asyncio.sleep(1)
        for name in NAMES:
            for peer in NAMES:
                if peer != name:
                    checker = self.checker(name)
                    heard = self.checker(peer).heard[name]
                    assert heard == (checker.link[peer], checker.said[peer]), "a link that is up has lost nothing"


def record(storm: Storm) -> list[object]:
    """What the run was, for comparison with another of the same seed."""
    heard = [(name, listener.happened, listener.beats) for name, listener in storm.nodes.listeners.items()]
    return [asyncio.get_running_loop().time(), storm.starts, heard]


async def run(seed: int) -> list[object]:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    storm = Storm(seed)
    for name in NAMES:
        await storm.start(name)
    for _ in range(STEPS):
        await storm.step()
    await storm.calm()
    assert sum(storm.checker(name).total_heard for name in NAMES) > 0
    result = record(storm)
    await storm.nodes.stop_all()
    assert failures == []
    return result


@pytest.mark.parametrize("seed", few_fast(range(20), 4))
async def test_a_storm_leaves_links_that_lose_nothing(seed: int) -> None:
    await run(seed)


async def test_one_seed_is_one_run() -> None:
    first = await run(4)
    began = asyncio.get_running_loop().time()
    second = await run(4)
    assert second[1:] == first[1:]
    assert second[0] == pytest.approx(began + float(str(first[0])))


async def test_a_peer_that_takes_a_question_and_stands_still_is_said_not_to_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As under SIGSTOP: its system accepts, and it says nothing."""
    nodes = MeshNodes(N1, N2)
    frozen = nodes.carrier(N1)

    async def say_nothing(_kind: StreamKind, _stream: IncomingStream) -> None:
        await asyncio.Event().wait()

    await frozen.serve(nodes.addresses[N1], say_nothing, silence_timeout_ms=TIMING.silence_timeout_ms)
    await nodes.start(N2)
    await asyncio.sleep(PATIENCE_S)
    assert "no link to n1: it does not say what it knows: it did not answer in time" in caplog.text
    await nodes.stop(N2)
    await frozen.stop()

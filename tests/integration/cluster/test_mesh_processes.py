"""What the mesh notices when the process of a peer is killed, frozen, or comes back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from cluster.raft.messages import Message
from cluster.transport.grpc_carrier import GrpcCarrier
from cluster.transport.mesh import Mesh
from cluster.transport.mesh_port import MeshTiming
from cluster.wire.convert import QueueFrameMessage
from node.ids import Incarnation, NodeName
from tests.support.ports import free_port

RANDOM_BYTES = Random(1).randbytes

pytestmark = pytest.mark.integration

US, VICTIM = NodeName("n1"), NodeName("n2")
ROOT = Path(__file__).parents[3]
TIMING = MeshTiming(silence_timeout_ms=900, backoff_min_ms=5, backoff_max_ms=50, handshake_timeout_ms=1000)

VICTIM_PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from random import Random
    from cluster.transport.grpc_carrier import GrpcCarrier
    from cluster.transport.mesh import Mesh

    class Deaf:
        def __getattr__(self, name):
            return lambda *arguments: None

    async def main(us, victim, incarnation):
        chance = Random(1)
        mesh = Mesh(
            "n2", int(incarnation), victim, {"n1": us}, Deaf(), GrpcCarrier(), random_bytes=chance.randbytes
        )
        await mesh.start()
        await asyncio.Event().wait()

    asyncio.run(main(*sys.argv[1:]))
    """
)


class World:
    """Our mesh, the peer's process, and what we were told, in order."""

    def __init__(self) -> None:
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in (US, VICTIM)}
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.mesh = Mesh(
            US,
            Incarnation(1),
            self.addresses[US],
            self.addresses,
            self,
            GrpcCarrier(),
            random_bytes=RANDOM_BYTES,
            timing=TIMING,
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start_victim(self, incarnation: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", VICTIM_PROGRAM, self.addresses[US], self.addresses[VICTIM], str(incarnation)]
        self.process = subprocess.Popen(command, cwd=ROOT)
        return self.process

    async def next_told(self) -> str:
        async with asyncio.timeout(20):
            return await self.told.get()

    def on_consensus(self, peer: NodeName, messages: list[Message]) -> None: ...

    def on_queue_frames(self, peer: NodeName, messages: list[QueueFrameMessage]) -> None: ...

    def on_link_uncongested(self, peer: NodeName) -> None: ...

    def on_link_room(self, peer: NodeName) -> None: ...

    def on_link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        self.told.put_nowait(f"up {incarnation}")

    def on_link_down(self, peer: NodeName, reason: str) -> None:
        self.told.put_nowait("down")

    def on_peer_refused(self, peer: NodeName) -> None:
        self.told.put_nowait("refused")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.mesh.start()
    yield world
    await world.mesh.stop()
    if world.process is not None:
        world.process.kill()
        world.process.wait(10)


async def test_a_killed_process_is_refused_and_its_successor_linked(world: World) -> None:
    assert await world.next_told() == "refused"
    victim = world.start_victim(1)
    assert await world.next_told() == "up 1"
    victim.kill()
    assert await world.next_told() == "down"
    assert await world.next_told() == "refused"
    victim.wait(10)
    world.start_victim(2)
    assert await world.next_told() == "up 2"


async def test_a_frozen_process_is_down_but_not_refused(world: World) -> None:
    assert await world.next_told() == "refused"
    victim = world.start_victim(1)
    assert await world.next_told() == "up 1"
    victim.send_signal(signal.SIGSTOP)
    assert await world.next_told() == "down"
    victim.send_signal(signal.SIGCONT)
    assert await world.next_told() == "up 1"

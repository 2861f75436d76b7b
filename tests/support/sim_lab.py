"""A simulated cluster of three nodes, and an operator at work on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from chaos.sim.client import Channel, open_connection
from chaos.sim.cluster import SimulatedCluster
from chaos.sim.convergence import why_not_converged
from chaos.sim.drawing import draw_personality
from chaos.sim.loop import SimulatedLoop
from chaos.sim.machine import AMQP_PORT
from cluster.metadata.commands import ChangeTopology, Command
from cluster.metadata.records import MastershipRecord, PolicyRecord
from cluster.runtime.identity import IDENTITY_FILE
from cluster.transport.admin_port import AdminPort
from node.ids import NodeName
from node.store.disk.disk import read_whole
from node.topology.commands import DeclareQueue

_T = TypeVar("_T")

NAMES = ("n1", "n2", "n3")
#: Virtual: longer than any timeout of a cluster.
PATIENCE_S = 60.0


class Lab:
    """Three nodes, those of ``earlier`` with the release before, and what they say when they end."""

    def __init__(self, loop: SimulatedLoop, seed: int = 1, earlier: tuple[str, ...] = ()) -> None:
        self.loop = loop
        self.cluster = SimulatedCluster(loop, replace(draw_personality(Random(seed), 3), earlier=earlier), seed)
        self.story: list[str] = []
        self.cluster.on_event = self.story.append

    def start(self, *names: str) -> None:
        for name in names:
            self.cluster.start(name)

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until(self.loop.now_s + seconds)

    def until_converged(self) -> None:
        end_s = self.loop.now_s + PATIENCE_S
        while (reason := why_not_converged(self.cluster)) and self.loop.now_s < end_s:
            self.pass_time(0.1)
        assert not reason
        self.check_invariants()

    def check_invariants(self) -> None:
        for node in self.cluster.nodes.values():
            node.check_invariants()

    def found(self) -> None:
        self.start(*NAMES)
        self.until_converged()

    def ends_of(self, name: str) -> list[str]:
        return [line for line in self.story if line.startswith(f"end of {name}")]

    def leader(self) -> str:
        return next(name for name, node in self.cluster.nodes.items() if node.raft.core.is_leader)

    def is_founded(self, name: str) -> bool:
        return name in self.cluster.nodes and self.cluster.nodes[name].raft.core.log.last_index > 0

    def is_let_in(self, name: str) -> bool:
        """As a new node; it may have learned nothing yet."""
        return any(name in node.runtime.metadata.state.admissions.admitted for node in self.cluster.nodes.values())

    def forget(self, name: str, at: str) -> None:
        """As an operator has it done, to the end; raises what it is refused with."""
        self.ask(at, lambda admin: admin.forget_cluster_node(name))

    def replace_disk(self, name: str, at: str) -> None:
        """What was there is lost, the others notice and forget it, and it starts as a new node."""
        self.lose_disk(name)
        self.pass_time(10)
        self.forget(name, at)
        self.start(name)

    def declare(self, at: str, *names: str, vhost: str = "/") -> None:
        """Durable queues, one after the other."""
        for name in names:
            self.change(at, ChangeTopology(DeclareQueue(vhost, name, durable=True), NodeName(at)))

    def change(self, at: str, command: Command) -> None:
        """Have this node have it decided."""
        node, process = self.cluster.nodes[at], self.cluster.machines[at].process
        assert process is not None
        self._finished(process.create_task(node.runtime.metadata.change(command)), PATIENCE_S)

    def set_policy(self, at: str, definition: Mapping[str, Any]) -> None:
        """For all queues."""
        policy = PolicyRecord("/", "lab", "", dict(definition), 0, "queues")
        self.ask(at, lambda admin: admin.set_policy(policy))

    def record(self, at: str, queue: str) -> MastershipRecord | None:
        """As this node has applied it; ``None`` if the queue does not exist there."""
        state = self.cluster.nodes[at].runtime.metadata.state
        found = state.topology.queue("/", queue)
        return None if found is None else state.masterships[found.queue_id]

    def publish(self, at: str, queue: str, count: int) -> None:
        """Persistent messages, through this node, until they are confirmed."""

        async def publish(channel: Channel) -> None:
            await channel.confirm_select()
            confirmed = asyncio.Event()
            channel.on_confirm = lambda number, _multiple, is_ack: confirmed.set() if number == count else None
            for number in range(count):
                channel.publish(queue, b"%d" % number)
            await confirmed.wait()

        self.use_channel(at, publish)

    def ready(self, at: str, queue: str) -> int:
        """Messages that the queue has, for a client of this node."""

        async def look(channel: Channel) -> int:
            messages, _ = await channel.declare(queue, passive=True)
            return messages

        return self.use_channel(at, look)

    def use_channel(self, at: str, use: Callable[[Channel], Coroutine[Any, Any, _T]]) -> _T:
        """What a client of this node makes of a channel of its own; raises what it meets with."""
        return self._finished(self.begin_to_use(at, use), PATIENCE_S)

    def begin_to_use(self, at: str, use: Callable[[Channel], Coroutine[Any, Any, _T]]) -> asyncio.Task[_T]:
        """As `use_channel`, without waiting for it."""
        process = self.loop.start_process("client")

        async def connect_and_use() -> _T:
            connection = await open_connection(self.cluster.network, process, "client", (at, AMQP_PORT))
            result = await use(await connection.channel())
            connection.close()
            return result

        return process.create_task(connect_and_use())

    def ask(self, at: str, request: Callable[[AdminPort], Coroutine[Any, Any, _T]], limit_s: float = PATIENCE_S) -> _T:
        """What an operator is answered by a node; raises what it is refused with."""
        return self._finished(self.begin_to_ask(at, request), limit_s)

    def begin_to_ask(self, at: str, request: Callable[[AdminPort], Coroutine[Any, Any, _T]]) -> asyncio.Task[_T]:
        """As `ask`, without waiting for it."""
        process = self.cluster.machines[at].process
        assert process is not None
        return process.create_task(request(self.cluster.nodes[at].admin))

    def _finished(self, task: asyncio.Task[_T], limit_s: float) -> _T:
        end_s = self.loop.now_s + limit_s
        while not task.done() and self.loop.now_s < end_s:
            self.pass_time(0.02)
        assert task.done(), "the node has not answered"
        return task.result()

    def lose_disk(self, name: str) -> None:
        """For ever."""
        self.cluster.kill(name)
        self.cluster.machines[name].wipe_disk()
        self.cluster.machines[name].disk_before = None

    def identity(self, name: str) -> bytes:
        disk = self.cluster.machines[name].disk
        return read_whole(disk, f"/data/{IDENTITY_FILE}")

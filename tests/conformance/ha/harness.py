"""A simulated cluster as the conformance cases use it.

A case reads like an example::

    @simulated
    async def test_a_message_survives() -> None:
        async with cluster(nodes=2, policy={"ha-mode": "all"}) as c:
            channel = await c.channel("n1")
            ...
            c.kill("n1")

The nodes are whole production nodes on a loop with virtual time (`chaos.sim.loop`), clients speak AMQP bytes, so 20
seconds of waiting cost nothing and one seed is one run. Clients and the case itself belong to the harness's process,
which takes no time: a case waits by `Cluster.until`, not by polling on its own. Of the cases' files only this one,
`runs` and `clients` know the simulator.

**Seeds.** Seed 0 is a quick and even world. Any other draws its own: delays of links, cost of turns and syncs, sizes of
files, version of the index, and the moments of faults (`Cluster.moment_ms`).

**What every case checks besides.** Invariants of all nodes every so many turns and at the end; no node ends by itself;
no mistake is logged, no task fails unseen, no callback raises, no client meets a breach of the protocol. A case that
provokes one of these names it in ``expected``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any, NoReturn, TypeVar

from chaos.sim import sockets
from chaos.sim.client import Channel, ClosedError, Connection, Delivered
from chaos.sim.cluster import SimulatedCluster
from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.machine import AMQP_PORT
from chaos.sim.machine import sync_queue as sync_to_the_end
from chaos.sim.schedule import Personality
from cluster.composition import Node
from cluster.metadata.records import MastershipRecord, PolicyRecord
from cluster.metadata.state import MetadataState
from cluster.runtime.queue_role import MasterRole, Role
from cluster.transport.admin_port import AdminPort, QueueSelection, Table
from node.errors import WarrenError
from node.message import decode_envelope
from node.topology.records import QueueRecord
from tests.conformance.ha.clients import CAPABILITIES, CaseFailed, ClientConnection, comes_about, publish_with
from tests.conformance.ha.runs import WITNESSES

_T = TypeVar("_T")

VHOST = "/"
#: Nodes' turns between two looks at all invariants.
TURNS_BETWEEN_CHECKS = 500


@dataclass(frozen=True)
class Placement:
    """Where a queue is, as the newest record says."""

    master: str
    mirrors: tuple[str, ...]
    synchronised: tuple[str, ...]
    is_down: bool


class Cluster:
    """Made by `cluster`."""

    def __init__(self, nodes: int, seed: int, config: Mapping[str, Any], expected: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop), "a case runs under `simulated` or `seeded`"
        self.loop = loop
        self.seed = seed
        #: For the case's own draws: moments, choices.
        self.chance = Random(f"{seed} case")
        self.sim = SimulatedCluster(loop, _personality(seed, nodes), seed)
        for machine in self.sim.machines.values():
            settings = {"mirroring_sync_batch_size": 64, **config}
            machine.config = replace(machine.config, **settings)
        self.names = list(self.sim.machines)
        self._slow_down_links()
        #: What went wrong besides the case's own claims, a line each.
        self.mistakes: list[str] = []
        #: What happened, a line per event.
        self.story: list[str] = []
        #: Called after each turn of a node.
        self.watchers: list[Callable[[], None]] = []
        self._expected = tuple(expected)
        self._client_numbers = count(1)
        self._turns = 0
        self.sim.on_event = self.tell
        self.sim.on_crash = lambda node, error: self.mistake(f"crash of {node}: {error!r}")
        self.sim.on_failure = lambda node, reason: self.mistake(f"{node} has ended: {reason}")
        loop.after_turn = self._after_turn
        loop.set_exception_handler(self._raised)

    def _slow_down_links(self) -> None:
        """In every third world what nodes say to each other takes longer than what they say to clients."""
        longest_ms = Random(f"{self.seed} slow links").uniform(10, 40)
        factor = max(1, int(longest_ms / self.sim.personality.link_delay_ms[1]))
        if self.seed % 3 == 2:
            for one in self.names:
                for other in self.names:
                    if one != other:
                        self.sim.slow_link(one, other, factor)

    # --- what happens ---

    def tell(self, text: str) -> None:
        self.story.append(f"{self.loop.now_s:9.4f} {text}")

    def mistake(self, text: str) -> None:
        self.tell(f"MISTAKE {text}")
        if not any(word in text for word in self._expected):
            self.mistakes.append(text)

    def _raised(self, _loop: object, context: dict[str, Any]) -> None:
        where = self.loop.current.name if self.loop.current is not None else "harness"
        self.mistake(f"{where}: {context.get('message')}: {context.get('exception')!r}")

    def _after_turn(self, _process: Process) -> None:
        for watch in self.watchers:
            watch()
        self._turns += 1
        if self._turns % TURNS_BETWEEN_CHECKS == 0:
            self.check_invariants()

    def check_invariants(self) -> None:
        try:
            self.sim.network.check_invariants()
            for node in self.sim.nodes.values():
                node.check_invariants()
        except AssertionError as error:
            self.mistake(f"invariant: {error!r}")

    def end(self) -> None:
        """Nothing may have gone wrong. Raises `CaseFailed`."""
        self.check_invariants()
        for process, error in self.loop.failed_tasks():
            if not isinstance(error, WarrenError | ClosedError | OSError | TimeoutError):
                self.mistake(f"a task of {process.name} failed: {error!r}")
        if self.mistakes:
            self.fail("; ".join(self.mistakes[:5]))

    def fail(self, text: str) -> NoReturn:
        raise CaseFailed("\n".join([f"seed {self.seed}: {text}", *self.story[-40:]]))

    async def until(self, condition: Callable[[], object], what: str, limit_s: float = 30.0) -> None:
        """Wait for it; `CaseFailed` after so many virtual seconds."""
        if not await comes_about(condition, limit_s):
            self.fail(f"after {limit_s:g} s still not so: {what}")

    async def within(self, awaitable: Awaitable[_T], what: str, limit_s: float = 30.0) -> _T:
        """The answer; `CaseFailed` if there is none in time."""
        try:
            async with asyncio.timeout(limit_s):
                return await awaitable
        except TimeoutError:
            self.fail(f"after {limit_s:g} s still no answer: {what}")

    def moment_ms(self, at_most: float) -> float:
        """A moment of this seed; of seed 0 the middle."""
        return self.chance.uniform(0, at_most) if self.seed else at_most / 2

    async def pause_ms(self, milliseconds: float) -> None:
        """Let the cluster work for a while."""
        await asyncio.sleep(milliseconds / 1000)

    # --- nodes ---

    async def start(self, *names: str) -> None:
        """Start these and wait until each serves clients."""
        for name in names:
            self.sim.start(name)
        await self.until(lambda: all(self.is_serving(name) for name in names), f"{', '.join(names)} serve")

    def start_only(self, *names: str) -> None:
        """Start these without waiting: they may have no majority."""
        for name in names:
            self.sim.start(name)

    def kill(self, *names: str) -> None:
        """SIGKILL, in one moment."""
        for name in names:
            self.sim.kill(name)

    def lose_power(self, *names: str) -> None:
        """The machines are gone without a word, with what they had not synced."""
        self.sim.power(*names)

    async def stop(self, *names: str) -> None:
        """SIGTERM, and wait for the end."""
        for name in names:
            self.sim.stop(name)
        await self.until(lambda: all(self.process_of(name) is None for name in names), f"{', '.join(names)} stop")

    async def restart(self, *names: str) -> None:
        """One after the other, orderly."""
        for name in names:
            await self.stop(name)
            await self.start(name)

    def process_of(self, name: str) -> int | None:
        """Number of the process that the node runs in; another after each start."""
        process = self.sim.machines[name].process
        return None if process is None else process.number

    def node(self, name: str) -> Node:
        return self.sim.nodes[name]

    def running(self) -> list[str]:
        return [name for name in self.names if name in self.sim.nodes]

    def is_serving(self, name: str) -> bool:
        """Clients may connect there."""
        node = self.sim.nodes.get(name)
        return node is not None and node.clients.is_serving

    async def noticed(self, *names: str) -> None:
        """Wait until the living know that these are down."""
        living = [name for name in self.running() if name not in names]
        await self.until(
            lambda: all(not self.state(name).members[gone].is_up for name in living for gone in map(_name, names)),
            f"{', '.join(living)} know that {', '.join(names)} are down",
        )

    async def whole(self) -> None:
        """Wait until every node runs, serves clients and counts as up, and all know the same and follow one leader.

        And until each is current: one that has come back a moment ago, and has its quorum's word for nothing since, may
        still pause (`cluster.runtime.standing`).
        """

        def is_whole() -> bool:
            leaders = {self.node(name).runtime.metadata.consensus.leader for name in self.running()}
            return (
                all(self.is_serving(name) for name in self.names)
                and len(leaders) == 1
                and None not in leaders
                and all(member.is_up for name in self.names for member in self.state(name).members.values())
                and len({self.node(name).raft.applied_index for name in self.names}) == 1
                and all(self._age_s(name) < 1 for name in self.names)
            )

        await self.until(is_whole, "the cluster is whole")

    def _age_s(self, name: str) -> float:
        """Of what it knows of the cluster."""
        raft = self.node(name).raft
        return self.loop.time() - raft.core.currency.as_of_ms(raft.applied_index) / 1000

    # --- links ---

    def cut(self, one: str, other: str) -> None:
        """In both directions."""
        self.sim.cut(one, other)
        self.sim.cut(other, one)

    def heal_link(self, one: str, other: str) -> None:
        self.sim.cut_end(one, other)
        self.sim.cut_end(other, one)

    def isolate(self, *names: str) -> None:
        """Cut these off from the other nodes; their clients reach them still."""
        for name in names:
            for other in self.names:
                if other not in names:
                    self.cut(name, other)

    def heal(self) -> None:
        """Every link."""
        for link in self.sim.network.links():
            link.is_cut = link.is_refusing = False
        self.tell("heal")
        self.sim.network.changed()

    def set_disk_failing(self, name: str, place: str | None) -> None:
        """Files with this in their paths cannot be written there; ``None``: they can again."""
        self.sim.machines[name].disk.fail_writes = place

    # --- clients ---

    async def connect(self, node: str, capabilities: Mapping[str, Any] = CAPABILITIES) -> Connection:
        """A connection from a host of its own. Raises `ClosedError` or `OSError`."""
        host = f"client-{next(self._client_numbers)}"
        async with asyncio.timeout(10):
            connection = await sockets.connect(
                self.sim.network,
                self.loop.harness,
                host,
                (node, AMQP_PORT),
                lambda: ClientConnection(capabilities),
            )
            assert isinstance(connection, Connection), "it was made here"
            await connection.opened()
        return connection

    async def channel(
        self, node: str, *, confirm: bool = False, capabilities: Mapping[str, Any] = CAPABILITIES
    ) -> Channel:
        """A channel on a connection of its own."""
        channel = await (await self.connect(node, capabilities)).channel()
        if confirm:
            await channel.confirm_select()
        return channel

    async def declare(self, queue: str, node: str = "n1", **options: Any) -> None:
        """A durable queue whose master is on that node."""
        channel = await self.channel(node)
        await channel.declare(queue, **options)
        channel.connection.close()

    async def publish(
        self, queue: str, contents: Sequence[bytes], node: str = "n1", *, is_persistent: bool = True, priority: int = 0
    ) -> None:
        """Publish and wait for every confirm."""
        try:
            await self.try_to_publish(queue, contents, node, is_persistent=is_persistent, priority=priority)
        except ClosedError as error:
            self.fail(f"publishes to {queue} were refused: {error}")

    async def try_to_publish(
        self, queue: str, contents: Sequence[bytes], node: str, *, is_persistent: bool = True, priority: int = 0
    ) -> None:
        """The same; raises `ClosedError` if the channel is closed before everything is confirmed."""
        channel = await self.channel(node, confirm=True)
        unconfirmed = set(range(1, len(contents) + 1))
        nacks: list[int] = []

        def answered(number: int, multiple: bool, is_ack: bool) -> None:
            unconfirmed.difference_update(range(1, number + 1) if multiple else (number,))
            if not is_ack:
                nacks.append(number)

        channel.on_confirm = answered
        for content in contents:
            publish_with(channel, queue, content, is_persistent=is_persistent, priority=priority)
        await self.until(lambda: not unconfirmed or channel.closed, f"confirms of {queue}")
        if nacks:
            self.fail(f"publishes to {queue} were refused: {nacks}")
        if channel.closed:
            raise channel.closed
        channel.connection.close()

    async def drain(self, queue: str, node: str) -> list[bytes]:
        """Consume and ack everything that is ready, in its order."""
        channel = await self.channel(node)
        contents: list[bytes] = []
        wanted = last_tag = 0

        def delivered(message: Delivered) -> None:
            nonlocal last_tag
            contents.append(message.body)
            last_tag = message.delivery_tag

        def has_come() -> bool:
            return len(contents) >= wanted or channel.closed is not None

        channel.on_deliver = delivered
        while ready := (await channel.declare(queue, passive=True))[0]:
            wanted = len(contents) + ready
            await channel.consume(queue, "drain")
            await self.until(has_come, f"{ready} messages of {queue}")
            await channel.cancel("drain")
            channel.ack(last_tag, multiple=True)
        await channel.close()
        channel.connection.close()
        return contents

    async def count(self, queue: str, node: str) -> int:
        """Ready messages, as a passive declare says."""
        channel = await self.channel(node)
        ready, _ = await channel.declare(queue, passive=True)
        channel.connection.close()
        return ready

    # --- operators ---

    async def ask(
        self, node: str, request: Callable[[AdminPort], Coroutine[Any, Any, Any]], limit_s: float = 30.0
    ) -> Any:
        """Have an operator ask a node. Raises what it raises."""
        return await self.within(self.sim.admin_doors[node].ask(request), f"an answer of {node}", limit_s)

    async def set_policy(
        self, definition: Mapping[str, Any], *, node: str = "", name: str = "ha", pattern: str = ""
    ) -> None:
        policy = PolicyRecord(VHOST, name, pattern, definition, 0, "queues")
        await self.ask(node or self.running()[0], lambda admin: admin.set_policy(policy))

    async def clear_policy(self, *, node: str = "", name: str = "ha") -> None:
        await self.ask(node or self.running()[0], lambda admin: admin.clear_policy(VHOST, name))

    async def sync(self, queue: str, node: str = "", limit_s: float = 60.0) -> None:
        """``sync_queue``, to its end."""
        await self.ask(node or self.running()[0], lambda admin: sync_to_the_end(admin, VHOST, queue), limit_s)

    async def cancel_sync(self, queue: str, node: str = "") -> None:
        await self.ask(node or self.running()[0], lambda admin: admin.cancel_sync_queue(VHOST, queue))

    async def list_queues(self, node: str, columns: Sequence[str], limit_s: float = 30.0) -> list[dict[str, Any]]:
        table: Table = await self.ask(node, lambda admin: admin.list_queues(VHOST, columns, QueueSelection()), limit_s)
        return table.as_dicts()

    # --- queues ---

    def state(self, name: str) -> MetadataState:
        """What a node knows of the cluster."""
        return self.node(name).runtime.metadata.state

    def newest(self) -> MetadataState:
        """What the node knows that has applied most."""
        return max(self.sim.nodes.values(), key=lambda node: node.raft.applied_index).runtime.metadata.state

    def queue(self, name: str) -> QueueRecord:
        found = self.newest().topology.queue(VHOST, name)
        return found if found is not None else self.fail(f"there is no queue {name}")

    def record(self, name: str) -> MastershipRecord:
        return self.newest().masterships[self.queue(name).queue_id]

    def placement(self, name: str) -> Placement:
        record = self.record(name)
        return Placement(str(record.master), tuple(record.mirrors), tuple(record.synchronised), is_down=record.is_down)

    def master(self, name: str) -> str:
        return str(self.record(name).master)

    def is_served(self, name: str) -> bool:
        """A master is in service, and its node plays the part."""
        record = self.record(name)
        return record.in_service and isinstance(self.role(name, record.master), MasterRole)

    async def served(self, name: str, by: str = "") -> None:
        """Wait until it is, by this node if one is named."""
        await self.until(
            lambda: self.is_served(name) and by in ("", self.master(name)), f"{name} is served {by and 'by'} {by}"
        )

    async def synchronised(self, name: str, *mirrors: str) -> None:
        """Wait until the synchronised mirrors are these, whatever their order."""
        await self.until(
            lambda: set(self.placement(name).synchronised) == set(mirrors) and self.is_served(name),
            f"{name} has synchronised mirrors on {', '.join(mirrors) or 'no node'}",
        )

    async def placed(self, name: str, master: str, *mirrors: str) -> None:
        """Wait until it is there."""

        def is_there() -> bool:
            placement = self.placement(name)
            return placement.master == master and set(placement.mirrors) == set(mirrors) and self.is_served(name)

        await self.until(is_there, f"{name} on {master}, mirrors on {', '.join(mirrors) or 'no node'}")

    async def following(self, name: str, mirror: str) -> None:
        """Wait until a mirror hears of everything, whatever it lacks."""
        await self.until(lambda: mirror in self.record(name).following, f"{mirror} follows {name}")

    def role(self, name: str, node: str) -> Role | None:
        found = self.sim.nodes.get(node)
        return None if found is None else found.runtime.queues.roles.get(self.queue(name).queue_id)

    def copy(self, name: str, node: str) -> list[bytes]:
        """Bodies of all live messages of the copy on a node, ready or not, in their order."""
        role = self.role(name, node)
        if role is None:
            self.fail(f"{node} has no copy of {name}")
        positions = [at for segment, _ in role.local.live_counts() for at in role.local.live_positions(segment)]
        return [decode_envelope(envelope)[0].body for _, envelope in role.local.read(positions)]

    def master_role(self, name: str) -> MasterRole:
        role = self.role(name, self.master(name))
        return role if isinstance(role, MasterRole) else self.fail(f"nobody serves {name}")


def _name(text: str) -> Any:
    return text


@asynccontextmanager
async def cluster(
    nodes: int = 3,
    *,
    seed: int = 0,
    policy: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    expected: Sequence[str] = (),
) -> AsyncIterator[Cluster]:
    """A cluster whose nodes n1, n2 ... all serve clients, with a policy for every queue.

    ``config``: fields of `node.config.NodeConfig`. ``expected``: words of mistakes that the case provokes.
    """
    c = Cluster(nodes, seed, config or {}, expected)
    WITNESSES.append(c)
    await c.start(*c.names)
    await c.whole()
    if policy is not None:
        await c.set_policy(policy)
    yield c
    c.end()


def _personality(seed: int, nodes: int) -> Personality:
    chance = Random(f"{seed} world")

    def pick(even: _T, *others: _T) -> _T:
        return chance.choice((even, *others)) if seed else even

    slowness = pick(1.0, 1.0, 3.0, 10.0)
    return Personality(
        nodes=nodes,
        queues=0,
        publishers=0,
        consumers=0,
        policy={},
        queue_version=pick(2, 1),
        is_lazy=False,
        is_flush=False,
        segment_entries=pick(64, 8, 16),
        embed_below_bytes=pick(4096, 0, 100),
        file_size_limit_bytes=pick(1_000_000, 4_000, 40_000),
        compaction=pick("holes", "merge"),
        link_delay_ms=(0.05 * slowness, 0.5 * slowness * pick(1, 4)),
        slow_chunks_percent=pick(0, 1, 5),
        sync_ms=(0.1, pick(0.5, 3.0, 20.0)),
        turn_cost_ms=(0.02, pick(0.05, 0.3, 2.0)),
        prefetch=0,
        persistent_percent=100,
        body_bytes_max=0,
        requeue_percent=0,
        hold_percent=0,
        faults=(),
        fault_every_ms=0,
    )

"""Everything that a run has on its stage: loop, cluster, clients, and how what happens is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from chaos.history import Event
from chaos.sim.client import Channel
from chaos.sim.cluster import SimulatedCluster
from chaos.sim.consumers import Consumer, Visitor
from chaos.sim.guests import Guest, Transactor
from chaos.sim.happenings import Happening, of_event
from chaos.sim.judge import Violation
from chaos.sim.loop import SimulatedLoop
from chaos.sim.schedule import Personality, Schedule
from chaos.sim.settings import limit_lengths
from chaos.sim.sometimes import Sightings
from chaos.sim.workers import Worker
from chaos.sim.workload import FAN_KEY, Client, Publisher, Surroundings, fan_name
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from cluster.transport.admin_port import AdminPort
from node.errors import WarrenError
from node.ids import QueueId
from node.store.disk.simulated import SimulatedCrashError

#: Of a run that fails early, the first violations say it all.
VIOLATIONS_MAX = 20
#: Steps that end no master.
CALM = frozenset({"publish", "fan_out", "consume", "cancel", "recover", "give_back", "flow"})
#: An operator gives a node so long.
OPERATOR_TIMEOUT_S = 5.0
#: Between two of them who asks again and again.
OPERATOR_PAUSE_S = 0.5
VHOST = "/"
#: Longer than a word takes on a quick link, shorter than a sync on a slow disk.
PARTING_S = 0.002
#: Where nobody listens.
NOWHERE = -1


def queue_name(queue: int) -> str:
    return f"q{queue}"


def queue_number(name: str) -> int | None:
    """The other way round; ``None`` if it is none of the workload's."""
    return int(name[1:]) if name[:1] == "q" and name[1:].isdigit() else None


def policy_record(definition: Any) -> PolicyRecord:
    """Of all queues."""
    return PolicyRecord(VHOST, "all", "", definition, 0, "queues")


@dataclass
class Stage:
    """See the module text."""

    schedule: Schedule
    loop: SimulatedLoop
    cluster: SimulatedCluster
    world: Surroundings
    on_line: Callable[[str], None] | None = None
    #: Hears of everything, also what clients do, which is in no story.
    on_happening: Callable[[Happening], None] | None = None
    violations: list[Violation] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    sightings: Sightings = field(default_factory=Sightings)
    #: Who is the master of a queue of the workload, by the newest record.
    master_of: Callable[[int], str | None] = lambda _queue: None
    #: Whether the cluster has taken a node for dead since a time, in microseconds.
    was_down: Callable[[str, int], bool] = lambda _node, _from_us: False
    #: Auto-delete queues of keepers that may not have had a consumer yet, by all that anybody knows.
    unconsumed: dict[str, None] = field(default_factory=dict)
    #: What somebody lies in wait for in nodes -> how the node ends then.
    node_moments: dict[str, str] = field(default_factory=dict)
    #: Purges and deletions that were asked for, each with the declaration that follows.
    removals: list[asyncio.Task[None]] = field(default_factory=list)
    #: Queue -> of each request to take something away, when it was made and when the queue was declared again.
    requests: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    #: What operators have asked for.
    operations: list[asyncio.Task[bool]] = field(default_factory=list)
    #: Ids of queues of which an operator has cancelled a synchronisation that was under way.
    cancelled_syncs: set[QueueId] = field(default_factory=set)

    def __post_init__(self) -> None:
        p = self.personality
        self.publishers = [Publisher(number, self.world, queue_name) for number in range(p.publishers)]
        self.consumers = [
            Consumer(
                number,
                self.world,
                queue_name,
                prefetch=p.prefetch,
                is_channel_wide=p.has_channel_limits,
                is_limit_kept=CALM.issuperset(step.kind for step in self.schedule.steps),
                requeue_percent=p.requeue_percent,
                hold_percent=p.hold_percent,
                reject_percent=p.reject_percent,
                kind=p.consumer_kinds[number % len(p.consumer_kinds)] if p.consumer_kinds else "",
            )
            for number in range(p.consumers)
        ]
        #: Queues that messages are to go to together.
        self._fans = sorted({tuple(step.args[1]) for step in self.schedule.steps if step.kind == "fan_out"})
        if self.on_line is not None or self.on_happening is not None:
            self.world.history.on_event = self.client_event
        self.workers = [
            Worker(number, self.world, queue_name, prefetch=p.prefetch, is_channel_wide=p.has_channel_limits)
            for number in range(p.workers)
        ]
        self.visitor = Visitor("v", self.world, queue_name)
        self.transactors = [Transactor(number, self.world, queue_name) for number in range(p.transactors)]
        self.world.answers.has_tenants = any(step.kind == "tenancy" for step in self.schedule.steps)
        self._is_limited = limit_lengths(self.schedule.steps)
        #: Names of queues -> when which node gave its copy up.
        self.given_up: dict[str, list[tuple[int, str]]] = {}
        self.guests = [
            Guest(number, self.world, queue_name, is_remembered=self.is_remembered, may_skip=self._may_skip)
            for number in range(p.guests)
        ]

    @property
    def personality(self) -> Personality:
        return self.schedule.personality

    @property
    def is_remembered(self) -> bool:
        """The cluster has that a queue was consumed committed: no member is of a release that does not know that."""
        return not self.personality.earlier

    def _may_skip(self, queue_name: str) -> bool:
        """What nobody has confirmed may be missing in the midst of a queue of which nobody keeps account. A disk that
        ended its only copy may be of another life of the node by now."""
        is_suspect = any(machine.is_disk_suspect for machine in self.cluster.machines.values())
        return self._is_limited or is_suspect or queue_name in self.given_up

    def clients(self) -> Iterator[Client]:
        """All that live on until they are stopped."""
        yield from self.publishers
        yield from self.transactors
        yield from self.consumers
        yield from self.workers

    def tell(self, text: str, kind: str = "log", lane: str = "", *, begins: str = "", ends: str = "") -> None:
        """Into the story. See `chaos.sim.happenings` for what there is besides the text."""
        self.story.append(f"{self.loop.now_s:10.4f} {text}")
        if self.on_line is not None or self.on_happening is not None:
            self._happened(Happening(int(self.loop.now_s * 1e6), lane, kind, text, None, begins, ends))

    def _happened(self, happening: Happening) -> None:
        if self.on_line is not None:
            self.on_line(happening.line)
        if self.on_happening is not None:
            self.on_happening(happening)

    def client_event(self, event: Event, name: str) -> None:
        """Heard only if somebody listens: a client, or an observer, has recorded this."""
        happening = of_event(event, name)
        if happening is not None:
            self._happened(happening)

    def violate(self, kind: str, text: str) -> None:
        self.found(Violation(kind, text))

    def found(self, violation: Violation) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(violation)
        self.tell(f"VIOLATION {violation}", "violation")

    def node_moment(self, moment: str, name: str, about: str = "") -> None:
        """This can be said of a node now, in whose turn we are; ``about`` another, perhaps."""
        end = self.node_moments.pop(moment, None)
        if end is None:
            return
        self.tell(f"{name}: {moment} {about}")
        harness = self.loop.harness
        if end == "power_and_part":
            # What it has sent arrives, and what it has written is not synced yet.
            harness.call_later(PARTING_S, self.cluster.power, name)
            for source, target in ((name, about), (about, name)):
                harness.call_later(PARTING_S, self.cluster.cut, source, target)
            return
        if end.startswith("isolate"):
            self.cluster.isolate(name)  # what it says from now on is lost
        if end != "isolate":
            harness.call_soon(getattr(self.cluster, end.removeprefix("isolate_")), name)

    def is_of_workload(self, name: str) -> bool:
        """Whether a queue of this name may be left in the end."""
        may_stay = (
            name in self.cluster.consumed_in_secret
            or name in self.unconsumed
            or any(name in guest.may_stay for guest in self.guests)
        )
        return may_stay or queue_number(name) is not None

    async def declare(self, queue: int) -> None:
        """A queue of the workload, as long as it takes."""
        arguments = self.queue_arguments()

        async def ask(channel: Channel) -> None:
            await channel.declare(queue_name(queue), arguments=arguments)
            for fan in self._fans:
                if queue in fan:
                    await channel.declare_exchange(fan_name(fan))
                    await channel.bind(queue_name(queue), fan_name(fan), FAN_KEY)

        await self.visitor.insist(ask)

    async def declare_all(self) -> None:
        """The queues of the workload, one after the other."""
        for queue in range(self.personality.queues):
            await self.declare(queue)

    def queue_arguments(self) -> dict[str, Any]:
        p = self.personality
        arguments: dict[str, Any] = {"x-queue-mode": "lazy"} if p.is_lazy else {}
        if p.overflow:
            arguments |= {"x-overflow": p.overflow, "x-max-length": p.length_max}
        if p.has_single_active:
            arguments |= {"x-single-active-consumer": True}
        return arguments

    async def operated(self, ask: Callable[[AdminPort], Coroutine[Any, Any, Any]], *, at: str = "") -> bool:
        """Have an operator ask the nodes one after the other, or one of them; whether one did it."""
        doors = self.cluster.admin_doors
        alone = [name for name in doors if self.cluster.is_alone(name)]
        for door in [door for name, door in doors.items() if (name == at if at else name not in alone)]:
            try:
                async with asyncio.timeout(OPERATOR_TIMEOUT_S):
                    await door.ask(ask)
            except (WarrenError, TimeoutError, SimulatedCrashError) as error:
                self.tell(f"refused: {error}")
            else:
                return True
        return False

    def is_everywhere(self, is_so: Callable[[MetadataState], bool]) -> bool:
        """Whether every node runs, and has it in its metadata."""
        states = [node.runtime.metadata.state for node in self.cluster.nodes.values()]
        return len(states) == len(self.cluster.machines) and all(map(is_so, states))

    def finish(self, coroutine: Coroutine[Any, Any, Any], limit_s: float, what: str) -> bool:
        """Run until this is done; a violation if it takes too long."""
        task = self.visitor.process.create_task(coroutine)
        self.loop.run_until(self.loop.now_s + limit_s, lambda: task.done() or bool(self.violations))
        if not task.done():
            self.violate("stuck", f"{what} has not come to an end in {limit_s:g} s")
            return False
        task.result()
        return not self.violations


def place(error: object) -> str:
    """Where it was raised."""
    trace = error.__traceback__ if isinstance(error, BaseException) else None
    if trace is None:
        return ""
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f" ({' > '.join(places[-6:])})"

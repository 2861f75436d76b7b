"""What one seed does: a personality drawn once, and a list of steps that any part can be taken out of.

**Personality.** Every seed draws its own kind of world: how large, how fast, under which policy, with which faults at
all. A fault that is possible everywhere at a low rate meets nothing; one that a seed has chosen comes thick and fast
(FoundationDB's "buggify", TigerBeetle's swarm).

**Steps.** Everything that is done to the cluster, by its clients, its operator and the faults, is data: a time, a kind
and arguments. A schedule is therefore printed, replayed and *shrunk*: a failing one is run again with parts of it left
out, and what is left explains itself. For that each step carries all it needs. (Delays and the like are still drawn
from generators that all share, so what is left runs at other moments than before.)

A fault that lasts (a cut, a pause) is a pair of steps, *begin* and *end*; taking the end away leaves it until the
*heal* at the end of the run. Steps that make no sense where they come (a kill of a dead node) do nothing.

The run has three parts: steps until `Schedule.steps_end_ms`; then everything is healed and started, and the cluster has
`Schedule.quiet_ms` to converge; then it is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

#: Messages of one publish step at most.
BURST_MAX = 12
#: Faults that one seed may choose from, and how long each lasts (ms, shortest and longest).
FAULTS: Mapping[str, tuple[int, int]] = {
    "kill": (50, 8_000),
    "power": (50, 8_000),
    "power_all": (200, 3_000),
    "stop": (200, 6_000),
    "pause": (20, 9_000),
    "cut": (20, 9_000),
    "cut_one_way": (20, 9_000),
    "isolate": (20, 9_000),
    "swizzle": (500, 6_000),
    "reset": (0, 0),
    "refuse": (100, 4_000),
    "slow_link": (100, 6_000),
    "slow_disk": (100, 6_000),
    "full_disk": (300, 5_000),
    "fail_sync": (0, 0),
    "clock_jump": (0, 0),
    "wipe": (50, 12_000),
}


class Step(NamedTuple):
    """Something that is done at a time; ``args`` are numbers and strings."""

    at_ms: int
    kind: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:8.3f} {self.kind} {' '.join(map(str, self.args))}".rstrip()


@dataclass(frozen=True)
class Personality:
    """What a seed's world is like. Times in milliseconds."""

    nodes: int
    queues: int
    publishers: int
    consumers: int
    policy: Mapping[str, Any]
    queue_version: int
    is_lazy: bool
    is_flush: bool
    segment_entries: int
    embed_below_bytes: int
    file_size_limit_bytes: int
    compaction: str
    link_delay_ms: tuple[float, float]
    #: Of a hundred chunks, so many take ten times as long.
    slow_chunks_percent: int
    sync_ms: tuple[float, float]
    turn_cost_ms: tuple[float, float]
    prefetch: int
    persistent_percent: int
    body_bytes_max: int
    #: Of a hundred deliveries, so many are given back instead of acked, and so many held until the channel ends.
    requeue_percent: int
    hold_percent: int
    faults: tuple[str, ...]
    #: Pause between two faults, on average.
    fault_every_ms: int


@dataclass(frozen=True)
class Schedule:
    """Everything about one run."""

    seed: int
    personality: Personality
    steps: tuple[Step, ...]
    steps_end_ms: int
    quiet_ms: int = 40_000

    def without(self, gone: frozenset[int]) -> Schedule:
        """The same without the steps at these positions."""
        kept = tuple(step for position, step in enumerate(self.steps) if position not in gone)
        return Schedule(self.seed, self.personality, kept, self.steps_end_ms, self.quiet_ms)


def node_name(number: int) -> str:
    """Nodes count from 1."""
    return f"n{number}"


def draw_personality(chance: Random, nodes: int) -> Personality:
    """See `Personality`."""
    slowness = chance.choice((1, 1, 1, 3, 10))
    faults = [fault for fault in FAULTS if chance.random() < 0.25] or [chance.choice(list(FAULTS))]
    return Personality(
        nodes=nodes,
        queues=chance.choice((1, 1, 2, 3)),
        publishers=chance.choice((1, 2, 3)),
        consumers=chance.choice((0, 1, 2, 3)),
        policy=draw_policy(chance, nodes),
        queue_version=chance.choice((1, 2, 2)),
        is_lazy=chance.random() < 0.2,
        is_flush=chance.random() < 0.1,
        segment_entries=chance.choice((8, 16, 64)),
        embed_below_bytes=chance.choice((0, 100, 4096)),
        file_size_limit_bytes=chance.choice((4_000, 40_000, 1_000_000)),
        compaction=chance.choice(("holes", "merge")),
        link_delay_ms=(0.05 * slowness, 0.5 * slowness * chance.choice((1, 1, 4))),
        slow_chunks_percent=chance.choice((0, 0, 1, 5)),
        sync_ms=(0.1, chance.choice((0.5, 3, 20))),
        turn_cost_ms=(0.02, chance.choice((0.05, 0.3, 2.0))),
        prefetch=chance.choice((1, 3, 10, 100)),
        persistent_percent=chance.choice((100, 100, 50, 0)),
        body_bytes_max=chance.choice((50, 50, 500, 9_000)),
        requeue_percent=chance.choice((0, 0, 10, 40)),
        hold_percent=chance.choice((0, 10, 50)),
        faults=tuple(faults),
        fault_every_ms=chance.choice((400, 1_500, 4_000)),
    )


def draw_policy(chance: Random, nodes: int) -> dict[str, Any]:
    """A mirroring policy, and rarely none."""
    mode = chance.choice(("all", "all", "exactly", "nodes", None))
    if mode is None:
        return {}
    policy: dict[str, Any] = {"ha-mode": mode}
    if mode == "exactly":
        policy["ha-params"] = chance.randint(2, nodes)
    if mode == "nodes":
        policy["ha-params"] = [node_name(n) for n in chance.sample(range(1, nodes + 1), chance.randint(1, nodes))]
    if chance.random() < 0.6:
        policy["ha-sync-mode"] = chance.choice(("automatic", "automatic", "manual"))
    if chance.random() < 0.6:
        policy["ha-promote-on-failure"] = chance.choice(("when-synced", "when-synced", "always"))
    if chance.random() < 0.3:
        policy["ha-promote-on-shutdown"] = chance.choice(("when-synced", "always"))
    return policy


@dataclass
class _Drawing:
    """The steps of one seed as they are drawn."""

    chance: Random
    personality: Personality
    end_ms: int
    steps: list[Step] = field(default_factory=list)

    def at(self, at_ms: float, kind: str, *args: Any) -> None:
        self.steps.append(Step(int(at_ms), kind, args))

    def any_node(self) -> str:
        return node_name(self.chance.randint(1, self.personality.nodes))

    def two_nodes(self) -> tuple[str, str]:
        one, other = self.chance.sample(range(1, self.personality.nodes + 1), 2)
        return node_name(one), node_name(other)

    def workload(self, operations: int) -> None:
        """Publishes most of all, and what else clients and operators do."""
        chance, p = self.chance, self.personality
        for consumer in range(p.consumers):
            self.at(chance.uniform(0, self.end_ms / 2), "consume", consumer, chance.randrange(p.queues))
        done = 0
        while done < operations:
            at_ms = chance.uniform(0, self.end_ms)
            queue = chance.randrange(p.queues)
            kind = chance.choices(("publish", "get", "rest"), (80, 8, 12))[0]
            if kind == "publish":
                burst = chance.randint(1, BURST_MAX)
                size = chance.randint(0, p.body_bytes_max)
                is_persistent = chance.randrange(100) < p.persistent_percent
                self.at(at_ms, "publish", chance.randrange(p.publishers), queue, burst, size, int(is_persistent))
                done += burst
            elif kind == "get":
                self.at(at_ms, "get", queue)
                done += 1
            else:
                self._rare(at_ms, queue)
                done += 1

    def _rare(self, at_ms: float, queue: int) -> None:
        chance, p = self.chance, self.personality
        kind = chance.choice(
            (
                "reconnect",
                "recover",
                "consume",
                "cancel",
                "sync",
                "cancel_sync",
                "purge",
                "policy",
                "delete",
                "restart_consumer",
            )
        )
        if kind in ("consume", "cancel", "recover", "restart_consumer"):
            if p.consumers:
                self.at(at_ms, kind, chance.randrange(p.consumers), queue)
        elif kind == "reconnect":
            self.at(at_ms, kind, chance.randrange(p.publishers))
        elif kind in ("purge", "delete") and chance.random() < 0.7:
            return  # they take everything away that could be lost
        elif kind == "policy":
            self.at(at_ms, kind, draw_policy(chance, p.nodes))
        else:
            self.at(at_ms, kind, queue)

    def faults(self) -> None:
        """Faults of the kinds that this seed has chosen, one after the other or at once."""
        chance, p = self.chance, self.personality
        at_ms = chance.uniform(500, 4_000)
        while at_ms < self.end_ms:
            kind = chance.choice(p.faults)
            shortest, longest = FAULTS[kind]
            lasts_ms = shortest * (longest / shortest) ** chance.random() if shortest else 0
            getattr(self, f"_{kind}", self._plain)(kind, at_ms, at_ms + lasts_ms)
            at_ms += chance.expovariate(1 / p.fault_every_ms)

    def _plain(self, kind: str, at_ms: float, end_ms: float) -> None:
        """A fault of one node that lasts for a time."""
        node = self.any_node()
        self.at(at_ms, kind, node)
        if end_ms > at_ms:
            self.at(end_ms, {"kill": "start", "power": "start", "stop": "start"}.get(kind, f"{kind}_end"), node)

    def _power_all(self, _kind: str, at_ms: float, end_ms: float) -> None:
        """Everything at once; the nodes come back in some order, some perhaps not before the end."""
        nodes = [node_name(number) for number in range(1, self.personality.nodes + 1)]
        self.at(at_ms, "power", *nodes)
        for node in self.chance.sample(nodes, len(nodes)):
            if self.chance.random() < 0.8:
                self.at(end_ms, "start", node)
            end_ms += self.chance.choice((0, 10, 800, 3_000))

    def _cut(self, _kind: str, at_ms: float, end_ms: float) -> None:
        one, other = self.two_nodes()
        for a, b in ((one, other), (other, one)):
            self.at(at_ms, "cut", a, b)
            self.at(end_ms, "cut_end", a, b)

    def _cut_one_way(self, _kind: str, at_ms: float, end_ms: float) -> None:
        one, other = self.two_nodes()
        self.at(at_ms, "cut", one, other)
        self.at(end_ms, "cut_end", one, other)

    def _isolate(self, _kind: str, at_ms: float, end_ms: float) -> None:
        """One group of nodes against the rest."""
        p = self.personality
        nodes = [node_name(number) for number in range(1, p.nodes + 1)]
        group = self.chance.sample(nodes, self.chance.randint(1, p.nodes - 1))
        for one in group:
            for other in nodes:
                if other not in group:
                    for a, b in ((one, other), (other, one)):
                        self.at(at_ms, "cut", a, b)
                        self.at(end_ms, "cut_end", a, b)

    def _swizzle(self, _kind: str, at_ms: float, end_ms: float) -> None:
        """Links cut one by one, and healed in another order: it finds what no clean partition does."""
        p = self.personality
        links = [(node_name(a), node_name(b)) for a in range(1, p.nodes + 1) for b in range(1, p.nodes + 1) if a != b]
        chosen = self.chance.sample(links, self.chance.randint(2, len(links)))
        middle_ms = (at_ms + end_ms) / 2
        for link in chosen:
            self.at(self.chance.uniform(at_ms, middle_ms), "cut", *link)
            self.at(self.chance.uniform(middle_ms, end_ms), "cut_end", *link)

    def _reset(self, _kind: str, at_ms: float, _end_ms: float) -> None:
        one, other = self.two_nodes()
        told = self.chance.choice(("both", "both", "one", "other"))
        self.at(at_ms, "reset", one, other, told, self.chance.randrange(100))

    def _refuse(self, kind: str, at_ms: float, end_ms: float) -> None:
        one, other = self.two_nodes()
        self.at(at_ms, kind, one, other)
        self.at(end_ms, "refuse_end", one, other)
        if self.chance.random() < 0.5:
            self.at(at_ms + 1, "reset", one, other, "both", 0)

    def _slow_link(self, kind: str, at_ms: float, end_ms: float) -> None:
        one, other = self.two_nodes()
        self.at(at_ms, kind, one, other, self.chance.choice((10, 100, 1000)))
        self.at(end_ms, "slow_link_end", one, other)

    def _slow_disk(self, kind: str, at_ms: float, end_ms: float) -> None:
        node = self.any_node()
        self.at(at_ms, kind, node, self.chance.choice((10, 100, 1000)))
        self.at(end_ms, "slow_disk_end", node)

    def _clock_jump(self, kind: str, at_ms: float, _end_ms: float) -> None:
        self.at(at_ms, kind, self.any_node(), self.chance.choice((100, 2_000, 20_000)))


def draw_schedule(seed: int, nodes: int = 3, operations: int = 200, length_ms: int = 20_000) -> Schedule:
    """The schedule of a seed. The same for ever, as long as this module stays as it is."""
    personality = draw_personality(Random(f"{seed} personality"), nodes)
    drawing = _Drawing(Random(f"{seed} workload"), personality, length_ms)
    drawing.workload(operations)
    drawing.chance = Random(f"{seed} faults")
    drawing.faults()
    # Python's sort keeps the order in which steps of one time were drawn.
    steps = tuple(sorted(drawing.steps, key=lambda step: step.at_ms))
    return Schedule(seed, personality, steps, max([length_ms, *(step.at_ms for step in steps)]) + 1)

"""What the scenarios are drawn with: a small world, some traffic, and steps at drawn times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from chaos.sim.drawing import drawn_for
from chaos.sim.schedule import Personality, Schedule, Step, node_name

#: Every queue on every node, filled by itself; and its opposite.
ALL_AUTOMATIC = {"ha-mode": "all", "ha-sync-mode": "automatic"}
ALL_MANUAL = {"ha-mode": "all", "ha-sync-mode": "manual"}


def automatic_on(nodes: Sequence[str]) -> dict[str, object]:
    """Every queue on these nodes, and filled by itself."""
    return {"ha-mode": "nodes", "ha-params": list(nodes), "ha-sync-mode": "automatic"}


@dataclass
class Scene:
    """The steps of one seed of a scenario as they are drawn. Times in milliseconds."""

    seed: int
    chance: Random
    personality: Personality
    length_ms: int
    steps: list[Step] = field(default_factory=list)

    def at(self, at_ms: float, kind: str, *args: Any) -> None:
        """One step."""
        self.steps.append(Step(max(0, int(at_ms)), kind, args))

    @property
    def nodes(self) -> list[str]:
        return [node_name(number) for number in range(1, self.personality.nodes + 1)]

    def any_node(self, *but: str) -> str:
        """Another than these."""
        return self.chance.choice([node for node in self.nodes if node not in but])

    def any_queue(self) -> int:
        return self.chance.randrange(self.personality.queues)

    def shuffled(self) -> list[str]:
        """All nodes in some order."""
        return self.chance.sample(self.nodes, len(self.nodes))

    def publish(self, at_ms: float, queue: int | None = None, *, burst: int = 0) -> None:
        """A few messages of some publisher, or ``burst``."""
        chance, p = self.chance, self.personality
        queue = self.any_queue() if queue is None else queue
        burst = burst or chance.randint(1, 8)
        is_persistent = int(chance.randrange(100) < p.persistent_percent)
        size = chance.randint(0, p.body_bytes_max)
        self.at(at_ms, "publish", chance.randrange(p.publishers), queue, burst, size, is_persistent, 0)

    def traffic(self, begin_ms: float, end_ms: float, count: int) -> None:
        """So many publishes between two times; consumers begin at the first of them."""
        for consumer in range(self.personality.consumers):
            self.at(begin_ms, "consume", consumer, self.any_queue())
        for _ in range(count):
            self.publish(self.chance.uniform(begin_ms, end_ms))

    def cut(self, one: str, other: str, at_ms: float, end_ms: float) -> None:
        """Both ways."""
        for a, b in ((one, other), (other, one)):
            self.at(at_ms, "cut", a, b)
            self.at(end_ms, "cut_end", a, b)

    def change(self, **fields: Any) -> None:
        """What this scenario wants of its world."""
        self.personality = replace(self.personality, **fields)

    def schedule(self, scenario: str) -> Schedule:
        """What was drawn, in the order of time."""
        # Python's sort keeps the order in which steps of one time were drawn.
        steps = tuple(sorted(self.steps, key=lambda step: step.at_ms))
        end_ms = max([self.length_ms, *(step.at_ms for step in steps)]) + 1
        return Schedule(self.seed, self.personality, steps, end_ms, scenario=scenario)


class Scenario(NamedTuple):
    """A narrow distribution of schedules, aimed at one thing."""

    name: str
    #: One line for those who choose.
    about: str
    #: Fill a scene; the number is how much of clients' traffic there should be.
    play: Callable[[Scene, int], None]
    #: Virtual time of the steps and traffic, unless told otherwise.
    length_ms: int = 6_000
    operations: int = 30
    #: Fewer make no sense.
    nodes_min: int = 3

    def draw(self, seed: int, nodes: int, operations: int | None = None, length_ms: int | None = None) -> Schedule:
        """The schedule of a seed. The same for ever, as long as the scenario stays as it is."""
        nodes = max(nodes, self.nodes_min)
        chance = drawn_for(seed, "scenario", self.name)
        scene = Scene(seed, chance, small_world(chance, nodes), length_ms or self.length_ms)
        self.play(scene, operations or self.operations)
        return scene.schedule(self.name)


def small_world(chance: Random, nodes: int) -> Personality:
    """One or two queues, quick links, and no fault but those of the scenario."""
    return Personality(
        nodes=nodes,
        queues=chance.choice((1, 1, 2)),
        publishers=chance.choice((1, 2, 3)),
        consumers=chance.choice((0, 1, 1)),
        policy=ALL_AUTOMATIC,
        queue_version=chance.choice((1, 2)),
        is_lazy=chance.random() < 0.2,
        is_flush=False,
        segment_entries=chance.choice((8, 16)),
        embed_below_bytes=chance.choice((0, 4096)),
        file_size_limit_bytes=chance.choice((4_000, 40_000)),
        compaction=chance.choice(("holes", "merge")),
        link_delay_ms=(0.05, chance.choice((0.5, 2.0))),
        slow_chunks_percent=chance.choice((0, 0, 5)),
        sync_ms=(0.1, chance.choice((0.5, 3, 20))),
        turn_cost_ms=(0.02, chance.choice((0.05, 0.3))),
        prefetch=chance.choice((1, 3, 10)),
        persistent_percent=chance.choice((100, 100, 50)),
        body_bytes_max=chance.choice((50, 500)),
        requeue_percent=chance.choice((0, 0, 20)),
        hold_percent=chance.choice((0, 10, 50)),
        faults=(),
        fault_every_ms=0,
    )

"""The order of what scenarios do, on stand-ins for the cluster and the clients."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.cluster_under_test.protocol import QueueSample
from chaos.scenarios import steps
from chaos.scenarios.model import RunOptions, Stage

NODES = ["n1", "n2", "n3"]


class StandIn:
    """A queue whose oldest mirror is promoted at once, and whose mirrors return at once."""

    def __init__(self, *, is_automatic: bool, nodes: list[str]) -> None:
        self.is_automatic = is_automatic
        self.mirrors = nodes[1:]
        self.synchronised = nodes[1:]
        self.master = nodes[0]
        self.promotions = 0
        self.confirmed_count = 0
        self.story: list[str] = []
        self.view = self

    @property
    def last(self) -> QueueSample:
        return QueueSample("q", self.master, tuple(self.mirrors), tuple(self.synchronised), 0, 0)

    # nemesis
    async def kill(self, node: str) -> None:
        self.story.append(f"kill {node}")
        if node == self.master:
            self.master = self.mirrors.pop(0)
            self.synchronised = [mirror for mirror in self.synchronised if mirror != self.master]
            self.promotions += 1
        else:
            self.mirrors.remove(node)
            self.synchronised.remove(node)

    async def restart(self, node: str, _: float) -> None:
        self.story.append(f"restart {node}")
        self.mirrors.append(node)
        if self.is_automatic:
            self.synchronised.append(node)

    # observer
    async def wait_promotion(self, count: int, _: float) -> None:
        assert self.promotions == count
        self.story.append(f"promoted {self.master}")

    async def wait_streaming(self, mirrors: set[str], _: float) -> None:
        assert mirrors <= set(self.mirrors)
        self.story.append(f"streaming to {' '.join(sorted(mirrors))}")

    async def wait_synchronised(self, count: int, _: float) -> None:
        assert len(self.synchronised) == count
        self.story.append("synchronised")

    async def wait_mirrors(self, mirrors: set[str], _: float) -> None:
        assert set(self.mirrors) == mirrors

    # traffic
    def start_consumers(self) -> None:
        self.story.append("consume")

    def publish_without_limit(self) -> None:
        self.story.append("publish")

    async def publish(self, count: int, _: float) -> None:
        self.story.append(f"publish {count}")
        self.confirmed_count += count

    async def wait_for(self, condition: Any, _: str, __: float) -> None:
        while not condition():
            self.confirmed_count += 100


def stage_on(world: StandIn, nodes: list[str], options: RunOptions) -> Stage:
    log = SimpleNamespace(record=lambda *_, **__: None)
    cluster = SimpleNamespace(nodes=nodes)
    anything = cast("Any", world)
    return Stage(
        cast("Any", cluster), anything, anything, anything, cast("Any", log), random.Random(1), options, lambda _: None
    )


async def test_kill_master_kills_each_master_in_turn_and_only_when_synchronised() -> None:
    world = StandIn(is_automatic=True, nodes=NODES)
    await steps.kill_master(stage_on(world, NODES, RunOptions(messages=20_000, failovers=2)))
    assert world.story == [
        "consume", "publish",
        "kill n1", "promoted n2", "restart n1", "synchronised",
        "kill n2", "promoted n3", "restart n2", "synchronised",
    ]  # fmt: skip
    assert world.confirmed_count >= 20_000


async def test_unsafe_promotion_consumes_nothing_before_the_promotion() -> None:
    world = StandIn(is_automatic=False, nodes=NODES[:2])
    await steps.unsafe_promotion(stage_on(world, NODES, RunOptions(messages=100, failovers=1)))
    assert world.story == [
        "kill n2", "publish 50", "restart n2", "streaming to n2", "publish 50", "kill n1", "promoted n2",
        "restart n1", "consume", "publish 50",
    ]  # fmt: skip


async def test_unsafe_promotion_refuses_a_safe_one() -> None:
    world = StandIn(is_automatic=True, nodes=NODES[:2])
    with pytest.raises(steps.ScenarioError, match="n2 is synchronised"):
        await steps.unsafe_promotion(stage_on(world, NODES, RunOptions(messages=100, failovers=1)))


async def test_control_hurts_nobody() -> None:
    world = StandIn(is_automatic=True, nodes=NODES)
    await steps.control(stage_on(world, NODES, RunOptions(messages=100, failovers=0)))
    assert world.story == ["consume", "publish 100"]

"""A cluster that is only a list of what was done to it, for tests of whoever conducts a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from chaos.harm.lines import Line, all_lines
from chaos.plan.actions import Capability
from chaos.plan.model import ClusterPlan
from chaos.targets.target import Endpoint, NodeFacts, NotNow, QueueView, TargetError


class ScriptedTarget:
    """Satisfies `chaos.targets.target.Target`."""

    kind = "scripted"

    def __init__(self, nodes: int = 3) -> None:
        self.numbers = list(range(1, nodes + 1))
        #: What was done, in order.
        self.done: list[tuple[Any, ...]] = []
        self.down: set[int] = set()
        self.paused: set[int] = set()
        #: Nodes that answer nobody.
        self.deaf: set[int] = set()
        #: Nodes that will not start.
        self.failing: set[int] = set()
        #: What every node says of the queues.
        self.views: dict[str, QueueView] = {}

    # --- target

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability)

    @property
    def missing(self) -> Mapping[Capability, str]:
        return {}

    @property
    def nodes_max(self) -> int:
        return len(self.numbers)

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        return [NodeFacts(number, f"n{number}") for number in self.numbers]

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint(number, f"amqp://127.0.0.1:{number}/") for number in self.numbers]

    @property
    def lines(self) -> ScriptedLines:
        return ScriptedLines(self)

    @property
    def guest(self) -> None:
        return None

    def is_running(self, node: int) -> bool:
        return node not in self.down | self.paused

    async def start(self, plan: ClusterPlan, needs: Collection[Capability] = frozenset()) -> None:
        self.done.append(("begin", plan.nodes))

    async def wait_ready(self, nodes: Sequence[int] | None = None, timeout_s: float = 90.0) -> None:
        self.done.append(("wait ready", *(nodes or ())))

    async def kill(self, nodes: Sequence[int]) -> None:
        self.done.append(("kill", *nodes))
        self.down |= set(nodes)

    async def stop(self, node: int) -> None:
        self.done.append(("stop", node))
        self.down.add(node)

    async def start_node(self, node: int) -> None:
        assert node in self.down, "only who is down is started"
        if node in self.failing:
            raise TargetError(f"n{node}: it does not start")
        self.done.append(("start", node))
        self.down.discard(node)

    async def pause(self, node: int) -> None:
        self.done.append(("pause", node))
        self.paused.add(node)

    async def resume(self, node: int) -> None:
        self.done.append(("resume", node))
        self.paused.discard(node)

    async def hurt(self, name: str, node: int, arguments: Mapping[str, Any]) -> None:
        self.check_hears(node)
        self.done.append((name, node, dict(arguments)))

    async def unhurt(self, name: str, node: int) -> None:
        self.check_hears(node)
        self.done.append((f"no more {name}", node))

    async def wipe(self, node: int) -> None:
        self.done.append(("wipe", node))

    def operator(self, node: int) -> ScriptedOperator:
        return ScriptedOperator(self, node)

    def check_hears(self, node: int) -> None:
        if node in self.deaf or not self.is_running(node):
            raise NotNow(f"n{node} does not answer")

    async def close(self) -> None:
        self.done.append(("close",))


class ScriptedLines:
    """All that there can be."""

    def __init__(self, target: ScriptedTarget) -> None:
        self._target = target

    @property
    def lines(self) -> frozenset[Line]:
        return all_lines(self._target.numbers, with_clients=True)

    def addresses(self) -> Mapping[Line, str]:
        return {}

    async def lay(self, number: int, fault: str, on: Iterable[Line], told: Mapping[str, Any]) -> None:
        self._target.done.append(("lay", number, fault, sorted(line.proxy for line in on)))

    async def lift(self, number: int, only: Line | None = None) -> None:
        self._target.done.append(("lift", number))


class ScriptedOperator:
    """Of one node."""

    def __init__(self, target: ScriptedTarget, node: int) -> None:
        self._target = target
        self._node = node

    def _order(self, *order: Any) -> None:
        self._target.check_hears(self._node)
        self._target.done.append((*order, f"at n{self._node}"))

    async def queues(self) -> list[QueueView]:
        self._target.check_hears(self._node)
        return list(self._target.views.values())

    async def running(self) -> list[int]:
        return [node for node in self._target.numbers if self._target.is_running(node)]

    async def set_policy(self, name: str, pattern: str, definition: Mapping[str, Any]) -> None:
        self._order("set policy", name, pattern, dict(definition))

    async def clear_policy(self, name: str) -> None:
        self._order("clear policy", name)

    async def sync(self, queue: str) -> None:
        self._order("sync", queue)

    async def cancel_sync(self, queue: str) -> None:
        self._order("cancel sync", queue)

    async def purge(self, queue: str) -> None:
        self._order("purge", queue)

    async def close(self) -> None: ...

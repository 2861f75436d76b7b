"""How long the metadata of many queues hold a node's loop: declare, bind, nodes up and down, policy, snapshot, restore.

Run it from the repository's root: ``python -m tests.bench.metadata_bench [--queues 10000] [--bindings 50000]``.
Prints one JSON line: rates per second, and seconds of the longest of ``ROUNDS`` for what happens as one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import count

from cluster.metadata.commands import ChangeTopology, Command, NodeDown, NodeUp, Request, RequestId, SetPolicy
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from node.ids import Incarnation, NodeName
from node.topology.commands import Bind, CreateVhost, DeclareExchange, DeclareQueue

NODES = [NodeName(f"n{number}") for number in (1, 2, 3)]
ROUNDS = 3


class Applier:
    """A state, and entries that it applies."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self._numbers = count(1)
        self._incarnation = Incarnation(1)

    def apply(self, *commands: Command) -> float:
        """Seconds that they took."""
        requests = []
        for command in commands:
            number = next(self._numbers)
            requests.append((number, Request(RequestId(NODES[0], self._incarnation, number), command)))
        began = time.perf_counter()
        for number, request in requests:
            applied = self.state.apply(number, request)
            assert applied.error is None, applied.error
        return time.perf_counter() - began


def longest(measure: Callable[[], float]) -> float:
    return round(max(measure() for _ in range(ROUNDS)), 4)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--bindings", type=int, default=50_000)
    given = parser.parse_args()
    applier = Applier()
    applier.apply(ChangeTopology(CreateVhost("/"), NODES[0]))
    applier.apply(*(NodeUp(node, Incarnation(1), f"{node}:1", f"{node}:2", 2) for node in NODES))
    two = {"ha-mode": "exactly", "ha-params": 2}
    policies = [PolicyRecord("/", f"p{number}", f"^other{number}", two, 5, "queues") for number in range(9)]
    policies.append(PolicyRecord("/", "ha", ".*", {"ha-mode": "all"}, 1, "queues"))
    applier.apply(*map(SetPolicy, policies))
    queues = [DeclareQueue("/", f"queue.{number:05}", durable=True) for number in range(given.queues)]
    declare_s = applier.apply(*(ChangeTopology(queue, NODES[number % 3]) for number, queue in enumerate(queues)))
    applier.apply(ChangeTopology(DeclareExchange("/", "events", "topic", durable=True), NODES[0]))
    binds = [
        Bind("/", "events", queues[number % given.queues].name, "queue", f"key.{number}", {})
        for number in range(given.bindings)
    ]
    bind_s = applier.apply(*(ChangeTopology(bind, NODES[0]) for bind in binds))
    state = applier.state
    up = NodeUp(NODES[2], Incarnation(1), "n3:1", "n3:2", 2)
    down = NodeDown(NODES[2], Incarnation(1))
    snapshot = state.snapshot()

    def node_down() -> float:
        seconds = applier.apply(down)
        applier.apply(up)
        return seconds

    def node_up() -> float:
        applier.apply(down)
        return applier.apply(up)

    print(
        json.dumps(
            {
                "queues": given.queues,
                "bindings": given.bindings,
                "declares_per_s": round(given.queues / declare_s),
                "binds_per_s": round(given.bindings / bind_s),
                "node_down_s": longest(node_down),
                "node_up_s": longest(node_up),
                "set_policy_s": longest(lambda: applier.apply(SetPolicy(policies[0]))),
                "snapshot_s": longest(lambda: timed(state.snapshot)),
                "snapshot_bytes": len(snapshot),
                "restore_s": longest(lambda: timed(lambda: MetadataState().restore(snapshot))),
            }
        )
    )


if __name__ == "__main__":
    main()

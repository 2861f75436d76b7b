"""How long the metadata of many queues take: declare, bind, nodes up and down, policy, snapshot, restore.

Run it from the repository's root: ``python -m tests.bench.metadata_bench [--queues 10000] [--bindings 50000]``.
Prints one JSON line: rates per second, and for what is done in pieces the seconds of processor time of all of them,
and the milliseconds of the longest (``..._piece_ms``), each of the longest of ``ROUNDS``. A whole node, with the
listeners: `tests.bench.metadata_node_bench`.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
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
        """Seconds of processor time that they took."""
        requests = []
        for command in commands:
            number = next(self._numbers)
            requests.append((number, Request(RequestId(NODES[0], self._incarnation, number), command)))
        began = time.thread_time()
        for number, request in requests:
            applied = self.state.apply(number, request)
            assert applied.error is None, applied.error
        return time.thread_time() - began

    def pieces(self, command: Command) -> Iterator[object]:
        """The same, to be gone through."""
        number = next(self._numbers)
        request = Request(RequestId(NODES[0], self._incarnation, number), command)
        return self.state.apply_in_pieces(number, request)


OVER = object()


class Measured:
    """Rounds of work in pieces."""

    def __init__(self) -> None:
        self.all_s = self.longest_piece_s = 0.0

    def round(self, pieces: Iterator[object]) -> None:
        seconds = 0.0
        while True:
            began = time.thread_time()
            is_over = next(pieces, OVER) is OVER
            piece_s = time.thread_time() - began
            seconds += piece_s
            self.longest_piece_s = max(self.longest_piece_s, piece_s)
            if is_over:
                self.all_s = max(self.all_s, seconds)
                return

    def said_of(self, name: str) -> dict[str, float]:
        return {f"{name}_s": round(self.all_s, 4), f"{name}_piece_ms": round(1000 * self.longest_piece_s, 1)}


def snapshot_of(state: MetadataState) -> Iterator[object]:
    yield from state.snapshot_pieces()


def restored(snapshot: bytes) -> Iterator[object]:
    leftovers = yield from MetadataState().restore_in_pieces(snapshot)
    yield from leftovers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--bindings", type=int, default=50_000)
    given = parser.parse_args()
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 5, 1_000_000_000)  # as a node has it: `cluster.real_world.collector`
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

    measured = {name: Measured() for name in ("node_down", "node_up", "set_policy", "snapshot", "restore")}
    for _ in range(ROUNDS):
        measured["node_down"].round(applier.pieces(down))
        measured["node_up"].round(applier.pieces(up))
        measured["set_policy"].round(applier.pieces(SetPolicy(policies[0])))
        measured["snapshot"].round(snapshot_of(state))
        measured["restore"].round(restored(snapshot))
    result: dict[str, float] = {
        "queues": given.queues,
        "bindings": given.bindings,
        "declares_per_s": round(given.queues / declare_s),
        "binds_per_s": round(given.bindings / bind_s),
        "snapshot_bytes": len(snapshot),
    }
    for name, each in measured.items():
        result |= each.said_of(name)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

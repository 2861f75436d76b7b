"""How long publishers wait when a master is killed: one publish in flight at a surviving node, beside other traffic.

    python tests/bench/failover_bench.py --kills 30 --reference rabbitmq_cluster.sh

Three nodes, one queue mirrored on all of them and automatically synchronised, which the publisher that is measured uses
with one message in flight and which carries the background load, too: a publisher with many in flight, at a pace, and
a consumer. All of them are connected to one node that is not the master. The master gets SIGKILL; the figure is the
longest time between two confirms around that moment. Then the node is started again and the next kill waits until
everything is synchronised. With ``--reference`` (see `side_by_side`) RabbitMQ takes its kills in the same run, in
blocks in turn with Warren's. Prints one JSON line: the gaps of each system in ms, their median and 95th percentile.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.raw_client import RawClient
from tests.bench.systems import (
    NODES,
    System,
    kill,
    port_of,
    rabbitmq,
    set_policy,
    wait_synchronised,
    warren,
)

QUEUE = "failover"
BODY_BYTES = 1024
PREFETCH = 500
#: Messages of one write of the background publisher times four.
WINDOW = 128
#: Traffic runs so long before a kill, and so long after it.
BEFORE_S, AFTER_S = 2.0, 5.0


def publish_steadily(port: int, per_s: float) -> None:
    RawClient(port).publish(QUEUE, 0, 1_000_000_000, BODY_BYTES, window=WINDOW, per_s=per_s)


def consume_steadily(port: int) -> None:
    RawClient(port).drain(QUEUE, PREFETCH)


def publish_one_at_a_time(port: int, seconds: float, results: multiprocessing.connection.Connection) -> None:
    """Sends the moments of all confirms, on the monotonic clock of the machine."""
    confirmed_s: list[float] = []
    end_s = time.monotonic() + seconds
    client = RawClient(port)
    client.confirm()
    while time.monotonic() < end_s:
        client.publish_one(QUEUE, BODY_BYTES)
        confirmed_s.append(time.monotonic())
    results.send(confirmed_s)


@contextmanager
def traffic(port: int, per_s: float) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    clients = [
        context.Process(target=publish_steadily, args=(port, per_s), daemon=True),
        context.Process(target=consume_steadily, args=(port,), daemon=True),
    ]
    for client in clients:
        client.start()
    try:
        yield
        broken = [client for client in clients if not client.is_alive()]
        if broken:
            raise SystemExit("a client of the background load ended by itself: see its error above")
    finally:
        for client in clients:
            client.terminate()
            client.join()


def gap_of_one_kill(system: System, per_s: float) -> float:
    """Seconds of the longest pause between two confirms around the death of the master."""
    master = wait_synchronised(system, QUEUE, len(NODES) - 1).master
    assert master is not None
    survivor = next(node for node in NODES if node != master)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    seconds = BEFORE_S + AFTER_S
    measured = context.Process(target=publish_one_at_a_time, args=(port_of(survivor), seconds, sender), daemon=True)
    with traffic(port_of(survivor), per_s):
        measured.start()
        time.sleep(BEFORE_S)
        killed_s = kill(system, master)
        if not receiver.poll(seconds + 60.0):
            raise SystemExit(f"{system.name}: the publisher got no confirm any more")
        confirmed_s: list[float] = receiver.recv()
        measured.join()
    system.restart(master)
    after = [pause for pause in pairwise(confirmed_s) if pause[1] >= killed_s]
    if not after or confirmed_s[0] > killed_s:
        raise SystemExit(f"{system.name}: nothing was confirmed before or after the kill")
    return max(end - start for start, end in after)


def gaps_of(start: Callable[[], AbstractContextManager[System]], kills: int, per_s: float) -> list[float]:
    """Seconds, one for each kill in a new cluster."""
    gaps = []
    with start() as system:
        set_policy(system, "failover", f"^{QUEUE}$", {"ha-mode": "all", "ha-sync-mode": "automatic"})
        client = RawClient(port_of(1))
        client.declare(QUEUE)
        client.close()
        for _ in range(kills):
            gaps.append(gap_of_one_kill(system, per_s))
            print(f"{system.name} {gaps[-1] * 1000:.0f} ms", file=sys.stderr)
    return gaps


def summary(gaps: Sequence[float]) -> dict[str, object]:
    """In ms; the 95th percentile is the least gap that 95 % do not exceed."""
    ordered = sorted(gap * 1000 for gap in gaps)
    return {
        "median_ms": statistics.median(ordered),
        "p95_ms": ordered[-(-len(ordered) * 95 // 100) - 1],
        "gaps_ms": [gap * 1000 for gap in gaps],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30, help="of each system")
    parser.add_argument("--blocks", type=int, default=3, help="clusters of each system that take them, in turn")
    parser.add_argument("--per-s", type=float, default=2000, help="messages per second of the background load")
    parser.add_argument("--reference", help="script that runs the RabbitMQ cluster")
    options = parser.parse_args()
    systems: dict[str, Callable[[], AbstractContextManager[System]]] = {"warren": warren}
    if options.reference:
        systems["rabbitmq"] = lambda: rabbitmq(options.reference)
    gaps: dict[str, list[float]] = {name: [] for name in systems}
    for block in range(options.blocks):
        kills = options.kills * (block + 1) // options.blocks - options.kills * block // options.blocks
        for name, start in systems.items():
            gaps[name] += gaps_of(start, kills, options.per_s)
    figures: dict[str, object] = {"bench": "failover", "kills": options.kills, "per_s": options.per_s}
    print(json.dumps(figures | {name: summary(values) for name, values in gaps.items()}))


if __name__ == "__main__":
    main()

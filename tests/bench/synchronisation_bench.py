"""A long queue gets two mirrors while it is published to; then mirrors that were away come back.

    python tests/bench/synchronisation_bench.py --messages 200000 --reference rabbitmq_cluster.sh

**Synchronisation.** Three nodes; a queue on one of them is filled with persistent messages of 1 KB; a policy mirrors it
on all; `sync_queue` is called while a publisher goes on at half the rate that it reached alone while the queue was
filled. Printed: seconds until both mirrors are synchronised, and the longest time without a confirm meanwhile. With
``--reference`` RabbitMQ does the same, in turn.

**Cancel** (Warren only): the same, cancelled when a quarter is sent and started again: its bytes over those of the
bodies (a whole one needs twice as many).

**Return** (Warren only): a mirror is killed, 1 % of the messages, chosen at random, are acked, and it comes back; then
the same with a mirror that is stopped (SIGSTOP) until it is given up. Printed: bytes on the loopback interface until it
is synchronised, over the bytes of the bodies. Nothing else may use that interface meanwhile.

Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
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
    replicas_of,
    set_policy,
    wait_synchronised,
    warren,
)

QUEUE = "long"
BODY_BYTES = 1024
WINDOW = 500
MASTER = 1
MIRRORS = len(NODES) - 1
#: The publisher runs so long before the synchronisation begins.
BEFORE_S = 2.0
POLL_S = 0.05
CHANGED = 0.01


def loopback_bytes() -> int:
    """Sent over the loopback interface since the machine started."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise SystemExit("this machine has no loopback interface to measure at")


def publish_and_note(port: int, per_s: float, results: multiprocessing.connection.Connection) -> None:
    """Publishes until it is told to stop; sends the moments at which confirms came."""
    confirmed_s: list[float] = []

    def note(_confirmed: int) -> None:
        confirmed_s.append(time.monotonic())
        if results.poll():
            results.send(confirmed_s)
            results.recv()

    RawClient(port).publish(QUEUE, 0, 1_000_000_000, BODY_BYTES, window=WINDOW, per_s=per_s, on_progress=note)


class Publisher:
    """Steady traffic in a process of its own."""

    def __init__(self, per_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=publish_and_note, args=(port_of(MASTER), per_s, there), daemon=True)
        self._process.start()

    def stop(self) -> list[float]:
        """The moments of all confirms, on the monotonic clock."""
        self._here.send("stop")
        if not self._here.poll(120.0):
            raise SystemExit("the publisher got no confirm any more")
        confirmed_s: list[float] = self._here.recv()
        self._process.terminate()
        self._process.join()
        return confirmed_s


def fill(messages: int) -> float:
    """Declares the queue and fills it; messages per second."""
    client = RawClient(port_of(MASTER))
    client.declare(QUEUE)
    rate = messages / client.publish(QUEUE, 0, messages, BODY_BYTES, window=WINDOW)
    client.close()
    return rate


def mirror_by_hand(system: System) -> None:
    """Two mirrors that have nothing yet."""
    set_policy(system, "mirrors", f"^{QUEUE}$", {"ha-mode": "all", "ha-sync-mode": "manual"})
    while len(replicas_of(system, QUEUE).mirrors) < MIRRORS:
        time.sleep(POLL_S)


def synchronise_under_load(start: Callable[[], AbstractContextManager[System]], messages: int) -> dict[str, float]:
    """One new cluster: fill, mirror, publish, synchronise."""
    with start() as system:
        fill_per_s = fill(messages)
        mirror_by_hand(system)
        publisher = Publisher(fill_per_s / 2)
        time.sleep(BEFORE_S)
        began_s = time.monotonic()
        system.control("sync_queue", QUEUE)
        wait_synchronised(system, QUEUE, MIRRORS)
        ended_s = time.monotonic()
        confirmed_s = publisher.stop()
    pauses = [end - begin for begin, end in pairwise(confirmed_s) if end >= began_s and begin <= ended_s]
    figures = {
        "seconds": ended_s - began_s,
        "longest_pause_ms": max(pauses) * 1000,
        "fill_per_s": fill_per_s,
    }
    print(f"{system.name} {figures}", file=sys.stderr)
    return figures


def bytes_until_synchronised(system: System, queue_bytes: int, act: Callable[[], object]) -> float:
    """Bytes on the loopback interface from ``act`` until all mirrors are synchronised, over those of the queue."""
    before = loopback_bytes()
    act()
    wait_synchronised(system, QUEUE, MIRRORS)
    return (loopback_bytes() - before) / queue_bytes


def ack_some(messages: int, seed: int) -> None:
    """Ack 1 % of the messages, chosen at random; the others return to the queue."""
    client = RawClient(port_of(MASTER))
    client.take(QUEUE, messages)
    tags = sorted(random.Random(seed).sample(range(1, messages + 1), int(messages * CHANGED)))
    client.ack(tags)
    client.finish()
    client.close()


def cancelled_underway(system: System, queue_bytes: int) -> float:
    """Cancel a synchronisation that is underway; the bytes that the second one needs, over those of the queue."""
    before = loopback_bytes()
    # It returns when the synchronisation is over.
    synchronising = threading.Thread(target=system.control, args=("sync_queue", QUEUE))
    synchronising.start()
    while loopback_bytes() - before < queue_bytes * MIRRORS / 4:
        time.sleep(0.01)
    system.control("cancel_sync_queue", QUEUE)
    synchronising.join()
    if len(replicas_of(system, QUEUE).synchronised) == MIRRORS:
        raise SystemExit("the synchronisation was over before it could be cancelled; take more messages")
    time.sleep(1.0)
    return bytes_until_synchronised(system, queue_bytes, lambda: system.control("sync_queue", QUEUE))


def returns(messages: int) -> dict[str, float]:
    """What mirrors cost that come back: bytes over the bytes of the queue's bodies."""
    queue_bytes = messages * BODY_BYTES
    figures = {}
    with warren() as system:
        fill(messages)
        mirror_by_hand(system)
        figures["after_cancel"] = cancelled_underway(system, queue_bytes)
        set_policy(system, "mirrors", f"^{QUEUE}$", {"ha-mode": "all", "ha-sync-mode": "automatic"})
        kill(system, 2)
        ack_some(messages, seed=1)
        figures["after_kill"] = bytes_until_synchronised(system, queue_bytes, lambda: system.restart(2))
        left = messages - int(messages * CHANGED)
        pid = system.pid(3)
        os.kill(pid, signal.SIGSTOP)
        try:
            while len(replicas_of(system, QUEUE).synchronised) == MIRRORS:
                time.sleep(POLL_S)
            ack_some(left, seed=2)
            resume = partial(os.kill, pid, signal.SIGCONT)
            figures["after_stall"] = bytes_until_synchronised(system, queue_bytes, resume)
        finally:
            os.kill(pid, signal.SIGCONT)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--reference", help="script that runs the RabbitMQ cluster")
    options = parser.parse_args()
    systems: dict[str, Callable[[], AbstractContextManager[System]]] = {"warren": warren}
    if options.reference:
        systems["rabbitmq"] = lambda: rabbitmq(options.reference)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for _ in range(options.pairs):
        for name, start in systems.items():
            results[name].append(synchronise_under_load(start, options.messages))
    figures: dict[str, object] = {"bench": "synchronisation", "messages": options.messages, "results": results}
    if options.reference:
        pairs = zip(results["warren"], results["rabbitmq"], strict=True)
        figures["seconds_ratios"] = ratios = [mine["seconds"] / theirs["seconds"] for mine, theirs in pairs]
        figures["seconds_ratio_median"] = statistics.median(ratios)
    print(json.dumps(figures | {"returns": returns(options.messages)}))


if __name__ == "__main__":
    main()

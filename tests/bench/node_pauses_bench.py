"""The pauses of a node's event loop, from outside: 80 % of a big queue acked in random order over AMQP, beside traffic.

    python tests/bench/node_pauses_bench.py --gigabytes 2 --acks 10000
    python tests/bench/node_pauses_bench.py --gigabytes 2 --acks 0

One real node with its defaults. A client fills a queue with persistent messages of 8 KB and confirms, a second one
takes them all without a prefetch limit, and acks four fifths of them in random order, at a pace or (``--acks 0``) as
fast as the node takes them, while two more clients publish to and consume from another queue. The node notes how late a
timer of its loop comes (`tests/bench/loop_watch`). Prints one JSON line: for each phase the worst pause and how many
were longer than 20 ms, the longest ones with what the machine did in them (`tests.bench.machine_stalls`), and when the
disk use of the shared store fell under 2.2 times the live data.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.machine_stalls import MachineStalls
from tests.bench.one_node import OneNode
from tests.bench.raw_client import RawClient

QUEUE, BUSY = "big", "busy"
BODY_BYTES = 8192
#: Messages of one write to the socket, by all clients.
BATCH = 32
#: What the issue of pauses is about.
LONG_S = 0.020
LISTED = 12
TARGET_RATIO = 2.2
#: The store is given so long to get there.
SETTLE_TIMEOUT_S = 60.0
#: Traffic goes on so long after that.
AFTER_S = 3.0


class Pause(NamedTuple):
    """A timer of the node was due and came so much later."""

    due_s: float
    seconds: float


def publish_steadily(port: int, per_s: float) -> None:
    client = RawClient(port)
    client.publish(BUSY, 0, 1_000_000_000, BODY_BYTES, window=4 * BATCH, per_s=per_s)


def consume_steadily(port: int) -> None:
    client = RawClient(port)
    client.consume(BUSY, 0, 1_000_000_000, BODY_BYTES, prefetch=4 * BATCH)


@contextmanager
def traffic(port: int, per_s: float) -> Iterator[None]:
    """Clients of another queue, in processes of their own."""
    RawClient(port).declare(BUSY)
    context = multiprocessing.get_context("spawn")
    clients = [
        context.Process(target=publish_steadily, args=(port, per_s), daemon=True),
        context.Process(target=consume_steadily, args=(port,), daemon=True),
    ]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.terminate()
            client.join()


def store_bytes(directory: Path) -> int:
    """Disk use of the shared stores below ``directory``."""
    total = 0
    for path in directory.rglob("*.rdq"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # compacted away between the listing and the look
    return total


def ack_at_random(client: RawClient, count: int, acked: int, per_s: float) -> None:
    """Returns when the node has taken all of them."""
    tags = list(range(1, count + 1))
    random.Random(1).shuffle(tags)
    begun_s = time.monotonic()
    for at in range(0, acked, BATCH):
        client.ack(tags[at : min(at + BATCH, acked)])
        if per_s:
            time.sleep(max(0.0, begun_s + (at + BATCH) / per_s - time.monotonic()))
    client.finish()


def read_pauses(path: Path) -> list[Pause]:
    pauses = []
    for line in path.read_text().splitlines():
        due_s, seconds = map(float, line.split())
        pauses.append(Pause(due_s, seconds))
    return pauses


def summary(began_s: float, pauses: list[Pause], stalls: MachineStalls) -> dict[str, object]:
    """What happened in a phase."""
    longest = sorted(pauses, key=lambda pause: -pause.seconds)[:LISTED]
    return {
        "worst_pause_ms": longest[0].seconds * 1000 if longest else 0.0,
        "pauses_over_20_ms": sum(pause.seconds > LONG_S for pause in pauses),
        "longest": [
            {
                "ms": seconds * 1000,
                "after_s": due_s - began_s,
                "machine_stalled_ms": stalls.seconds_within(due_s, due_s + seconds, None) * 1000,
                "machine_slowness": stalls.slowness_within(due_s, due_s + seconds),
            }
            for due_s, seconds in longest
            if seconds >= LONG_S / 2
        ],
    }


def measure(node: OneNode, directory: Path, options: argparse.Namespace) -> tuple[dict[str, object], dict[str, float]]:
    """Figures, and when each phase began."""
    messages = int(options.gigabytes * 1e9 / BODY_BYTES)
    began_s = {"fill": time.monotonic()}
    publisher = RawClient(node.port)
    publisher.declare(QUEUE)
    fill_s = publisher.publish(QUEUE, 0, messages, BODY_BYTES, window=options.window)
    publisher.close()
    record_bytes = store_bytes(directory) / messages
    print(f"filled in {fill_s:.0f} s", file=sys.stderr)
    began_s["deliver"] = time.monotonic()
    consumer = RawClient(node.port)
    consumer.take(QUEUE, messages)
    deliver_s = time.monotonic() - began_s["deliver"]
    with traffic(node.port, options.traffic):
        time.sleep(2.0)
        began_s["ack"] = time.monotonic()
        acked = int(0.8 * messages)
        ack_at_random(consumer, messages, acked, options.acks)
        acked_s = time.monotonic()
        live_bytes = (messages - acked) * record_bytes
        while (ratio := store_bytes(directory) / live_bytes) >= TARGET_RATIO:
            if time.monotonic() > acked_s + SETTLE_TIMEOUT_S:
                raise SystemExit(f"the store still takes {ratio:.2f} times the live data")
            time.sleep(0.1)
        settled_s = time.monotonic() - acked_s
        time.sleep(AFTER_S)
        ratio = store_bytes(directory) / live_bytes
    began_s["end"] = time.monotonic()
    figures: dict[str, object] = {
        "bench": "node_pauses",
        "gigabytes": options.gigabytes,
        "fill_per_s": messages / fill_s,
        "deliver_per_s": messages / deliver_s,
        "acks_per_s": acked / (acked_s - began_s["ack"]),
        "seconds_until_under_2.2": settled_s,
        "disk_to_live_at_end": ratio,
    }
    return figures, began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--acks", type=float, default=10_000, help="acks per second; 0: as fast as it goes")
    parser.add_argument("--traffic", type=float, default=1000, help="messages per second through the other queue")
    parser.add_argument("--window", type=int, default=1000, help="unconfirmed publishes while the queue is filled")
    options = parser.parse_args()
    scratch = tempfile.TemporaryDirectory(prefix="warren-pauses-", dir=os.environ.get("WARREN_BENCH_DIR"))
    watch = Path(__file__).resolve().parent / "loop_watch"
    with scratch as name:
        directory = Path(name)
        os.environ["PYTHONPATH"] = str(watch)
        os.environ["WARREN_LOOP_WATCH"] = str(directory / "pauses")
        with OneNode(str(directory / "cluster"), []) as node, MachineStalls() as stalls:
            pid = node.pid
            figures, began_s = measure(node, directory / "cluster", options)
        pauses = read_pauses(directory / f"pauses.{pid}")
        names = list(began_s)
        for phase, following in pairwise(names):
            within = [pause for pause in pauses if began_s[phase] <= pause.due_s < began_s[following]]
            figures[phase] = summary(began_s[phase], within, stalls)
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

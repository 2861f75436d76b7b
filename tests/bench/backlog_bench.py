"""A long backlog in one queue of one node: what it costs in memory, and whether it comes back whole and in order.

    python tests/bench/backlog_bench.py --mode lazy --messages 10000000
    python tests/bench/backlog_bench.py --mode default --messages 1000000 --watermark 256MiB

Publishes persistent messages with confirms and no consumer, looks at the node's resident memory and at what
``list_queues`` says, then drains the queue and checks every body. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.one_node import OneNode
from tests.bench.raw_client import RawClient

QUEUE = "backlog"


def list_queue(node: OneNode) -> dict[str, object]:
    """What the listing says of the queue."""
    columns = ["name", "messages", "messages_ram", "memory", "backing_queue_status"]
    output = node.control("list_queues", *columns, "--formatter", "json")
    rows = [row for row in json.loads(output) if row["name"] == QUEUE]
    return dict(rows[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("lazy", "default"), default="lazy")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1024, dest="body_bytes")
    parser.add_argument("--window", type=int, default=2000)
    parser.add_argument("--watermark", help="vm_memory_high_watermark.absolute, for instance 256MiB")
    options = parser.parse_args()
    settings = [f"vm_memory_high_watermark.absolute = {options.watermark}"] if options.watermark else []
    scratch = tempfile.TemporaryDirectory(prefix="warren-backlog-", dir=os.environ.get("WARREN_BENCH_DIR"))
    with scratch as directory, OneNode(directory, settings) as node:
        node.control("set_policy", "mode", f"^{QUEUE}$", json.dumps({"queue-mode": options.mode}))
        client = RawClient(node.port)
        client.declare(QUEUE)
        client.publish(QUEUE, 0, 2000, options.body_bytes)
        client.consume(QUEUE, 0, 2000, options.body_bytes)
        client.close()
        process = psutil.Process(node.pid)
        before = process.memory_info().rss
        peak = before
        looked = 0

        def look(confirmed: int) -> None:
            nonlocal peak, looked
            if confirmed - looked >= 20_000:
                looked = confirmed
                peak = max(peak, process.memory_info().rss)

        publisher = RawClient(node.port)
        fill_s = publisher.publish(
            QUEUE, 0, options.messages, options.body_bytes, window=options.window, on_progress=look
        )
        after = process.memory_info().rss
        listed = list_queue(node)
        print(f"filled in {fill_s:.0f} s: {listed}", file=sys.stderr)
        consumer = RawClient(node.port)
        drain_s = consumer.consume(QUEUE, 0, options.messages, options.body_bytes)
        left = list_queue(node)
    summary = {
        "bench": "backlog",
        "mode": options.mode,
        "messages": options.messages,
        "body_bytes": options.body_bytes,
        "watermark": options.watermark,
        "fill_per_s": options.messages / fill_s,
        "drain_per_s": options.messages / drain_s,
        "rss_before_mb": before / 1e6,
        "rss_after_fill_mb": after / 1e6,
        "rss_peak_mb": max(peak, after) / 1e6,
        "queue": listed,
        "left": left["messages"],
        "in_order_and_whole": True,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{error.cmd} failed: {error.stderr}") from error

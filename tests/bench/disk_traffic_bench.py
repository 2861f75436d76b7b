"""What the disk is asked to write: a static queue beside a fast one (mission S13), and fan-out (mission S7).

    python tests/bench/disk_traffic_bench.py static --messages 1000000 --rate 5000 --seconds 60
    python tests/bench/disk_traffic_bench.py fanout --messages 2000

``static``: the fast queue alone, then the same beside a queue that holds ``--messages`` messages; ``fanout``: bodies of
8 KB to one queue, then to ten. Counted are the bytes that the node sent to the storage layer. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.one_node import OneNode
from tests.bench.raw_client import RawClient

#: After a run: what the kernel still holds back is written by then (its default age limit is 30 s; fsync is sooner).
SETTLE_S = 3.0


def fast_traffic(node: OneNode, rate: float, seconds: int) -> int:
    """Bytes written while ``rate`` messages per second go through a queue of their own."""
    messages = int(rate * seconds)
    publisher, consumer = RawClient(node.port), RawClient(node.port)
    publisher.declare("fast")
    before = node.bytes_written()
    consuming = threading.Thread(target=consumer.consume, args=("fast", 0, messages, 1024))
    consuming.start()
    publisher.publish("fast", 0, messages, 1024, per_s=rate)
    consuming.join()
    time.sleep(SETTLE_S)
    written = node.bytes_written() - before
    publisher.close()
    consumer.close()
    return written


def static(directory: str, options: argparse.Namespace) -> dict[str, object]:
    with OneNode(directory, []) as node:
        alone = fast_traffic(node, options.rate, options.seconds)
        client = RawClient(node.port)
        client.declare("static")
        client.publish("static", 0, options.messages, 1024, window=2000)
        time.sleep(SETTLE_S)
        beside = fast_traffic(node, options.rate, options.seconds)
        client.close()
    return {"bench": "static_queue", "alone_bytes": alone, "beside_bytes": beside, "ratio": beside / alone}


def fanout(directory: str, options: argparse.Namespace) -> dict[str, object]:
    written: dict[int, int] = {}
    with OneNode(directory, []) as node:
        for queues in (1, 10):
            client = RawClient(node.port)
            client.declare_fanout(f"to-{queues}", [f"{queues}-{number}" for number in range(queues)])
            before = node.bytes_written()
            client.publish("", 0, options.messages, 8192, exchange=f"to-{queues}")
            time.sleep(SETTLE_S)
            written[queues] = node.bytes_written() - before
            client.close()
    bodies = options.messages * 8192
    return {
        "bench": "fanout",
        "one_bytes": written[1],
        "ten_bytes": written[10],
        "ratio": written[10] / written[1],
        "ratio_to_bodies": written[10] / bodies,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("static", "fanout"))
    parser.add_argument("--messages", type=int)
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    if options.messages is None:
        options.messages = 1_000_000 if options.what == "static" else 2000
    with tempfile.TemporaryDirectory(prefix="warren-traffic-", dir=os.environ.get("WARREN_BENCH_DIR")) as directory:
        result = (static if options.what == "static" else fanout)(directory, options)
    print(json.dumps(result | {"messages": options.messages}))


if __name__ == "__main__":
    main()

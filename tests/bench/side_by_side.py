"""Warren's three-node mirrored cluster and RabbitMQ's, in turn, under the same load generator.

    python tests/bench/side_by_side.py --load-generator amqp_load --reference rabbitmq_cluster.sh

``--load-generator``: a program called as ``PROGRAM pub HOST PORT QUEUE COUNT BYTES PERSISTENT CONFIRM_WINDOW`` and
``PROGRAM sub HOST PORT QUEUE COUNT BYTES PREFETCH AUTOACK`` that prints ``pub N in T = R/s ...`` (or ``sub ...``).
``--reference``: a script with ``up``, ``down`` and ``ctl NODE ARGS...`` that runs RabbitMQ on ports 5672, 5673, 5674.

Each round starts one system, lets it settle, runs a warm-up and the measured run, and stops it before the other starts.
Publisher and consumer run at the same time; with ``--backlog`` the publisher fills the queue first, then the consumer
drains it (``--lazy``: with the policy ``queue-mode = lazy``).
Prints one JSON line: the rates of every run, the ratio of each pair, the median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.systems import COMMAND_TIMEOUT_S, System, port_of, rabbitmq, run, set_policy, warren

_RATE = re.compile(r"(pub|sub) \d+ in [\d.]+s = (\d+)/s")
_CONFIRM = re.compile(r"confirm p50 ([\d.]+)ms p99 ([\d.]+)ms")


@dataclass(frozen=True)
class Workload:
    """One publisher, one consumer, one queue."""

    messages: int
    body_bytes: int
    confirm_window: int
    prefetch: int
    publisher_port: int
    consumer_port: int
    #: First all publishes, then all deliveries.
    is_backlog: bool = False


def measure(program: str, queue: str, load: Workload) -> dict[str, float]:
    """One run: the consumer starts first, then the publisher; for a backlog the other way round."""
    consume = [program, "sub", "127.0.0.1", str(load.consumer_port), queue, str(load.messages), str(load.body_bytes)]
    publish = [program, "pub", "127.0.0.1", str(load.publisher_port), queue, str(load.messages), str(load.body_bytes)]
    consume += [str(load.prefetch), "0"]
    publish += ["1", str(load.confirm_window)]
    if load.is_backlog:
        published = run(publish)
        consumed = run(consume)
    else:
        with subprocess.Popen(consume, stdout=subprocess.PIPE, text=True) as consumer:
            try:
                published = run(publish)
                consumed, _ = consumer.communicate(timeout=COMMAND_TIMEOUT_S)
            finally:
                consumer.kill()
    rates = {kind: float(rate) for kind, rate in _RATE.findall(published + consumed)}
    p50, p99 = _CONFIRM.findall(published)[0]
    return {
        "publish_per_s": rates["pub"],
        "consume_per_s": rates["sub"],
        "confirm_p50_ms": float(p50),
        "confirm_p99_ms": float(p99),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Warren and RabbitMQ side by side; prints one JSON line.")
    parser.add_argument("--load-generator", required=True)
    parser.add_argument("--reference", required=True, help="script that runs the RabbitMQ cluster")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--bytes", type=int, default=1024, dest="body_bytes")
    parser.add_argument("--confirm-window", type=int, default=500)
    parser.add_argument("--prefetch", type=int, default=500)
    parser.add_argument("--unmirrored", action="store_true")
    parser.add_argument("--backlog", action="store_true", help="fill the queue, then drain it")
    parser.add_argument("--lazy", action="store_true", help="with queue-mode = lazy")
    parser.add_argument("--publisher-node", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--consumer-node", type=int, default=1, choices=(1, 2, 3))
    return parser.parse_args()


def main() -> None:
    options = arguments()
    load = Workload(
        options.messages,
        options.body_bytes,
        options.confirm_window,
        options.prefetch,
        port_of(options.publisher_node),
        port_of(options.consumer_node),
        options.backlog,
    )
    warm_up = replace(load, messages=5_000)
    definition: dict[str, object] = {} if options.unmirrored else {"ha-mode": "all"}
    if options.lazy:
        definition["queue-mode"] = "lazy"
    systems: dict[str, Callable[[], AbstractContextManager[System]]] = {
        "warren": warren,
        "rabbitmq": lambda: rabbitmq(options.reference),
    }
    results: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for pair in range(options.pairs):
        for name, start in systems.items():
            with start() as system:
                if definition:
                    set_policy(system, "bench", "^bench", definition)
                measure(options.load_generator, f"bench-warm-{pair}", warm_up)
                results[name].append(measure(options.load_generator, f"bench-{pair}", load))
            print(f"{name} {results[name][-1]}", file=sys.stderr)
    summary: dict[str, object] = {
        "bench": "side_by_side",
        "load": vars(load),
        "policy": definition,
        "results": results,
    }
    for figure in ("publish", "consume"):
        ratios = [
            mine[f"{figure}_per_s"] / theirs[f"{figure}_per_s"]
            for mine, theirs in zip(results["warren"], results["rabbitmq"], strict=True)
        ]
        summary[f"{figure}_ratios"] = ratios
        summary[f"{figure}_ratio_median"] = statistics.median(ratios)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()

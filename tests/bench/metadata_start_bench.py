"""How long a node with many queues and bindings takes to start, and how long its loop is held meanwhile.

A node in a process of its own declares and binds everything, through its Raft log, puts some messages into each queue,
and is killed or stopped; then the same directory is started here, on a real disk. From the repository's root:
``python -m tests.bench.metadata_start_bench [--queues 10000] [--bindings 50000] [--messages 1] [--clean]``.
Prints one JSON line: seconds since the start until the node is composed (snapshot read; nothing else happens before),
has announced itself (log replayed, `NodeUp` applied), serves clients, and has recovered all queues; and of each of
these times the milliseconds of processor time of the longest call of the loop. A queue with messages holds two files
open: the limit of the system must allow for them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from cluster.composition import Node, compose_node
from cluster.metadata.commands import ChangeTopology, Command
from cluster.real_world.collector import tune_collector
from cluster.real_world.system_probe import raise_open_files_limit
from cluster.real_world.world import real_world
from node.config import NodeConfig, build_config, parse_settings
from node.message import Message
from node.queues.backing_queue import Publication
from node.topology.commands import Bind, DeclareExchange, DeclareQueue
from tests.bench.metadata_node_bench import CallTimes
from tests.bench.one_node import ROOT, free_port
from tests.support.messages import make_msg_id

#: Commands under way at once.
AT_ONCE = 500
LOOK_EVERY_S = 0.005
ORIGIN = b"original"


def configured(directory: str) -> NodeConfig:
    lines = [
        "node_name = n1",
        f"data_dir = {directory}",
        f"listeners.tcp.default = 127.0.0.1:{free_port()}",
        f"cluster.listener = 127.0.0.1:{free_port()}",
        "cluster.cookie = correct horse battery",
    ]
    return build_config(parse_settings("\n".join(lines), "node.conf"))


async def filled(directory: str, queues: int, bindings: int, messages: int, *, stops_cleanly: bool) -> None:
    """One life of the node: does not return unless it ``stops_cleanly``."""
    config = configured(directory)
    node = compose_node(config, real_world(config))
    await (await node.start())
    names = [f"queue.{number:05}" for number in range(queues)]
    await _changed(node, [DeclareQueue("/", name, durable=True) for name in names])
    await _changed(node, [DeclareExchange("/", "events", "topic", durable=True)])
    binds = [Bind("/", "events", names[at % queues], "queue", f"key.{at}", {}) for at in range(bindings)]
    await _changed(node, binds)
    # For the log behind the snapshot.
    await _changed(node, [DeclareQueue("/", names[at % queues], durable=True) for at in range(5_000)])
    for queue_id, role in node.runtime.queues.roles.items():
        numbers = range(1, messages + 1)
        bodies = [Message(make_msg_id(ORIGIN, n), "", "bench", b"\x18\x00\x00\x02", bytes(100), True) for n in numbers]  # type: ignore[arg-type]
        role.local.publish([Publication(message) for message in bodies])
        node.runtime.queues.touch(queue_id)
        await asyncio.sleep(0)
    for _ in range(3):
        while node.runtime.sync_thread._running is not None or node.runtime._files.has_unsynced:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.sleep(0.1)
    if stops_cleanly:
        await node.close()
    else:
        os.abort()


async def _changed(node: Node, commands: list[Any]) -> None:
    metadata = node.runtime.metadata
    for at in range(0, len(commands), AT_ONCE):
        changes: list[Command] = [ChangeTopology(each, node.config.node_name) for each in commands[at : at + AT_ONCE]]
        await asyncio.gather(*map(metadata.change, changes))


async def started(directory: str, queues: int) -> dict[str, Any]:
    config = configured(directory)
    results: dict[str, Any] = {}
    times = CallTimes()
    tune_collector(asyncio.get_running_loop())
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.sleep(0)

    def reached(name: str) -> None:
        results[f"{name}_s"] = round(time.perf_counter() - began_s, 2)
        longest_s, call = max(times.calls_s, default=(0.0, ""))
        results[f"{name}_longest_ms"] = round(1000 * longest_s, 1)
        if call:
            print(name, round(1000 * longest_s), call, file=sys.stderr)

    node = compose_node(config, real_world(config))
    results["log_entries"] = node.raft.core.log.last_index - node.raft.applied_index
    reached("composed")
    await asyncio.sleep(0)  # composing was a part of this call
    times.calls_s.clear()
    joining = await node.start()
    membership, node_queues = node.runtime.membership, node.runtime.queues
    while not membership._has_joined:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_EVERY_S)
    reached("announced")
    times.calls_s.clear()
    is_serving = False
    while len(node_queues.mastered()) < queues or node_queues._opening or not is_serving:
        await asyncio.sleep(LOOK_EVERY_S)
        if joining.done() and not is_serving:
            is_serving = True
            reached("serving")
    reached("recovered")
    results["cpu_s"] = round(time.process_time() - cpu_s, 2)
    times.calls_s.clear()
    stop_s = time.perf_counter()
    await node.close()
    results["stop_s"] = round(time.perf_counter() - stop_s, 2)
    longest_s, call = max(times.calls_s)
    results["stop_longest_ms"] = round(1000 * longest_s, 1)
    print("stop", round(1000 * longest_s), call, file=sys.stderr)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--bindings", type=int, default=50_000)
    parser.add_argument("--messages", type=int, default=1)
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--fill", action="store_true", help="do only what comes before, and end")
    parser.add_argument("directory", nargs="?")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    raise_open_files_limit()
    if given.fill:
        amounts = (given.queues, given.bindings, given.messages)
        asyncio.run(filled(given.directory, *amounts, stops_cleanly=given.clean))
        return
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        child = [sys.executable, "-m", "tests.bench.metadata_start_bench", "--fill", *sys.argv[1:]]
        if given.directory is not None:
            child.remove(given.directory)
        began_s = time.perf_counter()
        subprocess.run([*child, directory], cwd=ROOT, check=False, stderr=subprocess.DEVNULL)
        result = {"queues": given.queues, "bindings": given.bindings, "messages": given.messages, "clean": given.clean}
        result["filled_s"] = round(time.perf_counter() - began_s, 1)
        print(json.dumps(result | asyncio.run(started(directory, given.queues))))


if __name__ == "__main__":
    main()

"""How long a queue takes to come back after a crash, and how long the loop stands still for it. One JSON line.

python tests/bench/recovery_bench.py [--messages N] [--body BYTES] [--version 1|2] [--at-once] [directory]

``--at-once``: on the loop, in one call, as a tool does it. ``--clean``: the queue was closed, so terms and tables are
read. It is written anew each time; what the system has of it in memory is as hot as after a killed process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable

from cluster.real_world.world import ThreadWorker
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.recoveries import Recoveries
from node.ids import OriginId, QueueId, QueueName
from node.message import Message
from node.queues.backing_queue import Publication
from node.queues.local_replica import LocalReplica
from node.queues.vhost_store import VhostStore
from node.store.disk.disk import RealDisk
from node.store.disk.group_commit import GroupCommit
from node.store.shared.config import StoreConfig
from node.store.steps import Job
from node.topology.records import QueueRecord
from tests.support.messages import make_msg_id

BATCH = 1000
#: How often somebody else wants the loop.
LOOK_EVERY_S = 0.002
QUEUE_ID, QUEUE_NAME = QueueId(1), QueueName("/", "bench")


def fill(directory: str, messages: int, body_bytes: int, version: int, *, stops_cleanly: bool) -> None:
    group_commit = GroupCommit()
    store = VhostStore(RealDisk(), directory, "/", group_commit, StoreConfig())
    queue = store.open_queue(QUEUE_ID, QUEUE_NAME, True, version)
    queue.set_lazy(True)
    body, origin = bytes(body_bytes), OriginId(b"original")
    for first in range(1, messages + 1, BATCH):
        queue.publish(
            [
                Publication(Message(make_msg_id(origin, n), "", "bench", b"\x18\x00\x00\x02", body, True))
                for n in range(first, min(first + BATCH, messages + 1))
            ]
        )
        store.flush_writes()
        if (sync_round := group_commit.begin()) is not None:
            sync_round.run()
            group_commit.complete(sync_round)
    if stops_cleanly:
        store.close()


def recover_at_once(directory: str) -> dict[str, float]:
    start, cpu = time.perf_counter(), time.process_time()
    store = VhostStore(RealDisk(), directory, "/", GroupCommit(), StoreConfig())
    queue = store.open_queue(QUEUE_ID, QUEUE_NAME, durable=True)
    seconds = time.perf_counter() - start
    return {
        "messages": queue.ready,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "longest_stall_ms": round(seconds * 1000),
    }


async def recover_in_slices(directory: str) -> dict[str, float]:
    loop, worker = asyncio.get_running_loop(), ThreadWorker("recovery")
    opened: asyncio.Future[LocalReplica] = loop.create_future()

    def run_job(job: Job, on_done: Callable[[BaseException | None], None]) -> None:
        worker.run(job).add_done_callback(lambda future: on_done(future.exception()))

    def on_opened(result: LocalReplica | Exception) -> None:
        assert isinstance(result, LocalReplica), "the disk is sound"
        opened.set_result(result)

    cpu, start = time.process_time(), time.perf_counter()
    looked, thread_looked = start, time.thread_time()
    #: Between two looks: by the clock, and what of it this thread worked (on a machine that has others to serve, too).
    stalls: list[float] = []
    works: list[float] = []

    def look() -> None:
        nonlocal looked, thread_looked
        now, thread_now = time.perf_counter(), time.thread_time()
        stalls.append(now - looked)
        works.append(thread_now - thread_looked)
        looked, thread_looked = now + LOOK_EVERY_S, thread_now
        loop.call_later(LOOK_EVERY_S, look)

    files = NodeQueueFiles(RealDisk(), directory, GroupCommit(), StoreConfig(), time.perf_counter)
    recoveries = Recoveries(files, run_job, loop.call_soon, time.perf_counter)
    loop.call_soon(look)
    recoveries.open(QueueRecord(QUEUE_ID, "/", "bench", True, None, False, {}), None, on_opened)
    queue = await opened
    look()
    worker.close()
    return {
        "messages": queue.ready,
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "longest_stall_ms": round(max(stalls) * 1000, 1),
        "99th_stall_ms": round(sorted(stalls)[len(stalls) * 99 // 100] * 1000, 1),
        "longest_work_ms": round(max(works) * 1000, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--version", type=int, default=2)
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("directory", nargs="?")
    asked = parser.parse_args()
    directory = tempfile.mkdtemp(dir=asked.directory)
    try:
        fill(directory, asked.messages, asked.body, asked.version, stops_cleanly=asked.clean)
        found = recover_at_once(directory) if asked.at_once else asyncio.run(recover_in_slices(directory))
        print(json.dumps(found))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()

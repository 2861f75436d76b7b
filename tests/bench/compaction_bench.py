"""Compaction under load: 80 % of a large shared store acked in random order while publishing and consuming go on.

    python tests/bench/compaction_bench.py --gigabytes 2 --compaction holes

One process: the storage of a vhost on the real disk, an event loop, the sync thread. A queue holds the messages, all
delivered; they are acked in random order beside a second queue with traffic of its own. Watched are the disk use of
the shared store against its live data, and how late a timer of the loop comes. Prints one JSON line; for each of the
longer pauses also how long the machine itself stood still in it, and how many times as long as usual other processes
took for a fixed piece of work (`tests.bench.machine_stalls`); and the worst pause without the former, leaving out those
in which the machine was slow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cluster.real_world.collector import tune_collector
from cluster.real_world.world import ThreadWorker
from cluster.runtime.reclaimer import Reclaimer
from cluster.runtime.sync_thread import SyncThread
from node.errors import StorageError
from node.ids import OriginId, QueueId, QueueName, SeqId
from node.message import Message
from node.queues.backing_queue import Publication
from node.queues.local_replica import LocalReplica
from node.queues.vhost_store import VhostStore
from node.store.disk.disk import RealDisk
from node.store.disk.group_commit import GroupCommit
from node.store.shared.compaction.compaction import Reclaimed
from node.store.shared.config import StoreConfig
from tests.bench.machine_stalls import MachineStalls, current_processor
from tests.support.messages import make_msg_id

BODY_BYTES = 8192
#: Messages per turn of the loop: about a millisecond of work.
TURN_MESSAGES = 32
#: The owner of the store calls `maintain` so often.
MAINTAIN_S = 0.1
#: Pauses at least so long are looked at one by one.
LISTED_S = 0.003
#: Above so many times its usual time for the same work the machine is called slow.
SLOW = 3.0


class Pause(NamedTuple):
    """A timer came late."""

    due_s: float
    came_s: float
    #: On which the loop was before and after it, if on the same.
    processor: int | None


class Bench:
    """The storage, its loop, and what is watched."""

    def __init__(self, directory: str, compaction: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.group_commit = GroupCommit()
        self.store = VhostStore(RealDisk(), directory, "/", self.group_commit, StoreConfig(compaction=compaction))
        self.sync_thread = SyncThread(
            self.loop, ThreadWorker("sync"), self.group_commit, lambda: None, self._durable, self._failed
        )
        self.reclaimer = Reclaimer(self.loop, self, self.sync_thread.request, time.monotonic)
        self.durable = asyncio.Event()
        self.counter = 0
        self.worst_pause_s = 0.0
        self.pauses: list[Pause] = []
        self.is_measuring = False
        self.ratios: list[float] = []

    def _durable(self) -> None:
        self.durable.set()

    def _failed(self, error: StorageError) -> None:
        raise SystemExit(f"the disk failed: {error}")

    def reclaim(self) -> Reclaimed:
        return self.store.reclaim()

    @property
    def has_unsynced(self) -> bool:
        return self.group_commit.has_dirty

    def open(self, number: int) -> LocalReplica:
        return self.store.open_queue(QueueId(number), QueueName("/", f"q{number}"), True)

    def publications(self, count: int) -> list[Publication]:
        made = []
        for _ in range(count):
            self.counter += 1
            body = self.counter.to_bytes(8, "big") * (BODY_BYTES // 8)
            msg_id = make_msg_id(OriginId(b"bench---"), self.counter)
            made.append(Publication(Message(msg_id, "", "q", b"", body, persistent=True)))
        return made

    async def turn(self) -> None:
        self.sync_thread.request()
        await asyncio.sleep(0)

    async def tick(self) -> None:
        """How late does a timer come?"""
        was_on = current_processor()
        while True:
            due_s = self.loop.time() + 0.001
            await asyncio.sleep(0.001)
            came_s = self.loop.time()
            is_on = current_processor()
            if self.is_measuring:
                self.worst_pause_s = max(self.worst_pause_s, came_s - due_s)
                if came_s - due_s >= LISTED_S:
                    self.pauses.append(Pause(due_s, came_s, is_on if is_on == was_on else None))
            was_on = is_on

    async def maintain(self) -> None:
        while True:
            await asyncio.sleep(MAINTAIN_S)
            self.store.maintain(int(self.loop.time() * 1000))
            if self.has_unsynced:
                self.sync_thread.request()
            self.reclaimer.tick()

    async def until_disk_use_is_below(self, ratio: float) -> None:
        """Total bytes against live ones; looked at after each round of the group commit."""
        while (status := self.store.shared_status()).total_bytes > ratio * status.valid_bytes:
            self.durable.clear()
            await self.durable.wait()

    async def traffic(self, queue: LocalReplica, per_s: float) -> None:
        """Publish and consume at a steady rate."""
        started, done = self.loop.time(), 0
        while True:
            queue.publish(self.publications(8))
            queue.ack([delivery.seq_id for delivery in queue.fetch(8, ack_required=True)])
            done += 8
            self.sync_thread.request()
            await asyncio.sleep(max(0.0, started + done / per_s - self.loop.time()))


async def fill(bench: Bench, queue: LocalReplica, messages: int) -> None:
    queue.set_ram_duration_target(0.0)
    queue.engine.paging.page_out()
    published = 0
    while published < messages:
        queue.publish(bench.publications(TURN_MESSAGES))
        published += TURN_MESSAGES
        queue.engine.flush_writes()
        queue.engine.paging.page_out()
        await bench.turn()
    taken = 0
    while taken < published:
        taken += len(queue.fetch(TURN_MESSAGES, ack_required=True))
        queue.engine.paging.page_out()
        await asyncio.sleep(0)


async def run(directory: str, options: argparse.Namespace) -> dict[str, object]:
    with MachineStalls() as stalls:
        figures, pauses = await measure(directory, options)
    listed = [
        {
            "ms": (came_s - due_s) * 1000,
            "machine_stalled_ms": stalls.seconds_within(due_s, came_s, processor) * 1000,
            "machine_slowness": stalls.slowness_within(due_s, came_s),
        }
        for due_s, came_s, processor in pauses
    ]
    return {
        **figures,
        "worst_pause_undisturbed_ms": max(map(undisturbed_ms, listed), default=None),
        "worst_machine_stall_ms": stalls.worst_s * 1000 if stalls.have_priority else None,
        "pauses_of_10_ms": [pause for pause in listed if pause["ms"] >= 10],
    }


def undisturbed_ms(pause: dict[str, float]) -> float:
    """What is left of a pause without the time in which the machine stood still; 0 if it was slow."""
    return 0.0 if pause["machine_slowness"] > SLOW else pause["ms"] - pause["machine_stalled_ms"]


async def measure(directory: str, options: argparse.Namespace) -> tuple[dict[str, object], list[Pause]]:
    tune_collector(asyncio.get_running_loop())
    bench = Bench(directory, options.compaction)
    queue, busy = bench.open(1), bench.open(2)
    messages = int(options.gigabytes * 1e9 / BODY_BYTES)
    started_s = time.monotonic()
    await fill(bench, queue, messages)
    print(f"filled in {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    order = [SeqId(seq_id) for seq_id in range(messages)]
    random.Random(1).shuffle(order)
    tasks = [
        asyncio.create_task(work) for work in (bench.tick(), bench.maintain(), bench.traffic(busy, options.traffic))
    ]
    await asyncio.sleep(1)
    bench.is_measuring = True
    acked, target = 0, int(0.8 * messages)
    begun_s = bench.loop.time()
    peak = 0.0
    while acked < target:
        queue.ack(order[acked : acked + TURN_MESSAGES])
        acked += TURN_MESSAGES
        bench.sync_thread.request()
        status = bench.store.shared_status()
        peak = max(peak, status.total_bytes / max(1, status.valid_bytes))
        await asyncio.sleep(max(0.0, begun_s + acked / options.acks - bench.loop.time()))
    acked_s = bench.loop.time() - begun_s
    at_end = bench.store.shared_status()
    await bench.until_disk_use_is_below(2.2)
    settled_s = bench.loop.time() - begun_s - acked_s
    await asyncio.sleep(3)
    bench.is_measuring = False
    status = bench.store.shared_status()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    bench.reclaimer.stop()
    await bench.sync_thread.stop()
    figures: dict[str, object] = {
        "bench": "compaction",
        "compaction": options.compaction,
        "gigabytes": options.gigabytes,
        "acks_per_s": target / acked_s,
        "peak_disk_to_live": peak,
        "disk_to_live_after_last_ack": at_end.total_bytes / at_end.valid_bytes,
        "seconds_until_under_2.2": settled_s,
        "disk_to_live_at_end": status.total_bytes / status.valid_bytes,
        "moved_mb": status.moved_bytes / 1e6,
        "compactions": status.compactions,
        "worst_pause_ms": bench.worst_pause_s * 1000,
    }
    return figures, bench.pauses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--compaction", choices=("holes", "merge"), default="holes")
    parser.add_argument("--acks", type=float, default=10_000, help="acks per second")
    parser.add_argument("--traffic", type=float, default=1000, help="messages per second through the other queue")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-compaction-", dir=os.environ.get("WARREN_BENCH_DIR")) as directory:
        print(json.dumps(asyncio.run(run(directory, options))))


if __name__ == "__main__":
    main()

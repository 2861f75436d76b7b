"""How long changes of the metadata hold the loop of a whole node that has a part in many queues.

A runtime on a real disk, one of three nodes, with a copy of every queue; entries come as they come from consensus.
Another node consumes from every queue that is mastered here, until its link breaks. Every call of the loop is timed by
the processor time of its thread. The start of a node: `tests.bench.metadata_start_bench`. From the repository's
root: ``python -m tests.bench.metadata_node_bench [--queues 10000] [--bindings 50000] [--at-once]``. Prints one JSON
line: per operation the milliseconds of the longest call, of all calls together, and how many there were. ``--at-once``
applies each entry in one call, as if there were no pieces.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import sys
import tempfile
import time
from asyncio import events
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from cluster.metadata.codec import encode_request
from cluster.metadata.commands import (
    ChangeTopology,
    ClearPolicy,
    Command,
    NodeDown,
    NodeUp,
    Request,
    RequestId,
    SetPolicy,
)
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from cluster.raft.messages import Entry, EntryKind, Snapshot
from cluster.real_world.collector import tune_collector
from cluster.runtime.applier import SLICE_PIECES, Applied, Applier
from cluster.sessions.messages import SessionCall, SessionOpen
from cluster.transport.admin_port import QueueSelection
from node.ids import Incarnation, NodeName
from node.queues.events import ConsumerSpec
from node.store.disk.disk import RealDisk
from node.topology.commands import Bind, CreateVhost, DeclareExchange, DeclareQueue, DeleteExchange, DeleteVhost
from tests.support.runtime_bench import N1, N2, N3, FakeLog, RuntimeBench

NODES = (N1, N2, N3)
#: Turns without anything to do after which an operation counts as over.
IDLE_TURNS = 20
#: Longer calls are named on the standard error.
NAMED_S = 0.02


def _name_of(handle: events.Handle) -> str:
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    return repr(task.get_coro()) if isinstance(task, asyncio.Task) else repr(handle)


class CallTimes:
    """Processor time of every call of the loop."""

    def __init__(self) -> None:
        #: With what was called.
        self.calls_s: list[tuple[float, str]] = []
        original = events.Handle._run
        calls_s = self.calls_s

        def timed(handle: events.Handle) -> None:
            began_s = time.thread_time()
            original(handle)
            seconds = time.thread_time() - began_s
            calls_s.append((seconds, _name_of(handle) if seconds > NAMED_S else ""))

        events.Handle._run = timed  # type: ignore[method-assign, assignment]


class Bench(RuntimeBench):
    """A node whose slices of work end by processor time."""

    def clock(self) -> float:
        return time.thread_time()


class Log(FakeLog):
    """Commits at once, and has it applied slice by slice."""

    def __init__(self, bench: Bench, *, is_at_once: bool) -> None:
        super().__init__(bench)
        self._is_at_once = is_at_once
        self.applier = Applier(
            bench.runtime.metadata,
            0,
            call_soon=asyncio.get_running_loop().call_soon,
            clock=time.thread_time,
            slice_pieces=SLICE_PIECES,
            on_applied=self._applied,
            on_slice=lambda _count, _restored: bench.runtime.queues.log_applied(),
            on_failed=self._failed,
        )
        self._waiting: dict[Any, asyncio.Future[Any]] = {}

    @staticmethod
    def _failed(error: Exception) -> None:
        raise error

    def _applied(self, applied: Applied) -> None:
        future = self._waiting.pop(applied.request_id, None)
        assert applied.error is None, applied.error
        if future is not None:
            future.set_result(applied.outcome)

    def add(self, *commands: Command) -> None:
        """All of them in one batch."""
        self.add_entries(self.entries(*commands))

    def entries(self, *commands: Command) -> list[Entry]:
        """As they come from consensus."""
        entries = []
        for command in commands:
            self.index += 1
            request = Request(RequestId(NodeName("test"), Incarnation(1), self.index), command)
            entries.append(Entry(self.index, 1, EntryKind.COMMAND, encode_request(request)))
        return entries

    def add_entries(self, entries: list[Entry]) -> None:
        if not self._is_at_once:
            self.applier.add(entries)
            return
        for entry in entries:
            self._applied(self.bench.runtime.metadata.apply(entry.index, entry.payload))
            self.applier.applied_index = entry.index
        self.bench.runtime.queues.log_applied()

    def install(self, data: bytes, index: int) -> None:
        """A snapshot comes from the leader."""
        self.index = index
        if self._is_at_once:
            self.bench.runtime.metadata.restore(data)
            self.applier.applied_index = self.index
        else:
            self.applier.install(Snapshot(self.index, 1, (N1,), data))

    async def propose(self, payload: bytes, request_id: RequestId) -> Any:
        self.index += 1
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self.add_entries([Entry(self.index, 1, EntryKind.COMMAND, payload)])
        return await future


async def idle(log: Log) -> None:
    """Until nothing goes on any more."""
    quiet = 0
    loop: Any = asyncio.get_running_loop()
    while quiet < IDLE_TURNS:
        await asyncio.sleep(0)
        applier = log.applier
        is_busy = bool(log._waiting or applier._waiting) or applier.is_amid or len(loop._ready) > 1
        quiet = 0 if is_busy else quiet + 1


async def measure(times: CallTimes, log: Log, work: Callable[[], object]) -> dict[str, float]:
    await idle(log)
    gc.collect()
    await asyncio.sleep(0)  # this is no call of the node's
    times.calls_s.clear()
    asyncio.get_running_loop().call_soon(work)
    await idle(log)
    return result_of(times)


def result_of(times: CallTimes) -> dict[str, float]:
    longest_s, name = max(times.calls_s)
    if name:
        print(round(1000 * longest_s), name, file=sys.stderr)
    all_s = sum(seconds for seconds, _ in times.calls_s)
    return {"longest_ms": round(1000 * longest_s, 1), "all_ms": round(1000 * all_s), "calls": len(times.calls_s)}


async def listing(times: CallTimes, log: Log, ask: Callable[[], Awaitable[object]]) -> dict[str, float]:
    await idle(log)
    times.calls_s.clear()
    await asyncio.create_task(ask())  # type: ignore[arg-type]
    return result_of(times)


class Laid(NamedTuple):
    """A node with its queues and bindings, and what it took to make them."""

    bench: Bench
    log: Log
    results: dict[str, dict[str, float]]


async def prepared(directory: str, queues: int, bindings: int, times: CallTimes, *, is_at_once: bool) -> Laid:
    bench = Bench(RealDisk(), directory)
    log = Log(bench, is_at_once=is_at_once)
    bench.runtime.metadata.join(log)
    log.add(ChangeTopology(CreateVhost("/"), N1))
    log.add(*(NodeUp(node, Incarnation(1), f"{node}:1", f"{node}:2", NEWEST_PROTOCOL) for node in NODES))
    log.add(SetPolicy(PolicyRecord("/", "ha", "^", {"ha-mode": "all"}, 0, "all")))
    await bench.runtime.activate()
    bench.runtime.housekeeping.stop()  # what it does is measured by itself
    names = [f"queue.{number:05}" for number in range(queues)]
    results = {}
    times.calls_s.clear()
    for at in range(0, queues, 100):
        log.add(
            *(
                ChangeTopology(DeclareQueue("/", name, durable=True), NODES[at // 100 % 3])
                for name in names[at : at + 100]
            )
        )
        await idle(log)
    results["declare"] = result_of(times)
    log.add(ChangeTopology(DeclareExchange("/", "events", "topic", durable=True), N1))
    times.calls_s.clear()
    binds = [Bind("/", "events", names[number % queues], "queue", f"key.{number}", {}) for number in range(bindings)]
    entries = log.entries(*(ChangeTopology(bind, N1) for bind in binds))
    await asyncio.sleep(0)  # making them is no call of the node's
    times.calls_s.clear()
    log.add_entries(entries)
    await idle(log)
    results["bind"] = result_of(times)
    return Laid(bench, log, results)


def attend(bench: Bench, node: NodeName) -> None:
    """A channel of ``node`` has a consumer of every queue that is mastered here."""
    for queue_id in bench.runtime.queues.mastered():
        epoch = bench.runtime.metadata.state.masterships[queue_id].epoch
        consumer = ConsumerSpec("consumer", no_ack=False, exclusive=False)
        opened = SessionOpen(queue_id, queue_id, epoch, 200, False)
        bench.runtime.sessions.receive(node, opened)
        bench.runtime.sessions.receive(node, SessionCall(queue_id, queue_id, 1, "consume", 1, consumer))


async def run(directory: str, queues: int, bindings: int, *, is_at_once: bool) -> dict[str, Any]:
    from cluster.runtime.admin import NodeAdmin  # noqa: PLC0415 - what it is given here is little

    tune_collector(asyncio.get_running_loop())
    times = CallTimes()
    bench, log, laid = await prepared(directory, queues, bindings, times, is_at_once=is_at_once)
    metadata = bench.runtime.metadata
    down, up = NodeDown(N2, Incarnation(1)), NodeUp(N2, Incarnation(1), "n2:1", "n2:2", NEWEST_PROTOCOL)
    again = NodeUp(N3, Incarnation(2), "n3:1", "n3:2", NEWEST_PROTOCOL)
    policy = PolicyRecord("/", "more", "^queue", {"ha-mode": "all", "max-length": 9000}, 5, "queues")
    elsewhere = PolicyRecord("/", "fewer", "^queue", {"ha-mode": "nodes", "ha-params": [N1]}, 6, "queues")
    results: dict[str, Any] = {"queues": queues, "bindings": bindings, "at_once": is_at_once, **laid}
    attend(bench, N2)
    results["link_down"] = await measure(times, log, lambda: bench.runtime.membership.link_down(N2))
    results["node_down"] = await measure(times, log, lambda: log.add(down))
    results["node_up"] = await measure(times, log, lambda: log.add(up))
    results["link_up"] = await measure(times, log, lambda: bench.runtime.membership.link_up(N2, Incarnation(1)))
    results["node_up_again"] = await measure(times, log, lambda: log.add(again))
    results["set_policy"] = await measure(times, log, lambda: log.add(SetPolicy(policy)))
    results["clear_policy"] = await measure(times, log, lambda: log.add(ClearPolicy("/", "more")))
    results["unmirror"] = await measure(times, log, lambda: log.add(SetPolicy(elsewhere)))
    results["tick"] = await measure(times, log, bench.runtime.housekeeping.tick)
    admin = NodeAdmin.__new__(NodeAdmin)
    admin._state, admin._runtime = metadata.state, bench.runtime
    admin._require_vhost = lambda _vhost: None  # type: ignore[method-assign, assignment]
    local = QueueSelection(local=True)
    results["list_queues"] = await listing(times, log, lambda: admin.list_queues("/", ["name", "messages"], local))
    results["list_bindings"] = await listing(times, log, lambda: admin.list_bindings("/", []))
    snapshot = metadata.state.snapshot()
    log.add(down)
    await idle(log)
    ahead = MetadataState()
    ahead.restore(snapshot)
    ahead.applied_index = log.index + 10
    data, index = ahead.snapshot(), ahead.applied_index
    del ahead
    results["restore"] = await measure(times, log, lambda: log.install(data, index))
    declared = [ChangeTopology(DeclareQueue("/", f"queue.{at % queues:05}", durable=True), N1) for at in range(20_000)]
    replayed = log.entries(*declared)
    results["replay_20000"] = await measure(times, log, lambda: log.add_entries(replayed))
    deletion = ChangeTopology(DeleteExchange("/", "events"), N1)
    results["delete_exchange"] = await measure(times, log, lambda: log.add(deletion))
    results["delete_vhost"] = await measure(times, log, lambda: log.add(ChangeTopology(DeleteVhost("/"), N1)))
    await bench.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--bindings", type=int, default=50_000)
    parser.add_argument("--at-once", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(asyncio.run(run(directory, given.queues, given.bindings, is_at_once=given.at_once))))


if __name__ == "__main__":
    main()

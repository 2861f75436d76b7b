"""Rounds of fsync: shared, one after the other, final when they fail. Files are fakes, the thread is real."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from cluster.real_world.world import ThreadWorker
from cluster.runtime.sync_thread import FLUSH_AGAIN_S, SyncThread
from node.errors import OpenFilesError, StorageError
from node.store.disk.group_commit import GroupCommit


class FakeFile:
    """A file whose sync waits for permission, and may fail."""

    def __init__(self) -> None:
        self.may_finish = threading.Event()
        self.syncs = 0
        self.threads: set[str] = set()
        self.error: Exception | None = None

    def sync(self) -> None:
        assert self.may_finish.wait(timeout=10), "the test forgot to let the sync finish"
        self.threads.add(threading.current_thread().name)
        self.syncs += 1
        if self.error is not None:
            raise self.error


class Bench:
    """A sync thread with what it was told and what it told."""

    def __init__(self) -> None:
        self.group_commit = GroupCommit()
        self.file = FakeFile()
        self.buffered = 0
        self.flush_error: StorageError | None = None
        self.durable: list[int] = []
        self.failures: list[StorageError] = []
        self.changed = asyncio.Event()
        self.worker = ThreadWorker("sync")
        self.thread = SyncThread(
            asyncio.get_running_loop(),
            self.worker,
            self.group_commit,
            self.flush,
            self.on_durable,
            self.on_failure,
        )

    def flush(self) -> None:
        if self.flush_error is not None:
            raise self.flush_error
        if self.buffered:
            self.buffered = 0
            self.group_commit.mark_dirty(self.file)

    def on_durable(self) -> None:
        self.durable.append(self.group_commit.durable_generation)
        self.changed.set()

    def on_failure(self, error: StorageError) -> None:
        self.failures.append(error)
        self.changed.set()

    def write(self) -> None:
        self.buffered += 1
        self.thread.request()
        self.thread.check_invariants()

    async def change(self) -> None:
        async with asyncio.timeout(10):
            await self.changed.wait()
        self.changed.clear()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.file.may_finish.set()
    await bench.thread.stop()


async def test_writes_of_one_turn_share_a_round_on_the_thread(bench: Bench) -> None:
    bench.file.may_finish.set()
    for _ in range(5):
        bench.write()
    await bench.change()
    assert bench.durable == [1]
    assert bench.file.syncs == 1
    assert threading.current_thread().name not in bench.file.threads


async def test_writes_during_a_round_share_the_next(bench: Bench) -> None:
    bench.write()
    await asyncio.sleep(0)
    for _ in range(3):
        bench.write()
        await asyncio.sleep(0)
    assert bench.durable == []
    bench.file.may_finish.set()
    await bench.change()
    assert bench.durable[0] == 1
    if len(bench.durable) == 1:
        await bench.change()
    assert bench.durable == [1, 2]
    assert bench.file.syncs == 2


async def test_what_was_synced_while_a_sync_of_others_failed_is_not_durable(bench: Bench) -> None:
    bench.write()
    await asyncio.sleep(0)
    bench.group_commit.distrust(StorageError("a sync of others failed"))
    bench.file.may_finish.set()
    await bench.change()
    bench.write()
    await asyncio.sleep(0)
    assert (list(map(str, bench.failures)), bench.durable) == (["a sync of others failed"], [])
    assert bench.group_commit.durable_generation == 0


async def test_after_a_sync_of_others_has_failed_there_are_no_rounds(bench: Bench) -> None:
    bench.group_commit.distrust(StorageError("a sync of others failed"))
    bench.write()
    await bench.change()
    assert (len(bench.failures), bench.file.syncs) == (1, 0)


async def test_a_request_without_writes_costs_nothing(bench: Bench) -> None:
    bench.thread.request()
    await asyncio.sleep(0)
    bench.thread.check_invariants()
    assert bench.file.syncs == 0


@pytest.mark.parametrize("error", [StorageError("no space"), OSError("unexpected")])
async def test_a_failed_sync_is_final(bench: Bench, error: Exception) -> None:
    bench.file.error = error
    bench.file.may_finish.set()
    bench.write()
    await bench.change()
    bench.write()
    await asyncio.sleep(0)
    assert (len(bench.failures), bench.durable, bench.file.syncs) == (1, [], 1)
    assert bench.group_commit.failure is bench.failures[0]


async def test_a_failed_flush_is_final(bench: Bench) -> None:
    bench.flush_error = StorageError("no space")
    bench.write()
    await bench.change()
    bench.flush_error = None
    bench.write()
    await asyncio.sleep(0)
    assert (len(bench.failures), bench.file.syncs) == (1, 0)


async def test_stop_syncs_what_is_due() -> None:
    bench = Bench()
    bench.file.may_finish.set()
    bench.write()
    await asyncio.sleep(0)
    bench.write()
    await bench.thread.stop()
    assert bench.durable[-1] == bench.group_commit.open_generation - 1
    assert bench.buffered == 0


class Pieces:
    """Collected writes that nobody waits for; each flush writes one."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.all_written = asyncio.Event()

    @property
    def has_unflushed(self) -> bool:
        return bool(self.left)

    @property
    def unflushed_since(self) -> int:
        return 1

    def flush_writes(self, _at_most: int) -> int:
        self.left -= 1
        if not self.left:
            self.all_written.set()
        return 1


async def test_what_a_flush_leaves_follows_though_nothing_is_synced(bench: Bench) -> None:
    pieces = Pieces(3)
    bench.group_commit.add_buffer(pieces)
    bench.thread.request()
    async with asyncio.timeout(10):
        await pieces.all_written.wait()
    assert bench.durable == [], "there was no round"


async def test_after_the_stop_nothing_more_is_flushed(bench: Bench) -> None:
    pieces = Pieces(3)
    bench.group_commit.add_buffer(pieces)
    await bench.thread.stop()
    assert pieces.left == 2
    # Timers come in order: one that was set before this one would have come first.
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(FLUSH_AGAIN_S, is_over.set)
    await is_over.wait()
    assert pieces.left == 2, "whoever stops the thread closes the files"


async def test_a_round_that_no_thread_takes_has_failed(bench: Bench) -> None:
    bench.worker.close()
    bench.write()
    await bench.change()
    assert [str(error) for error in bench.failures] == [
        "a sync failed: RuntimeError('cannot schedule new futures after shutdown')"
    ]
    assert bench.group_commit.failure is bench.failures[0]


async def test_a_round_that_found_no_descriptor_is_tried_again_and_nothing_is_durable_meanwhile(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.file.may_finish.set()
    bench.file.error = OpenFilesError("no descriptor")
    bench.write()
    async with asyncio.timeout(10):
        while bench.file.syncs < 3:
            await asyncio.sleep(0)
            bench.write()
    assert (bench.durable, bench.failures) == ([], [])
    assert bench.group_commit.open_generation == 2, "no other round begins"
    bench.file.error = None
    await bench.change()
    assert bench.durable == [1]
    assert caplog.text.count("no descriptor") == 1
    assert bench.failures == []


async def test_a_stop_waits_for_a_round_that_found_no_descriptor() -> None:
    bench = Bench()
    bench.file.may_finish.set()
    bench.file.error = OpenFilesError("no descriptor")
    bench.write()
    stopping = asyncio.create_task(bench.thread.stop())
    async with asyncio.timeout(10):
        while bench.file.syncs < 2:  # noqa: ASYNC110 - counted on the other thread
            await asyncio.sleep(0)
        bench.file.error = None
        await stopping
    assert (bench.durable, bench.failures) == ([1], [])

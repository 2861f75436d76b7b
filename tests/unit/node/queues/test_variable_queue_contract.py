"""The local engine keeps the contract: with bodies in memory, with all bodies paged out, and in the shared store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.queues.backing_queue import BackingQueue
from node.store.shared.config import StoreConfig
from tests.support.backing_queue_contract import BackingQueueContract, MakeQueue
from tests.support.stores import StoreHarness


def _make(config: StoreConfig, *, lazy: bool = False) -> tuple[BackingQueue, Callable[[], None]]:
    harness = StoreHarness(config)
    queue = harness.open_queue()
    queue.set_lazy(lazy)
    return queue, harness.sync


class TestVariableQueue(BackingQueueContract):
    @pytest.fixture
    def make_queue(self) -> MakeQueue:
        return lambda: _make(StoreConfig())


class TestVariableQueueWithSharedStore(BackingQueueContract):
    @pytest.fixture
    def make_queue(self) -> MakeQueue:
        return lambda: _make(StoreConfig(embed_below_bytes=0, file_size_limit_bytes=200))


class TestLazyVariableQueue(BackingQueueContract):
    """Every message is on disk before it is ready."""

    @pytest.fixture
    def make_queue(self) -> MakeQueue:
        return lambda: _make(StoreConfig(v2_segment_entries=8, io_batch_messages=2), lazy=True)

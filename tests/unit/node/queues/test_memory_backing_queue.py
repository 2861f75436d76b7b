"""The in-memory backing queue of the tests keeps what every backing queue promises: tests above it mean something."""

from __future__ import annotations

import pytest

from tests.support.backing_queue_contract import BackingQueueContract, MakeQueue
from tests.support.memory_backing_queue import MemoryBackingQueue


class TestMemoryBackingQueue(BackingQueueContract):
    @pytest.fixture
    def make_queue(self) -> MakeQueue:
        def make() -> tuple[MemoryBackingQueue, object]:
            queue = MemoryBackingQueue(hold_confirms=True)
            return queue, queue.make_safe

        return make  # type: ignore[return-value]

"""Memory and disk that hold what a test says, and queues that report what it says."""

from __future__ import annotations

from collections.abc import Sequence

from node.errors import StorageError
from node.ids import QueueId


class FakeProbe:
    """Implements `cluster.runtime.outside.ResourceProbe`."""

    def __init__(self, used_bytes: int = 100, free_bytes: int = 10**12) -> None:
        self.used_bytes = used_bytes
        self.free_bytes = free_bytes
        #: Why the disk cannot be measured, if it cannot.
        self.failure: StorageError | None = None
        self.disk_checks = 0
        self.free_descriptors = 10**6
        #: What the allocator can give back, and how often it was asked.
        self.returnable_bytes = 0
        self.returns = 0

    def used_memory_bytes(self) -> int:
        return self.used_bytes

    def free_disk_bytes(self) -> int:
        self.disk_checks += 1
        if self.failure is not None:
            raise self.failure
        return self.free_bytes

    def can_open_files(self, count: int) -> bool:
        return self.free_descriptors >= count

    def return_memory(self) -> None:
        self.returns += 1
        self.used_bytes -= self.returnable_bytes
        self.returnable_bytes = 0

    def physical_memory_bytes(self) -> int:
        return 16 * 1024**3

    def memory_group_limits(self) -> Sequence[int]:
        return []

    def close(self) -> None: ...


class FakePagingQueues:
    """Implements `node.alarms.memory_monitor.PagingQueues`. ``durations_s``: what each queue reports."""

    def __init__(self, **durations_s: float) -> None:
        self.durations_s = {QueueId(int(name[1:])): seconds for name, seconds in durations_s.items()}
        #: What each queue was told last, and every call as (verb, number of queues).
        self.targets_s: dict[QueueId, float] = {}
        self.calls: list[tuple[str, int]] = []

    def paging_queue_ids(self) -> Sequence[QueueId]:
        return list(self.durations_s)

    def ram_durations_s(self, queue_ids: Sequence[QueueId], now_ms: int) -> list[float]:
        self.calls.append(("ask", len(queue_ids)))
        return [self.durations_s[queue_id] for queue_id in queue_ids if queue_id in self.durations_s]

    def set_ram_duration_targets(self, queue_ids: Sequence[QueueId], seconds: float) -> None:
        self.calls.append(("tell", len(queue_ids)))
        self.targets_s |= dict.fromkeys(queue_ids, seconds)

"""What the queues of a node hold in memory, and how much of it they may: masters and mirrors alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from cluster.runtime.queue_role import Role
from node.alarms.memory_monitor import PagingQueue
from node.ids import QueueId


class QueuePaging:
    """Implements `node.alarms.memory_monitor.PagingQueues`. ``guarded``: what one queue does wrong stays its own."""

    def __init__(
        self,
        roles: Mapping[QueueId, Role],
        guarded: Callable[[QueueId], AbstractContextManager[None]],
        request_sync: Callable[[], None],
    ) -> None:
        self._roles = roles
        self._guarded = guarded
        self._request_sync = request_sync

    def paging_queue_ids(self) -> Sequence[QueueId]:
        """Every queue with a copy here: mirrors hold as much memory as masters."""
        return list(self._roles)

    def ram_durations_s(self, queue_ids: Sequence[QueueId], now_ms: int) -> list[float]:
        """Seconds of its traffic that each of these queues holds in memory; those that are gone are left out."""
        durations_s: list[float] = []
        for queue_id in queue_ids:
            if queue_id in self._roles:
                with self._guarded(queue_id):
                    durations_s.append(self._roles[queue_id].local.ram_duration_s(now_ms))
        return durations_s

    def set_ram_duration_targets(self, queue_ids: Sequence[QueueId], seconds: float) -> None:
        """How many seconds of traffic these queues may hold in memory. What they page out is written at once."""
        for queue_id in queue_ids:
            role = self._roles.get(queue_id)
            if role is not None:
                copy: PagingQueue = role.local
                with self._guarded(queue_id):
                    copy.set_ram_duration_target(seconds)
        self._request_sync()

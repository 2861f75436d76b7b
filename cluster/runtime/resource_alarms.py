"""The alarms of a node at work: measures, tells queues and peers, and says when publishers must stop.

::

    tick --> probe --memory--> MemoryMonitor --+--> AlarmRegistry --reason--> the broker of this node
                   --disk----> DiskMonitor ----+         |  ^
                                  PagingSweep --> queues +--+--> peers (NodeAlarms), at link up and on every change

Limits that an operator sets at run time hold until the node stops, as in the reference. A node judges only its own
memory and disk, and every node blocks publishers for the alarms of all (`node.alarms.registry`).

Why memory must be given back. The alarm looks at what is resident, because that is what the machine runs out of. What
queues free, by paging or because they were drained, goes back to the allocator, which keeps most of it for later;
publishers would stay blocked over memory that nobody uses. So while enough is in use for paging, the allocator is asked
to return what it can: often as long as that helps, seldom once it does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cluster.membership.messages import NodeAlarms
from cluster.runtime.outside import ResourceProbe
from node.alarms.disk_monitor import DiskMonitor
from node.alarms.limits import DiskFreeLimit, MemoryWatermark, available_memory_bytes
from node.alarms.memory_monitor import MemoryMonitor, PagingQueues, PagingSweep
from node.alarms.registry import Alarm, AlarmRegistry
from node.config import NodeConfig
from node.errors import DirectoryGoneError, StorageError
from node.ids import NodeName

log = logging.getLogger(__name__)

#: Pause between two requests to return memory; doubled up to the second number while they are not worth it. glibc takes
#: 10 ms per 100 MB that it returns (measured), and some milliseconds to find nothing in a large heap.
RETURN_INTERVAL_MIN_MS = 500
RETURN_INTERVAL_MAX_MS = 4000
#: What a request must bring to be worth it.
RETURN_WORTH_BYTES = 1024 * 1024


class ResourceAlarms:
    """See the module text."""

    def __init__(
        self,
        node: NodeName,
        total_memory_bytes: int,
        watermark: MemoryWatermark,
        paging_ratio: float,
        disk_limit: DiskFreeLimit,
        probe: ResourceProbe,
        queues: PagingQueues,
    ) -> None:
        self.node = node
        self.total_memory_bytes = total_memory_bytes
        self.watermark = watermark
        self.disk_limit = disk_limit
        #: Told why publishers must stop, or (empty) that they may go on, whenever that changes.
        self.on_reason: Callable[[str], None] = lambda _reason: None
        #: Told when this node's own alarms have changed: every linked peer must learn it.
        self.on_own_change: Callable[[NodeAlarms], None] = lambda _alarms: None
        #: Told that the data directory is gone, whenever the disk is looked at: this node must end.
        self.on_directory_gone: Callable[[StorageError], None] = lambda _error: None
        self.registry = AlarmRegistry(node)
        self.memory = MemoryMonitor(watermark.limit_bytes(total_memory_bytes), paging_ratio)
        self.disk = DiskMonitor(disk_limit.limit_bytes(total_memory_bytes))
        self._sweep = PagingSweep()
        self._probe = probe
        self._queues = queues
        self._reason = ""
        self._next_return_ms = 0
        self._return_interval_ms = RETURN_INTERVAL_MIN_MS
        log.info(
            "memory limit: %s; disk limit: %s",
            _limit_text(watermark, self.memory.limit_bytes),
            _limit_text(disk_limit, self.disk.limit_bytes),
        )

    # --- this node ---

    @classmethod
    def as_configured(cls, config: NodeConfig, probe: ResourceProbe, queues: PagingQueues) -> ResourceAlarms:
        """Of a node on the machine that ``probe`` knows."""
        physical_bytes, limits = probe.physical_memory_bytes(), probe.memory_group_limits()
        return cls(
            config.node_name,
            available_memory_bytes(physical_bytes, limits, config.total_memory_override_bytes),
            MemoryWatermark(config.memory_watermark_relative or 0.0, config.memory_watermark_absolute_bytes),
            config.memory_paging_ratio,
            DiskFreeLimit(config.disk_free_limit_absolute_bytes or 0, config.disk_free_limit_relative),
            probe,
            queues,
        )

    def tick(self, now_ms: int) -> None:
        """Look at memory, and at the disk if it is time; to be called about ten times a second."""
        self._measure(now_ms)
        self._sweep.step(self.memory, self._queues, now_ms, is_disk_alarmed=self.disk.is_alarmed)
        if not self.memory.is_paging:
            self._return_interval_ms = RETURN_INTERVAL_MIN_MS
            self._next_return_ms = min(self._next_return_ms, now_ms + RETURN_INTERVAL_MIN_MS)
        elif now_ms >= self._next_return_ms:
            self._return_memory(now_ms)

    def _return_memory(self, now_ms: int) -> None:
        before_bytes = self._probe.used_memory_bytes()
        self._probe.return_memory()
        if before_bytes - self._probe.used_memory_bytes() >= RETURN_WORTH_BYTES:
            self._return_interval_ms = RETURN_INTERVAL_MIN_MS
        else:
            self._return_interval_ms = min(2 * self._return_interval_ms, RETURN_INTERVAL_MAX_MS)
        self._next_return_ms = now_ms + self._return_interval_ms

    def has_room(self, needed_bytes: int, needed_files: int, now_ms: int) -> bool:
        """Look at the disk now: is there no alarm, so much free, and may so many more files be opened?"""
        self._measure_disk(now_ms)
        if self.disk.is_alarmed or self.disk.free_bytes is None or self.disk.free_bytes < needed_bytes:
            return False
        return self._probe.can_open_files(needed_files)

    def set_memory_watermark(self, watermark: MemoryWatermark, now_ms: int) -> None:
        """Until the node stops."""
        self.watermark = watermark
        self.memory.set_limit(watermark.limit_bytes(self.total_memory_bytes))
        log.info("memory limit set to %s", _limit_text(watermark, self.memory.limit_bytes))
        self._measure(now_ms)

    def set_disk_limit(self, limit: DiskFreeLimit, now_ms: int) -> None:
        """Until the node stops."""
        self.disk_limit = limit
        self.disk.set_limit(limit.limit_bytes(self.total_memory_bytes))
        log.info("disk limit set to %s", _limit_text(limit, self.disk.limit_bytes))
        self._measure(now_ms)

    def _measure(self, now_ms: int) -> None:
        self.memory.measured(self._probe.used_memory_bytes(), now_ms)
        if self.disk.is_due(now_ms):
            self._measure_disk(now_ms)
        own = {
            alarm
            for alarm, is_alarmed in ((Alarm.MEMORY, self.memory.is_alarmed), (Alarm.DISK, self.disk.is_alarmed))
            if is_alarmed
        }
        before = self.registry.own
        if self.registry.update(self.node, own):
            self._announce(before)
            self.on_own_change(self.own_alarms())
            self._tell_broker()

    def _measure_disk(self, now_ms: int) -> None:
        was_unknown = bool(self.disk.failure)
        try:
            free_bytes = self._probe.free_disk_bytes()
        except StorageError as error:
            is_news = self.disk.could_not_measure(str(error), now_ms)
            if isinstance(error, DirectoryGoneError):
                self.on_directory_gone(error)
            elif is_news:
                log.error("the free space of the disk cannot be measured, so its alarm does not work: %s", error)
            return
        self.disk.measured(free_bytes, now_ms)
        if was_unknown:
            log.info("the free space of the disk can be measured again")

    def _announce(self, before: frozenset[Alarm]) -> None:
        """Say in the log what has happened to this node; who reads it should not miss it."""
        figures = {
            Alarm.MEMORY: f"{self.memory.used_bytes} bytes in use, the limit is {self.memory.limit_bytes}",
            Alarm.DISK: f"{self.disk.free_bytes} bytes free, the limit is {self.disk.limit_bytes}",
        }
        for alarm in Alarm:
            if alarm in self.registry.own and alarm not in before:
                log.warning(
                    "*** %s ALARM raised on %s: %s. Publishers are blocked on every node until it clears. ***",
                    *(alarm.name, self.node, figures[alarm]),
                )
            elif alarm in before and alarm not in self.registry.own:
                log.warning("*** %s alarm cleared on %s: %s. ***", alarm.name, self.node, figures[alarm])

    # --- other nodes ---

    def own_alarms(self) -> NodeAlarms:
        """What a peer must know; to be sent when its link comes up, even if it is nothing."""
        return NodeAlarms(tuple(alarm for alarm in Alarm if alarm in self.registry.own))

    def receive(self, peer: NodeName, message: NodeAlarms) -> None:
        """A peer says which alarms it has."""
        if self.registry.update(peer, message.alarms):
            names = ", ".join(alarm.value for alarm in message.alarms) or "none any more"
            log.warning("alarms on %s: %s", peer, names)
            self._tell_broker()

    @property
    def alarmed_peers(self) -> list[NodeName]:
        """See `AlarmRegistry.alarmed_peers`."""
        return self.registry.alarmed_peers

    def node_up(self, node: NodeName) -> None:
        self.registry.node_up(node)
        self._tell_broker()

    def node_down(self, node: NodeName, *, is_linked: bool) -> None:
        self.registry.node_down(node, is_linked=is_linked)
        self._tell_broker()

    def link_lost(self, node: NodeName) -> None:
        self.registry.link_lost(node)
        self._tell_broker()

    def _tell_broker(self) -> None:
        reason = self.registry.reason
        if reason != self._reason:
            self._log_reason(reason)
            self._reason = reason
            self.on_reason(reason)

    def _log_reason(self, reason: str) -> None:
        if not reason:
            log.warning("no alarm is left in the cluster: publishers go on")
        elif not self._reason:
            log.warning("publishers are blocked on this node: %s", reason)

    # --- reports ---

    def listing(self) -> list[dict[str, str]]:
        """The alarms of all nodes, as status reports show them."""
        return [{"resource": alarm.value, "node": node} for node, alarm in self.registry.raised()]

    def status(self) -> dict[str, Any]:
        """Figures of this node, in bytes, under the reference's names."""
        return {
            "vm_memory_high_watermark_setting": _setting(self.watermark.absolute_bytes, self.watermark.relative),
            "vm_memory_high_watermark_limit": self.memory.limit_bytes,
            "vm_memory_calculation_strategy": "rss",
            "total_memory_available": self.total_memory_bytes,
            "disk_free_limit_setting": _setting(
                self.disk_limit.absolute_bytes if self.disk_limit.relative is None else None, self.disk_limit.relative
            ),
            "disk_free_limit": self.disk.limit_bytes,
            "alarms": self.listing(),
        }

    def check_invariants(self) -> None:
        self.registry.check_invariants()
        self.memory.check_invariants()
        self.disk.check_invariants()
        self._sweep.check_invariants()
        assert self._reason == self.registry.reason, "the broker knows what the registry knows"


def _limit_text(setting: MemoryWatermark | DiskFreeLimit, limit_bytes: int) -> str:
    """As the operator said it, and in bytes if that is not the same."""
    text = f"{limit_bytes} bytes"
    return text if str(setting) == text else f"{setting}: {text}"


def _setting(absolute_bytes: int | None, relative: float | None) -> dict[str, float]:
    return {"relative": relative or 0.0} if absolute_bytes is None else {"absolute": absolute_bytes}

"""How much memory and how little disk a node puts up with, as operators say it, and what that is in bytes.

Defaults and units are the reference's (RabbitMQ 3.10, ``rabbitmq.conf``): ``vm_memory_high_watermark`` 0.4 of the
memory, ``disk_free_limit`` 50 MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryWatermark:
    """The memory a node may use before publishers are blocked: a fraction of what there is, or bytes."""

    #: 0 to 1; 0 blocks all publishers. Counts only if ``absolute_bytes`` is ``None``.
    relative: float = 0.4
    absolute_bytes: int | None = None

    def limit_bytes(self, total_bytes: int) -> int:
        """The limit on a machine with ``total_bytes`` of memory, which it never exceeds."""
        if self.absolute_bytes is not None:
            return min(self.absolute_bytes, total_bytes)
        return int(total_bytes * self.relative)

    def __str__(self) -> str:
        if self.absolute_bytes is not None:
            return f"{self.absolute_bytes} bytes"
        return f"{self.relative:g} of available memory"


@dataclass(frozen=True, slots=True)
class DiskFreeLimit:
    """The room on the disk below which publishers are blocked: bytes, or a multiple of the memory."""

    absolute_bytes: int = 50_000_000
    #: Times the total memory. Counts instead of ``absolute_bytes`` unless it is ``None``.
    relative: float | None = None

    def limit_bytes(self, total_memory_bytes: int) -> int:
        if self.relative is not None:
            return int(total_memory_bytes * self.relative)
        return self.absolute_bytes

    def __str__(self) -> str:
        return f"{self.absolute_bytes} bytes" if self.relative is None else f"{self.relative:g} times the total memory"


def available_memory_bytes(physical_bytes: int, group_limits: Iterable[int], override_bytes: int | None) -> int:
    """Memory this process can count on: the operator's word, else the least of the machine's and its control groups'.

    A group without a limit reports a number beyond the machine's memory, which loses by itself.
    """
    if override_bytes is not None:
        return override_bytes
    return min((physical_bytes, *group_limits))

"""What the runtime asks of the machine it runs on, besides disk and network.

The real ones are in `cluster.real_world`; a simulator brings its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Worker(Protocol):
    """Carries out one job at a time, beside the loop: what would block it."""

    def run(self, job: Callable[[], None]) -> asyncio.Future[None]:
        """Begin ``job``, or have it wait for those before it. The future ends with it, also with what it raises, or
        with what hinders it to begin; this call does not raise."""

    def close(self) -> None:
        """Take no further job, and wait for those that were given."""


class ResourceProbe(Protocol):
    """How much memory, disk and descriptors there are, and are used. Cheap enough to be asked ten times a second."""

    def used_memory_bytes(self) -> int:
        """Memory of this process that is resident."""

    def free_disk_bytes(self) -> int:
        """Bytes that may still be written where the data lives. Raises `StorageError`, `DirectoryGoneError` if the data
        directory is there no more."""

    def can_open_files(self, count: int) -> bool:
        """True if this process could open so many more files now."""

    def return_memory(self) -> None:
        """Give memory that was freed back to the system, as far as the allocator can."""

    def physical_memory_bytes(self) -> int:
        """Memory of the machine."""

    def memory_group_limits(self) -> Sequence[int]:
        """Limits in bytes that are set on this process from outside; a container is one."""

    def close(self) -> None:
        """No question follows."""


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """What status reports say of the process; but for the time it does not change while it lives."""

    process_id: int
    platform: str
    python_version: str
    #: Of this program.
    version: str
    #: Files and sockets that this process may have open at a time.
    open_files_max: int
    #: Seconds since the epoch, for operators to read and for nothing else; ``None``: not known.
    time_of_day: Callable[[], float | None] = lambda: None

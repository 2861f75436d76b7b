"""A disk that refuses writes as a full one does, at a chosen place."""

from __future__ import annotations

from node.errors import DiskFullError
from node.store.disk.simulated import SimulatedDisk


class Refusal:
    """Refuses the ``number``-th write into files of some kind that takes space, and all after it."""

    def __init__(self, disk: SimulatedDisk, suffix: str, number: int, share: float) -> None:
        self._disk = disk
        self._suffix = suffix
        self._left = number
        self.has_come = False
        disk.prefix_of = lambda longest: int(longest * share)

    def __enter__(self) -> Refusal:
        self._before = self._disk.before_write
        self._disk.before_write = self._before_write  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.before_write = self._before  # type: ignore[method-assign]

    def _before_write(self, path: str, growth_bytes: int) -> None:
        if growth_bytes and path.endswith(self._suffix):
            self._left -= 1
            if self._left <= 0:
                self.has_come = True
                raise DiskFullError(f"write of {path} failed: No space left on device (errno 28)")
        self._before(path, growth_bytes)

"""Descriptors of a simulated process: how many files it has open, as the system counts them, and which.

A file that was closed with writes that no sync has covered keeps its descriptor until one does
(`node.store.disk.disk`); one whose object has gone without being closed keeps it until the process ends, and is
remembered (`Descriptors.dropped`).
"""

from __future__ import annotations

from collections.abc import Iterable

from node.errors import OpenFilesError
from node.store.disk.simulated_inode import Inode

#: Of files that were dropped, so many are remembered.
DROPPED_MAX = 20


class Descriptors:
    """Those of the life of one process; a new life begins with none."""

    def __init__(self) -> None:
        #: More than these there may not be; ``None``: no limit.
        self.limit: int | None = None
        #: Paths of files that nobody can close any more.
        self.dropped: list[str] = []
        #: By number. Numbers are never used again: a file of an earlier life has none of these.
        self._taken: dict[int, tuple[str, Inode]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, path: str, inode: Inode) -> int:
        """The number of a new one. Whoever takes it has asked (`require_one`)."""
        self._next += 1
        self._taken[self._next] = path, inode
        return self._next

    def give_back(self, number: int) -> None:
        """Nothing if it was given back, or is of an earlier life."""
        self._taken.pop(number, None)

    def dropped_one(self, number: int) -> None:
        """The object that had it is gone: its descriptor stays, unless it was given back."""
        if number in self._taken and len(self.dropped) < DROPPED_MAX:
            self.dropped.append(self._taken[number][0])

    def lose_all(self) -> None:
        """The process has ended."""
        self._taken.clear()
        self.dropped.clear()

    def has_room_for(self, count: int) -> bool:
        """So many more would be no more than there may be."""
        return self.limit is None or len(self._taken) + count <= self.limit

    def require_one(self, operation: str, path: str) -> None:
        """Raise `OpenFilesError` if there is none left."""
        if self.limit is not None and len(self._taken) >= self.limit:
            raise OpenFilesError(f"{operation} of {path} failed: Too many open files (errno 24)")

    def taken(self) -> Iterable[tuple[str, Inode]]:
        """Path at the opening, and file, of each."""
        return self._taken.values()

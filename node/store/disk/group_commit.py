"""Group commit: one round of fsync serves everybody who waits.

Every write belongs to the *open generation*. `begin` closes that generation and returns the files it touched;
a thread syncs them; `complete` makes the generation durable. While the round runs, writes go on into the next
generation, which shares the next round. So the cost of safety is one fsync per file and round, whatever the
number of messages, and the loop never waits.

Owners that collect writes in memory (`WriteBuffer`) register themselves: `begin` makes them write first, so that a
generation never closes over bytes that have not reached their file. Of those that were collected, that is, a bounded
part: what is left is written in a later generation and belongs to that one.

A directory is opened for its sync. If that finds no descriptor the round has not failed: nothing was tried, and `run`
goes on where it was when it is called again.

An fsync that fails is never tried again on the same file (the kernel may have dropped the dirty pages):
`fail` stops the generations for good and the owner takes the stores out of service. So does `distrust`, after an fsync
of anybody else on this node: it may have been of a file that is to be synced here, which would succeed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from node.errors import StorageError

#: Each writes into some files, a tenth of a millisecond or two; ten thousand of them held the loop for 1.6 s.
FLUSHED_MAX = 64


class Syncable(Protocol):
    """A file that can be synced from another thread while the owner writes on or closes it."""

    def sync(self) -> None:
        """Make all earlier writes durable. A file already deleted is no error. Raises `StorageError`, and
        `OpenFilesError` if nothing was tried for want of a descriptor."""


class WriteBuffer(Protocol):
    """Somebody who collects writes of a turn in memory."""

    @property
    def has_unflushed(self) -> bool:
        """True if `flush_writes` would write something."""

    @property
    def unflushed_since(self) -> int:
        """Generation that was open when the first of what is unflushed was collected; asked if there is some. Nothing
        is said of what a full disk has refused."""

    def flush_writes(self, at_most: int, /) -> int:
        """Write what so many have collected into their files and mark those dirty; returns how many have written.

        Who does not come to it is before the others the next time. Does not raise: failures are kept.
        """


class SyncRound:
    """The files of one closed generation. `run` is the only method called off the loop's thread."""

    __slots__ = ("_synced", "collected_below", "files", "generation")

    def __init__(self, generation: int, files: Sequence[Syncable], collected_below: int) -> None:
        self.generation = generation
        self.files = files
        #: Everything that was collected in generations below this is written in this one or before.
        self.collected_below = collected_below
        #: So many of the files are synced.
        self._synced = 0

    def run(self) -> None:
        """Raises `StorageError`: the round has failed; unless it is an `OpenFilesError`, after which this may be called
        again."""
        while self._synced < len(self.files):
            self.files[self._synced].sync()
            self._synced += 1


class GroupCommit:
    """Bookkeeping of the generations of one node. Pure: the owner brings the thread."""

    def __init__(self, flushed_max: int = FLUSHED_MAX) -> None:
        """``flushed_max``: so many queues, of all buffers, write when a generation closes; 1 at least."""
        self._flushed_max = flushed_max
        #: Stamp of writes made now.
        self.open_generation = 1
        #: Every write stamped with this or less is on disk.
        self.durable_generation = 0
        #: Everything that was collected by the time this closed was written, and is on disk as far as that is ever
        #: promised of it (not of settlements); but for what a full disk has refused, and for settlements of which one
        #: flush writes a part only.
        self.complete_generation = 0
        #: Set once by `fail` or `distrust`; no generation becomes durable after it.
        self.failure: StorageError | None = None
        #: Two that are equal are one: thousands of queues that come or go have the same directories above them.
        self._dirty: dict[Syncable, None] = {}
        self._running: SyncRound | None = None
        self._buffers: list[WriteBuffer] = []

    def add_buffer(self, buffer: WriteBuffer) -> None:
        """From now on `begin` flushes ``buffer`` first."""
        self._buffers.append(buffer)

    def remove_buffer(self, buffer: WriteBuffer) -> None:
        """``buffer`` is closed."""
        self._buffers.remove(buffer)

    def mark_dirty(self, file: Syncable) -> None:
        """``file`` was written in the open generation."""
        self._dirty[file] = None

    @property
    def has_written(self) -> bool:
        """True if somebody wrote in the open generation, which therefore will close."""
        return bool(self._dirty)

    @property
    def has_dirty(self) -> bool:
        """True if somebody wrote, or means to write, since the last `begin`."""
        if self._dirty:
            return True
        for buffer in self._buffers:  # noqa: SIM110 - asked in every turn in which a queue was called
            if buffer.has_unflushed:
                return True
        return False

    def begin(self) -> SyncRound | None:
        """Close the open generation. ``None`` while a round runs, after a failure, or if nothing is dirty."""
        if self._running is not None or self.failure is not None:
            return None
        self._flush()
        if not self._dirty:
            return None
        collected_below = min(
            [self.open_generation + 1, *(each.unflushed_since for each in self._buffers if each.has_unflushed)]
        )
        self._running = SyncRound(self.open_generation, list(self._dirty), collected_below)
        self._dirty.clear()
        self.open_generation += 1
        return self._running

    def _flush(self) -> None:
        left = self._flushed_max
        for number, buffer in enumerate(self._buffers, 1):
            if buffer.has_unflushed:
                left -= buffer.flush_writes(left)
                if left <= 0:
                    # The others come first next time.
                    self._buffers = self._buffers[number:] + self._buffers[:number]
                    return

    def complete(self, finished: SyncRound) -> None:
        """The round has run: its generation is durable."""
        assert finished is self._running, "rounds finish in the order they began, one at a time"
        self._running = None
        if self.failure is None:
            self.durable_generation = finished.generation
            self.complete_generation = max(self.complete_generation, finished.collected_below - 1)

    def fail(self, finished: SyncRound, error: StorageError) -> None:
        """The round raised: nothing is ever durable again through this object."""
        assert finished is self._running, "rounds finish in the order they began, one at a time"
        self._running = None
        self.distrust(error)

    def distrust(self, error: StorageError) -> None:
        """A sync has failed, whoever asked for it. Any thread."""
        if self.failure is None:
            self.failure = error

    def check_invariants(self) -> None:
        assert self.complete_generation <= self.durable_generation, "what is complete is on disk"
        assert self.durable_generation < self.open_generation, "what is still being written cannot be durable"

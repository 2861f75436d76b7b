"""What a queue has collected for the disk, has written, and has durably: its flushes, its confirms, and its failure.

**Flush.** What the index collects is written when the owner of the queue calls `flush` (`call_for_flush` asks for it),
at the end of the turn of the loop, or of a later one if many queues ask; a queue that collected much does not wait.

**Generations** are those of the group commit (`node.store.disk.group_commit`). A write belongs to the generation that
is open when its bytes go to the file, and is safe when that one is durable (without ``confirm_after_sync``: at once).

**Confirms.** See `node.queues.confirm_tokens`. Persistent messages without a token are counted per generation only,
for the credit flow.

**Failure.** A full disk is waited for: what was collected stays in memory, `is_disk_full` is true, and every turn tries
again (no confirm goes out meanwhile). After any other `StorageError` of this queue's files, or of the group
commit, every operation raises and no token is given back any more. So it is after a mistake of ours in work that nobody
called for who could be told (a flush, maintenance): it concerns this queue, and whoever does the work has others to
care for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from node.errors import DiskFullError, StorageError
from node.queues.confirm_tokens import ConfirmTokens
from node.store.disk.group_commit import GroupCommit
from node.store.queue_storage import QueueStorage
from node.store.shared.config import StoreConfig

#: Collected bytes after which a queue writes without waiting for the end of the turn (mission S11).
WRITE_BUFFER_BYTES = 512 * 1024


class Writes:
    """See the module text."""

    __slots__ = (
        "_config",
        "_durable_at_failure",
        "_failure",
        "_group_commit",
        "_is_durable",
        "_last_generation",
        "_late",
        "_storage",
        "_unflushed_bytes",
        "_unflushed_untracked",
        "_untracked",
        "collected_generation",
        "has_called_for_flush",
        "is_disk_full",
        "tokens",
    )

    def __init__(self, storage: QueueStorage, group_commit: GroupCommit, config: StoreConfig) -> None:
        self._storage = storage
        self._group_commit = group_commit
        self._config = config
        self._is_durable = storage.is_durable
        self.tokens = ConfirmTokens()
        #: Collected since the last flush: bytes, and persistent messages without a token (also those settled since).
        self._unflushed_bytes = 0
        self._unflushed_untracked = 0
        self.has_called_for_flush = False
        #: Generation that was open when the first of what is not flushed was collected; of settlements that a flush has
        #: left for the next one, when it did.
        self.collected_generation = 0
        #: (generation in which it was written, the earlier one in which it was collected), of what is not durable yet.
        self._late: deque[tuple[int, int]] = deque()
        #: Generation of the last message written, here or before the queue was opened.
        self._last_generation = storage.found_generation
        #: (generation, persistent messages without a token written in it), generations ascending, not durable yet.
        self._untracked: deque[tuple[int, int]] = deque()
        #: The last flush found no space; it is tried again.
        self.is_disk_full = False
        self._failure: Exception | None = None
        self._durable_at_failure = 0

    # -- the flush

    def collected(self, size: int, untracked: int, next_seq_id: int) -> None:
        """The index collected ``size`` bytes with so many persistent messages without token: call for the flush of the
        turn, or do not wait for it."""
        self._unflushed_untracked += untracked
        self._unflushed_bytes += size
        if self._unflushed_bytes > WRITE_BUFFER_BYTES and not self.is_disk_full:
            self.flush(next_seq_id)
        elif not self.has_called_for_flush:
            self.call_for_flush()

    def call_for_flush(self) -> None:
        """Ask the owner of the queue for a `flush` at the end of this turn."""
        self._note_generation()
        self.has_called_for_flush = True
        self._storage.on_unflushed()

    def _note_generation(self) -> None:
        """Of what is collected, if nothing was before."""
        if not self.has_called_for_flush and not self.is_disk_full:
            self.collected_generation = self._group_commit.open_generation

    @property
    def is_flush_late(self) -> bool:
        """Something was collected in a generation that has closed since."""
        return self.has_called_for_flush and self.collected_generation < self._group_commit.open_generation

    def flush(self, next_seq_id: int) -> bool:
        """Write what was collected into the files; false if that was nothing.

        Never raises: a failure shows in the next operation.
        """
        storage = self._storage
        self._note_generation()
        self.has_called_for_flush = False
        if self._failure is not None:
            return False
        has_work = storage.has_unflushed(next_seq_id)
        try:
            written = storage.flush(next_seq_id)
        except DiskFullError:
            # A part may have been written, and what was not may be settled before it is: nothing else would tell that
            # this part waits for this generation.
            if self._group_commit.has_written:
                self._written()
            self.is_disk_full = True
            return has_work
        except Exception as error:
            self.fail(error)
            return has_work
        self.is_disk_full = False
        if written:
            self._written()
        if self._unflushed_untracked:
            self._forget_durable_untracked()  # a mirror's are never asked for
            self._untracked.append((self._last_generation, self._unflushed_untracked))
        self._unflushed_bytes = self._unflushed_untracked = 0
        self.tokens.flushed(self._last_generation)
        if storage.index.has_unflushed:
            # Settlements, for which nobody waits. Were they counted where they were collected, what is published while
            # every flush leaves some would not be durable before the last of them.
            self.call_for_flush()
        return has_work

    def _written(self) -> None:
        """In the open generation, perhaps some of what was collected in an earlier one."""
        self._last_generation = self._group_commit.open_generation
        if self.collected_generation < self._last_generation:
            self._forget_durable()
            late = (self._last_generation, self.collected_generation)
            if not self._late or self._late[-1] != late:
                self._late.append(late)

    # -- what is durable

    def _durable_generation_of_writes(self) -> int:
        if not self._config.confirm_after_sync:
            return self._last_generation
        return self._group_commit.durable_generation

    @property
    def open_generation(self) -> int:
        """Generation of the group commit that a write made now belongs to."""
        return self._group_commit.open_generation

    @property
    def durable_generation(self) -> int:
        """See `ReplicaQueue.durable_generation`. Compare at once: it may fall back when something new is written.

        If this queue has nothing under way, that is the open generation itself: there is nothing to wait for.
        """
        group_commit = self._group_commit
        if self._failure is not None:
            return self._durable_at_failure
        if not self._is_durable:
            return group_commit.open_generation
        if self._storage.index.has_unflushed_publishes:
            # Generations may have closed, and be durable, that had no room for what was collected in them.
            written = self.collected_generation - 1
            is_synced = self._config.confirm_after_sync
            return self._before_what_is_late(min(written, group_commit.durable_generation) if is_synced else written)
        durable = self._durable_generation_of_writes()
        if self._last_generation > durable:
            return self._before_what_is_late(durable)
        return group_commit.open_generation

    def _before_what_is_late(self, generation: int) -> int:
        """What was collected in a generation, and written in a later one, is not durable with the first."""
        self._forget_durable()
        return min([generation, *(collected - 1 for _, collected in self._late)])

    def _forget_durable(self) -> None:
        late, durable = self._late, self._durable_generation_of_writes()
        while late and late[0][0] <= durable:
            late.popleft()

    def confirm_duplicate(self, token: Hashable) -> None:
        """The token of a duplicate: waits for all that this queue has under way, the earlier copy included."""
        if self._is_durable and self._storage.index.has_unflushed_publishes:
            self.tokens.hold_duplicate(token)
            self.call_for_flush()
        else:
            self.tokens.hold_duplicate_until(self._last_generation, token)

    def drain_confirmed(self) -> list[Hashable]:
        """See `BackingQueue.drain_confirmed`."""
        self.require_service()
        self.tokens.release(self._durable_generation_of_writes())
        return self.tokens.drain()

    @property
    def in_flight_messages(self) -> int:
        """See `BackingQueue.in_flight_messages`. One without token counts until its generation is durable."""
        self._forget_durable_untracked()
        return len(self.tokens.waiting) + self._unflushed_untracked + sum([count for _, count in self._untracked])

    def _forget_durable_untracked(self) -> None:
        untracked, durable = self._untracked, self._durable_generation_of_writes()
        while untracked and untracked[0][0] <= durable:
            untracked.popleft()

    @property
    def awaited_generation(self) -> int:
        """When this one is durable somebody is to hear of it: of publishes, with token or without; 0: of none."""
        untracked = self._untracked[-1][0] if self._untracked else 0
        return max(untracked, self.tokens.awaited_generation)

    # -- failure

    def fail(self, error: Exception) -> None:
        """The queue is out of service from here on; the first error is kept."""
        if self._failure is None:
            # What was collected in a generation that is durable may not be written yet, and never will be.
            self._durable_at_failure = min(self.durable_generation, self._group_commit.durable_generation)
            self._failure = error

    @property
    def has_failed(self) -> bool:
        """True once this queue's own files refused something, or a mistake was made with them: every further operation
        raises."""
        return self._failure is not None

    @property
    def may_stop_cleanly(self) -> bool:
        """False if the files must be recovered by a scan: they, or the disk under all queues, have failed."""
        return self._failure is None and self._group_commit.failure is None

    def require_service(self) -> None:
        """Raise if this queue, or the disk under all of them, has failed."""
        if self._failure is None and self._is_durable and self._group_commit.failure is not None:
            self.fail(self._group_commit.failure)
        failure = self._failure
        if isinstance(failure, StorageError):
            # The class of the error says whether there is hope: a full disk will have room again.
            raise type(failure)(f"the queue is out of service: {failure}")
        if failure is not None:
            # No error of the disk, which would call the files damaged.
            raise RuntimeError(f"the queue is out of service: {failure!r}") from failure

    def check_invariants(self) -> None:
        """Raise `AssertionError` if tokens wait for what is not written."""
        assert all(map(self._storage.index.is_live, self.tokens.waiting)), "tokens wait for live stored messages only"
        generations = [generation for generation, _ in self._untracked]
        assert generations == sorted(generations), "what was written later is durable later"

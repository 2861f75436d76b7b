"""The live messages of one queue, wherever they are, with their counts: ready in the five stages, unacked, on disk.

Everything that is on disk is known to the queue's index; ready messages are in the stages of `node.queues.stages`,
unacked ones in `node.queues.unacked`. Here is what concerns all three: how a message leaves for good, by name or by
range, and the figures that follow. (How it comes is `node.queues.variable_queue`.)

A message that leaves takes its confirm along: nothing is left to protect. Whoever has derived something from the
content (`node.queues.digests`) is told which positions changed, as long as it is the `observer`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from node.errors import StorageError
from node.message import Message
from node.queues.replica import SeqRange
from node.queues.stages import Stages
from node.queues.sub_queue import Entry
from node.queues.unacked import Unacked, body_bytes
from node.queues.writes import Writes
from node.store.index.index import QueueIndex
from node.store.queue_storage import QueueStorage
from node.store.shared.config import StoreConfig

#: Positions that a removal may leave to be done like a purge: what a master's purge leaves is unacked there, some times
#: the prefetch count. Looking at so many takes a millisecond or two.
LEFT_MAX = 2048


class ContentObserver(Protocol):
    """Who must know that the content is another."""

    def changed(self, seq_ids: Iterable[int]) -> None:
        """A message came to each of these positions, or went from it for good."""

    def changed_between(self, first: int, end: int) -> None:
        """Some messages at positions in [first, end) went."""


class Content:
    """See the module text. Counts of bytes are those of bodies, wherever these are."""

    __slots__ = (
        "_is_durable",
        "_writes",
        "index",
        "observer",
        "persistent",
        "persistent_bytes",
        "ready_bytes",
        "stages",
        "unacked",
    )

    def __init__(self, storage: QueueStorage, config: StoreConfig, writes: Writes) -> None:
        self._is_durable = storage.is_durable
        self._writes = writes
        self.index: QueueIndex = storage.index
        self.unacked = Unacked()
        self.stages = Stages(storage.index, config, self.unacked.messages, is_durable=storage.is_durable)
        self.ready_bytes = 0
        #: Live persistent messages of a durable queue, and their bytes.
        self.persistent = 0
        self.persistent_bytes = 0
        #: ``None`` as long as there is nothing to be told about.
        self.observer: ContentObserver | None = None

    def recover(self, first: int, end: int, messages: int, size: int) -> None:
        """Everything is on disk and persistent: ``messages`` of ``size`` bytes at positions in [first, end)."""
        self.persistent = messages
        self.persistent_bytes = self.ready_bytes = size
        self.stages.recover(first, end, messages)

    def use_index(self, index: QueueIndex) -> None:
        """The index was converted: this is the new one, with the same entries."""
        self.index = self.stages.index = index

    def is_persistent(self, entry: Entry) -> bool:
        """True if it outlives a restart."""
        return entry.persistent and self._is_durable

    def is_live(self, seq_id: int) -> bool:
        """True if there is a message at this position, ready or unacked."""
        if seq_id in self.unacked.messages or self.index.is_live(seq_id):
            return True
        stages = self.stages
        return seq_id in stages.q4.messages or seq_id in stages.q1.messages

    @property
    def first(self) -> int | None:
        """Lowest live position. Looks at every unacked message."""
        ready, unacked = self.stages.first, min(self.unacked.messages, default=None)
        if ready is None or unacked is None:
            return unacked if ready is None else ready
        return min(ready, unacked)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A `StorageError` of what is read within takes the queue out of service."""
        try:
            yield
        except StorageError as error:
            self._writes.fail(error)
            raise

    # -- back to ready

    def merge(self, items: Mapping[int, Entry], *, more_follow: bool = False) -> None:
        """Messages become ready at their positions, which may be anywhere; they are counted already."""
        try:
            self.stages.merge(items, more_follow=more_follow)
        except StorageError as error:
            self._writes.fail(error)
            raise
        if self.index.has_unflushed and not self._writes.has_called_for_flush:
            self._writes.call_for_flush()

    # -- gone for good

    def forget(self, seq_ids: Sequence[int], messages: Sequence[Entry]) -> None:
        """Messages taken out of their place in memory are gone for good: index and tokens follow."""
        if not seq_ids:
            return
        index, is_durable = self.index, self._is_durable
        persistent = size = 0
        stored = seq_ids
        for message in messages:
            if message.persistent and is_durable:
                persistent += 1
                size += len(message.body) if message.__class__ is Message else message.body_bytes  # type: ignore[union-attr]
        self.persistent -= persistent
        self.persistent_bytes -= size
        if persistent < len(seq_ids):
            # Transient messages are stored only if they were paged out.
            is_live = index.is_live
            kept = [at for at, seq_id in enumerate(seq_ids) if is_live(seq_id)]
            stored = [seq_ids[at] for at in kept]
            messages = [messages[at] for at in kept]
        if stored:
            index.settle(stored, messages)
            writes = self._writes
            writes.tokens.settled(stored)
            if not writes.has_called_for_flush:
                writes.call_for_flush()
        if self.observer is not None:
            self.observer.changed(seq_ids)

    def drop(self, count_max: int, bytes_wanted: int) -> list[int]:
        """Remove ready messages from the head, and none behind the one that makes it ``bytes_wanted`` bytes. Returns
        their positions, ascending."""
        with self.reading():
            seq_ids, entries, size = self.stages.drop(count_max, bytes_wanted)
        self.ready_bytes -= size
        self.forget(seq_ids, entries)
        return seq_ids

    def purge(self, end: int, keep: Collection[int] = ()) -> int:
        """Remove all ready messages, which are below ``end``, but those at these few positions. Returns how many."""
        stages = self.stages
        count = len(stages)
        with self.reading():
            stages.purge(end, keep)
            # The sizes were not looked at: what is left is what is kept, and what is unacked.
            kept = stages.entries()
        self.ready_bytes = sum(map(body_bytes, kept))
        persistent = [entry for entry in (*kept, *self.unacked.messages.values()) if self.is_persistent(entry)]
        self.persistent = len(persistent)
        self.persistent_bytes = sum(map(body_bytes, persistent))
        if self.observer is not None:
            self.observer.changed_between(0, end)
        self._settled_on_disk()
        return count - len(stages)

    def _settled_on_disk(self) -> None:
        """The index may have settled messages by range: tokens and the flush follow."""
        index, writes = self.index, self._writes
        is_live, tokens = index.is_live, writes.tokens
        tokens.settled([seq_id for seq_id in tokens.waiting if not is_live(seq_id)])
        if index.has_unflushed and not writes.has_called_for_flush:
            writes.call_for_flush()

    def remove(self, ranges: Iterable[SeqRange], end: int) -> int:
        """Remove whatever is live in the ranges, ready or unacked; all positions are below ``end``. Returns how many.

        What leaves little behind costs no more than a purge, however much goes.
        """
        chosen = list(ranges)
        count = sum([self._remove_unacked(first, behind) for first, behind in chosen])
        kept = self._left_by(chosen, end)
        if kept is not None:
            return count + self.purge(end, kept)
        for first, behind in chosen:
            count += self._remove_ready(first, behind)
        return count

    def _left_by(self, ranges: Sequence[SeqRange], end: int) -> list[int] | None:
        """The ready positions that these ranges leave, if they are few against what goes."""
        at = self.stages.first
        if at is None or len(self.stages) <= LEFT_MAX:
            return None
        left: list[int] = []
        for low, high in (*sorted(ranges), (end, end)):
            low = min(low, end)
            if at < low:
                if len(left) + low - at > LEFT_MAX:
                    return None
                left += range(at, low)
            at = max(at, high)
        return left

    def _remove_unacked(self, first: int, end: int) -> int:
        unacked = self.unacked.messages
        if not unacked:
            return 0
        span: Iterable[int] = range(first, end)
        if end - first > len(unacked):
            span = [seq_id for seq_id in unacked if first <= seq_id < end]
        gone, messages, _ = self.unacked.take(span)
        self.forget(gone, messages)
        return len(gone)

    def _remove_ready(self, first: int, end: int) -> int:
        with self.reading():
            seq_ids, ready, settled = self.stages.remove(first, end)
        self.ready_bytes -= sum(map(body_bytes, ready)) + settled.body_bytes
        self.forget(seq_ids, ready)
        if settled.messages:
            self.persistent -= settled.persistent
            self.persistent_bytes -= settled.persistent_body_bytes
            self._settled_on_disk()
            if self.observer is not None:
                self.observer.changed_between(first, end)
        return len(seq_ids) + settled.messages

    def check_invariants(self) -> None:
        """Raise `AssertionError` if a message is in two places, or the counts are wrong."""
        stages, unacked, index = self.stages, self.unacked.messages, self.index
        stages.check_invariants()
        self.unacked.check_invariants()
        assert stages.index is index, "an index that was converted is no longer used"
        places = [q.messages for q in (stages.q1, stages.q2, stages.q3, stages.q4)]
        in_memory: dict[int, Entry] = dict(unacked)
        for place in places:
            in_memory.update(place)
        assert len(in_memory) == sum(map(len, (unacked, *places))), "a message is ready or unacked, in one place"
        if not stages.delta.count:
            ready_bytes = sum([body_bytes(entry) for place in places for entry in place.values()])
            assert self.ready_bytes == ready_bytes, "ready bytes are those of ready messages"
            persistent = len([entry for entry in in_memory.values() if self.is_persistent(entry)])
            assert self.persistent == persistent, "persistent messages are counted"
        for seq_id, entry in in_memory.items():
            if not index.is_live(seq_id):
                assert not self.is_persistent(entry), "a persistent message of a durable queue is stored"
                assert isinstance(entry, Message), "a body that is not in memory is on disk"

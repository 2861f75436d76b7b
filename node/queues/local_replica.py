"""The local queue as mirroring drives it: the engine of `node.queues.variable_queue`, with explicit positions.

A mirror inserts what the master published at the positions the master chose, removes ranges that it settled, and
describes its content by digests. Digests are computed per segment when they are asked for and kept until the segment
changes; entries that are on disk only are read for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from node.errors import StorageError
from node.ids import MsgId, OriginId, SeqId
from node.message import Message
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, Holding, SegmentDigest, SeqRange, entry_digest
from node.queues.unacked import body_bytes
from node.queues.variable_queue import VariableQueue
from node.store.index import PagedMessage
from node.store.live_bits import runs


class LocalReplica(VariableQueue):
    """Implements `ReplicaQueue`."""

    __slots__ = ()

    @property
    def next_seq_id(self) -> SeqId:
        """See `ReplicaQueue.next_seq_id`."""
        return SeqId(self._next_seq_id)

    @property
    def first_live_seq_id(self) -> SeqId:
        """See `ReplicaQueue.first_live_seq_id`. Looks at every unacked message."""
        first = self._stages.first
        first = self._next_seq_id if first is None else first
        return SeqId(min(first, min(self._unacked.messages, default=first)))

    def insert(self, seq_ids: Sequence[SeqId], messages: Sequence[Message], envelopes: Sequence[bytes]) -> None:
        """See `ReplicaQueue.insert`."""
        self._require_service()
        if not seq_ids:
            return
        is_live = self._is_live
        added = {
            seq_id: (message, envelope)
            for seq_id, message, envelope in zip(seq_ids, messages, envelopes, strict=True)
            if seq_id >= self._next_seq_id or not is_live(seq_id)
        }
        size = sum([len(message.body) for message, _ in added.values()])
        is_durable, is_lazy = self._is_durable, self._stages.is_lazy
        persistent = {seq_id: each for seq_id, each in added.items() if is_durable and each[0].persistent}
        stored = added if is_lazy else persistent
        self._ready_bytes += size
        self._persistent += len(persistent)
        self._unflushed_untracked += len(persistent)
        self._persistent_bytes += sum([len(message.body) for message, _ in persistent.values()])
        self._origins.accept_any([message.msg_id for message in messages])
        if self._digest_cache:
            self._forget_digests(added)
        if stored:
            index = self._storage.index
            index.publish(
                {seq_id: message for seq_id, (message, _) in stored.items()},
                {seq_id: envelope for seq_id, (_, envelope) in stored.items()},
            )
        self._place({seq_id: message for seq_id, (message, _) in added.items()}, size)
        self._next_seq_id = max(self._next_seq_id, seq_ids[-1] + 1)
        if stored:
            self._collected(size)
        elif self._next_seq_id >= self._storage.renew_at:
            self._call_for_flush()
        self._operated(len(added))

    def _place(self, items: dict[int, Message], size: int) -> None:
        """New messages to their stages: at the tail, or wherever they belong."""
        if not items:
            return
        first = next(iter(items))
        if first < self._next_seq_id:
            self._merge(items)
        else:
            self._append(list(items), list(items.values()), size)

    def _is_live(self, seq_id: int) -> bool:
        if seq_id in self._unacked.messages or self._storage.index.is_live(seq_id):
            return True
        stages = self._stages
        return seq_id in stages.q4.messages or seq_id in stages.q1.messages

    def advance_next_seq_id(self, next_seq_id: SeqId) -> None:
        """See `ReplicaQueue.advance_next_seq_id`."""
        self._require_service()
        self._next_seq_id = max(self._next_seq_id, next_seq_id)
        if self._next_seq_id >= self._storage.renew_at:
            self._call_for_flush()

    def digests(self) -> list[SegmentDigest]:
        """See `ReplicaQueue.digests`. Computed for segments that changed since the last call."""
        cache = self._digest_cache
        stages = self._stages
        places = (self._unacked.messages, *(q.messages for q in (stages.q1, stages.q2, stages.q3, stages.q4)))
        segments = {seq_id // DIGEST_SEGMENT_ENTRIES for place in places for seq_id in place}
        delta = stages.delta
        if delta.count:
            index = self._storage.index
            for segment in range(delta.start // DIGEST_SEGMENT_ENTRIES, (delta.end - 1) // DIGEST_SEGMENT_ENTRIES + 1):
                first = segment * DIGEST_SEGMENT_ENTRIES
                if segment not in segments and index.count_live(first, first + DIGEST_SEGMENT_ENTRIES):
                    segments.add(segment)
        result: list[SegmentDigest] = []
        for segment in sorted(segments):
            digest = cache.get(segment)
            if digest is None:
                held = self.holdings(segment)
                total = sum([entry_digest(seq_id, msg_id) for seq_id, msg_id in held])
                digest = cache[segment] = SegmentDigest(segment, len(held), total & 0xFFFFFFFFFFFFFFFF)
            result.append(digest)
        return result

    def _forget_digests_between(self, first: int, end: int) -> None:
        for segment in range(first // DIGEST_SEGMENT_ENTRIES, (end - 1) // DIGEST_SEGMENT_ENTRIES + 1):
            self._digest_cache.pop(segment, None)

    def holdings(self, segment: int) -> list[Holding]:
        """See `ReplicaQueue.holdings`."""
        first = segment * DIGEST_SEGMENT_ENTRIES
        end = first + DIGEST_SEGMENT_ENTRIES
        stages = self._stages
        held: dict[int, MsgId] = {}
        if stages.delta.count and first < stages.delta.end and end > stages.delta.start:
            try:
                entries = self._storage.index.entries(first, end, DIGEST_SEGMENT_ENTRIES)
            except StorageError as error:
                self._fail(error)
                raise
            held = {seq_id: entry.msg_id for seq_id, entry in entries}
        for place in (self._unacked.messages, *(q.messages for q in (stages.q1, stages.q2, stages.q3, stages.q4))):
            span = range(first, end) if len(place) > DIGEST_SEGMENT_ENTRIES else place
            held.update({seq_id: place[seq_id].msg_id for seq_id in span if first <= seq_id < end and seq_id in place})
        return [Holding(SeqId(seq_id), held[seq_id]) for seq_id in sorted(held)]

    def read(self, seq_ids: Sequence[SeqId]) -> list[tuple[SeqId, bytes]]:
        """See `ReplicaQueue.read`."""
        self._require_service()
        found: dict[int, bytes] = {}
        paged: list[tuple[int, PagedMessage]] = []
        on_disk: list[int] = []
        stages, index = self._stages, self._storage.index
        in_memory = (
            stages.q4.messages,
            self._unacked.messages,
            stages.q3.messages,
            stages.q2.messages,
            stages.q1.messages,
        )
        for seq_id in seq_ids:
            for place in in_memory:
                message = place.get(seq_id)
                if message is not None:
                    break
            if isinstance(message, Message):
                found[seq_id] = message.envelope()
            elif message is not None:
                paged.append((seq_id, message))
            elif index.is_live(seq_id):
                on_disk.append(seq_id)
        for first, count in runs(sorted(on_disk)) if on_disk else ():
            paged += index.entries(first, first + count, count)
        if paged:
            try:
                found.update(zip([seq_id for seq_id, _ in paged], index.read(paged), strict=True))
            except StorageError as error:
                self._fail(error)
                raise
        return [(seq_id, found[seq_id]) for seq_id in seq_ids if seq_id in found]

    def origins(self) -> Mapping[OriginId, int]:
        """See `ReplicaQueue.origins`."""
        return self._origins.counters()

    def merge_origins(self, origins: Mapping[OriginId, int]) -> None:
        """See `ReplicaQueue.merge_origins`."""
        self._require_service()
        self._origins.merge(origins)

    def mark_delivered_below(self, seq_id: SeqId) -> None:
        """See `ReplicaQueue.mark_delivered_below`."""
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, seq_id)

    @property
    def write_generation(self) -> int:
        """See `ReplicaQueue.write_generation`."""
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
            bound = group_commit.durable_generation if self._config.confirm_after_sync else self._open_before()
            return min(bound, self._full_generation - 1) if self.is_disk_full else bound
        if self._last_write_generation > self._durable_write_generation():
            return group_commit.durable_generation
        return group_commit.open_generation

    def _open_before(self) -> int:
        """The generation before the open one: all its writes were flushed before it closed."""
        return self._group_commit.open_generation - 1

    def remove(self, ranges: Iterable[SeqRange]) -> int:
        """See `ReplicaQueue.remove`."""
        self._require_service()
        count = 0
        unacked = self._unacked.messages
        for first, end in ranges:
            if unacked:
                span: Iterable[int] = range(first, end)
                if end - first > len(unacked):
                    span = [seq_id for seq_id in unacked if first <= seq_id < end]
                gone, messages, _ = self._unacked.take(span)
                self._forget(gone, messages)
                count += len(gone)
            try:
                seq_ids, ready, settled = self._stages.remove(first, end)
            except StorageError as error:
                self._fail(error)
                raise
            self._ready_bytes -= sum(map(body_bytes, ready)) + settled.body_bytes
            self._forget(seq_ids, ready)
            count += len(seq_ids) + settled.messages
            if settled.messages:
                self._persistent -= settled.persistent
                self._persistent_bytes -= settled.persistent_body_bytes
                self._settled_on_disk()
                self._forget_digests_between(first, end)
        return count

"""The local queue as mirroring drives it: the engine of `node.queues.variable_queue`, with explicit positions.

A mirror inserts what the master published at the positions the master chose, removes ranges that it settled, and
describes its content by digests.

**Digests** are kept per segment until the segment changes. What is missing is computed when they are asked for, and
before that in small steps (`warm`), so that an attach of a queue with millions of messages on disk does not stop the
loop for reading them. How many messages are where (`live_counts`, `live_positions`) is known in memory always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from node.errors import StorageError
from node.ids import MSG_ID_BYTES, MsgId, OriginId, SeqId
from node.message import Message
from node.queues.backing_queue import BackingQueueStatus
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, Holding, SegmentDigest, SeqRange, digest_of
from node.queues.unacked import body_bytes
from node.queues.variable_queue import VariableQueue
from node.store.disk.group_commit import GroupCommit
from node.store.index.index import PagedMessage
from node.store.index.live_bits import between, runs
from node.store.queue_storage import QueueStorage
from node.store.shared.config import StoreConfig

#: What the digest of an entry costs if the index is of version 1, where every record of a segment is parsed: more than
#: ten times what it costs with version 2. Charged less, so that one segment (eight milliseconds) fits in a step.
V1_ENTRY_COST = 4
#: Positions that a removal may leave to be done like a purge: what a master's purge leaves is unacked there, some times
#: the prefetch count. Looking at so many takes a millisecond or two.
LEFT_MAX = 2048
#: Estimate of the memory of a digest that is kept: a tuple of three numbers, its place in a dictionary.
_DIGEST_MEMORY_BYTES = 220
#: In a digest: nothing is live here.
NO_MSG_ID = bytes(MSG_ID_BYTES)


def _pieces(first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The positions [first, end) cut where digest segments end: (segment, first, end) each."""
    while first < end:
        segment = first // DIGEST_SEGMENT_ENTRIES
        high = min(end, (segment + 1) * DIGEST_SEGMENT_ENTRIES)
        yield segment, first, high
        first = high


class LocalReplica(VariableQueue):
    """Implements `ReplicaQueue`."""

    __slots__ = ("_is_compared", "_next_warmed")

    def __init__(self, storage: QueueStorage, group_commit: GroupCommit, config: StoreConfig) -> None:
        super().__init__(storage, group_commit, config)
        #: `digests` was asked for once: the queue is mirrored.
        self._is_compared = False
        #: Segment at which `warm` goes on.
        self._next_warmed = 0

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

    def live_counts(self) -> list[tuple[int, int]]:
        """See `ReplicaQueue.live_counts`."""
        stages, index = self._stages, self._storage.index
        counts: Counter[int] = Counter()
        for place in (stages.q4, stages.q3, stages.q2, stages.q1):
            if not place:
                continue
            first, end = place.first, place.last + 1
            if end - first > len(place):
                counts.update([seq_id // DIGEST_SEGMENT_ENTRIES for seq_id in place.messages])
                continue
            for segment, low, high in _pieces(first, end):
                counts[segment] += high - low
        delta = stages.delta
        if delta.count:
            for segment, low, high in _pieces(delta.start, delta.end):
                count = index.count_live(low, high)
                if count:
                    counts[segment] += count
        unacked: Iterable[int] = self._unacked.messages
        if delta.count:
            # What is stored of these was counted.
            unacked = [seq_id for seq_id in unacked if not (delta.covers(seq_id) and index.is_live(seq_id))]
        counts.update([seq_id // DIGEST_SEGMENT_ENTRIES for seq_id in unacked])
        return sorted(counts.items())

    def digests(self) -> list[SegmentDigest]:
        """See `ReplicaQueue.digests`. Computed for segments that changed since the last call, or since `warm`."""
        self._is_compared = True
        cache = self._digest_cache
        return [cache.get(segment) or self._compute(segment, entries) for segment, entries in self.live_counts()]

    def _compute(self, segment: int, entries: int) -> SegmentDigest:
        """Digest of a segment with ``entries`` live messages."""
        first = segment * DIGEST_SEGMENT_ENTRIES
        end = first + DIGEST_SEGMENT_ENTRIES
        stages = self._stages
        msg_ids = bytearray(MSG_ID_BYTES * DIGEST_SEGMENT_ENTRIES)
        delta = stages.delta
        low, high = max(first, delta.start), min(end, delta.end)
        if delta.count and low < high:
            try:
                found = self._storage.index.msg_ids(low, high)
            except StorageError as error:
                self._fail(error)
                raise
            msg_ids[(low - first) * MSG_ID_BYTES : (high - first) * MSG_ID_BYTES] = found
        for place in (stages.q4, stages.q3, stages.q2, stages.q1):
            if place:
                low, high = max(first, place.first), min(end, place.last + 1)
                if low < high:
                    entries_there = map(place.messages.get, range(low, high))
                    found = b"".join([entry.msg_id if entry is not None else NO_MSG_ID for entry in entries_there])
                    msg_ids[(low - first) * MSG_ID_BYTES : (high - first) * MSG_ID_BYTES] = found
        unacked = self._unacked.messages
        for seq_id in between(unacked, first, end):
            at = (seq_id - first) * MSG_ID_BYTES
            msg_ids[at : at + MSG_ID_BYTES] = unacked[seq_id].msg_id
        digest = self._digest_cache[segment] = digest_of(segment, entries, msg_ids)
        return digest

    @property
    def wants_warming(self) -> bool:
        """True if digests are asked for (the queue is mirrored, as master or mirror) and much of it is on disk only.

        Not while the index is being converted, which reads everything as well.
        """
        is_served = self._is_compared and self._failure is None
        return is_served and self._stages.delta.count >= DIGEST_SEGMENT_ENTRIES and not self._storage.wants_conversion

    def warm(self, cost_max: int) -> int:
        """Compute missing digests of segments on disk, so that the next `digests` need not read them.

        Returns what it cost, in entries of version 2 of the index; that is more than ``cost_max`` by one segment at
        most. Only segments that lie wholly in delta and have nothing unacked: those at its two ends and the unacked
        change at once, and those in memory cost no reading. A failure takes the queue out of service.
        """
        index, cache, delta = self._storage.index, self._digest_cache, self._stages.delta
        low, behind = -(-delta.start // DIGEST_SEGMENT_ENTRIES), delta.end // DIGEST_SEGMENT_ENTRIES
        entry_cost = V1_ENTRY_COST if index.version == 1 else 1
        cost = 0
        for _ in range(low, behind):
            if cost >= cost_max:
                break
            segment = self._next_warmed if low <= self._next_warmed < behind else low
            self._next_warmed = segment + 1
            # A look costs something as well: a queue may have thousands of segments that are known.
            cost += 1
            if segment in cache:
                continue
            first = segment * DIGEST_SEGMENT_ENTRIES
            end = first + DIGEST_SEGMENT_ENTRIES
            entries = index.count_live(first, end)
            if entries and not between(self._unacked.messages, first, end):
                cost += entries * entry_cost
                try:
                    self._compute(segment, entries)
                except StorageError:
                    break
        return cost

    def _forget_digests_between(self, first: int, end: int) -> None:
        for segment in range(first // DIGEST_SEGMENT_ENTRIES, (end - 1) // DIGEST_SEGMENT_ENTRIES + 1):
            self._digest_cache.pop(segment, None)

    def live_positions(self, segment: int) -> list[SeqId]:
        """See `ReplicaQueue.live_positions`."""
        first = segment * DIGEST_SEGMENT_ENTRIES
        end = first + DIGEST_SEGMENT_ENTRIES
        stages = self._stages
        delta = stages.delta
        found: set[int] = set()
        if delta.count and first < delta.end and end > delta.start:
            found.update(self._storage.index.live(max(first, delta.start), min(end, delta.end)))
        for place in (self._unacked.messages, *(q.messages for q in (stages.q1, stages.q2, stages.q3, stages.q4))):
            found.update(between(place, first, end))
        return [SeqId(seq_id) for seq_id in sorted(found)]

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
            held.update({seq_id: place[seq_id].msg_id for seq_id in between(place, first, end)})
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

    def mark_none_delivered(self) -> None:
        """See `ReplicaQueue.mark_none_delivered`."""
        self._next_deliver_seq_id = 0

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
        """See `ReplicaQueue.remove`. What leaves little behind costs no more than a purge, however much goes."""
        self._require_service()
        chosen = list(ranges)
        count = sum([self._remove_unacked(first, end) for first, end in chosen])
        kept = self._left_by(chosen)
        if kept is not None:
            return count + self._purge(kept)
        for first, end in chosen:
            count += self._remove_ready(first, end)
        return count

    def _left_by(self, ranges: Sequence[SeqRange]) -> list[int] | None:
        """The ready positions that these ranges leave, if they are few against what goes."""
        at, end = self._stages.first, self._next_seq_id
        if at is None or len(self._stages) <= LEFT_MAX:
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
        unacked = self._unacked.messages
        if not unacked:
            return 0
        span: Iterable[int] = range(first, end)
        if end - first > len(unacked):
            span = [seq_id for seq_id in unacked if first <= seq_id < end]
        gone, messages, _ = self._unacked.take(span)
        self._forget(gone, messages)
        return len(gone)

    def _remove_ready(self, first: int, end: int) -> int:
        try:
            seq_ids, ready, settled = self._stages.remove(first, end)
        except StorageError as error:
            self._fail(error)
            raise
        self._ready_bytes -= sum(map(body_bytes, ready)) + settled.body_bytes
        self._forget(seq_ids, ready)
        if settled.messages:
            self._persistent -= settled.persistent
            self._persistent_bytes -= settled.persistent_body_bytes
            self._settled_on_disk()
            self._forget_digests_between(first, end)
        return len(seq_ids) + settled.messages

    def status(self) -> BackingQueueStatus:
        """See `BackingQueue.status`."""
        status = super().status()
        if not self._digest_cache:
            return status
        return replace(status, memory_bytes=status.memory_bytes + len(self._digest_cache) * _DIGEST_MEMORY_BYTES)

    def check_invariants(self) -> None:
        """See `BackingQueue.check_invariants`."""
        super().check_invariants()
        counts = dict(self.live_counts())
        assert sum(counts.values()) == self.ready + self.unacked, "every live message is in one segment"
        for segment, digest in self._digest_cache.items():
            assert digest.entries == counts.get(segment), "a digest is forgotten when its segment changes"

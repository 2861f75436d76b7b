"""Digests of a queue's content by segments, by which replicas are compared (`node.queues.replica.SegmentDigest`).

A digest is kept until its segment changes, of which the content tells. What is missing is computed when it is asked
for, and before that in small steps, so that an attach of a queue with millions of messages does not stop the loop:
ahead for those on disk (`warm`), and for all that are left just before (`LocalReplica.prepare_digests`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from node.errors import StorageError
from node.ids import MSG_ID_BYTES
from node.queues.content import Content
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, SegmentDigest, digest_of
from node.store.index.live_bits import between

#: What the digest of an entry costs if the index is of version 1, where every record of a segment is parsed: more than
#: ten times what it costs with version 2. Charged less, so that one segment (eight milliseconds) fits in a step.
V1_ENTRY_COST = 4
#: Estimate of the memory of a digest that is kept: a tuple of three numbers, its place in a dictionary.
_DIGEST_MEMORY_BYTES = 220
#: In a digest: nothing is live here.
NO_MSG_ID = bytes(MSG_ID_BYTES)


class SegmentDigests:
    """The digests of one queue. Observes its content while it keeps any (`node.queues.content.ContentObserver`)."""

    __slots__ = ("_content", "_is_compared", "_known", "_next_warmed")

    def __init__(self, content: Content) -> None:
        self._content = content
        #: Of segments that have not changed since they were computed.
        self._known: dict[int, SegmentDigest] = {}
        #: They were asked for once: the queue is mirrored.
        self._is_compared = False
        #: Segment at which `warm` goes on.
        self._next_warmed = 0

    def of(self, counts: Iterable[tuple[int, int]]) -> list[SegmentDigest]:
        """The digests of these segments, given as number and live messages. Raises `StorageError`, which takes the
        queue out of service."""
        self._is_compared = True
        known = self._known
        return [known.get(segment) or self._compute(segment, entries) for segment, entries in counts]

    def knows(self, segment: int) -> bool:
        """True if the segment has not changed since its digest was computed."""
        return segment in self._known

    def compute(self, segment: int, entries: int) -> int:
        """Compute the digest of a segment with ``entries`` live messages before it is asked for. Returns what it cost,
        in entries of version 2 of the index. Raises `StorageError`, which takes the queue out of service."""
        self._compute(segment, entries)
        first, delta = segment * DIGEST_SEGMENT_ENTRIES, self._content.stages.delta
        is_read = delta.count and first < delta.end and first + DIGEST_SEGMENT_ENTRIES > delta.start
        return entries * (self._entry_cost if is_read else 1)

    @property
    def _entry_cost(self) -> int:
        return V1_ENTRY_COST if self._content.index.version == 1 else 1

    def _compute(self, segment: int, entries: int) -> SegmentDigest:
        digest = self._known[segment] = digest_of(segment, entries, self.msg_ids(segment))
        self._content.observer = self
        return digest

    def msg_ids(self, segment: int) -> bytearray:
        """What a digest is made of: `MSG_ID_BYTES` for each position of a segment, zeros where nothing is live."""
        first = segment * DIGEST_SEGMENT_ENTRIES
        end = first + DIGEST_SEGMENT_ENTRIES
        content = self._content
        stages, delta = content.stages, content.stages.delta
        msg_ids = bytearray(MSG_ID_BYTES * DIGEST_SEGMENT_ENTRIES)
        low, high = max(first, delta.start), min(end, delta.end)
        if delta.count and low < high:
            with content.reading():
                found = content.index.msg_ids(low, high)
            msg_ids[(low - first) * MSG_ID_BYTES : (high - first) * MSG_ID_BYTES] = found
        for place in (stages.q4, stages.q3, stages.q2, stages.q1):
            if place:
                low, high = max(first, place.first), min(end, place.last + 1)
                if low < high:
                    entries_there = map(place.messages.get, range(low, high))
                    found = b"".join([entry.msg_id if entry is not None else NO_MSG_ID for entry in entries_there])
                    msg_ids[(low - first) * MSG_ID_BYTES : (high - first) * MSG_ID_BYTES] = found
        unacked = content.unacked.messages
        for seq_id in between(unacked, first, end):
            at = (seq_id - first) * MSG_ID_BYTES
            msg_ids[at : at + MSG_ID_BYTES] = unacked[seq_id].msg_id
        return msg_ids

    @property
    def wants_warming(self) -> bool:
        """True if digests are asked for (the queue is mirrored, as master or mirror) and much of it is on disk only."""
        return self._is_compared and self._content.stages.delta.count >= DIGEST_SEGMENT_ENTRIES

    def expect(self) -> None:
        """They will be asked for: the queue is mirrored."""
        self._is_compared = True

    def warm_next(self) -> bool:
        """Compute the digest of one more segment, as `warm` does; false if there is none left to compute. Raises
        `StorageError`, which takes the queue out of service.

        Costs a look at each segment that is known, so it is for a queue that is being opened: it goes on where it was.
        """
        segments = self._wholly_on_disk
        return any(self._warm_one(segments) for _ in segments)

    def warm(self, cost_max: int) -> int:
        """Compute missing digests of segments on disk, so that the next `of` need not read them.

        Returns what it cost, in entries of version 2 of the index; that is more than ``cost_max`` by one segment at
        most. A failure takes the queue out of service.
        """
        entry_cost = self._entry_cost
        segments = self._wholly_on_disk
        cost = 0
        with suppress(StorageError):
            for _ in segments:
                if cost >= cost_max:
                    break
                # A look costs something as well: a queue may have thousands of segments that are known.
                cost += 1
                cost += entry_cost * self._warm_one(segments)
        return cost

    @property
    def _wholly_on_disk(self) -> range:
        """Segments that are worth warming: those at the two ends of delta change at once, and those in memory cost no
        reading."""
        delta = self._content.stages.delta
        return range(-(-delta.start // DIGEST_SEGMENT_ENTRIES), delta.end // DIGEST_SEGMENT_ENTRIES)

    def _warm_one(self, segments: range) -> int:
        """Look at the next of these segments: compute its digest if that is missing and nothing there is unacked, which
        changes at once as well. Returns of how many entries. Raises `StorageError`."""
        content = self._content
        segment = self._next_warmed if self._next_warmed in segments else segments.start
        self._next_warmed = segment + 1
        if segment in self._known:
            return 0
        first = segment * DIGEST_SEGMENT_ENTRIES
        end = first + DIGEST_SEGMENT_ENTRIES
        entries = content.index.count_live(first, end)
        if not entries or between(content.unacked.messages, first, end):
            return 0
        self._compute(segment, entries)
        return entries

    # -- ContentObserver

    def changed(self, seq_ids: Iterable[int]) -> None:
        """Forget the digests of the segments in which these are."""
        known = self._known
        for segment in {seq_id // DIGEST_SEGMENT_ENTRIES for seq_id in seq_ids}:
            known.pop(segment, None)
        if not known:
            self._content.observer = None

    def changed_between(self, first: int, end: int) -> None:
        """Forget the digests of all segments that reach into [first, end)."""
        low, behind = first // DIGEST_SEGMENT_ENTRIES, -(-end // DIGEST_SEGMENT_ENTRIES)
        for segment in [segment for segment in self._known if low <= segment < behind]:
            del self._known[segment]
        if not self._known:
            self._content.observer = None

    def close(self) -> None:
        """Nobody will ask any more. Content and digests no longer know each other, so that they are freed at once."""
        self._known.clear()
        self._content.observer = None

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory of the digests that are kept."""
        return len(self._known) * _DIGEST_MEMORY_BYTES

    def check_invariants(self, counts: dict[int, int]) -> None:
        """Raise `AssertionError` if a digest is kept of a segment that changed; ``counts``: live messages of each."""
        for segment, digest in self._known.items():
            assert digest.entries == counts.get(segment), "a digest is forgotten when its segment changes"
        assert not self._known or self._content.observer is self, "who keeps digests is told of changes"

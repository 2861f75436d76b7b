"""The local queue as mirroring drives it: a variable queue, and a description of what it holds.

A mirror inserts what the master published at the positions the master chose, removes ranges that it settled, and
describes its content: how many messages are where (known in memory always), which they are, and digests of them
(`node.queues.digests`).

A replica *has* an engine (`node.queues.variable_queue`). It changes it by the engine's operations only and looks at its
`content` and `writes`. What every message passes is handed out as the engine's own bound methods, so that to have an
engine costs no call more than to be one. Whoever manages memory, modes and files of the queue talks to the
`engine`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from node.errors import StorageError
from node.ids import MSG_ID_BYTES, Epoch, MsgId, OriginId, SeqId
from node.message import Message
from node.queues.backing_queue import NO_LIMIT_BYTES, BackingQueueStatus, MirrorInFlight
from node.queues.digests import NO_MSG_ID, SegmentDigests
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, Holding, SegmentDigest
from node.queues.sub_queue import Entry
from node.queues.variable_queue import VariableQueue
from node.store.disk.group_commit import GroupCommit
from node.store.index.index import PagedMessage, RecoveryReport
from node.store.index.live_bits import between, runs
from node.store.queue_storage import QueueStorage
from node.store.shared.config import StoreConfig
from node.store.steps import Steps

#: Entries of which digests are computed in one turn before an attach describes them, and one segment more: some
#: milliseconds.
PREPARED_ENTRIES = 32_768


def _pieces(first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The positions [first, end) cut where digest segments end: (segment, first, end) each."""
    while first < end:
        segment = first // DIGEST_SEGMENT_ENTRIES
        high = min(end, (segment + 1) * DIGEST_SEGMENT_ENTRIES)
        yield segment, first, high
        first = high


class LocalReplica:
    """Implements `ReplicaQueue`."""

    __slots__ = (
        "_content",
        "_digests",
        "_writes",
        "ack",
        "discard",
        "drain_confirmed",
        "engine",
        "fetch",
        "insert",
        "is_duplicate",
        "publish",
        "publish_delivered",
        "remove",
    )

    def __init__(self, storage: QueueStorage, group_commit: GroupCommit, config: StoreConfig) -> None:
        """What ``storage`` recovered becomes ready."""
        self.engine = engine = VariableQueue(storage, group_commit, config)
        self._content = engine.content
        self._writes = engine.writes
        self._digests = SegmentDigests(engine.content)
        self.publish = engine.publish
        self.publish_delivered = engine.publish_delivered
        self.discard = engine.discard
        self.fetch = engine.fetch
        self.ack = engine.ack
        self.is_duplicate = engine.is_duplicate
        self.drain_confirmed = engine.writes.drain_confirmed
        self.insert = engine.insert
        self.remove = engine.remove

    # -- BackingQueue: the other operations

    def requeue(self, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> int:
        """See `BackingQueue.requeue`."""
        return self.engine.requeue(seq_ids, more_follow=more_follow)

    def requeue_all(self) -> int:
        """See `BackingQueue.requeue_all`."""
        return self.engine.requeue_all()

    def drop(self, count_max: int, bytes_wanted: int = NO_LIMIT_BYTES) -> list[SeqId]:
        """See `BackingQueue.drop`."""
        return self.engine.drop(count_max, bytes_wanted)

    def flag_redelivered(self) -> None:
        """See `BackingQueue.flag_redelivered`."""
        self.engine.flag_redelivered()

    def purge(self) -> int:
        """See `BackingQueue.purge`."""
        return self.engine.purge()

    def confirm_when_safe(self, msg_id: MsgId, token: Hashable) -> None:
        """See `BackingQueue.confirm_when_safe`."""
        self.engine.confirm_when_safe(msg_id, token)

    @property
    def may_deliver(self) -> bool:
        """See `BackingQueue.may_deliver`."""
        return True

    @property
    def ready(self) -> int:
        """See `BackingQueue.ready`."""
        return len(self._content.stages)

    @property
    def unacked(self) -> int:
        """See `BackingQueue.unacked`."""
        return len(self._content.unacked)

    @property
    def knows_out_of_order(self) -> bool:
        """See `BackingQueue.knows_out_of_order`."""
        return False

    @property
    def in_flight_messages(self) -> int:
        """See `BackingQueue.in_flight_messages`."""
        return self._writes.in_flight_messages

    def mirrors_in_flight(self) -> Sequence[MirrorInFlight]:
        """See `BackingQueue.mirrors_in_flight`."""
        return ()

    def status(self) -> BackingQueueStatus:
        """See `BackingQueue.status`."""
        status = self.engine.status()
        digests_bytes = self._digests.memory_bytes
        return replace(status, memory_bytes=status.memory_bytes + digests_bytes) if digests_bytes else status

    def terminate(self) -> None:
        """See `BackingQueue.terminate`. After a failure the files stay as they are, for recovery by scan."""
        self._digests.close()
        self.engine.terminate()

    def delete(self) -> None:
        """See `BackingQueue.delete`."""
        self._digests.close()
        self.engine.delete()

    # -- ReplicaQueue: positions

    @property
    def next_seq_id(self) -> SeqId:
        """See `ReplicaQueue.next_seq_id`."""
        return SeqId(self.engine.next_seq_id)

    @property
    def first_live_seq_id(self) -> SeqId:
        """See `ReplicaQueue.first_live_seq_id`. Looks at every unacked message."""
        first = self._content.first
        return SeqId(self.engine.next_seq_id if first is None else first)

    def advance_next_seq_id(self, next_seq_id: SeqId) -> None:
        """See `ReplicaQueue.advance_next_seq_id`."""
        self.engine.advance_next_seq_id(next_seq_id)

    def mark_delivered_below(self, seq_id: SeqId) -> None:
        """See `ReplicaQueue.mark_delivered_below`."""
        self.engine.mark_delivered_below(seq_id)

    def mark_none_delivered(self) -> None:
        """See `ReplicaQueue.mark_none_delivered`."""
        self.engine.mark_none_delivered()

    @property
    def delivered_below(self) -> SeqId:
        """See `ReplicaQueue.delivered_below`."""
        return SeqId(self.engine.delivered_below)

    @property
    def delivered_epoch(self) -> Epoch:
        """See `ReplicaQueue.delivered_epoch`."""
        return self.engine.delivered_epoch

    def close_deliveries(self, epoch: Epoch, delivered_below: SeqId) -> None:
        """See `ReplicaQueue.close_deliveries`."""
        self.engine.mark_none_delivered()
        self.engine.mark_delivered_below(delivered_below)
        self.engine.delivered_epoch = epoch

    def origins(self) -> Mapping[OriginId, int]:
        """See `ReplicaQueue.origins`."""
        return self.engine.origins.counters()

    def merge_origins(self, origins: Mapping[OriginId, int]) -> None:
        """See `ReplicaQueue.merge_origins`."""
        self._writes.require_service()
        self.engine.origins.merge(origins)

    # -- ReplicaQueue: what is durable

    @property
    def write_generation(self) -> int:
        """See `ReplicaQueue.write_generation`."""
        return self._writes.open_generation

    @property
    def durable_generation(self) -> int:
        """See `ReplicaQueue.durable_generation`. Compare at once: it may fall back when something new is written."""
        return self._writes.durable_generation

    @property
    def is_disk_full(self) -> bool:
        """See `ReplicaQueue.is_disk_full`."""
        return self._writes.is_disk_full

    @property
    def awaited_generation(self) -> int:
        """See `Writes.awaited_generation`."""
        return self._writes.awaited_generation

    # -- ReplicaQueue: what is here

    def live_counts(self) -> list[tuple[int, int]]:
        """See `ReplicaQueue.live_counts`."""
        stages, index = self._content.stages, self._content.index
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
        unacked: Iterable[int] = self._content.unacked.messages
        if delta.count:
            # What is stored of these was counted.
            unacked = [seq_id for seq_id in unacked if not (delta.covers(seq_id) and index.is_live(seq_id))]
        counts.update([seq_id // DIGEST_SEGMENT_ENTRIES for seq_id in unacked])
        return sorted(counts.items())

    def live_positions(self, segment: int) -> list[SeqId]:
        """See `ReplicaQueue.live_positions`."""
        first = segment * DIGEST_SEGMENT_ENTRIES
        end = first + DIGEST_SEGMENT_ENTRIES
        delta = self._content.stages.delta
        found: set[int] = set()
        if delta.count and first < delta.end and end > delta.start:
            found.update(self._content.index.live(max(first, delta.start), min(end, delta.end)))
        for place in self._in_memory():
            found.update(between(place, first, end))
        return [SeqId(seq_id) for seq_id in sorted(found)]

    def digests(self) -> list[SegmentDigest]:
        """See `ReplicaQueue.digests`. Computed for segments that changed since the last call, or since `warm`."""
        return self._digests.of(self.live_counts())

    def prepare_digests(self) -> Steps[None]:
        """See `ReplicaQueue.prepare_digests`."""
        digests = self._digests
        digests.expect()
        cost = 0
        for segment, _ in self.live_counts():
            if cost >= PREPARED_ENTRIES:
                yield None
                cost = 0
            if not digests.knows(segment) and (entries := len(self.live_positions(segment))):
                cost += digests.compute(segment, entries)

    def msg_ids(self, segment: int) -> list[MsgId]:
        """See `ReplicaQueue.msg_ids`."""
        found = bytes(self._digests.msg_ids(segment))
        every = [found[at : at + MSG_ID_BYTES] for at in range(0, len(found), MSG_ID_BYTES)]
        return [MsgId(msg_id) for msg_id in every if msg_id != NO_MSG_ID]

    def holdings(self, segment: int) -> list[Holding]:
        """See `ReplicaQueue.holdings`."""
        first = segment * DIGEST_SEGMENT_ENTRIES
        end = first + DIGEST_SEGMENT_ENTRIES
        content, delta = self._content, self._content.stages.delta
        held: dict[int, MsgId] = {}
        if delta.count and first < delta.end and end > delta.start:
            with content.reading():
                entries = content.index.entries(first, end, DIGEST_SEGMENT_ENTRIES)
            held = {seq_id: entry.msg_id for seq_id, entry in entries}
        for place in self._in_memory():
            held.update({seq_id: place[seq_id].msg_id for seq_id in between(place, first, end)})
        return [Holding(SeqId(seq_id), held[seq_id]) for seq_id in sorted(held)]

    def _in_memory(self) -> Sequence[dict[int, Entry]]:
        """Messages whose positions are in memory, by place: those that are most asked for come first."""
        stages = self._content.stages
        unacked = self._content.unacked
        return stages.q4.messages, unacked.messages, stages.q3.messages, stages.q2.messages, stages.q1.messages

    def read(self, seq_ids: Sequence[SeqId]) -> list[tuple[SeqId, bytes]]:
        """See `ReplicaQueue.read`."""
        self._writes.require_service()
        found: dict[int, bytes] = {}
        paged: list[tuple[int, PagedMessage]] = []
        on_disk: list[int] = []
        index, in_memory = self._content.index, self._in_memory()
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
        if on_disk or paged:
            with self._content.reading():
                for first, count in runs(sorted(on_disk)):
                    paged += index.entries(first, first + count, count)
                found.update(zip([seq_id for seq_id, _ in paged], index.read(paged), strict=True))
        return [(seq_id, found[seq_id]) for seq_id in seq_ids if seq_id in found]

    # -- digests ahead

    @property
    def wants_warming(self) -> bool:
        """True if there is something for `warm`. Not while the index is being converted, which reads everything as
        well."""
        is_served = self._digests.wants_warming and not self._writes.has_failed
        return is_served and not self.engine.is_converting

    def warm(self, cost_max: int) -> int:
        """See `SegmentDigests.warm`. Never raises: a failure shows in the next operation."""
        try:
            return self._digests.warm(cost_max)
        except Exception as error:
            self._writes.fail(error)
            return 0

    def warm_all(self) -> Steps[None]:
        """Compute all digests that `warm` would, a segment a step, before the first call of `digests`."""
        self._digests.expect()
        with suppress(StorageError):
            while self.wants_warming and self._digests.warm_next():
                yield None

    # -- what the node asks of each of its copies

    @property
    def recovery_report(self) -> RecoveryReport | None:
        """What opening the queue found; ``None`` if there was nothing to recover."""
        return self.engine.recovery_report

    def set_lazy(self, is_lazy: bool) -> None:
        """See `VariableQueue.set_lazy`."""
        self.engine.set_lazy(is_lazy)

    def set_index_version(self, version: int | None) -> None:
        """See `VariableQueue.set_index_version`."""
        self.engine.set_index_version(version)

    def ram_duration_s(self, now_ms: int) -> float:
        """See `PagingQueue.ram_duration_s`."""
        return self.engine.ram_duration_s(now_ms)

    def set_ram_duration_target(self, seconds: float) -> None:
        """See `PagingQueue.set_ram_duration_target`."""
        self.engine.set_ram_duration_target(seconds)

    def backing_queue_status(self) -> dict[str, int | float | str | None]:
        """See `VariableQueue.backing_queue_status`."""
        return self.engine.backing_queue_status()

    def check_invariants(self) -> None:
        """See `BackingQueue.check_invariants`."""
        self.engine.check_invariants()
        counts = dict(self.live_counts())
        assert sum(counts.values()) == self.ready + self.unacked, "every live message is in one segment"
        self._digests.check_invariants(counts)

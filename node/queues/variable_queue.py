"""The local storage engine of a queue: `BackingQueue` for its owner, `ReplicaQueue` for mirroring.

**State.** Positions (seq ids) of all live messages are in memory, as keys of two dicts: ready and unacked. The value
is the message itself (alpha) or, once the bodies of the queue exceed `StoreConfig.ram_limit_bytes`, a
`PagedMessage` that knows only identity and size (beta: the body is read back from disk in batches when the head of
the queue comes near it). The order of delivery is a deque of seq ids; positions that were removed from its middle stay
in it as tombstones until the head passes them, and it is sorted afresh only when something came in below its tail.

**What is stored.** A message is stored if it is persistent and the queue is durable (then there is a `QueueStorage`);
nothing else ever touches the disk. Stored messages are collected by the index and written by `flush_writes`, which
the owner of the loop calls once per turn: a publish that is settled within the turn is never written.

**Confirms.** A token of a stored message waits by seq id, first for the flush, then, in a FIFO of
(generation, seq ids), for the group commit. The stamp is taken when the bytes go to the file, so a generation never
closes over bytes still in memory. A message settled earlier gives its token back at once. Tokens of other
messages come back at once.

**Redelivered** is one number, as in the reference: a position below `_next_deliver_seq_id` may have been delivered
before. It grows with every fetch, is kept over a clean stop, and after a crash lies above everything recovered.

**Duplicates.** The last accepted msg_id of each origin is a high-water mark, since ids of one origin arrive in growing
order. `ORIGINS_MAX` origins are remembered, the least recently used is forgotten first; a publish that is sent again
after that is accepted twice, which is the safe side.

**Failure.** After the first `StorageError` of this queue's files, or of the group commit, every operation raises and no
token is given back any more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice

from node.errors import StorageError
from node.ids import ORIGIN_BYTES, MsgId, OriginId, SeqId, split_msg_id
from node.message import Message, decode_envelope
from node.queues.backing_queue import BackingQueueStatus, Delivery, Publication
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, Holding, SegmentDigest, SeqRange, entry_digest
from node.store.group_commit import GroupCommit
from node.store.index_recovery import PagedMessage, RecoveryReport
from node.store.queue_storage import QueueStorage
from node.store.queue_terms import Terms
from node.store.store_config import StoreConfig

#: Origins remembered for duplicates. An origin is one publishing channel; a queue with more of them than this at a
#: time is rare, and the table stays below a megabyte.
ORIGINS_MAX = 4096
#: Collected bytes after which a queue writes without waiting for the end of the turn (mission S11).
WRITE_BUFFER_BYTES = 512 * 1024
#: Limits of one read-ahead (mission S12): messages, their bytes, and the body size that is not worth it.
READ_AHEAD_MESSAGES = 2048
READ_AHEAD_BYTES = 1024 * 1024
READ_AHEAD_BODY_BYTES_MAX = 12 * 1024
#: Tombstones in the order beyond twice the ready messages that are put up with.
TOMBSTONES_MAX = 1024
#: Estimates for `status`: memory of a message object beside its body, and of a position whose body is on disk.
_MESSAGE_BYTES = 500
_POSITION_BYTES = 250


class VariableQueue:
    """See the module text. Not thread-safe: everything happens on the loop's thread."""

    __slots__ = (
        "_awaiting",
        "_config",
        "_confirm_fifo",
        "_confirmed",
        "_digest_cache",
        "_durable_at_failure",
        "_failure",
        "_group_commit",
        "_has_called_for_flush",
        "_is_order_stale",
        "_last_write_generation",
        "_next_deliver_seq_id",
        "_next_seq_id",
        "_order",
        "_origins",
        "_paged",
        "_ram_bytes",
        "_ram_duration_target_s",
        "_ready",
        "_ready_bytes",
        "_storage",
        "_stored",
        "_unacked",
        "_unacked_bytes",
        "_unflushed_bytes",
        "_unflushed_duplicates",
        "_unflushed_tokens",
    )

    def __init__(self, storage: QueueStorage | None, group_commit: GroupCommit, config: StoreConfig) -> None:
        """``storage`` is ``None`` for a queue that is not durable; otherwise what it recovered becomes ready."""
        self._storage = storage
        self._group_commit = group_commit
        self._config = config
        #: Live messages by seq id. Disjoint. ``_unacked`` is in the order of delivery.
        self._ready: dict[int, Message | PagedMessage] = {}
        self._unacked: dict[int, Message | PagedMessage] = {}
        #: Ascending seq ids: all ready ones, and tombstones. Not to be used while `_is_order_stale`.
        self._order: deque[int] = deque()
        self._is_order_stale = False
        self._next_seq_id = 0
        self._next_deliver_seq_id = 0
        #: Body bytes of ready and unacked messages, wherever the bodies are.
        self._ready_bytes = 0
        self._unacked_bytes = 0
        #: Body bytes in memory.
        self._ram_bytes = 0
        #: Live messages whose body is on disk only.
        self._paged = 0
        #: Live messages that are stored (persistent, in a durable queue).
        self._stored = 0
        #: Tokens of stored live messages that are not durable yet.
        self._awaiting: dict[int, Hashable] = {}
        #: Seq ids with a token, and tokens of duplicates, that wait for the next flush.
        self._unflushed_tokens: list[int] = []
        self._unflushed_duplicates: list[Hashable] = []
        self._unflushed_bytes = 0
        self._has_called_for_flush = False
        #: (generation, seq ids with tokens, tokens of duplicates), generations ascending.
        self._confirm_fifo: deque[tuple[int, list[int], list[Hashable]]] = deque()
        self._confirmed: list[Hashable] = []
        #: Generation of the last message written.
        self._last_write_generation = 0
        #: Last accepted id of each origin, least recently used first.
        self._origins: dict[OriginId, MsgId] = {}
        #: Digests of segments that have not changed since they were computed.
        self._digest_cache: dict[int, SegmentDigest] = {}
        self._failure: StorageError | None = None
        self._durable_at_failure = 0
        #: Seconds of traffic whose messages may stay in memory.
        self._ram_duration_target_s = math.inf
        if storage is not None:
            self._adopt(storage)

    def _adopt(self, storage: QueueStorage) -> None:
        self._ready, storage.recovered = storage.recovered, {}
        self._order.extend(self._ready)
        self._next_seq_id = self._next_deliver_seq_id = storage.first_free_seq_id
        for message in self._ready.values():
            if isinstance(message, Message):
                self._ram_bytes += len(message.body)
                self._ready_bytes += len(message.body)
            else:
                self._paged += 1
                self._ready_bytes += message.body_bytes
        self._stored = len(self._ready)
        if storage.terms is not None:
            self._next_deliver_seq_id = storage.terms.next_deliver_seq_id
            self._origins.update(storage.terms.origins)
        self._raise_origins([message.msg_id for message in self._ready.values()])
        if storage.report is not None:
            bound = self._next_deliver_seq_id
            storage.report.redelivered = sum(1 for seq_id in self._ready if seq_id < bound)
        if self._next_seq_id >= storage.renew_at:
            self._call_for_flush(storage)

    @property
    def recovery_report(self) -> RecoveryReport | None:
        """What opening the queue found; ``None`` if there was nothing to recover."""
        return self._storage.report if self._storage is not None else None

    # -- publish

    def publish(self, publications: Sequence[Publication]) -> None:
        """See `BackingQueue.publish`."""
        first = self._next_seq_id
        self._ready_bytes += self._accept(publications, self._ready)
        if not self._is_order_stale:
            self._order.extend(range(first, self._next_seq_id))

    def publish_delivered(self, publications: Sequence[Publication]) -> list[Delivery]:
        """See `BackingQueue.publish_delivered`."""
        first = self._next_seq_id
        self._unacked_bytes += self._accept(publications, self._unacked)
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, self._next_seq_id)
        return [
            Delivery(SeqId(seq_id), publication.message, False)
            for seq_id, publication in enumerate(publications, first)
        ]

    def _accept(self, publications: Sequence[Publication], place: dict[int, Message | PagedMessage]) -> int:
        """Put messages at the tail positions into ``place`` and collect what is stored. Returns their body bytes."""
        self._require_service()
        first = seq_id = self._next_seq_id
        size = 0
        storage = self._storage
        stored: dict[int, Message] = {}
        confirmed, awaiting, unflushed_tokens = self._confirmed, self._awaiting, self._unflushed_tokens
        for message, token in publications:
            place[seq_id] = message
            size += len(message.body)
            if storage is not None and message.persistent:
                stored[seq_id] = message
                if token is not None:
                    awaiting[seq_id] = token
                    unflushed_tokens.append(seq_id)
            elif token is not None:
                confirmed.append(token)
            seq_id += 1
        self._next_seq_id = seq_id
        self._ram_bytes += size
        self._raise_origins([publication[0].msg_id for publication in publications])
        if self._digest_cache:
            self._forget_digests(range(first, seq_id))
        if storage is not None:
            if stored:
                self._stored += len(stored)
                storage.index.publish(stored)
                self._collected(storage, size)
            elif seq_id >= storage.renew_at:
                self._call_for_flush(storage)
        return size

    def _collected(self, storage: QueueStorage, size: int) -> None:
        """Bytes were collected: call for the flush of the turn, or do not wait for it."""
        self._unflushed_bytes += size
        if self._unflushed_bytes > WRITE_BUFFER_BYTES:
            self.flush_writes()
        elif not self._has_called_for_flush:
            self._call_for_flush(storage)

    def _call_for_flush(self, storage: QueueStorage) -> None:
        self._has_called_for_flush = True
        storage.on_unflushed()

    def discard(self, publications: Sequence[Publication]) -> None:
        """See `BackingQueue.discard`."""
        self._require_service()
        self._raise_origins([publication.message.msg_id for publication in publications])
        self._confirmed += [publication.token for publication in publications if publication.token is not None]

    # -- take

    def fetch(self, count_max: int, ack_required: bool) -> list[Delivery]:
        """See `BackingQueue.fetch`."""
        self._require_service()
        next_deliver = self._next_deliver_seq_id
        seq_ids, messages = self._take(count_max)
        if not seq_ids:
            return []
        deliveries = [
            Delivery(SeqId(seq_id), message, seq_id < next_deliver)
            for seq_id, message in zip(seq_ids, messages, strict=True)
        ]
        self._next_deliver_seq_id = max(next_deliver, seq_ids[-1] + 1)
        if not ack_required:
            self._ready_bytes -= self._forget(seq_ids, messages)
            return deliveries
        size = sum([len(message.body) for message in messages])
        self._ready_bytes -= size
        self._unacked_bytes += size
        self._unacked.update(zip(seq_ids, messages, strict=True))
        if self._ram_bytes > self._config.ram_limit_bytes:
            self._page_out(seq_ids)
        return deliveries

    def drop(self, count: int) -> list[Delivery]:
        """See `BackingQueue.drop`."""
        self._require_service()
        next_deliver = self._next_deliver_seq_id
        seq_ids, messages = self._take(count)
        self._ready_bytes -= self._forget(seq_ids, messages)
        return [
            Delivery(SeqId(seq_id), message, seq_id < next_deliver)
            for seq_id, message in zip(seq_ids, messages, strict=True)
        ]

    def _take(self, count_max: int) -> tuple[list[int], list[Message]]:
        """Take messages from the head out of the ready ones; their bytes are still counted as ready."""
        if self._is_order_stale:
            self._sort_order()
        ready = self._ready
        take = self._order.popleft
        seq_ids: list[int] = []
        messages: list[Message] = []
        count = min(count_max, len(ready))
        while count > 0:
            seq_id = take()
            message = ready.pop(seq_id, None)
            if message is None:
                continue
            if message.__class__ is not Message:
                ready[seq_id] = message
                self._order.appendleft(seq_id)
                self._page_in()
                continue
            seq_ids.append(seq_id)
            messages.append(message)
            count -= 1
        return seq_ids, messages

    # -- settle

    def ack(self, seq_ids: Sequence[SeqId]) -> int:
        """See `BackingQueue.ack`."""
        self._require_service()
        take = self._unacked.pop
        known: list[int] = []
        messages: list[Message | PagedMessage] = []
        for seq_id in seq_ids:
            message = take(seq_id, None)
            if message is not None:
                known.append(seq_id)
                messages.append(message)
        self._unacked_bytes -= self._forget(known, messages)
        return len(known)

    def purge(self) -> int:
        """See `BackingQueue.purge`."""
        self._require_service()
        ready, self._ready = self._ready, {}
        self._order.clear()
        self._is_order_stale = False
        self._forget(list(ready), list(ready.values()))
        self._ready_bytes = 0
        return len(ready)

    def remove(self, ranges: Iterable[SeqRange]) -> int:
        """See `ReplicaQueue.remove`."""
        self._require_service()
        count = 0
        for first, end in ranges:
            span: Iterable[int] = range(first, end)
            if end - first > len(self._ready) + len(self._unacked):
                span = [seq_id for seq_id in (*self._ready, *self._unacked) if first <= seq_id < end]
            for place in (self._ready, self._unacked):
                if not place:
                    continue
                gone = [seq_id for seq_id in span if seq_id in place]
                size = self._forget(gone, [place.pop(seq_id) for seq_id in gone])
                if place is self._ready:
                    self._ready_bytes -= size
                else:
                    self._unacked_bytes -= size
                count += len(gone)
        self._trim_order()
        return count

    def _forget(self, seq_ids: Sequence[int], messages: Sequence[Message | PagedMessage]) -> int:
        """Messages taken out of their dict are gone for good: tables, index and tokens follow. Returns body bytes."""
        if not seq_ids:
            return 0
        storage = self._storage
        size = paged_size = paged = 0
        stored: list[int] = []
        for seq_id, message in zip(seq_ids, messages, strict=True):
            if isinstance(message, Message):
                size += len(message.body)
                if message.persistent:
                    stored.append(seq_id)
            else:
                paged_size += message.body_bytes
                paged += 1
                stored.append(seq_id)
        self._ram_bytes -= size
        self._paged -= paged
        if storage is not None and stored:
            self._stored -= len(stored)
            storage.index.settle(stored)
            awaiting = self._awaiting
            if awaiting:
                for seq_id in stored:
                    if seq_id in awaiting:
                        self._confirmed.append(awaiting.pop(seq_id))
            if not self._has_called_for_flush:
                self._call_for_flush(storage)
        if self._digest_cache:
            self._forget_digests(seq_ids)
        return size + paged_size

    # -- back to ready

    def requeue(self, seq_ids: Sequence[SeqId]) -> int:
        """See `BackingQueue.requeue`."""
        self._require_service()
        unacked = self._unacked
        known = sorted({seq_id for seq_id in seq_ids if seq_id in unacked})
        if not known:
            return 0
        size = 0
        for seq_id in known:
            message = self._ready[seq_id] = unacked.pop(seq_id)
            size += len(message.body) if isinstance(message, Message) else message.body_bytes
        self._ready_bytes += size
        self._unacked_bytes -= size
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, known[-1] + 1)
        if not self._is_order_stale:
            if not self._order or known[-1] < self._order[0]:
                self._order.extendleft(reversed(known))
            else:
                self._is_order_stale = True
        return len(known)

    def requeue_all(self) -> int:
        """See `BackingQueue.requeue_all`."""
        return self.requeue([SeqId(seq_id) for seq_id in self._unacked])

    def _sort_order(self) -> None:
        self._order = deque(sorted(self._ready))
        self._is_order_stale = False

    def _trim_order(self) -> None:
        """Drop tombstones at the head, and all of them when they are too many."""
        if self._is_order_stale:
            return
        order, ready = self._order, self._ready
        while order and order[0] not in ready:
            order.popleft()
        if len(order) > 2 * len(ready) + TOMBSTONES_MAX:
            self._sort_order()

    # -- duplicates and confirms

    def is_duplicate(self, msg_id: MsgId) -> bool:
        """See `BackingQueue.is_duplicate`."""
        return msg_id <= self._origins.get(OriginId(msg_id[:ORIGIN_BYTES]), b"")

    def _raise_origins(self, msg_ids: Sequence[MsgId]) -> None:
        """Move the high-water marks, and the origins to the recently used end. Ids of one origin are ascending."""
        origins = self._origins
        recent: dict[OriginId, MsgId] = {}
        for msg_id in msg_ids:
            recent[msg_id[:ORIGIN_BYTES]] = msg_id  # type: ignore[index]  # an OriginId by its definition
        for origin, msg_id in recent.items():
            known = origins.pop(origin, b"")
            origins[origin] = msg_id if msg_id > known else MsgId(known)
        while len(origins) > ORIGINS_MAX:
            del origins[next(iter(origins))]

    def confirm_when_safe(self, msg_id: MsgId, token: Hashable) -> None:
        """See `BackingQueue.confirm_when_safe`. Waits for all that this queue has under way, the copy included."""
        self._require_service()
        storage = self._storage
        if storage is not None and storage.index.has_unflushed_publishes:
            self._unflushed_duplicates.append(token)
        elif storage is not None and self._last_write_generation > self._durable_write_generation():
            self._confirm_fifo.append((self._last_write_generation, [], [token]))
        else:
            self._confirmed.append(token)

    def _durable_write_generation(self) -> int:
        if not self._config.confirm_after_sync:
            return self._last_write_generation
        return self._group_commit.durable_generation

    def drain_confirmed(self) -> list[Hashable]:
        """See `BackingQueue.drain_confirmed`."""
        self._require_service()
        fifo = self._confirm_fifo
        if fifo:
            durable = self._durable_write_generation()
            awaiting, confirmed = self._awaiting, self._confirmed
            while fifo and fifo[0][0] <= durable:
                _, seq_ids, duplicates = fifo.popleft()
                for seq_id in seq_ids:
                    if seq_id in awaiting:
                        confirmed.append(awaiting.pop(seq_id))
                confirmed += duplicates
        tokens, self._confirmed = self._confirmed, []
        return tokens

    # -- disk

    def flush_writes(self) -> None:
        """Write what was collected into the files. Never raises: a failure shows in the next operation."""
        storage = self._storage
        self._has_called_for_flush = False
        if storage is None or self._failure is not None:
            return
        over_limit: list[int] = []
        if self._ram_bytes > self._config.ram_limit_bytes:
            over_limit = storage.index.unflushed()
        try:
            written = storage.flush(self._next_seq_id)
        except StorageError as error:
            self._fail(error)
            return
        self._unflushed_bytes = 0
        if written:
            self._last_write_generation = self._group_commit.open_generation
        if self._unflushed_tokens or self._unflushed_duplicates:
            waiting = (self._last_write_generation, self._unflushed_tokens, self._unflushed_duplicates)
            self._confirm_fifo.append(waiting)
            self._unflushed_tokens, self._unflushed_duplicates = [], []
        if over_limit:
            self._page_out(over_limit)

    def _page_out(self, seq_ids: Sequence[int]) -> None:
        """Give up bodies that are on disk, the last first, until the limit is kept."""
        storage = self._storage
        if storage is None:
            return
        limit = self._config.ram_limit_bytes
        for seq_id in reversed(seq_ids):
            if self._ram_bytes <= limit:
                return
            place = self._ready if seq_id in self._ready else self._unacked
            message = place.get(seq_id)
            if isinstance(message, Message) and message.persistent and not storage.index.is_unflushed(seq_id):
                place[seq_id] = PagedMessage(message.msg_id, len(message.body))
                self._ram_bytes -= len(message.body)
                self._paged += 1

    def _page_in(self) -> None:
        """Read the bodies at the head of the order back, at least one."""
        storage = self._storage
        assert storage is not None, "only a stored message loses its body"
        wanted: list[int] = []
        total = 0
        for seq_id in islice(self._order, READ_AHEAD_MESSAGES):
            message = self._ready.get(seq_id)
            if message is None:
                continue
            if isinstance(message, Message):
                break
            total += message.body_bytes
            if wanted and (message.body_bytes > READ_AHEAD_BODY_BYTES_MAX or total > READ_AHEAD_BYTES):
                break
            wanted.append(seq_id)
        try:
            envelopes = storage.index.read(wanted)
        except StorageError as error:
            self._fail(error)
            raise
        for seq_id, envelope in envelopes:
            message, _ = decode_envelope(envelope)
            self._ready[seq_id] = message
            self._ram_bytes += len(message.body)
        self._paged -= len(wanted)

    def _fail(self, error: StorageError) -> None:
        if self._failure is None:
            self._failure = error
            self._durable_at_failure = self._group_commit.durable_generation

    @property
    def has_failed(self) -> bool:
        """True once this queue's own files refused something: every further operation raises."""
        return self._failure is not None

    def _require_service(self) -> None:
        """Raise if this queue, or the disk under all of them, has failed."""
        if self._failure is None and self._storage is not None and self._group_commit.failure is not None:
            self._fail(self._group_commit.failure)
        if self._failure is not None:
            raise type(self._failure)(f"the queue is out of service: {self._failure}")

    # -- mirroring

    @property
    def next_seq_id(self) -> SeqId:
        """See `ReplicaQueue.next_seq_id`."""
        return SeqId(self._next_seq_id)

    @property
    def first_live_seq_id(self) -> SeqId:
        """See `ReplicaQueue.first_live_seq_id`. Looks at every unacked message."""
        if self._is_order_stale:
            self._sort_order()
        self._trim_order()
        first = self._order[0] if self._order else self._next_seq_id
        return SeqId(min(first, min(self._unacked, default=first)))

    def insert(self, seq_ids: Sequence[SeqId], messages: Sequence[Message], envelopes: Sequence[bytes]) -> None:
        """See `ReplicaQueue.insert`."""
        self._require_service()
        if not seq_ids:
            return
        storage = self._storage
        ready, unacked = self._ready, self._unacked
        added: list[int] = []
        stored: dict[int, Message] = {}
        stored_envelopes: dict[int, bytes] = {}
        size = 0
        for seq_id, message, envelope in zip(seq_ids, messages, envelopes, strict=True):
            if seq_id in ready or seq_id in unacked:
                continue
            ready[seq_id] = message
            added.append(seq_id)
            size += len(message.body)
            if storage is not None and message.persistent:
                stored[seq_id] = message
                stored_envelopes[seq_id] = envelope
        self._ready_bytes += size
        self._ram_bytes += size
        if not self._is_order_stale:
            if added and added[0] < self._next_seq_id:
                self._is_order_stale = True
            else:
                self._order.extend(added)
        self._next_seq_id = max(self._next_seq_id, seq_ids[-1] + 1)
        self._raise_origins_of([message.msg_id for message in messages])
        if self._digest_cache:
            self._forget_digests(added)
        if storage is not None and stored:
            self._stored += len(stored)
            storage.index.publish_envelopes(stored, stored_envelopes)
            self._collected(storage, size)

    def _raise_origins_of(self, msg_ids: Iterable[MsgId]) -> None:
        """As `_raise_origins`, for ids of a sync batch, which may be older than what is known."""
        highest: dict[OriginId, MsgId] = {}
        for msg_id in msg_ids:
            origin = OriginId(msg_id[:ORIGIN_BYTES])
            if msg_id > highest.get(origin, b""):
                highest[origin] = msg_id
        self._raise_origins(list(highest.values()))

    def advance_next_seq_id(self, next_seq_id: SeqId) -> None:
        """See `ReplicaQueue.advance_next_seq_id`."""
        self._require_service()
        self._next_seq_id = max(self._next_seq_id, next_seq_id)
        if self._storage is not None and self._next_seq_id >= self._storage.renew_at:
            self._call_for_flush(self._storage)

    def digests(self) -> list[SegmentDigest]:
        """See `ReplicaQueue.digests`. Computed for segments that changed since the last call."""
        cache = self._digest_cache
        segments = {seq_id // DIGEST_SEGMENT_ENTRIES for place in (self._ready, self._unacked) for seq_id in place}
        result: list[SegmentDigest] = []
        for segment in sorted(segments):
            digest = cache.get(segment)
            if digest is None:
                held = self.holdings(segment)
                total = sum([entry_digest(seq_id, msg_id) for seq_id, msg_id in held])
                digest = cache[segment] = SegmentDigest(segment, len(held), total & 0xFFFFFFFFFFFFFFFF)
            result.append(digest)
        return result

    def _forget_digests(self, seq_ids: Iterable[int]) -> None:
        for segment in {seq_id // DIGEST_SEGMENT_ENTRIES for seq_id in seq_ids}:
            self._digest_cache.pop(segment, None)

    def holdings(self, segment: int) -> list[Holding]:
        """See `ReplicaQueue.holdings`."""
        first = segment * DIGEST_SEGMENT_ENTRIES
        held: list[Holding] = []
        for seq_id in range(first, first + DIGEST_SEGMENT_ENTRIES):
            message = self._ready.get(seq_id) or self._unacked.get(seq_id)
            if message is not None:
                held.append(Holding(SeqId(seq_id), message.msg_id))
        return held

    def read(self, seq_ids: Sequence[SeqId]) -> list[tuple[SeqId, bytes]]:
        """See `ReplicaQueue.read`."""
        self._require_service()
        found: dict[int, bytes] = {}
        paged: list[int] = []
        for seq_id in seq_ids:
            message = self._ready.get(seq_id) or self._unacked.get(seq_id)
            if isinstance(message, Message):
                found[seq_id] = message.envelope()
            elif message is not None:
                paged.append(seq_id)
        if paged and self._storage is not None:
            try:
                found.update(self._storage.index.read(paged))
            except StorageError as error:
                self._fail(error)
                raise
        return [(seq_id, found[seq_id]) for seq_id in seq_ids if seq_id in found]

    def origins(self) -> Mapping[OriginId, int]:
        """See `ReplicaQueue.origins`."""
        return {origin: split_msg_id(msg_id)[1] for origin, msg_id in self._origins.items()}

    def merge_origins(self, origins: Mapping[OriginId, int]) -> None:
        """See `ReplicaQueue.merge_origins`."""
        self._require_service()
        self._raise_origins([MsgId(origin + counter.to_bytes(8, "big")) for origin, counter in origins.items()])

    def mark_delivered_below(self, seq_id: SeqId) -> None:
        """See `ReplicaQueue.mark_delivered_below`."""
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, seq_id)

    def flag_redelivered(self) -> None:
        """See `BackingQueue.flag_redelivered`."""
        self.mark_delivered_below(self.next_seq_id)

    @property
    def write_generation(self) -> int:
        """See `ReplicaQueue.write_generation`."""
        return self._group_commit.open_generation

    @property
    def durable_generation(self) -> int:
        """See `ReplicaQueue.durable_generation`. Compare at once: it may fall back when something new is written.

        If this queue has nothing under way, that is the open generation itself: there is nothing to wait for.
        """
        storage, group_commit = self._storage, self._group_commit
        if self._failure is not None:
            return self._durable_at_failure
        if storage is None:
            return group_commit.open_generation
        if storage.index.has_unflushed_publishes:
            return group_commit.durable_generation if self._config.confirm_after_sync else self._open_before()
        if self._last_write_generation > self._durable_write_generation():
            return group_commit.durable_generation
        return group_commit.open_generation

    def _open_before(self) -> int:
        """The generation before the open one: all its writes were flushed before it closed."""
        return self._group_commit.open_generation - 1

    # -- paging

    def ram_duration_s(self, now_ms: int) -> float:
        """See `node.alarms.memory_monitor.PagingQueue`. Rates are not measured: no traffic is claimed."""
        return math.inf

    def set_ram_duration_target(self, seconds: float) -> None:
        """See `node.alarms.memory_monitor.PagingQueue`."""
        self._ram_duration_target_s = seconds

    # -- the rest

    @property
    def ready(self) -> int:
        """See `BackingQueue.ready`."""
        return len(self._ready)

    @property
    def unacked(self) -> int:
        """See `BackingQueue.unacked`."""
        return len(self._unacked)

    def status(self) -> BackingQueueStatus:
        """See `BackingQueue.status`."""
        depth = len(self._ready) + len(self._unacked)
        in_ram = depth - self._paged
        return BackingQueueStatus(
            ready=len(self._ready),
            unacked=len(self._unacked),
            ready_bytes=self._ready_bytes,
            unacked_bytes=self._unacked_bytes,
            in_ram=in_ram,
            persistent=self._stored,
            next_seq_id=SeqId(self._next_seq_id),
            memory_bytes=self._ram_bytes + in_ram * _MESSAGE_BYTES + self._paged * _POSITION_BYTES,
        )

    def terminate(self) -> None:
        """See `BackingQueue.terminate`. After a failure the files stay as they are, for recovery by scan."""
        storage = self._storage
        if storage is None:
            return
        try:
            if self._failure is None and self._group_commit.failure is None:
                storage.terminate(Terms(self._next_seq_id, self._next_deliver_seq_id, self._origins))
            else:
                storage.abandon()
        finally:
            self._fail(StorageError("it was terminated"))

    def delete(self) -> None:
        """See `BackingQueue.delete`."""
        if self._storage is not None:
            self._storage.delete()
        self._fail(StorageError("it was deleted"))

    def check_invariants(self) -> None:
        """See `BackingQueue.check_invariants`."""
        ready, unacked = self._ready, self._unacked
        assert not ready.keys() & unacked.keys(), "a message is ready or unacked, never both"
        live = {**ready, **unacked}
        assert all(seq_id < self._next_seq_id for seq_id in live), "positions are below the next one"
        assert all(seq_id < self._next_deliver_seq_id for seq_id in unacked), "what is unacked was delivered"
        if not self._is_order_stale:
            order = list(self._order)
            assert order == sorted(set(order)), "the order is ascending and names every position once"
            assert ready.keys() <= set(order), "every ready message has its place in the order"
        sizes = {s: len(m.body) if isinstance(m, Message) else m.body_bytes for s, m in live.items()}
        assert self._ready_bytes == sum(sizes[seq_id] for seq_id in ready), "ready bytes are those of ready messages"
        assert self._unacked_bytes == sum(sizes[seq_id] for seq_id in unacked), "and so are unacked bytes"
        in_ram = [s for s, m in live.items() if isinstance(m, Message)]
        assert self._ram_bytes == sum(sizes[seq_id] for seq_id in in_ram), "bytes in memory are those of alphas"
        assert self._paged == len(live) - len(in_ram), "every other message is paged out"
        stored = [s for s, m in live.items() if not isinstance(m, Message) or m.persistent] if self._storage else []
        assert self._stored == len(stored), "stored are the persistent messages of a durable queue"
        assert self._awaiting.keys() <= set(stored), "tokens wait for live stored messages only"
        assert len(self._origins) <= ORIGINS_MAX, "remembered origins are bounded"
        if self._storage is not None and self._failure is None:
            self._storage.index.check_invariants(self._stored)

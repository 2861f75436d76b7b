"""The local storage engine of a queue (`node.queues.local_replica` adds what mirroring needs).

**State.** Ready messages are in the five stages Q4, Q3, delta, Q2, Q1 of `node.queues.stages`; unacked ones are in a
dict by seq id, in memory always, their bodies unless they were paged out. Everything that is on disk is known to the
queue's index.

**What is stored.** A persistent message of a durable queue is collected by the index at once and written by
`flush_writes`, which the owner of the loop calls once per turn: a publish that is settled within the turn is never
written. A transient message reaches the disk only when memory runs short, or in a lazy queue, and is gone after
a restart.

**How much is in memory.** Without pressure, everything that came since the queue was opened. The node's memory monitor
asks every queue for its *duration* (`node.queues.rates`) and sets one for all; it becomes `target_ram_count`, above
which messages are paged out: the newest alphas, or the oldest pending acks if these grow faster. Page-outs ride
on publishes and fetches, and `maintain` does what is left.

**Confirms.** See `node.queues.confirm_tokens`. Tokens of messages that are not stored come back at once.

**Redelivered** is one number, as in the reference: a position below `_next_deliver_seq_id` may have been delivered
before. It grows with every fetch, is kept over a clean stop, and after a crash lies above everything recovered.

**Failure.** A full disk is waited for: what was collected stays in memory, `is_disk_full` is true, and every turn tries
again (no confirm goes out meanwhile). After any other `StorageError` of this queue's files, or of the group
commit, every operation raises and no token is given back any more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from node.errors import DiskFullError, StorageError
from node.ids import MsgId, SeqId
from node.message import Message
from node.queues.backing_queue import BackingQueueStatus, Delivery, MirrorInFlight, Publication
from node.queues.confirm_tokens import ConfirmTokens
from node.queues.origins import Origins
from node.queues.rates import QueueRates
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, SegmentDigest
from node.queues.stages import PAGE_OUT_MESSAGES, StageCounts, Stages
from node.queues.sub_queue import Entry
from node.queues.unacked import Unacked, body_bytes
from node.store.disk.group_commit import GroupCommit
from node.store.index.index import RecoveryReport
from node.store.queue_storage import QueueStorage
from node.store.shared.config import StoreConfig

#: Collected bytes after which a queue writes without waiting for the end of the turn (mission S11).
WRITE_BUFFER_BYTES = 512 * 1024
#: Operations (messages published, fetched or settled) between two looks at whether something must be paged out
#: (RabbitMQ: ``ram_pending`` operations).
OPERATIONS_PER_LOOK = 1000
#: Estimates for `status`: memory of a message object beside its body, and of a position whose body is on disk.
_MESSAGE_BYTES = 500
_POSITION_BYTES = 250
#: Memory of an idle queue.
_QUEUE_BYTES = 4_000


class VariableQueue:
    """Implements `BackingQueue`; see the module text. Not thread-safe: everything happens on the loop's thread."""

    __slots__ = (
        "_config",
        "_digest_cache",
        "_durable_at_failure",
        "_failure",
        "_full_generation",
        "_group_commit",
        "_has_called_for_flush",
        "_is_durable",
        "_last_write_generation",
        "_next_deliver_seq_id",
        "_next_seq_id",
        "_operations",
        "_origins",
        "_persistent",
        "_persistent_bytes",
        "_ready_bytes",
        "_stages",
        "_storage",
        "_target_duration_s",
        "_tokens",
        "_unacked",
        "_unflushed_bytes",
        "_unflushed_untracked",
        "_untracked",
        "is_disk_full",
        "rates",
        "target_ram_count",
    )

    def __init__(self, storage: QueueStorage, group_commit: GroupCommit, config: StoreConfig) -> None:
        """What ``storage`` recovered becomes ready."""
        self._storage = storage
        self._group_commit = group_commit
        self._config = config
        self._is_durable = storage.is_durable
        self._unacked = Unacked()
        self._stages = Stages(storage.index, config, self._unacked.messages, is_durable=storage.is_durable)
        self._next_seq_id = 0
        self._next_deliver_seq_id = 0
        #: Body bytes of ready messages, wherever the bodies are.
        self._ready_bytes = 0
        #: Live persistent messages of a durable queue, and their body bytes.
        self._persistent = 0
        self._persistent_bytes = 0
        self._tokens = ConfirmTokens()
        #: Collected since the last flush: bytes, and persistent messages without a token (also those settled since).
        self._unflushed_bytes = 0
        self._unflushed_untracked = 0
        self._has_called_for_flush = False
        #: Generation of the last message written.
        self._last_write_generation = 0
        #: (generation, persistent messages without a token written in it), generations ascending, not durable yet.
        self._untracked: deque[tuple[int, int]] = deque()
        self._origins = Origins()
        #: Digests of segments that have not changed since they were computed.
        self._digest_cache: dict[int, SegmentDigest] = {}
        self.rates = QueueRates()
        self._target_duration_s = math.inf
        #: Alphas and unacked bodies that may be in memory; ``None``: no limit.
        self.target_ram_count: int | None = None
        self._operations = 0
        #: The last flush found no space; it is tried again.
        self.is_disk_full = False
        #: While the disk is full: generation of the first write that did not find space.
        self._full_generation = 0
        self._failure: StorageError | None = None
        self._durable_at_failure = 0
        self._adopt(storage)

    def _adopt(self, storage: QueueStorage) -> None:
        self._next_seq_id = self._next_deliver_seq_id = storage.first_free_seq_id
        report = storage.report
        if report is not None:
            self._persistent = report.messages
            self._persistent_bytes = self._ready_bytes = report.body_bytes
            first = next(iter(storage.index.live(0, self._next_seq_id)), 0)
            self._stages.recover(first, self._next_seq_id, report.messages)
        if storage.terms is not None:
            self._next_deliver_seq_id = storage.terms.next_deliver_seq_id
        self._origins.accept_any(storage.origins.values())
        if report is not None:
            report.redelivered = storage.index.count_live(0, self._next_deliver_seq_id)
        if self._next_seq_id >= storage.renew_at:
            self._call_for_flush()

    @property
    def recovery_report(self) -> RecoveryReport | None:
        """What opening the queue found; ``None`` if there was nothing to recover."""
        return self._storage.report

    # -- publish

    def publish(self, publications: Sequence[Publication]) -> None:
        """See `BackingQueue.publish`."""
        first = self._next_seq_id
        messages, size = self._accept(publications, self._stages.is_lazy)
        self._ready_bytes += size
        self.rates.ingress.add(len(messages))
        self._append(range(first, self._next_seq_id), messages, size)
        self._operated(len(messages))

    def publish_delivered(self, publications: Sequence[Publication]) -> list[Delivery]:
        """See `BackingQueue.publish_delivered`."""
        first = self._next_seq_id
        messages, size = self._accept(publications, False)
        self._unacked.add(range(first, self._next_seq_id), messages, size)
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, self._next_seq_id)
        self.rates.ack_in.add(len(messages))
        self._operated(len(messages))
        return [Delivery(SeqId(seq_id), message, False) for seq_id, message in enumerate(messages, first)]

    def _append(self, seq_ids: Sequence[int], messages: Sequence[Message], size: int) -> None:
        if self._stages.is_lazy:
            self._stages.append_on_disk(seq_ids, messages)
        else:
            self._stages.append(seq_ids, messages, size)

    def _accept(self, publications: Sequence[Publication], stores_all: bool) -> tuple[list[Message], int]:
        """Give messages the tail positions and let the index collect what is stored. Returns them and their bytes."""
        self._require_service()
        first = seq_id = self._next_seq_id
        size = persistent_bytes = persistent = untracked = 0
        is_durable, tokens = self._is_durable, self._tokens
        stored: dict[int, Message] = {}
        at_once: list[Hashable] = []
        messages: list[Message] = []
        for message, token in publications:
            messages.append(message)
            body_size = len(message.body)
            size += body_size
            if is_durable and message.persistent:
                stored[seq_id] = message
                persistent += 1
                persistent_bytes += body_size
                if token is not None:
                    tokens.hold(seq_id, token)
                else:
                    untracked += 1
            else:
                if stores_all:
                    stored[seq_id] = message
                if token is not None:
                    at_once.append(token)
            seq_id += 1
        self._next_seq_id = seq_id
        self._persistent += persistent
        self._persistent_bytes += persistent_bytes
        self._unflushed_untracked += untracked
        tokens.confirm(at_once)
        self._origins.accept([message.msg_id for message in messages])
        if self._digest_cache:
            self._forget_digests(range(first, seq_id))
        if stored:
            self._storage.index.publish(stored)
            self._collected(size)
        elif seq_id >= self._storage.renew_at:
            self._call_for_flush()
        return messages, size

    def _collected(self, size: int) -> None:
        """Bytes were collected: call for the flush of the turn, or do not wait for it."""
        self._unflushed_bytes += size
        if self._unflushed_bytes > WRITE_BUFFER_BYTES and not self.is_disk_full:
            self.flush_writes()
        elif not self._has_called_for_flush:
            self._call_for_flush()

    def _call_for_flush(self) -> None:
        self._has_called_for_flush = True
        self._storage.on_unflushed()

    def discard(self, publications: Sequence[Publication]) -> None:
        """See `BackingQueue.discard`."""
        self._require_service()
        self._origins.accept([publication.message.msg_id for publication in publications])
        self._tokens.confirm([publication.token for publication in publications if publication.token is not None])

    # -- take

    def fetch(self, count_max: int, ack_required: bool) -> list[Delivery]:
        """See `BackingQueue.fetch`."""
        deliveries, size = self._take(count_max)
        if not deliveries:
            return deliveries
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, deliveries[-1].seq_id + 1)
        self.rates.egress.add(len(deliveries))
        if ack_required:
            self._unacked.add([each[0] for each in deliveries], [each[1] for each in deliveries], size)
            self.rates.ack_in.add(len(deliveries))
        else:
            self._forget([delivery[0] for delivery in deliveries], [delivery[1] for delivery in deliveries])
        self._operated(len(deliveries))
        return deliveries

    def drop(self, count: int) -> list[Delivery]:
        """See `BackingQueue.drop`."""
        deliveries, _ = self._take(count)
        self._forget([delivery[0] for delivery in deliveries], [delivery[1] for delivery in deliveries])
        return deliveries

    def _take(self, count_max: int) -> tuple[list[Delivery], int]:
        """Take messages from the head, and their bytes, out of the ready ones."""
        self._require_service()
        next_deliver = self._next_deliver_seq_id
        try:
            seq_ids, messages = self._stages.take(count_max, self._read_ahead())
        except StorageError as error:
            self._fail(error)
            raise
        size = sum([len(message.body) for message in messages])
        self._ready_bytes -= size
        return [
            Delivery(SeqId(seq_id), message, seq_id < next_deliver)
            for seq_id, message in zip(seq_ids, messages, strict=True)
        ], size

    def _read_ahead(self) -> int:
        """Bodies worth having ready, by the rate of consumption; fewer if memory is short."""
        ahead = 1 + int(2 * self.rates.egress.per_s)
        return ahead if self.target_ram_count is None else min(ahead, self.target_ram_count)

    # -- settle

    def ack(self, seq_ids: Sequence[SeqId]) -> int:
        """See `BackingQueue.ack`."""
        self._require_service()
        known, messages, _ = self._unacked.take(seq_ids)
        self._forget(known, messages)
        self.rates.ack_out.add(len(known))
        return len(known)

    def purge(self) -> int:
        """See `BackingQueue.purge`."""
        self._require_service()
        return self._purge(())

    def _purge(self, keep: Collection[int]) -> int:
        """Remove all ready messages but those at these few positions. Returns how many are gone."""
        stages = self._stages
        count = len(stages)
        try:
            stages.purge(self._next_seq_id, keep)
            # The sizes were not looked at: what is left is what is kept, and what is unacked.
            kept = stages.entries()
        except StorageError as error:
            self._fail(error)
            raise
        self._ready_bytes = sum(map(body_bytes, kept))
        persistent = [entry for entry in (*kept, *self._unacked.messages.values()) if self._is_persistent(entry)]
        self._persistent = len(persistent)
        self._persistent_bytes = sum(map(body_bytes, persistent))
        self._digest_cache.clear()
        self._settled_on_disk()
        return count - len(stages)

    def _settled_on_disk(self) -> None:
        """The index may have settled messages by range: tokens and the flush follow."""
        is_live = self._storage.index.is_live
        self._tokens.settled([seq_id for seq_id in self._tokens.waiting if not is_live(seq_id)])
        if self._storage.index.has_unflushed and not self._has_called_for_flush:
            self._call_for_flush()

    def _is_persistent(self, message: Entry) -> bool:
        return message.persistent and self._is_durable

    def _forget(self, seq_ids: Sequence[int], messages: Sequence[Entry]) -> None:
        """Messages taken out of their place in memory are gone for good: index and tokens follow."""
        if not seq_ids:
            return
        index, is_durable = self._storage.index, self._is_durable
        persistent = size = 0
        stored = seq_ids
        for message in messages:
            if message.persistent and is_durable:
                persistent += 1
                size += len(message.body) if message.__class__ is Message else message.body_bytes  # type: ignore[union-attr]
        self._persistent -= persistent
        self._persistent_bytes -= size
        if persistent < len(seq_ids):
            # Transient messages are stored only if they were paged out.
            is_live = index.is_live
            kept = [at for at, seq_id in enumerate(seq_ids) if is_live(seq_id)]
            stored = [seq_ids[at] for at in kept]
            messages = [messages[at] for at in kept]
        if stored:
            index.settle(stored, messages)
            self._tokens.settled(stored)
            if not self._has_called_for_flush:
                self._call_for_flush()
        if self._digest_cache:
            self._forget_digests(seq_ids)

    def _forget_digests(self, seq_ids: Iterable[int]) -> None:
        for segment in {seq_id // DIGEST_SEGMENT_ENTRIES for seq_id in seq_ids}:
            self._digest_cache.pop(segment, None)

    # -- back to ready

    def requeue(self, seq_ids: Sequence[SeqId]) -> int:
        """See `BackingQueue.requeue`."""
        self._require_service()
        known, messages, size = self._unacked.take(sorted(set(seq_ids)))
        if not known:
            return 0
        self._ready_bytes += size
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, known[-1] + 1)
        self._merge(dict(zip(known, messages, strict=True)))
        self.rates.ack_out.add(len(known))
        return len(known)

    def requeue_all(self) -> int:
        """See `BackingQueue.requeue_all`."""
        return self.requeue([SeqId(seq_id) for seq_id in self._unacked.messages])

    def _merge(self, items: Mapping[int, Entry]) -> None:
        try:
            self._stages.merge(items)
        except StorageError as error:
            self._fail(error)
            raise
        if self._storage.index.has_unflushed and not self._has_called_for_flush:
            self._call_for_flush()

    def flag_redelivered(self) -> None:
        """See `BackingQueue.flag_redelivered`."""
        self._next_deliver_seq_id = self._next_seq_id

    # -- duplicates and confirms

    def is_duplicate(self, msg_id: MsgId) -> bool:
        """See `BackingQueue.is_duplicate`."""
        return self._origins.is_known(msg_id)

    def confirm_when_safe(self, msg_id: MsgId, token: Hashable) -> None:
        """See `BackingQueue.confirm_when_safe`. Waits for all that this queue has under way, the copy included."""
        self._require_service()
        if self._is_durable and self._storage.index.has_unflushed_publishes:
            self._tokens.hold_duplicate(token)
            self._call_for_flush()
        elif self._last_write_generation > self._durable_write_generation():
            self._tokens.hold_duplicate_until(self._last_write_generation, token)
        else:
            self._tokens.confirm([token])

    def _durable_write_generation(self) -> int:
        if not self._config.confirm_after_sync:
            return self._last_write_generation
        return self._group_commit.durable_generation

    def drain_confirmed(self) -> list[Hashable]:
        """See `BackingQueue.drain_confirmed`."""
        self._require_service()
        self._tokens.release(self._durable_write_generation())
        return self._tokens.drain()

    # -- memory

    def _operated(self, count: int) -> None:
        """So many messages moved: now and then look whether something must be paged out."""
        if self.target_ram_count is None and not self._stages.is_lazy:
            return
        self._operations += count
        if self._operations >= OPERATIONS_PER_LOOK:
            self._operations = 0
            self.page_out()

    def ram_duration_s(self, now_ms: int) -> float:
        """How long the messages in memory last at the present rates; infinite for an idle queue."""
        duration_s = self.rates.duration_s(now_ms, self._stages.ram_count, self._unacked.ram_count)
        self.target_ram_count = self.rates.target_ram_count(self._target_duration_s)
        return duration_s

    def time_passes(self, now_ms: int) -> None:
        """To be called about once a second or more often: keeps the rates up to date."""
        self.rates.tick(now_ms)

    def set_ram_duration_target(self, duration_s: float) -> None:
        """Keep no more in memory than lasts so long; infinite: no limit.

        What is above is paged out in bounded steps: with the traffic of this queue, and by `maintain`.
        """
        self._target_duration_s = duration_s
        self.target_ram_count = self.rates.target_ram_count(duration_s)

    def set_lazy(self, is_lazy: bool) -> None:
        """Switch between the modes ``lazy`` and ``default``; the messages follow in bounded steps (`maintain`)."""
        self._stages.is_lazy = is_lazy

    @property
    def is_lazy(self) -> bool:
        """True in mode ``lazy``."""
        return self._stages.is_lazy

    def set_index_version(self, version: int | None) -> None:
        """Have the index converted to this version (``None``: as configured), in bounded steps (`maintain`)."""
        self._storage.want_version(version)

    def _convert(self) -> None:
        """One step of a conversion. Nothing may be collected meanwhile; a full disk makes it wait."""
        storage = self._storage
        if storage.index.has_unflushed:
            self.flush_writes()
        if self.has_failed or storage.index.has_unflushed_publishes:
            return
        try:
            storage.convert(self._next_seq_id)
        except DiskFullError:
            return
        except StorageError as error:
            self._fail(error)
            return
        self._stages.index = storage.index

    def page_out(self) -> bool:
        """Move one bounded step of messages out of memory if there are too many. True if there is more to do."""
        target = self.target_ram_count
        has_more = False
        if target is not None and self._unacked.ram_count:
            stages = self._stages
            excess = stages.ram_count + self._unacked.ram_count - target
            rates = self.rates
            # What grows faster gives way first.
            grows_faster = rates.ack_in.per_s - rates.ack_out.per_s > rates.ingress.per_s - rates.egress.per_s
            if excess > 0 and (grows_faster or stages.ram_count < excess):
                share = excess if grows_faster else excess - stages.ram_count
                has_more = share > PAGE_OUT_MESSAGES
                self._page_out_unacked(min(share, PAGE_OUT_MESSAGES))
            target = max(0, target - self._unacked.ram_count)
        has_more = self._stages.page_out(target) or has_more
        if self._storage.index.has_unflushed and not self._has_called_for_flush:
            self._call_for_flush()
        return has_more

    def _page_out_unacked(self, count: int) -> None:
        """Give up the bodies of the oldest pending acks."""
        index = self._storage.index
        paged = self._unacked.page_out(count, is_durable=self._is_durable)
        unwritten = {seq_id: message for seq_id, message in paged.items() if not index.is_live(seq_id)}
        if unwritten:
            index.publish(unwritten)

    @property
    def paged_out(self) -> int:
        """Messages and positions that page-outs have moved so far."""
        return self._stages.moved + self._unacked.moved

    @property
    def wants_maintenance(self) -> bool:
        """True if `maintain` may have something to do."""
        if self._failure is not None:
            return False
        is_paging = self.target_ram_count is not None or self._stages.is_lazy or self._stages.has_purged
        return is_paging or self.is_disk_full or self._storage.wants_conversion

    def maintain(self) -> bool:
        """One bounded step of what does not ride on publishes and fetches. True if there is more to do."""
        if self._failure is not None:
            return False
        if self.is_disk_full and not self._has_called_for_flush:
            self._call_for_flush()
        if self._storage.wants_conversion:
            self._convert()
            if self.has_failed:
                return False
        return self.page_out() or self._storage.wants_conversion

    # -- disk

    def flush_writes(self) -> None:
        """Write what was collected into the files. Never raises: a failure shows in the next operation."""
        storage = self._storage
        self._has_called_for_flush = False
        if self._failure is not None:
            return
        try:
            written = storage.flush(self._next_seq_id)
        except DiskFullError:
            # A part may have been written, and what was not may be settled before it is: nothing else would tell that
            # the tokens of this part wait for this generation.
            self._last_write_generation = self._group_commit.open_generation
            if not self.is_disk_full:
                self.is_disk_full = True
                self._full_generation = self._group_commit.open_generation
            return
        except StorageError as error:
            self._fail(error)
            return
        self.is_disk_full = False
        if written:
            self._last_write_generation = self._group_commit.open_generation
        if self._unflushed_untracked:
            self._untracked.append((self._last_write_generation, self._unflushed_untracked))
        self._unflushed_bytes = self._unflushed_untracked = 0
        self._tokens.flushed(self._last_write_generation)
        if storage.index.has_unflushed:
            self._call_for_flush()

    @property
    def in_flight_messages(self) -> int:
        """See `BackingQueue.in_flight_messages`. One without token counts until its generation is durable."""
        untracked = self._untracked
        durable = self._durable_write_generation()
        while untracked and untracked[0][0] <= durable:
            untracked.popleft()
        return len(self._tokens.waiting) + self._unflushed_untracked + sum([count for _, count in untracked])

    def mirrors_in_flight(self) -> Sequence[MirrorInFlight]:
        """See `BackingQueue.mirrors_in_flight`."""
        return ()

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
        if self._failure is None and self._is_durable and self._group_commit.failure is not None:
            self._fail(self._group_commit.failure)
        if self._failure is not None:
            # The class of the error says whether there is hope: a full disk will have room again.
            raise type(self._failure)(f"the queue is out of service: {self._failure}")

    # -- the rest

    @property
    def ready(self) -> int:
        """See `BackingQueue.ready`."""
        return len(self._stages)

    @property
    def unacked(self) -> int:
        """See `BackingQueue.unacked`."""
        return len(self._unacked)

    @property
    def stage_counts(self) -> StageCounts:
        """Ready messages per stage."""
        return self._stages.counts

    def backing_queue_status(self) -> dict[str, int | float | str | None]:
        """The state of the engine in the words of RabbitMQ's ``backing_queue_status``; rates in messages per second."""
        q1, q2, delta, q3, q4 = self._stages.counts
        rates = self.rates
        return {
            "mode": "lazy" if self.is_lazy else "default",
            "version": self._storage.index.version,
            "q1": q1,
            "q2": q2,
            "delta": delta,
            "q3": q3,
            "q4": q4,
            "len": len(self._stages),
            "pending_acks": len(self._unacked),
            "target_ram_count": "infinity" if self.target_ram_count is None else self.target_ram_count,
            "ram_msg_count": self._stages.ram_count,
            "ram_ack_count": self._unacked.ram_count,
            "next_seq_id": self._next_seq_id,
            "num_unconfirmed": len(self._tokens.waiting),
            "avg_ingress_rate": round(rates.ingress.per_s, 1),
            "avg_egress_rate": round(rates.egress.per_s, 1),
            "avg_ack_ingress_rate": round(rates.ack_in.per_s, 1),
            "avg_ack_egress_rate": round(rates.ack_out.per_s, 1),
        }

    def status(self) -> BackingQueueStatus:
        """See `BackingQueue.status`."""
        stages = self._stages
        in_ram = stages.ram_count + self._unacked.ram_count
        positions = stages.position_count + len(self._unacked) - in_ram
        return BackingQueueStatus(
            ready=len(stages),
            unacked=len(self._unacked),
            ready_bytes=self._ready_bytes,
            unacked_bytes=self._unacked.body_bytes,
            in_ram=in_ram,
            persistent=self._persistent,
            next_seq_id=SeqId(self._next_seq_id),
            memory_bytes=(
                _QUEUE_BYTES
                + stages.ram_bytes
                + self._unacked.ram_bytes
                + in_ram * _MESSAGE_BYTES
                + positions * _POSITION_BYTES
                + self._storage.index.memory_bytes
            ),
        )

    def terminate(self) -> None:
        """See `BackingQueue.terminate`. After a failure the files stay as they are, for recovery by scan."""
        storage = self._storage
        try:
            if self._failure is None and self._group_commit.failure is None:
                storage.terminate(
                    self._next_seq_id, self._next_deliver_seq_id, self._persistent_bytes, self._origins.last
                )
            else:
                storage.abandon()
        finally:
            self._fail(StorageError("it was terminated"))

    def delete(self) -> None:
        """See `BackingQueue.delete`."""
        self._storage.delete()
        self._fail(StorageError("it was deleted"))

    def check_invariants(self) -> None:
        """See `BackingQueue.check_invariants`."""
        stages, unacked, index = self._stages, self._unacked.messages, self._storage.index
        stages.check_invariants()
        self._unacked.check_invariants()
        self._origins.check_invariants()
        if self._failure is None:
            index.check_invariants()
        places = [q.messages for q in (stages.q1, stages.q2, stages.q3, stages.q4)]
        in_memory: dict[int, Entry] = {}
        for place in (unacked, *places):
            assert not in_memory.keys() & place.keys(), "a message is ready or unacked, in one place"
            in_memory.update(place)
        assert all(seq_id < self._next_seq_id for seq_id in in_memory), "positions are below the next one"
        assert all(seq_id < self._next_deliver_seq_id for seq_id in unacked), "what is unacked was delivered"
        ready_bytes = sum(body_bytes(message) for place in places for message in place.values())
        assert stages.delta.count or self._ready_bytes == ready_bytes, "ready bytes are those of ready messages"
        persistent = sum(self._is_persistent(message) for message in in_memory.values())
        assert stages.delta.count or self._persistent == persistent, "persistent messages are counted"
        for seq_id, message in in_memory.items():
            is_stored = index.is_live(seq_id)
            assert is_stored or not self._is_persistent(message), "a persistent message of a durable queue is stored"
            assert is_stored or isinstance(message, Message), "a body that is not in memory is on disk"
        assert all(map(index.is_live, self._tokens.waiting)), "tokens wait for live stored messages only"

"""The local storage engine of a queue. `node.queues.local_replica` has one, and says what mirroring asks of it.

**State.** What is live, and where, is `node.queues.content`; what of it is written and durable, `node.queues.writes`;
how much of it may be in memory, `node.queues.paging`. Here they meet: messages come, are delivered, come back and go.

**What is stored.** A persistent message of a durable queue is collected by the index at once and written by
`flush_writes`, which the owner of the loop calls once per turn: a publish that is settled within the turn is never
written. A transient message reaches the disk only when memory runs short, or in a lazy queue, and is gone after
a restart.

**Positions** are given here, one after the other, unless somebody else chose them: a mirror inserts what the master
published where the master put it, and removes ranges that it settled.

**Redelivered** is one number, as in the reference: a position below `_next_deliver_seq_id` may have been delivered
before. It grows with every fetch, is kept over a clean stop, and after a crash lies above everything recovered.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import cast

from node.errors import DiskFullError, StorageError
from node.ids import Epoch, MsgId, SeqId
from node.message import Message
from node.queues.backing_queue import NO_LIMIT_BYTES, BackingQueueStatus, Delivery, Publication
from node.queues.content import Content
from node.queues.origins import Origins
from node.queues.paging import Paging
from node.queues.replica import SeqRange
from node.queues.stages import StageCounts
from node.queues.writes import Writes
from node.store.disk.group_commit import GroupCommit
from node.store.index.index import RecoveryReport
from node.store.queue_storage import QueueStorage
from node.store.shared.config import StoreConfig

#: Estimates for `status`: memory of a message object beside its body, and of a position whose body is on disk.
_MESSAGE_BYTES = 500
_POSITION_BYTES = 250
#: Memory of an idle queue.
_QUEUE_BYTES = 4_000


class VariableQueue:
    """What can be done with the messages of a queue; see the module text. Not thread-safe: everything happens on the
    loop's thread.

    Beside its operations it shows its parts to whoever owns it: `content` and `writes` are for looking at (how much is
    ready, which tokens are confirmed; what may be set is `Content.observer`), `paging` and `rates` are for whoever
    manages the memory of all queues, `origins` may be merged with those of another replica. `next_seq_id` is the
    position of the next publish.
    """

    __slots__ = (
        "_is_durable",
        "_next_deliver_seq_id",
        "_storage",
        "content",
        "delivered_epoch",
        "next_seq_id",
        "origins",
        "paging",
        "rates",
        "writes",
    )

    def __init__(self, storage: QueueStorage, group_commit: GroupCommit, config: StoreConfig) -> None:
        """What ``storage`` recovered becomes ready."""
        self._storage = storage
        self._is_durable = storage.is_durable
        self.writes = Writes(storage, group_commit, config)
        self.content = Content(storage, config, self.writes)
        self.paging = Paging(self.content, self.writes, is_durable=storage.is_durable)
        self.rates = self.paging.rates
        #: Which publishes were accepted.
        self.origins = Origins()
        self.next_seq_id = storage.first_free_seq_id
        self._next_deliver_seq_id = self.next_seq_id
        #: See `ReplicaQueue.delivered_epoch`.
        self.delivered_epoch = Epoch(0)
        self._adopt(storage)

    def _adopt(self, storage: QueueStorage) -> None:
        report = storage.report
        if report is not None:
            first = next(iter(storage.index.live(0, self.next_seq_id)), 0)
            self.content.recover(first, self.next_seq_id, report.messages, report.body_bytes)
        if storage.terms is not None:
            self._next_deliver_seq_id = storage.terms.next_deliver_seq_id
            self.delivered_epoch = Epoch(storage.terms.delivered_epoch)
        self.origins.accept_any(storage.origins.values())
        storage.was_adopted()
        if report is not None:
            report.redelivered = storage.index.count_live(0, self._next_deliver_seq_id)
        if self.next_seq_id >= storage.renew_at:
            self.writes.call_for_flush()

    @property
    def recovery_report(self) -> RecoveryReport | None:
        """What opening the queue found; ``None`` if there was nothing to recover."""
        return self._storage.report

    # -- publish

    def publish(self, publications: Sequence[Publication]) -> None:
        """See `BackingQueue.publish`."""
        first = self.next_seq_id
        messages, size = self._accept(publications, self.content.stages.is_lazy)
        self.rates.ingress.add(len(messages))
        self._append(range(first, self.next_seq_id), messages, size)
        self.paging.operated(len(messages))

    def publish_delivered(self, publications: Sequence[Publication]) -> list[Delivery]:
        """See `BackingQueue.publish_delivered`."""
        first = self.next_seq_id
        messages, size = self._accept(publications, False)
        self.content.unacked.add(range(first, self.next_seq_id), messages, size)
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, self.next_seq_id)
        self.rates.ack_in.add(len(messages))
        self.paging.operated(len(messages))
        return [Delivery(SeqId(seq_id), message, False) for seq_id, message in enumerate(messages, first)]

    def _append(self, seq_ids: Sequence[int], messages: Sequence[Message], size: int) -> None:
        """New messages of ``size`` body bytes become ready at the tail."""
        content = self.content
        content.ready_bytes += size
        if content.stages.is_lazy:
            content.stages.append_on_disk(seq_ids, messages)
        else:
            content.stages.append(seq_ids, messages, size)

    def _accept(self, publications: Sequence[Publication], stores_all: bool) -> tuple[list[Message], int]:
        """Give messages the tail positions and let the index collect what is stored. Returns them and their bytes."""
        content, writes = self.content, self.writes
        writes.require_service()
        first = seq_id = self.next_seq_id
        size = persistent_bytes = persistent = untracked = 0
        is_durable, tokens = self._is_durable, writes.tokens
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
        self.next_seq_id = seq_id
        content.persistent += persistent
        content.persistent_bytes += persistent_bytes
        tokens.confirm(at_once)
        self.origins.accept([message.msg_id for message in messages])
        if content.observer is not None:
            content.observer.changed(range(first, seq_id))
        if stored:
            content.index.publish(stored)
            writes.collected(size, untracked, seq_id)
        elif seq_id >= self._storage.renew_at:
            writes.call_for_flush()
        return messages, size

    def discard(self, publications: Sequence[Publication]) -> None:
        """See `BackingQueue.discard`."""
        self.writes.require_service()
        self.origins.accept([publication.message.msg_id for publication in publications])
        self.writes.tokens.confirm([publication.token for publication in publications if publication.token is not None])

    # -- take

    def fetch(self, count_max: int, ack_required: bool, bytes_max: int = NO_LIMIT_BYTES) -> list[Delivery]:
        """See `BackingQueue.fetch`."""
        deliveries, size = self._take(count_max, bytes_max)
        if not deliveries:
            return deliveries
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, deliveries[-1].seq_id + 1)
        self.rates.egress.add(len(deliveries))
        if ack_required:
            self.content.unacked.add([each[0] for each in deliveries], [each[1] for each in deliveries], size)
            self.rates.ack_in.add(len(deliveries))
        else:
            self.content.forget([delivery[0] for delivery in deliveries], [delivery[1] for delivery in deliveries])
        self.paging.operated(len(deliveries))
        return deliveries

    def drop(self, count_max: int, bytes_wanted: int = NO_LIMIT_BYTES) -> list[SeqId]:
        """See `BackingQueue.drop`."""
        self.writes.require_service()
        return cast(list[SeqId], self.content.drop(count_max, bytes_wanted))

    def _take(self, count_max: int, bytes_max: int) -> tuple[list[Delivery], int]:
        """Take messages from the head, and their bytes, out of the ready ones."""
        content = self.content
        self.writes.require_service()
        next_deliver = self._next_deliver_seq_id
        try:
            seq_ids, messages, size = content.stages.take(count_max, self.paging.read_ahead(), bytes_max)
        except StorageError as error:
            self.writes.fail(error)
            raise
        content.ready_bytes -= size
        return [
            Delivery(SeqId(seq_id), message, seq_id < next_deliver)
            for seq_id, message in zip(seq_ids, messages, strict=True)
        ], size

    # -- settle

    def ack(self, seq_ids: Sequence[SeqId]) -> int:
        """See `BackingQueue.ack`."""
        self.writes.require_service()
        content = self.content
        known, messages, _ = content.unacked.take(seq_ids)
        content.forget(known, messages)
        self.rates.ack_out.add(len(known))
        return len(known)

    def purge(self) -> int:
        """See `BackingQueue.purge`."""
        self.writes.require_service()
        return self.content.purge(self.next_seq_id)

    # -- back to ready

    def requeue(self, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> int:
        """See `BackingQueue.requeue`."""
        self.writes.require_service()
        content = self.content
        known, messages, size = content.unacked.take(sorted(set(seq_ids)))
        if not known:
            return 0
        content.ready_bytes += size
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, known[-1] + 1)
        content.merge(dict(zip(known, messages, strict=True)), more_follow=more_follow)
        self.rates.ack_out.add(len(known))
        return len(known)

    def requeue_all(self) -> int:
        """See `BackingQueue.requeue_all`."""
        return self.requeue([SeqId(seq_id) for seq_id in self.content.unacked.messages])

    # -- at positions that somebody else chose

    def insert(self, seq_ids: Sequence[SeqId], messages: Sequence[Message], envelopes: Sequence[bytes]) -> None:
        """See `ReplicaQueue.insert`."""
        content, writes = self.content, self.writes
        writes.require_service()
        if not seq_ids:
            return
        is_live = content.is_live
        added = {
            seq_id: (message, envelope)
            for seq_id, message, envelope in zip(seq_ids, messages, envelopes, strict=True)
            if seq_id >= self.next_seq_id or not is_live(seq_id)
        }
        size = sum([len(message.body) for message, _ in added.values()])
        is_durable = self._is_durable
        persistent = {seq_id: each for seq_id, each in added.items() if is_durable and each[0].persistent}
        stored = added if content.stages.is_lazy else persistent
        content.persistent += len(persistent)
        content.persistent_bytes += sum([len(message.body) for message, _ in persistent.values()])
        self.origins.accept_any([message.msg_id for message in messages])
        if content.observer is not None:
            content.observer.changed(added)
        if stored:
            content.index.publish(
                {seq_id: message for seq_id, (message, _) in stored.items()},
                {seq_id: envelope for seq_id, (_, envelope) in stored.items()},
            )
        self._place({seq_id: message for seq_id, (message, _) in added.items()}, size)
        self.next_seq_id = max(self.next_seq_id, seq_ids[-1] + 1)
        if stored:
            writes.collected(size, len(persistent), self.next_seq_id)
        elif self.next_seq_id >= self._storage.renew_at:
            writes.call_for_flush()
        self.paging.operated(len(added))

    def _place(self, items: dict[int, Message], size: int) -> None:
        """New messages to their stages: at the tail, or wherever they belong."""
        if not items:
            return
        if next(iter(items)) < self.next_seq_id:
            self.content.ready_bytes += size
            self.content.merge(items)
        else:
            self._append(list(items), list(items.values()), size)

    def remove(self, ranges: Iterable[SeqRange]) -> int:
        """See `ReplicaQueue.remove`. What leaves little behind costs no more than a purge, however much goes."""
        self.writes.require_service()
        return self.content.remove(ranges, self.next_seq_id)

    def advance_next_seq_id(self, next_seq_id: SeqId) -> None:
        """See `ReplicaQueue.advance_next_seq_id`."""
        self.writes.require_service()
        self.next_seq_id = max(self.next_seq_id, next_seq_id)
        if self.next_seq_id >= self._storage.renew_at:
            self.writes.call_for_flush()

    # -- what counts as delivered

    @property
    def delivered_below(self) -> int:
        """See `ReplicaQueue.delivered_below`."""
        return self._next_deliver_seq_id

    def flag_redelivered(self) -> None:
        """See `BackingQueue.flag_redelivered`."""
        self._next_deliver_seq_id = self.next_seq_id

    def mark_delivered_below(self, seq_id: SeqId) -> None:
        """See `ReplicaQueue.mark_delivered_below`."""
        self._next_deliver_seq_id = max(self._next_deliver_seq_id, seq_id)

    def mark_none_delivered(self) -> None:
        """See `ReplicaQueue.mark_none_delivered`."""
        self._next_deliver_seq_id = 0

    # -- duplicates and confirms

    def is_duplicate(self, msg_id: MsgId) -> bool:
        """See `BackingQueue.is_duplicate`."""
        return self.origins.is_known(msg_id)

    def confirm_when_safe(self, msg_id: MsgId, token: Hashable) -> None:
        """See `BackingQueue.confirm_when_safe`. Waits for all that this queue has under way, the copy included."""
        self.writes.require_service()
        self.writes.confirm_duplicate(token)

    def flush_writes(self) -> bool:
        """Write what was collected into the files; false if that was nothing. Never raises: a failure shows in the next
        operation."""
        return self.writes.flush(self.next_seq_id)

    @property
    def is_flush_late(self) -> bool:
        """Something was collected in a generation of the group commit that has closed since."""
        return self.writes.is_flush_late

    @property
    def is_disk_full(self) -> bool:
        """See `ReplicaQueue.is_disk_full`."""
        return self.writes.is_disk_full

    @property
    def has_failed(self) -> bool:
        """See `Writes.has_failed`."""
        return self.writes.has_failed

    # -- memory and maintenance

    def ram_duration_s(self, now_ms: int) -> float:
        """How long the messages in memory last at the present rates; infinite for an idle queue."""
        return self.paging.ram_duration_s(now_ms)

    def set_ram_duration_target(self, duration_s: float) -> None:
        """Keep no more in memory than lasts so long; infinite: no limit.

        What is above is paged out in bounded steps: with the traffic of this queue, and by `maintain`.
        """
        self.paging.set_target(duration_s)

    def set_lazy(self, is_lazy: bool) -> None:
        """Switch between the modes ``lazy`` and ``default``; the messages follow in bounded steps (`maintain`)."""
        self.content.stages.is_lazy = is_lazy

    @property
    def is_lazy(self) -> bool:
        """True in mode ``lazy``."""
        return self.content.stages.is_lazy

    def set_index_version(self, version: int | None) -> None:
        """Have the index converted to this version (``None``: as configured), in bounded steps (`maintain`)."""
        self._storage.want_version(version)

    @property
    def is_converting(self) -> bool:
        """True while the index is of another version than is wanted: everything will be read for it."""
        return self._storage.wants_conversion

    def _convert(self) -> bool:
        """One step of a conversion. False if it failed. It waits while something is collected, or the disk is full."""
        storage = self._storage
        if storage.index.has_unflushed:
            self.flush_writes()
        if self.has_failed or storage.index.has_unflushed_publishes:
            return not self.has_failed
        try:
            storage.convert(self.next_seq_id)
        except DiskFullError:
            return True
        except StorageError as error:
            self.writes.fail(error)
            return False
        self.content.use_index(storage.index)
        return True

    @property
    def wants_maintenance(self) -> bool:
        """True if `maintain` may have something to do."""
        if self.has_failed:
            return False
        return self.paging.is_active or self.is_disk_full or self._storage.wants_conversion

    def maintain(self) -> bool:
        """One bounded step of what does not ride on publishes and fetches. True if there is more to do.

        Never raises: a failure shows in the next operation.
        """
        if self.has_failed:
            return False
        try:
            return self._maintain()
        except Exception as error:
            self.writes.fail(error)
            return False

    def _maintain(self) -> bool:
        if self.is_disk_full and not self.writes.has_called_for_flush:
            self.writes.call_for_flush()
        if self._storage.wants_conversion and not self._convert():
            return False
        return self.paging.page_out() or self._storage.wants_conversion

    # -- the rest

    @property
    def stage_counts(self) -> StageCounts:
        """Ready messages per stage."""
        return self.content.stages.counts

    def backing_queue_status(self) -> dict[str, int | float | str | None]:
        """The state of the engine in the words of RabbitMQ's ``backing_queue_status``; rates in messages per second."""
        stages, unacked, rates = self.content.stages, self.content.unacked, self.rates
        q1, q2, delta, q3, q4 = stages.counts
        target_ram_count = self.paging.target_ram_count
        return {
            "mode": "lazy" if self.is_lazy else "default",
            "version": self.content.index.version,
            "q1": q1,
            "q2": q2,
            "delta": delta,
            "q3": q3,
            "q4": q4,
            "len": len(stages),
            "pending_acks": len(unacked),
            "target_ram_count": "infinity" if target_ram_count is None else target_ram_count,
            "ram_msg_count": stages.ram_count,
            "ram_ack_count": unacked.ram_count,
            "next_seq_id": self.next_seq_id,
            "num_unconfirmed": len(self.writes.tokens.waiting),
            "avg_ingress_rate": round(rates.ingress.per_s, 1),
            "avg_egress_rate": round(rates.egress.per_s, 1),
            "avg_ack_ingress_rate": round(rates.ack_in.per_s, 1),
            "avg_ack_egress_rate": round(rates.ack_out.per_s, 1),
        }

    def status(self) -> BackingQueueStatus:
        """See `BackingQueue.status`."""
        content = self.content
        stages, unacked = content.stages, content.unacked
        in_ram = stages.ram_count + unacked.ram_count
        positions = stages.position_count + len(unacked) - in_ram
        return BackingQueueStatus(
            ready=len(stages),
            unacked=len(unacked),
            ready_bytes=content.ready_bytes,
            unacked_bytes=unacked.body_bytes,
            in_ram=in_ram,
            persistent=content.persistent,
            next_seq_id=SeqId(self.next_seq_id),
            memory_bytes=(
                _QUEUE_BYTES
                + stages.ram_bytes
                + unacked.ram_bytes
                + in_ram * _MESSAGE_BYTES
                + positions * _POSITION_BYTES
                + content.index.memory_bytes
            ),
        )

    def terminate(self) -> None:
        """See `BackingQueue.terminate`. After a failure the files stay as they are, for recovery by scan."""
        storage = self._storage
        try:
            if self.writes.may_stop_cleanly:
                storage.terminate(
                    self.next_seq_id,
                    self._next_deliver_seq_id,
                    self.content.persistent_bytes,
                    self.origins.last,
                    self.delivered_epoch,
                )
            else:
                storage.abandon()
        except Exception:
            # Nobody closes it a second time.
            storage.abandon()
            raise
        finally:
            self.writes.fail(StorageError("it was terminated"))

    def delete(self) -> None:
        """See `BackingQueue.delete`."""
        try:
            self._storage.delete()
        finally:
            # Nobody may write any more, also if the disk kept the files.
            self.writes.fail(StorageError("it was deleted"))

    def check_invariants(self) -> None:
        """See `BackingQueue.check_invariants`."""
        content = self.content
        content.check_invariants()
        self.writes.check_invariants()
        self.origins.check_invariants()
        assert content.index is self._storage.index, "there is one index"
        if not self.has_failed:
            content.index.check_invariants()
        stages, unacked = content.stages, content.unacked.messages
        for place in (unacked, *(each.messages for each in (stages.q1, stages.q2, stages.q3, stages.q4))):
            assert max(place, default=-1) < self.next_seq_id, "positions are below the next one"
        assert max(unacked, default=-1) < self._next_deliver_seq_id, "what is unacked was delivered"

"""A complete `BackingQueue` in memory, for tests of what stands above storage.

By default a publish is safe at once. With ``hold_confirms`` tokens wait until `make_safe`, as for a disk or a mirror
that takes its time. ``fetch_limit`` bounds how many messages may be fetched until the test raises it, as a mirrored
queue bounds how far deliveries run ahead.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence

from node.ids import MsgId, OriginId, SeqId, split_msg_id
from node.message import Message
from node.queues.backing_queue import BackingQueueStatus, Delivery, MirrorInFlight, Publication


class MemoryBackingQueue:
    def __init__(self, *, hold_confirms: bool = False) -> None:
        self.hold_confirms = hold_confirms
        #: Messages that may still be fetched; ``None`` = no limit.
        self.fetch_limit: int | None = None
        #: What mirrors have still to do, as a mirrored queue would say.
        self.in_mirrors: Sequence[MirrorInFlight] = ()
        self.is_deleted = False
        self.is_terminated = False
        #: Every message that `discard` accounted for, `drop` removed, or `ack` settled: what tests ask about.
        self.discarded: list[Message] = []
        self.dropped: list[SeqId] = []
        self.acked: list[SeqId] = []
        self._next_seq_id = 1
        self._messages: dict[SeqId, Message] = {}
        self._ready: list[SeqId] = []  # a heap
        self._unacked: dict[SeqId, None] = {}
        self._redelivered: set[SeqId] = set()
        self._high_water: dict[OriginId, int] = {}
        self._waiting: dict[SeqId, list[Hashable]] = {}
        self._confirmed: list[Hashable] = []

    # --- in ---

    def publish(self, publications: Sequence[Publication]) -> None:
        for publication in publications:
            heapq.heappush(self._ready, self._accept(publication))

    def publish_delivered(self, publications: Sequence[Publication]) -> list[Delivery]:
        assert not self._ready, "only an empty queue delivers past its ready messages"
        deliveries = []
        for publication in publications:
            seq_id = self._accept(publication)
            self._unacked[seq_id] = None
            deliveries.append(Delivery(seq_id, publication.message, False))
        return deliveries

    def discard(self, publications: Sequence[Publication]) -> None:
        for message, token in publications:
            self._note_origin(message.msg_id)
            self.discarded.append(message)
            if token is not None:
                self._confirmed.append(token)

    def _accept(self, publication: Publication) -> SeqId:
        assert not self.is_deleted, "a deleted queue takes nothing"
        seq_id = SeqId(self._next_seq_id)
        self._next_seq_id += 1
        self._messages[seq_id] = publication.message
        self._note_origin(publication.message.msg_id)
        if publication.token is not None:
            self._confirm_later(seq_id, publication.token)
        return seq_id

    def _note_origin(self, msg_id: MsgId) -> None:
        origin, counter = split_msg_id(msg_id)
        self._high_water[origin] = max(counter, self._high_water.get(origin, 0))

    # --- out ---

    def fetch(self, count_max: int, ack_required: bool) -> list[Delivery]:
        if self.fetch_limit is not None:
            count_max = min(count_max, self.fetch_limit)
        deliveries = []
        for _ in range(min(count_max, len(self._ready))):
            seq_id = heapq.heappop(self._ready)
            deliveries.append(Delivery(seq_id, self._messages[seq_id], seq_id in self._redelivered))
            if ack_required:
                self._unacked[seq_id] = None
            else:
                self._forget(seq_id)
        if self.fetch_limit is not None:
            self.fetch_limit -= len(deliveries)
        return deliveries

    def ack(self, seq_ids: Sequence[SeqId]) -> int:
        known = [seq_id for seq_id in seq_ids if seq_id in self._unacked]
        for seq_id in known:
            del self._unacked[seq_id]
            self.acked.append(seq_id)
            self._forget(seq_id)
        return len(known)

    def requeue(self, seq_ids: Sequence[SeqId]) -> int:
        known = [seq_id for seq_id in seq_ids if seq_id in self._unacked]
        for seq_id in known:
            del self._unacked[seq_id]
            self._redelivered.add(seq_id)
            heapq.heappush(self._ready, seq_id)
        return len(known)

    def requeue_all(self) -> int:
        return self.requeue(list(self._unacked))

    def drop(self, count: int) -> list[Delivery]:
        deliveries = []
        for _ in range(min(count, len(self._ready))):
            seq_id = heapq.heappop(self._ready)
            deliveries.append(Delivery(seq_id, self._messages[seq_id], seq_id in self._redelivered))
            self.dropped.append(seq_id)
            self._forget(seq_id)
        return deliveries

    def flag_redelivered(self) -> None:
        self._redelivered.update(self._ready, self._unacked)

    def purge(self) -> int:
        purged = len(self._ready)
        for seq_id in self._ready:
            self._forget(seq_id)
        self._ready = []
        return purged

    def _forget(self, seq_id: SeqId) -> None:
        del self._messages[seq_id]
        self._redelivered.discard(seq_id)
        self._confirmed.extend(self._waiting.pop(seq_id, ()))

    # --- confirms ---

    def is_duplicate(self, msg_id: MsgId) -> bool:
        origin, counter = split_msg_id(msg_id)
        return counter <= self._high_water.get(origin, 0)

    def confirm_when_safe(self, msg_id: MsgId, token: Hashable) -> None:
        for seq_id, message in self._messages.items():
            if message.msg_id == msg_id:
                self._confirm_later(seq_id, token)
                return
        self._confirmed.append(token)

    def _confirm_later(self, seq_id: SeqId, token: Hashable) -> None:
        if self.hold_confirms:
            self._waiting.setdefault(seq_id, []).append(token)
        else:
            self._confirmed.append(token)

    def make_safe(self, count_max: int | None = None) -> None:
        """What was accepted so far is durable now, or the oldest ``count_max`` messages of it."""
        for seq_id in list(self._waiting)[:count_max]:
            self._confirmed.extend(self._waiting.pop(seq_id))

    def drain_confirmed(self) -> list[Hashable]:
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    @property
    def in_flight_messages(self) -> int:
        return sum(map(len, self._waiting.values()))

    def mirrors_in_flight(self) -> Sequence[MirrorInFlight]:
        return self.in_mirrors

    # --- the rest ---

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    @property
    def ready_seq_ids(self) -> list[SeqId]:
        """In order, for tests."""
        return sorted(self._ready)

    def status(self) -> BackingQueueStatus:
        ready_bytes = sum(len(self._messages[seq_id].body) for seq_id in self._ready)
        unacked_bytes = sum(len(self._messages[seq_id].body) for seq_id in self._unacked)
        return BackingQueueStatus(
            ready=len(self._ready),
            unacked=len(self._unacked),
            ready_bytes=ready_bytes,
            unacked_bytes=unacked_bytes,
            in_ram=len(self._messages),
            persistent=sum(message.persistent for message in self._messages.values()),
            next_seq_id=SeqId(self._next_seq_id),
            memory_bytes=sum(len(message.envelope()) for message in self._messages.values()),
        )

    def terminate(self) -> None:
        self.is_terminated = True

    def delete(self) -> None:
        self.is_deleted = True

    def check_invariants(self) -> None:
        assert set(self._ready) | set(self._unacked) == set(self._messages), "a message is ready or unacked"
        assert len(self._ready) + len(self._unacked) == len(self._messages), "and not both"

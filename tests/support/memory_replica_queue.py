"""A `ReplicaQueue` in memory with a disk that can be synced and can crash: the honest twin of the real engine.

It keeps every promise of the protocols in the simplest way (dictionaries, sorting), so that mirroring is tested against
the contract and not against an engine. Persistent messages are "written" on arrival and durable after `sync`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from node.ids import MsgId, OriginId, SeqId, split_msg_id
from node.message import Message, decode_envelope
from node.queues.backing_queue import BackingQueueStatus, Delivery, MirrorInFlight, Publication
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, Holding, SegmentDigest, SeqRange
from tests.support.digests import expected_digests


@dataclass(slots=True)
class Disk:
    """What survives a crash: the persistent messages, the counters, and which were delivered."""

    messages: dict[SeqId, Message] = field(default_factory=dict)
    delivered: set[SeqId] = field(default_factory=set)
    origins: dict[OriginId, int] = field(default_factory=dict)
    next_seq_id: SeqId = SeqId(0)  # noqa: RUF009 - a number, immutable


class MemoryReplicaQueue:
    """See the module."""

    def __init__(self, disk: Disk | None = None, is_durable: bool = True) -> None:
        self.disk = disk or Disk()
        self.is_durable = is_durable
        self._messages: dict[SeqId, Message] = dict(self.disk.messages)
        self._unacked: set[SeqId] = set()
        self._delivered: set[SeqId] = set(self.disk.delivered)
        self._origins: dict[OriginId, int] = dict(self.disk.origins)
        self._next_seq_id = self.disk.next_seq_id
        self._generation = 1
        self._is_dirty = False
        self._waiting: list[tuple[SeqId, Hashable]] = []
        self._confirmed: list[Hashable] = []
        #: Set by tests.
        self.is_disk_full = False

    # --- the disk -----------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """A group commit round begins and ends."""
        self.disk = self._image()
        if self._is_dirty:
            self._generation += 1
        self._is_dirty = False
        waiting, self._waiting = self._waiting, []
        self._confirmed.extend(token for _, token in waiting)

    def _image(self) -> Disk:
        messages = {seq_id: m for seq_id, m in self._messages.items() if m.persistent and self.is_durable}
        return Disk(messages, self._delivered & messages.keys(), dict(self._origins), self._next_seq_id)

    def crash(self, chance: Random) -> MemoryReplicaQueue:
        """The process dies; what was not synced may or may not be on the disk. Returns the recovered queue."""
        return MemoryReplicaQueue(chance.choice((self.disk, self._image())), self.is_durable)

    @property
    def write_generation(self) -> int:
        return self._generation

    @property
    def durable_generation(self) -> int:
        return self._generation - 1 if self._is_dirty else self._generation

    # --- BackingQueue -------------------------------------------------------------------------------------------------

    def _store(self, message: Message, token: Hashable | None) -> SeqId:
        seq_id = self._next_seq_id
        self._next_seq_id = SeqId(seq_id + 1)
        self._put(seq_id, message)
        if token is not None:
            if message.persistent and self.is_durable:
                self._waiting.append((seq_id, token))
            else:
                self._confirmed.append(token)
        return seq_id

    def _put(self, seq_id: SeqId, message: Message) -> None:
        self._messages[seq_id] = message
        self._seen(message)
        if message.persistent and self.is_durable:
            self._is_dirty = True

    def _seen(self, message: Message) -> None:
        origin, counter = split_msg_id(message.msg_id)
        self._origins[origin] = max(counter, self._origins.get(origin, 0))

    def publish(self, publications: Sequence[Publication]) -> None:
        for message, token in publications:
            self._store(message, token)

    def publish_delivered(self, publications: Sequence[Publication]) -> list[Delivery]:
        seq_ids = [self._store(message, token) for message, token in publications]
        return [self._deliver(seq_id) for seq_id in seq_ids]

    def discard(self, publications: Sequence[Publication]) -> None:
        for message, token in publications:
            self._seen(message)
            if token is not None:
                self._confirmed.append(token)

    def _ready_ids(self) -> list[SeqId]:
        return sorted(self._messages.keys() - self._unacked)

    def _deliver(self, seq_id: SeqId) -> Delivery:
        delivery = Delivery(seq_id, self._messages[seq_id], seq_id in self._delivered)
        self._unacked.add(seq_id)
        self._delivered.add(seq_id)
        return delivery

    def fetch(self, count_max: int, ack_required: bool) -> list[Delivery]:
        deliveries = [self._deliver(seq_id) for seq_id in self._ready_ids()[:count_max]]
        if not ack_required:
            self._settle([delivery.seq_id for delivery in deliveries])
        return deliveries

    def _settle(self, seq_ids: Iterable[SeqId]) -> int:
        gone = {seq_id for seq_id in seq_ids if seq_id in self._messages}
        for seq_id in gone:
            del self._messages[seq_id]
        self._unacked -= gone
        self._delivered -= gone
        self._confirmed.extend(token for seq_id, token in self._waiting if seq_id in gone)
        self._waiting = [(seq_id, token) for seq_id, token in self._waiting if seq_id not in gone]
        return len(gone)

    def ack(self, seq_ids: Sequence[SeqId]) -> int:
        return self._settle(self._unacked.intersection(seq_ids))

    def requeue(self, seq_ids: Sequence[SeqId]) -> int:
        known = self._unacked.intersection(seq_ids)
        self._unacked -= known
        return len(known)

    def requeue_all(self) -> int:
        return self.requeue(list(self._unacked))

    def drop(self, count: int) -> list[Delivery]:
        dropped = [Delivery(s, self._messages[s], s in self._delivered) for s in self._ready_ids()[:count]]
        self._settle([delivery.seq_id for delivery in dropped])
        return dropped

    def purge(self) -> int:
        return self._settle(self._ready_ids())

    def is_duplicate(self, msg_id: MsgId) -> bool:
        origin, counter = split_msg_id(msg_id)
        return counter <= self._origins.get(origin, 0)

    def confirm_when_safe(self, msg_id: MsgId, token: Hashable) -> None:
        for seq_id, message in self._messages.items():
            if message.msg_id == msg_id:
                if seq_id in self.disk.messages or not (message.persistent and self.is_durable):
                    break
                self._waiting.append((seq_id, token))
                return
        self._confirmed.append(token)

    def drain_confirmed(self) -> list[Hashable]:
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    @property
    def in_flight_messages(self) -> int:
        stored = {seq_id for seq_id, m in self._messages.items() if m.persistent and self.is_durable}
        return len(stored - self.disk.messages.keys())

    def mirrors_in_flight(self) -> Sequence[MirrorInFlight]:
        return ()

    @property
    def ready(self) -> int:
        return len(self._messages) - len(self._unacked)

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    def status(self) -> BackingQueueStatus:
        unacked_bytes = sum(len(self._messages[seq_id].body) for seq_id in self._unacked)
        total_bytes = sum(len(message.body) for message in self._messages.values())
        persistent = sum(message.persistent for message in self._messages.values())
        return BackingQueueStatus(
            self.ready,
            self.unacked,
            total_bytes - unacked_bytes,
            unacked_bytes,
            len(self._messages),
            persistent,
            self._next_seq_id,
            total_bytes,
        )

    def terminate(self) -> None:
        self.sync()

    def delete(self) -> None:
        self._messages.clear()
        self._unacked.clear()
        self.disk = Disk()

    # --- ReplicaQueue -------------------------------------------------------------------------------------------------

    @property
    def next_seq_id(self) -> SeqId:
        return self._next_seq_id

    @property
    def first_live_seq_id(self) -> SeqId:
        return min(self._messages, default=self._next_seq_id)

    def insert(self, seq_ids: Sequence[SeqId], messages: Sequence[Message], envelopes: Sequence[bytes]) -> None:
        assert list(seq_ids) == sorted(set(seq_ids)), "positions ascend"
        for seq_id, message, envelope in zip(seq_ids, messages, envelopes, strict=True):
            assert decode_envelope(envelope)[0] == message, "the envelope is the message's"
            if seq_id not in self._messages:
                self._put(seq_id, message)
            self._next_seq_id = max(self._next_seq_id, SeqId(seq_id + 1))

    def remove(self, ranges: Iterable[SeqRange]) -> int:
        return sum(self._settle([s for s in self._messages if first <= s < end]) for first, end in list(ranges))

    def advance_next_seq_id(self, next_seq_id: SeqId) -> None:
        self._next_seq_id = max(self._next_seq_id, next_seq_id)

    def live_counts(self) -> list[tuple[int, int]]:
        return sorted(Counter(seq_id // DIGEST_SEGMENT_ENTRIES for seq_id in self._messages).items())

    def live_positions(self, segment: int) -> list[SeqId]:
        return sorted(seq_id for seq_id in self._messages if seq_id // DIGEST_SEGMENT_ENTRIES == segment)

    def digests(self) -> list[SegmentDigest]:
        msg_ids: dict[int, bytes] = {seq_id: message.msg_id for seq_id, message in self._messages.items()}
        return expected_digests(msg_ids, DIGEST_SEGMENT_ENTRIES)

    def holdings(self, segment: int) -> list[Holding]:
        return [
            Holding(seq_id, self._messages[seq_id].msg_id)
            for seq_id in sorted(self._messages)
            if seq_id // DIGEST_SEGMENT_ENTRIES == segment
        ]

    def read(self, seq_ids: Sequence[SeqId]) -> list[tuple[SeqId, bytes]]:
        return [(s, self._messages[s].envelope()) for s in seq_ids if s in self._messages]

    def origins(self) -> Mapping[OriginId, int]:
        return self._origins

    def merge_origins(self, origins: Mapping[OriginId, int]) -> None:
        for origin, counter in origins.items():
            self._origins[origin] = max(counter, self._origins.get(origin, 0))

    def flag_redelivered(self) -> None:
        self.mark_delivered_below(self.next_seq_id)

    def mark_delivered_below(self, seq_id: SeqId) -> None:
        self._delivered.update(live for live in self._messages if live < seq_id)

    def mark_none_delivered(self) -> None:
        self._delivered.clear()

    def check_invariants(self) -> None:
        assert self._unacked <= self._messages.keys(), "unacked messages are live"
        assert all(seq_id < self._next_seq_id for seq_id in self._messages), "positions are below the next one"

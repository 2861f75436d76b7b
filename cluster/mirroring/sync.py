"""Cutting the difference into batches, and the arithmetic of the throttle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.mirroring.messages import SyncBatchOp
from cluster.mirroring.ranges import SeqRangeSet
from node.ids import SeqId

#: ``ha-sync-batch-size``: messages per batch at most (RabbitMQ's default).
SYNC_BATCH_MESSAGES = 4096
#: Body and envelope bytes after which a batch is closed. A batch is read and sent in one turn of the loop, so this is
#: what live traffic waits for: 1 MiB costs some milliseconds.
SYNC_BATCH_BYTES = 1024 * 1024
#: Over a congested link a batch is a so many-th part of that. Each queue with a mirror that confirms wait for may have
#: one on its way there, and this leaves room for four thousand before the link is reset (`cluster.transport.outbox`).
CONGESTED_PARTS = 16
#: Messages read at a time at most while a batch grows. The first read is of one, each takes twice as many as the one
#: before: so large messages make a batch about twice as large as it should be, and no larger.
SYNC_READ_MESSAGES = 64
#: Batches on the way to one mirror: one being applied while the next travels.
SYNC_BATCHES_IN_FLIGHT = 2


class EnvelopeReader(Protocol):
    """The part of a local queue that is needed here."""

    def read(self, seq_ids: Sequence[SeqId]) -> list[tuple[SeqId, bytes]]: ...


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """Progress of a running synchronisation, for the state ``{syncing, N}``."""

    #: Messages sent so far, to the mirror that has got least.
    synced: int
    #: Messages to send altogether, to that mirror (an upper bound: consumers make it smaller).
    total: int


def cut_batch(
    reader: EnvelopeReader, lacking: SeqRangeSet, messages_max: int, bytes_max: int
) -> tuple[SyncBatchOp, int] | None:
    """Take the next batch out of ``lacking``: the op and its bytes. ``None`` if nothing of it is live any more.

    Positions whose message is settled are passed over for good: the mirror lacks them rightly.
    """
    seq_ids: list[SeqId] = []
    parts: list[bytes] = []
    size_bytes = 0
    at_a_time = 1
    while lacking and len(seq_ids) < messages_max and size_bytes < bytes_max:
        for seq_id, envelope in reader.read(lacking.take_first(min(at_a_time, messages_max - len(seq_ids)))):
            seq_ids.append(seq_id)
            parts.append(envelope)
            size_bytes += len(envelope)
        at_a_time = min(2 * at_a_time, SYNC_READ_MESSAGES)
    if not seq_ids:
        return None
    return SyncBatchOp(tuple(seq_ids), b"".join(parts)), size_bytes


class SyncThrottle:
    """Token bucket over the bytes of all synchronisations of one queue."""

    __slots__ = ("_allowance_bytes", "_bytes_per_second", "_last_ms")

    def __init__(self, bytes_per_second: int) -> None:
        #: ``mirroring_sync_max_throughput``; 0 = no limit.
        self._bytes_per_second = bytes_per_second
        self._allowance_bytes = float(bytes_per_second)
        self._last_ms: int | None = None

    def tick(self, now_ms: int) -> None:
        """Time passes: allow more, at most a second's worth ahead."""
        if self._last_ms is not None and self._bytes_per_second:
            earned = (now_ms - self._last_ms) * self._bytes_per_second / 1000
            self._allowance_bytes = min(float(self._bytes_per_second), self._allowance_bytes + earned)
        self._last_ms = now_ms

    @property
    def may_send(self) -> bool:
        """True if a batch may go now; it may overdraw, the next then waits longer."""
        return not self._bytes_per_second or self._allowance_bytes > 0

    def spend(self, size_bytes: int) -> None:
        if self._bytes_per_second:
            self._allowance_bytes -= size_bytes

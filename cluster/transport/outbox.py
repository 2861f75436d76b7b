"""What waits to be written to one stream: encoded items, taken out as frames of bounded size."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: A frame this large costs as little per byte as any larger one, and is read by the peer within some milliseconds.
MAX_FRAME_BYTES = 1024 * 1024
#: Items per frame, so that a frame of tiny items does not hold the peer's loop either.
MAX_FRAME_ITEMS = 512


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """Bytes that may wait for one stream.

    Above ``congested_bytes`` whoever can wait should; it is over when half of that is left. Above ``overflow_bytes``
    the link is reset, because a peer that reads so slowly is as good as gone; this must leave room for the largest
    message that clients may publish (128 MiB), once for a mirror and once for a consumer, who may get it in one turn.
    """

    congested_bytes: int = 8 * 1024 * 1024
    overflow_bytes: int = 384 * 1024 * 1024


class Outbox:
    """Encoded items of one stream, in order."""

    __slots__ = ("_items", "_limits", "_marked_until", "_taken_bytes", "is_congested", "queued_bytes")

    def __init__(self, limits: OutboxLimits) -> None:
        self._limits = limits
        self._items: deque[bytes] = deque()
        #: Of all items that were taken out, and where the last one ends that was marked, counted likewise.
        self._taken_bytes = self._marked_until = 0
        #: Sum of the sizes of the items.
        self.queued_bytes = 0
        #: True from the moment there is too much until there is little enough, see `OutboxLimits`.
        self.is_congested = False

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: bytes) -> None:
        self._items.append(item)
        self.queued_bytes += len(item)
        if self.queued_bytes > self._limits.congested_bytes:
            self.is_congested = True

    def mark(self) -> None:
        """What was appended last is of those who wait while it is `is_full`."""
        self._marked_until = self._taken_bytes + self.queued_bytes

    @property
    def is_full(self) -> bool:
        """It is congested, and something marked waits: so whoever waits for it gets his share, whoever congests it."""
        return self.is_congested and self._taken_bytes < self._marked_until

    @property
    def is_overflowing(self) -> bool:
        return self.queued_bytes > self._limits.overflow_bytes

    def take_frame(self) -> bytes:
        """The oldest items that fit into one frame (one item at least); empty if nothing waits."""
        items = self._items
        frame: list[bytes] = []
        size = 0
        while items and len(frame) < MAX_FRAME_ITEMS and (not frame or size + len(items[0]) <= MAX_FRAME_BYTES):
            item = items.popleft()
            frame.append(item)
            size += len(item)
        self.queued_bytes -= size
        self._taken_bytes += size
        if self.queued_bytes * 2 <= self._limits.congested_bytes:
            self.is_congested = False
        return frame[0] if len(frame) == 1 else b"".join(frame)

    def check_invariants(self) -> None:
        assert self.queued_bytes == sum(map(len, self._items)), "the counter is what bounds the memory"
        assert self._marked_until <= self._taken_bytes + self.queued_bytes, "what is marked was appended"
        if self.queued_bytes > self._limits.congested_bytes:
            assert self.is_congested, "senders must be told in time"

"""One file of the simulated disk: what its owner reads, what the platter has, and what lies between."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Of the disk; small, as the files of tests are.
BLOCK_BYTES = 32
#: Makes 1 of every byte but 0.
_IS_WRITTEN = bytes([0]) + bytes([1]) * 255


@dataclass(slots=True)
class Inode:
    """One file, whatever its names."""

    #: What the owner reads.
    content: bytearray = field(default_factory=bytearray)
    #: What survives every crash.
    durable: bytearray = field(default_factory=bytearray)
    #: Unsynced operations in order: (offset, bytes), or (size, None) for a truncation.
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    #: For each byte of the content, whether it takes space (1) or lies in a hole (0).
    taken: bytearray = field(default_factory=bytearray)
    taken_bytes: int = 0

    def cost(self, offset: int, size: int) -> int:
        """Bytes that a write of ``size`` bytes takes beyond what is taken."""
        return size - self.taken.count(1, offset, offset + size)

    def prefix(self, offset: int, size: int, room_bytes: int) -> int:
        """How much of a write of ``size`` bytes there is room for."""
        if self.cost(offset, size) <= room_bytes:
            return size
        low, high = 0, size
        while high - low > 1:
            middle = (low + high) // 2
            if self.cost(offset, middle) <= room_bytes:
                low = middle
            else:
                high = middle
        return low

    def apply(self, operation: tuple[int, bytes | None]) -> None:
        """The owner sees it from now on, and the disk has the less room."""
        offset, data = operation
        if data is None:
            self.taken_bytes -= self.taken.count(1, offset)
            apply(self.taken, operation)
        else:
            self.taken_bytes += self.cost(offset, len(data))
            apply(self.taken, (offset, bytes([1]) * len(data)))
        apply(self.content, operation)

    def take_block(self, end: int) -> None:
        """A refused write ended here, within a block, and blocks are taken as a whole."""
        rest = min(-end % BLOCK_BYTES, len(self.taken) - end)
        self.taken_bytes += self.cost(end, rest)
        self.taken[end : end + rest] = bytes([1]) * rest

    def forget_unsynced(self) -> None:
        """After a crash: what is durable is the content."""
        self.pending.clear()
        self.reread()

    def reread(self) -> None:
        """The content is what is durable, and what is to be written. Zeros pass for holes."""
        self.content = bytearray(self.durable)
        for operation in self.pending:
            apply(self.content, operation)
        self.taken = self.content.translate(_IS_WRITTEN)
        self.taken_bytes = self.taken.count(1)


def apply(content: bytearray, operation: tuple[int, bytes | None]) -> None:
    offset, data = operation
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data

"""Messages of one queue that were delivered and are not settled yet (pending acks), in the order of their delivery."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from node.message import Message
from node.queues.sub_queue import TOMBSTONES_MAX, Entry
from node.store.index.index import PagedMessage


def body_bytes(entry: Entry) -> int:
    """Size of the body, wherever it is."""
    return len(entry.body) if isinstance(entry, Message) else entry.body_bytes


class Unacked:
    """Always in memory; the bodies may be paged out, the oldest first.

    Where those begin is known from the first page-out on (`_oldest`), as long as there is need: to look for them from
    the beginning each time would mean to pass, each time, all that were paged before."""

    __slots__ = ("_oldest", "body_bytes", "messages", "moved", "ram_bytes", "ram_count")

    def __init__(self) -> None:
        self.messages: dict[int, Entry] = {}
        #: Of all bodies, wherever they are.
        self.body_bytes = 0
        #: Messages whose body is in memory, and these bytes.
        self.ram_count = 0
        self.ram_bytes = 0
        #: Bodies given up so far.
        self.moved = 0
        #: Positions in the order of delivery, all whose body is in memory among them; ``None`` if nobody has asked.
        self._oldest: deque[int] | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def add(self, seq_ids: Sequence[int], messages: Sequence[Message], size: int) -> None:
        """``size``: bytes of the bodies."""
        self.messages.update(zip(seq_ids, messages, strict=True))
        if self._oldest is not None:
            self._oldest.extend(seq_ids)
            if len(self._oldest) > 2 * len(self.messages) + TOMBSTONES_MAX:
                self._oldest = None
        self.body_bytes += size
        self.ram_bytes += size
        self.ram_count += len(messages)

    def take(self, seq_ids: Iterable[int]) -> tuple[list[int], list[Entry], int]:
        """Remove those that are here: their seq ids, messages, and bytes."""
        pop = self.messages.pop
        known: list[int] = []
        messages: list[Entry] = []
        ram_size = paged_size = ram = 0
        for seq_id in seq_ids:
            message = pop(seq_id, None)
            if message is None:
                continue
            known.append(seq_id)
            messages.append(message)
            if isinstance(message, Message):
                ram += 1
                ram_size += len(message.body)
            else:
                paged_size += message.body_bytes
        self.ram_count -= ram
        self.ram_bytes -= ram_size
        self.body_bytes -= ram_size + paged_size
        return known, messages, ram_size + paged_size

    def page_out(self, count: int, *, is_durable: bool) -> dict[int, Message]:
        """Give up the bodies of the oldest. Returns the messages: what is not on disk yet must go there."""
        chosen: dict[int, Message] = {}
        count = min(count, self.ram_count)
        if self._oldest is None:
            self._oldest = deque(self.messages)
        next_oldest, known = self._oldest.popleft, self.messages.get
        while len(chosen) < count:
            seq_id = next_oldest()
            entry = known(seq_id)
            if isinstance(entry, Message):
                chosen[seq_id] = entry
        for seq_id, message in chosen.items():
            size = len(message.body)
            self.messages[seq_id] = PagedMessage(message.msg_id, size, message.persistent and is_durable)
            self.ram_bytes -= size
        self.ram_count -= len(chosen)
        self.moved += len(chosen)
        return chosen

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the counters are wrong."""
        assert self.body_bytes == sum(map(body_bytes, self.messages.values())), "bytes are those of the unacked"
        in_ram = [message for message in self.messages.values() if isinstance(message, Message)]
        assert self.ram_count == len(in_ram), "bodies in memory are counted"
        assert self.ram_bytes == sum(map(body_bytes, in_ram)), "and so are their bytes"
        if self._oldest is not None:
            with_body = {seq_id for seq_id, entry in self.messages.items() if isinstance(entry, Message)}
            assert with_body <= set(self._oldest), "whose body can be given up is found"

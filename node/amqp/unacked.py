"""The unacked deliveries of a channel, by delivery tag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from node.amqp.ports import DeliverySource
from node.ids import SeqId
from node.queues.backing_queue import Delivery

#: Tags in one chunk of a table, as a power of two: what a ``multiple`` may have to look at one by one.
_CHUNK_BITS = 12


class Unacked(NamedTuple):
    """Where a delivery came from, and for whom it was (an empty tag: `basic.get`)."""

    source: DeliverySource
    seq_id: SeqId
    consumer_tag: str


class UnackedTable:
    """Delivery tag -> `Unacked`, in the order of the tags.

    There may be a million, and one ``multiple`` may take them all, or all but one. So the table is in chunks, and whole
    chunks change hands; taking everything, the usual ``multiple`` of a consumer that keeps up, costs nothing per entry.
    A dict keeps the order in which tags were given, so ``multiple`` reads from the front.
    """

    __slots__ = ("_chunks", "_count", "_last_tag")

    def __init__(self) -> None:
        #: Upper bits of the tags -> tag -> entry. None is empty.
        self._chunks: dict[int, dict[int, Unacked]] = {}
        self._count = 0
        self._last_tag = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Unacked]:
        for chunk in self._chunks.values():
            yield from chunk.values()

    def add(self, first_tag: int, source: DeliverySource, consumer_tag: str, deliveries: Sequence[Delivery]) -> None:
        """Deliveries with the tags ``first_tag``, ``first_tag + 1`` ..."""
        tag = border = first_tag
        chunk: dict[int, Unacked] = {}
        for delivery in deliveries:
            if tag == border:
                chunk = self._chunks.setdefault(tag >> _CHUNK_BITS, {})
                border = ((tag >> _CHUNK_BITS) + 1) << _CHUNK_BITS
            chunk[tag] = Unacked(source, delivery.seq_id, consumer_tag)
            tag += 1
        self._count += len(deliveries)
        self._last_tag = tag - 1

    def take(self, tag: int) -> Unacked | None:
        """Remove and return one entry; ``None`` if the tag is not unacked."""
        chunk = self._chunks.get(tag >> _CHUNK_BITS)
        if chunk is None or (entry := chunk.pop(tag, None)) is None:
            return None
        self._count -= 1
        if not chunk:
            del self._chunks[tag >> _CHUNK_BITS]
        return entry

    def take_through(self, tag: int) -> UnackedTable | None:
        """Remove and return all entries up to ``tag``, 0 meaning all. ``None`` if ``tag`` itself is not unacked."""
        chunks, taken = self._chunks, UnackedTable()
        number = tag >> _CHUNK_BITS
        chunk = chunks.get(number, {})
        if tag == 0 or (tag == self._last_tag and tag in chunk):
            taken._chunks, self._chunks = chunks, {}
            taken._count, self._count = self._count, 0
            return taken
        if tag not in chunk:
            return None
        for passed in list(takewhile(lambda each: each < number, chunks)):
            taken._chunks[passed] = chunks.pop(passed)
        tags = list(takewhile(lambda known: known <= tag, chunk))
        taken._chunks[number] = {known: chunk.pop(known) for known in tags}
        if not chunk:
            del chunks[number]
        taken._count = sum(map(len, taken._chunks.values()))
        self._count -= taken._count
        return taken

    def take_some(self, count_max: int) -> list[Unacked]:
        """Remove and return up to ``count_max`` entries, whichever."""
        some: list[Unacked] = []
        while self._chunks and len(some) < count_max:
            number = next(reversed(self._chunks))
            chunk = self._chunks[number]
            some += [chunk.popitem()[1] for _ in range(min(len(chunk), count_max - len(some)))]
            if not chunk:
                del self._chunks[number]
        self._count -= len(some)
        some.reverse()
        return some

    def put(self, tag: int, entry: Unacked) -> None:
        """Add one that was taken from another table; the order is lost."""
        self._chunks.setdefault(tag >> _CHUNK_BITS, {})[tag] = entry
        self._count += 1

    def absorb(self, other: UnackedTable) -> None:
        """Add all of ``other``, which is of no use then; the order is lost."""
        for number, chunk in other._chunks.items():
            self._chunks.setdefault(number, chunk).update(chunk)
        self._count += other._count

    def put_back(self, other: UnackedTable) -> None:
        """Undo takes (``tx.rollback``): ``other`` is of no use then."""
        chunks = self._chunks
        for number, chunk in other._chunks.items():
            chunks[number] = dict(sorted({**chunks.get(number, {}), **chunk}.items()))
        self._chunks = dict(sorted(chunks.items()))
        self._count += other._count

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        tags = [tag for chunk in self._chunks.values() for tag in chunk]
        assert tags == sorted(tags), "multiple reads from the front, so tags stand in order"
        assert not tags or tags[-1] <= self._last_tag, "only given tags are unacked"
        assert not tags or tags[0] >= 1, "delivery tags count from 1"
        assert len(tags) == self._count, "entries are counted"
        for number, chunk in self._chunks.items():
            assert {tag >> _CHUNK_BITS for tag in chunk} == {number}, "a tag is in its chunk, and none is empty"


def group_by_source(entries: Iterable[Unacked]) -> dict[DeliverySource, list[SeqId]]:
    """Seq ids for each life of each queue, in order."""
    groups: dict[DeliverySource, list[SeqId]] = {}
    for source, seq_id, _ in entries:
        group = groups.get(source)
        if group is None:
            groups[source] = [seq_id]
        else:
            group.append(seq_id)
    return groups

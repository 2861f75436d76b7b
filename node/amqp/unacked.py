"""The unacked deliveries of a channel, by delivery tag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from node.amqp.ports import DeliverySource
from node.ids import SeqId
from node.queues.backing_queue import Delivery


class Unacked(NamedTuple):
    """Where a delivery came from, and for whom it was (an empty tag: `basic.get`)."""

    source: DeliverySource
    seq_id: SeqId
    consumer_tag: str


class UnackedTable:
    """Delivery tag -> `Unacked`, in the order of the tags.

    A dict keeps the order in which tags were given, so ``multiple`` reads from the front. Taking everything, the
    usual ``multiple`` of a consumer that keeps up, costs nothing per entry.
    """

    __slots__ = ("_by_tag", "_last_tag")

    def __init__(self) -> None:
        self._by_tag: dict[int, Unacked] = {}
        self._last_tag = 0

    def __len__(self) -> int:
        return len(self._by_tag)

    def add(self, first_tag: int, source: DeliverySource, consumer_tag: str, deliveries: Sequence[Delivery]) -> None:
        """Deliveries with the tags ``first_tag``, ``first_tag + 1`` ..."""
        by_tag = self._by_tag
        tag = first_tag
        for delivery in deliveries:
            by_tag[tag] = Unacked(source, delivery.seq_id, consumer_tag)
            tag += 1
        self._last_tag = tag - 1

    def take(self, tag: int) -> Unacked | None:
        """Remove and return one entry; ``None`` if the tag is not unacked."""
        return self._by_tag.pop(tag, None)

    def take_through(self, tag: int) -> dict[int, Unacked] | None:
        """Remove and return all entries up to ``tag``, 0 meaning all. ``None`` if ``tag`` itself is not unacked."""
        by_tag = self._by_tag
        if tag == 0 or (tag == self._last_tag and tag in by_tag):
            self._by_tag = {}
            return by_tag
        if tag not in by_tag:
            return None
        taken = list(takewhile(lambda known: known <= tag, by_tag))
        return {known: by_tag.pop(known) for known in taken}

    def put_back(self, entries: Iterable[tuple[int, Unacked]]) -> None:
        """Undo takes (``tx.rollback``)."""
        self._by_tag = dict(sorted([*self._by_tag.items(), *entries]))

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        tags = list(self._by_tag)
        assert tags == sorted(tags), "multiple reads from the front, so tags stand in order"
        assert not tags or tags[-1] <= self._last_tag, "only given tags are unacked"
        assert not tags or tags[0] >= 1, "delivery tags count from 1"


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

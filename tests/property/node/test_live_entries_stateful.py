"""The core of an index against a model that is a few plain sets: what is pending, live, settled, and referenced.

There are no files. A flush of this test writes what is pending as an index would: it takes the references, adds the
bits, and then forgets what is pending and settled. What a purge owes stands in a source that is one dictionary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from node.ids import MSG_ID_BYTES, MsgId
from node.message import Message
from node.store.disk.group_commit import GroupCommit
from node.store.index.index import PagedMessage
from node.store.index.live_bits import bits_of, by_segment, positions
from node.store.index.live_entries import LiveEntries, put_msg_id
from node.store.index.owed_references import OwedReferences
from node.store.index.segment import Segment
from tests.support.amounts import slow
from tests.support.index_driver import BIG_BODY, MemorySharedStore, message_of
from tests.support.state_machines import run_machine

ENTRIES = 8
END = 1 << 40


class Owed:
    """Every settled entry that owes, in one place."""

    memory_bytes = 0

    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}

    @property
    def has_owed(self) -> bool:
        return bool(self.messages)

    def owed(self) -> Sequence[int]:
        return sorted(self.messages)

    def read(self, entries: Sequence[int]) -> Iterator[tuple[bool, MsgId]]:
        return ((self.messages[seq_id].persistent, self.messages[seq_id].msg_id) for seq_id in entries)

    def forget(self, entries: Sequence[int]) -> None:
        for seq_id in entries:
            del self.messages[seq_id]


class LiveEntriesMachine(RuleBasedStateMachine):
    """See the module text."""

    @initialize()
    def begin(self) -> None:
        group_commit = GroupCommit()
        self.stores = {True: MemorySharedStore(group_commit), False: MemorySharedStore(group_commit)}
        self.entries: LiveEntries[Segment] = LiveEntries(ENTRIES, self.stores, is_durable=True)
        self.owed = OwedReferences(self.stores)
        self.source = Owed()
        self.counter = 0
        self.next_seq_id = 0
        #: The model: what each live position has, and which of them are only collected.
        self.live: dict[int, Message] = {}
        self.pending: set[int] = set()
        #: Settled since the last flush, and written before.
        self.settled: set[int] = set()

    # -- helpers

    def some(self, data: st.DataObject) -> list[int]:
        return sorted(data.draw(st.sets(st.sampled_from(sorted(self.live)), min_size=1, max_size=10)))

    def publish_at(self, seq_ids: Sequence[int], *, big: bool, persistent: bool) -> None:
        messages: dict[int, Message] = {}
        for seq_id in seq_ids:
            self.counter += 1
            messages[seq_id] = message_of(self.counter, big=big, persistent=persistent)
        self.entries.publish(messages, {seq_id: messages[seq_id].envelope() for seq_id in list(messages)[::2]})
        self.live.update(messages)
        self.pending.update(messages)

    def forget(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            del self.live[seq_id]
            if seq_id in self.pending:
                self.pending.remove(seq_id)
            else:
                self.settled.add(seq_id)

    def describe(self, segment: Segment, seq_ids: Sequence[int]) -> list[tuple[int, PagedMessage]]:
        found = []
        for seq_id in seq_ids:
            assert seq_id // ENTRIES == segment.number, "what is described is of this segment"
            message = self.live[seq_id]
            found.append((seq_id, PagedMessage(message.msg_id, len(message.body), message.persistent)))
        return found

    def copy_msg_ids(self, segment: Segment, bits: int, target: bytearray, first: int) -> None:
        for seq_id in positions(bits, segment.base):
            put_msg_id(target, seq_id - first, self.live[seq_id].msg_id)

    @staticmethod
    def is_big(message: Message) -> bool:
        return len(message.body) >= BIG_BODY

    # -- rules

    @rule(count=st.integers(1, 12), big=st.booleans(), persistent=st.booleans(), gap=st.sampled_from([0, 0, 0, 1, 20]))
    def publish(self, count: int, big: bool, persistent: bool, gap: int) -> None:
        first = self.next_seq_id + gap
        self.next_seq_id = first + count
        self.publish_at(range(first, self.next_seq_id), big=big, persistent=persistent)

    @rule(data=st.data(), big=st.booleans())
    def use_positions_again(self, data: st.DataObject, big: bool) -> None:
        free = [seq_id for seq_id in range(self.next_seq_id) if seq_id not in self.live]
        if free:
            seq_ids = sorted(data.draw(st.sets(st.sampled_from(free), min_size=1, max_size=5)))
            again = [seq_id for seq_id in seq_ids if seq_id in self.source.messages]
            if again:
                self.owed.give_back_from(self.source, again)
                for seq_id in again:
                    self.entries.segments[seq_id // ENTRIES].owed_bits &= ~(1 << seq_id % ENTRIES)
            self.publish_at(seq_ids, big=big, persistent=False)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_reversed=st.booleans())
    def settle(self, data: st.DataObject, is_reversed: bool) -> None:
        seq_ids = self.some(data)[:: -1 if is_reversed else 1]
        self.entries.settle(seq_ids, [self.live[seq_id] for seq_id in seq_ids])
        self.forget(seq_ids)

    @rule(first=st.integers(0, 60), size=st.integers(0, 60), is_sized=st.booleans(), data=st.data())
    def settle_range(self, first: int, size: int, is_sized: bool, data: st.DataObject) -> None:
        keeps_some = bool(self.live) and data.draw(st.booleans())
        keep = self.some(data) if keeps_some else []
        end = first + size
        expected = [seq_id for seq_id in sorted(self.live) if first <= seq_id < end and seq_id not in keep]
        total = [0, 0, 0, 0]
        cancelled = self.entries.cancel_range(first, end, keep, total)
        assert sorted(cancelled) == [seq_id for seq_id in expected if seq_id in self.pending]
        for segment, bits in self.entries.chosen(first, end, keep):
            if is_sized:
                self.entries.settle_read(segment, bits, self.describe, total)
                continue
            owed = self.entries.settle_unread(segment, bits, total)
            segment.owed_bits |= owed
            self.source.messages.update({seq_id: self.live[seq_id] for seq_id in positions(owed, segment.base)})
            if owed:
                self.owed.owe(self.source)
        chosen = [self.live[seq_id] for seq_id in expected]
        persistent = [len(message.body) for message in chosen if message.persistent]
        assert (total[0], total[2]) == (len(chosen), len(persistent))
        if is_sized:
            assert (total[1], total[3]) == (sum(len(message.body) for message in chosen), sum(persistent))
        self.forget(expected)

    @rule()
    def cancel_transient(self) -> None:
        expected = [seq_id for seq_id in self.pending if not self.live[seq_id].persistent]
        assert sorted(self.entries.cancel_transient()) == sorted(expected)
        self.forget(expected)

    @rule(count=st.integers(1, 9))
    def give_back(self, count: int) -> None:
        before = sum(store.references.total() for store in self.stores.values())
        due = min(count, len(self.source.messages))
        self.owed.give_back(count)
        after = sum(store.references.total() for store in self.stores.values())
        assert before - after == due
        for segment in self.entries.segments.values():
            kept = [seq_id for seq_id in self.source.messages if seq_id // ENTRIES == segment.number]
            segment.owed_bits = bits_of(sorted(kept), ENTRIES - 1)

    @rule(part=st.sampled_from([1, 1, 1, 2]))
    def flush(self, part: int) -> None:
        """Write everything, or some of it as before a full disk."""
        entries = self.entries
        entries.settled.clear()
        self.settled.clear()
        written = sorted(self.pending)[::part]
        for number, seq_ids in by_segment(written, entries.segment_bits):
            if number not in entries.segments:
                entries.add_segment(Segment(number, ENTRIES))
            big = [seq_id for seq_id in seq_ids if self.is_big(self.live[seq_id])]
            for seq_id in big:
                message = self.live[seq_id]
                self.stores[message.persistent].write_batch([(message.msg_id, message.envelope())])
            transient = [seq_id for seq_id in seq_ids if not self.live[seq_id].persistent]
            sets = [bits_of(members, ENTRIES - 1) for members in (seq_ids, big, transient)]
            entries.segments[number].add(*sets)
        entries.forget_written()
        self.pending.difference_update(written)

    @rule()
    def delete_finished(self) -> None:
        tail = min([self.next_seq_id, *self.pending]) // ENTRIES
        numbers = {seq_id // ENTRIES for seq_id in self.live if seq_id not in self.pending}
        expected = {number for number in self.entries.segments if number < tail and number not in numbers}
        finished = self.entries.finished(self.next_seq_id)
        assert {segment.number for segment in finished} == expected
        for segment in finished:
            if not segment.owed_bits:
                self.entries.drop_segment(segment.number)
                self.settled -= set(range(segment.base, segment.base + ENTRIES))

    # -- what must hold

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "entries"):
            return
        entries, live = self.entries, self.live
        entries.check_invariants()
        self.owed.check_invariants()
        written = sorted(live.keys() - self.pending)
        assert list(entries.live(0, END)) == sorted(live)
        assert set(entries.pending) == self.pending
        settled = {at for number, bits in entries.settled.items() for at in positions(bits, number * ENTRIES)}
        assert settled == self.settled
        assert [seq_id for seq_id in range(self.next_seq_id) if entries.is_live(seq_id)] == sorted(live)
        assert [seq_id for seq_id in range(self.next_seq_id) if entries.is_written(seq_id)] == written
        held = Counter(message.msg_id for message in self.source.messages.values())
        held.update(live[seq_id].msg_id for seq_id in written if self.is_big(live[seq_id]))
        assert self.stores[True].references + self.stores[False].references == held, "one reference for each"

    @rule(first=st.integers(0, 70), size=st.integers(1, 40), count=st.integers(0, 20))
    def ask(self, first: int, size: int, count: int) -> None:
        entries, end = self.entries, first + size
        chosen = [seq_id for seq_id in sorted(self.live) if first <= seq_id < end]
        assert list(entries.live(first, end)) == chosen
        assert entries.count_live(first, end) == len(chosen)
        found = entries.entries(first, end, count, self.describe)
        assert [seq_id for seq_id, _ in found] == chosen[:count]
        assert all(paged.msg_id == self.live[seq_id].msg_id for seq_id, paged in found)
        msg_ids = entries.msg_ids(first, end, self.copy_msg_ids)
        zeros = bytes(MSG_ID_BYTES)
        expected = [self.live[at].msg_id if at in self.live else zeros for at in range(first, end)]
        assert msg_ids == b"".join(expected)
        ends = sorted({entries.segment_end(seq_id) for seq_id in range(first, end)})
        assert all(following - one == ENTRIES for one, following in pairwise(ends))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", [30, slow(600)])
def test_it_agrees_with_plain_sets(examples: int) -> None:
    run_machine(LiveEntriesMachine, examples=examples, steps=40)

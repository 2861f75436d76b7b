"""The journals of an index of version 1, and the way of what is in them into the segment files.

There is a *current* journal, which is written to, perhaps a full one that is *moving* (carried over into the segments,
a part with every flush), and some that were *moved* and wait for the sync of what was appended to the segments. Why it
is so, and what a crash makes of it, says `node.store.index.v1.index`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from node.errors import StorageError
from node.store.index.live_bits import Run, bits_of, positions, runs_of_bits
from node.store.index.live_entries import LiveEntries
from node.store.index.owed_references import ALL, OwedReferences
from node.store.index.v1.format import (
    KIND_EMBEDDED,
    KIND_SHARED,
    PLACE_PERSISTENT,
    PLACE_SHARED,
    RECORD_BYTES,
    Publish,
    read_places,
    record_seq_id,
)
from node.store.index.v1.journal import Journal
from node.store.index.v1.owed_records import OwedInJournal
from node.store.index.v1.segment import SegmentV1
from node.store.index.v1.segment_files import SegmentFilesV1
from node.store.shared.config import StoreConfig

#: A flush that writes little moves this part of a full journal, 256 entries with the usual size: a millisecond.
MOVE_FRACTION = 128
#: Entries that could be moved in the time it takes to open, append to and close one segment file.
FILE_COST_ENTRIES = 8


class Journals:
    """See the module text. What touches files raises `StorageError`."""

    def __init__(
        self, files: SegmentFilesV1, entries: LiveEntries[SegmentV1], owed: OwedReferences, config: StoreConfig
    ) -> None:
        """``owed``: of the index, for what is owed of the records in journals."""
        self._files = files
        self._entries = entries
        self._owed = owed
        self._entries_max = config.v1_journal_entries_max
        self._move_entries_min = max(1, config.v1_journal_entries_max // MOVE_FRACTION)
        self._waits_for_sync = files.is_durable
        #: Number of the journal that will be begun next. Recovery sets it.
        self.next_number = 0
        self._current: Journal | None = None
        self._moving: Journal | None = None
        #: Records written since `move_some`.
        self._written = 0
        #: With the generation that makes what was moved durable; in the order of their numbers.
        self.moved: list[tuple[int, Journal]] = []

    @property
    def open(self) -> list[Journal]:
        """Those that hold live publishes or acks: the current one, then the one that is moving."""
        return [journal for journal in (self._current, self._moving) if journal is not None]

    @property
    def is_empty(self) -> bool:
        """True if there is none: all is in the segments."""
        return self._current is None and self._moving is None and not self.moved

    # -- writing

    def begin(self) -> Journal:
        """The current journal, made if there is none."""
        if self._current is None:
            files = self._files
            self._current = Journal(
                files.disk, files.directory, files.queue_id, self.next_number, self._entries.segment_entries
            )
            self.next_number += 1
            files.mark_directory()
        return self._current

    def write(self, settled: Mapping[int, int], publishes: Sequence[Publish], *, is_awaited: bool) -> None:
        """Write sets of acks, by segment, and publishes to the current journal; ``is_awaited``: ask for a sync.

        After a `DiskFullError` nothing was written.
        """
        journal = self.begin()
        bits = self._entries.segment_bits
        groups = [(number, list(runs_of_bits(settled[number], number << bits))) for number in sorted(settled)]
        acks = groups[0][1] if len(groups) == 1 else [run for _, runs in groups for run in runs]
        # Acks first: a position may be settled and filled again within one turn (a mirror whose tail was replaced).
        places = journal.write(acks, publishes)
        for number, runs in groups:
            self._forget(journal, number, settled[number], runs)
        journal.note(publishes, places)
        self._written += len(acks) + len(publishes)
        if is_awaited:
            self._files.group_commit.mark_dirty(journal.file)

    def _forget(self, journal: Journal, number: int, settled: int, runs: Sequence[Run]) -> None:
        """An ack goes into ``journal``: drop publishes that are in journals; the others are in their segment's file."""
        found = journal.forget(number, runs)
        if self._moving is not None:
            found += self._moving.forget(number, runs)
        if not found:
            journal.ack(number, settled)
        elif len(found) < settled.bit_count():
            journal.ack(number, settled & ~bits_of(sorted(found), self._entries.segment_mask))

    # -- reading

    def find(self, seq_ids: Iterable[int]) -> tuple[list[tuple[Journal, dict[int, int]]], list[int]]:
        """Which of these written entries are in which journal, by place, and which are in segment files."""
        found: list[tuple[Journal, dict[int, int]]] = [(journal, {}) for journal in self.open]
        rest: list[int] = []
        for seq_id in seq_ids:
            for journal, places in found:
                place = journal.find(seq_id)
                if place is not None:
                    places[place] = seq_id
                    break
            else:
                rest.append(seq_id)
        return [(journal, places) for journal, places in found if places], rest

    def find_in(self, segment: SegmentV1, bits: int) -> list[int]:
        """Which of the written entries with these bits are not in their segment's file yet; ascending."""
        members = [seq_id for journal in self.open for seq_id in journal.places.get(segment.number, ())]
        if not members:
            return []
        live = set(positions(bits, segment.base))
        return sorted([seq_id for seq_id in members if seq_id in live])

    # -- carrying over

    def move_some(self) -> None:
        """A part of a full journal goes into the segments: twice as much as was written since, or more."""
        count, self._written = max(self._move_entries_min, 2 * self._written), 0
        if self._current is not None and self._current.records >= self._entries_max:
            self._begin_move()
        if self._moving is not None:
            self._move(count)

    def move_all(self) -> None:
        """Everything goes into the segments."""
        self._begin_move()
        if self._moving is not None:
            self._move(ALL)

    def _begin_move(self) -> None:
        """The current journal is full, or all must go."""
        moving = self._moving
        if moving is not None:
            if moving.owed:
                # No more than it holds records.
                self._owed.give_back_from(OwedInJournal(moving), moving.owed)
            self._move(ALL)
        self._moving, self._current = self._current, None

    def _move(self, count: int) -> None:
        """Append up to ``count`` entries of the moving journal to their segments."""
        journal = self._moving
        assert journal is not None, "there is a journal to move"
        while count > 0 and not journal.is_moved:
            number = next(iter(journal.acks)) if journal.acks else next(iter(journal.places))
            segment = self._entries.segments[number]
            if not segment.live_count and not segment.owed_bits:
                self.drop(segment)
                count -= 1
                continue
            runs = list(runs_of_bits(journal.acks.get(number, 0), segment.base))
            members = journal.places.get(number, {})
            chosen = dict(islice(members.items(), max(count - len(runs), 1)))
            publishes = _reread(journal, chosen)
            self._files.append(segment, runs, publishes)
            journal.acks.pop(number, None)
            for seq_id in chosen:
                del members[seq_id]
            if not members:
                journal.places.pop(number, None)
            count -= len(runs) + len(chosen) + FILE_COST_ENTRIES
        if journal.is_moved and not journal.owed:
            self._moving = None
            self.moved.append((self._files.group_commit.open_generation, journal))
            # New segments must have their names, and deleted ones be gone, before this journal is. The file may be due.
            self._files.mark_directory()
            if self._files.is_durable:
                self._files.group_commit.mark_dirty(journal.file)
                journal.file.close()
            else:
                journal.file.abandon()

    def drop(self, segment: SegmentV1) -> None:
        """Forget a segment in which everything is settled, and delete its file."""
        number = segment.number
        had_file = segment.file_bytes > 0
        self._files.delete(segment)
        for journal in self.open:
            journal.forget_segment(number)
        self._entries.drop_segment(number)
        if had_file:
            # Not a promise, but once per segment it is cheap: else a crash could bring thousands of acked back.
            self._files.mark_directory()

    def delete_moved(self) -> None:
        """Delete journals whose entries are durable in the segments, the oldest first."""
        if not self.moved:
            return
        durable = self._files.group_commit.durable_generation if self._waits_for_sync else ALL
        if self.moved[0][0] <= durable:
            while self.moved and self.moved[0][0] <= durable:
                self._files.disk.unlink(self.moved.pop(0)[1].path)
            self._files.forget_synced()

    # -- end

    def close(self) -> None:
        """Everything was moved, and is durable: delete what is left."""
        if self.moved:
            for _, journal in self.moved:
                journal.file.abandon()
                self._files.disk.unlink(journal.path)
            self.moved.clear()
            self._files.disk.sync_directory(self._files.directory)

    def reopen(self, journals: Sequence[Journal]) -> None:
        """After `abandon`, and when the files may have been moved to another directory: read these, which were `open`.
        Raises `StorageError`, and then none is open."""
        opened: list[Journal] = []
        try:
            for journal in journals:
                journal.reopen(self._files.disk, self._files.directory)
                opened.append(journal)
        except StorageError:
            for journal in opened:
                journal.file.abandon()
            raise
        self._current, self._moving = (*journals, None, None)[:2]

    def abandon(self) -> None:
        """Give up the files as they are."""
        for journal in (*self.open, *[journal for _, journal in self.moved]):
            journal.file.abandon()
        self._current = self._moving = None
        self.moved.clear()

    @property
    def memory_bytes(self) -> int:
        """Estimate of what they cost."""
        return sum([journal.memory_bytes for journal in self.open])

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        segments, settled = self._entries.segments, self._entries.settled
        in_journals: dict[int, set[int]] = {}
        for journal in self.open:
            for number, members in journal.places.items():
                assert members, "a journal names only segments of which it has something"
                known = in_journals.setdefault(number, set())
                assert not known & members.keys(), "an entry is in one journal"
                known.update(members)
                segment = segments[number]
                due = set(positions(segment.live_bits | settled.get(number, 0), segment.base))
                assert members.keys() <= due, "what a journal remembers is live, or its ack is on its way"
            for number in journal.acks:
                assert segments[number].file_bytes, "only entries of a segment file need an ack there"
        for number, segment in segments.items():
            in_file = set(positions(segment.live_bits, segment.base)) - in_journals.get(number, set())
            assert not in_file or segment.file_bytes, "a live entry is in a journal or in its segment's file"
        numbers = [journal.number for _, journal in self.moved] + [journal.number for journal in reversed(self.open)]
        assert numbers == sorted(numbers), "journals are deleted in the order they were written"


def _reread(journal: Journal, chosen: Mapping[int, int]) -> list[Publish]:
    """Publish records of a journal, by seq id and place, as they go into a segment."""
    publishes: list[Publish] = []
    for place, piece in read_places(journal.file, journal.seed, list(chosen.values())):
        if piece is None:
            raise StorageError(f"{journal.path} is damaged at {place >> 24}: its checksum does not fit")
        kind = KIND_SHARED if place & PLACE_SHARED else KIND_EMBEDDED
        publishes.append(Publish(record_seq_id(piece), kind, bool(place & PLACE_PERSISTENT), piece[RECORD_BYTES:]))
    publishes.sort()
    return publishes

"""Which files of a shared store are compacted, when, and how fast.

`StoreConfig.compaction` chooses the kind. **holes**: a file of which less than half is alive is compacted in place; one
that this did not help (its last record fits no hole) is copied. **merge**: when more than `GARBAGE_FRACTION` of all
bytes in at least `COMPACTION_FILES_MIN` files is garbage, two neighbours whose live data fit in one file become one.
Either way a file that is not current is at least half alive, or waits to be.

**Speed.** Every step is small (`node.store.shared.compaction.relocation`). The owner takes a turn of them from a timer,
some ten times a second, which is plenty while little is settled. When disk use passes `URGENT_RATIO` times the live
data, `is_urgent` asks for a turn every `URGENT_EVERY_S`: hundreds a second. A turn is over when `TURN_S` has passed, so
that a slow machine or disk makes it do less, not last longer: messages wait for that time and one step. A step that
would wait for the disk is none, so some files are under way at the same time.

**Trouble.** A full disk, or any other error of a write, gives that compaction up and lets all of them pause. A
live record that cannot be read freezes its file: the evidence stays where it is.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from node.errors import StorageError
from node.store.formats.record import HEADER_BYTES
from node.store.shared.compaction.hole_filling import HoleFilling
from node.store.shared.compaction.merging import Merge
from node.store.shared.compaction.relocation import BrokenSourceError, Compaction
from node.store.shared.location_table import LocationTable
from node.store.shared.store_files import StoreFiles

log = logging.getLogger(__name__)

#: Share of garbage above which files are merged (mission S9).
GARBAGE_FRACTION = 0.5
#: Fewer files are not worth merging, and the current one takes no part (mission S9).
COMPACTION_FILES_MIN = 3
#: Compactions at the same time: each waits for three rounds of fsync, and the others use the time.
RUNNING_MAX = 4
#: Merges at the same time: each takes the space of one more file for a while.
MERGES_RUNNING_MAX = 2
#: Bytes per live byte above which one turn per tick of the owner's timer is not enough.
URGENT_RATIO = 1.75
#: Between two turns when it is urgent: some hundred megabytes are looked at or moved in a second.
URGENT_EVERY_S = 0.002
#: After so long no further step of a turn begins.
TURN_S = 0.0005
#: Full files' worth of garbage that is never urgent: with few files the ratio says little.
URGENT_FILES_MIN = 2
#: Ticks of the owner's timer without compaction after an error of the disk: ten seconds.
PAUSE_TICKS = 100
#: A look for something to merge visits every file; it waits until a file's limit / this much garbage is new.
_LOOKS_PER_FILE = 16


class Reclaimed(NamedTuple):
    """What came of a step."""

    #: There was something to do that does not wait for the disk.
    has_worked: bool
    #: Garbage piles up: the next turn should follow after `URGENT_EVERY_S`, not with the next tick.
    is_urgent: bool


class Compactor:
    """See the module text. Nothing here raises but `settle`."""

    def __init__(self, files: StoreFiles, table: LocationTable, kind: str) -> None:
        self._files = files
        self._table = table
        self._is_merging = kind == "merge"
        self._running: list[Compaction] = []
        #: Files that hole filling did not help.
        self._stuck: dict[int, None] = {}
        #: Ticks left of a pause.
        self._pause_ticks = 0
        #: The log has it, and nothing was brought to its end since.
        self._is_trouble_told = False
        #: Bytes of garbage at the last look for a pair that found none.
        self._garbage_at_look = 0
        #: Finished compactions.
        self.completed = 0
        self._moved_bytes = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes of live records that were copied so far."""
        return self._moved_bytes + sum(compaction.moved_bytes for compaction in self._running)

    @property
    def is_urgent(self) -> bool:
        """True if one turn per tick would let garbage pile up."""
        files = self._files
        if files.empty and not self._pause_ticks:
            return True
        room = URGENT_RATIO * files.valid_bytes + URGENT_FILES_MIN * files.size_limit_bytes
        return files.total_bytes > room and not self._pause_ticks

    @property
    def _running_max(self) -> int:
        return MERGES_RUNNING_MAX if self._is_merging else RUNNING_MAX

    @property
    def is_under_way(self) -> bool:
        """True if some compaction has begun and is not done."""
        return bool(self._running)

    def tick(self) -> None:
        """Some ten times a second."""
        self._pause_ticks = max(0, self._pause_ticks - 1)

    def step(self) -> bool:
        """Take one step; false if there was nothing to do, everything waits for the disk, or a compaction was chosen:
        its file may be on the disk only, so it begins with the next turn."""
        if self._pause_ticks:
            return False
        try:
            if self._files.delete_one_empty():
                return True
        except StorageError as error:
            self._pause(error)
            return False
        for _ in range(len(self._running)):
            compaction = self._running.pop(0)
            has_worked = self._step(compaction)
            if compaction.is_done:
                self._moved_bytes += compaction.moved_bytes
                self.completed += 1
                if isinstance(compaction, HoleFilling) and compaction.is_stuck:
                    self._stuck[compaction.number] = None
            else:
                self._running.append(compaction)
            if has_worked:
                return True
        if len(self._running) < self._running_max:
            compaction_or_none = self._choose()
            if compaction_or_none is not None:
                self._running.append(compaction_or_none)
        return False

    def _step(self, compaction: Compaction) -> bool:
        try:
            has_worked = compaction.step()
            self._is_trouble_told &= not compaction.is_done
            return has_worked
        except BrokenSourceError as error:
            self._files.summaries[error.number].is_frozen = True
            log.error("%s: %s; it is not compacted any more", self._files.directory, error)
            compaction.fail()
        except StorageError as error:
            # Compaction is a convenience: a full disk must not take the store out of service.
            compaction.fail()
            self._pause(error)
        return True

    def _pause(self, error: StorageError) -> None:
        self._pause_ticks = PAUSE_TICKS
        if not self._is_trouble_told:
            log.warning("%s: compaction pauses, and tries again every ten seconds: %s", self._files.directory, error)
        self._is_trouble_told = True

    def _choose(self) -> Compaction | None:
        if self._is_merging:
            pair = self._choose_pair()
            return Merge(self._files, self._table, pair) if pair else None
        for waiting, is_stuck in ((self._stuck, True), (self._files.sparse, False)):
            while waiting:
                number = next(iter(waiting))
                del waiting[number]
                if self._is_sparse(number):
                    self._files.sparse.pop(number, None)
                    if is_stuck:
                        return Merge(self._files, self._table, (number,))
                    return HoleFilling(self._files, self._table, number)
        return None

    def _is_sparse(self, number: int) -> bool:
        summary = self._files.summaries.get(number)
        return (
            summary is not None
            and 0 < summary.valid_bytes * 2 < summary.record_bytes
            and not summary.is_busy
            and not summary.is_frozen
            and number != self._files.current
        )

    def _choose_pair(self) -> tuple[int, int] | None:
        files = self._files
        garbage = files.total_bytes - files.valid_bytes
        self._garbage_at_look = min(self._garbage_at_look, garbage)
        if (garbage - self._garbage_at_look) * _LOOKS_PER_FILE < files.size_limit_bytes:
            return None
        if len(files.summaries) < COMPACTION_FILES_MIN or garbage <= GARBAGE_FRACTION * files.total_bytes:
            return None
        limit = files.size_limit_bytes - HEADER_BYTES
        left = -1
        for number in sorted(files.summaries):
            summary = files.summaries[number]
            if number == files.current or summary.is_frozen or summary.is_busy or not summary.valid_bytes:
                left = -1 if summary.valid_bytes else left
                continue
            if left >= 0 and files.summaries[left].valid_bytes + summary.valid_bytes <= limit:
                return left, number
            left = number
        self._garbage_at_look = garbage
        return None

    def settle(self) -> None:
        """The store closes: bring everything under way to an end. Raises `StorageError`."""
        while self._running:
            self._running.pop().settle()

    def abandon(self) -> None:
        """The store is out of service: the next start finds out what is on disk."""
        for compaction in self._running:
            compaction.fail()
        self._running.clear()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the bookkeeping contradicts itself."""
        assert len(self._running) <= self._running_max, "what is under way is bounded"
        assert all(not compaction.is_done for compaction in self._running), "finished compactions are let go"
        busy = [number for number, summary in self._files.summaries.items() if summary.is_busy]
        assert not busy or self._running, f"files {busy} are busy with nothing"

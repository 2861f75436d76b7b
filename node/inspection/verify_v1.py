"""Verification of an index of version 1: its journals and segment files, and after a clean stop the terms."""

from __future__ import annotations

from collections.abc import Sequence

from node.inspection.findings import Findings
from node.inspection.places import QueuePlace
from node.inspection.references import References
from node.message import ENVELOPE_HEADER
from node.store.formats.record import JOURNAL_FORMAT, NEVER_WRITTEN, SEGMENT_FORMAT
from node.store.index.v1.format import RECORD_BYTES, place_offset, place_size
from node.store.index.v1.scan import (
    JournalContents,
    Problem,
    SegmentContent,
    StoredEntry,
    load_journals,
    load_segment,
)
from node.store.index.v1.segment import SegmentV1
from node.store.queue_storage import TERMS_NAME

_WRITTEN_ANEW = "left out when the next start writes the file anew, a copy goes to quarantine/"
_FAILS_WHEN_READ = "a clean start does not look at it: the queue fails if it was a live entry"


class V1Check:
    """One pass over the files of one queue."""

    def __init__(
        self, queue: QueuePlace, expected: Sequence[SegmentV1] | None, references: References, findings: Findings
    ) -> None:
        """``expected``: the segments of a clean stop, ``None`` after a crash."""
        self._queue = queue
        self._expected = expected
        self._was_clean = expected is not None
        self._references = references
        self._findings = findings
        self._entries = queue.v1_segment_entries
        #: Behind the last position with a live entry.
        self.end_seq_id = 0

    def run(self) -> None:
        """Check everything. Raises `StorageError` if the disk refuses."""
        queue, findings = self._queue, self._findings
        journals = load_journals(queue.disk, queue.directory, queue.queue_id, self._entries, self._problem)
        if self._was_clean and queue.journal_numbers:
            path = queue.path(queue.journal_numbers[0], JOURNAL_FORMAT.suffix)
            findings.damage(path, None, "is a journal, and a clean stop leaves none", "the queue is scanned")
        expected = {segment.number: segment for segment in self._expected or ()}
        for number in queue.v1_numbers:
            path = queue.path(number, SEGMENT_FORMAT.suffix)
            content = load_segment(queue.disk, queue.directory, number, queue.queue_id, self._problem)
            self._segment(path, number, content, journals)
            if self._was_clean:
                self._compare(path, content, expected.get(number))
        for members in journals.publishes.values():
            for entry in members.values():
                self._entry(entry)
        for number in sorted(expected.keys() - set(queue.v1_numbers)):
            if expected[number].file_bytes:
                path = queue.path(number, SEGMENT_FORMAT.suffix)
                findings.damage(path, None, "is missing: the terms count on it", "its entries are lost")

    def _problem(self, problem: Problem) -> None:
        place = problem.description.rpartition(" at ")[2].split(",")[0]
        offset = int(place) if place.isdigit() else 0
        is_torn = problem.torn or problem.description == NEVER_WRITTEN
        consequence = _FAILS_WHEN_READ if self._was_clean else _WRITTEN_ANEW
        was_synced = self._was_clean or not is_torn
        self._findings.unfinished(was_synced, problem.path, offset, problem.description, consequence)

    def _segment(self, path: str, number: int, content: SegmentContent, journals: JournalContents) -> None:
        for entry in content.live.values():
            if entry.seq_id // self._entries != number:
                what = f"has position {entry.seq_id}: it was written with segments of another size"
                self._findings.damage(path, place_offset(entry.place), what, "the queue does not start")
                return
            if not journals.mentions(entry.seq_id):
                self._entry(entry)
                self._envelope(path, content.data, entry)

    def _entry(self, entry: StoredEntry) -> None:
        self.end_seq_id = max(self.end_seq_id, entry.seq_id + 1)
        if entry.is_shared and entry.persistent and not self._queue.is_converted(1, entry.seq_id):
            self._references.add(entry.msg_id, entry.seq_id)

    def _envelope(self, path: str, data: bytes, entry: StoredEntry) -> None:
        """An embedded message is as long as its record."""
        if entry.is_shared:
            return
        start = place_offset(entry.place) + RECORD_BYTES
        size = place_size(entry.place) - RECORD_BYTES
        _, _, *sizes = ENVELOPE_HEADER.unpack_from(data, start)
        if ENVELOPE_HEADER.size + sum(sizes) != size:
            what = f"position {entry.seq_id}: the record is whole but its message is not"
            self._findings.damage(path, start - RECORD_BYTES, what, "the queue fails when it comes to it")

    def _compare(self, path: str, content: SegmentContent, segment: SegmentV1 | None) -> None:
        findings = self._findings
        if segment is None or not segment.file_bytes:
            findings.damage(path, None, "is not in the terms", "the queue is scanned as after a crash")
            return
        if segment.file_bytes != len(content.data):
            what = f"has {len(content.data)} bytes, the terms say {segment.file_bytes}"
            findings.damage(path, len(content.data), what, "the queue is scanned as after a crash")
        found = shared = 0
        for entry in content.live.values():
            bit = 1 << entry.seq_id - segment.base if entry.seq_id >= segment.base else 0
            found |= bit
            shared |= bit * entry.is_shared
        if found != segment.live_bits or (shared ^ segment.shared_bits) & segment.live_bits & ~segment.transient_bits:
            lost = (segment.live_bits & ~found).bit_count()
            extra = (found & ~segment.live_bits).bit_count()
            terms_path = f"{self._queue.directory}/{TERMS_NAME}"
            what = (
                f"segment {segment.number}: {lost} live entries have no readable record, "
                f"{extra} settled ones have no readable ack"
            )
            findings.damage(terms_path, None, what, "the queue fails when it comes to the first of them")

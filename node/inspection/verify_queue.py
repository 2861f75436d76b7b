"""Verification of one queue's directory: stub, terms, bounds, and the files of its index.

After a clean stop (the terms are there) everything was synced, so whatever is unreadable is damage. After a crash the
same marks of an unfinished write count as recovery would: see `node.store.formats.record` and
`node.store.index.v1.format`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from node.errors import StorageError
from node.inspection.findings import Findings
from node.inspection.places import (
    BOUNDS_NAME,
    COPY,
    COPY_OFFSETS,
    TEMPORARY_SUFFIX,
    QueuePlace,
    VhostFile,
    read_copies,
)
from node.inspection.references import References
from node.inspection.verify_v1 import V1Check
from node.inspection.verify_v2 import V2Check
from node.store.disk.disk import read_whole
from node.store.formats.record import (
    BOUNDS_FORMAT,
    HEADER_BYTES,
    INDEX_FORMAT,
    NEVER_WRITTEN,
    QUEUE_STORE_FORMAT,
    FileFormat,
)
from node.store.index.conversion import CURSOR_FORMAT, CURSOR_NAME
from node.store.index.v1.terms import unpack_terms
from node.store.index.v2.segment import SegmentV2
from node.store.index.v2.terms import segments_in_terms
from node.store.queue_storage import STUB_NAME, TERMS_NAME


class QueueCheck:
    """Checks everything of one queue but the messages that it has in the shared store; those go to ``references``."""

    def __init__(self, queue: QueuePlace, vhost: VhostFile, references: References, findings: Findings) -> None:
        self._queue = queue
        self._vhost = vhost
        self._references = references
        self._findings = findings

    def run(self) -> None:
        """Check it. A file that cannot be read is a finding."""
        queue, findings = self._queue, self._findings
        self._references.begin_queue(queue.directory)
        if not queue.is_durable:
            findings.leftover(
                queue.directory, None, "belongs to a queue that is not durable", "removed at the next start"
            )
            return
        self._stub()
        self._terms()
        end = 0
        try:
            end = max(self._run_v2(), self._run_v1())
        except StorageError as error:
            findings.damage(queue.directory, None, str(error), "the queue does not start")
        self._check_end(end)
        self._leftovers()

    def _stub(self) -> None:
        queue, findings = self._queue, self._findings
        path = f"{queue.directory}/{STUB_NAME}"
        consequence = "the queue is recovered under the name that the cluster's metadata has for its id"
        if STUB_NAME not in queue.names:
            findings.unfinished(queue.terms is not None, path, None, "is missing", consequence)
            return
        content = read_whole(queue.disk, path)
        stub = queue.stub
        if stub is None:
            is_cut = not content.strip(b"\0") or not content.endswith(b"}\n")
            was_synced = queue.terms is not None or not is_cut
            findings.unfinished(was_synced, path, None, "cannot be understood", consequence)
            return
        if queue.queue_id is not None and stub.queue_id != queue.queue_id:
            findings.damage(
                path, None, f"names queue {stub.queue_id} in the directory of {queue.queue_id}", consequence
            )
        elif self._vhost.name is not None and stub.queue_name.vhost != self._vhost.name:
            what = f"names vhost {stub.queue_name.vhost!r} in a directory of {self._vhost.name!r}"
            findings.damage(path, None, what, consequence)
        elif content != json.dumps(json.loads(content), indent=2).encode() + b"\n":
            findings.damage(path, None, "is not as it was written", consequence)

    def _terms(self) -> None:
        queue, findings = self._queue, self._findings
        path = f"{queue.directory}/{TERMS_NAME}"
        if queue.has_terms_file and queue.terms is None:
            what = "its header or its checksum is wrong"
            findings.damage(path, None, what, "the queue is scanned as after a crash: nothing is lost, all is flagged")
        terms = queue.terms
        if terms is not None and terms.next_deliver_seq_id > terms.next_seq_id:
            what = f"delivered up to {terms.next_deliver_seq_id}, but published only up to {terms.next_seq_id}"
            findings.damage(path, None, what, "none known")

    def _run_v2(self) -> int:
        queue = self._queue
        terms = queue.index_terms.get(2)
        expected: dict[int, SegmentV2] | None = None
        if terms is not None:
            try:
                segments = segments_in_terms(terms, queue.v2_segment_entries)
                expected = {segment.number: segment for segment in segments}
            except struct.error:
                path = f"{queue.directory}/{TERMS_NAME}"
                self._findings.damage(path, None, "its list of segments is cut off", "the queue does not start")
        if expected is None and not queue.v2_numbers:
            return 0
        check = V2Check(queue, expected, self._references, self._findings)
        check.run()
        if expected is not None and len(queue.index_terms) == 1:
            self._compare_body_bytes(check.body_bytes)
        return check.end_seq_id

    def _run_v1(self) -> int:
        queue = self._queue
        terms = queue.index_terms.get(1)
        if terms is None and not queue.v1_numbers and not queue.journal_numbers:
            return 0
        unpacked = None
        if terms is not None:
            unpacked = unpack_terms(terms, queue.v1_segment_entries)
            if unpacked is None:
                path = f"{queue.directory}/{TERMS_NAME}"
                what = "what it says of the index is damaged, or of another size of segments"
                self._findings.damage(path, None, what, "the queue is scanned as after a crash")
        check = V1Check(queue, unpacked[1] if unpacked else None, self._references, self._findings)
        check.run()
        return check.end_seq_id

    def _compare_body_bytes(self, body_bytes: int) -> None:
        terms = self._queue.terms
        if terms is not None and terms.body_bytes != body_bytes:
            path = f"{self._queue.directory}/{TERMS_NAME}"
            what = f"says that bodies have {terms.body_bytes} bytes, the slots say {body_bytes}"
            self._findings.damage(path, None, what, "the queue counts its bytes wrongly until it is scanned")

    def _check_end(self, end_seq_id: int) -> None:
        """``end_seq_id``: behind the last position with an entry."""
        queue = self._queue
        terms = queue.terms
        if terms is not None and end_seq_id > terms.next_seq_id:
            path = f"{queue.directory}/{TERMS_NAME}"
            what = f"the next position is {terms.next_seq_id}, but {end_seq_id - 1} has an entry"
            self._findings.damage(path, None, what, "positions are used twice")
        self._bounds(max(end_seq_id, terms.next_seq_id if terms is not None else 0))

    def _bounds(self, used: int) -> None:
        """``used``: positions below it were used."""
        queue, findings = self._queue, self._findings
        was_clean = queue.terms is not None
        path = f"{queue.directory}/{BOUNDS_NAME}"
        consequence = "positions above the last entry may be used twice after the next crash"
        if BOUNDS_NAME not in queue.names:
            if used:
                findings.unfinished(was_clean, path, None, "is missing", consequence)
            return
        reserved = max(self._copies(path, BOUNDS_FORMAT, lambda _value: 0))
        if reserved < used:
            what = f"reserves positions below {reserved} only, but those below {used} were used"
            findings.unfinished(was_clean, path, None, what, consequence)

    def _copies(self, path: str, file_format: FileFormat, file_key_of: Callable[[int], int]) -> list[int]:
        """The usable copies of the number in a file that has two; what else is in it is checked."""
        queue, findings = self._queue, self._findings
        was_clean = queue.terms is not None
        content = read_whole(queue.disk, path)
        copies = read_copies(content)
        usable = [copy for copy in copies if copy is not None] or [0]
        owner = queue.queue_id if queue.queue_id is not None else int.from_bytes(content[16:24], "big")
        problem = file_format.problem(content, file_key_of(max(usable)), owner)
        if problem:
            was_synced = was_clean or problem != NEVER_WRITTEN
            findings.unfinished(was_synced, path, 0, problem, "none: the header is not read")
        for offset, copy in zip(COPY_OFFSETS, copies, strict=True):
            if copy is None:
                what = "the checksum of one of the two copies is wrong"
                findings.unfinished(was_clean, path, offset, what, "the other copy holds")
        ends = (HEADER_BYTES, *(offset + COPY.size for offset in COPY_OFFSETS))
        for start, end in zip(ends, (*COPY_OFFSETS, len(content)), strict=True):
            if content[start:end].strip(b"\0"):
                findings.damage(path, start, "bytes that nobody writes are not zero", "none: nobody reads them")
        return usable

    def _leftovers(self) -> None:
        queue, findings = self._queue, self._findings
        numbers = set(queue.v2_numbers)
        for name in queue.names:
            path = f"{queue.directory}/{name}"
            stem, _, suffix = name.rpartition(".")
            if name == CURSOR_NAME:
                self._copies(path, CURSOR_FORMAT, lambda value: (value & 1) + 1)
                what = "belongs to a conversion of the index that is under way"
                findings.leftover(path, None, what, "the next start goes on with it")
            elif name.endswith(TEMPORARY_SUFFIX):
                findings.leftover(path, None, "was being written when the node stopped", "removed by the next recovery")
            elif "." + suffix == QUEUE_STORE_FORMAT.suffix and stem.isdigit() and int(stem) not in numbers:
                what = f"stands alone: its {stem}{INDEX_FORMAT.suffix} was deleted, or never made"
                was_expected = 2 in queue.index_terms
                findings.leftover(
                    path, None, what, "kept until a scan" if was_expected else "removed at the next start"
                )

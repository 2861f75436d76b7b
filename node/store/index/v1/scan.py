"""What the files of an index of version 1 say, read without an index: for recovery, and for the tools that look at a
stopped node.

`load_journals` and `load_segment` read one kind of file each; `stored_entries` joins them, and
`references_in_pieces_v1` says which messages of a shared store they name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

from node.ids import MsgId
from node.store.disk.disk import Disk
from node.store.formats.record import HEADER_BYTES, JOURNAL_FORMAT, NEVER_WRITTEN, SEGMENT_FORMAT, FileFormat
from node.store.index.held_references import Named
from node.store.index.index import ENTRIES_PER_PIECE, ENTRIES_PER_STEP
from node.store.index.live_bits import run_bits
from node.store.index.v1.format import (
    KIND_ACK,
    KIND_SHARED,
    Record,
    ack_count,
    checksum_seed,
    describe,
    files_of,
    scan_records,
)
from node.store.steps import Steps, read_in_steps, run_through

#: `StoredEntry.journal` of an entry in a segment file.
IN_SEGMENT = -1
#: How journal contents are grouped by who does not know the size of segments.
_GROUP_ENTRIES = 16_384
#: Where the header of a file has its owner (`node.store.formats.record`).
_OWNER = slice(16, 24)


class StoredEntry(NamedTuple):
    """A live entry as the files have it."""

    seq_id: int
    msg_id: MsgId
    body_bytes: int
    persistent: bool
    is_shared: bool
    #: Number of the journal, or `IN_SEGMENT`.
    journal: int
    #: Of its record; see `node.store.index.v1.format`.
    place: int


class Problem(NamedTuple):
    """Something unreadable in a file."""

    path: str
    description: str
    #: True for a write that never finished: no damage.
    torn: bool
    #: The unreadable bytes.
    data: bytes


#: Told of each problem as it is found.
OnProblem = Callable[[Problem], None]


@dataclass(slots=True)
class SegmentContent:
    """What one segment file says, without regard to the journals."""

    data: bytes = b""
    #: Published and not acked; ascending or not.
    live: dict[int, StoredEntry] = field(default_factory=dict)
    #: Behind the highest position with a publish record.
    file_end: int = 0
    #: True if no position has two publish records.
    is_written_once: bool = True
    #: True if the file has an unreadable piece and must be written anew.
    is_bad: bool = False


class JournalContents:
    """The last record about each position in all journals."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._bits = entries.bit_length() - 1
        #: Group -> its positions that a journal mentions.
        self.mentioned: dict[int, int] = {}
        #: Group -> live publishes.
        self.publishes: dict[int, dict[int, StoredEntry]] = {}

    def publish(self, entry: StoredEntry) -> None:
        group = entry.seq_id >> self._bits
        self.mentioned[group] = self.mentioned.get(group, 0) | 1 << (entry.seq_id & self._entries - 1)
        self.publishes.setdefault(group, {})[entry.seq_id] = entry

    def ack(self, first: int, count: int) -> None:
        end = first + count
        while first < end:
            group = first >> self._bits
            piece_end = min(end, (group + 1) << self._bits)
            bits = run_bits(first & self._entries - 1, piece_end - first)
            self.mentioned[group] = self.mentioned.get(group, 0) | bits
            members = self.publishes.get(group)
            if members:
                for seq_id in range(first, piece_end):
                    members.pop(seq_id, None)
            first = piece_end

    def mentions(self, seq_id: int) -> bool:
        """True if a journal says what became of this position."""
        return bool(self.mentioned.get(seq_id >> self._bits, 0) >> (seq_id & self._entries - 1) & 1)


def load_journals(
    disk: Disk, directory: str, queue_id: int | None, entries: int, on_problem: OnProblem
) -> JournalContents:
    """Read all journals in order; positions are grouped by ``entries``. ``queue_id`` ``None``: whoever owns them."""
    return run_through(journals_in_steps(disk, directory, queue_id, entries, on_problem))


def journals_in_steps(
    disk: Disk, directory: str, queue_id: int | None, entries: int, on_problem: OnProblem
) -> Steps[JournalContents]:
    """The same, a bounded number of records per step."""
    contents = JournalContents(entries)
    yield from _read_journals(contents, disk, directory, queue_id, on_problem)
    return contents


def _read_journals(
    contents: JournalContents, disk: Disk, directory: str, queue_id: int | None, on_problem: OnProblem
) -> Steps[None]:
    """Fill ``contents``, a bounded number of records per item."""
    for number in files_of(disk.list(directory), JOURNAL_FORMAT):
        path = f"{directory}/{number}{JOURNAL_FORMAT.suffix}"
        data = yield from read_in_steps(disk, path)
        records = _records(data, path, JOURNAL_FORMAT, number, queue_id, on_problem)
        for read, record in enumerate(records, 1):
            if record.kind == KIND_ACK:
                contents.ack(record.seq_id, ack_count(data, record.offset))
            else:
                contents.publish(_entry(record, data, number))
            if not read % ENTRIES_PER_STEP:
                yield None


def load_segment(
    disk: Disk, directory: str, number: int, queue_id: int | None, on_problem: OnProblem
) -> SegmentContent:
    """Read one segment file. ``queue_id`` ``None``: whoever owns it."""
    return run_through(segment_in_steps(disk, directory, number, queue_id, on_problem))


def segment_in_steps(
    disk: Disk, directory: str, number: int, queue_id: int | None, on_problem: OnProblem
) -> Steps[SegmentContent]:
    """The same, a bounded number of records per step."""
    content = SegmentContent()
    yield from _read_segment(content, disk, directory, number, queue_id, on_problem)
    return content


def _read_segment(
    content: SegmentContent, disk: Disk, directory: str, number: int, queue_id: int | None, on_problem: OnProblem
) -> Steps[None]:
    """Fill ``content``, a bounded number of records per item."""
    path = f"{directory}/{number}{SEGMENT_FORMAT.suffix}"
    data = content.data = yield from read_in_steps(disk, path)
    live = content.live

    def note(problem: Problem) -> None:
        content.is_bad = True
        on_problem(problem)

    for read, record in enumerate(_records(data, path, SEGMENT_FORMAT, number, queue_id, note), 1):
        seq_id = record.seq_id
        if record.kind == KIND_ACK:
            for settled in range(seq_id, seq_id + ack_count(data, record.offset)):
                live.pop(settled, None)
        else:
            live[seq_id] = _entry(record, data, IN_SEGMENT)
            if seq_id < content.file_end:
                content.is_written_once = False
            else:
                content.file_end = seq_id + 1
        if not read % ENTRIES_PER_STEP:
            yield None


def _entry(record: Record, data: bytes, journal: int) -> StoredEntry:
    is_shared = record.kind == KIND_SHARED
    msg_id, body_bytes = describe(data, record.offset, is_shared)
    return StoredEntry(record.seq_id, msg_id, body_bytes, record.persistent, is_shared, journal, record.place)


def _records(
    data: bytes, path: str, file_format: FileFormat, number: int, queue_id: int | None, on_problem: OnProblem
) -> Iterator[Record]:
    """The readable records of a file, the problems told on the way."""
    owner = int.from_bytes(data[_OWNER], "big") if queue_id is None else queue_id
    problem = file_format.problem(data, number, owner)
    if problem:
        on_problem(Problem(path, problem, problem == NEVER_WRITTEN, data[:HEADER_BYTES]))
    for found in scan_records(data, checksum_seed(file_format, number)):
        if isinstance(found, Record):
            yield found
        else:
            piece = data[found.offset : found.end]
            what = "an unfinished write" if found.torn else "damage"
            on_problem(Problem(path, f"{what} at {found.offset}, {found.end - found.offset} bytes", found.torn, piece))


def stored_entries(disk: Disk, directory: str, on_problem: OnProblem) -> Iterator[StoredEntry]:
    """Every live entry in the files of a queue, read-only: first those only in segments, then those in journals."""
    return chain.from_iterable(_stored_in_pieces(disk, directory, on_problem))


def _stored_in_pieces(disk: Disk, directory: str, on_problem: OnProblem) -> Iterator[list[StoredEntry]]:
    """The same with a bounded amount of work per item, many of which are empty."""
    journals = JournalContents(_GROUP_ENTRIES)
    for _ in _read_journals(journals, disk, directory, None, on_problem):
        yield []
    for number in files_of(disk.list(directory), SEGMENT_FORMAT):
        content = SegmentContent()
        for _ in _read_segment(content, disk, directory, number, None, on_problem):
            yield []
        entries = iter(content.live.values())
        while piece := list(islice(entries, ENTRIES_PER_PIECE)):
            yield [entry for entry in piece if not journals.mentions(entry.seq_id)]
    for members in journals.publishes.values():
        entries = iter(members.values())
        while piece := list(islice(entries, ENTRIES_PER_PIECE)):
            yield piece


def references_in_pieces_v1(
    disk: Disk, directory: str, on_damage: Callable[[], None] = lambda: None
) -> Iterator[list[Named]]:
    """Messages of the shared store that live persistent entries of this queue name, once per entry; a bounded piece at
    a time, and what is in journals last. ``on_damage`` hears of a damaged file before anything of it comes."""

    def on_problem(problem: Problem) -> None:
        if not problem.torn:
            on_damage()

    for entries in _stored_in_pieces(disk, directory, on_problem):
        yield [(entry.seq_id, entry.msg_id) for entry in entries if entry.is_shared and entry.persistent]

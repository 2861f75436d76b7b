"""Verification of a persistent shared store: every record, and whether files, tables and queues agree.

After a clean stop the tables (``clean.tables``) say where every message is and how often it is referred to; the next
start believes them if every queue stopped cleanly, too, and reports each file that is shorter than they say, or gone.
Otherwise it scans: the first whole copy of a message counts, what nobody refers to is garbage. A message that no file
has is damage if anything of the store is known to be lost, else a write that a crash cut short; but of a queue that is
opened by its terms nobody asks, until it comes to it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from node.errors import StorageError
from node.inspection.findings import Findings, Kind, Problem
from node.inspection.groups import Groups
from node.inspection.places import PERSISTENT_NAME, QUARANTINE_NAME, TEMPORARY_SUFFIX
from node.inspection.references import References
from node.store.disk.disk import Disk, read_whole
from node.store.disk.group_commit import GroupCommit
from node.store.disk.length_file import ShortFile
from node.store.formats.record import (
    HEADER_BYTES,
    HOLES_FORMAT,
    KIND_MESSAGE,
    NEVER_WRITTEN,
    RECORD_HEADER_BYTES,
    SHARED_STORE_FORMAT,
    Damage,
    unpack_holes_note,
    unpack_store_record_header,
)
from node.store.index.v1.format import files_of
from node.store.shared.clean_tables import TABLES_NAME, clean_tables_in_steps
from node.store.shared.config import StoreConfig
from node.store.shared.location_table import Location, LocationTable
from node.store.shared.recovery import QUARANTINE_BYTES_MAX
from node.store.shared.store_file import SCAN_PIECE_BYTES, StoredRecord, scan_store_file
from node.store.shared.store_files import FileSummary, StoreFiles
from node.store.steps import run_through

_CLEAN_DAMAGE = "a clean start does not look at it: if a live message is concerned, its queue fails when it comes to it"
_DIRTY_DAMAGE = "a copy goes to quarantine/, entries that name a message in it are dropped"


@dataclass(frozen=True, slots=True)
class BeforeTheStore:
    """What the next start knows when it comes to the store."""

    #: It looks for tables: every queue left its terms, and has lost no durable bytes that are noted.
    reads_tables: bool
    #: Queues (their directories) that are opened by their terms, unless something of the store is known to be lost.
    with_terms: Container[str]
    #: What the notes say of files of the store, by path.
    noted_bytes: Mapping[str, int]
    #: Of these, those that are there and shorter.
    short_files: Container[str]


class StoreTables:
    """What a clean stop left, if it can be used."""

    def __init__(self, disk: Disk, directory: str) -> None:
        """Raises `StorageError`."""
        self.table = LocationTable()
        self.exists = disk.exists(f"{directory}/{TABLES_NAME}")
        files = StoreFiles(disk, directory, GroupCommit(), StoreConfig(), is_transient=False)
        #: Files that are shorter than they say, or gone.
        self.short_files: list[ShortFile] = []
        steps = clean_tables_in_steps(files, self.table, self.short_files)
        #: Why they cannot be used.
        self.problem = run_through(steps) if self.exists else ""
        self.summaries: dict[int, FileSummary] = files.summaries
        files.abandon()

    @property
    def are_usable(self) -> bool:
        return self.exists and not self.problem


def read_note(disk: Disk, directory: str, number: int, names: Sequence[str]) -> list[tuple[int, int]] | None:
    """The ranges that a note of holes excuses; none without a note, ``None`` for one that is not whole."""
    name = f"{number}{HOLES_FORMAT.suffix}"
    return unpack_holes_note(number, read_whole(disk, f"{directory}/{name}")) if name in names else []


class StoreCheck:
    """One pass over all files of one store."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        references: References,
        before: BeforeTheStore,
        *,
        knows_all_references: bool,
        findings: Findings,
    ) -> None:
        """``knows_all_references``: ``references`` are the whole vhost's."""
        self._disk = disk
        self._before = before
        self._directory = directory
        self._references = references
        self._knows_all = knows_all_references
        self._findings = findings
        self._names = disk.list(directory)
        self._tables = StoreTables(disk, directory)
        self._was_clean = self._tables.are_usable and before.reads_tables
        #: Entries of the tables that were found where they should be.
        self._found = 0
        #: The next start will know that something is lost; then it also scans every queue.
        self._has_damage = any(f"{directory}/{name}" in before.short_files for name in self._names)

    def run(self) -> None:
        """Check everything. Raises `StorageError` if the disk refuses."""
        tables, findings = self._tables, self._findings
        path = f"{self._directory}/{TABLES_NAME}"
        self._short_files()
        if tables.problem and not tables.short_files:
            findings.damage(path, None, tables.problem, "the next start scans the store as after a crash")
        elif tables.exists and not self._was_clean and not tables.short_files:
            what = "is not used: some queue did not stop cleanly"
            findings.leftover(path, None, what, "removed at the next start, which scans the store")
        numbers = files_of(self._names, SHARED_STORE_FORMAT)
        for number in numbers:
            self._file(number)
        if self._was_clean:
            self._compare()
        else:
            self._report_missing()
        self._leftovers(set(numbers))

    def _short_files(self) -> None:
        """Files that the tables say are longer: known to be lost, if the next start reads the tables."""
        reads_tables = self._before.reads_tables
        self._has_damage |= reads_tables and bool(self._tables.short_files)
        consequence = "what stood there is lost; the next start reports it and scans the rest"
        if not reads_tables:
            consequence = "what stood there is lost; no start can tell: a queue was not closed, or lost bytes itself"
        for short in self._tables.short_files:
            if not self._disk.exists(short.path):
                what = f"is missing: the tables of the clean stop say that it has {short.noted_bytes} bytes"
                self._findings.damage(short.path, None, what, consequence)
            elif short.path not in self._before.short_files:
                self._findings.damage(short.path, short.found_bytes, short.problem, consequence)

    def _file(self, number: int) -> None:
        path = f"{self._directory}/{number}{SHARED_STORE_FORMAT.suffix}"
        file = self._disk.open(path)
        try:
            self._header(path, number, file.pread(HEADER_BYTES, 0))
            noted = self._noted(number)
            cut = min((start for start, end in noted if end > file.size), default=file.size)
            duplicates = 0
            for found in scan_store_file(file, [(start, end) for start, end in noted if end <= file.size]):
                if found.offset >= cut:
                    break
                if isinstance(found, Damage):
                    piece = file.pread(min(found.size, QUARANTINE_BYTES_MAX), found.offset)
                    self._damage(path, number, found, piece)
                else:
                    duplicates += self._record(path, number, found)
        finally:
            file.close()
        if duplicates and not self._was_clean:
            what = f"has second copies of {duplicates} messages"
            self._findings.leftover(path, None, what, "garbage: the first copy counts")

    def _header(self, path: str, number: int, content: bytes) -> None:
        problem = SHARED_STORE_FORMAT.problem(content, number, 0)
        if problem:
            was_synced = self._was_clean or problem != NEVER_WRITTEN
            self._has_damage |= problem != NEVER_WRITTEN
            consequence = "written again by the next scan; the records are checked one by one"
            self._findings.unfinished(was_synced, path, 0, problem, consequence)

    def _noted(self, number: int) -> list[tuple[int, int]]:
        noted = read_note(self._disk, self._directory, number, self._names)
        path = f"{self._directory}/{number}{HOLES_FORMAT.suffix}"
        if noted is None:
            content = read_whole(self._disk, path)
            is_torn = len(content) < HEADER_BYTES + 8 or not content[-4:].strip(b"\0")
            consequence = "ignored at the next start: what it excuses counts as damage, if compaction was at work"
            self._findings.unfinished(not is_torn, path, None, "is not whole", consequence)
            return []
        if noted:
            what = f"names {len(noted)} ranges that compaction was filling"
            self._findings.leftover(path, None, what, "they become holes at the next start, each message has its copy")
        return noted

    def _damage(self, path: str, number: int, damage: Damage, piece: bytes) -> None:
        name = f"{QUARANTINE_NAME}/{number}.{damage.offset}.bad"
        kept = f"{self._directory}/{name}"
        what = f"{damage.size} bytes that are no whole record"
        self._has_damage |= not damage.torn
        if self._disk.exists(kept) and read_whole(self._disk, kept) == piece:
            self._findings.leftover(path, damage.offset, what, f"known since an earlier start: see {name}")
            return
        summary = self._tables.summaries.get(number)
        if self._was_clean and damage.torn and summary is not None and summary.is_frozen:
            self._findings.leftover(path, damage.offset, what, "known since an earlier start, which froze the file")
            return
        was_synced = self._was_clean or not damage.torn
        torn = "cut off, or made a hole, at the next start"
        consequence = _CLEAN_DAMAGE if self._was_clean else torn if damage.torn else _DIRTY_DAMAGE
        self._findings.unfinished(was_synced, path, damage.offset, what, consequence)

    def _record(self, path: str, number: int, record: StoredRecord) -> bool:
        """True for a second copy of a message that somebody refers to."""
        is_first = self._references.see(record.msg_id)
        if self._was_clean and self._tables.table.is_at(record.msg_id, number, record.offset):
            location = self._tables.table.get(record.msg_id)
            if location is not None and location.size == record.size:
                self._found += 1
        return not is_first and self._references.get(record.msg_id) is not None

    def _compare(self) -> None:
        """The tables against the files, and against the queues."""
        table, findings = self._tables.table, self._findings
        path = f"{self._directory}/{TABLES_NAME}"
        groups = Groups()
        if self._found != len(table):
            for msg_id, location in table.items():
                if not self._is_whole(msg_id, location):
                    file_path = f"{self._directory}/{location.file}{SHARED_STORE_FORMAT.suffix}"
                    what = f"message {msg_id.hex()} should be there, with {location.size} bytes, and is not readable"
                    consequence = self._concerned(msg_id)
                    problem = Problem(Kind.DAMAGE, file_path, location.offset, what, consequence)
                    groups.add((file_path, "unreadable"), "messages should be there and are not readable", problem)
        for named_id, count in self._references.items():
            found = table.get(named_id)
            if found is None:
                self._missing(named_id, groups)
            elif self._knows_all and found.references != count:
                what = f"message {named_id.hex()} has {found.references} references, the queues have {count}"
                problem = Problem(Kind.DAMAGE, path, None, what, "it is removed too early, or never")
                groups.add("references", "messages have more or fewer references than the queues have", problem)
        if self._knows_all:
            for stored_id, location in table.items():
                if self._references.get(stored_id) is None:
                    what = f"no queue refers to message {stored_id.hex()} in file {location.file}"
                    consequence = "it is kept for ever, until the store is scanned"
                    problem = Problem(Kind.DAMAGE, path, None, what, consequence)
                    groups.add("unreferenced", "messages to which no queue refers", problem)
        groups.tell(findings)

    def _is_whole(self, msg_id: bytes, location: Location) -> bool:
        """A look at one record. (All were looked at before; this is for the list of those that are not whole.)"""
        name = f"{location.file}{SHARED_STORE_FORMAT.suffix}"
        if name not in self._names:
            return False
        file = self._disk.open(f"{self._directory}/{name}")
        try:
            header = unpack_store_record_header(file.pread(RECORD_HEADER_BYTES, location.offset), 0)
            if header is None or header.kind != KIND_MESSAGE or header.length != location.size:
                return False
            at, checksum, own_id = location.offset + RECORD_HEADER_BYTES, 0, b""
            end = at + location.size
            while at < end:
                piece = file.pread(min(SCAN_PIECE_BYTES, end - at), at)
                if not piece:
                    return False
                own_id = own_id or piece[: len(msg_id)]
                checksum = crc32(piece, checksum)
                at += len(piece)
            return checksum == header.checksum and own_id == msg_id
        finally:
            file.close()

    def _concerned(self, msg_id: bytes) -> str:
        referrer = self._references.get(msg_id)
        if referrer is None:
            return "none known: no queue that was read refers to it"
        others = f" (and {referrer.references - 1} others)" if referrer.references > 1 else ""
        return f"{referrer.directory} fails when it comes to position {referrer.seq_id}{others}"

    def _report_missing(self) -> None:
        groups = Groups()
        for msg_id, _ in self._references.unseen():
            self._missing(msg_id, groups)
        groups.tell(self._findings)

    def _missing(self, msg_id: bytes, groups: Groups) -> None:
        referrer = self._references.get(msg_id)
        assert referrer is not None, "only what is referred to can be missing"
        others = f", and {referrer.references - 1} others refer to it" if referrer.references > 1 else ""
        what = f"position {referrer.seq_id} names message {msg_id.hex()}, which {PERSISTENT_NAME} does not have{others}"
        kind = Kind.DAMAGE
        if self._was_clean or (not self._has_damage and referrer.directory in self._before.with_terms):
            consequence = "the queue fails when it comes to it"
        elif self._has_damage:
            consequence = "dropped at the next start, a copy of the slot goes to quarantine/"
        else:
            kind, consequence = Kind.TORN, "dropped at the next start, counted as torn"
            if lost := self._lost_files():
                consequence += f" (unless it was lost with {lost}, which is noted and not there: no start can tell)"
        problem = Problem(kind, referrer.directory, None, what, consequence)
        groups.add((referrer.directory, kind), f"positions name messages that {PERSISTENT_NAME} does not have", problem)

    def _lost_files(self) -> str:
        """Files of which durable bytes are noted and that are gone: deleted just before a crash, or lost."""
        prefix = self._directory + "/"
        gone = [path.removeprefix(prefix) for path in self._before.noted_bytes if path.startswith(prefix)]
        return ", ".join(sorted(name for name in gone if name not in self._names))

    def _leftovers(self, numbers: set[int]) -> None:
        for name in self._names:
            path = f"{self._directory}/{name}"
            stem, _, suffix = name.rpartition(".")
            if name.endswith(TEMPORARY_SUFFIX):
                what = "was being written when the node stopped"
                self._findings.leftover(path, None, what, "removed at the next start")
            elif "." + suffix == HOLES_FORMAT.suffix and (not stem.isdigit() or int(stem) not in numbers):
                self._findings.leftover(path, None, "is the note of a file that is gone", "removed by the next scan")


def verify_store(
    disk: Disk,
    directory: str,
    references: References,
    before: BeforeTheStore,
    findings: Findings,
    *,
    knows_all_references: bool,
) -> None:
    """Check a store; what cannot be read is a finding."""
    try:
        check = StoreCheck(
            disk, directory, references, before, knows_all_references=knows_all_references, findings=findings
        )
        check.run()
    except StorageError as error:
        findings.damage(directory, None, str(error), "the vhost does not start")

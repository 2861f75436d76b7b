"""What a directory is that somebody points at: a node's data, one vhost, one queue, or one shared message store.

Nothing here or elsewhere in this package writes; it works on a `node.store.disk.disk.ReadOnlyDisk`. See
`node.queues.vhost_store` for the layout.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from json import JSONDecodeError
from zlib import crc32

from node.errors import WarrenError
from node.ids import QueueName
from node.store.deletions import DELETING_NAME, DELETING_SUFFIX, QUEUES_NAME
from node.store.disk.disk import Disk, ReadOnlyDisk, read_whole
from node.store.formats.record import (
    HEADER_BYTES,
    INDEX_FORMAT,
    JOURNAL_FORMAT,
    SEGMENT_FORMAT,
    SHARED_STORE_FORMAT,
    SLOT_BYTES,
)
from node.store.index.conversion import CURSOR_NAME, split_terms
from node.store.index.terms import Terms, read_terms
from node.store.index.v1.format import files_of
from node.store.queue_storage import STUB_NAME, TERMS_NAME, Stub, read_stub
from node.store.shared.clean_tables import TABLES_NAME
from node.store.shared.config import SEGMENT_ENTRIES_MAX, StoreConfig

VHOSTS_NAME = "vhosts"
#: Whose directory it is; there before the first queue (`cluster.runtime.data_directory`).
OWNER_NAME = "node_name"
VHOST_FILE_NAME = "vhost.json"
PERSISTENT_NAME = "msg_store_persistent"
TRANSIENT_NAME = "msg_store_transient"
BOUNDS_NAME = "seq.bounds"
QUARANTINE_NAME = "quarantine"
TEMPORARY_SUFFIX = ".tmp"
_DEFAULTS = StoreConfig()


class NotStorageError(WarrenError):
    """The directory holds nothing that Warren stores."""


class Scope(StrEnum):
    """What somebody pointed at."""

    NODE = "node"
    VHOST = "vhost"
    QUEUE = "queue"
    STORE = "store"


@dataclass(slots=True)
class VhostFile:
    """What ``vhost.json`` says; the settings of a fresh vhost where it says nothing usable."""

    name: str | None = None
    format: int | None = None
    v1_segment_entries: int = _DEFAULTS.v1_segment_entries
    v2_segment_entries: int = _DEFAULTS.v2_segment_entries
    #: What is wrong with it; empty if nothing is.
    problem: str = ""
    #: There is none: the next start makes it, as configured.
    is_missing: bool = False


@dataclass(slots=True)
class VhostPlace:
    """One vhost, or the part of it that was pointed at."""

    directory: str
    file: VhostFile
    #: Every queue's directory, in the order of their ids.
    queues: list[str] = field(default_factory=list)
    #: Directories of deleted queues that were not removed yet. Nothing in them counts.
    deleting: list[str] = field(default_factory=list)
    #: Whether they are to be looked at themselves, or only asked what they refer to.
    shows_queues: bool = True
    #: The same for the shared stores.
    shows_stores: bool = True

    @property
    def persistent(self) -> str:
        """Directory of the shared store that survives restarts."""
        return f"{self.directory}/{PERSISTENT_NAME}"

    @property
    def transient(self) -> str:
        """Directory of the shared store that does not."""
        return f"{self.directory}/{TRANSIENT_NAME}"


@dataclass(frozen=True, slots=True)
class Place:
    """What was found."""

    directory: str
    scope: Scope
    vhosts: tuple[VhostPlace, ...]


def require_storage(directory: str) -> None:
    """Raises `NotStorageError` for a directory that holds nothing that Warren stores, and `StorageError`."""
    locate(ReadOnlyDisk(), directory)


def locate(disk: Disk, directory: str) -> Place:
    """Recognise a directory. Raises `NotStorageError`, and `StorageError` if it cannot be read."""
    directory = directory.rstrip("/") or "/"
    names = set(disk.list(directory))
    if VHOSTS_NAME in names:
        base = f"{directory}/{VHOSTS_NAME}"
        names = {name for name in disk.list(base) if not name.endswith(DELETING_SUFFIX)}
        vhosts = [_vhost(disk, f"{base}/{name}") for name in sorted(names) if disk.list(f"{base}/{name}")]
        return Place(directory, Scope.NODE, tuple(vhosts))
    if OWNER_NAME in names:
        return Place(directory, Scope.NODE, ())  # no queue has been on it yet
    if names & {VHOST_FILE_NAME, QUEUES_NAME, PERSISTENT_NAME}:
        return Place(directory, Scope.VHOST, (_vhost(disk, directory),))
    parent, _, own_name = directory.rpartition("/")
    if own_name in (PERSISTENT_NAME, TRANSIENT_NAME) or any(
        name.endswith(SHARED_STORE_FORMAT.suffix) for name in names
    ):
        if own_name != PERSISTENT_NAME:
            raise NotStorageError(
                f"{directory} is not named {PERSISTENT_NAME}: the transient store is emptied at every start, and a "
                "store under another name belongs to no vhost"
            )
        vhost = _vhost(disk, parent)
        vhost.shows_queues = False
        return Place(directory, Scope.STORE, (vhost,))
    if parent.rpartition("/")[2] == DELETING_NAME:
        raise NotStorageError(f"{directory} belongs to a queue that was deleted: it is removed bit by bit")
    suffixes = (INDEX_FORMAT.suffix, SEGMENT_FORMAT.suffix, JOURNAL_FORMAT.suffix)
    if names & {STUB_NAME, TERMS_NAME, BOUNDS_NAME} or any(name.endswith(suffixes) for name in names):
        vhost_directory = parent.rpartition("/")[0]
        vhost = VhostPlace(vhost_directory, read_vhost_file(disk, vhost_directory), [directory], shows_stores=False)
        return Place(directory, Scope.QUEUE, (vhost,))
    nodes = [
        f"{directory}/{name}"
        for name in sorted(names)
        if not {VHOSTS_NAME, OWNER_NAME}.isdisjoint(disk.list(f"{directory}/{name}"))
    ]
    if nodes:
        raise NotStorageError(
            f"{directory} is not itself a node's data directory, but holds some: name one of {', '.join(nodes)}"
        )
    raise NotStorageError(
        f"{directory} is neither a node's data directory (it would have {VHOSTS_NAME}/), nor that of a vhost "
        f"({VHOST_FILE_NAME}), of a queue ({STUB_NAME}) or of a shared store ({PERSISTENT_NAME}/, {TABLES_NAME})"
    )


def _vhost(disk: Disk, directory: str) -> VhostPlace:
    base = f"{directory}/{QUEUES_NAME}"
    ids = sorted(int(name) for name in disk.list(base) if name.isdigit())
    queues = [f"{base}/{queue_id}" for queue_id in ids]
    deleting = [f"{directory}/{DELETING_NAME}/{name}" for name in disk.list(f"{directory}/{DELETING_NAME}")]
    return VhostPlace(directory, read_vhost_file(disk, directory), queues, deleting)


def read_vhost_file(disk: Disk, directory: str) -> VhostFile:
    """``vhost.json`` of a vhost's directory."""
    path = f"{directory}/{VHOST_FILE_NAME}"
    found = VhostFile()
    if not disk.exists(path):
        found.problem, found.is_missing = "is missing", True
        return found
    try:
        content = read_whole(disk, path)
        fields = json.loads(content)
        found.name = str(fields["vhost"])
        found.format = int(fields["format"])
        v1_entries, v2_entries = int(fields["v1_segment_entries"]), int(fields["v2_segment_entries"])
    except (JSONDecodeError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        found.problem = f"cannot be understood ({error})"
        return found
    for entries in (v1_entries, v2_entries):
        if not 0 < entries <= SEGMENT_ENTRIES_MAX or entries & entries - 1:
            found.problem = (
                f"says segments have {entries} entries, which is no power of two up to {SEGMENT_ENTRIES_MAX}"
            )
            return found
    found.v1_segment_entries, found.v2_segment_entries = v1_entries, v2_entries
    if content != json.dumps(fields, indent=2).encode() + b"\n":
        found.problem = "is not as it was written"
    return found


#: Where the two copies in a ``seq.bounds`` and in a ``conversion.cursor`` stand: a number of 8 bytes, its checksum.
COPY_OFFSETS = (512, 1024)
COPY = struct.Struct(">QI")


def read_copies(content: bytes) -> list[int | None]:
    """The two numbers in such a file; 0 for one that was never written, ``None`` for one whose checksum is wrong."""
    copies: list[int | None] = []
    for offset in COPY_OFFSETS:
        piece = content[offset : offset + COPY.size]
        if not piece.strip(b"\0"):
            copies.append(0)
        elif len(piece) < COPY.size or crc32(piece[:8]) != COPY.unpack(piece)[1]:
            copies.append(None)
        else:
            copies.append(COPY.unpack(piece)[0])
    return copies


@dataclass(slots=True)
class QueuePlace:
    """One queue's directory, its small files read."""

    disk: Disk
    directory: str
    names: list[str]
    #: The directory's name; ``None`` if it is no number.
    queue_id: int | None
    stub: Stub | None
    #: What a clean stop left; ``None`` after a crash, and if it cannot be trusted.
    terms: Terms | None
    #: The next start of the shared store counts a queue as cleanly stopped by the file's name alone.
    has_terms_file: bool
    v1_segment_entries: int
    v2_segment_entries: int
    #: While the index is converted: the version that is left, and the position below which nothing in it counts.
    cursor: tuple[int, int] | None = None

    def is_converted(self, version: int, seq_id: int) -> bool:
        """Whether an entry of this version is a copy that the other version has, which an ack that a crash lost left.

        (After a clean stop the terms say what is live.)
        """
        return self.cursor is not None and self.terms is None and self.cursor[0] == version and seq_id < self.cursor[1]

    @property
    def name(self) -> QueueName | None:
        """Its name, if the stub tells."""
        return self.stub.queue_name if self.stub else None

    @property
    def v2_numbers(self) -> list[int]:
        """Segments of version 2, ascending."""
        return files_of(self.names, INDEX_FORMAT)

    @property
    def v1_numbers(self) -> list[int]:
        """Segments of version 1, ascending."""
        return files_of(self.names, SEGMENT_FORMAT)

    @property
    def journal_numbers(self) -> list[int]:
        """Journals of version 1, in their order."""
        return files_of(self.names, JOURNAL_FORMAT)

    @property
    def index_terms(self) -> dict[int, bytes]:
        """By version: what a clean stop left of the index; of two, if it is being converted."""
        if self.terms is None:
            return {}
        old, own = split_terms(self.terms.index_terms)
        version = self.terms.index_version
        found = {version: own}
        if old is not None:
            found[3 - version] = old
        return found

    @property
    def index_versions(self) -> list[int]:
        """Generations of which there are files, or which the terms name."""
        found = {2} if self.v2_numbers else set()
        if self.v1_numbers or self.journal_numbers:
            found.add(1)
        return sorted(found | self.index_terms.keys())

    @property
    def is_durable(self) -> bool:
        """False: the directory is removed at the next start."""
        return self.stub is None or self.stub.durable

    def path(self, number: int, suffix: str) -> str:
        """Path of a numbered file."""
        return f"{self.directory}/{number}{suffix}"


def open_queue(disk: Disk, directory: str, file: VhostFile) -> QueuePlace:
    """Read a queue's small files. Raises `StorageError` if the disk refuses."""
    own_name = directory.rpartition("/")[2]
    queue_id = int(own_name) if own_name.isdigit() else None
    stub = read_stub(disk, directory)
    owner = queue_id if queue_id is not None else stub.queue_id if stub else 0
    terms_path = f"{directory}/{TERMS_NAME}"
    return QueuePlace(
        disk,
        directory,
        disk.list(directory),
        queue_id,
        stub,
        read_terms(disk, terms_path, owner),
        disk.exists(terms_path),
        file.v1_segment_entries,
        _v2_entries(disk, directory, file),
        _read_cursor(disk, directory),
    )


def _read_cursor(disk: Disk, directory: str) -> tuple[int, int] | None:
    """See `node.store.index.conversion`."""
    path = f"{directory}/{CURSOR_NAME}"
    if not disk.exists(path):
        return None
    value = max(copy or 0 for copy in read_copies(read_whole(disk, path)))
    return (value & 1) + 1, value >> 1


def _v2_entries(disk: Disk, directory: str, file: VhostFile) -> int:
    """Entries of a segment of version 2: as the vhost says; without its word, as long as the first file is."""
    if file.problem:
        for number in files_of(disk.list(directory), INDEX_FORMAT):
            handle = disk.open(f"{directory}/{number}{INDEX_FORMAT.suffix}")
            entries = (handle.size - HEADER_BYTES) // SLOT_BYTES
            handle.close()
            if 0 < entries <= SEGMENT_ENTRIES_MAX and not entries & entries - 1:
                return entries
    return file.v2_segment_entries

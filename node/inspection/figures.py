"""The figures of an inspection, in plain values. Field names are those of the JSON output."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SegmentFigures:
    """One segment of an index of version 2: ``N.qi`` and ``N.qs``."""

    number: int
    #: Entries that are there, as slots say; each is one of persistent and transient, and one of embedded and shared.
    present: int = 0
    #: Empty slots before the last position used: settled, or never written.
    settled: int = 0
    #: Empty slots behind it.
    free: int = 0
    persistent: int = 0
    transient: int = 0
    embedded: int = 0
    shared: int = 0
    #: Slots that are neither empty nor an entry.
    unreadable: int = 0
    #: Bytes of the files.
    index_bytes: int = 0
    store_bytes: int = 0
    #: Of the .qs file without its header: records that entries name, and the rest (records of settled entries).
    live_bytes: int = 0
    garbage_bytes: int = 0
    #: Positions; ``None`` without an entry.
    first_live: int | None = None
    last_live: int | None = None


@dataclass(slots=True)
class JournalFigures:
    """One journal of an index of version 1: ``N.jif``."""

    number: int
    file_bytes: int = 0
    records: int = 0
    publishes: int = 0
    #: Records of acks, and the positions in them.
    ack_records: int = 0
    acked: int = 0
    #: Positions of which the publish here holds.
    live: int = 0
    unreadable_bytes: int = 0


@dataclass(slots=True)
class V1SegmentFigures:
    """One segment file of an index of version 1: ``N.idx``."""

    number: int
    file_bytes: int = 0
    publishes: int = 0
    ack_records: int = 0
    acked: int = 0
    #: Positions of which the publish here holds: neither acked here nor mentioned in a journal.
    live: int = 0
    persistent: int = 0
    transient: int = 0
    embedded: int = 0
    shared: int = 0
    live_bytes: int = 0
    garbage_bytes: int = 0
    unreadable_bytes: int = 0
    first_live: int | None = None
    last_live: int | None = None


@dataclass(slots=True)
class QueueFigures:
    """One queue's directory."""

    directory: str
    queue_id: int | None
    name: str | None
    vhost: str | None
    durable: bool | None
    #: Generations of the index; two while one is converted into the other.
    index_versions: list[int] = field(default_factory=list)
    #: Whether a clean stop left terms that can be used; the next two are known then only.
    stopped_cleanly: bool = False
    next_seq_id: int | None = None
    next_deliver_seq_id: int | None = None
    #: No position at or above it was ever used.
    reserved_seq_id: int = 0
    #: Live entries, whatever became of their messages, and the bytes of their bodies.
    messages: int = 0
    body_bytes: int = 0
    file_bytes: int = 0
    #: Damaged pieces that earlier starts kept.
    quarantined: int = 0
    #: While one version is converted into the other: entries of the old one below this position do not count; until
    #: then an entry may be in both, and is counted twice.
    conversion_cursor: int | None = None
    segments: list[SegmentFigures] = field(default_factory=list)
    journals: list[JournalFigures] = field(default_factory=list)
    v1_segments: list[V1SegmentFigures] = field(default_factory=list)


@dataclass(slots=True)
class OldestMessage:
    """The live message with the smallest position, of those whose position is known."""

    msg_id: str
    #: ``None`` if no queue that was read refers to it.
    queue_id: int | None
    seq_id: int | None


@dataclass(slots=True)
class StoreFileFigures:
    """One file of a shared store: ``N.rdq``."""

    number: int
    file_bytes: int = 0
    #: Whole messages, and those of them that are live.
    records: int = 0
    live_records: int = 0
    #: Of the file without its header: live records (with their headers), and everything else.
    valid_bytes: int = 0
    garbage_bytes: int = 0
    #: Ranges without a live record; the longest.
    holes: int = 0
    largest_hole_bytes: int = 0
    unreadable_bytes: int = 0
    oldest: OldestMessage | None = None


@dataclass(slots=True)
class StoreFigures:
    """The persistent shared store of a vhost."""

    directory: str
    #: ``tables`` of a clean stop, or ``queues``: who says which messages are live.
    live_according_to: str = "queues"
    messages: int = 0
    valid_bytes: int = 0
    garbage_bytes: int = 0
    file_bytes: int = 0
    quarantined: int = 0
    files: list[StoreFileFigures] = field(default_factory=list)


@dataclass(slots=True)
class TransientFigures:
    """The transient shared store: emptied at the next start."""

    directory: str
    files: int = 0
    file_bytes: int = 0


@dataclass(slots=True)
class DeletingFigures:
    """Deleted queues whose files are being removed."""

    queues: int = 0
    files: int = 0
    file_bytes: int = 0


@dataclass(slots=True)
class VhostFigures:
    """One vhost."""

    directory: str
    name: str | None
    format: int | None
    v1_segment_entries: int
    v2_segment_entries: int
    #: What is wrong with ``vhost.json``; empty if nothing is.
    problem: str = ""
    queues: list[QueueFigures] = field(default_factory=list)
    #: ``None`` if it was not looked at.
    persistent_store: StoreFigures | None = None
    transient_store: TransientFigures | None = None
    deleting: DeletingFigures = field(default_factory=DeletingFigures)


@dataclass(slots=True)
class Totals:
    """Sums over everything that was looked at."""

    vhosts: int = 0
    queues: int = 0
    #: Live entries of queues, and the bytes of their bodies.
    messages: int = 0
    body_bytes: int = 0
    #: Of the queues' own files.
    queue_file_bytes: int = 0
    queue_garbage_bytes: int = 0
    #: Of the persistent shared stores.
    stored_messages: int = 0
    store_file_bytes: int = 0
    store_garbage_bytes: int = 0


@dataclass(slots=True)
class Inspection:
    """Everything."""

    directory: str
    #: ``node``, ``vhost``, ``queue`` or ``store``.
    scope: str
    vhosts: list[VhostFigures] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)

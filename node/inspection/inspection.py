"""Inspection of everything below a directory, offline: how much is in which file, and how much of it is garbage.

It reads what `node.inspection.verification` reads, and the same holds for memory and running nodes, but it does not
judge: what is unreadable is only counted.
"""

from __future__ import annotations

from collections.abc import Callable

from node.ids import QueueName
from node.inspection.figures import (
    Inspection,
    JournalFigures,
    OldestMessage,
    QueueFigures,
    SegmentFigures,
    StoreFigures,
    StoreFileFigures,
    Totals,
    TransientFigures,
    V1SegmentFigures,
    VhostFigures,
)
from node.inspection.places import (
    BOUNDS_NAME,
    QUARANTINE_NAME,
    QueuePlace,
    VhostPlace,
    locate,
    open_queue,
)
from node.inspection.references import References, count_queue
from node.inspection.steps import Progress, Steps
from node.inspection.verify_store import StoreTables, read_note
from node.store.deletions import files_below
from node.store.disk.disk import Disk, ReadOnlyDisk, read_whole
from node.store.disk.group_commit import GroupCommit
from node.store.formats.record import (
    HEADER_BYTES,
    INDEX_FORMAT,
    JOURNAL_FORMAT,
    QUEUE_STORE_FORMAT,
    RECORD_HEADER_BYTES,
    SEGMENT_FORMAT,
    SHARED_STORE_FORMAT,
    Damage,
    FileFormat,
)
from node.store.index.terms import SeqBounds
from node.store.index.v1.format import KIND_ACK, Record, ack_count, checksum_seed, files_of, place_size, scan_records
from node.store.index.v1.scan import JournalContents, StoredEntry, load_journals, load_segment
from node.store.index.v2.scan import BadSlot, scan_slots
from node.store.shared.store_file import StoredRecord, scan_store_file


def inspect(
    directory: str,
    *,
    queue_name: str | None = None,
    on_progress: Progress = lambda _what, _done, _total: None,
) -> Inspection:
    """Figures of what is below ``directory``; with ``queue_name`` only of the queues of this name.

    Raises `NotStorageError` for another directory, `StorageError` if something cannot be read.
    """
    disk = ReadOnlyDisk()
    place = locate(disk, directory)
    result = Inspection(place.directory, place.scope.value)
    steps = Steps(sum(len(vhost.queues) + 1 for vhost in place.vhosts), on_progress)
    for vhost in place.vhosts:
        figures = _inspect_vhost(disk, vhost, queue_name, steps)
        result.vhosts.append(figures)
        _add(result.totals, figures)
    return result


def _inspect_vhost(disk: Disk, vhost: VhostPlace, queue_name: str | None, steps: Steps) -> VhostFigures:
    file = vhost.file
    figures = VhostFigures(
        vhost.directory, file.name, file.format, file.v1_segment_entries, file.v2_segment_entries, file.problem
    )
    references = References()
    has_store = vhost.shows_stores and queue_name is None
    stopped_cleanly = True
    for directory in vhost.queues:
        steps.begin(directory)
        queue = open_queue(disk, directory, file)
        stopped_cleanly &= queue.has_terms_file
        name = queue.name or QueueName("", "")
        if vhost.shows_queues and queue_name in (None, name.name):
            figures.queues.append(inspect_queue(queue))
        if has_store:
            count_queue(queue, references)
    steps.begin(vhost.persistent)
    if has_store:
        figures.persistent_store = inspect_store(disk, vhost.persistent, references, stopped_cleanly)
        figures.transient_store = _inspect_transient(disk, vhost.transient)
    for directory in vhost.deleting:
        sizes = [_size(disk, path) for path in files_below(disk, directory)]
        figures.deleting.queues += 1
        figures.deleting.files += len(sizes)
        figures.deleting.file_bytes += sum(sizes)
    return figures


def _add(totals: Totals, vhost: VhostFigures) -> None:
    totals.vhosts += 1
    for queue in vhost.queues:
        totals.queues += 1
        totals.messages += queue.messages
        totals.body_bytes += queue.body_bytes
        totals.queue_file_bytes += queue.file_bytes
        totals.queue_garbage_bytes += sum(segment.garbage_bytes for segment in queue.segments)
        totals.queue_garbage_bytes += sum(segment.garbage_bytes for segment in queue.v1_segments)
    store = vhost.persistent_store
    if store is not None:
        totals.stored_messages += store.messages
        totals.store_file_bytes += store.file_bytes
        totals.store_garbage_bytes += store.garbage_bytes


# -- queues


def inspect_queue(queue: QueuePlace) -> QueueFigures:
    """Figures of one queue. Raises `StorageError`."""
    name, stub, terms = queue.name, queue.stub, queue.terms
    disk, directory = queue.disk, queue.directory
    figures = QueueFigures(
        directory,
        queue.queue_id if queue.queue_id is not None else stub.queue_id if stub else None,
        name.name if name else None,
        name.vhost if name else None,
        stub.durable if stub else None,
        queue.index_versions,
        terms is not None,
        terms.next_seq_id if terms else None,
        terms.next_deliver_seq_id if terms else None,
        SeqBounds(disk, f"{directory}/{BOUNDS_NAME}", 0, GroupCommit()).reserved,
        quarantined=len(disk.list(f"{directory}/{QUARANTINE_NAME}")),
        conversion_cursor=queue.cursor[1] if queue.cursor else None,
    )
    numbers = queue.v2_numbers
    for number in numbers:
        _inspect_segment(queue, number, number == numbers[-1], figures)
    if queue.v1_numbers or queue.journal_numbers:
        _inspect_v1(queue, figures)
    return figures


def _inspect_segment(queue: QueuePlace, number: int, is_last: bool, queue_figures: QueueFigures) -> None:
    disk, entries = queue.disk, queue.v2_segment_entries
    data = read_whole(disk, queue.path(number, INDEX_FORMAT.suffix))
    figures = SegmentFigures(number, index_bytes=len(data))
    base, used = number * entries, 0
    for seq_id, slot in scan_slots(number, data, entries):
        used = seq_id + 1 - base
        if isinstance(slot, BadSlot):
            figures.unreadable += 1
            continue
        figures.present += 1
        figures.persistent += slot.persistent
        figures.shared += slot.shared
        if not slot.shared:
            figures.live_bytes += RECORD_HEADER_BYTES + slot.overhead_bytes + slot.body_bytes
        figures.first_live = seq_id if figures.first_live is None else figures.first_live
        figures.last_live = seq_id
        queue_figures.body_bytes += slot.body_bytes
    if not is_last:
        used = entries
    elif queue.terms is not None:
        used = max(used, min(entries, queue.terms.next_seq_id - base))
    figures.transient = figures.present - figures.persistent
    figures.embedded = figures.present - figures.shared
    figures.settled = used - figures.present - figures.unreadable
    figures.free = entries - used
    name = f"{number}{QUEUE_STORE_FORMAT.suffix}"
    if name in queue.names:
        figures.store_bytes = _size(disk, f"{queue.directory}/{name}")
        figures.garbage_bytes = max(0, figures.store_bytes - HEADER_BYTES - figures.live_bytes)
    queue_figures.messages += figures.present
    queue_figures.file_bytes += figures.index_bytes + figures.store_bytes
    queue_figures.segments.append(figures)


def _inspect_v1(queue: QueuePlace, figures: QueueFigures) -> None:
    contents = load_journals(queue.disk, queue.directory, None, queue.v1_segment_entries, lambda _problem: None)
    live_by_journal: dict[int, int] = {}
    for members in contents.publishes.values():
        for entry in members.values():
            live_by_journal[entry.journal] = live_by_journal.get(entry.journal, 0) + 1
            figures.messages += 1
            figures.body_bytes += entry.body_bytes
    for number in queue.journal_numbers:
        journal = JournalFigures(number, live=live_by_journal.get(number, 0))
        _count_records(queue, JOURNAL_FORMAT, journal)
        journal.records = journal.publishes + journal.ack_records
        figures.journals.append(journal)
        figures.file_bytes += journal.file_bytes
    for number in queue.v1_numbers:
        segment = V1SegmentFigures(number)
        _count_records(queue, SEGMENT_FORMAT, segment)
        _count_live(queue, segment, contents, figures)
        figures.v1_segments.append(segment)
        figures.file_bytes += segment.file_bytes


def _count_records(queue: QueuePlace, file_format: FileFormat, figures: JournalFigures | V1SegmentFigures) -> None:
    data = read_whole(queue.disk, queue.path(figures.number, file_format.suffix))
    figures.file_bytes = len(data)
    for found in scan_records(data, checksum_seed(file_format, figures.number)):
        if not isinstance(found, Record):
            figures.unreadable_bytes += found.end - found.offset
        elif found.kind == KIND_ACK:
            figures.ack_records += 1
            figures.acked += ack_count(data, found.offset)
        else:
            figures.publishes += 1


def _count_live(
    queue: QueuePlace, segment: V1SegmentFigures, journals: JournalContents, queue_figures: QueueFigures
) -> None:
    content = load_segment(queue.disk, queue.directory, segment.number, None, lambda _problem: None)
    live: list[StoredEntry] = [entry for entry in content.live.values() if not journals.mentions(entry.seq_id)]
    segment.live = len(live)
    segment.persistent = sum(entry.persistent for entry in live)
    segment.transient = segment.live - segment.persistent
    segment.shared = sum(entry.is_shared for entry in live)
    segment.embedded = segment.live - segment.shared
    segment.live_bytes = sum(place_size(entry.place) for entry in live)
    segment.garbage_bytes = max(0, segment.file_bytes - HEADER_BYTES - segment.live_bytes)
    if live:
        segment.first_live = min(entry.seq_id for entry in live)
        segment.last_live = max(entry.seq_id for entry in live)
    queue_figures.messages += segment.live
    queue_figures.body_bytes += sum(entry.body_bytes for entry in live)


def _size(disk: Disk, path: str) -> int:
    file = disk.open(path)
    file.close()
    return file.size


# -- shared stores


def inspect_store(disk: Disk, directory: str, references: References, stopped_cleanly: bool) -> StoreFigures:
    """Figures of a persistent store. ``stopped_cleanly``: every queue of the vhost did. Raises `StorageError`."""
    figures = StoreFigures(directory, quarantined=len(disk.list(f"{directory}/{QUARANTINE_NAME}")))
    tables = StoreTables(disk, directory)
    names = disk.list(directory)
    if tables.are_usable and stopped_cleanly:
        figures.live_according_to = "tables"
    for number in files_of(names, SHARED_STORE_FORMAT):
        is_clean = figures.live_according_to == "tables"

        def is_live(record: StoredRecord, number: int = number, is_clean: bool = is_clean) -> bool:
            if is_clean:
                return tables.table.is_at(record.msg_id, number, record.offset)
            return references.see(record.msg_id)

        noted = read_note(disk, directory, number, names) or []
        file = _inspect_store_file(disk, directory, number, noted, is_live, references)
        figures.files.append(file)
        figures.messages += file.live_records
        figures.valid_bytes += file.valid_bytes
        figures.garbage_bytes += file.garbage_bytes
        figures.file_bytes += file.file_bytes
    return figures


def _inspect_store_file(
    disk: Disk,
    directory: str,
    number: int,
    noted: list[tuple[int, int]],
    is_live: Callable[[StoredRecord], bool],
    references: References,
) -> StoreFileFigures:
    file = disk.open(f"{directory}/{number}{SHARED_STORE_FORMAT.suffix}")
    try:
        figures = StoreFileFigures(number, file.size)
        end = HEADER_BYTES
        for found in scan_store_file(file, [(start, stop) for start, stop in noted if stop <= file.size]):
            if isinstance(found, Damage):
                figures.unreadable_bytes += found.size
                continue
            figures.records += 1
            if is_live(found):
                _note_hole(figures, found.offset - end)
                end = found.offset + RECORD_HEADER_BYTES + found.size
                figures.live_records += 1
                figures.valid_bytes += RECORD_HEADER_BYTES + found.size
                _note_age(figures, found, references)
        _note_hole(figures, file.size - end)
    finally:
        file.close()
    figures.garbage_bytes = max(0, figures.file_bytes - HEADER_BYTES - figures.valid_bytes)
    return figures


def _note_hole(figures: StoreFileFigures, size: int) -> None:
    if size > 0:
        figures.holes += 1
        figures.largest_hole_bytes = max(figures.largest_hole_bytes, size)


def _note_age(figures: StoreFileFigures, record: StoredRecord, references: References) -> None:
    referrer = references.get(record.msg_id)
    oldest = figures.oldest
    if referrer is None:
        if oldest is None:
            figures.oldest = OldestMessage(record.msg_id.hex(), None, None)
        return
    if oldest is None or oldest.seq_id is None or referrer.seq_id < oldest.seq_id:
        own_name = referrer.directory.rpartition("/")[2]
        queue_id = int(own_name) if own_name.isdigit() else None
        figures.oldest = OldestMessage(record.msg_id.hex(), queue_id, referrer.seq_id)


def _inspect_transient(disk: Disk, directory: str) -> TransientFigures:
    names = [name for name in disk.list(directory) if name.endswith(SHARED_STORE_FORMAT.suffix)]
    return TransientFigures(directory, len(names), sum(_size(disk, f"{directory}/{name}") for name in names))

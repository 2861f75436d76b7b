"""What `warren store` shows to people: tables of an inspection, the list of a verification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from node.inspection.figures import (
    Inspection,
    JournalFigures,
    QueueFigures,
    SegmentFigures,
    StoreFigures,
    StoreFileFigures,
    V1SegmentFigures,
    VhostFigures,
)
from node.inspection.findings import Kind
from node.inspection.verification import Verification

#: A pipe has no width; wide enough for every table here.
_PIPE_WIDTH = 200
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def _size(size: int) -> str:
    """Bytes for people: 1536 is ``1.5 KiB``."""
    value, unit = float(size), _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def _print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="left" if column in ("file", "oldest message") else "right")
    for row in rows:
        table.add_row(*["" if cell is None else escape(str(cell)) for cell in row])
    console.print(table)


def print_inspection(result: Inspection) -> None:
    """Everything, vhost by vhost, and the totals."""
    console = _console()
    for vhost in result.vhosts:
        _print_vhost(console, vhost)
    totals = result.totals
    console.print(
        f"Total: vhosts {totals.vhosts}, queues {totals.queues}, entries {totals.messages} with "
        f"{_size(totals.body_bytes)} in bodies; queue files {_size(totals.queue_file_bytes)}, of them garbage "
        f"{_size(totals.queue_garbage_bytes)}; shared store files {_size(totals.store_file_bytes)} with "
        f"{totals.stored_messages} messages, garbage {_size(totals.store_garbage_bytes)}",
        soft_wrap=True,
    )


def _print_vhost(console: Console, vhost: VhostFigures) -> None:
    name = "(name unknown)" if vhost.name is None else repr(vhost.name)
    text = (
        f"[bold]vhost {escape(name)}[/bold], format {vhost.format}, entries of a segment: "
        f"{vhost.v1_segment_entries} (version 1), {vhost.v2_segment_entries} (version 2)"
    )
    console.print(text, soft_wrap=True)
    if vhost.problem:
        console.print(f"  vhost.json {escape(vhost.problem)}", soft_wrap=True)
    for queue in vhost.queues:
        _print_queue(console, queue)
    if vhost.persistent_store is not None:
        _print_store(console, vhost.persistent_store)
    deleting = vhost.deleting
    if deleting.queues:
        text = f"  deleted queues: {deleting.queues}, of them still to be removed {deleting.files} files, "
        console.print(text + _size(deleting.file_bytes), soft_wrap=True)
    transient = vhost.transient_store
    if transient is not None and transient.files:
        text = f"  transient shared store: {transient.files} files, {_size(transient.file_bytes)}"
        console.print(text + ", emptied at the next start")


def _print_queue(console: Console, queue: QueueFigures) -> None:
    name = "(name unknown)" if queue.name is None else repr(queue.name)
    versions = " and ".join(map(str, queue.index_versions)) or "none yet"
    if queue.stopped_cleanly:
        state = f"stopped cleanly; next position {queue.next_seq_id}, next never delivered {queue.next_deliver_seq_id}"
    else:
        state = "no terms of a clean stop: it runs, crashed, or is new"
    durable = (
        "" if queue.durable is None else ", durable" if queue.durable else ", not durable: removed at the next start"
    )
    text = (
        f"\n  [bold]queue {escape(name)}[/bold] (id {queue.queue_id}){durable}; index version {versions}; {state}; "
        f"positions reserved below {queue.reserved_seq_id}; {queue.messages} entries, "
        f"{_size(queue.body_bytes)} in bodies"
    )
    console.print(text, soft_wrap=True)
    if queue.conversion_cursor is not None:
        text = f"  is being converted to the other version of the index, up to position {queue.conversion_cursor}"
        console.print(text + ": entries may be in both, and are counted twice", soft_wrap=True)
    if queue.quarantined:
        console.print(f"  quarantine/ has {queue.quarantined} damaged pieces")
    if queue.segments:
        _print_table(console, _SEGMENT_COLUMNS, map(_segment_row, queue.segments))
    if queue.journals:
        columns = ("file", "size", "records", "publishes", "ack records", "acked", "live", "unreadable")
        _print_table(console, columns, map(_journal_row, queue.journals))
    if queue.v1_segments:
        _print_table(console, _V1_COLUMNS, map(_v1_row, queue.v1_segments))


_SEGMENT_COLUMNS = ("file", "present", "settled", "free", "persistent", "transient", "embedded", "shared", "unreadable",
                    ".qs", "live", "garbage", "first", "last")  # fmt: skip


def _segment_row(segment: SegmentFigures) -> Sequence[object]:
    return (
        f"{segment.number}.qi",
        segment.present,
        segment.settled,
        segment.free,
        segment.persistent,
        segment.transient,
        segment.embedded,
        segment.shared,
        segment.unreadable,
        _size(segment.store_bytes),
        _size(segment.live_bytes),
        _size(segment.garbage_bytes),
        segment.first_live,
        segment.last_live,
    )


def _journal_row(journal: JournalFigures) -> Sequence[object]:
    return (
        f"{journal.number}.jif",
        _size(journal.file_bytes),
        journal.records,
        journal.publishes,
        journal.ack_records,
        journal.acked,
        journal.live,
        _size(journal.unreadable_bytes),
    )


_V1_COLUMNS = ("file", "size", "publishes", "ack records", "acked", "live entries", "persistent", "transient",
               "embedded", "shared", "live", "garbage", "unreadable", "first", "last")  # fmt: skip


def _v1_row(segment: V1SegmentFigures) -> Sequence[object]:
    return (
        f"{segment.number}.idx",
        _size(segment.file_bytes),
        segment.publishes,
        segment.ack_records,
        segment.acked,
        segment.live,
        segment.persistent,
        segment.transient,
        segment.embedded,
        segment.shared,
        _size(segment.live_bytes),
        _size(segment.garbage_bytes),
        _size(segment.unreadable_bytes),
        segment.first_live,
        segment.last_live,
    )


_STORE_COLUMNS = ("file", "size", "records", "live records", "valid", "garbage", "holes", "largest hole", "unreadable",
                  "oldest message")  # fmt: skip


def _print_store(console: Console, store: StoreFigures) -> None:
    text = (
        f"\n  [bold]shared store[/bold]: {store.messages} messages, {_size(store.valid_bytes)} valid, "
        f"{_size(store.garbage_bytes)} garbage in {len(store.files)} files (live is what "
        f"{'the tables of the clean stop say' if store.live_according_to == 'tables' else 'the queues refer to'})"
    )
    console.print(text, soft_wrap=True)
    if store.quarantined:
        console.print(f"  quarantine/ has {store.quarantined} damaged pieces")
    if store.files:
        _print_table(console, _STORE_COLUMNS, map(_store_row, store.files))


def _store_row(file: StoreFileFigures) -> Sequence[object]:
    oldest = ""
    if file.oldest is not None:
        oldest = file.oldest.msg_id
        if file.oldest.seq_id is not None:
            oldest += f" (position {file.oldest.seq_id} of queue {file.oldest.queue_id})"
    return (
        f"{file.number}.rdq",
        _size(file.file_bytes),
        file.records,
        file.live_records,
        _size(file.valid_bytes),
        _size(file.garbage_bytes),
        file.holes,
        _size(file.largest_hole_bytes),
        _size(file.unreadable_bytes),
        oldest,
    )


def print_verification(result: Verification) -> None:
    """Every problem on two lines, then one line that sums up."""
    findings = result.findings
    for problem in findings.problems:
        place = problem.path if problem.offset is None else f"{problem.path}, byte {problem.offset}"
        click.echo(f"{problem.kind}: {place}: {problem.what}\n    next: {problem.consequence}")
    more = sum(findings.counts.values()) - len(findings.problems)
    if more:
        click.echo(f"... and {more} more")
    if result.unchecked_references:
        text = (
            f"Not checked: {result.unchecked_references} messages in the shared store, which is not beside the queue."
        )
        click.echo(text)
    looked_at = f"Checked (queues {result.queues}, shared stores {result.stores}): "
    counts = findings.counts
    if not counts:
        click.echo(looked_at + "everything is as it was written.")
        return
    click.echo(
        looked_at + f"{counts[Kind.DAMAGE]} damaged, {counts[Kind.TORN]} unfinished writes of a crash, "
        f"{counts[Kind.LEFTOVER]} leftovers."
    )

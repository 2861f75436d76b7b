"""A run's directory as whoever conducts it leaves it: with a record, a sheet, and no judgement yet."""

from __future__ import annotations

from pathlib import Path

from chaos.conduct.sheet import QueueEntry, RosterEntry, Sheet, State
from chaos.record.process_record import event_table, write_table
from chaos.record.schema import EVENTS_DIRECTORY
from tests.support.told import PUBLISHER, PUBLISHING, Told


def recorded_run(directory: Path, told: Told, **values: object) -> Sheet:
    """Of one queue, drained, and known to its end. ``values`` are the sheet's."""
    sheet = Sheet(directory.name, "K01", "The master is killed", "Nothing is lost", "local", 7, "2026-09-21T13:46:40Z")
    sheet.state = State.FINISHED
    sheet.queues = [QueueEntry("orders", False, True, True)]
    events = told.complete()
    for process in sorted({event.process for event in events}):
        publishers = [PUBLISHER] if process == PUBLISHING else []
        sheet.roster.append(RosterEntry(process, "publisher" if publishers else "consumer", publishers))
    for name, value in values.items():
        setattr(sheet, name, value)
    records = directory / EVENTS_DIRECTORY / "class=client"
    records.mkdir(parents=True)
    for entry in sheet.roster:
        rows = [event for event in events if event.process == entry.process]
        write_table(records / f"{entry.process:06d}-000000.parquet", event_table(sheet.run, rows))
    sheet.write(directory)
    return sheet

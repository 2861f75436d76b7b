"""Shapes of generated histories that are small enough for the reference checker, and their events."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.generator import History, Shape
from chaos.record.schema import Event

#: Some of everything, in two blocks.
SMALL = Shape(
    messages=3_000,
    queues=3,
    rate=3_000,
    prefetch=10,
    failovers=3,
    redelivered=0.05,
    unresolved=0.03,
    refused=0.01,
    returned=0.01,
    block_messages=1_700,
)


def events_of(history: History) -> Iterator[Event]:
    """Part by part, as they would be written."""
    for _, _, table in history.tables("run"):
        columns = table.to_pydict()
        yield from (Event(*row) for row in zip(*(columns[name] for name in Event._fields), strict=True))

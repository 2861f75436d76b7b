"""A recorder that keeps its rows, for tests of what follows from which frame."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos.record.kinds import Kind


@dataclass(frozen=True, slots=True)
class Row:
    """What was recorded, but for when."""

    kind: Kind
    message: int = 0
    channel: int = 0
    tag: int = 0
    flags: int = 0
    others: dict[str, int | str] = field(default_factory=dict)


class RecordedRows:
    """Satisfies `chaos.clients.ports.Recorder`."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        #: Of each row: not before, not after.
        self.times_us: list[tuple[int, int]] = []
        self._seen = 0

    def add(self, kind: Kind, at_us: int, message: int = 0, channel: int = 0, tag: int = 0, flags: int = 0) -> None:
        self.note(kind, at_us, None, message, channel, tag, flags)

    def note(
        self,
        kind: Kind,
        at_us: int | None = None,
        since_us: int | None = None,
        message: int = 0,
        channel: int = 0,
        tag: int = 0,
        flags: int = 0,
        **others: int | str,
    ) -> None:
        assert at_us is not None, "a pure part has no clock: it says when"
        since_us = at_us if since_us is None else since_us
        assert since_us <= at_us, "an interval begins before it ends"
        self.rows.append(Row(kind, message, channel, tag, int(flags), {k: v for k, v in others.items() if v}))
        self.times_us.append((since_us, at_us))

    def news(self) -> list[Row]:
        """What was recorded since this was last asked."""
        seen, self._seen = self._seen, len(self.rows)
        return self.rows[seen:]

    def of(self, *kinds: Kind) -> list[Row]:
        return [row for row in self.rows if row.kind in kinds]

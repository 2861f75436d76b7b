"""Where everything that happened has its place in a lane diagram. Pure: happenings in, a layout out.

Time runs downwards. There are few lanes and much time, so the long side is the one that pages scroll and printers cut;
and the reader's eye goes down a log, too. It does not run evenly: what matters comes in bursts of milliseconds with
seconds of nothing between, so each *row* is a moment, and a gap between two rows is told in words.

*Condensing.* What clients and logs say in numbers is one mark while nothing else comes between: the same kind, in the
same lane, no longer than `CONDENSE_US` after another. What a violation is about is never condensed. Every happening is
in exactly one mark, a lane's marks are in the order of time, and a row has at most one mark of a lane.

*Spans* lie on the lane of a node or in a column of their own beside all lanes, as far to the left as there is room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from chaos.analysis.reference import AttemptKey
from chaos.history import Kind
from chaos.sim.happenings import DOWN, EVERYTHING, PAUSED, Happening

#: Lane of what is about everybody: the steps of the schedule, and what it all comes to.
SCHEDULE = "schedule"
#: What is no further apart than this may share a row.
ROW_US = 2_000
#: What is further apart is told as a gap.
GAP_US = 200_000
#: Alike, and no later than this: one mark.
CONDENSE_US = 250_000

#: Kinds of which many in a row say no more than their number.
CONDENSABLE: AbstractSet[str] = frozenset(
    {"log", "warning", *(kind.value for kind in Kind)} - {Kind.CONN_OPEN.value, Kind.CONN_LOST.value}
)


@dataclass
class Mark:
    """What one lane shows in one row: one happening, or several that are alike."""

    lane: str
    kind: str
    row: int
    happenings: list[Happening]
    is_concerned: bool = False


@dataclass
class Row:
    """A moment."""

    number: int
    begin_us: int
    #: Time since the row before, if that is long.
    gap_us: int = 0


@dataclass
class Span:
    """Something that lasts. ``column``: beside the lane, or in the part for links if it has no lane."""

    name: str
    lane: str
    first_row: int
    last_row: int
    column: int = 0
    #: The line that began it.
    line: str = ""


@dataclass
class Layout:
    """See the module text."""

    lanes: list[str]
    rows: list[Row]
    marks: list[Mark]
    spans: list[Span]
    #: Everything, in order.
    log: list[Happening] = field(default_factory=list)
    #: For each message that a violation is about, its marks in order.
    paths: dict[AttemptKey, list[Mark]] = field(default_factory=dict)

    def check_invariants(self) -> None:
        last: dict[str, int] = {}
        for mark in self.marks:
            assert mark.happenings, "a mark shows something"
            assert mark.lane in self.lanes, "a mark has a lane"
            assert 0 <= mark.row < len(self.rows), "and a row"
            assert mark.row > last.get(mark.lane, -1), "one mark of a lane in each row, in order"
            last[mark.lane] = mark.row
        shown = sorted(id(each) for mark in self.marks for each in mark.happenings)
        assert shown == sorted(map(id, self.log)), "everything is shown once"
        assert [row.number for row in self.rows] == list(range(len(self.rows))), "rows are numbered"
        assert all(0 <= each.first_row <= each.last_row < len(self.rows) for each in self.spans), "spans lie on rows"


def lay_out(happenings: Iterable[Happening], nodes: Sequence[str], concerned: Collection[AttemptKey] = ()) -> Layout:
    """Give everything its place. ``nodes`` have lanes also if nothing happened to them; clients only then.
    ``concerned``: messages that the violations are about."""
    in_order = sorted(happenings, key=lambda each: each.at_us)  # stable: what is told first stays first
    keys = dict.fromkeys(concerned)
    placer = _Placer(keys)
    for happening in in_order:
        placer.place(happening)
    seen = dict.fromkeys(mark.lane for mark in placer.marks)
    others = sorted((lane for lane in seen if lane not in nodes and lane != SCHEDULE), key=_client_order)
    spans = _spans(in_order, placer.row_of, len(placer.rows) - 1)
    paths: dict[AttemptKey, list[Mark]] = {key: [] for key in keys}
    for mark in placer.marks:
        for key in dict.fromkeys(each.key for each in mark.happenings):
            if key is not None and key in paths:
                paths[key].append(mark)
    layout = Layout([SCHEDULE, *nodes, *others], placer.rows, placer.marks, spans, in_order, paths)
    layout.check_invariants()
    return layout


class _Placer:
    """Rows and marks, in one walk."""

    def __init__(self, concerned: Mapping[AttemptKey, None]) -> None:
        self._concerned = concerned
        self.rows: list[Row] = []
        self.marks: list[Mark] = []
        #: Lane -> its last mark; and those that may still grow.
        self._last: dict[str, Mark] = {}
        self._growing: dict[str, Mark] = {}
        #: Identity of a happening in its order -> its row.
        self.row_of: list[int] = []

    def place(self, happening: Happening) -> None:
        lane = happening.lane or SCHEDULE
        is_concerned = happening.kind == "violation" or (happening.key is not None and happening.key in self._concerned)
        may_grow = happening.kind in CONDENSABLE and not is_concerned
        growing = self._growing.get(lane)
        if may_grow and growing is not None and self._continues(growing, happening):
            growing.happenings.append(happening)
            self.row_of.append(growing.row)
            return
        if not may_grow:
            self._growing.clear()  # it comes between
        row = self._row(lane, happening.at_us)
        mark = Mark(lane, happening.kind, row.number, [happening], is_concerned)
        self.marks.append(mark)
        self._last[lane] = mark
        self._growing.pop(lane, None)
        if may_grow:
            self._growing[lane] = mark
        self.row_of.append(row.number)

    @staticmethod
    def _continues(mark: Mark, happening: Happening) -> bool:
        last = mark.happenings[-1]
        is_alike = mark.kind == happening.kind and (last.key is None) == (happening.key is None)
        is_same_queue = last.key is None or happening.key is None or last.key[0] == happening.key[0]
        return is_alike and is_same_queue and happening.at_us - last.at_us <= CONDENSE_US

    def _row(self, lane: str, at_us: int) -> Row:
        """The last row, if there is room in it; else a new one."""
        last = self.rows[-1] if self.rows else None
        before = self._last.get(lane)
        is_free = last is not None and (before is None or before.row < last.number)
        if last is not None and is_free and at_us - last.begin_us <= ROW_US:
            return last
        since_us = at_us - last.begin_us if last is not None else 0
        row = Row(len(self.rows), at_us, since_us if since_us >= GAP_US else 0)
        self.rows.append(row)
        return row


def _spans(in_order: Sequence[Happening], row_of: Sequence[int], last_row: int) -> list[Span]:
    """What was begun and ended; what was not ended lasts to the end."""
    spans: list[Span] = []
    open_spans: dict[tuple[str, str], Span] = {}
    for happening, row in zip(in_order, row_of, strict=True):
        if happening.ends == EVERYTHING:
            for each in open_spans.values():
                each.last_row = row
            open_spans.clear()
        elif happening.begins == DOWN:
            _end(open_spans, (happening.lane, PAUSED), row)
        elif happening.ends:
            _end(open_spans, (happening.lane, happening.ends), row)
        if happening.begins and (happening.lane, happening.begins) not in open_spans:
            span = Span(happening.begins, happening.lane, row, last_row, line=happening.line)
            open_spans[happening.lane, happening.begins] = span
            spans.append(span)
    _give_columns(spans)
    return spans


def _end(open_spans: dict[tuple[str, str], Span], key: tuple[str, str], row: int) -> None:
    ended = open_spans.pop(key, None)
    if ended is not None:
        ended.last_row = row


def _give_columns(spans: Sequence[Span]) -> None:
    """Those of one lane that overlap lie side by side."""
    free_from: dict[str, list[int]] = {}
    for span in spans:
        columns = free_from.setdefault(span.lane, [])
        column = next((number for number, row in enumerate(columns) if row < span.first_row), len(columns))
        if column == len(columns):
            columns.append(-1)
        columns[column] = span.last_row
        span.column = column


def _client_order(lane: str) -> tuple[str, int]:
    """Publishers, transactors and so on by their numbers."""
    letters = lane.rstrip("0123456789")
    return letters, int(lane[len(letters) :] or 0)

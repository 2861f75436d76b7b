"""Lane diagrams: everything that happened has its place, in order, and nothing that it says can break the page."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from chaos.analysis.reference import AttemptKey
from chaos.history import Kind
from chaos.sim.draw import draw_run
from chaos.sim.happenings import DOWN, EVERYTHING, PAUSED, Happening
from chaos.sim.lane_page import LABEL_LETTERS, ROWS_PER_STRIP, label_of, render_lanes
from chaos.sim.lanes import GAP_US, SCHEDULE, Layout, lay_out
from chaos.sim.run import run_schedule
from tests.support.simulated import publish, schedule

NODES = ("n1", "n2")
MILLISECOND_US = 1_000


def log(at_ms: float, lane: str, text: str = "says", kind: str = "log") -> Happening:
    return Happening(int(at_ms * MILLISECOND_US), lane, kind, text)


def message(at_ms: float, lane: str, kind: Kind, seq: int, queue: int = 0) -> Happening:
    return Happening(int(at_ms * MILLISECOND_US), lane, kind.value, f"{lane} {seq}", (queue, 0, seq, 1))


def fault(at_ms: float, lane: str, *, begins: str = "", ends: str = "") -> Happening:
    return Happening(int(at_ms * MILLISECOND_US), lane, "fault", begins or ends, None, begins, ends)


def rows_of(layout: Layout, lane: str) -> list[tuple[int, int]]:
    """Row of each mark, and how much it stands for."""
    return [(mark.row, len(mark.happenings)) for mark in layout.marks if mark.lane == lane]


# --- lanes and rows


def test_nodes_have_lanes_and_clients_that_did_something() -> None:
    layout = lay_out([log(1, "p0"), log(2, "c10"), log(3, "c2"), log(4, "")], NODES)
    assert layout.lanes == [SCHEDULE, "n1", "n2", "c2", "c10", "p0"]


def test_what_happens_at_once_in_different_lanes_shares_a_row() -> None:
    layout = lay_out([log(1, "n1"), log(1.5, "n2"), log(9, "n1", kind="step")], NODES)
    assert rows_of(layout, "n1") == [(0, 1), (1, 1)]
    assert rows_of(layout, "n2") == [(0, 1)]


def test_the_order_is_that_of_time_and_of_telling() -> None:
    told = [log(5, "n1", "b", "step"), log(1, "n1", "a", "step"), log(5, "n1", "c", "step")]
    layout = lay_out(told, NODES)
    assert [mark.happenings[0].text for mark in layout.marks] == ["a", "b", "c"]
    assert [mark.row for mark in layout.marks] == [0, 1, 2]


def test_a_long_pause_is_told() -> None:
    layout = lay_out([log(1, "n1"), log(2_001, "n2"), log(2_010, "n1", kind="step")], NODES)
    assert [row.gap_us for row in layout.rows] == [0, 2_000 * MILLISECOND_US, 0]
    assert GAP_US <= 2_000 * MILLISECOND_US


def test_nothing_has_no_rows_and_a_page() -> None:
    layout = lay_out([], NODES)
    assert layout.rows == []
    assert "every promise was kept" in page(layout)


# --- condensing


def test_what_is_alike_is_one_mark() -> None:
    layout = lay_out([message(at, "p0", Kind.PUB_INVOKE, at) for at in range(1, 9)], NODES)
    assert rows_of(layout, "p0") == [(0, 8)]
    assert label_of(layout.marks[0]) == "8 published (q0)"


@pytest.mark.parametrize(
    "between",
    [
        message(4.5, "p0", Kind.CONFIRM, 100),
        fault(4.5, "n2", begins=DOWN),
        message(4.5, "p0", Kind.PUB_INVOKE, 100, queue=1),
        log(4.5, "", kind="violation"),
    ],
    ids=["another kind", "a fault elsewhere", "another queue", "a violation"],
)
def test_what_comes_between_ends_a_mark(between: Happening) -> None:
    layout = lay_out([message(1, "p0", Kind.PUB_INVOKE, 1), between, message(5, "p0", Kind.PUB_INVOKE, 2)], NODES)
    publishes = [mark for mark in layout.marks if mark.happenings[0].text in ("p0 1", "p0 2")]
    assert len(publishes) == 2


def test_what_is_much_later_is_another_mark() -> None:
    layout = lay_out([message(1, "p0", Kind.PUB_INVOKE, 1), message(900, "p0", Kind.PUB_INVOKE, 2)], NODES)
    assert [count for _, count in rows_of(layout, "p0")] == [1, 1]


def test_the_messages_of_a_violation_stand_alone_and_are_followed_from_lane_to_lane() -> None:
    key: AttemptKey = (0, 0, 2, 1)
    told = [message(seq, "p0", Kind.PUB_INVOKE, seq) for seq in (1, 2, 3)] + [message(7, "c0", Kind.DELIVER, 2)]
    layout = lay_out(told, NODES, [key])
    assert [mark.is_concerned for mark in layout.marks] == [False, True, False, True]
    assert [mark.lane for mark in layout.paths[key]] == ["p0", "c0"]
    assert page(layout).count('<polyline class="path"') == 1


# --- spans


def spans_of(*happenings: Happening) -> list[tuple[str, str, int, int, int]]:
    return [
        (span.name, span.lane, span.first_row, span.last_row, span.column) for span in lay_out(happenings, NODES).spans
    ]


def test_a_span_lasts_from_its_begin_to_its_end_or_to_the_end_of_all() -> None:
    begun, ended = fault(1, "n1", begins=DOWN), fault(10, "n1", ends=DOWN)
    assert spans_of(begun, log(5, "n2"), ended) == [(DOWN, "n1", 0, 2, 0)]
    assert spans_of(begun, log(5, "n2")) == [(DOWN, "n1", 0, 1, 0)]
    assert spans_of(begun, fault(5, "", ends=EVERYTHING), log(9, "n2")) == [(DOWN, "n1", 0, 1, 0)]


def test_an_end_without_a_begin_is_nothing_and_a_second_begin_neither() -> None:
    assert spans_of(fault(1, "n1", ends=DOWN)) == []
    assert spans_of(fault(1, "n1", begins=DOWN), fault(5, "n1", begins=DOWN)) == [(DOWN, "n1", 0, 1, 0)]


def test_who_is_down_is_paused_no_longer() -> None:
    spans = spans_of(fault(1, "n1", begins=PAUSED), fault(5, "n1", begins=DOWN), log(9, "n2"))
    assert spans == [(PAUSED, "n1", 0, 1, 0), (DOWN, "n1", 1, 2, 1)]


def test_links_lie_beside_one_another_and_a_free_column_is_used_again() -> None:
    one, other, third = "cut n1 -> n2", "cut n2 -> n1", "cut n1 -> n3"
    spans = spans_of(
        fault(1, "", begins=one),
        fault(5, "", begins=other),
        fault(9, "", ends=one),
        fault(13, "", begins=third),
    )
    assert spans == [(one, "", 0, 2, 0), (other, "", 1, 3, 1), (third, "", 3, 3, 0)]


# --- the page


class Page(HTMLParser):
    """What a page would load, what it shows, and whether its elements close."""

    VOID = frozenset({"meta", "rect", "circle", "line", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            self.ids += [value or ""] if name == "id" else []
            is_within = name == "href" and (value or "").startswith("#")
            self.links += [(value or "")[1:]] if is_within else []
            if name in {"src", "href", "srcset", "style"} and not is_within:
                self.loads.append(f"{tag} {name}")
        self.loads += [tag] if tag in {"script", "link", "iframe", "img", "object"} else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(layout: Layout, **options: object) -> str:
    described: dict[str, object] = {"title": "Seed 1", "violations": (), "replay": "warren sim --replay 1", **options}
    return render_lanes(layout, **described)  # type: ignore[arg-type]


def test_the_page_loads_nothing_and_every_mark_leads_to_its_line() -> None:
    told = [log(at * 10, lane, kind="step") for at, lane in enumerate(["n1", "n2", "p0", ""] * 40)]
    text = page(lay_out(told, NODES))
    read = Page(text)
    assert (read.loads, read.open) == ([], [])
    assert "url(" not in text
    assert "http" not in text
    assert len(read.links) == len(told)
    assert set(read.links) == set(read.ids)
    assert text.count("<svg") == -(-len(told) // ROWS_PER_STRIP)
    assert text.count('<text class="head" x="76"') == text.count("<svg"), "the lanes are named in every strip"


def test_it_has_colours_for_the_dark_and_a_form_for_paper() -> None:
    text = page(lay_out([log(1, "n1")], NODES))
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_pointing_at_a_mark_shows_its_lines_of_the_log() -> None:
    told = [message(at, "p0", Kind.PUB_INVOKE, at) for at in range(1, 30)]
    titles = [unescape(title) for title in re.findall(r"<title>(.*?)</title>", page(lay_out(told, NODES)), re.DOTALL)]
    lines = titles[-1].splitlines()
    assert lines[0] == told[0].line
    assert lines[-1] == "... and 17 more"


def test_whatever_is_said_is_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    told = [
        log(1, evil, evil, evil),
        fault(5, "", begins=evil),
        fault(9, "n1", begins=evil),
        log(20, "n1", evil, "step"),
    ]
    text = page(lay_out(told, [*NODES, evil]), title=evil, violations=[evil], replay=evil, facts={evil: evil})
    assert "<script>" not in text
    read = Page(text)
    assert (read.loads, read.open) == ([], [])


def test_labels_fit_in_their_lanes() -> None:
    layout = lay_out([log(1, "n1", "x" * 200, "step"), message(9, "c0", Kind.DELIVER, 12_345_678)], NODES)
    assert all(len(label_of(mark)) <= LABEL_LETTERS for mark in layout.marks)


# --- a run


def test_a_run_is_drawn_with_everything_that_its_replay_says(tmp_path: Path) -> None:
    tried = schedule(publish(100), (200, "consume", 0, 0), (500, "kill", "n1"), (900, "start", "n1"))
    lines: list[str] = []
    outcome = run_schedule(tried, on_line=lines.append)
    path = tmp_path / "deep" / "run.html"
    drawn = draw_run(tried, path, "warren sim --replay 1")
    assert drawn.fingerprint == outcome.fingerprint == run_schedule(tried).fingerprint, (
        "whoever listens changes nothing"
    )
    text = path.read_text()
    logged = [unescape(line) for line in re.findall(r'<li id="l\d+" class="[^"]*">(.*?)</li>', text)]
    assert logged == lines
    assert any("elects" in line for line in lines)
    assert any("p0 publishes 0:1 of q0" in line for line in lines)
    assert text.count('class="span down"') >= 1
    assert Page(text).open == []

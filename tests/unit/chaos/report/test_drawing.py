"""Where things are on a picture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.report.drawing import BAR_WIDTH_MIN, Bar, Scale, bars, count, curve, duration, round_up, rows_of

ACROSS = Scale(0, 100, 0, 1000)
UP = Scale(0, 10, 200, 0)


def test_values_have_places_and_stay_on_the_picture() -> None:
    assert [ACROSS.place(value) for value in (-5, 0, 33.333, 100, 900)] == [0, 0, 333.3, 1000, 1000]
    assert UP.place(2.5) == 150


def test_equal_factors_are_equally_far() -> None:
    scale = Scale(1, 1000, 0, 300, is_log=True)
    assert [scale.place(value) for value in (0, 1, 10, 100, 1000)] == [0, 0, 100, 200, 300]
    assert scale.ticks(99) == [1, 10, 100, 1000]


@pytest.mark.parametrize(
    ("low", "high", "wanted", "ticks"),
    [
        (0, 100, 5, [0, 20, 40, 60, 80, 100]),
        (3, 17, 3, [5, 10, 15]),
        (0, 0.7, 7, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
        (0, 30, 4, [0, 10, 20, 30]),
    ],
)
def test_ticks_are_round(low: float, high: float, wanted: int, ticks: list[float]) -> None:
    assert Scale(low, high, 0, 1).ticks(wanted) == ticks


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 20))
def test_there_are_about_as_many_ticks_as_wanted_and_all_on_the_scale(low: float, length: float, wanted: int) -> None:
    scale = Scale(low, low + length, 0, 1)
    ticks = scale.ticks(wanted)
    assert len(ticks) <= wanted + 1
    assert all(scale.low - length / 1e6 <= tick <= scale.high + length / 1e6 for tick in ticks)


def test_a_line_is_broken_where_nothing_is_known() -> None:
    points = [(0, 10.0), (10, 5.0), (20, None), (30, 0.0), (40, 0.0)]
    assert curve(points, ACROSS, UP) == "M0 0 L100 100 M300 200 L400 200"
    assert curve([], ACROSS, UP) == ""


def test_bars_that_meet_are_below_each_other() -> None:
    drawn = list(bars([(0, 20, "a"), (10, 30, "b"), (25, 40, "c"), (50, 50, "d")], ACROSS))
    assert drawn == [
        Bar(0, 200, 0, "a"),
        Bar(100, 200, 1, "b"),
        Bar(250, 150, 0, "c"),
        Bar(500, BAR_WIDTH_MIN, 0, "d"),
    ]
    assert rows_of(drawn) == 2
    assert rows_of([]) == 0


@pytest.mark.parametrize(
    ("value", "up"), [(0, 1), (0.4, 1), (1, 1), (1.1, 2), (4, 5), (5, 5), (730, 1000), (1000, 1000)]
)
def test_the_end_of_an_axis_is_round(value: float, up: float) -> None:
    assert round_up(value) == up


@pytest.mark.parametrize(
    ("value_us", "text"),
    [(0, "0"), (850, "850 us"), (12_345, "12 ms"), (999_600, "1 s"), (3_400_000, "3.4 s"), (60_000_000, "1 min"),
     (125_000_000, "2 min 5 s"), (59_940_000, "59.9 s"), (59_960_000, "1 min")],
)  # fmt: skip
def test_durations(value_us: float, text: str) -> None:
    assert duration(value_us) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (950, "950"), (12_000, "12 k"), (3_400_000, "3.4 M"), (999_600, "1 M")]
)
def test_counts(value: float, text: str) -> None:
    assert count(value) == text

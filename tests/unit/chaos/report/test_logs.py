"""Lines of logs by their times."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chaos.report.logs import AROUND_US, LINES_MAX, lines_near, time_us

NINE_O_CLOCK_US = 1_790_067_600_000_000


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("line", "behind_us"),
    [
        ("2026-09-22 09:00:00.000 [INFO] cluster: it begins", 0),
        ("2026-09-22 09:00:00.034910+00:00 [notice] <0.227.0> Logging", 34_910),
        ("2026-09-22T11:00:00,5+02:00 x", 500_000),
        ("2026-09-22 09:00:01.25Z x", 1_250_000),
        ("2026-09-22 08:30:00.000-0030 x", 0),
    ],
)
def test_times_as_nodes_write_them(line: str, behind_us: int) -> None:
    assert time_us(line) == NINE_O_CLOCK_US + behind_us


@pytest.mark.parametrize("line", ["", "Traceback", "  File", "2026-99-22 09:00:00.000 x", "at 2026-09-22 09:00:00.000"])
def test_a_line_without_a_time_has_none(line: str) -> None:
    assert time_us(line) is None


def log(directory: Path, name: str, *behind_ms: int) -> tuple[str, Path]:
    path = directory / name
    lines = [f"2026-09-22 09:00:{ms // 1000:02d}.{ms % 1000:03d} [INFO] line {ms}\n  and a trace\n" for ms in behind_ms]
    path.write_text("".join(lines), encoding="utf-8")
    return name, path


def test_lines_of_all_nodes_by_time(tmp_path: Path) -> None:
    around_ms = AROUND_US // 1000
    logs = [log(tmp_path, "n1", 0, 4_000, 5_000 + around_ms + 1), log(tmp_path, "n2", 3_999, 5_000 + around_ms)]
    found = lines_near([*logs, ("n3", tmp_path / "gone")], [NINE_O_CLOCK_US + 4_000_000, NINE_O_CLOCK_US + 5_000_000])
    assert [(name, line.rpartition(" ")[2]) for name, line in found] == [
        ("n2", "3999"),
        ("n1", "4000"),
        ("n2", str(5_000 + around_ms)),
    ]


def test_of_many_lines_those_nearest_to_the_last_moment(tmp_path: Path) -> None:
    logs = [log(tmp_path, "n1", *range(0, 20_000, 10))]
    found = lines_near(logs, [NINE_O_CLOCK_US, NINE_O_CLOCK_US + 10_000_000])
    numbers = [int(line.rpartition(" ")[2]) for _, line in found]
    assert len(numbers) == LINES_MAX
    assert numbers == sorted(numbers)
    assert max(abs(number - 10_000) for number in numbers) <= LINES_MAX // 2 * 10


def test_without_a_moment_nothing_is_near(tmp_path: Path) -> None:
    assert lines_near([log(tmp_path, "n1", 0)], []) == []

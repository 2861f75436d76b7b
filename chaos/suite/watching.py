"""Telling whoever sits at a terminal how a run goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Event, Thread

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Column, Table

from chaos.conduct.conductor import Conductor
from chaos.judge.findings import VIOLATIONS
from chaos.judge.verdict import Verdict
from chaos.judge.windows import WINDOW_US_MIN
from chaos.report.drawing import duration
from chaos.suite.results import Result, Summary

_INTERVAL_S = 0.5
#: Told while a run goes on, in this order.
_PROGRESS = ("confirmed", "outstanding", "delivered", "redelivered", "failovers")
STYLES: Mapping[Verdict | None, str] = {
    Verdict.PASS: "bold green",
    Verdict.EXPECTED_LOSS: "bold yellow",
    Verdict.FAIL: "bold red",
    Verdict.VACUOUS: "bold yellow",
    Verdict.UNKNOWN: "bold yellow",
    None: "dim",
}


class TerminalWatcher:
    """`chaos.suite.running.Watcher`: a line for what happens, and one that changes while it does."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._conductor: Conductor | None = None
        self._status: Status | None = None
        self._is_over = Event()
        self._thread: Thread | None = None

    def begin(self, title: str) -> None:
        """A run begins."""
        self._began_s = time.monotonic()
        self._console.print(title, highlight=False)

    def say(self, text: str) -> None:
        passed_s = time.monotonic() - self._began_s
        self._console.print(f"[dim]{passed_s:6.1f} s[/dim]  {escape(text)}", highlight=False)

    def follow(self, conductor: Conductor | None) -> None:
        if not self._console.is_terminal:
            return
        if conductor is not None:
            self._conductor = conductor
            self._is_over.clear()
            self._status = self._console.status("")
            self._status.start()
            self._thread = Thread(target=self._look, daemon=True)
            self._thread.start()
        elif self._thread is not None and self._status is not None:
            self._is_over.set()
            self._thread.join()
            self._status.stop()
            self._thread = self._status = None

    def _look(self) -> None:
        while not self._is_over.wait(_INTERVAL_S):
            assert self._conductor is not None, "somebody is followed"
            assert self._status is not None, "it is shown"
            self._status.update(progress_line(self._conductor.progress()))


def progress_line(progress: Mapping[str, int]) -> str:
    """In one line."""
    told = [f"{progress[name]:,} {name}" for name in _PROGRESS if name in progress]
    return ", ".join(told) or "the cluster begins"


def show_result(console: Console, result: Result) -> None:
    """What a run came to: at the end of it."""
    style = STYLES[result.verdict]
    console.print(f"[{style}]{result.verdict or 'SKIPPED'}[/{style}]  {result.scenario} {escape(result.title)}")
    for reason in result.reasons:
        console.print(f"  {escape(reason)}", highlight=False)
    if result.verdict is None:
        return
    risked = ", ".join(f"{number:,} {name}" for name, number in result.at_risk.items() if number)
    console.print(f"  at risk: {risked or 'nothing'}", highlight=False)
    if result.longest_gap_us:
        console.print(f"  longest without service: {gaps_in_words(result.longest_gap_us)}", highlight=False)
    for failover in result.failovers:
        console.print(f"  failover: {escape(failover)}", highlight=False)
    table = Table("finding", Column("count", justify="right"), box=None, padding=(0, 2), show_header=False)
    for name, count in sorted(result.counts.items(), key=lambda each: (each[0] not in VIOLATIONS, each[0])):
        is_bad = name in VIOLATIONS
        table.add_row(f"[red]{name}[/red]" if is_bad else f"[dim]{name}[/dim]", f"{count:,}")
    if table.row_count:
        console.print(table)


def gaps_in_words(longest_us: Mapping[str, int]) -> str:
    """By service; what is shorter than the shortest that is told has no length."""
    least = duration(WINDOW_US_MIN)
    return ", ".join(
        f"{service} {duration(gap_us) if gap_us else f'less than {least}'}" for service, gap_us in longest_us.items()
    )


def show_summary(console: Console, summary: Summary) -> None:
    """What many runs came to together."""
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(summary.verdicts.items()))
    skipped = f", {summary.skipped} skipped" if summary.skipped else ""
    console.print(f"{summary.runs} runs: {told or 'none'}{skipped}; {summary.took_s:.0f} s", highlight=False)
    for what, bound in summary.bounds.items():
        console.print(f"  {what}: at most {bound:.2g} (95 % sure)", highlight=False)

"""``warren chaos watch``: what a run shows while it goes on, and its first violation as soon as it is seen."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from chaos.conduct.sheet import Sheet, State, read_sheet
from chaos.harm.journal import is_in_use
from chaos.judge.facts_file import write_facts
from chaos.judge.findings import VIOLATIONS, Finding, RunFacts
from chaos.judge.judgement import Judgement, messages_told
from chaos.record.schema import Event
from chaos.report.page import clock
from chaos.report.stories import story
from chaos.spark_judge.evidence import judge_run
from chaos.spark_judge.session import open_session
from chaos.spark_judge.watching import Glimpse, Watch
from chaos.suite.results import Result
from chaos.suite.running import conclude

#: Between two looks; a look that took longer is followed by as long a pause.
PAUSE_S = 2.0


class Disagreement(Exception):
    """The stream and the judge of the whole record found different things: a defect of the laboratory."""


def watch_run(directory: Path, console: Console, master_url: str | None = None) -> Result:
    """Until the run is over, and judged. Raises `NoRun`."""
    sheet = read_sheet(directory)
    console.print(f"[bold]{sheet.scenario}[/bold] {escape(sheet.title)}, seed {sheet.seed}", highlight=False)
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="warren-watch-") as work,
        open_session(master_url, is_small=True) as spark,
        Watch(spark, _uri(directory), Path(work).as_uri(), lambda: facts_of(directory)) as watch,
    ):
        glimpse = _follow(directory, watch, console)
        sheet = read_sheet(directory)
        judgement = judge_run(spark, _uri(directory), _uri(write_facts(directory, sheet.facts())))
    if glimpse is not None:
        compare(glimpse, judgement)
    return conclude(directory, sheet, judgement, time.monotonic() - began_s)


def compare(glimpse: Glimpse, judgement: Judgement) -> None:
    """Of a run that is over. Raises `Disagreement`."""
    seen = (glimpse.rows, glimpse.messages, dict(glimpse.counts), glimpse.incomplete)
    judged = (judgement.rows, judgement.messages, dict(judgement.counts), judgement.incomplete)
    if seen != judged:
        raise Disagreement(f"the stream saw {seen}, and the record shows {judged}: this is a defect, please report it")


def facts_of(directory: Path) -> RunFacts:
    """As they are known by now."""
    return read_sheet(directory).facts()


def is_over(directory: Path) -> bool:
    """Nobody will add anything: it came to its end, or whoever conducted it is gone."""
    return read_sheet(directory).state is not State.RUNNING or not is_in_use(directory)


def _uri(path: Path) -> str:
    return path.resolve().as_uri()


def _follow(directory: Path, watch: Watch, console: Console) -> Glimpse | None:
    """The last look, at all that there is."""
    has_told = False
    while True:
        # In this order: what was added before it was over is taken.
        over = is_over(directory)
        if over:
            watch.take_all()
        watch.check()
        began_s = time.monotonic()
        glimpse = watch.look()
        if glimpse is not None:
            console.print(line(glimpse), highlight=False)
            if glimpse.violations and not has_told:
                has_told = True
                tell_first(glimpse, watch.rows_of, read_sheet(directory), console)
        if over:
            return glimpse
        time.sleep(max(PAUSE_S, time.monotonic() - began_s))


def line(glimpse: Glimpse) -> str:
    """In one line."""
    risks = ", ".join(f"{count:,} {what}" for what, count in glimpse.at_risk.items() if count)
    found = ", ".join(f"{count:,} {name}" for name, count in glimpse.violations.items())
    return (
        f"{glimpse.confirmed:,} confirmed, {glimpse.delivered:,} delivered; open: {risks or 'nothing'}; "
        f"{f'[red]{found}[/red]' if found else '[green]no violation[/green]'}"
    )


def tell_first(glimpse: Glimpse, rows_of: Callable[[int], list[Event]], sheet: Sheet, console: Console) -> None:
    """The evidence for one of the violations: everything that is known of its message."""
    name = min(glimpse.violations)
    console.print(f"[bold red]{name}[/bold red]: the first of {glimpse.violations[name]:,}")
    told = messages_told({name: glimpse.examples[name]})
    if not told:
        finding = glimpse.examples[name][0]
        console.print(f"  row {finding.event} of process {finding.process}", highlight=False)
        return
    findings: list[Finding] = [
        finding
        for each, found in glimpse.examples.items()
        if each in VIOLATIONS
        for finding in found
        if finding.message == told[0]
    ]
    for deed in story(told[0], rows_of(told[0]), findings, sheet).deeds:
        mark = "[bold]>[/bold]" if deed.is_finding else " "
        console.print(f"{mark} {clock(deed.t_lo_us)}  {deed.who}  {escape(deed.text)}", highlight=False)

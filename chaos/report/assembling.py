"""Everything that is on the page, of the run's sheet and its judgement. No record is needed."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from chaos.conduct.sheet import Sheet
from chaos.judge.figures import Figures
from chaos.judge.findings import Finding
from chaos.judge.judgement import Judgement, messages_told
from chaos.judge.latency import quantile_us
from chaos.judge.ledger import Failover, FaultTime, Row, ledger
from chaos.judge.verdict import Judged
from chaos.judge.windows import Service, Span, Window, windows
from chaos.record.kinds import Heir, Kind
from chaos.record.message_key import any_attempt
from chaos.record.schema import Event
from chaos.report.drawing import duration
from chaos.report.logs import lines_near
from chaos.report.model import Depth, Lane, Mark, Moment, Report, Story
from chaos.report.stories import HEIRS, fault_in_words, story

#: Shorter times without a channel are what every reconnecting client has.
CUT_OFF_US_MIN = 100_000
#: What is at risk when a fault begins, as a state that it meets.
STATES: Mapping[str, str] = {
    "stored": "messages stored",
    "held": "deliveries held",
    "outstanding": "publishes under way",
    "unsynchronised": "mirrors that lack something",
    "unserved": "queues without a master",
}


def assemble(
    sheet: Sheet, judgement: Judgement, judged: Judged, found: Sequence[Window],
    files: Mapping[str, str] | None = None, directory: Path | None = None,
) -> Report:  # fmt: skip
    """``found``: see `windows_of`. ``directory``: of the run, in which logs of nodes are looked for; without it stories
    quote none."""
    figures = judgement.figures
    return Report(
        sheet=sheet,
        judged=judged,
        counts=judgement.counts,
        places={str(place): count for place, count in judgement.places.items()},
        moments=moments_of(figures),
        depths=_depths(sheet, figures),
        marks=sorted(_marks(sheet, figures, found), key=lambda mark: mark.begin_us),
        windows=found,
        ledger=ledger_of(figures, found),
        coverage=coverage_of(figures),
        stories=_stories(sheet, judgement, directory),
        replay=sheet.replay,
        files=files or {},
    )


def windows_of(figures: Figures) -> list[Window]:
    """Times without service, by their beginning."""
    wanting = list(_consuming(figures))
    return sorted(
        (window for queue, buckets in figures.buckets.items() for window in windows(queue, buckets, wanting)),
        key=lambda window: (window.begin_us, window.queue, window.service),
    )


def _consuming(figures: Figures) -> Iterator[Span]:
    """When the run's consumers wanted deliveries."""
    since_us: int | None = None
    for event in _of(figures, Kind.CONSUMING):
        if event.number and since_us is None:
            since_us = event.t_lo_us
        elif not event.number and since_us is not None:
            yield Span(since_us, event.t_hi_us)
            since_us = None
    if since_us is not None:
        yield Span(since_us)


def ledger_of(figures: Figures, found: Sequence[Window]) -> list[Row]:
    """A row for each promotion."""
    failovers = [
        Failover(event.queue, event.epoch, event.node, event.t_lo_us, event.t_hi_us)
        for event in _of(figures, Kind.PROMOTED)
    ]
    synchronised: dict[int, list[int]] = defaultdict(list)
    for event in _of(figures, Kind.SYNC_END):
        synchronised[event.queue].append(event.t_hi_us)
    return ledger(failovers, faults_of(figures), found, figures.buckets, synchronised)


def faults_of(figures: Figures) -> list[FaultTime]:
    """By their beginning."""
    ends = {event.fault: event.t_hi_us for event in _of(figures, Kind.FAULT_END)}
    return [
        FaultTime(event.fault, event.t_lo_us, ends.get(event.fault), _detail(event).get("at_risk", {}))
        for event in _of(figures, Kind.FAULT_BEGIN)
    ]


def coverage_of(figures: Figures) -> dict[str, dict[str, int]]:
    """How often a fault of a kind met a state."""
    coverage: dict[str, dict[str, int]] = {}
    for event in _of(figures, Kind.FAULT_BEGIN):
        detail = _detail(event)
        met = coverage.setdefault(str(detail.get("type", "unknown")), dict.fromkeys(STATES.values(), 0))
        for name, state in STATES.items():
            met[state] += bool(detail.get("at_risk", {}).get(name))
    return coverage


def moments_of(figures: Figures) -> list[Moment]:
    """All queues together, every step from the first to the last; none if nothing was published."""
    length_us = figures.step_us
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for buckets in figures.buckets.values():
        for bucket in buckets:
            of_step = counts[bucket.begin_us // length_us]
            of_step["confirms"] += bucket.confirms
            of_step["deliveries"] += bucket.deliveries
            of_step["repeats"] += bucket.repeats
    if not counts:
        return []
    first, last = figures.begin_us // length_us, figures.end_us // length_us
    return [
        Moment(
            step * length_us,
            counts[step]["confirms"],
            counts[step]["deliveries"],
            counts[step]["repeats"],
            *(quantile_us(figures.latencies.get(step, {}), share) for share in (0.5, 0.99, 1.0)),
        )
        for step in range(first, last + 1)
    ]


def _depths(sheet: Sheet, figures: Figures) -> dict[str, list[Depth]]:
    """The longest of each step."""
    length_us = figures.step_us
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for event in _of(figures, Kind.DEPTH):
        of_queue, step = found[_queue(sheet, event.queue)], event.t_hi_us // length_us
        of_queue[step] = max(of_queue.get(step, 0), event.number)
    return {
        name: [Depth(step * length_us, messages) for step, messages in sorted(steps.items())]
        for name, steps in found.items()
    }


# --- marks


def _marks(sheet: Sheet, figures: Figures, found: Sequence[Window]) -> Iterator[Mark]:
    last_us = max([figures.end_us, *(event.t_hi_us for event in figures.notices)])
    yield from _phases(figures, last_us)
    ends = {fault.number: fault.end_us for fault in faults_of(figures)}
    for event in _of(figures, Kind.FAULT_BEGIN):
        yield Mark(Lane.FAULTS, event.t_lo_us, ends[event.fault] or last_us, fault_in_words(event))
    for event in _of(figures, Kind.PROMOTED):
        who = f"n{event.node}" if event.node else "unseen"
        text = f"{_queue(sheet, event.queue)}: {who}, epoch {event.epoch}{HEIRS[Heir(event.number)]}"
        yield Mark(Lane.PROMOTIONS, event.t_lo_us, event.t_hi_us, text)
    for window in found:
        lane = Lane.NO_PUBLISH if window.service is Service.PUBLISH else Lane.NO_CONSUME
        text = f"{_queue(sheet, window.queue)}: {duration(window.length_us)}"
        yield Mark(lane, window.begin_us, window.end_us, text)
    words = {
        Kind.MIRROR_LEFT: "left",
        Kind.SYNC_BEGIN: "begins to be filled",
        Kind.SYNC_CANCELLED: "is filled no further",
        Kind.SYNC_END: "has everything",
    }
    for event in _of(figures, *words):
        text = f"{_queue(sheet, event.queue)}: n{event.node} {words[Kind(event.kind)]}"
        yield Mark(Lane.MIRRORS, event.t_lo_us, event.t_hi_us, text)
    yield from _of_clients(sheet, figures, last_us)


def _phases(figures: Figures, last_us: int) -> Iterator[Mark]:
    phases = list(_of(figures, Kind.PHASE))
    for phase, following in zip_longest(phases, phases[1:]):
        end_us = last_us if following is None else following.t_lo_us
        yield Mark(Lane.PHASES, phase.t_lo_us, max(end_us, phase.t_lo_us), phase.detail)


def _of_clients(sheet: Sheet, figures: Figures, last_us: int) -> Iterator[Mark]:
    blocked: dict[tuple[int, int], int] = {}
    for event in figures.notices:
        who = _who(sheet, event.process)
        if event.kind == Kind.STALL:
            yield Mark(Lane.STALLS, event.t_lo_us, event.t_hi_us, f"{who} stood still")
        elif event.kind == Kind.CHANNEL_OPEN and event.number >= CUT_OFF_US_MIN:
            text = f"{who} without a channel for {duration(event.number)}"
            yield Mark(Lane.CLIENTS, event.t_hi_us - event.number, event.t_hi_us, text)
        elif event.kind == Kind.BLOCKED:
            blocked.setdefault((event.process, event.channel), event.t_lo_us)
        elif event.kind in (Kind.UNBLOCKED, Kind.CHANNEL_OVER):
            since_us = blocked.pop((event.process, event.channel), None)
            if since_us is not None:
                yield Mark(Lane.CLIENTS, since_us, event.t_hi_us, f"{who} was blocked")
    for (process, _), since_us in blocked.items():
        yield Mark(Lane.CLIENTS, since_us, last_us, f"{_who(sheet, process)} was blocked")


# --- stories


def _stories(sheet: Sheet, judgement: Judgement, directory: Path | None) -> list[Story]:
    told = []
    rows = [*judgement.told, *judgement.figures.notices]
    for message in messages_told(judgement.examples):
        findings = [
            finding
            for found in judgement.examples.values()
            for finding in found
            if finding.message and any_attempt(finding.message) == any_attempt(message)
        ]
        logs = _logs(sheet, directory, _moments_of(judgement.told, message, findings))
        told.append(story(message, rows, findings, sheet, logs))
    return told


def _moments_of(rows: Iterable[Event], message: int, findings: Sequence[Finding]) -> list[int]:
    """When its findings showed; when it was last seen, if they show in nothing."""
    own = [event for event in rows if any_attempt(event.message) == any_attempt(message)]
    named = {(finding.process, finding.event) for finding in findings}
    shown = [event.t_hi_us for event in own if (event.process, event.event) in named]
    return [*shown, *(event.t_hi_us for event in own[-1:])]


def _logs(sheet: Sheet, directory: Path | None, moments_us: Sequence[int]) -> list[tuple[str, str]]:
    if directory is None:
        return []
    logs = [(str(node["name"]), directory / str(node["log"])) for node in sheet.nodes if node.get("log")]
    return lines_near(logs, moments_us)


# --- small things


def _of(figures: Figures, *kinds: Kind) -> Iterator[Event]:
    return (event for event in figures.notices if event.kind in kinds)


def _detail(event: Event) -> dict[str, Any]:
    found = json.loads(event.detail) if event.detail else {}
    return found if isinstance(found, dict) else {}


def _queue(sheet: Sheet, queue: int) -> str:
    return sheet.queues[queue - 1].name if 0 < queue <= len(sheet.queues) else f"queue {queue}"


def _who(sheet: Sheet, process: int) -> str:
    role = next((entry.role for entry in sheet.roster if entry.process == process), "process")
    return f"{role} {process}"

"""Judging small records in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from chaos.conduct.sheet import Sheet
from chaos.judge import judgement_file
from chaos.judge.figures import by_time, figures_of
from chaos.judge.findings import LOSSES, Finding, Name, RunFacts
from chaos.judge.judgement import EXAMPLES_MAX, Judgement, messages_told
from chaos.judge.reference import Reference
from chaos.record.message_key import any_attempt
from chaos.record.reading import read_events
from chaos.record.schema import Event


class PlainJudge:
    """`chaos.suite.running.Judge`. All of the record is in memory."""

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def __call__(self, directory: Path, sheet: Sheet) -> Judgement:
        judgement = judgement_by_reference(list(read_events(directory)), sheet.facts())
        judgement_file.write(judgement, directory)
        return judgement


def judgement_by_reference(events: Sequence[Event], facts: RunFacts) -> Judgement:
    """Of the rows of a record."""
    reference = Reference(events, facts)
    findings = reference.findings()
    places = reference.places(finding for finding in findings if finding.name is Name.LOST)
    examples: dict[Name, list[Finding]] = {}
    for finding in findings:
        shown = examples.setdefault(finding.name, [])
        if len(shown) < EXAMPLES_MAX:
            shown.append(finding)
    told = {any_attempt(message) for message in messages_told(examples)}
    return Judgement(
        rows=len(events),
        messages=len({event.message for event in events if event.message}),
        unjudged_messages=0,
        counts=Counter(finding.name for finding in findings),
        places=Counter(places.values()),
        examples=examples,
        pairs_compared=reference.pairs_compared,
        incomplete=frozenset(reference.incomplete),
        figures=figures_of(events, {finding.message for finding in findings if finding.name in LOSSES}),
        told=sorted((event for event in events if event.message and any_attempt(event.message) in told), key=by_time),
    )

"""A judgement as JSON: what a report, and everybody behind the judge, is made of. No record is needed for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from chaos.judge.figures import Figures
from chaos.judge.findings import Finding, Name, Place
from chaos.judge.judgement import Judgement
from chaos.judge.windows import Bucket
from chaos.record.schema import Event
from chaos.whole_file import write_whole

FILE_NAME = "judgement.json"
FORMAT = 1


class NoJudgement(Exception):
    """There is none in the directory, or it is of another release; the text says so."""


def document_of(judgement: Judgement) -> dict[str, Any]:
    """As JSON has it."""
    figures = judgement.figures
    return {
        "format": FORMAT,
        "rows": judgement.rows,
        "messages": judgement.messages,
        "unjudged_messages": judgement.unjudged_messages,
        "counts": {str(name): count for name, count in judgement.counts.items()},
        "places": {str(place): count for place, count in judgement.places.items()},
        "examples": {str(name): [each[1:] for each in found] for name, found in judgement.examples.items()},
        "pairs_compared": judgement.pairs_compared,
        "incomplete": sorted(judgement.incomplete),
        "begin_us": figures.begin_us,
        "end_us": figures.end_us,
        "buckets": {str(queue): [astuple(each) for each in found] for queue, found in figures.buckets.items()},
        "latencies": {str(step): sorted(bins.items()) for step, bins in figures.latencies.items()},
        "notices": list(figures.notices),
        "told": list(judgement.told),
    }


def text_of(judgement: Judgement) -> str:
    """What is in the file."""
    return json.dumps(document_of(judgement), separators=(",", ":"))


def judgement_of(document: Mapping[str, Any]) -> Judgement:
    """The judgement that `document_of` made it of."""
    return Judgement(
        rows=document["rows"],
        messages=document["messages"],
        unjudged_messages=document["unjudged_messages"],
        counts={Name(name): count for name, count in document["counts"].items()},
        places={Place(place): count for place, count in document["places"].items()},
        examples={
            Name(name): [Finding(Name(name), *each) for each in found] for name, found in document["examples"].items()
        },
        pairs_compared=document["pairs_compared"],
        incomplete=frozenset(document["incomplete"]),
        figures=Figures(
            document["begin_us"],
            document["end_us"],
            {int(queue): [Bucket(*each) for each in found] for queue, found in document["buckets"].items()},
            {int(step): dict(map(tuple, bins)) for step, bins in document["latencies"].items()},
            [Event(*each) for each in document["notices"]],
        ),
        told=[Event(*each) for each in document["told"]],
    )


def write(judgement: Judgement, directory: Path) -> None:
    """Whole, or not at all."""
    write_whole(directory / FILE_NAME, text_of(judgement))


def read(directory: Path) -> Judgement:
    """Raises `NoJudgement`."""
    path = directory / FILE_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise NoJudgement(f"{directory} has not been judged: there is no {FILE_NAME}") from None
    except ValueError:
        raise NoJudgement(f"{path} is no JSON") from None
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise NoJudgement(f"{path} is not of this release (format {FORMAT}): judge the run again")
    return judgement_of(document)

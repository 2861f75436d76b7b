"""A run as the journal of an experiment of the Chaos Toolkit, for whoever collects those.

The steady state is the verdict; the method are the run's phases, and faults as actions with their rollbacks.

Source: the Chaos Toolkit's journal (``chaos run --journal-path``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaos.conduct.sheet import Sheet, State
from chaos.judge.judgement import Judgement
from chaos.judge.verdict import Judged, Verdict
from chaos.record.kinds import Kind
from chaos.record.schema import Event
from chaos.report.stories import fault_in_words

FILE_NAME = "journal.json"
_HELD = frozenset({Verdict.PASS, Verdict.EXPECTED_LOSS})
_STATUS = {State.FINISHED: "completed", State.INTERRUPTED: "interrupted"}


def journal(sheet: Sheet, judgement: Judgement, judged: Judged) -> dict[str, Any]:
    """As JSON has it."""
    notices = judgement.figures.notices
    begin_us = min((event.t_lo_us for event in notices), default=judgement.figures.begin_us)
    end_us = max((event.t_hi_us for event in notices), default=judgement.figures.end_us)
    has_held = judged.verdict in _HELD
    probe = {
        "activity": {"type": "probe", "name": sheet.holds, "tolerance": str(Verdict.PASS)},
        "output": str(judged.verdict),
        "tolerance_met": has_held,
        "status": "succeeded",
    }
    return {
        "experiment": {
            "title": f"{sheet.scenario} {sheet.title}",
            "description": sheet.holds,
            "configuration": {"target": sheet.target, "seed": sheet.seed, "replay": sheet.replay},
            "method": [],
        },
        "start": _iso(begin_us),
        "end": _iso(end_us),
        "duration": (end_us - begin_us) / 1e6,
        "status": _STATUS.get(sheet.state, "failed"),
        # Nothing is said of a steady state that nobody knows.
        "deviated": judged.verdict is Verdict.FAIL,
        "steady_states": {
            "before": None,
            "after": {"steady_state_met": has_held, "probes": [probe]},
            "during": [],
        },
        "run": list(_actions(notices, end_us)),
        "rollbacks": [],
        "reasons": list(judged.reasons),
    }


def write(sheet: Sheet, judgement: Judgement, judged: Judged, directory: Path) -> None:
    """Into the run's directory."""
    text = json.dumps(journal(sheet, judgement, judged), indent=1)
    (directory / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def _actions(notices: Iterable[Event], end_us: int) -> Iterator[dict[str, Any]]:
    notices = list(notices)
    ends = {event.fault: event.t_hi_us for event in notices if event.kind == Kind.FAULT_END}
    for event in notices:
        if event.kind == Kind.FAULT_BEGIN:
            until_us = ends.get(event.fault, end_us)
            yield {
                "activity": {"type": "action", "name": fault_in_words(event)},
                "output": json.loads(event.detail) if event.detail else None,
                "start": _iso(event.t_lo_us),
                "end": _iso(until_us),
                "duration": (until_us - event.t_lo_us) / 1e6,
                "status": "succeeded",
            }


def _iso(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds")

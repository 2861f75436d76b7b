"""``run.json``: what must be known of a run besides its events.

It is written whole whenever something is added, and before the thing exists: a client process is in the roster before
it is begun, so one that dies at once is missed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from chaos.judge.findings import QueueFacts, RunFacts
from chaos.whole_file import write_whole

FILE_NAME = "run.json"
FORMAT = 2


class NoRun(Exception):
    """There is none in the directory, or it is not of this laboratory; the text says so."""


class State(StrEnum):
    """How far a run has come."""

    RUNNING = "running"
    #: All that was to be done was done, or has been found not to be possible (`Sheet.notes`).
    FINISHED = "finished"
    #: The laboratory, or the cluster as such, did not do what it had to: nothing is known of the promise.
    BROKEN = "broken"
    INTERRUPTED = "interrupted"


@dataclass(slots=True)
class RosterEntry:
    """One recording process."""

    process: int
    #: "conductor", "publisher" or "consumer".
    role: str
    #: Numbers of the publishers that it records for.
    publishers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class QueueEntry:
    """One queue; its index is its place, from 1."""

    name: str
    may_remove: bool
    is_drained: bool = False
    #: What was left in it at the end is in the record.
    is_known: bool = False


@dataclass(slots=True)
class Sheet:
    """Of one run."""

    run: str
    #: Its id, and what it says.
    scenario: str
    title: str
    holds: str
    target: str
    seed: int
    began_at: str
    nodes: list[dict[str, Any]] = field(default_factory=list)
    queues: list[QueueEntry] = field(default_factory=list)
    roster: list[RosterEntry] = field(default_factory=list)
    state: State = State.RUNNING
    #: Why it is broken.
    problem: str = ""
    #: What did not come to pass.
    not_reached: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: See `chaos.plan.reading.RISKS`: what was wanted to be at risk, and what was, as far as it is known without the
    #: record.
    wanted_at_risk: dict[str, int] = field(default_factory=dict)
    at_risk: dict[str, int] = field(default_factory=dict)
    loss_permitted: str = ""
    #: No time without service may be longer, see `chaos.judge.windows`; None: it is only measured.
    publish_gap_us_max: int | None = None
    consume_gap_us_max: int | None = None
    #: The command that does it again, from the same seed.
    replay: str = ""
    slack_us: int | None = None
    #: By the name of the phase.
    took_s: dict[str, float] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, run_directory: Path) -> None:
        """Whole, or not at all."""
        write_whole(run_directory / FILE_NAME, json.dumps(asdict(self), indent=1))

    def facts(self) -> RunFacts:
        """For a judge."""
        return RunFacts(
            {entry.process: frozenset(entry.publishers) for entry in self.roster},
            [QueueFacts(queue.may_remove, queue.is_drained, queue.is_known) for queue in self.queues],
            self.slack_us,
        )


def read_sheet(run_directory: Path) -> Sheet:
    """Raises `NoRun`."""
    path = run_directory / FILE_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise NoRun(f"{run_directory} holds no run: there is no {FILE_NAME}") from None
    except ValueError:
        raise NoRun(f"{path} is no JSON") from None
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise NoRun(f"{path} is not of a run of this laboratory (format {FORMAT})")
    values = dict(document)
    values["queues"] = [QueueEntry(**each) for each in document["queues"]]
    values["roster"] = [RosterEntry(**each) for each in document["roster"]]
    values["state"] = State(document["state"])
    return Sheet(**values)

"""``run.json``: what a stored run needs besides its events, so that anyone can check it again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos.scenarios.model import Expectation
from chaos.verdict import Outcome

FILE_NAME = "run.json"


class NoRunError(Exception):
    """The directory holds no run; the text says so."""


@dataclass(slots=True)
class RunFile:
    """Facts of one run."""

    run_id: str
    scenario: str
    seed: int
    #: Names by ``node_id`` and by ``queue_id``.
    nodes: list[str]
    queues: list[str]
    policy: dict[str, Any]
    expectation: Expectation
    #: Size of the workload.
    traffic: dict[str, Any]
    #: Command that repeats the run.
    replay: str
    started_at: str
    outcome: Outcome = Outcome.RUNNING
    #: Why it hung or broke.
    error: str | None = None
    duration_s: float | None = None
    #: Seconds from the end of the last step until the queue was empty everywhere.
    drain_s: float | None = None
    notes: list[str] = field(default_factory=list)

    def write(self, run_dir: Path) -> None:
        """Write whole or not at all."""
        document = asdict(self) | {"expectation": self.expectation.to_json()}
        unfinished = run_dir / f"{FILE_NAME}.unfinished"
        unfinished.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(run_dir / FILE_NAME)


def read_run_file(run_dir: Path) -> RunFile:
    """The facts of a stored run. Raises `NoRunError`."""
    try:
        document = json.loads((run_dir / FILE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NoRunError(f"{run_dir} holds no run: there is no {FILE_NAME}") from None
    document["expectation"] = Expectation.from_json(document["expectation"])
    document["outcome"] = Outcome(document["outcome"])
    return RunFile(**document)

"""What must be known of a run besides its events, as JSON has it: beside the record, in `FACTS_FILE`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from chaos.judge.findings import QueueFacts, RunFacts

FACTS_FILE = "facts.json"


def facts_document(facts: RunFacts) -> dict[str, object]:
    """As JSON has it."""
    return {
        "processes": {str(process): sorted(publishers) for process, publishers in facts.processes.items()},
        "queues": [asdict(queue) for queue in facts.queues],
        "slack_us": facts.slack_us,
    }


def write_facts(directory: Path, facts: RunFacts) -> Path:
    """Beside the record of a run; returns where."""
    path = directory / FACTS_FILE
    path.write_text(json.dumps(facts_document(facts)) + "\n", encoding="utf-8")
    return path


def facts_of(document: dict[str, object]) -> RunFacts:
    """The facts that `facts_document` made it of."""
    processes, queues, slack_us = document["processes"], document["queues"], document["slack_us"]
    assert isinstance(processes, dict)
    assert isinstance(queues, list)
    assert slack_us is None or isinstance(slack_us, int)
    return RunFacts(
        {int(process): frozenset(publishers) for process, publishers in processes.items()},
        [QueueFacts(**queue) for queue in queues],
        slack_us,
    )

"""The table of what the simulator found with each safeguard taken away: kept as data, and as a page to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.sim.ablation.catalogue import SAFEGUARDS
from chaos.sim.ablation.finding import Finding

PAGE_NAME = "ablation.md"
DATA_NAME = "ablation.json"

_INTRODUCTION = """\
# Safeguards, taken away one by one

Made by `make ablation` (`warren sim ablate`); not to be edited.

A simulator that finds nothing proves something only if it would find what is wrong. So each safeguard below is taken
away from the product for the time of a run (`chaos/sim/ablation`), and seeds of a scenario are run from 1 on until one
fails that does not fail with the safeguard in place (`warren sim --scenario list` tells what the scenarios are aimed
at). That schedule is shrunk by leaving out steps. What a safeguard does is argued where it is; here is what happens
without it.

*Seeds* is how many it took. *Steps* are those of the failing schedule, as drawn and as shrunk. *Caught by* is what the
judge said first: `invariant` and `contained mistake` are assertions (of a node, or of the simulator about a node), all
others are promises to clients and operators, seen from outside (`chaos/sim/judge.py`, `record_watch.py`,
`convergence.py`).
"""

_UNSEEN = """\
## Not found yet

These can be taken away by name (`warren sim ablate --safeguard NAME`), and are not gone through otherwise: no seed that
was run has shown them. Unit tests hold them.
"""


def read_findings(docs: Path) -> dict[str, dict[str, Any]]:
    """By name of the safeguard; those that there are not any more are left out."""
    path = docs / DATA_NAME
    kept: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return {name: kept[name] for name in SAFEGUARDS if name in kept}


def write_finding(docs: Path, finding: Finding) -> None:
    """Add one, or replace the one of before, and make the page anew."""
    kept = read_findings(docs)
    kept[finding.safeguard] = {key: value for key, value in finding._asdict().items() if key != "schedule"}
    in_order = {name: kept[name] for name in SAFEGUARDS if name in kept}
    (docs / DATA_NAME).write_text(json.dumps(in_order, indent=1) + "\n")
    (docs / PAGE_NAME).write_text(page(in_order))


def noticed_in_words(noticed: int, taken_away: int) -> str:
    """What came of it, in one sentence. All of them is what is wanted."""
    return f"{noticed} of {taken_away} removals of a safeguard were noticed by the simulator."


def page(findings: Mapping[str, Mapping[str, Any]]) -> str:
    """The table."""
    lines = [
        _INTRODUCTION,
        "| safeguard | protects | where | scenario | seeds | caught by | steps |",
        "|---|---|---|---|---|---|---|",
    ]
    expected = {name: safeguard for name, safeguard in SAFEGUARDS.items() if not safeguard.unseen_because}
    for name, safeguard in expected.items():
        found = findings.get(name)
        if found is None:
            seeds = caught = steps = "not run yet"
        elif not found["is_found"]:
            seeds, caught, steps = f"not in {found['seeds']}", "", ""
        else:
            seeds, steps = str(found["seeds"]), f"{found['steps']} → {found['steps_left']}"
            caught = str(found["said"]).replace("|", "\\|")
        where = f"`{safeguard.where}`"
        cells = (f"`{name}`: {safeguard.says}", safeguard.protects, where, safeguard.scenario or "plain")
        lines.append("| " + " | ".join((*cells, seeds, caught, steps)) + " |")
    seen = sum(bool(findings.get(name, {}).get("is_found")) for name in expected)
    lines += ["", noticed_in_words(seen, len(expected)), "", _UNSEEN]
    for name, safeguard in SAFEGUARDS.items():
        if safeguard.unseen_because:
            lines.append(f"- `{name}` ({safeguard.where}): {safeguard.says} {safeguard.unseen_because.capitalize()}.")
    return "\n".join(lines) + "\n"

"""A run, drawn: its schedule is run once more with somebody listening, and what happens becomes a page of lanes."""

from __future__ import annotations

from pathlib import Path

from chaos.sim.happenings import Happening
from chaos.sim.lane_page import render_lanes
from chaos.sim.lanes import lay_out
from chaos.sim.run import Outcome, run_schedule
from chaos.sim.schedule import Schedule, node_name


def draw_run(schedule: Schedule, path: Path, replay: str) -> Outcome:
    """Run a schedule and write its lane diagram. ``replay``: the command that shows the run again."""
    happenings: list[Happening] = []
    outcome = run_schedule(schedule, on_happening=happenings.append)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_of(schedule, outcome, happenings, replay), encoding="utf-8")
    return outcome


def page_of(schedule: Schedule, outcome: Outcome, happenings: list[Happening], replay: str) -> str:
    """The page. Pure."""
    personality = schedule.personality
    nodes = [node_name(number) for number in range(1, personality.nodes + 1)]
    concerned = [violation.key for violation in outcome.violations if violation.key is not None]
    facts = {
        "seed": schedule.seed,
        "steps": len(schedule.steps),
        "virtual seconds": f"{outcome.length_s:.3f}",
        "fingerprint": f"{outcome.fingerprint:08x}",
        "personality": personality,
    }
    return render_lanes(
        lay_out(happenings, nodes, concerned),
        title=f"Seed {schedule.seed}, {personality.nodes} nodes",
        violations=[str(violation) for violation in outcome.violations],
        replay=replay,
        facts=facts,
    )

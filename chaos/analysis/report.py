"""``report/index.html``: one file, no script, nothing loaded from anywhere. The verdict comes first."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.analysis.timeline import render_timeline
from chaos.run_file import RunFile

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #f3f4f6; --line: #d0d5dc; --muted: #5b6572;
  --good: #14713b; --bad: #b3261e; --odd: #8a5a00; --confirm: #1f5fbf; --deliver: #2f8f5b; --fault: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --paper: #14171c; --soft: #1d2229; --line: #363d47;
  --muted: #9aa5b3; --good: #5ccb8a; --bad: #ff8a80; --odd: #f0b94a; --confirm: #7db2ff; --deliver: #69d39a;
  --fault: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1120px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { font-size: 2.2rem; font-weight: 700; margin: .25rem 0; }
.good { color: var(--good); } .bad { color: var(--bad); } .odd { color: var(--odd); }
.muted { color: var(--muted); } code { background: var(--soft); padding: .1rem .35rem; border-radius: 4px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: .6rem; margin: 1rem 0; }
.card { background: var(--soft); border-radius: 8px; padding: .6rem .8rem; }
.card b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--muted); font-weight: 600; white-space: normal; vertical-align: bottom; }
svg { width: 100%; height: auto; background: var(--soft);
  border-radius: 8px; } svg text { font: 12px system-ui, sans-serif; } .axis { fill: var(--muted); }
.grid { stroke: var(--line); stroke-width: 1; } polyline { fill: none; stroke-width: 1.6; }
.confirms { stroke: var(--confirm); stroke-width: 1.8; } .deliveries { stroke: var(--deliver); stroke-width: 1.8; }
.fault { fill: var(--fault); opacity: .16; } .fault-label { fill: var(--fault); }
.promotion { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 4 3; } .promotion-label { fill: var(--ink); }
"""

#: Findings in the order of the first screen: name, what the reader sees, whether more than zero is bad.
CARDS = (
    ("confirmed", "confirmed", False),
    ("delivered", "delivered", False),
    ("lost", "LOST", True),
    ("vanished", "VANISHED", True),
    ("phantom", "PHANTOM", True),
    ("duplicates_flagged", "duplicates, flagged", False),
    ("duplicates_unflagged", "duplicates, unflagged", True),
    ("inversions", "out of order", True),
    ("inversions_excused", "out of order, excused", False),
    ("confirm_violations", "confirm violations", True),
    ("wrong_promotions", "wrong promotions", True),
    ("promotions", "failovers", False),
)
_TONES = {"PASS": "good", "EXPECTED LOSS": "odd", "UNKNOWN": "odd", "VACUOUS": "odd", "INTERRUPTED": "odd"}


def render_report(
    verdict: Mapping[str, Any],
    run: RunFile,
    rates: Sequence[Mapping[str, Any]],
    control_events: Sequence[Mapping[str, Any]],
    bucket_us: int,
) -> str:
    """The page, from the document of verdict.json and the series to draw."""
    findings = verdict["findings"]
    sections = [
        _head(verdict, run),
        '<div class="cards">' + "".join(_card(findings, *card) for card in CARDS) + "</div>",
        f'<p class="muted">{excess_note(findings)}</p>',
        "<h2>Time line</h2>",
        render_timeline(rates, control_events, bucket_us),
        "<h2>Failovers</h2>",
        _failover_table(verdict["failovers"]),
        "<h2>All findings</h2>",
        _table(("finding", "count"), sorted(findings.items())),
        "<h2>Confirm latency</h2>",
        _latency(verdict["confirm_latency_us"]),
        *_witness_sections(verdict["witnesses"]),
        "<h2>The run</h2>",
        _run_table(run),
    ]
    title = html.escape(f"{verdict['verdict']}: {run.scenario}, seed {run.seed}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n<body>'
        + "\n".join(sections)
        + "</body></html>\n"
    )


def write_report(run_dir: Path, page: str) -> Path:
    """Write the page; returns its path."""
    path = run_dir / "report" / "index.html"
    path.parent.mkdir(exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def excess_note(findings: Mapping[str, int]) -> str:
    """Why more was delivered than confirmed, which looks like a mistake of ours; empty if it was not."""
    excess = findings.get("delivered", 0) - findings.get("confirmed", 0)
    if excess <= 0:
        return ""
    return (
        f"delivered exceeds confirmed by {excess:,}: messages whose confirm a fault cut off were stored and came "
        "through all the same; nobody had been promised them"
    )


def milliseconds(value_us: int | None) -> str:
    """Microseconds as the reader wants them; a dash when unknown."""
    return "-" if value_us is None else f"{value_us / 1000:,.0f} ms"


def _head(verdict: Mapping[str, Any], run: RunFile) -> str:
    tone = _TONES.get(str(verdict["verdict"]), "bad")
    reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in verdict["reasons"])
    bound = verdict["loss_bound_95"]
    claim = f"<p>Loss probability of a confirmed message below {bound:.1e} (95%).</p>" if bound is not None else ""
    return (
        f"<h1>{html.escape(run.scenario)}</h1>"
        f'<div class="verdict {tone}">{html.escape(str(verdict["verdict"]))}</div><ul>{reasons}</ul>{claim}'
        f'<p class="muted">seed {run.seed}, repeat with <code>{html.escape(run.replay)}</code></p>'
    )


def _card(findings: Mapping[str, int], name: str, label: str, is_bad: bool) -> str:
    count = findings.get(name, 0)
    tone = ("bad" if count else "good") if is_bad else ""
    return f'<div class="card {tone}"><b>{count:,}</b>{html.escape(label)}</div>'


def _failover_table(failovers: Sequence[Mapping[str, Any]]) -> str:
    if not failovers:
        return "<p>None.</p>"
    header = (
        "epoch", "cause", "old master", "new master", "oldest synchronised?", "detected", "no confirm for",
        "no delivery for", "lost", "redelivered", "synchronised again",
    )  # fmt: skip
    rows = [
        (
            row["epoch"],
            " ".join(json.loads(row["cause"]).values()) if row["cause"] else "-",
            row["old_master"],
            row["new_master"],
            promoted_as(row, oldest="yes", other="NO", nobody="none was"),
            milliseconds(row["detect_us"]),
            milliseconds(row["rto_publish_us"]),
            milliseconds(row["rto_consume_us"]),
            row["rpo"],
            row["redeliveries"],
            milliseconds(row["resync_us"]),
        )
        for row in failovers
    ]
    return _table(header, rows)


def promoted_as(row: Mapping[str, Any], *, oldest: str, other: str, nobody: str) -> str:
    """One of three texts about a failover: the oldest synchronised mirror was promoted, another one was, or there was
    no synchronised mirror."""
    if not json.loads(row["synchronised_before"]):
        return nobody
    return oldest if row["is_oldest_synchronised"] else other


def _latency(latency_us: Sequence[int]) -> str:
    if not latency_us:
        return "<p>Nothing was confirmed.</p>"
    return _table(("p50", "p99", "p99.9", "longest"), [[milliseconds(value) for value in latency_us]])


def _witness_sections(witnesses: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    sections = []
    for name, rows in witnesses.items():
        columns = [column for column in rows[0] if any(row[column] is not None for row in rows)]
        sections.append(f"<h2>Witnesses: {html.escape(name)}</h2>")
        sections.append(f'<p class="muted">The first {len(rows)}; all of them: <code>analysis/{name}/</code></p>')
        sections.append(_table(columns, ([row[column] for column in columns] for row in rows)))
    return sections


def _run_table(run: RunFile) -> str:
    facts = {
        "run": run.run_id,
        "started": run.started_at,
        "ended": run.outcome.value,
        "error": run.error,
        "duration": f"{run.duration_s:.1f} s" if run.duration_s is not None else None,
        "drain": f"{run.drain_s:.1f} s" if run.drain_s is not None else None,
        "nodes": ", ".join(run.nodes),
        "policy": json.dumps(run.policy),
        "workload": json.dumps(run.traffic),
        "loss": run.expectation.loss.value,
    }
    return _table(("fact", "value"), [(key, value) for key, value in facts.items() if value is not None])


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

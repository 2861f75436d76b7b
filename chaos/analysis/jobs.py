"""The analysis of one stored run: read, transform, judge, write.

Writes ``analysis/verdict.json`` (verdict, counts, ledger, witnesses) and ``analysis/<finding>/`` with every message of
a finding by name, as Parquet, for each finding that is not empty. `chaos.analysis.report` draws the same facts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from chaos.analysis import transforms as checks
from chaos.analysis.schemas import ATTEMPT_KEY, EVENTS
from chaos.run_file import RunFile
from chaos.scenarios.model import Expectation
from chaos.verdict import Judgement, judge, loss_bound

#: Witnesses of each finding shown in the report; the files have all of them.
TOP_WITNESSES = 20
#: Width of a point of the time line.
RATE_BUCKET_US = 100_000
#: Gaps shorter than this are scheduling, not unavailability.
MIN_UNAVAILABILITY_US = 100_000


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything found out about a run; plain values."""

    judgement: Judgement
    findings: dict[str, int]
    ledger: list[dict[str, Any]]
    #: Finding -> first `TOP_WITNESSES` rows.
    witnesses: dict[str, list[dict[str, Any]]]
    #: p50, p99, p99.9 and maximum, microseconds.
    confirm_latency_us: list[int]
    rates: list[dict[str, Any]]
    control_events: list[dict[str, Any]]

    def to_json(self, run: RunFile) -> dict[str, Any]:
        """The document of verdict.json."""
        return {
            "run_id": run.run_id,
            "scenario": run.scenario,
            "seed": run.seed,
            "verdict": self.judgement.verdict,
            "reasons": list(self.judgement.reasons),
            "findings": self.findings,
            "loss_bound_95": loss_bound(self.findings),
            "confirm_latency_us": self.confirm_latency_us,
            "failovers": self.ledger,
            "witnesses": self.witnesses,
            "replay": run.replay,
        }


def analyse_events(events: DataFrame, run: RunFile, evidence_dir: Path | None = None) -> Analysis:
    """Run every check on the events of one run. Evidence files are written if ``evidence_dir`` is given."""
    events = events.cache()
    rows = checks.attempts(events).cache()
    try:
        totals = checks.counts(rows).collect()[0].asDict()
        latency_us = totals.pop("confirm_latency_us") or []
        frames = evidence_frames(events, rows, run.expectation)
        findings = _sizes(frames) | totals
        findings["phantom"] += findings.pop("unidentified")
        findings["confirm_violations"] += findings.pop("stray_confirms")
        message_rows = checks.messages(rows)
        publish_gaps = checks.gaps(message_rows, "invoke_us", "confirm_us")
        consume_gaps = checks.gaps(message_rows, "confirm_us", "deliver_us")
        ledger = [row.asDict() for row in checks.ledger(events, rows, publish_gaps, consume_gaps).collect()]
        findings |= _availability(publish_gaps, consume_gaps)
        findings["promotions"] = len(ledger)
        findings["wrong_promotions"] = sum(not row["is_oldest_synchronised"] for row in ledger)
        return Analysis(
            judge(findings, run.expectation, run.outcome),
            findings,
            ledger,
            _witnesses(frames, findings, evidence_dir),
            latency_us,
            [row.asDict() for row in checks.rates(events, RATE_BUCKET_US).collect()],
            [row.asDict() for row in checks.control_events(events).collect()],
        )
    finally:
        rows.unpersist()
        events.unpersist()


def evidence_frames(events: DataFrame, rows: DataFrame, expectation: Expectation) -> dict[str, DataFrame]:
    """Data frame of each finding that is told by name."""
    lost_rows = checks.lost(rows)
    inverted = checks.inversions(events)
    frames = {
        "lost": lost_rows,
        "vanished": checks.vanished(rows),
        "phantom": checks.phantom(rows),
        "unidentified": checks.unidentified(events),
        "duplicates_unflagged": checks.unflagged_duplicates(rows),
        "confirm_violations": checks.confirm_violations(rows),
        "stray_confirms": events.where(F.col("kind") == "CONFIRM_STRAY"),
        "inversions": inverted.where(~F.col("is_excused")),
        "inversions_excused": inverted.where(F.col("is_excused")),
        "publisher_copies": checks.publisher_copies(rows),
        "incomplete_logs": checks.incomplete_logs(events),
    }
    if expectation.lost_phase is not None:
        predicted = checks.confirmed_in_phase(rows, checks.phases(events), expectation.lost_phase)
        frames["lost_unexpectedly"] = lost_rows.join(predicted, on=ATTEMPT_KEY, how="left_anti")
        frames["not_lost"] = predicted.join(lost_rows, on=ATTEMPT_KEY, how="left_anti")
    return frames


def _sizes(frames: dict[str, DataFrame]) -> dict[str, int]:
    """Number of rows of each frame, in one job."""
    sizes = [
        frame.agg(F.count("*").alias("size")).select(F.lit(name).alias("name"), "size")
        for name, frame in frames.items()
    ]
    return {row["name"]: row["size"] for row in reduce(DataFrame.unionByName, sizes).collect()}


def _availability(publish_gaps: DataFrame, consume_gaps: DataFrame) -> dict[str, int]:
    """Longest and total unavailability of publishing and of consuming, microseconds, in one job."""

    def summed(gaps: DataFrame, name: str) -> DataFrame:
        is_counted = F.col("gap_us") >= MIN_UNAVAILABILITY_US
        return gaps.agg(
            F.lit(name).alias("name"),
            F.coalesce(F.max("gap_us"), F.lit(0)).alias("max_us"),
            F.coalesce(F.sum(F.when(is_counted, F.col("gap_us"))), F.lit(0)).alias("total_us"),
        )

    both = summed(publish_gaps, "publish").unionByName(summed(consume_gaps, "consume"))
    found: dict[str, int] = {}
    for row in both.collect():
        found[f"unavailable_{row['name']}_max_us"] = row["max_us"]
        found[f"unavailable_{row['name']}_total_us"] = row["total_us"]
    return found


def _witnesses(
    frames: dict[str, DataFrame], findings: dict[str, int], evidence_dir: Path | None
) -> dict[str, list[dict[str, Any]]]:
    """First rows of every finding that is not empty; all its rows go to a file."""
    shown = {}
    for name, frame in frames.items():
        counted = {"unidentified": "phantom", "stray_confirms": "confirm_violations"}.get(name, name)
        if not findings[counted]:
            continue
        order = [column for column in (*ATTEMPT_KEY, "proc_id", "t_lo_us") if column in frame.columns]
        ordered = frame.orderBy(*order)
        shown[name] = [row.asDict() for row in ordered.limit(TOP_WITNESSES).collect()]
        if evidence_dir is not None:
            ordered.coalesce(1).write.mode("overwrite").parquet(str(evidence_dir / name))
    return shown


def analyse_run(spark: SparkSession, run_dir: Path, run: RunFile) -> Analysis:
    """Analyse a stored run and write ``analysis/`` beside its events."""
    # Spark resolves relative paths against a file system of its own choice.
    events = spark.read.schema(EVENTS).parquet((run_dir / "events").absolute().as_uri())
    evidence_dir = run_dir / "analysis"
    evidence_dir.mkdir(exist_ok=True)
    analysis = analyse_events(events, run, evidence_dir.absolute())
    document = json.dumps(analysis.to_json(run), indent=2) + "\n"
    (evidence_dir / "verdict.json").write_text(document, encoding="utf-8")
    return analysis

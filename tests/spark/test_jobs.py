"""The whole analysis: agreement with the reference checker, and verdicts with evidence on stored runs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.analysis.jobs import analyse_events, analyse_run
from chaos.analysis.reference import reference_findings
from chaos.history import HistoryWriter, Kind, ProcKind
from chaos.run_file import RunFile
from chaos.scenarios.model import Expectation, LossRule
from chaos.verdict import Outcome, Verdict
from tests.spark.conftest import EventFrame
from tests.support.histories import HARNESS, HistoryBuilder, random_history

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def run_file(loss: LossRule = LossRule.FORBIDDEN, lost_phase: str | None = None, min_confirmed: int = 1) -> RunFile:
    return RunFile(
        run_id="run",
        scenario="test",
        seed=1,
        nodes=["n1", "n2"],
        queues=["chaos.orders"],
        policy={},
        expectation=Expectation(loss, lost_phase, min_confirmed, min_promotions=0),
        traffic={},
        replay="warren chaos run test --seed 1",
        started_at="2026-01-01T00:00:00+00:00",
        outcome=Outcome.COMPLETED,
    )


@pytest.mark.parametrize("seed", range(4))
def test_spark_and_reference_agree_on_random_histories(event_frame: EventFrame, seed: int) -> None:
    history = random_history(random.Random(seed), messages=300)
    found = analyse_events(event_frame(history), run_file()).findings
    expected = reference_findings(history)
    assert {name: found[name] for name in expected} == expected
    # A history without anomalies would let any two checkers agree.
    assert all(expected[name] for name in ("lost", "vanished", "phantom", "duplicates_unflagged", "inversions"))


def test_clean_history_passes(event_frame: EventFrame) -> None:
    build = HistoryBuilder()
    for seq in range(1, 20):
        build.whole(seq)
    analysis = analyse_events(event_frame(build.events()), run_file())
    assert analysis.judgement.verdict is Verdict.PASS
    assert analysis.witnesses == {}


def test_exactly_the_predicted_loss_has_its_own_verdict(event_frame: EventFrame) -> None:
    expected = run_file(LossRule.EXACTLY_UNSYNCHRONISED, "mirror absent")

    def verdict_when_lost(lost: set[int]) -> tuple[Verdict, dict[str, int]]:
        build = HistoryBuilder()
        for phase, seqs in (("mirror absent", (1, 2, 3)), ("mirror unsynchronised", (4, 5))):
            build.add(HARNESS, Kind.PHASE, detail=phase)
            for seq in seqs:
                build.publish(seq)
                build.answer(seq)
        for seq in {1, 2, 3, 4, 5} - lost:
            build.deliver(seq)
            build.ack(seq)
        analysis = analyse_events(event_frame(build.events()), expected)
        return analysis.judgement.verdict, analysis.findings

    assert verdict_when_lost({1, 2, 3})[0] is Verdict.EXPECTED_LOSS
    verdict, findings = verdict_when_lost({1, 2, 5})
    assert verdict is Verdict.FAIL
    assert (findings["lost_unexpectedly"], findings["not_lost"]) == (1, 1)


def test_stored_run_is_checked_and_every_lost_message_named(spark: SparkSession, tmp_path: Path) -> None:
    with HistoryWriter(tmp_path, "run", 1, "test", rows_per_part=50) as history:
        publisher = history.process(100, ProcKind.PUBLISHER)
        consumer = history.process(200, ProcKind.CONSUMER)
        for seq in range(1, 101):
            publisher.record(Kind.PUB_INVOKE, queue_id=0, pub_id=0, seq=seq, attempt=1, channel_id=1)
            publisher.record(Kind.CONFIRM, queue_id=0, pub_id=0, seq=seq, attempt=1, channel_id=1)
            if seq % 4:
                consumer.record(
                    Kind.DELIVER, queue_id=0, pub_id=0, seq=seq, attempt=1, channel_id=2, redelivered=False, crc_ok=True
                )
                consumer.record(Kind.ACK_SENT, queue_id=0, pub_id=0, seq=seq, attempt=1, channel_id=2)
    analysis = analyse_run(spark, tmp_path, run_file())
    assert analysis.judgement.verdict is Verdict.FAIL
    assert analysis.findings["lost"] == 25
    assert [row["seq"] for row in analysis.witnesses["lost"]] == list(range(4, 81, 4))
    stored = spark.read.parquet((tmp_path / "analysis" / "lost").as_uri())
    assert sorted(row["seq"] for row in stored.collect()) == list(range(4, 101, 4))
    document = json.loads((tmp_path / "analysis" / "verdict.json").read_text())
    assert document["verdict"] == "FAIL"
    assert document["reasons"] == ["25 confirmed messages were lost"]


def test_record_with_a_hole_is_unknown_however_bad_it_looks(event_frame: EventFrame) -> None:
    build = HistoryBuilder()
    for seq in range(1, 5):
        build.whole(seq)
    events = [event for event in build.events() if not (event.kind == "DELIVER" and event.seq == 3)]
    analysis = analyse_events(event_frame(events), run_file())
    assert analysis.findings["lost"] == 1
    assert analysis.judgement.verdict is Verdict.UNKNOWN

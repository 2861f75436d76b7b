"""Each check, on a history of a few messages with one thing wrong."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import DataFrame

from chaos.analysis import transforms as checks
from chaos.history import Kind
from tests.spark.conftest import EventFrame
from tests.support.histories import CONSUMER, HARNESS, NEMESIS, OBSERVER, STEP_US, HistoryBuilder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture
def build() -> HistoryBuilder:
    """Three messages with nothing wrong; tests add a fourth."""
    history = HistoryBuilder()
    for seq in (1, 2, 3):
        history.whole(seq)
    return history


def seqs(rows: DataFrame) -> list[int]:
    return sorted(row["seq"] for row in rows.select("seq").collect())


def test_confirmed_and_never_seen_is_lost(build: HistoryBuilder, event_frame: EventFrame) -> None:
    build.publish(4)
    build.answer(4)
    rows = checks.attempts(event_frame(build.events()))
    assert seqs(checks.lost(rows)) == [4]
    assert checks.counts(rows).collect()[0]["lost"] == 1


@pytest.mark.parametrize("kind", [Kind.BROWSE, Kind.EXPIRE, Kind.DEADLETTER])
def test_left_in_the_queue_or_removed_legally_is_not_lost(
    build: HistoryBuilder, event_frame: EventFrame, kind: Kind
) -> None:
    build.publish(4)
    build.answer(4)
    build.add(HARNESS, kind, pub_id=0, seq=4, attempt=1)
    assert seqs(checks.lost(checks.attempts(event_frame(build.events())))) == []


def test_unconfirmed_is_not_lost_but_recovered_when_it_arrives(build: HistoryBuilder, event_frame: EventFrame) -> None:
    build.publish(4)
    build.answer(4, Kind.PUB_UNKNOWN)
    build.publish(5)
    build.answer(5, Kind.PUB_UNKNOWN)
    build.deliver(5)
    build.ack(5)
    rows = checks.attempts(event_frame(build.events()))
    assert seqs(checks.lost(rows)) == []
    assert seqs(checks.recovered(rows)) == [5]


def test_delivered_but_never_acknowledged_is_vanished(build: HistoryBuilder, event_frame: EventFrame) -> None:
    build.publish(4)
    build.answer(4)
    build.deliver(4)
    rows = checks.attempts(event_frame(build.events()))
    assert seqs(checks.vanished(rows)) == [4]
    assert seqs(checks.lost(rows)) == []


def test_delivered_but_never_published_or_altered_is_phantom(build: HistoryBuilder, event_frame: EventFrame) -> None:
    build.deliver(9)
    build.publish(4)
    build.answer(4)
    build.deliver(4, crc_ok=False)
    assert seqs(checks.phantom(checks.attempts(event_frame(build.events())))) == [4, 9]


def test_second_delivery_is_a_violation_only_if_unflagged(build: HistoryBuilder, event_frame: EventFrame) -> None:
    build.deliver(1, redelivered=True, proc_id=CONSUMER + 1)
    build.deliver(2, redelivered=False, proc_id=CONSUMER + 1)
    rows = checks.attempts(event_frame(build.events()))
    assert seqs(checks.duplicates(rows)) == [1, 2]
    assert seqs(checks.unflagged_duplicates(rows)) == [2]
    assert checks.duplicates(rows).where("is_after_ack").count() == 2


def test_flagged_delivery_read_before_the_unflagged_one_is_legal(
    build: HistoryBuilder, event_frame: EventFrame
) -> None:
    """The first delivery may lie in the buffer of a dead connection while the second is already read."""
    build.publish(4)
    build.answer(4)
    build.deliver(4, redelivered=True, proc_id=CONSUMER + 1)
    build.deliver(4, redelivered=False)
    build.ack(4)
    assert seqs(checks.unflagged_duplicates(checks.attempts(event_frame(build.events())))) == []


def test_copies_of_a_retried_publish_are_the_publishers_own(build: HistoryBuilder, event_frame: EventFrame) -> None:
    for attempt in (1, 2):
        build.publish(4, attempt=attempt)
        build.answer(4, Kind.PUB_UNKNOWN if attempt == 1 else Kind.CONFIRM, attempt=attempt)
        build.deliver(4, attempt=attempt)
        build.ack(4, attempt=attempt)
    rows = checks.attempts(event_frame(build.events()))
    assert seqs(checks.publisher_copies(rows)) == [4]
    assert seqs(checks.duplicates(rows)) == []


def test_confirming_twice_or_both_ways_or_too_early_is_a_violation(
    build: HistoryBuilder, event_frame: EventFrame
) -> None:
    build.answer(1)
    build.answer(2, Kind.NACK)
    build.answer(4)
    build.publish(4)
    assert seqs(checks.confirm_violations(checks.attempts(event_frame(build.events())))) == [1, 2, 4]


def test_overtaken_message_is_an_inversion(build: HistoryBuilder, event_frame: EventFrame) -> None:
    build.publish(4)
    build.publish(5)
    build.deliver(5)
    build.deliver(4)
    found = checks.inversions(event_frame(build.events())).collect()
    assert [(row["seq"], row["after_seq"], row["is_excused"]) for row in found] == [(4, 5, False)]


def test_promotion_between_excuses_an_inversion(build: HistoryBuilder, event_frame: EventFrame) -> None:
    build.publish(4)
    build.publish(5)
    build.deliver(5)
    build.add(OBSERVER, Kind.PROMOTE, epoch=2, detail="{}")
    build.deliver(4)
    assert [row["is_excused"] for row in checks.inversions(event_frame(build.events())).collect()] == [True]


def test_redelivery_and_another_consumer_do_not_make_an_inversion(
    build: HistoryBuilder, event_frame: EventFrame
) -> None:
    build.publish(4)
    build.publish(5)
    build.deliver(5)
    build.deliver(4, proc_id=CONSUMER + 1)
    build.deliver(1, redelivered=True)
    assert checks.inversions(event_frame(build.events())).count() == 0


def test_hole_in_a_record_or_a_missing_end_is_told(build: HistoryBuilder, event_frame: EventFrame) -> None:
    whole = build.events()
    assert checks.incomplete_logs(event_frame(whole)).count() == 0
    with_hole = [event for event in whole if not (event.proc_id == CONSUMER and event.ev_seq == 2)]
    without_end = [event for event in whole if not (event.proc_id == CONSUMER and event.kind == "PROC_END")]
    for broken in (with_hole, without_end):
        found = checks.incomplete_logs(event_frame(broken)).collect()
        assert [row["proc_id"] for row in found] == [CONSUMER]


def test_gap_counts_from_the_oldest_waiting_message(event_frame: EventFrame) -> None:
    build = HistoryBuilder()
    build.whole(1)
    build.now_us += 500 * STEP_US  # the publisher rests: no gap
    build.publish(2)
    build.now_us += 200 * STEP_US  # the broker is silent: a gap
    build.answer(2)
    message_rows = checks.messages(checks.attempts(event_frame(build.events())))
    found = checks.gaps(message_rows, "invoke_us", "confirm_us").orderBy("gap_end_us").collect()
    assert [row["gap_us"] for row in found] == [STEP_US, 201 * STEP_US]


def test_ledger_has_the_price_of_each_failover(event_frame: EventFrame) -> None:
    build = HistoryBuilder()
    build.whole(1)
    build.publish(2)
    build.answer(2)  # confirmed, never delivered: lost at the next failover
    fault_us = build.now_us + STEP_US
    build.add(NEMESIS, Kind.FAULT_BEGIN, fault_id=1, detail=json.dumps({"type": "kill", "node": "n1"}))
    build.publish(3)
    build.now_us += 300 * STEP_US
    detail = {"old_master": "n1", "new_master": "n2", "mirrors_before": ["n2"], "synchronised_before": ["n2"]}
    build.add(OBSERVER, Kind.PROMOTE, epoch=2, result=1, detail=json.dumps(detail))
    build.answer(3)
    build.deliver(3)
    build.deliver(1, redelivered=True)
    build.add(OBSERVER, Kind.SYNC_END, node_id=0, epoch=2)
    events = event_frame(build.events())
    rows = checks.attempts(events)
    message_rows = checks.messages(rows)
    publish_gaps = checks.gaps(message_rows, "invoke_us", "confirm_us")
    consume_gaps = checks.gaps(message_rows, "confirm_us", "deliver_us")
    found = checks.ledger(events, rows, publish_gaps, consume_gaps).collect()
    assert len(found) == 1
    row = found[0]
    assert (row["old_master"], row["new_master"], row["is_oldest_synchronised"]) == ("n1", "n2", True)
    assert row["fault_us"] == fault_us
    assert row["detect_us"] == 302 * STEP_US
    assert row["rto_publish_us"] == 302 * STEP_US
    assert row["rto_consume_us"] == STEP_US
    assert row["resync_us"] == 4 * STEP_US
    assert (row["rpo"], row["redeliveries"]) == (1, 1)


def test_confirmed_in_phase_ends_with_the_phase(event_frame: EventFrame) -> None:
    build = HistoryBuilder()
    build.add(HARNESS, Kind.PHASE, detail="first")
    build.whole(1)
    build.add(HARNESS, Kind.PHASE, detail="second")
    build.whole(2)
    build.add(HARNESS, Kind.PHASE, detail="third")
    build.whole(3)
    events = event_frame(build.events())
    found = checks.confirmed_in_phase(checks.attempts(events), checks.phases(events), "second")
    assert seqs(found) == [2]


def test_rates_count_per_bucket(build: HistoryBuilder, event_frame: EventFrame) -> None:
    found = checks.rates(event_frame(build.events()), 6 * STEP_US).collect()
    assert sum(row["confirms"] for row in found) == 3
    assert sum(row["deliveries"] for row in found) == 3
    assert all(row["bucket_us"] % (6 * STEP_US) == 0 for row in found)

"""What is on the page, of what was recorded."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.conduct.sheet import QueueEntry, RosterEntry, Sheet
from chaos.judge.findings import Name
from chaos.judge.verdict import Judged, Verdict
from chaos.judge.windows import Service
from chaos.record.kinds import Ending, Kind
from chaos.report.assembling import CUT_OFF_US_MIN, assemble, coverage_of, faults_of, windows_of
from chaos.report.model import Lane, Report
from chaos.report.page import render
from chaos.suite.by_reference import judgement_by_reference
from tests.support.told import CONSUMING, HARNESS, PUBLISHER, PUBLISHING, QUEUE, SECOND_US, Told, key

ROSTER = [
    RosterEntry(HARNESS, "conductor"),
    RosterEntry(PUBLISHING, "publisher", [PUBLISHER]),
    *(RosterEntry(process, "consumer") for process in CONSUMING.values()),
]
LOST = Judged(Verdict.FAIL, ("1 lost",))


def sheet_of(**values: object) -> Sheet:
    sheet = Sheet("K01-7", "K01", "The master is killed", "Nothing is lost", "local", 7, "2026-09-21T13:46:40+00:00")
    sheet.queues = [QueueEntry("orders", False, True, True)]
    for name, value in values.items():
        setattr(sheet, name, value)
    return sheet


def assembled(told: Told, sheet: Sheet | None = None, directory: Path | None = None) -> Report:
    sheet = sheet or sheet_of()
    sheet.roster = [entry for entry in ROSTER if any(event.process == entry.process for event in told.events)]
    judgement = judgement_by_reference(told.complete(), sheet.facts())
    return assemble(sheet, judgement, LOST, windows_of(judgement.figures), {"record": "events/"}, directory)


def fault(told: Told, *, at_risk: int = 0) -> Told:
    detail = {"type": "kill", "nodes": [1], "at_risk": {"stored": at_risk, "held": 0}}
    return told.add(HARNESS, Kind.FAULT_BEGIN, fault=1, node=1, detail=json.dumps(detail))


def marks(report: Report, lane: Lane) -> list[tuple[float, float, str]]:
    """Begin and end in seconds."""
    return [
        (mark.begin_us / SECOND_US, mark.end_us / SECOND_US, mark.text) for mark in report.marks if mark.lane is lane
    ]


def failover() -> Told:
    """Nothing is confirmed or delivered from the second to the ninth second; the second message is lost."""
    told = Told().add(HARNESS, Kind.CONSUMING, number=1).confirmed(1, 2).deliver(1).ack(1)
    fault(told, at_risk=1).publish(3).promote(2).confirm(3).settled(3).add(HARNESS, Kind.FAULT_END, fault=1)
    return told


def test_a_failover() -> None:
    report = assembled(failover())
    assert report.counts[Name.LOST] == 1
    [row] = report.ledger
    assert (row.failover.epoch, row.fault, row.lost, row.at_risk["stored"]) == (2, 1, 1, 1)
    assert marks(report, Lane.FAULTS) == [(8, 15, "fault 1: kill of n1")]
    assert marks(report, Lane.PROMOTIONS) == [(10, 10, "orders: n2, epoch 2")]
    met = {state: met for state, met in report.coverage["kill"].items() if met}
    assert (list(report.coverage), met) == (["kill"], {"messages stored": 1})
    assert marks(report, Lane.NO_PUBLISH), "somebody waited for a confirm"
    assert sum(moment.confirms for moment in report.moments) == 3
    [lost] = [story for story in report.stories if Name.LOST in story.findings]
    assert lost.message == key(2)


def test_the_page_has_all_of_it() -> None:
    page = render(assembled(failover(), sheet_of(replay="warren chaos run K01 --seed 7")))
    assert "warren chaos run K01 --seed 7" in page
    assert "orders: n2, epoch 2" in page


def test_a_fault_that_was_not_ended_holds_to_the_end() -> None:
    told = fault(Told().confirmed(1)).settled(1)
    figures = judgement_by_reference(told.events, sheet_of().facts()).figures
    [found] = faults_of(figures)
    assert found.end_us is None
    assert marks(assembled(told), Lane.FAULTS) == [(3, 4, "fault 1: kill of n1")]
    assert coverage_of(figures)["kill"]["messages stored"] == 0


def test_consumers_miss_nothing_while_they_want_nothing() -> None:
    told = Told().add(HARNESS, Kind.CONSUMING, number=1).confirmed(1).add(HARNESS, Kind.CONSUMING, number=0)
    told.add(HARNESS, Kind.PHASE).add(HARNESS, Kind.CONSUMING, number=1).add(HARNESS, Kind.PHASE).settled(1)
    figures = judgement_by_reference(told.events, sheet_of().facts()).figures
    missed = [window for window in windows_of(figures) if window.service is Service.CONSUME]
    wanted = [(3, 4), (6, 8)]
    assert [(window.begin_us // SECOND_US, window.end_us // SECOND_US) for window in missed] == wanted


def test_clients_that_are_cut_off_or_blocked_and_processes_that_stand_still() -> None:
    told = Told().confirmed(1)
    told.add(CONSUMING["A"], Kind.CHANNEL_OPEN, channel=200, number=CUT_OFF_US_MIN - 1)
    told.add(CONSUMING["A"], Kind.CHANNEL_OPEN, channel=201, number=2 * SECOND_US)
    told.add(PUBLISHING, Kind.BLOCKED, channel=100).add(PUBLISHING, Kind.UNBLOCKED, channel=100)
    told.add(PUBLISHING, Kind.BLOCKED, channel=100).add(PUBLISHING, Kind.CHANNEL_OVER, channel=100, number=Ending.LOST)
    told.add(PUBLISHING, Kind.BLOCKED, channel=101).add(CONSUMING["B"], Kind.STALL, (9, 11))
    report = assembled(told)
    assert marks(report, Lane.CLIENTS) == [
        (2, 4, "consumer 2 without a channel for 2 s"),
        (5, 6, "publisher 1 was blocked"),
        (7, 8, "publisher 1 was blocked"),
        (9, 11, "publisher 1 was blocked"),
    ]
    assert marks(report, Lane.STALLS) == [(9, 11, "consumer 3 stood still")]


def test_depths_are_the_longest_of_each_step() -> None:
    told = Told().confirmed(1)
    for second, length in ((3.0, 5), (3.01, 9), (3.02, 2), (4.0, 1)):
        told.add(HARNESS, Kind.DEPTH, (second, second), queue=QUEUE, number=length)
    assert [depth.messages for depth in assembled(told).depths["orders"]] == [9, 1]


def test_stories_quote_the_logs_of_nodes(tmp_path: Path) -> None:
    log = tmp_path / "cluster" / "n1.log"
    log.parent.mkdir()
    log.write_text("1970-01-01 00:00:03.100000+00:00 [warning] the disk is gone\n", encoding="utf-8")
    sheet = sheet_of(nodes=[{"number": 1, "name": "n1", "log": "cluster/n1.log"}])
    told = Told().confirmed(1).deliver(1).release(1)
    [vanished] = assembled(told, sheet, tmp_path).stories
    assert [name for name, _ in vanished.logs] == ["n1"] * len(vanished.logs)
    assert assembled(told, sheet).stories[0].logs == []


def test_of_a_run_without_messages_there_is_a_page() -> None:
    report = assembled(Told().add(HARNESS, Kind.PHASE, detail="prepare"))
    assert (report.moments, report.ledger, report.stories) == ([], [], [])
    assert "prepare" in render(report)

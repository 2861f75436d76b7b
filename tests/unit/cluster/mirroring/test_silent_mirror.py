"""When a mirror that says nothing, or nothing new, is reported."""

from __future__ import annotations

from dataclasses import replace

from cluster.mirroring.conversations import ATTACH_RETRY_MS
from cluster.mirroring.master import MirroringSettings
from cluster.mirroring.reports import ReportMirrorStalled
from cluster.mirroring.service import REPORT_REPEAT_MS
from tests.support.messages import publications
from tests.support.mirror_pair import N2, Pair


def test_a_silent_mirror_is_reported() -> None:
    pair = Pair(settings=MirroringSettings(stall_ms=5000)).up().quiet()
    pair.master.publish(publications(1, 1))
    pair.master.take_messages()
    pair.master.tick(100)
    assert not any(isinstance(report, ReportMirrorStalled) for report in pair.master.take_reports())
    pair.master.tick(5099)
    assert pair.master.take_reports() == []
    pair.master.tick(5100)
    assert pair.master.take_reports() == [ReportMirrorStalled(N2)]
    pair.master.tick(10_099)
    assert pair.master.take_reports() == [], "once is enough for a while"
    pair.master.tick(10_100)
    assert pair.master.take_reports() == [ReportMirrorStalled(N2)]


def test_a_mirror_that_owes_nothing_may_be_silent() -> None:
    pair = Pair(settings=MirroringSettings(stall_ms=5000)).up().quiet()
    pair.master.take_reports()
    pair.master.set_record(replace(pair.record, following=(N2,)))
    for now_ms in (0, 5000, 60_000):
        pair.master.tick(now_ms)
        assert pair.master.take_reports() == []


def test_a_mirror_that_repeats_itself_is_reported_like_a_silent_one() -> None:
    """Words alone are no progress."""
    pair = Pair(settings=MirroringSettings(stall_ms=5000)).up().quiet()
    pair.master.publish(publications(1, 1))
    pair.to_mirror()
    [ack] = pair.to_master()
    for now_ms in (100, 5099):
        pair.master.tick(now_ms)
        assert not any(isinstance(report, ReportMirrorStalled) for report in pair.master.take_reports())
        pair.master.receive(N2, ack)
    pair.master.tick(5100)
    assert pair.master.take_reports() == [ReportMirrorStalled(N2)]


def test_a_mirror_that_is_always_behind_is_not_reported_as_long_as_it_gets_on() -> None:
    """Its disk hangs, so it owes an answer all the time; each turn it acknowledges what came last."""
    pair = Pair(settings=MirroringSettings(stall_ms=5000)).up().quiet()
    pair.master.set_record(replace(pair.record, following=(N2,)))
    pair.master.take_reports()
    for counter, now_ms in enumerate(range(0, 20_000, 4000), 1):
        pair.master.publish(publications(counter, 1))
        pair.to_mirror()
        pair.to_master()
        pair.master.tick(now_ms)
        assert pair.master.take_reports() == []
    pair.master.tick(20_999)
    assert pair.master.take_reports() == []
    pair.master.tick(21_000)
    assert pair.master.take_reports() == [ReportMirrorStalled(N2)]


def test_an_attach_without_an_answer_is_sent_again_after_longer_and_longer() -> None:
    """It may have got lost, or the mirror may be busy with many queues."""
    pair = Pair(settings=MirroringSettings(stall_ms=30_000)).up()
    pair.master.take_messages()
    sent_ms = []
    for now_ms in range(0, 31_000, 100):
        pair.master.tick(now_ms)
        if pair.master.take_messages():
            sent_ms.append(now_ms)
    assert sent_ms == [ATTACH_RETRY_MS * each for each in (1, 3, 9, 27)] + [30_000]


def test_a_mirror_that_has_not_answered_is_not_said_to_follow() -> None:
    pair = Pair(synchronised=False).up()
    assert pair.master.take_messages(), "the attach, which it never gets"
    for now_ms in range(0, 3 * REPORT_REPEAT_MS, ATTACH_RETRY_MS):
        pair.master.tick(now_ms)
        assert pair.master.take_reports() == []

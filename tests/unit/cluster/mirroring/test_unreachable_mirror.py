"""A mirror that its master has no link with, while the cluster believes it alive."""

from __future__ import annotations

from cluster.mirroring.reports import ReportMirrorStalled
from cluster.mirroring.settings import MirroringSettings
from tests.support.messages import publications
from tests.support.mirror_pair import N2, Pair


def test_a_mirror_without_a_link_is_reported_sooner() -> None:
    """What explains its silence is known: neither a slow disk nor much to compare."""
    pair = Pair(settings=MirroringSettings(stall_ms=30_000, unreachable_ms=5000)).up().quiet()
    pair.master.publish(publications(1, 1))
    pair.master.take_messages()
    pair.master.tick(100)
    pair.master.mirror_link_down(N2)
    for now_ms in (4000, 8999):
        pair.master.tick(now_ms)
        assert pair.master.take_reports() == []
        pair.master.mirror_link_down(N2)  # the other direction, or another try
    pair.master.tick(9000)
    assert pair.master.take_reports() == [ReportMirrorStalled(N2)]
    for now_ms in (9100, 14_099):
        pair.master.tick(now_ms)
        assert pair.master.take_reports() == [], "once is enough for a while"
    pair.master.tick(14_100)
    assert pair.master.take_reports() == [ReportMirrorStalled(N2)]


def test_a_link_that_comes_back_in_time_leaves_the_mirror_where_it_is() -> None:
    pair = Pair(settings=MirroringSettings(stall_ms=30_000, unreachable_ms=5000)).up().quiet()
    pair.master.mirror_link_down(N2)
    pair.master.tick(1000)
    pair.master.tick(5999)
    pair.master.mirror_link_up(N2)
    pair.master.tick(6500)
    pair.master.mirror_link_down(N2)
    pair.master.tick(7000)
    pair.master.tick(11_999)
    assert not any(isinstance(report, ReportMirrorStalled) for report in pair.master.take_reports())


def test_a_break_does_not_count_from_the_one_before_however_soon_that_was_over() -> None:
    """The mirror had answered everything when time was told next."""
    pair = Pair(settings=MirroringSettings(stall_ms=30_000, unreachable_ms=5000)).up().quiet()
    pair.master.mirror_link_down(N2)
    pair.master.tick(1000)
    pair.mirror.link_lost()
    pair.up().quiet()
    pair.master.tick(1250)
    pair.master.mirror_link_down(N2)
    for now_ms in (60_000, 64_999):
        pair.master.tick(now_ms)
        assert not any(isinstance(report, ReportMirrorStalled) for report in pair.master.take_reports())
    pair.master.tick(65_000)
    assert pair.master.take_reports() == [ReportMirrorStalled(N2)]

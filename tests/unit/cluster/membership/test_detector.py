"""Verdicts of the failure detector, input by input."""

from __future__ import annotations

import pytest

from cluster.membership.detector import (
    DetectorConfig,
    FailureDetector,
    Verdict,
    VerdictChange,
    proposes_node_down,
)
from node.ids import NodeName

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
CONFIG = DetectorConfig(suspect_after_ms=1000, down_after_ms=5000)


def detector() -> FailureDetector:
    return FailureDetector(CONFIG, [N2, N3], now_ms=0)


def test_a_reset_and_a_refused_reconnect_mean_down_at_once() -> None:
    watch = detector()
    assert watch.link_reset(N2) == [VerdictChange(N2, Verdict.SUSPECT)]
    assert watch.reconnect_refused(N2) == [VerdictChange(N2, Verdict.DOWN, is_certain=True)]
    assert watch.reconnect_refused(N2) == []
    assert watch.verdict(N3) is Verdict.UP
    watch.check_invariants()


def test_a_refused_connection_to_a_peer_that_was_never_connected_proves_nothing() -> None:
    watch = detector()
    assert watch.reconnect_refused(N2) == []
    assert watch.verdict(N2) is Verdict.UP


def test_a_reset_followed_by_a_word_is_forgiven() -> None:
    watch = detector()
    watch.link_reset(N2)
    assert watch.heard(N2, 10) == [VerdictChange(N2, Verdict.UP)]
    assert watch.reconnect_refused(N2) == [], "refused now says nothing about a reset before the peer spoke again"


def test_silence_is_suspicious_and_then_final() -> None:
    watch = detector()
    watch.heard(N3, 4000)
    assert watch.tick(999) == []
    assert watch.tick(1000) == [VerdictChange(N2, Verdict.SUSPECT)]
    assert watch.tick(4999) == []
    assert watch.tick(5000) == [VerdictChange(N2, Verdict.DOWN), VerdictChange(N3, Verdict.SUSPECT)]
    assert watch.tick(6000) == []
    watch.check_invariants()


def test_a_peer_that_speaks_again_is_up() -> None:
    watch = detector()
    watch.tick(9000)
    assert watch.heard(N2, 9001) == [VerdictChange(N2, Verdict.UP)]
    assert watch.heard(N2, 9002) == []


@pytest.mark.parametrize("silence_ms", [900, 4900, 9000])
def test_the_silence_of_a_life_that_is_over_is_not_that_of_the_next(silence_ms: int) -> None:
    watch = detector()
    watch.tick(silence_ms)
    watch.begins_anew(N2, silence_ms)
    watch.tick(silence_ms + 4900)
    assert watch.verdict(N2) is Verdict.SUSPECT
    assert VerdictChange(N2, Verdict.DOWN) in watch.tick(silence_ms + 5000)


def test_that_nobody_listened_between_two_lives_says_nothing_of_the_second() -> None:
    """It may be told after the second has come to be known."""
    watch = detector()
    watch.link_reset(N2)
    watch.begins_anew(N2, 100)
    assert watch.reconnect_refused(N2) == []
    assert watch.verdict(N2) is Verdict.SUSPECT
    watch.check_invariants()


def test_a_node_that_is_not_watched_is_not_judged() -> None:
    watch = FailureDetector(CONFIG, [N3], now_ms=0)
    assert watch.link_reset(N2) == watch.reconnect_refused(N2) == watch.heard(N2, 1) == []
    assert [change.peer for change in watch.tick(9000)] == [N3]


def test_only_the_leader_proposes_and_never_itself() -> None:
    assert proposes_node_down(N1, leader=N1, down=N2)
    assert not proposes_node_down(N1, leader=N3, down=N2)
    assert not proposes_node_down(N1, leader=None, down=N2)
    assert not proposes_node_down(N1, leader=N1, down=N1)


def test_a_node_that_stood_still_itself_declares_nobody_down() -> None:
    watch = detector()
    watch.heard(N2, 1000)
    watch.excuse(7000, now_ms=8100)  # frozen from 1100 to 8100
    assert watch.tick(8100) == [VerdictChange(N3, Verdict.SUSPECT)], "silent for 1100 ms before and after"
    assert watch.verdict(N2) is Verdict.UP
    assert VerdictChange(N2, Verdict.DOWN) in watch.tick(13_000)
    watch.check_invariants()


def test_what_was_seen_of_one_life_of_a_peer_is_nothing_to_the_next() -> None:
    """Others have heard that it started again, before this node is linked with it."""
    watch = detector()
    watch.link_reset(N2)
    assert watch.tick(4900) == [VerdictChange(N3, Verdict.SUSPECT)]
    watch.begins_anew(N2, 4900)
    assert watch.reconnect_refused(N2) == [], "it was asked before it had started"
    assert watch.tick(5100) == [VerdictChange(N3, Verdict.DOWN)]
    assert watch.tick(9900) == [VerdictChange(N2, Verdict.DOWN)]
    watch.begins_anew(N2, 9900)
    assert watch.verdict(N2) is Verdict.SUSPECT
    watch.check_invariants()

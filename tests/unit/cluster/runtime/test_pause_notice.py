"""Who may think that this node serves no clients, after it has said so."""

from __future__ import annotations

import pytest

from cluster.runtime.pause_notice import PauseNotice
from node.ids import NodeName

N2, N3 = NodeName("n2"), NodeName("n3")
SILENCE_MS = 5000


@pytest.fixture
def notice() -> PauseNotice:
    """Given, to two peers who have heard it."""
    notice = PauseNotice(SILENCE_MS)
    for peer in (N2, N3):
        notice.link_up(peer)
    notice.give()
    for peer in (N2, N3):
        notice.heard(peer, notice.standing)
    return notice


def test_it_is_over_when_all_have_heard_so_and_stays_it(notice: PauseNotice) -> None:
    assert (notice.is_given, notice.over_for_all_ms(0)) == (True, None)
    notice.take_back()
    notice.take_back()
    assert (notice.is_given, notice.over_for_all_ms(0)) == (False, None)
    assert notice.unheard_by(10) == [N2, N3]
    notice.heard(N2, notice.standing)
    assert notice.over_for_all_ms(20) is None
    notice.heard(N3, notice.standing)
    assert notice.over_for_all_ms(30) == 30
    assert notice.over_for_all_ms(40) == 30
    notice.give()
    assert notice.over_for_all_ms(50) is None
    notice.check_invariants()


def test_an_answer_to_what_was_said_before_does_not_count(notice: PauseNotice) -> None:
    notice.take_back()
    before = notice.standing
    notice.give()
    notice.give()
    notice.take_back()
    notice.heard(N2, before)
    notice.heard(N3, notice.standing)
    assert notice.unheard_by(0) == [N2]


def test_a_peer_that_heeds_no_notice_need_not_have_heard(notice: PauseNotice) -> None:
    notice.take_back()
    notice.heard(N2, None)
    notice.heard(N3, notice.standing)
    assert notice.over_for_all_ms(0) == 0
    notice.link_down(N2, 10)
    assert notice.unheard_by(10) == []


def test_a_peer_whose_link_broke_notices_after_a_silence(notice: PauseNotice) -> None:
    notice.link_down(N2, 1000)
    notice.take_back()
    notice.heard(N3, notice.standing)
    assert notice.unheard_by(1000 + SILENCE_MS - 1) == [N2]
    assert notice.over_for_all_ms(1000 + SILENCE_MS) == 1000 + SILENCE_MS
    notice.check_invariants()


def test_a_peer_whose_link_broke_before_it_heard_likewise(notice: PauseNotice) -> None:
    notice.take_back()
    notice.heard(N3, notice.standing)
    notice.link_down(N2, 1000)
    notice.link_down(N3, 1000)
    assert notice.unheard_by(1000) == [N2]


def test_a_peer_that_is_linked_anew_or_gone_has_forgotten(notice: PauseNotice) -> None:
    notice.link_down(N2, 0)
    notice.link_down(N3, 0)
    notice.take_back()
    notice.link_up(N2)
    notice.peer_gone(N3)
    assert notice.over_for_all_ms(10) == 10
    assert notice.linked_peers == [N2]
    notice.check_invariants()


def test_what_is_heard_of_no_link_is_nothing() -> None:
    notice = PauseNotice(SILENCE_MS)
    notice.heard(N2, 3)
    assert notice.linked_peers == []
    notice.check_invariants()

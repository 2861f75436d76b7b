"""Whose alarms count, and what clients are told."""

from __future__ import annotations

import pytest

from node.alarms.registry import Alarm, AlarmRegistry, alarm_reason
from node.ids import NodeName

N1, N2, N3, N4, N5 = (NodeName(f"n{number}") for number in range(1, 6))
MEMORY, DISK = Alarm.MEMORY, Alarm.DISK


@pytest.fixture
def registry() -> AlarmRegistry:
    """On n1; n2 and n3 are up."""
    registry = AlarmRegistry(N1)
    for node in (N2, N3):
        registry.node_up(node)
    return registry


@pytest.mark.parametrize(
    ("alarms", "reason"),
    [
        ([], ""),
        ([MEMORY], "low on memory"),
        ([DISK], "low on disk"),
        ([DISK, MEMORY, DISK], "low on memory & disk"),
    ],
)
def test_the_reason_names_what_is_short(alarms: list[Alarm], reason: str) -> None:
    assert alarm_reason(alarms) == reason


def test_an_alarm_of_any_node_counts_until_that_node_clears_it(registry: AlarmRegistry) -> None:
    assert registry.reason == ""
    assert registry.update(N2, {DISK})
    assert registry.update(N1, {MEMORY})
    assert registry.reason == "low on memory & disk"
    assert registry.own == frozenset((MEMORY,))
    assert registry.raised() == [(N1, MEMORY), (N2, DISK)]
    assert registry.update(N1, {DISK, MEMORY})
    assert registry.raised() == [(N1, MEMORY), (N1, DISK), (N2, DISK)]
    assert registry.update(N1, ())
    assert registry.reason == "low on disk"
    assert registry.update(N2, ())
    assert registry.reason == ""
    registry.check_invariants()


def test_what_was_known_is_no_news(registry: AlarmRegistry) -> None:
    assert not registry.update(N2, ())
    registry.update(N2, {DISK})
    assert not registry.update(N2, {DISK})


def test_who_was_never_up_counts_from_then_on_and_takes_its_alarms_with_it(registry: AlarmRegistry) -> None:
    """A node that joins says so before it is a member, and nobody declares it down if it dies until then."""
    registry.update(N4, {DISK})
    assert registry.reason == ""
    registry.node_up(N4)
    assert registry.raised() == [(N4, DISK)]
    registry.update(N5, {MEMORY})
    registry.link_lost(N5)
    registry.node_up(N5)
    assert registry.raised() == [(N4, DISK)]


def test_a_lost_link_alone_clears_nothing(registry: AlarmRegistry) -> None:
    """It may be the network: the node lives, and so does its shortage."""
    registry.update(N2, {MEMORY})
    registry.link_lost(N2)
    assert registry.reason == "low on memory"


def test_a_dead_node_takes_its_alarms_with_it(registry: AlarmRegistry) -> None:
    registry.update(N2, {MEMORY})
    registry.update(N3, {DISK})
    registry.link_lost(N2)
    registry.node_down(N2, is_linked=False)
    assert registry.raised() == [(N3, DISK)]
    registry.node_up(N2)
    assert registry.raised() == [(N3, DISK)], "its next life says for itself what it is short of"


def test_down_first_and_cut_later_comes_to_the_same(registry: AlarmRegistry) -> None:
    registry.update(N2, {MEMORY})
    registry.node_down(N2, is_linked=True)
    assert registry.reason == ""
    registry.link_lost(N2)
    registry.node_up(N2)
    assert registry.reason == ""


def test_a_node_declared_down_by_mistake_comes_back_with_its_alarms(registry: AlarmRegistry) -> None:
    registry.update(N2, {MEMORY})
    registry.node_down(N2, is_linked=True)
    registry.node_up(N2)
    assert registry.reason == "low on memory"


def test_being_declared_down_does_not_make_room_here(registry: AlarmRegistry) -> None:
    registry.update(N1, {MEMORY})
    registry.node_down(N1, is_linked=False)
    assert registry.reason == "low on memory"
    registry.check_invariants()


def test_peers_with_an_alarm_are_known_whether_it_counts_or_not(registry: AlarmRegistry) -> None:
    registry.update(N1, {DISK})
    registry.update(N2, {MEMORY})
    registry.update(N3, {MEMORY})
    registry.node_down(N3, is_linked=True)
    assert registry.alarmed_peers == [N2, N3]
    registry.link_lost(N3)
    registry.update(N2, ())
    assert registry.alarmed_peers == []

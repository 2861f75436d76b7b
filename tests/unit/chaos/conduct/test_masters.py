"""Promotions, as they follow from what nodes say again and again."""

from __future__ import annotations

import pytest

from chaos.conduct.masters import LAG_US, MasterWatch
from chaos.record.kinds import Heir, Kind
from chaos.targets.target import QueueView
from tests.support.recorded_rows import RecordedRows

BEGAN_US = 10_000_000


def view(
    master: int | None,
    life: str = "",
    epoch: int | None = None,
    mirrors: tuple[int, ...] = (),
    synchronised: tuple[int, ...] = (),
    ready: int = 0,
) -> QueueView:
    return QueueView("q", master, mirrors, synchronised, ready, epoch=epoch, incarnation=life)


class Scene:
    """A queue that is watched; times in milliseconds since the watch began."""

    def __init__(self) -> None:
        self.rows = RecordedRows()
        self.down: set[int] = set()
        self.watch = MasterWatch(7, self.rows, BEGAN_US, lambda node: node not in self.down)

    def said(self, node: int, what: QueueView, asked_ms: int, answered_ms: int | None = None) -> None:
        answered_us = BEGAN_US + 1000 * (asked_ms + 5 if answered_ms is None else answered_ms)
        self.watch.said(node, what, BEGAN_US + 1000 * asked_ms, answered_us)
        self.watch.check_invariants()

    def promotions(self) -> list[tuple[int, int, int, int]]:
        """Node, epoch, since and at in milliseconds."""
        return [
            (
                int(row.others.get("node", 0)),
                int(row.others["epoch"]),
                (since - BEGAN_US) // 1000,
                (at - BEGAN_US) // 1000,
            )
            for row, (since, at) in zip(self.rows.rows, self.rows.times_us, strict=True)
            if row.kind is Kind.PROMOTED
        ]


def test_a_first_master_is_no_failover() -> None:
    scene = Scene()
    scene.said(1, view(1, "a"), 0)
    scene.said(2, view(1, "a"), 0)
    assert scene.rows.rows == []
    assert scene.watch.failovers == 0


def test_a_new_life_was_promoted_since_that_node_named_another_one() -> None:
    scene = Scene()
    scene.said(1, view(1, "a"), 2_000)
    scene.said(2, view(1, "a"), 2_900)
    scene.said(2, view(None), 3_000)
    scene.said(2, view(3, "b"), 4_000, 4_020)
    lag_ms = LAG_US // 1000
    assert scene.promotions() == [(3, 2, 2_900 - lag_ms, 4_020)]
    assert scene.watch.failovers == 1


def test_of_a_node_that_has_named_nobody_yet_nothing_is_known_since_the_beginning() -> None:
    scene = Scene()
    scene.said(1, view(1, "a"), 50_000)
    scene.said(3, view(2, "b"), 50_100, 50_110)
    assert scene.promotions() == [(2, 2, 0, 50_110)]


def test_the_same_node_is_promoted_again_when_it_was_begun_anew() -> None:
    scene = Scene()
    scene.said(1, view(1, "<n1.1>"), 2_000)
    scene.said(1, view(1, "<n1.2>"), 9_000, 9_005)
    assert scene.promotions() == [(1, 2, 1_000, 9_005)]


def test_who_is_late_says_nothing_new() -> None:
    scene = Scene()
    for node in (1, 2, 3):
        scene.said(node, view(1, "a"), 1_000)
    scene.said(2, view(2, "b"), 2_000)
    scene.said(3, view(1, "a"), 2_100)
    scene.said(3, view(2, "b"), 2_300)
    assert len(scene.promotions()) == 1


def test_epochs_that_nobody_saw_are_counted() -> None:
    scene = Scene()
    scene.said(1, view(1, epoch=3), 2_000)
    scene.said(1, view(3, epoch=6), 3_000, 3_001)
    assert scene.promotions() == [(0, 4, 1_000, 3_001), (0, 5, 1_000, 3_001), (3, 6, 1_000, 3_001)]
    assert scene.watch.failovers == 3
    scene.said(2, view(2, epoch=5), 3_100)
    assert scene.watch.failovers == 3


def test_what_is_so_is_what_most_of_those_say_that_answer() -> None:
    scene = Scene()
    for node in (1, 2, 3):
        scene.said(node, view(1, "a"), 1_000)
    scene.said(2, view(2, "b", ready=5), 2_000)
    assert scene.watch.current is not None
    assert scene.watch.current.master == 1
    scene.watch.silent(1)
    assert scene.watch.current.master == 1
    scene.said(2, view(2, "b", ready=6), 2_200)
    assert (scene.watch.current.master, scene.watch.current.ready) == (2, 6)
    scene.watch.silent(2)
    scene.watch.silent(3)
    assert scene.watch.current is None


def test_the_latest_word_counts_of_those_that_agree() -> None:
    scene = Scene()
    scene.said(1, view(1, "a", ready=1), 1_000)
    scene.said(2, view(1, "a", ready=2), 1_100)
    scene.said(1, view(1, "a", ready=3), 1_200)
    assert scene.watch.current == view(1, "a", ready=3)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (view(1, "a"), view(1, "a", mirrors=(2,)), [(Kind.MIRROR_JOINED, 2)]),
        (view(1, "a", mirrors=(2, 3)), view(1, "a", mirrors=(3,)), [(Kind.MIRROR_LEFT, 2)]),
        (view(1, "a", mirrors=(2,)), view(1, "a", mirrors=(2,), synchronised=(2,)), [(Kind.SYNC_END, 2)]),
        (view(1, "a", mirrors=(2,)), view(1, "a", mirrors=(2,)), []),
    ],
)
def test_mirrors_come_and_go_between_two_looks(
    before: QueueView, after: QueueView, expected: list[tuple[Kind, int]]
) -> None:
    scene = Scene()
    scene.said(1, before, 1_000)
    scene.said(1, after, 2_000, 2_010)
    assert [(row.kind, row.others["node"]) for row in scene.rows.rows] == expected
    assert scene.rows.times_us == [(BEGAN_US + 1_000_000, BEGAN_US + 2_010_000)] * len(expected)


def test_what_came_while_nobody_answered_is_compared_with_what_was_before() -> None:
    scene = Scene()
    scene.said(1, view(1, "a", mirrors=(2,)), 1_000)
    scene.watch.silent(1)
    scene.said(1, view(1, "a"), 9_000, 9_001)
    assert [row.kind for row in scene.rows.rows] == [Kind.MIRROR_LEFT]
    assert scene.rows.times_us == [(BEGAN_US + 1_000_000, BEGAN_US + 9_001_000)]


@pytest.mark.parametrize(
    ("synchronised", "down", "master", "heir"),
    [
        ((3, 2), {1}, 3, Heir.OLDEST_SYNCHRONISED),
        ((3, 2), {1}, 2, Heir.SYNCHRONISED),
        ((3, 2), {1, 3}, 2, Heir.OLDEST_SYNCHRONISED),
        ((2,), {1}, 2, Heir.OLDEST_SYNCHRONISED),
        ((2,), {1}, 3, Heir.WRONG),
        ((), {1}, 3, Heir.NONE_SYNCHRONISED),
        ((2,), {1, 2}, 3, Heir.NONE_SYNCHRONISED),
        ((3, 2), {1}, 1, Heir.UNKNOWN),
    ],
)
def test_who_followed_is_told_as_it_was_seen(
    synchronised: tuple[int, ...], down: set[int], master: int, heir: Heir
) -> None:
    scene = Scene()
    scene.said(2, view(1, "a", 4, mirrors=(3, 2), synchronised=synchronised), 0)
    scene.down = down
    scene.said(2, view(None, "", 4), 100)
    scene.said(2, view(master, "b", 5), 200)
    [promoted] = [row for row in scene.rows.rows if row.kind is Kind.PROMOTED]
    assert promoted.others.get("number", 0) == heir


def test_of_a_promotion_that_was_not_seen_nobody_tells_who_followed() -> None:
    scene = Scene()
    scene.said(2, view(1, "a", 4, mirrors=(3, 2), synchronised=(3, 2)), 0)
    scene.said(2, view(3, "b", 6), 200)
    numbers = [row.others.get("number", 0) for row in scene.rows.rows if row.kind is Kind.PROMOTED]
    assert numbers == [Heir.UNKNOWN, Heir.UNKNOWN]

"""Who is meant: words of a step, and how the cluster stands."""

from __future__ import annotations

from random import Random

import pytest

from chaos.conduct.selecting import NobodyMeant, Scene, select_lines, select_nodes
from chaos.harm.lines import CLIENTS, Line
from chaos.plan.words import lines, nodes
from chaos.targets.target import QueueView

ORDERS = QueueView("orders", master=2, mirrors=(3, 1, 5), synchronised=(3, 5))
SCENE = Scene((1, 2, 3, 4, 5), frozenset({1, 2, 3, 5}), {"orders": ORDERS})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n4, n1", (4, 1)),
        ("master of orders", (2,)),
        ("oldest mirror of orders", (3,)),
        ("newest mirror of orders", (5,)),
        ("every mirror of orders", (3, 1, 5)),
        ("every synchronised mirror of orders", (3, 5)),
        ("oldest unsynchronised mirror of orders", (1,)),
        ("all nodes", (1, 2, 3, 4, 5)),
        ("all but master of orders", (1, 3, 4, 5)),
        ("all but n1, n2", (3, 4, 5)),
    ],
)
def test_nodes_that_are_no_matter_of_chance(text: str, expected: tuple[int, ...]) -> None:
    assert select_nodes(nodes(text), SCENE, Random(1)) == expected


def test_random_nodes_are_among_those_that_run() -> None:
    drawn = {select_nodes(nodes("2 random nodes"), SCENE, Random(seed)) for seed in range(100)}
    assert {node for pair in drawn for node in pair} == {1, 2, 3, 5}
    assert {len(set(pair)) for pair in drawn} == {2}


@pytest.mark.parametrize(("text", "size"), [("a minority", 2), ("a majority", 3)])
def test_a_share_is_of_all_nodes(text: str, size: int) -> None:
    drawn = {select_nodes(nodes(text), SCENE, Random(seed)) for seed in range(100)}
    assert {len(each) for each in drawn} == {size}
    assert {node for each in drawn for node in each} == {1, 2, 3, 4, 5}


def test_two_shares_of_one_phrase_are_a_whole() -> None:
    for seed in range(20):
        between = select_lines(lines("a minority <-> a majority"), SCENE, Random(seed))
        sides = {frozenset({line.source, line.destination}) for line in between}
        assert len(between) == 2 * 2 * 3
        assert len(sides) == 2 * 3


def test_what_is_drawn_by_chance_is_drawn_once_for_a_phrase() -> None:
    for seed in range(20):
        around = select_lines(lines("a random node <-> all but a random node"), SCENE, Random(seed))
        sources = [line.source for line in around]
        middle = max(set(sources), key=sources.count)
        others = {1, 2, 3, 4, 5} - {middle}
        assert set(around) == {Line(middle, other) for other in others} | {Line(other, middle) for other in others}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clients -> master of orders", [Line(CLIENTS, 2)]),
        ("master of orders -> every mirror of orders", [Line(2, 1), Line(2, 3), Line(2, 5)]),
        ("n1 <-> clients", [Line(CLIENTS, 1), Line(1, CLIENTS)]),
        ("n4 -> all nodes", [Line(4, 1), Line(4, 2), Line(4, 3), Line(4, 5)]),
    ],
)
def test_lines_are_directed(text: str, expected: list[Line]) -> None:
    assert select_lines(lines(text), SCENE, Random(1)) == expected


@pytest.mark.parametrize(
    ("text", "view", "reason"),
    [
        ("master of orders", None, "nobody has told of the queue yet"),
        ("master of orders", QueueView("orders", master=None), "there is nobody"),
        ("every mirror of orders", QueueView("orders", master=1), "there is nobody"),
        ("5 random nodes", ORDERS, "only 4 run"),
    ],
)
def test_nobody_is_meant(text: str, view: QueueView | None, reason: str) -> None:
    scene = Scene(SCENE.nodes, SCENE.running, {} if view is None else {"orders": view})
    with pytest.raises(NobodyMeant, match=reason):
        select_nodes(nodes(text), scene, Random(1))


def test_a_node_has_no_line_to_itself() -> None:
    with pytest.raises(NobodyMeant, match="no line from a node to itself"):
        select_lines(lines("n1 -> n1"), SCENE, Random(1))

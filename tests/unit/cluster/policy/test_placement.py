"""Placement as a table: what is, what runs, what the mode suggests."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.policy.placement import CurrentPlacement, Suggestion, preferred_master_nodes, suggest_nodes
from node.ids import NodeName

#: Definition, mirrors now ("*" synchronised) of master "m", running nodes, master and mirrors suggested.
TABLE: list[tuple[dict[str, Any], str, str, str]] = [
    ({}, "a* b", "m a b", "m"),
    ({"ha-mode": "all"}, "", "a m b", "m a b"),
    ({"ha-mode": "all"}, "b", "a m b", "m b a"),
    ({"ha-mode": "all"}, "", "m", "m"),
    ({"ha-mode": "exactly", "ha-params": 1}, "a*", "m a b", "m"),
    ({"ha-mode": "exactly", "ha-params": 2}, "", "c m a", "m c"),
    ({"ha-mode": "exactly", "ha-params": 3}, "b", "a b c m", "m b a"),
    ({"ha-mode": "exactly", "ha-params": 5}, "b", "a b m", "m b a"),
    ({"ha-mode": "exactly", "ha-params": 2}, "a* b*", "m a b", "m a"),
    ({"ha-mode": "exactly", "ha-params": 2}, "a b*", "m a b", "m b"),
    ({"ha-mode": "exactly", "ha-params": 3}, "a b c*", "m a b c", "m a c"),
    ({"ha-mode": "nodes", "ha-params": ["m", "a"]}, "", "m a b", "m a"),
    ({"ha-mode": "nodes", "ha-params": ["a", "m", "a"]}, "", "m a b", "m a"),
    ({"ha-mode": "nodes", "ha-params": ["a", "b"]}, "", "m a b", "m a b"),
    ({"ha-mode": "nodes", "ha-params": ["a", "b"]}, "b*", "m a b", "b a"),
    ({"ha-mode": "nodes", "ha-params": ["a", "b"]}, "b* a*", "m a b", "a b"),
    ({"ha-mode": "nodes", "ha-params": ["a", "b"]}, "c*", "m a b c", "m a b"),
    ({"ha-mode": "nodes", "ha-params": ["x"]}, "a*", "m a", "m"),
    ({"ha-mode": "nodes", "ha-params": ["a", "x"]}, "", "m a", "m a"),
]


@pytest.mark.parametrize(("definition", "mirrors", "running", "suggested"), TABLE)
def test_placement(definition: dict[str, Any], mirrors: str, running: str, suggested: str) -> None:
    now = CurrentPlacement(
        NodeName("m"),
        tuple(NodeName(word.rstrip("*")) for word in mirrors.split()),
        tuple(NodeName(word.rstrip("*")) for word in mirrors.split() if word.endswith("*")),
    )
    suggestion = suggest_nodes(definition, now, [NodeName(word) for word in running.split()])
    assert " ".join([suggestion.master, *suggestion.mirrors]) == suggested


@pytest.mark.parametrize(
    ("definition", "nodes"),
    [
        ({}, ["a", "b"]),
        ({"ha-mode": "nodes", "ha-params": ["x", "b"]}, ["b"]),
        ({"ha-mode": "nodes", "ha-params": ["x"]}, ["a", "b"]),
    ],
)
def test_the_locator_chooses_among_listed_nodes(definition: dict[str, Any], nodes: list[str]) -> None:
    assert preferred_master_nodes(definition, [NodeName("a"), NodeName("b")]) == nodes


@pytest.mark.parametrize(
    "definition",
    [
        {"ha-mode": "some"},
        {"ha-mode": ["all"]},
        {"ha-mode": "exactly", "ha-params": "2"},
        {"ha-mode": "exactly", "ha-params": 1.5},
        {"ha-mode": "exactly"},
        {"ha-mode": "nodes", "ha-params": [["n2"]]},
        {"ha-mode": "nodes", "ha-params": 5},
        {"ha-mode": "nodes"},
    ],
)
def test_a_mode_that_cannot_be_used_counts_as_absent(definition: dict[str, Any]) -> None:
    running = [NodeName("n1"), NodeName("n2")]
    assert suggest_nodes(definition, CurrentPlacement(NodeName("n1")), running) == Suggestion(NodeName("n1"), ())
    assert preferred_master_nodes(definition, running) == running

"""What a scenario's phrases mean, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest

from chaos.plan.words import (
    Condition,
    Lines,
    Nodes,
    PlanError,
    Quantity,
    Role,
    Which,
    condition,
    duration_s,
    lines,
    nodes,
    size_bytes,
)

MASTER = Nodes(role=Role.MASTER, queue="orders")


def test_durations_and_sizes() -> None:
    assert [duration_s(text) for text in ("250 ms", "3 s", "2 min", "0.5 s", "10s")] == [0.25, 3.0, 120.0, 0.5, 10.0]
    assert [size_bytes(text) for text in ("7 B", "64 KB", "16 MiB")] == [7, 64_000, 16 << 20]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("confirmed >= 5000", Condition(Quantity.CONFIRMED, None, ">=", 5000)),
        ("ready of orders.new > 1", Condition(Quantity.READY, "orders.new", ">", 1)),
        ("running = 3", Condition(Quantity.RUNNING, None, "=", 3)),
    ],
)
def test_conditions(text: str, meant: Condition) -> None:
    assert condition(text) == meant
    assert str(meant) == text


@pytest.mark.parametrize(
    ("comparison", "holding"), [(">=", [5, 6]), ("<=", [4, 5]), ("=", [5]), (">", [6]), ("<", [4])]
)
def test_when_a_condition_holds(comparison: str, holding: list[int]) -> None:
    waited_for = condition(f"confirmed {comparison} 5")
    assert [value for value in (4, 5, 6) if waited_for.holds(value)] == holding


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("n2", Nodes(numbers=(2,))),
        ("n1, n3", Nodes(numbers=(1, 3))),
        ("master of orders", MASTER),
        ("oldest mirror of orders", Nodes(role=Role.MIRROR, queue="orders")),
        (
            "newest synchronised mirror of orders",
            Nodes(role=Role.SYNCHRONISED, which=Which.NEWEST, queue="orders"),
        ),
        (
            "every unsynchronised mirror of orders",
            Nodes(role=Role.UNSYNCHRONISED, which=Which.EVERY, queue="orders"),
        ),
        ("a random node", Nodes(random_count=1)),
        ("2 random nodes", Nodes(random_count=2)),
        ("a minority", Nodes(share="minority")),
        ("all nodes", Nodes(is_all=True)),
        ("all but master of orders", Nodes(role=Role.MASTER, queue="orders", are_others=True)),
        ("all but n1, n3", Nodes(numbers=(1, 3), are_others=True)),
    ],
)
def test_nodes(text: str, meant: Nodes) -> None:
    assert nodes(text) == meant
    assert str(meant) == text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("n1 -> n2", Lines(Nodes(numbers=(1,)), Nodes(numbers=(2,)), False)),
        ("clients <-> n1", Lines(None, Nodes(numbers=(1,)), True)),
        ("master of orders -> clients", Lines(MASTER, None, False)),
    ],
)
def test_lines(text: str, meant: Lines) -> None:
    assert lines(text) == meant
    assert str(meant) == text


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (duration_s, "3", 'write it like "250 ms"'),
        (duration_s, 3, "is no duration"),
        (size_bytes, "1 TB", "is no size"),
        (condition, "confirmed", "is no condition"),
        (condition, "lost >= 1", "nobody counts 'lost'"),
        (condition, "ready >= 1", "it must be 'ready of QUEUE'"),
        (condition, "confirmed of orders >= 1", "it must be 'confirmed'"),
        (nodes, "node 1", "names no nodes"),
        (nodes, "n0", "names no nodes"),
        (nodes, "oldest master of orders", "a queue has one master"),
        (nodes, "mirror of orders", "of mirrors say oldest, newest or every"),
        (nodes, "all but all nodes", "could be left out"),
        (nodes, "all but all but n1", "could be left out"),
        (nodes, ["n1"], "names no nodes"),
        (lines, "n1 - n2", "names no lines"),
        (lines, "n1 -> n2 -> n3", "names no lines"),
        (lines, "clients -> clients", "clients have lines to nodes only"),
        (lines, None, "names no lines"),
    ],
)
def test_what_is_said_of_other_phrases(read: object, text: object, said: str) -> None:
    assert callable(read)
    with pytest.raises(PlanError, match=said):
        read(text)

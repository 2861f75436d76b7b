"""Which policy holds, and what it says together with the arguments."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.metadata.records import PolicyRecord
from cluster.policy.matching import PolicyMatches, matching_policy
from node.queues.options import queue_settings


def policy(name: str, pattern: str, priority: int = 0, apply_to: str = "all", vhost: str = "/") -> PolicyRecord:
    return PolicyRecord(vhost, name, pattern, {"max-length": 1}, priority, apply_to)


@pytest.mark.parametrize(
    ("policies", "kind", "winner"),
    [
        ([], "queue", None),
        ([policy("a", "^ord")], "queue", "a"),
        ([policy("a", "ders")], "queue", "a"),
        ([policy("a", "^ders")], "queue", None),
        ([policy("a", "^ord", 1), policy("b", "^", 2)], "queue", "b"),
        ([policy("a", "^nothing", 9), policy("b", "^", 2)], "queue", "b"),
        ([policy("b", "^"), policy("a", "^")], "queue", "a"),
        ([policy("a", "^", -1), policy("b", "^", -2)], "queue", "a"),
        ([policy("a", "^", vhost="other")], "queue", None),
        ([policy("a", "^", apply_to="exchanges")], "queue", None),
        ([policy("a", "^", apply_to="exchanges")], "exchange", "a"),
        ([policy("a", "^", apply_to="queues")], "exchange", None),
        ([policy("a", "^", apply_to="classic_queues")], "queue", "a"),
    ],
)
def test_the_highest_priority_that_matches_wins(policies: list[PolicyRecord], kind: Any, winner: str | None) -> None:
    found = matching_policy(policies, "/", "orders", kind)
    assert (found.name if found else None) == winner


def test_what_is_remembered_follows_every_change_of_the_policies() -> None:
    """As policies come, change and go the same two objects are asked for each time."""
    matches = PolicyMatches()

    def found() -> list[str | None]:
        matches.check_invariants()
        holding = [matches.of("/", name, "queue") for name in ("orders", "events")]
        return [None if policy is None else f"{policy.name}{policy.priority}" for policy in holding]

    assert found() == [None, None]
    matches.put(policy("a", "^"))
    assert found() == ["a0", "a0"]
    matches.put(policy("b", "^ord", 5))
    assert found() == ["b5", "a0"]
    matches.put(policy("a", "^", 7))
    assert found() == ["a7", "a7"]
    removed = matches.remove("/", "a")
    assert removed is not None
    assert removed.name == "a"
    assert matches.remove("/", "a") is None
    assert found() == ["b5", None]
    matches.restore([policy("c", "ev")])
    assert found() == [None, "c0"]
    assert [*matches.policies] == [("/", "c")]


@pytest.mark.parametrize(
    ("arguments", "definition", "settings"),
    [
        ({"x-max-length": 5}, {}, {"max-length": 5}),
        ({"x-max-length": 5}, {"max-length": 3}, {"max-length": 3}),
        ({"x-message-ttl": 5}, {"message-ttl": 9}, {"message-ttl": 5}),
        ({"x-overflow": "drop-head"}, {"overflow": "reject-publish"}, {"overflow": "drop-head"}),
        ({"x-queue-mode": "lazy"}, {"queue-mode": "default"}, {"queue-mode": "default"}),
        ({"x-queue-mode": "lazy"}, {"max-length": 1}, {"queue-mode": "lazy", "max-length": 1}),
    ],
)
def test_limits_take_the_smaller_and_the_rest_the_argument(
    arguments: dict[str, Any], definition: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert queue_settings(arguments, definition) == settings

"""Committed commands that nobody should have proposed: of another release, or of somebody who has the secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from cluster.composition import Node
from cluster.metadata.codec import encode_request
from cluster.metadata.commands import ChangeTopology, Command, NodeUp, Request, RequestId, SetPolicy
from cluster.metadata.records import PolicyRecord
from cluster.raft.core import ProposalRefusedError
from node.ids import Incarnation, NodeName
from node.topology.commands import DeleteQueue

STRANGER = NodeName("stranger")


def _any(value: object) -> Any:
    """Of the wrong type, and meant to be."""
    return cast(Any, value)


HOSTILE: Mapping[str, Callable[[], Command]] = {
    "a name that is a list": lambda: ChangeTopology(DeleteQueue("/", _any(["q0"])), STRANGER),
    "a vhost that is a number": lambda: ChangeTopology(DeleteQueue(_any(7), "q0"), STRANGER),
    "a policy that is text": lambda: SetPolicy(PolicyRecord("/", "all", "", _any("ha"), 0, "queues")),
    "a policy that is a list": lambda: SetPolicy(PolicyRecord("/", "all", "", _any(["ha-mode"]), 0, "queues")),
    "an incarnation that is text": lambda: NodeUp(STRANGER, _any("one"), "", ""),
}


def propose_hostile(node: Node, number: int, kind: str) -> None:
    """As the leader's own; lost with it."""
    request = Request(RequestId(STRANGER, Incarnation(1), number), HOSTILE[kind]())
    driver = node.raft
    try:
        driver.core.propose(driver._now_ms(), [encode_request(request)])
    except ProposalRefusedError:
        return
    driver._schedule_pump()

"""Which policy holds for an object. What it says together with the object's arguments: `node.queues.options`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from cluster.metadata.records import PolicyRecord
from node.patterns import is_found

_KINDS = {
    "queue": frozenset({"all", "queues", "classic_queues"}),
    "exchange": frozenset({"all", "exchanges"}),
}


def matching_policy(
    policies: Iterable[PolicyRecord], vhost: str, name: str, kind: Literal["queue", "exchange"]
) -> PolicyRecord | None:
    """The one policy of an object: highest priority among those whose pattern is found in the name.

    RabbitMQ leaves open who wins among equal priorities; here it is the first by name, the same on every node.
    """
    kinds = _KINDS[kind]
    best: PolicyRecord | None = None
    for policy in policies:
        if policy.vhost != vhost or policy.apply_to not in kinds:
            continue
        if best is not None and (-policy.priority, policy.name) > (-best.priority, best.name):
            continue
        if is_found(policy.pattern, name):
            best = policy
    return best

"""Which policy holds for an object, and what it says together with the object's own arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from cluster.metadata.records import PolicyRecord

#: Settings for which the smaller of argument and policy holds: both are limits, so both must be kept.
MINIMUM_KEYS = frozenset({"expires", "message-ttl", "max-length", "max-length-bytes"})
#: Settings that the operator may change over the head of a running application: here the policy beats the argument.
POLICY_FIRST_KEYS = frozenset({"queue-mode"})
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
        if re.search(policy.pattern, name):
            best = policy
    return best


def effective_settings(arguments: Mapping[str, Any], definition: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a queue or exchange, by their policy keys: its ``x-`` arguments merged with its policy's definition.

    Limits: the smaller one. ``queue-mode``: the policy. Everything else: the argument.
    """
    settings = dict(definition)
    for argument, value in arguments.items():
        key = argument.removeprefix("x-")
        if key in MINIMUM_KEYS and key in settings:
            settings[key] = min(value, settings[key])
        elif key not in POLICY_FIRST_KEYS or key not in settings:
            settings[key] = value
    return settings

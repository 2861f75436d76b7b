"""Which policies are accepted, with the texts RabbitMQ gives for those that are not.

A setting that is an argument of queues or exchanges as well has one set of limits, that of `node.topology.arguments`:
what they refuse would count as absent when it comes to be used (`node.queues.options`), so it must not be accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cluster.metadata.records import PolicyRecord
from node.errors import WarrenError
from node.patterns import pattern_problem
from node.topology.arguments import problem_of_exchange_argument, problem_of_queue_argument, why_not_carried_out

APPLY_TO = ("all", "queues", "exchanges", "classic_queues")
HA_MODES = ("all", "exactly", "nodes")
#: Longer patterns are mistakes, and every declare has to match them.
MAX_PATTERN_LENGTH = 1024
#: A policy needs a mode before it can say anything else about mirrors.
_NEEDS_HA_MODE = ("ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure")


class PolicyError(WarrenError):
    """The policy cannot be used; the text says why, in RabbitMQ's words where it has some."""


Check = Callable[[Any], str | None]


def _queue_argument(setting: str, what: str) -> Check:
    return _argument(f"x-{setting}", problem_of_queue_argument, what)


def _exchange_argument(setting: str, what: str) -> Check:
    return _argument(setting, problem_of_exchange_argument, what)


def _argument(name: str, problem_of: Callable[[str, Any], str], what: str) -> Check:
    """What the argument may be, the policy may say."""

    def check(value: Any) -> str | None:
        problem = problem_of(name, value)
        return f"{_show(value)} is not a valid {what}: {problem}" if problem else None

    return check


def _ha_mode(value: Any) -> str | None:
    return None if isinstance(value, str) and value in HA_MODES else _no_ha_mode(value)


def _no_ha_mode(value: Any) -> str:
    return f"{_show(value)} is not a valid ha-mode value; there are: {', '.join(HA_MODES)}"


def _choice(key: str, first: str, second: str) -> Check:
    def check(value: Any) -> str | None:
        is_valid = isinstance(value, str) and value in (first, second)
        return None if is_valid else f'{key} must be "{first}" or "{second}", got {_show(value)}'

    return check


def _batch_size(value: Any) -> str | None:
    if type(value) is int and value > 0:
        return None
    return f"ha-sync-batch-size takes an integer greater than 0, {_show(value)} given"


#: Key of a definition -> what its value must be. ``ha-params`` is checked together with ``ha-mode``.
CHECKS: Mapping[str, Check] = {
    "alternate-exchange": _exchange_argument("alternate-exchange", "alternate exchange name"),
    "dead-letter-exchange": _queue_argument("dead-letter-exchange", "dead letter exchange name"),
    "dead-letter-routing-key": _queue_argument("dead-letter-routing-key", "dead letter routing key"),
    "message-ttl": _queue_argument("message-ttl", "message TTL"),
    "expires": _queue_argument("expires", "queue expiry"),
    "max-length": _queue_argument("max-length", "maximum length"),
    "max-length-bytes": _queue_argument("max-length-bytes", "maximum length in bytes"),
    "queue-mode": _queue_argument("queue-mode", "queue-mode value"),
    "queue-version": _queue_argument("queue-version", "queue-version value"),
    "overflow": _queue_argument("overflow", "overflow value"),
    "queue-master-locator": _queue_argument("queue-master-locator", "queue master locator"),
    "ha-mode": _ha_mode,
    "ha-sync-mode": _choice("ha-sync-mode", "manual", "automatic"),
    "ha-sync-batch-size": _batch_size,
    "ha-promote-on-shutdown": _choice("ha-promote-on-shutdown", "always", "when-synced"),
    "ha-promote-on-failure": _choice("ha-promote-on-failure", "always", "when-synced"),
}


def validate_policy(policy: PolicyRecord) -> None:
    """Raises `PolicyError` if the policy must not be stored."""
    if not policy.name:
        raise PolicyError("a policy needs a name")
    if len(policy.pattern) > MAX_PATTERN_LENGTH:
        raise PolicyError(f"pattern is longer than {MAX_PATTERN_LENGTH} characters")
    if problem := pattern_problem(policy.pattern):
        raise PolicyError(f"pattern should be regular expression but gave {problem}")
    if type(policy.priority) is not int:
        raise PolicyError(f"priority should be a number, actually was {_show(policy.priority)}")
    if policy.apply_to not in APPLY_TO:
        raise PolicyError(f"apply-to should be one of {', '.join(APPLY_TO)}, actually was {_show(policy.apply_to)}")
    validate_definition(policy.definition)


def validate_definition(definition: Mapping[str, Any]) -> None:
    """Raises `PolicyError` for an empty definition, an unknown key or a bad value."""
    if not definition:
        raise PolicyError("Definition cannot be empty")
    unknown = [key for key in definition if key not in CHECKS and key != "ha-params"]
    if unknown:
        listed = ",".join(f'<<"{key}">>' for key in unknown)
        known = ", ".join(sorted(key for key in (*CHECKS, "ha-params") if not why_not_carried_out(f"x-{key}")))
        raise PolicyError(f"[{listed}] are not recognised policy settings; there are: {known}")
    for key, value in definition.items():
        complaint = CHECKS[key](value) if key != "ha-params" else None
        if complaint is not None:
            raise PolicyError(complaint)
    _validate_ha_params(definition)


def check_carried_out(definition: Mapping[str, Any]) -> None:
    """Raises `PolicyError` for a setting that nothing would come of. What is committed stands."""
    for key in definition:
        if problem := why_not_carried_out(f"x-{key}"):
            raise PolicyError(f"{key} cannot be set: {problem}")


def _validate_ha_params(definition: Mapping[str, Any]) -> None:
    if definition.get("ha-mode") is None:
        if any(key in definition for key in _NEEDS_HA_MODE):
            listed = f"{', '.join(_NEEDS_HA_MODE[:-1])} or {_NEEDS_HA_MODE[-1]}"
            raise PolicyError(f"ha-mode must be specified to specify {listed}")
    elif problem := problem_of_mode(definition):
        raise PolicyError(problem)


def problem_of_mode(definition: Mapping[str, Any]) -> str:
    """Why ``ha-mode`` with its ``ha-params`` says nothing about where replicas belong; empty if it does."""
    mode, params = definition.get("ha-mode"), definition.get("ha-params")
    if mode == "all":
        return "" if params is None else 'ha-mode="all" does not take parameters: leave ha-params out'
    if mode == "exactly":
        is_valid = type(params) is int and params >= 1
        remedy = "set ha-params to a number of copies, 1 or more"
        return "" if is_valid else f'ha-mode="exactly" takes an integer, {_show(params)} given: {remedy}'
    if mode != "nodes":
        return _no_ha_mode(mode)
    if not isinstance(params, (list, tuple)) or not all(isinstance(node, str) for node in params):
        remedy = "set ha-params to a list of names of nodes"
        return f'ha-mode="nodes" takes a list of strings, {_show(params)} given: {remedy}'
    return "" if params else 'ha-mode="nodes" list must be nonempty: set ha-params to the names of one node or more'


def usable_setting(definition: Mapping[str, Any], key: str, default: Any) -> Any:
    """What a stored definition says about ``key``; a value that cannot be used counts as absent."""
    return definition[key] if key in definition and CHECKS[key](definition[key]) is None else default


def _show(value: Any) -> str:
    return f'<<"{value}">>' if isinstance(value, str) else "none" if value is None else str(value)

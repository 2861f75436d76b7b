"""What arguments and policy together ask of a queue or an exchange.

An argument counts under its own name only: those of a queue begin with ``x-`` (``x-max-length``), the one of an
exchange does not (``alternate-exchange``). Any other name is stored, listed, and means nothing. In a policy the same
settings have no prefix (``max-length``); what comes out of here is named as in a policy.

Arguments are checked when a queue is declared, and policies when they are set (`node.topology.arguments`,
`cluster.policy.validation`), but what is stored may come from a release that checked less. So nothing here raises,
whatever it is given: a value that cannot be used counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.topology.arguments import problem_of_exchange_argument, problem_of_queue_argument

#: Arguments of a queue that a policy can set as well -> their name there.
_QUEUE_SETTINGS: Mapping[str, str] = {
    "x-expires": "expires",
    "x-message-ttl": "message-ttl",
    "x-max-length": "max-length",
    "x-max-length-bytes": "max-length-bytes",
    "x-overflow": "overflow",
    "x-dead-letter-exchange": "dead-letter-exchange",
    "x-dead-letter-routing-key": "dead-letter-routing-key",
    "x-queue-mode": "queue-mode",
    "x-queue-version": "queue-version",
    "x-queue-master-locator": "queue-master-locator",
}
_ARGUMENT_OF: Mapping[str, str] = {setting: argument for argument, setting in _QUEUE_SETTINGS.items()}
#: Settings of which the smaller of argument and policy counts: both are limits, so both must be kept (RabbitMQ).
_SMALLER_WINS = ("expires", "message-ttl", "max-length", "max-length-bytes")
#: Settings that the operator may change over the head of a running application: here the policy beats the argument.
_POLICY_WINS = ("queue-mode",)
#: An argument only: a policy cannot change how many consumers are active.
_SINGLE_ACTIVE_CONSUMER = "x-single-active-consumer"
ALTERNATE_EXCHANGE = "alternate-exchange"


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Settings of one queue process. Limits count ready messages only, not the unacked ones."""

    max_length: int | None = None
    #: Sum of the body bytes.
    max_length_bytes: int | None = None
    #: At the limit: refuse new messages (``reject-publish``) instead of dropping the oldest (``drop-head``).
    rejects_overflow: bool = False
    #: Only one consumer at a time is served (``x-single-active-consumer``).
    single_active_consumer: bool = False
    #: Mode ``lazy``: messages go to disk at once (``x-queue-mode``, ``queue-mode``).
    is_lazy: bool = False
    #: Generation of the index (``x-queue-version``, ``queue-version``); ``None``: as the node is configured.
    index_version: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.max_length is not None or self.max_length_bytes is not None

    @property
    def refuses_publishes(self) -> bool:
        """It does so when it is full."""
        return self.is_limited and self.rejects_overflow


def queue_settings(arguments: Mapping[str, Any], policy: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for a queue: its arguments and the definition of its policy merged, by the names of a policy.

    Limits: the smaller one. ``queue-mode``: the policy. Everything else: the argument. What a policy says of other
    things (``ha-mode`` ...) is handed on as it is. Unusable values count as absent.
    """
    merged = {
        key: value
        for key, value in policy.items()
        if key not in _ARGUMENT_OF or not problem_of_queue_argument(_ARGUMENT_OF[key], value)
    }
    for name, key in _QUEUE_SETTINGS.items():
        if name not in arguments or problem_of_queue_argument(name, arguments[name]):
            continue
        if key in _SMALLER_WINS and key in merged:
            merged[key] = min(arguments[name], merged[key])
        elif key not in _POLICY_WINS or key not in merged:
            merged[key] = arguments[name]
    return merged


def exchange_settings(arguments: Mapping[str, Any], policy: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for an exchange: ``alternate-exchange`` or nothing; the argument beats the policy."""
    for source in (arguments, policy):
        name = source.get(ALTERNATE_EXCHANGE)
        if name is not None and not problem_of_exchange_argument(ALTERNATE_EXCHANGE, name):
            return {ALTERNATE_EXCHANGE: name}
    return {}


def queue_options(arguments: Mapping[str, Any], policy: Mapping[str, Any] | None = None) -> QueueOptions:
    """Options of a queue declared with ``arguments`` under ``policy``; unusable values count as absent."""
    settings = queue_settings(arguments, policy or {})
    return QueueOptions(
        max_length=settings.get("max-length"),
        max_length_bytes=settings.get("max-length-bytes"),
        rejects_overflow=settings.get("overflow", "drop-head") != "drop-head",
        single_active_consumer=arguments.get(_SINGLE_ACTIVE_CONSUMER) is True,
        is_lazy=settings.get("queue-mode", "default") == "lazy",
        index_version=settings.get("queue-version"),
    )

"""What a queue's arguments and its policy together ask of its queue process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Keys for which the smaller of argument and policy counts: both are limits, so both must be kept (RabbitMQ).
_SMALLER_WINS = ("expires", "message-ttl", "max-length", "max-length-bytes")
#: Keys that the operator may change over the head of a running application: here the policy beats the argument.
_POLICY_WINS = ("queue-mode",)


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


def effective_settings(arguments: Mapping[str, Any], policy: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments (``x-max-length`` ...) and a policy definition (``max-length`` ...) merged, keys without ``x-``.

    Of a queue or an exchange. Limits: the smaller one. ``queue-mode``: the policy. Everything else: the argument.
    """
    merged = dict(policy)
    for name, value in arguments.items():
        key = name.removeprefix("x-")
        if key in _SMALLER_WINS and key in merged:
            merged[key] = min(value, merged[key])
        elif key not in _POLICY_WINS or key not in merged:
            merged[key] = value
    return merged


def queue_options(arguments: Mapping[str, Any], policy: Mapping[str, Any] | None = None) -> QueueOptions:
    """Options of a queue declared with ``arguments`` under ``policy`` (both already validated)."""
    settings = effective_settings(arguments, policy or {})
    return QueueOptions(
        max_length=settings.get("max-length"),
        max_length_bytes=settings.get("max-length-bytes"),
        rejects_overflow=settings.get("overflow", "drop-head") != "drop-head",
        # An argument only: a policy cannot change how many consumers are active.
        single_active_consumer=arguments.get("x-single-active-consumer", False),
        is_lazy=settings.get("queue-mode", "default") == "lazy",
        index_version=settings.get("queue-version"),
    )

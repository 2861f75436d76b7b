"""Checks of the optional arguments (`x-...`) of queues, exchanges and bindings, with RabbitMQ's error texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from node.errors import ChannelError

#: Arguments that decide whether two declarations of a queue are equivalent; all others are kept and not compared.
COMPARED_QUEUE_ARGUMENTS = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-master-locator",
)
#: Arguments that decide whether two declarations of an exchange are equivalent.
COMPARED_EXCHANGE_ARGUMENTS = ("alternate-exchange",)
#: What an argument that was not given is compared as: there are queues of one type, whether clients say so or not.
_VALUES_IF_NOT_GIVEN: Mapping[str, Any] = {"x-queue-type": "classic"}

#: Arguments of quorum queues and streams; a classic queue that ignored them would surprise its owner.
_OTHER_QUEUE_TYPES_ARGUMENTS = frozenset(
    {
        "x-delivery-limit",
        "x-quorum-initial-group-size",
        "x-initial-cluster-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-dead-letter-strategy",
    }
)
#: Likewise of consumers: whoever asks a stream for its beginning would be served from the head of a queue.
_OTHER_QUEUE_TYPES_CONSUMER_ARGUMENTS = frozenset({"x-stream-offset"})
_NOT_OF_CLASSIC_QUEUES = "not an argument of a classic queue"
#: Longest timer the reference accepts: 2**32 - 1 milliseconds.
TIMER_MS_MAX = 0xFFFFFFFF
#: Highest number of priority levels that the reference accepts.
PRIORITY_LEVELS_MAX = 255
HEADERS_MATCH_KINDS = ("all", "any", "all-with-x", "any-with-x")

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT32_MIN = -(2**31)
_INT32_END = 2**31


def describe_queue(vhost: str, name: str) -> str:
    return f"queue '{name}' in vhost '{vhost}'"


def describe_exchange(vhost: str, name: str) -> str:
    return f"exchange '{name}' in vhost '{vhost}'"


def _text_of(value: object) -> str:
    """For an error text. Python refuses to print integers of thousands of digits."""
    try:
        return str(value)
    except ValueError:
        return f"a {type(value).__name__} too long to show"


def _whole_number(minimum: int, maximum: int | None = None) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if type(value) is not int:  # neither true nor a timestamp
            return f"expected a whole number, received '{_text_of(value)}'"
        if value < minimum:
            return f"value {_text_of(value)} is below the minimum {minimum}"
        if maximum is not None and value > maximum:
            return f"value {_text_of(value)} is above the maximum {maximum}"
        return ""

    return check


def _one_of(*allowed: Any) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not any(type(value) is type(each) and value == each for each in allowed):  # 1.0 is not 1
            return f"expected one of {', '.join(str(each) for each in allowed)}, received '{_text_of(value)}'"
        return ""

    return check


def _string(value: Any) -> str:
    return "" if isinstance(value, str) else f"expected a string, received '{_text_of(value)}'"


def _boolean(value: Any) -> str:
    return "" if isinstance(value, bool) else f"expected true or false, received '{_text_of(value)}'"


#: Every argument of a queue that means something; all others are kept and ignored.
_QUEUE_ARGUMENT_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "x-expires": _whole_number(1, TIMER_MS_MAX),
    "x-message-ttl": _whole_number(0, TIMER_MS_MAX),
    "x-max-length": _whole_number(0),
    "x-max-length-bytes": _whole_number(0),
    "x-max-priority": _whole_number(1, PRIORITY_LEVELS_MAX),
    "x-dead-letter-exchange": _string,
    "x-dead-letter-routing-key": _string,
    "x-overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": _one_of("default", "lazy"),
    "x-queue-version": _one_of(1, 2),
    "x-queue-type": _one_of("classic"),
    "x-queue-master-locator": _one_of("client-local", "min-masters", "random"),
    "x-single-active-consumer": _boolean,
}

_NO_EXPIRY = "messages do not expire in this release"
_NO_DEAD_LETTERS = "nothing is dead-lettered in this release"
#: Those that are understood, and not carried out -> what the client must know. Only new declarations are refused for
#: them: queues of earlier releases have them, and go on.
_NOT_CARRIED_OUT: Mapping[str, str] = {
    "x-expires": "queues do not expire in this release",
    "x-message-ttl": _NO_EXPIRY,
    "x-max-priority": "there are no priorities in this release",
    "x-dead-letter-exchange": _NO_DEAD_LETTERS,
    "x-dead-letter-routing-key": _NO_DEAD_LETTERS,
    "x-queue-leader-locator": "not an argument of a classic queue, whose master is placed by x-queue-master-locator",
}

#: Every argument of a consumer that means something. What does not fit 64 bits could not be said to the node where the
#: queue is.
_CONSUMER_ARGUMENT_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "x-priority": _whole_number(_INT64_MIN, _INT64_MAX),
    "x-cancel-on-ha-failover": _boolean,
}

#: As above, of an exchange. No ``x-`` here (RabbitMQ).
_EXCHANGE_ARGUMENT_CHECKS: Mapping[str, Callable[[Any], str]] = {"alternate-exchange": _string}


def problem_of_queue_argument(name: str, value: Any) -> str:
    """Why the value of an argument of a queue cannot be used; empty if it can, or if ``name`` means nothing."""
    check = _QUEUE_ARGUMENT_CHECKS.get(name)
    return check(value) if check is not None else ""


def problem_of_exchange_argument(name: str, value: Any) -> str:
    """As `problem_of_queue_argument`."""
    check = _EXCHANGE_ARGUMENT_CHECKS.get(name)
    return check(value) if check is not None else ""


def check_consumer_arguments(what: str, arguments: Mapping[str, Any]) -> None:
    """Raises `ChannelError` 406 for a value that ``what``, a consumer, cannot have."""
    for key, value in arguments.items():
        if key in _OTHER_QUEUE_TYPES_CONSUMER_ARGUMENTS:
            problem = _NOT_OF_CLASSIC_QUEUES
        else:
            check = _CONSUMER_ARGUMENT_CHECKS.get(key)
            problem = check(value) if check is not None else ""
        if problem:
            raise ChannelError(406, f"invalid arg '{key}' for {what}: {problem}")


def check_queue_arguments(vhost: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Raises `ChannelError` 406 ``invalid arg`` for a value that cannot be used."""
    for key, value in arguments.items():
        if key in _OTHER_QUEUE_TYPES_ARGUMENTS:
            problem = _NOT_OF_CLASSIC_QUEUES
        else:
            problem = problem_of_queue_argument(key, value)
        if problem:
            raise ChannelError(406, f"invalid arg '{key}' for {describe_queue(vhost, name)}: {problem}")
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise ChannelError(
            406,
            f"invalid arg 'x-dead-letter-routing-key' for {describe_queue(vhost, name)}: "
            "it needs x-dead-letter-exchange as well",
        )


def why_not_carried_out(argument: str) -> str:
    """What a client has to know that relies on this argument of a queue; empty if it can."""
    return _NOT_CARRIED_OUT.get(argument, "")


def check_carried_out(vhost: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Raises `ChannelError` 406 for an argument that nothing would come of. At the client's door, never for what is
    committed."""
    for key in arguments:
        if problem := why_not_carried_out(key):
            raise ChannelError(406, f"invalid arg '{key}' for {describe_queue(vhost, name)}: {problem}")


def check_expiration(expiration: str) -> None:
    """Raises `ChannelError` 406 for this property of a message, whatever it is: it would be delivered too late."""
    if not (expiration.isascii() and expiration.isdigit()):
        raise ChannelError(406, f"invalid expiration '{expiration}': expected a number of milliseconds")
    raise ChannelError(406, f"expiration '{expiration}' cannot be kept: {_NO_EXPIRY}")


def check_exchange_arguments(vhost: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Raises `ChannelError` 406 for an alternate exchange that is not a name."""
    for key, value in arguments.items():
        if problem := problem_of_exchange_argument(key, value):
            raise ChannelError(406, f"invalid arg '{key}' for {describe_exchange(vhost, name)}: {problem}")


def check_headers_binding(arguments: Mapping[str, Any]) -> None:
    """Raises `ChannelError` 406 for an unknown ``x-match`` of a binding to a headers exchange."""
    kind = arguments.get("x-match", "all")
    if kind not in HEADERS_MATCH_KINDS:
        raise ChannelError(
            406, f"invalid x-match field value '{_text_of(kind)}'; expected one of {', '.join(HEADERS_MATCH_KINDS)}"
        )


def check_equivalent_field(what: str, field: str, received: object, current: object) -> None:
    """Raises `ChannelError` 406 ``inequivalent arg`` unless the two values of a fixed field agree."""
    if received != current:
        raise ChannelError(
            406,
            f"inequivalent arg '{field}' for {what}: "
            f"received '{_field_text(received)}' but current is '{_field_text(current)}'",
        )


def check_equivalent_arguments(
    what: str, keys: Iterable[str], received: Mapping[str, Any], current: Mapping[str, Any]
) -> None:
    """Raises `ChannelError` 406 ``inequivalent arg`` unless the optional arguments ``keys`` agree."""
    for key in keys:
        unsaid = _VALUES_IF_NOT_GIVEN.get(key)
        new, old = received.get(key, unsaid), current.get(key, unsaid)
        if new != old:
            raise ChannelError(
                406,
                f"inequivalent arg '{key}' for {what}: "
                f"received {_argument_text(new)} but current is {_argument_text(old)}",
            )


def _field_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else _text_of(value)


def _argument_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        kind = "bool"
    elif isinstance(value, int):
        kind = "signedint" if _INT32_MIN <= value < _INT32_END else "long"
    elif isinstance(value, str):
        kind = "longstr"
    else:
        kind = type(value).__name__
    return f"the value '{_field_text(value)}' of type '{kind}'"

"""Names that mean something in every vhost, and the refusals of names that are not there or not free."""

from __future__ import annotations

from collections.abc import Mapping

from node.errors import ChannelError
from node.topology.arguments import describe_exchange, describe_queue
from node.topology.records import QueueRecord

EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers")
DEFAULT_EXCHANGE = ""
#: Exchanges of every vhost: name -> (type, internal). All durable.
PREDECLARED_EXCHANGES: Mapping[str, tuple[str, bool]] = {
    DEFAULT_EXCHANGE: ("direct", False),
    "amq.direct": ("direct", False),
    "amq.fanout": ("fanout", False),
    "amq.topic": ("topic", False),
    "amq.headers": ("headers", False),
    "amq.match": ("headers", False),
    "amq.rabbitmq.trace": ("topic", True),
}
RESERVED_PREFIX = "amq."
#: Prefix of the names that the broker makes for clients; the one reserved prefix that a new queue may have.
SERVER_NAMED_PREFIX = "amq.gen-"


def missing_queue(vhost: str, name: str) -> ChannelError:
    return ChannelError(404, f"no {describe_queue(vhost, name)}")


def missing_exchange(vhost: str, name: str) -> ChannelError:
    return ChannelError(404, f"no {describe_exchange(vhost, name)}")


def locked_queue(queue: QueueRecord) -> ChannelError:
    """The refusal for a connection that does not own an exclusive queue."""
    return ChannelError(
        405,
        f"cannot obtain exclusive access to locked {describe_queue(queue.vhost, queue.name)}. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration.",
    )


def refuse_default_exchange(name: str) -> None:
    """Raises `ChannelError` 403 for the exchange whose bindings are the queues themselves."""
    if name == DEFAULT_EXCHANGE:
        raise ChannelError(403, "operation not permitted on the default exchange")

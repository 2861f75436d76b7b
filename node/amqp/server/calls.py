"""Cold methods as calls of the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pamqp import base, commands

from node.amqp.ports import BrokerChannel


async def _declare_exchange(broker: BrokerChannel, method: Any) -> None:
    await broker.declare_exchange(
        method.exchange,
        method.exchange_type,
        passive=method.passive,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
    )


def _declare_queue(broker: BrokerChannel, method: Any) -> Awaitable[object]:
    return broker.declare_queue(
        method.queue,
        passive=method.passive,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=method.arguments,
    )


#: How to do each method whose answer is awaited. `basic.consume` and the life of the channel are the shell's.
CALLS: dict[type[base.Frame], Callable[[BrokerChannel, Any], Awaitable[object]]] = {
    commands.Exchange.Declare: _declare_exchange,
    commands.Exchange.Delete: lambda broker, m: broker.delete_exchange(m.exchange, if_unused=m.if_unused),
    commands.Exchange.Bind: lambda broker, m: broker.bind_exchange(m.destination, m.source, m.routing_key, m.arguments),
    commands.Exchange.Unbind: lambda broker, m: broker.unbind_exchange(
        m.destination, m.source, m.routing_key, m.arguments
    ),
    commands.Queue.Declare: _declare_queue,
    commands.Queue.Bind: lambda broker, m: broker.bind_queue(m.queue, m.exchange, m.routing_key, m.arguments),
    commands.Queue.Unbind: lambda broker, m: broker.unbind_queue(m.queue, m.exchange, m.routing_key, m.arguments),
    commands.Queue.Purge: lambda broker, m: broker.purge_queue(m.queue),
    commands.Queue.Delete: lambda broker, m: broker.delete_queue(m.queue, if_unused=m.if_unused, if_empty=m.if_empty),
    commands.Basic.Cancel: lambda broker, m: broker.cancel(m.consumer_tag),
    commands.Basic.Get: lambda broker, m: broker.get(m.queue, no_ack=m.no_ack),
}

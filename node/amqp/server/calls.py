"""Cold methods as calls of the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pamqp import base, commands

from node.amqp.ports import BrokerChannel, BrokerDefinitions


async def _declare_exchange(definitions: BrokerDefinitions, method: Any) -> None:
    await definitions.declare_exchange(
        method.exchange,
        method.exchange_type,
        passive=method.passive,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
    )


def _declare_queue(definitions: BrokerDefinitions, method: Any) -> Awaitable[object]:
    return definitions.declare_queue(
        method.queue,
        passive=method.passive,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=method.arguments,
    )


_DEFINITION_CALLS: dict[type[base.Frame], Callable[[BrokerDefinitions, Any], Awaitable[object]]] = {
    commands.Exchange.Declare: _declare_exchange,
    commands.Exchange.Delete: lambda d, m: d.delete_exchange(m.exchange, if_unused=m.if_unused),
    commands.Exchange.Bind: lambda d, m: d.bind_exchange(m.destination, m.source, m.routing_key, m.arguments),
    commands.Exchange.Unbind: lambda d, m: d.unbind_exchange(m.destination, m.source, m.routing_key, m.arguments),
    commands.Queue.Declare: _declare_queue,
    commands.Queue.Bind: lambda d, m: d.bind_queue(m.queue, m.exchange, m.routing_key, m.arguments),
    commands.Queue.Unbind: lambda d, m: d.unbind_queue(m.queue, m.exchange, m.routing_key, m.arguments),
    commands.Queue.Purge: lambda d, m: d.purge_queue(m.queue),
    commands.Queue.Delete: lambda d, m: d.delete_queue(m.queue, if_unused=m.if_unused, if_empty=m.if_empty),
}

_CHANNEL_CALLS: dict[type[base.Frame], Callable[[BrokerChannel, Any], Awaitable[object]]] = {
    commands.Basic.Cancel: lambda channel, m: channel.cancel(m.consumer_tag),
    commands.Basic.Get: lambda channel, m: channel.get(m.queue, no_ack=m.no_ack),
}


def call_broker(channel: BrokerChannel, method: base.Frame) -> Awaitable[object]:
    """Do a method whose answer is awaited; `basic.consume` and the life of the channel are the shell's."""
    kind = type(method)
    if kind in _CHANNEL_CALLS:
        return _CHANNEL_CALLS[kind](channel, method)
    return _DEFINITION_CALLS[kind](channel.definitions, method)

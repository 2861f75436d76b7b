"""What cold methods say, read and answered without regard to the state of their channel."""

from __future__ import annotations

import random
from typing import Any

from pamqp import base, commands

from node.queues.events import ConsumerSpec
from node.topology.arguments import check_consumer_arguments

_CONSUMER_TAG_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_CONSUMER_TAG_RANDOM_CHARACTERS = 22

#: The answer to each method that has one and is not answered in a way of its own.
OK_METHODS: dict[type[base.Frame], type[base.Frame]] = {
    commands.Exchange.Declare: commands.Exchange.DeclareOk,
    commands.Exchange.Delete: commands.Exchange.DeleteOk,
    commands.Exchange.Bind: commands.Exchange.BindOk,
    commands.Exchange.Unbind: commands.Exchange.UnbindOk,
    commands.Queue.Bind: commands.Queue.BindOk,
    commands.Queue.Unbind: commands.Queue.UnbindOk,
    commands.Queue.Purge: commands.Queue.PurgeOk,
    commands.Queue.Delete: commands.Queue.DeleteOk,
}


def new_consumer_tag(chance: random.Random) -> str:
    """For a consumer that its client has given no name."""
    return "amq.ctag-" + "".join(chance.choices(_CONSUMER_TAG_ALPHABET, k=_CONSUMER_TAG_RANDOM_CHARACTERS))


def consumer_spec(method: commands.Basic.Consume, prefetch_count: int, channel_limit: int) -> ConsumerSpec:
    """What ``basic.consume`` asks for, with the prefetch count of its consumers and the limit of the channel. Raises
    `ChannelError` 406."""
    arguments: dict[str, Any] = method.arguments or {}
    check_consumer_arguments(f"consumer '{method.consumer_tag}'", arguments)
    return ConsumerSpec(
        consumer_tag=method.consumer_tag,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        prefetch_count=0 if method.no_ack else prefetch_count,
        priority=arguments.get("x-priority", 0),
        cancel_on_failover=arguments.get("x-cancel-on-ha-failover", False),
        arguments=arguments,
        window=0 if method.no_ack else channel_limit,
    )

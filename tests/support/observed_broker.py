"""The real broker of a node that is alone, behind `node.amqp.ports`: its calls are written down and may be held up.

A harness: nothing here routes, keeps or delivers anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from node.amqp.ports import ChannelSink, ConnectionControl, ConnectionInfo, DeliverySource, PublishRequest, Work
from node.broker import Broker
from node.broker.channel import Channel
from node.broker.connection import Connection
from node.ids import SeqId
from node.queues.queue_process import QueueProcess
from tests.support.broker_bench import BrokerBench


class ObservedBroker:
    """Implements `node.amqp.ports.BrokerPort`. To be made on a running event loop."""

    def __init__(self) -> None:
        self.bench = BrokerBench()
        broker: Broker = self.bench.broker
        #: Somebody else, whose calls are not written down.
        self.admin = self.bench.client()
        self.authenticate = broker.authenticate
        self.server_properties = broker.server_properties
        #: In the order in which they came. `Any`: a test may put something else in the place of what one answers.
        self.connections: list[Any] = []
        self.controls: list[ConnectionControl] = []
        #: Every call of a channel: (name, arguments).
        self.calls: list[tuple[str, Any]] = []
        #: What cold calls wait for, if anything.
        self.hold_calls: asyncio.Event | None = None

    def open_connection(self, info: ConnectionInfo, control: ConnectionControl) -> Any:
        connection = ObservedConnection(self, self.bench.broker.open_connection(info, control))
        self.connections.append(connection)
        self.controls.append(control)
        return connection

    def queue_names(self) -> list[str]:
        return [queue.name for queue in self.bench.catalogue.topology.all_queues()]

    def queue(self, name: str) -> QueueProcess:
        return self.bench.node.process(name)

    async def take(self, name: str) -> list[tuple[bytes, bool]]:
        """Body and redelivered flag of everything ready, which is taken out."""
        taken = []
        while (got := await self.admin.channel.get(name, no_ack=True)) is not None:
            taken.append((got.delivery.message.body, got.delivery.redelivered))
        return taken


class ObservedConnection:
    def __init__(self, broker: ObservedBroker, connection: Connection) -> None:
        self._broker = broker
        self._connection = connection
        self.channels: list[Any] = []
        self.is_closed = False
        #: Otherwise publishes wait, as under an alarm.
        self.is_welcome = True

    def may_publish(self) -> bool:
        return self.is_welcome and self._connection.may_publish()

    def open_channel(self, number: int, sink: ChannelSink) -> Any:
        channel = ObservedChannel(self._broker, self._connection.open_channel(number, sink))
        self.channels.append(channel)
        return channel

    async def close(self) -> None:
        self.is_closed = True
        for channel in self.channels:
            await channel.close()
        await self._connection.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class ObservedChannel:
    """It is its own `definitions`. What is not written out here is a cold call, or not observed."""

    def __init__(self, broker: ObservedBroker, channel: Channel) -> None:
        self._broker = broker
        self._channel = channel
        self.channel_id = channel.channel_id
        self.check_publishes = channel.check_publishes
        self.definitions = self
        self._is_closed = False

    def publish(self, requests: Sequence[PublishRequest]) -> Work | None:
        self._broker.calls.append(("publish", list(requests)))
        return self._channel.publish(requests)

    def ack(self, source: DeliverySource, seq_ids: Sequence[SeqId]) -> None:
        self._broker.calls.append(("ack", list(seq_ids)))
        self._channel.ack(source, seq_ids)

    def requeue(self, source: DeliverySource, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> None:
        self._broker.calls.append(("requeue", list(seq_ids)))
        self._channel.requeue(source, seq_ids, more_follow=more_follow)

    def discard(self, source: DeliverySource, seq_ids: Sequence[SeqId]) -> None:
        self._broker.calls.append(("discard", list(seq_ids)))
        self._channel.discard(source, seq_ids)

    def written(self, source: DeliverySource, consumer_tag: str, count: int) -> None:
        self._broker.calls.append(("written", (consumer_tag, count)))
        self._channel.written(source, consumer_tag, count)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._broker.calls.append(("close", self._channel.number))
            await self._channel.close()

    def __getattr__(self, name: str) -> Any:
        if name == "flow_state":
            return self._channel.flow_state
        call = getattr(self._channel if name in ("consume", "cancel", "get") else self._channel.definitions, name)

        async def cold(*arguments: object, **named: object) -> Any:
            self._broker.calls.append((name, arguments))
            if self._broker.hold_calls is not None:
                await self._broker.hold_calls.wait()
            return await call(*arguments, **named)

        return cold

"""Clients of the conformance cases, and the two oracles by which RabbitMQ's suites judge (C1, C2, C3).

The producer counts down from N to 1 in persistent messages with confirms; every one must be answered, all alike. The
consumer acks what it gets; a number it has not seen must be the next in the sequence, one that it has seen must come
flagged as redelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pamqp import body, commands, frame, header

from chaos.sim.client import Channel, Connection, Delivered

#: Virtual time between two looks of whoever waits for something.
LOOK_S = 0.02
#: What a client that knows nothing of AMQP's extensions says of itself, and what all others say.
NO_CAPABILITIES: Mapping[str, Any] = {}
CAPABILITIES: Mapping[str, Any] = {"consumer_cancel_notify": True, "connection.blocked": True}


class CaseFailed(AssertionError):
    """What a case promises does not hold."""


class ClientConnection(Connection):
    """Says of itself what the case wants it to."""

    def __init__(self, capabilities: Mapping[str, Any]) -> None:
        super().__init__()
        self._capabilities = dict(capabilities)

    def _received(self, number: int, method: Any) -> None:
        if isinstance(method, commands.Connection.Start):
            properties: dict[str, Any] = {"capabilities": self._capabilities} if self._capabilities else {}
            self.send(frame.marshal(commands.Connection.StartOk(properties, "PLAIN", "\0guest\0guest", "en_US"), 0))
        else:
            super()._received(number, method)


def publish_with(
    channel: Channel, queue: str, content: bytes, *, is_persistent: bool = True, priority: int = 0, exchange: str = ""
) -> int:
    """Publish with properties that the simulator's client does not offer; the sequence number."""
    properties = commands.Basic.Properties(delivery_mode=2 if is_persistent else 1, priority=priority or None)
    channel.published += 1
    channel.connection.send(
        frame.marshal(commands.Basic.Publish(0, exchange, queue), channel.number)
        + frame.marshal(header.ContentHeader(0, len(content), properties), channel.number)
        + frame.marshal(body.ContentBody(content), channel.number)
    )
    return channel.published


def numbered(number: int, first: int = 1) -> list[bytes]:
    """So many bodies, in order."""
    return [b"%06d" % n for n in range(first, first + number)]


async def comes_about(condition: Callable[[], object], limit_s: float) -> bool:
    """Wait for it, at most so many virtual seconds; whether it came about."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not condition():
        if loop.time() > end_s:
            return False
        await asyncio.sleep(LOOK_S)
    return True


class Producer:
    """C1. Counts down from ``number``, some messages at a time, so that a fault comes in the midst of them."""

    def __init__(
        self,
        channel: Channel,
        queue: str,
        number: int,
        *,
        last: int = 1,
        pause_ms: float = 1.0,
        at_a_time: int = 10,
    ) -> None:
        """``channel`` is in confirm mode and has published nothing yet."""
        self._channel = channel
        self._queue = queue
        self._numbers = range(number, last - 1, -1)
        self._pause_ms = pause_ms
        self._at_a_time = at_a_time
        self.unconfirmed: dict[int, bytes] = {}
        self.acks = 0
        self.nacks = 0
        #: What an answer named that was not outstanding.
        self.strays: list[int] = []
        self._task = asyncio.get_running_loop().create_task(self._publish())
        channel.on_confirm = self._answered

    async def _publish(self) -> None:
        for number in self._numbers:
            content = b"%d" % number
            self.unconfirmed[self._channel.published + 1] = content
            publish_with(self._channel, self._queue, content)
            if number % self._at_a_time == 0:
                await asyncio.sleep(self._pause_ms / 1000)

    def _answered(self, sequence: int, multiple: bool, is_ack: bool) -> None:
        named = [number for number in self.unconfirmed if number <= sequence] if multiple else [sequence]
        for number in named:
            if self.unconfirmed.pop(number, None) is None:
                self.strays.append(number)
            elif is_ack:
                self.acks += 1
            else:
                self.nacks += 1

    @property
    def is_done(self) -> bool:
        """Everything is published and answered."""
        return self._task.done() and not self.unconfirmed

    async def all_acked(self, limit_s: float = 60.0) -> None:
        """Wait for the answers. Raises `CaseFailed` unless every publish was acked."""
        await self._answers(limit_s)
        if self.nacks:
            raise CaseFailed(f"{self.nacks} of {len(self._numbers)} publishes were nacked")

    async def all_nacked(self, limit_s: float = 60.0) -> None:
        """Likewise, nacked."""
        await self._answers(limit_s)
        if self.acks:
            raise CaseFailed(f"{self.acks} of {len(self._numbers)} publishes were acked")

    async def _answers(self, limit_s: float) -> None:
        await comes_about(lambda: self.is_done or self._channel.closed, limit_s)
        if self._channel.closed is not None:
            raise CaseFailed(f"the producer's channel was closed: {self._channel.closed}")
        if not self.is_done:
            raise CaseFailed(f"{len(self.unconfirmed)} publishes were not answered in {limit_s:g} s")
        self._task.result()
        if self.strays:
            raise CaseFailed(f"answers that name nothing outstanding: {self.strays[:5]}")


class Consumer:
    """C2 and C3. Expects the numbers of a `Producer` from ``number`` down to 1."""

    def __init__(self, channel: Channel, queue: str, number: int, *, cancel_on_failover: bool = False) -> None:
        """``cancel_on_failover``: ask for a word when the queue moves, and resubscribe on the same channel then."""
        self._channel = channel
        self._queue = queue
        self._asks = cancel_on_failover
        #: The lowest number so far; the next new one is one less.
        self.lowest = number + 1
        self.cancels = 0
        self.redelivered = 0
        self.received = 0
        self.mistakes: list[str] = []
        self._subscriptions = 0
        channel.on_deliver = self._delivered
        channel.on_cancel = self._cancelled

    async def subscribe(self) -> None:
        self._subscriptions += 1
        arguments = {"x-cancel-on-ha-failover": True} if self._asks else {}
        await self._channel.consume(self._queue, f"tag-{self._subscriptions}", arguments=arguments)

    def _delivered(self, message: Delivered) -> None:
        number = int(message.body)
        self.received += 1
        if number == self.lowest - 1:
            self.lowest = number
        elif number < self.lowest:
            self.mistakes.append(f"{number} came where {self.lowest - 1} was due")
        elif message.is_redelivered:
            self.redelivered += 1
        else:
            self.mistakes.append(f"{number} came again without the flag, the lowest being {self.lowest}")
        self._channel.ack(message.delivery_tag)

    def _cancelled(self, tag: str) -> None:
        self.cancels += 1
        if not self._asks:
            self.mistakes.append(f"{tag} was cancelled and had not asked for it")
            return
        asyncio.get_running_loop().create_task(self.subscribe())

    async def everything(self, limit_s: float = 60.0) -> None:
        """Wait for number 1. Raises `CaseFailed` for whatever is not as it must be."""
        await comes_about(lambda: self.lowest == 1 or self.mistakes or self._channel.closed, limit_s)
        if self.mistakes:
            raise CaseFailed("; ".join(self.mistakes[:3]))
        if self._channel.closed is not None:
            raise CaseFailed(f"the consumer's channel was closed: {self._channel.closed}")
        if self.lowest > 1:
            raise CaseFailed(f"{self.lowest} was the last that came in {limit_s:g} s")

"""A publisher on its connection."""

from __future__ import annotations

import asyncio

import pika
import pika.frame
import pika.spec

from chaos.clients.adapter import DeliveringChannel
from chaos.clients.body import Bodies
from chaos.clients.client import Client, Counts
from chaos.clients.link import Link
from chaos.clients.options import Orders
from chaos.clients.ports import ChannelNumbers
from chaos.clients.publisher import Publisher
from chaos.record.process_record import ProcessRecord

#: Published in a turn of the loop: then answers are read.
BURST = 64
#: The loop's timers are no finer.
WAIT_US_MIN = 1000
PERSISTENT, TRANSIENT = 2, 1


class Publishing(Client):
    """Publishes what `chaos.clients.publisher` wants."""

    def __init__(self, orders: Orders, record: ProcessRecord, numbers: ChannelNumbers) -> None:
        assert orders.publisher is not None, "orders of a publisher have its options"
        self._options = options = orders.publisher
        self.core = Publisher(options, record)
        super().__init__(orders, self.core, record, numbers)
        self._bodies = Bodies(orders.run, options.body_bytes)
        #: This channel counts what is published.
        self._is_confirming = False
        self._routing_keys = [queue.routing_key or queue.name for queue in options.queues]
        mode = PERSISTENT if options.is_persistent else TRANSIENT
        self._properties = pika.BasicProperties(delivery_mode=mode)  # type: ignore[no-untyped-call]

    def start(self) -> None:
        """Begin, or go on after `drain`."""
        self.core.begin(self._now_us())
        self._woken.set()

    def drain(self) -> None:
        """Publish no new messages."""
        self.core.hold(self._now_us())
        self._woken.set()

    async def _serve(self, link: Link, channel: DeliveringChannel) -> None:
        self._is_confirming = False
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._answered, callback=self._confirming)
        while link.is_open and not self._is_confirming and not self._is_stopping.is_set():
            await self._pause(None)
        while link.is_open and not self._is_stopping.is_set():
            if self._publish_burst(channel):
                await asyncio.sleep(0)
            else:
                wait_us = self.core.wait_us(self._now_us())
                await self._pause(None if wait_us is None else max(wait_us, WAIT_US_MIN))
        deadline_us = self._now_us() + self._orders.stop_timeout_ms * 1000
        while link.is_open and self.core.outstanding and (left_us := deadline_us - self._now_us()) > 0:
            await self._pause(left_us)

    def _confirming(self, _frame: object) -> None:
        self._is_confirming = True
        self._woken.set()

    def _publish_burst(self, channel: DeliveringChannel) -> bool:
        """True if there may be more at once."""
        now_us, core, options = self._now_us, self.core, self._options
        for _ in range(BURST):
            publication = core.next(now_us())
            if publication is None:
                return False
            channel.basic_publish(
                options.exchange,
                self._routing_keys[publication.place],
                self._bodies.encode(publication.key),
                self._properties,
                options.is_mandatory,
            )
        return True

    def _answered(self, frame: pika.frame.Method[pika.spec.Basic.Ack | pika.spec.Basic.Nack]) -> None:
        if self.link is None:
            return
        method = frame.method
        is_taken = isinstance(method, pika.spec.Basic.Ack)
        self.core.answered(method.delivery_tag or 0, bool(method.multiple), is_taken, self.link.read_us)
        self._woken.set()

    def _returned(self, _channel: object, _method: object, _properties: object, body: bytes) -> None:
        if self.link is not None:
            self.core.returned(self._bodies.decode(body).key, self.link.read_us)

    def _end(self) -> None:
        self.core.end(self._now_us())

    def counts(self) -> Counts:
        core = self.core
        return Counts(
            published=core.published,
            confirmed=core.confirmed,
            refused=core.refused,
            given_up=core.given_up,
            outstanding=core.outstanding,
            waiting=core.waiting,
            connected=int(self.link is not None),
            lag_us=core.lag_us(self._now_us()),
            is_drained=core.is_drained,
        )

"""A consumer on its connection."""

from __future__ import annotations

import asyncio
from random import Random

import pika
import pika.spec

from chaos.clients.adapter import DeliveringChannel
from chaos.clients.body import Bodies
from chaos.clients.client import MS_PER_S, Client, Counts
from chaos.clients.consumer import Ack, Ask, Consumer, Nack, Reject
from chaos.clients.link import Link
from chaos.clients.options import Orders, QueueTarget
from chaos.clients.ports import ChannelNumbers
from chaos.record.process_record import ProcessRecord

#: How often it is looked whether something has been held long enough.
TURN_US = 10_000


class Consuming(Client):
    """Does what `chaos.clients.consumer` wants."""

    def __init__(
        self,
        orders: Orders,
        queue: QueueTarget,
        record: ProcessRecord,
        numbers: ChannelNumbers,
        first_endpoint: int,
    ) -> None:
        assert orders.consumer is not None, "orders of a consumer have its options"
        self._options = options = orders.consumer
        self._queue = queue
        # Each consumer of a run has chances of its own.
        chance = Random(f"{options.seed} {orders.process} {queue.index} {first_endpoint}")
        self.core = Consumer(options, queue, record, chance)
        super().__init__(orders, self.core, record, numbers, first_endpoint)
        self._bodies = Bodies(orders.run)
        self._is_started = asyncio.Event()
        self._consumer_tag = ""
        #: The consumer that we have cancelled, and that nobody has confirmed yet.
        self._cancelled_tag = ""
        #: Its turn comes as soon as what was read is handled.
        self._is_due = False

    def start(self) -> None:
        """Subscribe, also again after `cease`."""
        self._is_started.set()
        self._woken.set()

    def cease(self) -> None:
        """Cancel. What it has it settles."""
        self._is_started.clear()
        self._woken.set()

    def hold(self) -> None:
        """Settle nothing."""
        self.core.hold()

    def release(self) -> None:
        """Settle again."""
        self.core.release()
        self._woken.set()

    def drain(self) -> None:
        """Hold nothing and give nothing back from now on."""
        self.core.drain()
        self._woken.set()

    async def _serve(self, link: Link, channel: DeliveringChannel) -> None:
        channel.on_delivery = self._delivered
        channel.add_on_cancel_callback(lambda _frame: self._cancelled())
        channel.basic_qos(prefetch_count=self._options.prefetch)
        pause_s = 0.0
        while link.is_open and not self._is_stopping.is_set():
            if not self._is_started.is_set():
                self._cancel(channel)
                pause_s = 0.0
            elif not self._consumer_tag:
                await asyncio.sleep(pause_s)
                pause_s = self._orders.reconnect_pause_ms / MS_PER_S
                if link.is_open and not self._is_stopping.is_set():
                    self._subscribe(channel)
            self._turn()
            is_idle = not self._is_started.is_set() and not self._consumer_tag and not self.core.outstanding
            await self._pause(None if is_idle else TURN_US)
        if link.is_open:
            await self._finish(link, channel)
        self._consumer_tag = self._cancelled_tag = ""

    def _subscribe(self, channel: DeliveringChannel) -> None:
        self._consumer_tag = channel.basic_consume(
            self._queue.name, on_message_callback=_unused, callback=lambda _frame: self._subscribed()
        )

    def _cancel(self, channel: DeliveringChannel) -> None:
        if self._consumer_tag and self._consumer_tag != self._cancelled_tag:
            self._cancelled_tag = self._consumer_tag
            channel.basic_cancel(self._consumer_tag, callback=lambda _frame: self._unsubscribed())

    async def _finish(self, link: Link, channel: DeliveringChannel) -> None:
        """Take what is on its way, settle and prove all."""
        deadline_us = self._now_us() + self._orders.stop_timeout_ms * 1000
        self._cancel(channel)
        self.core.drain()
        while link.is_open and (left_us := deadline_us - self._now_us()) > 0:
            self._turn()
            if not self._consumer_tag and not self.core.outstanding:
                break
            await self._pause(min(left_us, TURN_US))

    # --- what pika says

    def _delivered(self, method: pika.spec.Basic.Deliver, body: bytes) -> None:
        link = self.link
        if link is None:
            return
        key, is_sound = self._bodies.decode(body)
        is_full = self.core.received(method.delivery_tag or 0, key, is_sound, bool(method.redelivered), link.read_us)
        if is_full and not self._is_due:
            self._is_due = True
            self._loop_turn()

    def _loop_turn(self) -> None:
        asyncio.get_running_loop().call_soon(self._turn)

    def _subscribed(self) -> None:
        if self.link is not None:
            self.core.subscribed(self.link.read_us)

    def _cancelled(self) -> None:
        if self.link is not None:
            self._consumer_tag = ""
            self.core.cancelled(self.link.read_us)
            self._woken.set()

    def _unsubscribed(self) -> None:
        if self.link is not None:
            self._consumer_tag = ""
            self.core.unsubscribed(self.link.read_us)
            self._woken.set()

    def _answered(self) -> None:
        if self.link is not None:
            self.core.answered(self.link.read_us)
            self._turn()
            self._woken.set()

    # --- what is written

    def _turn(self) -> None:
        self._is_due = False
        link = self.link
        if link is None or not link.is_open:
            return
        channel = link.channel
        for frame in self.core.take(self._now_us()):
            match frame:
                case Ack(tag, is_multiple):
                    channel.basic_ack(tag, is_multiple)
                case Nack(tag):
                    channel.basic_nack(tag, multiple=True, requeue=True)
                case Reject(tag):
                    channel.basic_reject(tag, requeue=True)
                case Ask():
                    channel.queue_declare(self._queue.name, passive=True, callback=lambda _frame: self._answered())

    def _end(self) -> None:
        self.core.end()

    def counts(self) -> Counts:
        core = self.core
        return Counts(
            delivered=core.delivered,
            redelivered=core.redelivered,
            acknowledged=core.acknowledged,
            proven=core.proven,
            outstanding=core.outstanding,
            held=core.held,
            connected=int(core.is_subscribed),
        )


def _unused(*_: object) -> None:
    raise AssertionError("deliveries are handed over by the channel: `DeliveringChannel`")

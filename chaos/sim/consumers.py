"""Clients that take: consumers with habits, and a visitor who makes single requests and drains in the end.

What a consumer does with a delivery depends on the message and how often this consumer has seen it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from chaos.analysis.reference import AttemptKey
from chaos.history import Kind, ProcessLog, ProcKind
from chaos.sim.client import (
    ACCESS_REFUSED,
    NOT_IMPLEMENTED,
    Channel,
    ClosedError,
    Delivered,
    ProtocolError,
    history_us,
    open_connection,
)
from chaos.sim.schedule import EXCLUSIVE, FIRST, TOLD
from chaos.sim.workload import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    RECONNECT_PAUSE_S,
    TROUBLE,
    Client,
    SessionMark,
    Settlement,
    Surroundings,
)
from chaos.workload.message_id import MessageId, decode_body

#: What a consumer of each kind asks for by arguments.
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {FIRST: {"x-priority": 5}, TOLD: {"x-cancel-on-ha-failover": True}}

#: A consumer asks so long after an acknowledgement for an answer that proves it.
PROOF_DELAY_S = 0.2

#: Between two looks whether a queue is empty.
DRAIN_PAUSE_S = 0.01


class Settling:
    """Which acknowledgements of one channel, all of one queue, were taken for sure.

    An acknowledgement has no answer. But what asks the same queue on the same channel comes behind it, so its answer is
    one to both, if the node that is asked had one and the same session with the queue's master all the time.
    """

    def __init__(self, log: ProcessLog, world: Surroundings, entry: int, queue: int) -> None:
        self._log = log
        self._world = world
        self._entry = entry
        self._queue = queue
        #: Not proven yet: what, when, and in which session.
        self._sent: list[tuple[AttemptKey, int, SessionMark]] = []

    def __bool__(self) -> bool:
        return bool(self._sent)

    def sent(self, message: MessageId, delivered: Delivered) -> None:
        """An acknowledgement is on its way. It counts only in the session in which the message was delivered."""
        session = self._world.session_of(self._entry, self._queue)
        if session is not None and session.began_s < delivered.sent_s:
            key = (self._queue, message.pub_id, message.seq, message.attempt)
            self._sent.append((key, self._log.now_us(), session))

    def ask(self) -> list[tuple[AttemptKey, int, SessionMark]]:
        """A question follows; give what comes back here to `answered`."""
        asked, self._sent = self._sent, []
        return asked

    def answered(self, asked: list[tuple[AttemptKey, int, SessionMark]]) -> None:
        session = self._world.session_of(self._entry, self._queue)
        for key, at_us, session_then in asked:
            if session_then == session:
                began_us = history_us(session_then.began_s)
                settlement = Settlement(at_us, self._log.now_us(), session_then.epoch, began_us)
                self._world.settled.setdefault(key, []).append(settlement)


class Consumer(Client):
    """Consumes one queue and treats its deliveries as its habits say."""

    def __init__(
        self,
        number: int,
        world: Surroundings,
        queue_name: Callable[[int], str],
        *,
        prefetch: int,
        is_channel_wide: bool = False,
        is_limit_kept: bool = False,
        requeue_percent: int,
        hold_percent: int,
        reject_percent: int = 0,
        kind: str = "",
    ) -> None:
        """``is_channel_wide``: ``prefetch`` is the limit of the channel. ``is_limit_kept``: no master ends, or the next
        one would not count what the client holds of it.

        ``kind``: see `chaos.sim.schedule.EXCLUSIVE` and those beside it.
        """
        super().__init__(f"c{number}", world, ProcKind.CONSUMER)
        self.number = number
        self.kind = kind
        self._queue_name = queue_name
        self._prefetch = prefetch
        self._is_channel_wide = is_channel_wide
        self._is_limit_kept = is_limit_kept
        #: Tags of this channel that were delivered and are not settled.
        self._held: set[int] = set()
        self._requeue_percent = requeue_percent
        self._hold_percent = hold_percent
        self._reject_percent = reject_percent
        self.queue: int | None = None
        #: What it consumes by all that it was told, and through which node; ``None``: nothing.
        self.place: tuple[int, int] | None = None
        #: The session in which it began to.
        self._began_in: SessionMark | None = None
        #: It acknowledges nothing: what it was given is its own.
        self.takes_all = False
        self._is_started = False
        self._seen: dict[MessageId, int] = {}
        self._settling: Settling | None = None
        self._is_proving = False
        #: Deliveries up to this tag went back to the queue; while that is asked for nothing is settled.
        self._recovered_tag = 0
        self._last_tag = 0
        self._is_recovering = False
        #: The broker has ended the consumer of this channel.
        self._is_cancelled = False

    def consume(self, queue: int, *, takes_all: bool = False) -> None:
        """Of this queue from now on."""
        self.queue, self.takes_all = queue, takes_all
        if self._is_started:
            self.drop(is_orderly=True)
        else:
            self._is_started = True
            self.start()

    def cancel(self) -> None:
        """Consume nothing, on the same channel; what was delivered stays unacked."""
        channel = self.channel
        if channel is not None and channel.closed is None and self.queue is not None:
            self.process.create_task(self._cancel(channel))

    async def _cancel(self, channel: Channel) -> None:
        with suppress(*TROUBLE):
            await channel.cancel("tag")
            if channel is self.channel:
                self.place = None
            self.world.note("a consumer was cancelled")

    def recover(self) -> None:
        """Give everything back that is held, on the same channel."""
        channel = self.channel
        if channel is not None and channel.closed is None and not self._is_recovering:
            self._is_recovering = True
            self.process.create_task(self._recover(channel))

    async def _recover(self, channel: Channel) -> None:
        asked_tag = self._last_tag
        with suppress(*TROUBLE):
            recovered_tag = await channel.recover()
            if channel is self.channel:
                # What came meanwhile was given back, or is held: nobody here knows.
                self._recovered_tag = recovered_tag
                self._held = {tag for tag in self._held if tag > asked_tag}
                self.world.note("a channel recovered its deliveries")
        if channel is self.channel:
            self._is_recovering = False

    def flow(self, is_active: bool) -> None:
        """Ask the broker to stop delivering, or to go on."""
        channel = self.channel
        if channel is not None and channel.closed is None:
            if not is_active:
                self.world.answers.stops_flow.add(self.name)
            self.process.create_task(self._flow(channel, is_active))

    async def _flow(self, channel: Channel, is_active: bool) -> None:
        """It goes on as it does; to stop is nothing that it does, so it must not say that it has. It ends the
        connection instead, as RabbitMQ does, and what is held comes again."""
        try:
            await channel.flow(is_active)
        except ClosedError as error:
            if is_active and error.code == NOT_IMPLEMENTED:
                raise ProtocolError("a channel.flow that asks for nothing was refused") from error
            if error.code == NOT_IMPLEMENTED:
                self.world.note("a client was refused to stop the flow of a channel")
        else:
            if not is_active:
                raise ProtocolError("the broker said that it has stopped the flow of a channel")

    def give_back(self) -> None:
        """Everything that was delivered so far and is still held, in one word that has no answer."""
        channel = self.channel
        if channel is not None and channel.closed is None and self._last_tag > self._recovered_tag:
            self._recovered_tag = self._last_tag
            self._held.clear()
            channel.nack(0, multiple=True, requeue=True)
            self.world.answers.gives_back.add(self.name)
            self.world.note("everything that was held was given back")

    async def begin(self, channel: Channel) -> None:
        # What this channel delivers is of this queue, whatever the next one consumes.
        queue, takes_all = self.queue, self.takes_all
        self._recovered_tag = self._last_tag = 0
        self._held.clear()
        self._is_recovering = self._is_proving = self._is_cancelled = False
        channel.on_cancel = lambda _tag: self._cancelled(channel)
        await channel.qos(self._prefetch, is_channel_wide=self._is_channel_wide)
        if queue is not None:
            self._settling = Settling(self.log, self.world, channel.entry, queue)
            channel.on_deliver = lambda delivered: self._delivered(queue, delivered, takes_all)
            await self._consume(channel, queue, takes_all)

    async def _consume(self, channel: Channel, queue: int, takes_all: bool) -> None:
        is_exclusive, arguments = self.kind == EXCLUSIVE, _ARGUMENTS.get(self.kind)
        name = self._queue_name(queue)
        try:
            await channel.consume(name, "tag", no_ack=takes_all, exclusive=is_exclusive, arguments=arguments)
        except ClosedError as error:
            if error.code == ACCESS_REFUSED:
                self.world.note("a consumer was refused beside an exclusive one")
            raise
        if channel.closed is None and not self._is_cancelled:
            self.place = queue, channel.entry
            self._began_in = self.world.session_of(channel.entry, queue)

    def ended(self) -> None:
        self.place = None

    @property
    def should_have_been_told(self) -> bool:
        """It wants to hear of a new master, there is one, and it has heard nothing."""
        if self.kind != TOLD or self.place is None or self._began_in is None:
            return False
        now = self.world.session_of(self.place[1], self.place[0])
        return now is not None and (now.queue_id, now.epoch) != (self._began_in.queue_id, self._began_in.epoch)

    @property
    def is_waiting(self) -> bool:
        """It consumes, and would take another message."""
        return self.place is not None and not self._is_recovering and len(self._held) < self._prefetch

    def _cancelled(self, channel: Channel) -> None:
        self._is_cancelled = True
        self.place = None
        if self.kind != TOLD and self.queue is not None:
            node = self.world.nodes[channel.entry][0]
            self.world.answers.cancelled(self.name, node, self.queue, channel.heard_us)
        self.world.note("the broker cancelled a consumer")
        self.drop(is_orderly=True)

    def _delivered(self, queue: int, delivered: Delivered, takes_all: bool) -> None:
        self._last_tag = delivered.delivery_tag
        self._hold(delivered.delivery_tag, takes_all=takes_all)
        message = record_delivery(self.log, self.world.run_tag, queue, delivered, self.channel_id)
        if message is None:
            return
        self.world.on_moment("deliver", queue)
        if takes_all:
            return
        times = self._seen[message] = self._seen.get(message, 0) + 1
        habit = self.world.dice(self.name, message, times)
        if habit < self._hold_percent and times == 1:
            return
        delay_s = 0.0 if habit % 3 else 0.01 * (habit % 7)
        is_requeued = habit >= 100 - self._requeue_percent and times < 4
        self.process.call_later(delay_s, self._settle, queue, self.channel_id, delivered, message, is_requeued)

    def _hold(self, delivery_tag: int, *, takes_all: bool) -> None:
        if takes_all:
            return
        self._held.add(delivery_tag)
        if self._is_limit_kept and len(self._held) > self._prefetch:
            raise ProtocolError(f"{self.name} holds {len(self._held)} deliveries, and its limit is {self._prefetch}")

    def _settle(self, queue: int, channel_id: int, delivered: Delivered, message: MessageId, is_requeued: bool) -> None:
        channel = self.channel
        if channel is None or channel.closed is not None or channel_id != self.channel_id:
            return
        if self._is_recovering or delivered.delivery_tag <= self._recovered_tag:
            return
        record_settlement(self.log, queue, delivered, message, channel_id, is_requeued=is_requeued)
        self._held.discard(delivered.delivery_tag)
        is_rejected = self.world.dice(self.name, message, "reject") < self._reject_percent
        if is_rejected:
            channel.reject(delivered.delivery_tag, requeue=is_requeued)
            self.world.note(
                "a message was rejected and came back" if is_requeued else "a message was rejected for good"
            )
        elif is_requeued:
            channel.nack(delivered.delivery_tag)
        else:
            channel.ack(delivered.delivery_tag)
        if is_requeued:
            return
        assert self._settling is not None, "it consumes"
        self._settling.sent(message, delivered)
        if self._settling and not self._is_proving:
            self._is_proving = True
            self.process.call_later(PROOF_DELAY_S, self._ask_for_proof, queue, channel)

    def _ask_for_proof(self, queue: int, channel: Channel) -> None:
        if channel is self.channel and channel.closed is None:
            self.process.create_task(self._prove(queue, channel))

    async def _prove(self, queue: int, channel: Channel) -> None:
        settling = self._settling
        assert settling is not None, "there is something to prove"
        asked = settling.ask()
        with suppress(*TROUBLE):
            await channel.declare(self._queue_name(queue), passive=True)
            settling.answered(asked)
        if channel is self.channel:
            self._is_proving = False


def record_delivery(
    log: ProcessLog, run_tag: int, queue: int | None, delivered: Delivered, channel_id: int
) -> MessageId | None:
    """`DELIVER`; which message it is, if that can be read."""
    message, crc_ok = decode_body(run_tag, delivered.body)
    log.record(
        Kind.DELIVER,
        t_lo_us=delivered.sent_us,
        queue_id=queue,
        pub_id=None if message is None else message.pub_id,
        seq=None if message is None else message.seq,
        attempt=None if message is None else message.attempt,
        channel_id=channel_id,
        delivery_tag=delivered.delivery_tag,
        redelivered=delivered.is_redelivered,
        body_bytes=len(delivered.body),
        crc_ok=crc_ok,
    )
    return message


def record_settlement(
    log: ProcessLog,
    queue: int | None,
    delivered: Delivered,
    message: MessageId,
    channel_id: int,
    *,
    is_requeued: bool = False,
) -> None:
    """`ACK_SENT` or `NACK_SENT`, before the bytes leave. A rejection for good is an acknowledgement: no queue here has
    a dead-letter exchange."""
    log.record(
        Kind.NACK_SENT if is_requeued else Kind.ACK_SENT,
        queue_id=queue,
        pub_id=message.pub_id,
        seq=message.seq,
        attempt=message.attempt,
        channel_id=channel_id,
        delivery_tag=delivered.delivery_tag,
        requeue=is_requeued or None,
    )


class Visitor(Client):
    """Makes single requests: declares, purges, deletes, gets; and drains the queues in the end."""

    def __init__(
        self,
        name: str,
        world: Surroundings,
        queue_name: Callable[[int], str],
        *,
        vhost: str = "/",
        user: str = "guest",
    ) -> None:
        super().__init__(name, world, ProcKind.CONSUMER)
        self._queue_name = queue_name
        self._vhost = vhost
        self._user = user

    async def request(
        self, ask: Callable[[Channel], Any], timeout_s: float = ANSWER_TIMEOUT_S, *, entry: int | None = None
    ) -> Any:
        """Ask once, on a connection of its own, the node at a position or any. Raises what `TROUBLE` lists."""
        at = self.next_node() if entry is None else entry
        async with asyncio.timeout(timeout_s):
            connection = await open_connection(
                self.world.network,
                self.process,
                self.name,
                self.world.nodes[at],
                CONNECT_TIMEOUT_S,
                vhost=self._vhost,
                user=self._user,
                told=self.told_at(at),
            )
            try:
                channel = await connection.channel()
                channel.label = next(self.world.channel_ids)
                channel.entry = at
                return await ask(channel)
            finally:
                connection.close()

    async def insist(self, ask: Callable[[Channel], Any]) -> Any:
        """Ask until it is answered."""
        while True:
            try:
                return await self.request(ask)
            except TROUBLE:
                await asyncio.sleep(RECONNECT_PAUSE_S)

    async def get_one(self, channel: Channel, queue: int) -> bool:
        """Get and ack a message, if there is one."""
        return await self._get_one(channel, queue, Settling(self.log, self.world, channel.entry, queue))

    async def _get_one(self, channel: Channel, queue: int, settling: Settling) -> bool:
        asked = settling.ask()
        delivered = await channel.get(self._queue_name(queue))
        settling.answered(asked)
        if delivered is None:
            return False
        self.accept(channel, queue, delivered, settling)
        return True

    async def get_no_ack(self, channel: Channel, queue: int) -> None:
        """A message that is gone as it is sent. What has become of it is heard at the queue (`chaos.sim.taps`)."""
        delivered = await channel.get(self._queue_name(queue), no_ack=True)
        if delivered is not None:
            record_delivery(self.log, self.world.run_tag, queue, delivered, channel.label)

    async def get_in_transaction(self, channel: Channel, queue: int, is_committed: bool) -> None:
        """A message whose acknowledgement counts if the transaction is committed, and not if it is rolled back: then
        it is held until the channel ends. ``commit-ok`` says that the acknowledgement is on its way, not that the
        queue's master has it (`node.amqp.transaction`), so that is asked."""
        settling = Settling(self.log, self.world, channel.entry, queue)
        await channel.tx_select()
        delivered = await channel.get(self._queue_name(queue))
        if delivered is None:
            return
        message = record_delivery(self.log, self.world.run_tag, queue, delivered, channel.label)
        channel.ack(delivered.delivery_tag)
        if not is_committed:
            await channel.tx_rollback()
            self.world.note("an acknowledgement was rolled back")
            return
        if message is not None:
            record_settlement(self.log, queue, delivered, message, channel.label)
            settling.sent(message, delivered)
        await channel.tx_commit()
        self.world.note("an acknowledgement was committed")
        asked = settling.ask()
        await channel.declare(self._queue_name(queue), passive=True)
        settling.answered(asked)

    def accept(self, channel: Channel, queue: int, delivered: Delivered, settling: Settling) -> MessageId | None:
        """Record a delivery and acknowledge it."""
        message = record_delivery(self.log, self.world.run_tag, queue, delivered, channel.label)
        if message is not None:
            record_settlement(self.log, queue, delivered, message, channel.label)
        channel.ack(delivered.delivery_tag)
        if message is not None:
            settling.sent(message, delivered)
        return message

    async def drain(self, queue: int) -> None:
        """Take everything: most of it as a consumer, which is quick, and the rest by asking for it. The acks are known
        to have been received when the last answer, "empty", comes."""

        async def all_of_it(channel: Channel) -> None:
            settling = Settling(self.log, self.world, channel.entry, queue)

            def take(delivered: Delivered) -> None:
                self.accept(channel, queue, delivered, settling)

            channel.on_deliver = take
            await channel.consume(self._queue_name(queue), "drain")
            while (await channel.declare(self._queue_name(queue), passive=True))[0]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(DRAIN_PAUSE_S)
            await channel.cancel("drain")
            while await self._get_one(channel, queue, settling):
                pass

        await self.insist(all_of_it)

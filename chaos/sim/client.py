"""An AMQP client for the simulator: bytes on a simulated connection, pamqp's classes, nothing behind one's back.

Client libraries reconnect, retry and drop what they find odd; a judge must see what the broker really said. So this one
only translates. Every answer is handed over as it comes, and what breaks the protocol raises `ProtocolError`.

One `Connection` has any number of `Channel`s. Requests of a channel are answered in order, so each waits in line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from pamqp import body, commands, frame, header, heartbeat
from pamqp.base import Frame
from pamqp.exceptions import UnmarshalingException

from chaos.sim.loop import Process
from chaos.sim.network import Address, Network
from chaos.sim.sockets import SimulatedTransport, connect

PERSISTENT = 2
#: Reply code of who closes without an error.
CLOSED_BY_CLIENT = 200
#: And of errors: somebody else consumes, or exclusively; there is no such thing; a condition does not hold; the broker
#: does not do this.
ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, NOT_IMPLEMENTED = 403, 404, 406, 540
FRAME_MAX_BYTES = 128 * 1024
#: A broker that says nothing for twice as long is dead: its machine may have gone without a word.
HEARTBEAT_S = 6


class ProtocolError(Exception):
    """The broker sent what it must not send."""


class ClosedError(Exception):
    """The channel or its connection is gone: with the broker's reason, or without a word (code 0)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


def history_us(true_s: float) -> int:
    """A time as the history has it: nothing happens before 1 (`chaos.sim.workload.MemoryHistory.now`)."""
    return 1 + int(true_s * 1e6)


class Delivered(NamedTuple):
    """A message as a consumer, a get or a return hands it out."""

    consumer_tag: str
    delivery_tag: int
    is_redelivered: bool
    body: bytes
    #: Not before this the broker has sent it (true time, seconds).
    sent_s: float = 0.0

    @property
    def sent_us(self) -> int:
        """As the history has it."""
        return history_us(self.sent_s)


#: Frames on channel 0 that ask for nothing.
_HARMLESS = (heartbeat.Heartbeat, commands.Connection.CloseOk)


#: A broker tells of alarms, and of consumers that it cancels, only who has said that he understands it.
_CAPABILITIES: dict[str, Any] = {"capabilities": {"connection.blocked": True, "consumer_cancel_notify": True}}


def _nothing(*_args: object) -> None: ...


@lru_cache(typed=True)
def _publish_frame(channel: int, exchange: str, queue: str, mandatory: bool) -> bytes:
    return frame.marshal(commands.Basic.Publish(0, exchange, queue, mandatory), channel)


@lru_cache(typed=True)
def _header_frame(channel: int, size: int, is_persistent: bool, headers: tuple[tuple[str, Any], ...]) -> bytes:
    """The values of headers are texts and integers: 1 and True would be one key."""
    properties = commands.Basic.Properties(
        delivery_mode=PERSISTENT if is_persistent else 1, headers=dict(headers) or None
    )
    return frame.marshal(header.ContentHeader(0, size, properties), channel)


class Channel:
    """One channel. The ``on_`` callbacks are called in the order in which the broker spoke."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        #: How the history calls it, and the position of the node that it leads to.
        self.label = 0
        self.entry = 0
        self.published = 0
        #: Of the last delivery.
        self._delivered_tag = 0
        self._is_closing = False
        self.closed: ClosedError | None = None
        #: Of the last basic.ack or basic.nack: (sequence number, multiple, was it an ack).
        self.on_confirm: Callable[[int, bool, bool], None] = _nothing
        self.on_deliver: Callable[[Delivered], None] = _nothing
        self.on_return: Callable[[Delivered], None] = _nothing
        #: Hears what a get brings, or that it brings nothing, in its place among deliveries, before whoever has asked.
        self.on_got: Callable[[Delivered | None], None] = _nothing
        self.on_cancel: Callable[[str], None] = _nothing
        self.on_closed: Callable[[ClosedError], None] = _nothing
        self._waiting: deque[tuple[tuple[type[Frame], ...], asyncio.Future[Any]]] = deque()
        self._content: tuple[Frame, int, list[bytes]] | None = None

    @property
    def is_asking(self) -> bool:
        """It has asked for something that was not answered yet."""
        return bool(self._waiting)

    @property
    def heard_us(self) -> int:
        """When what was heard last was sent, in microseconds."""
        return history_us(self.connection.heard_sent_s)

    # --- requests ---

    async def open(self) -> None:
        await self._ask(commands.Channel.Open(), commands.Channel.OpenOk)

    async def close(self) -> None:
        """The next one on the connection may have its number."""
        answer = self._request(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        self._is_closing = True
        await answer
        self.lost(ClosedError(CLOSED_BY_CLIENT, "closed by us"))
        self.connection.forget(self)

    async def confirm_select(self) -> None:
        await self._ask(commands.Confirm.Select(), commands.Confirm.SelectOk)

    async def declare(
        self, queue: str, *, durable: bool = True, arguments: Mapping[str, Any] | None = None, **options: bool
    ) -> tuple[int, int]:
        """Ready messages and consumers. ``options``: ``passive``, ``exclusive``, ``auto_delete``."""
        request = commands.Queue.Declare(queue=queue, durable=durable, arguments=dict(arguments or {}), **options)
        answer = await self._ask(request, commands.Queue.DeclareOk)
        return answer.message_count, answer.consumer_count

    async def declare_exchange(
        self,
        exchange: str,
        kind: str = "fanout",
        *,
        passive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """A durable one."""
        request = commands.Exchange.Declare(
            exchange=exchange,
            exchange_type=kind,
            passive=passive,
            durable=True,
            auto_delete=auto_delete,
            arguments=dict(arguments or {}),
        )
        await self._ask(request, commands.Exchange.DeclareOk)

    async def delete_exchange(self, exchange: str) -> None:
        await self._ask(commands.Exchange.Delete(exchange=exchange), commands.Exchange.DeleteOk)

    async def bind_exchange(
        self, destination: str, source: str, key: str, arguments: Mapping[str, Any] | None = None
    ) -> None:
        request = commands.Exchange.Bind(
            destination=destination, source=source, routing_key=key, arguments=dict(arguments or {})
        )
        await self._ask(request, commands.Exchange.BindOk)

    async def unbind_exchange(
        self, destination: str, source: str, key: str, arguments: Mapping[str, Any] | None = None
    ) -> None:
        request = commands.Exchange.Unbind(
            destination=destination, source=source, routing_key=key, arguments=dict(arguments or {})
        )
        await self._ask(request, commands.Exchange.UnbindOk)

    async def bind(self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any] | None = None) -> None:
        request = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=dict(arguments or {}))
        await self._ask(request, commands.Queue.BindOk)

    async def unbind(self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any] | None = None) -> None:
        request = commands.Queue.Unbind(
            queue=queue, exchange=exchange, routing_key=key, arguments=dict(arguments or {})
        )
        await self._ask(request, commands.Queue.UnbindOk)

    async def delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        request = commands.Queue.Delete(queue=queue, if_unused=if_unused, if_empty=if_empty)
        count: int = (await self._ask(request, commands.Queue.DeleteOk)).message_count
        return count

    async def purge(self, queue: str) -> int:
        count: int = (await self._ask(commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk)).message_count
        return count

    async def qos(self, prefetch_count: int, *, is_channel_wide: bool = False) -> None:
        await self._ask(
            commands.Basic.Qos(prefetch_count=prefetch_count, global_=is_channel_wide), commands.Basic.QosOk
        )

    async def consume(
        self,
        queue: str,
        tag: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        request = commands.Basic.Consume(
            queue=queue, consumer_tag=tag, no_ack=no_ack, exclusive=exclusive, arguments=dict(arguments or {})
        )
        await self._ask(request, commands.Basic.ConsumeOk)

    async def cancel(self, tag: str) -> None:
        await self._ask(commands.Basic.Cancel(consumer_tag=tag), commands.Basic.CancelOk)

    async def recover(self) -> int:
        """Everything unacked goes back to its queues. Up to which tag: what is delivered behind the answer is new."""
        tag: int = await self._ask(commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)
        return tag

    async def flow(self, is_active: bool) -> None:
        await self._ask(commands.Channel.Flow(is_active), commands.Channel.FlowOk)

    async def tx_select(self) -> None:
        await self._ask(commands.Tx.Select(), commands.Tx.SelectOk)

    async def tx_commit(self) -> int:
        """When the answer was sent, in microseconds."""
        sent_us: int = await self._ask(commands.Tx.Commit(), commands.Tx.CommitOk)
        return sent_us

    async def tx_rollback(self) -> None:
        await self._ask(commands.Tx.Rollback(), commands.Tx.RollbackOk)

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivered | None:
        request = commands.Basic.Get(queue=queue, no_ack=no_ack)
        answer = await self._ask(request, commands.Basic.GetOk, commands.Basic.GetEmpty)
        return answer if isinstance(answer, Delivered) else None

    # --- what is not answered ---

    def publish(
        self,
        queue: str,
        content: bytes,
        *,
        exchange: str = "",
        is_persistent: bool = True,
        mandatory: bool = False,
        headers: Mapping[str, Any] | None = None,
    ) -> int:
        """The sequence number of the publish, which counts from 1 after `confirm_select`. Raises `ClosedError`."""
        self._require_open()
        self.published += 1
        parts = [
            _publish_frame(self.number, exchange, queue, mandatory),
            _header_frame(self.number, len(content), is_persistent, tuple((headers or {}).items())),
        ]
        pieces = range(0, len(content), FRAME_MAX_BYTES - 8)
        parts += [frame.marshal(body.ContentBody(content[at : at + FRAME_MAX_BYTES - 8]), self.number) for at in pieces]
        self.connection.send(b"".join(parts))
        return self.published

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        self._say(commands.Basic.Ack(delivery_tag, multiple))

    def nack(self, delivery_tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._say(commands.Basic.Nack(delivery_tag, multiple, requeue))

    def reject(self, delivery_tag: int, *, requeue: bool = True) -> None:
        self._say(commands.Basic.Reject(delivery_tag, requeue))

    def _say(self, method: Frame) -> None:
        self._require_open()
        self.connection.send(frame.marshal(method, self.number))

    async def _ask(self, method: Frame, *answers: type[Frame]) -> Any:
        return await self._request(method, *answers)

    def _request(self, method: Frame, *answers: type[Frame]) -> asyncio.Future[Any]:
        self._say(method)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((answers, future))
        return future

    def _require_open(self) -> None:
        if self.closed is not None:
            raise self.closed
        if self._is_closing:
            raise ClosedError(CLOSED_BY_CLIENT, "closed by us")

    # --- what comes in ---

    def received(self, method: Any) -> None:
        """One frame for this channel."""
        if isinstance(method, header.ContentHeader):
            self._begin_content(method)
        elif isinstance(method, body.ContentBody):
            self._more_content(method.value)
        elif isinstance(method, commands.Basic.Deliver | commands.Basic.GetOk | commands.Basic.Return):
            self._content = (method, -1, [])
        elif isinstance(method, commands.Basic.Ack | commands.Basic.Nack):
            self.on_confirm(method.delivery_tag, method.multiple, isinstance(method, commands.Basic.Ack))
        elif isinstance(method, commands.Basic.Cancel):
            self.on_cancel(method.consumer_tag or "")
        elif isinstance(method, commands.Channel.Close):
            if self.closed is None:
                self.connection.send(frame.marshal(commands.Channel.CloseOk(), self.number))
                error = ClosedError(method.reply_code or 0, method.reply_text)
                self.connection.told(error, self.heard_us)
                self.lost(error)
        elif self.closed is None:
            if isinstance(method, commands.Basic.GetEmpty):
                self.on_got(None)
            self._answered(method, self._facts_of(method))

    def _begin_content(self, content: header.ContentHeader) -> None:
        if self._content is None:
            raise ProtocolError(f"channel {self.number}: content without a method")
        self._content = (self._content[0], content.body_size, self._content[2])
        if not content.body_size:
            self._finish_content()

    def _more_content(self, data: bytes) -> None:
        if self._content is None:
            raise ProtocolError(f"channel {self.number}: a body without a header")
        _, size, parts = self._content
        parts.append(data)
        if sum(map(len, parts)) >= size:
            self._finish_content()

    def _finish_content(self) -> None:
        assert self._content is not None, "called when there is content"
        method, _, parts = self._content
        self._content = None
        data = b"".join(parts)
        sent_s = self.connection.heard_sent_s
        if isinstance(method, commands.Basic.Return):
            self.on_return(Delivered("", 0, False, data, sent_s))
        elif isinstance(method, commands.Basic.GetOk):
            got = Delivered("", method.delivery_tag or 0, bool(method.redelivered), data, sent_s)
            self.on_got(got)
            self._answered(method, got)
        elif isinstance(method, commands.Basic.Deliver):
            self._delivered_tag = method.delivery_tag or 0
            self.on_deliver(
                Delivered(method.consumer_tag or "", self._delivered_tag, bool(method.redelivered), data, sent_s)
            )

    def _facts_of(self, answer: Frame) -> object:
        """What whoever waits cannot know any more when it has its turn; ``None`` if nothing."""
        if isinstance(answer, commands.Tx.CommitOk):
            return self.heard_us
        return self._delivered_tag if isinstance(answer, commands.Basic.RecoverOk) else None

    def _answered(self, method: Frame, value: object = None) -> None:
        if not self._waiting:
            raise ProtocolError(f"channel {self.number}: {method.name} answers nothing")
        answers, future = self._waiting.popleft()
        if not isinstance(method, answers):
            raise ProtocolError(f"channel {self.number}: {method.name} where {answers[0].__name__} was due")
        if not future.done():
            future.set_result(method if value is None else value)

    def lost(self, error: ClosedError) -> None:
        """The channel is gone: everybody who waits learns of it, once."""
        if self.closed is not None:
            return
        self.closed = error
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever has gone away need not look at it
        self.on_closed(error)


class Connection(asyncio.Protocol):
    """One connection to one node; made by `open_connection`."""

    def __init__(
        self, vhost: str = "/", told: Callable[[ClosedError, int], None] = _nothing, *, user: str = "guest"
    ) -> None:
        """``told`` hears why the broker ends this, or a channel of it, and when it has sent that (microseconds).
        ``user``: whose password is the name."""
        self._vhost = vhost
        self._user = user
        self.told = told
        self._transport: SimulatedTransport
        self._buffer = b""
        self._channels: dict[int, Channel] = {}
        self.closed: ClosedError | None = None
        #: The broker has said that it takes no publishes now (True), or that it does again.
        self.on_blocked: Callable[[bool], None] = _nothing
        #: The broker has said nothing for too long: the connection is given up.
        self.on_silent: Callable[[], None] = _nothing
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._heard_s = self._loop.time()
        #: When the broker has sent the end of the frame that was received last.
        self.heard_sent_s = 0.0

    # --- requests ---

    async def channel(self) -> Channel:
        """A new open channel. Raises `ClosedError`."""
        if self.closed is not None:
            raise self.closed
        number = next(number for number in range(1, 65_536) if number not in self._channels)
        channel = self._channels[number] = Channel(self, number)
        await channel.open()
        return channel

    def forget(self, channel: Channel) -> None:
        """It is closed on both sides."""
        self._channels.pop(channel.number, None)

    def close(self) -> None:
        """Orderly, without waiting for the answer."""
        if self.closed is None:
            self.send(frame.marshal(commands.Connection.Close(200, "", 0, 0), 0))
            self._end(ClosedError(CLOSED_BY_CLIENT, "closed by us"))
            self._transport.close()

    def abort(self) -> None:
        """Like a client that dies."""
        self._transport.abort()

    def send(self, data: bytes) -> None:
        if self.closed is None:
            self._transport.write(data)

    async def opened(self) -> None:
        await self._opened

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport), "there are no others here"
        self._transport = transport
        transport.write(b"AMQP\x00\x00\x09\x01")

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        # Parts that were sent at different times arrive in one piece after a link was cut.
        parts, known_bytes = iter(self._transport.heard), len(self._buffer)
        part_end, self.heard_sent_s = next(parts)
        self._buffer += data
        at = 0
        while self.closed is None and len(self._buffer) - at >= 8:
            try:
                consumed, number, method = frame.unmarshal(self._buffer[at:])
            except UnmarshalingException:
                size = int.from_bytes(self._buffer[at + 3 : at + 7], "big") + 8
                if len(self._buffer) - at >= size:
                    raise
                break
            at += consumed
            while part_end < at - known_bytes:
                part_end, self.heard_sent_s = next(parts)
            self._received(number, method)
        self._buffer = self._buffer[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ClosedError(0, f"connection lost: {exc}"))

    def _beat(self) -> None:
        """Say that we live, and see whether the broker does."""
        if self.closed is not None:
            return
        if self._loop.time() - self._heard_s > 2 * HEARTBEAT_S:
            self.on_silent()
            self.abort()
            return
        self.send(frame.marshal(heartbeat.Heartbeat(), 0))
        self._loop.call_later(HEARTBEAT_S / 2, self._beat)

    def _received(self, number: int, method: Any) -> None:
        if number:
            channel = self._channels.get(number)
            if channel is None:
                raise ProtocolError(f"channel {number} was never opened")
            channel.received(method)
        elif isinstance(method, commands.Connection.Start):
            response = f"\0{self._user}\0{self._user}"
            self.send(frame.marshal(commands.Connection.StartOk(_CAPABILITIES, "PLAIN", response, "en_US"), 0))
        elif isinstance(method, commands.Connection.Tune):
            tuned = commands.Connection.TuneOk(method.channel_max, FRAME_MAX_BYTES, HEARTBEAT_S)
            self.send(frame.marshal(tuned, 0) + frame.marshal(commands.Connection.Open(self._vhost), 0))
            self._beat()
        elif isinstance(method, commands.Connection.OpenOk):
            self._opened.set_result(None)
        elif isinstance(method, commands.Connection.Close):
            self.send(frame.marshal(commands.Connection.CloseOk(), 0))
            error = ClosedError(method.reply_code or 0, method.reply_text)
            if self.closed is None:
                self.told(error, history_us(self.heard_sent_s))
            self._end(error)
            self._transport.close()
        elif isinstance(method, commands.Connection.Blocked | commands.Connection.Unblocked):
            self.on_blocked(isinstance(method, commands.Connection.Blocked))
        elif not isinstance(method, _HARMLESS):
            raise ProtocolError(f"{method!r} on channel 0")

    def _end(self, error: ClosedError) -> None:
        if self.closed is not None:
            return
        self.closed = error
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()
        for channel in list(self._channels.values()):
            channel.lost(error)


async def open_connection(
    network: Network,
    process: Process,
    host: str,
    address: Address,
    timeout_s: float = 5.0,
    *,
    vhost: str = "/",
    user: str = "guest",
    told: Callable[[ClosedError, int], None] = _nothing,
) -> Connection:
    """Connect and log in. Raises `ClosedError`, `OSError` or `TimeoutError`. ``told``: see `Connection`."""
    async with asyncio.timeout(timeout_s):
        connection = await connect(network, process, host, address, lambda: Connection(vhost, told, user=user))
        assert isinstance(connection, Connection), "it was made here"
        try:
            await connection.opened()
        except asyncio.CancelledError:
            connection.abort()
            raise
    return connection

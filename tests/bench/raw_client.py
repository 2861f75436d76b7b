"""A blocking AMQP client for load: frames made beforehand, bodies that can be checked, nothing else.

A body is its number in eight bytes and then a stretch of a fixed random text that depends on the number; so a consumer
can tell by comparing two byte strings whether the right message came, whole and in order.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Sequence

_FRAME = struct.Struct(">BHI")
_NUMBER = struct.Struct(">Q")
_TEXT = random.Random(7).randbytes(64 * 1024)
_OFFSETS = 4093
_END = b"\xce"
_METHOD, _HEADER, _BODY = 1, 2, 3
#: Bytes of one read from the socket.
_READ_BYTES = 256 * 1024


def body_of(number: int, size: int) -> bytes:
    """The body of the ``number``-th message, of ``size`` bytes."""
    at = number % _OFFSETS
    return _NUMBER.pack(number) + _TEXT[at : at + size - 8]


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def _method(channel: int, class_id: int, method_id: int, arguments: bytes) -> bytes:
    payload = struct.pack(">HH", class_id, method_id) + arguments
    return _FRAME.pack(_METHOD, channel, len(payload)) + payload + _END


def _publish_head(exchange: str, routing_key: str, size: int, is_persistent: bool) -> bytes:
    """Everything of a publish before the bytes of its body."""
    head = _method(1, 60, 40, struct.pack(">H", 0) + _short(exchange) + _short(routing_key) + b"\0")
    head += _FRAME.pack(_HEADER, 1, 15)
    head += struct.pack(">HHQHB", 60, 0, size, 0x1000, 2 if is_persistent else 1) + _END
    return head + _FRAME.pack(_BODY, 1, size)


class RawClient:
    """One connection with one channel, as guest on loopback."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.is_blocked = False
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._wait(10, 10)
        capabilities = _short("capabilities") + b"F" + _long(_short("connection.blocked") + b"t\x01")
        properties = _long(capabilities)
        response = _long(b"\0guest\0guest")
        self._socket.sendall(_method(0, 10, 11, properties + _short("PLAIN") + response + _short("en_US")))
        self._wait(10, 30)
        self._socket.sendall(_method(0, 10, 31, struct.pack(">HIH", 2047, 131072, 0)))
        self._socket.sendall(_method(0, 10, 40, _short("/") + _short("") + b"\0"))
        self._wait(10, 41)
        self._socket.sendall(_method(1, 20, 10, _short("")))
        self._wait(20, 11)

    def declare(self, queue: str, arguments: bytes = b"") -> None:
        """A durable queue; ``arguments``: an encoded table without its length."""
        self._socket.sendall(_method(1, 50, 10, struct.pack(">H", 0) + _short(queue) + b"\x02" + _long(arguments)))
        self._wait(50, 11)

    def declare_fanout(self, exchange: str, queues: list[str]) -> None:
        """A durable fanout exchange with these queues bound."""
        head = struct.pack(">H", 0) + _short(exchange) + _short("fanout")
        self._socket.sendall(_method(1, 40, 10, head + b"\x02" + _long(b"")))
        self._wait(40, 11)
        for queue in queues:
            self.declare(queue)
            bind = struct.pack(">H", 0) + _short(queue) + _short(exchange) + _short("") + b"\0" + _long(b"")
            self._socket.sendall(_method(1, 50, 20, bind))
            self._wait(50, 21)

    def publish(
        self,
        routing_key: str,
        first: int,
        count: int,
        size: int,
        *,
        exchange: str = "",
        persistent: bool = True,
        window: int = 500,
        per_s: float = 0.0,
        on_progress: Callable[[int], None] = lambda _confirmed: None,
    ) -> float:
        """Publish messages ``first`` ... with confirms, at most ``window`` unconfirmed; returns the seconds it took.

        ``per_s``: pace in messages per second, 0 = as fast as it goes.
        """
        self.confirm()
        head = _publish_head(exchange, routing_key, size, persistent)
        batch = max(1, window // 4)
        sent = confirmed = 0
        started = time.monotonic()
        while confirmed < count:
            while sent < count and sent - confirmed + batch <= window:
                number = min(batch, count - sent)
                parts: list[bytes] = []
                for at in range(first + sent, first + sent + number):
                    parts += (head, body_of(at, size), _END)
                if per_s:
                    time.sleep(max(0.0, started + sent / per_s - time.monotonic()))
                self._socket.sendall(b"".join(parts))
                sent += number
            confirmed = max(confirmed, self._confirmed_until())
            on_progress(confirmed)
        return time.monotonic() - started

    def confirm(self) -> None:
        """Confirm mode from now on."""
        self._socket.sendall(_method(1, 85, 10, b"\0"))
        self._wait(85, 11)

    def publish_one(self, queue: str, size: int) -> None:
        """Publish a persistent message to ``queue`` in confirm mode, and wait for its confirm."""
        self._socket.sendall(_publish_head("", queue, size, is_persistent=True) + body_of(0, size) + _END)
        self._confirmed_until()

    def _confirmed_until(self) -> int:
        highest = 0
        while not highest:
            for kind, _, payload in self._frames():
                if kind != _METHOD:
                    continue
                method = payload[:4]
                if method == b"\x00\x3c\x00\x50":
                    highest = max(highest, _NUMBER.unpack_from(payload, 4)[0])
                elif method == b"\x00\x3c\x00\x78":
                    raise RuntimeError("the broker refused a message")
                else:
                    self._note(method, payload)
        return highest

    def _note(self, method: bytes, payload: bytes) -> None:
        if method == b"\x00\x0a\x00\x3c":
            self.is_blocked = True
        elif method == b"\x00\x0a\x00\x3d":
            self.is_blocked = False
        elif method in (b"\x00\x14\x00\x28", b"\x00\x0a\x00\x32"):
            raise RuntimeError(f"closed by the broker: {payload[4:]!r}")

    def consume(self, queue: str, first: int, count: int, size: int, prefetch: int = 500) -> float:
        """Take messages ``first`` ... ``first + count - 1`` and check that they come whole and in order.

        Returns the seconds it took. Raises `RuntimeError` for the first that is not what it should be.
        """
        self._socket.sendall(_method(1, 60, 10, struct.pack(">IHB", 0, prefetch, 0)))
        self._wait(60, 11)
        consume = struct.pack(">H", 0) + _short(queue) + _short("") + b"\0" + _long(b"")
        self._socket.sendall(_method(1, 60, 20, consume))
        started = time.monotonic()
        number = first
        end = first + count
        tag = acked = 0
        while number < end:
            for kind, _, payload in self._frames():
                if kind == _BODY:
                    if payload != body_of(number, size):
                        raise RuntimeError(f"message {number} came as {payload[:8]!r}, {len(payload)} bytes")
                    number += 1
                elif kind == _METHOD:
                    if payload[:4] == b"\x00\x3c\x00\x3c":
                        at = 5 + payload[4]
                        (tag,) = _NUMBER.unpack_from(payload, at)
                    else:
                        self._note(payload[:4], payload)
            delivered = number - first
            if delivered - acked >= prefetch // 2 or number >= end:
                self._socket.sendall(_method(1, 60, 80, _NUMBER.pack(delivered) + b"\x01"))
                acked = delivered
        assert tag >= count, "every message came with a delivery tag"
        elapsed = time.monotonic() - started
        self.finish()
        return elapsed

    def drain(self, queue: str, prefetch: int) -> None:
        """Take and ack whatever comes, for ever; deliveries may repeat."""
        self._socket.sendall(_method(1, 60, 10, struct.pack(">IHB", 0, prefetch, 0)))
        self._wait(60, 11)
        consume = struct.pack(">H", 0) + _short(queue) + _short("") + b"\0" + _long(b"")
        self._socket.sendall(_method(1, 60, 20, consume))
        tag = acked = 0
        while True:
            for kind, _, payload in self._frames():
                if kind == _METHOD:
                    if payload[:4] == b"\x00\x3c\x00\x3c":
                        (tag,) = _NUMBER.unpack_from(payload, 5 + payload[4])
                    else:
                        self._note(payload[:4], payload)
            if tag - acked >= prefetch // 2:
                self._socket.sendall(_method(1, 60, 80, _NUMBER.pack(tag) + b"\x01"))
                acked = tag

    def take(self, queue: str, count: int) -> None:
        """Have ``count`` messages delivered without a prefetch limit, and ack none; their tags are 1, 2, 3, ..."""
        consume = struct.pack(">H", 0) + _short(queue) + _short("") + b"\0" + _long(b"")
        self._socket.sendall(_method(1, 60, 20, consume))
        taken = 0
        while taken < count:
            for kind, _, payload in self._frames():
                if kind == _BODY:
                    taken += 1
                elif kind == _METHOD and payload[:4] != b"\x00\x3c\x00\x3c":
                    self._note(payload[:4], payload)

    def ack(self, tags: Sequence[int]) -> None:
        """One by one, sent together."""
        self._socket.sendall(b"".join([_method(1, 60, 80, _NUMBER.pack(tag) + b"\0") for tag in tags]))

    def finish(self) -> None:
        """Wait until the broker has taken everything that was sent."""
        self._socket.sendall(_method(1, 60, 10, struct.pack(">IHB", 0, 0, 0)))
        self._wait(60, 11)

    def close(self) -> None:
        self._socket.close()

    # -- frames

    def _frames(self) -> list[tuple[int, int, bytes]]:
        """At least one whole frame: (type, channel, payload)."""
        frames: list[tuple[int, int, bytes]] = []
        while not frames:
            received = self._socket.recv(_READ_BYTES)
            if not received:
                raise RuntimeError("the broker closed the connection")
            data = self._buffer + received if self._buffer else received
            at, end = 0, len(data)
            unpack = _FRAME.unpack_from
            while end - at >= 8:
                kind, channel, size = unpack(data, at)
                stop = at + 7 + size
                if stop >= end:
                    break
                frames.append((kind, channel, data[at + 7 : stop]))
                at = stop + 1
            self._buffer = data[at:]
        return frames

    def _wait(self, class_id: int, method_id: int) -> bytes:
        """Read until this method comes; returns its arguments."""
        wanted = struct.pack(">HH", class_id, method_id)
        while True:
            for kind, _, payload in self._frames():
                if kind == _METHOD:
                    if payload[:4] == wanted:
                        return payload[4:]
                    self._note(payload[:4], payload)


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data

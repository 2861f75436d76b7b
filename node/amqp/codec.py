"""From bytes to items: the reader of everything a client sends after the protocol header.

Flow. A socket read goes into `FrameReader.feed`, which walks over all complete frames once and returns items.
Publishes (method, content header, body) and settlements are decoded here, by hand, and gathered into one item per
channel and run; any other method goes through `methods.decode_method`. What is left of an incomplete frame waits
in a bytearray together with the number of bytes that must be there before it is worth looking again. One call takes
at most `READ_LIMIT` publishes and other frames, for what is read must be carried out, and the loop has others to serve
(`node.amqp.server.turns`); ``has_more`` says that further calls are due.

The fast path is a publish whose three frames are all there and whose body is in one frame: no state is kept for it.
Otherwise the content is assembled in ``_contents``, one entry per channel, because frames of different channels may
be interleaved. Both paths give the same items; a property test feeds every split to prove it.

Two small caches keep the fast path short: payloads of publish methods (a producer uses few exchanges and keys), and
property bytes already found well formed. Both are cleared when full, never larger than their constants.

Order. Items of one channel are in the order of the wire. Items of different channels are not (a run of publishes
grows while other channels' items follow it); AMQP promises no order between channels.

Errors never leave `feed` as exceptions: the last item is a `Fault`, and the reader is dead from then on, so
whatever came before the broken frame is still handled.
"""

from __future__ import annotations

from node.amqp.frames import (
    BASIC_ACK,
    BASIC_CLASS_WEIGHT,
    BASIC_NACK,
    BASIC_PUBLISH,
    BASIC_REJECT,
    CONTENT_PREFIX,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
    FRAME_PREFIX,
    SETTLE_PAYLOAD,
    ContentTooLarge,
    Fault,
    FrameItem,
    MethodReceived,
    Publishes,
    Settlements,
    settle_bits,
)
from node.amqp.methods import decode_method
from node.amqp.properties import scan_properties
from node.amqp.values import MalformedValue, read_short_string
from node.errors import ConnectionFailure
from node.ids import MsgId
from node.message import Message

#: The largest body taken unless configured otherwise, RabbitMQ's default.
MAX_MESSAGE_SIZE_BYTES = 134_217_728
#: Publishes and other frames that one call takes: the most expensive (acks in random order) are a millisecond of work.
READ_LIMIT = 64
#: Publish payloads remembered: a producer's exchanges times its keys, a cache miss costs a microsecond.
PUBLISH_CACHE_ENTRIES = 256
#: Properties remembered, and the longest worth remembering (long ones rarely repeat).
PROPERTIES_CACHE_ENTRIES = 256
PROPERTIES_CACHE_BYTES_MAX = 128
#: Bodies in assembly on one connection, as a multiple of the largest message: two channels may send big ones at once.
ASSEMBLY_MESSAGES_MAX = 2

_METHOD_CONNECTION_CLOSE = 0x000A0032
_METHOD_CONNECTION_CLOSE_OK = 0x000A0033
_METHOD_CHANNEL_OPEN = 0x0014000A
_METHOD_CHANNEL_CLOSE = 0x00140028
_METHOD_CHANNEL_CLOSE_OK = 0x00140029
_NO_MSG_ID = MsgId(b"")
#: A content header has at least class, weight, body size and flags.
_CONTENT_HEADER_BYTES_MIN = 14
_LAST_WORDS = frozenset((_METHOD_CONNECTION_CLOSE, _METHOD_CONNECTION_CLOSE_OK))
_SETTLE_METHODS = frozenset((BASIC_ACK, BASIC_NACK, BASIC_REJECT))


class _Violation(Exception):
    """Carries the reply code of a `Fault` up to `feed`."""

    def __init__(self, reply_code: int, text: str, method_index: int = 0) -> None:
        super().__init__(text)
        self.error = ConnectionFailure(reply_code, text)
        self.method_index = method_index


class _Content:
    """A publish whose header or body has not wholly arrived."""

    __slots__ = (
        "exchange",
        "mandatory",
        "parts",
        "persistent",
        "properties",
        "remaining_bytes",
        "routing_key",
        "thrown_away",
    )

    def __init__(self, exchange: str, routing_key: str, mandatory: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        #: ``None`` until the content header has arrived.
        self.properties: bytes | None = None
        self.persistent = False
        self.parts: list[bytes] = []
        #: Bytes of body still to come.
        self.remaining_bytes = 0
        #: Announced as larger than allowed: read over it.
        self.thrown_away = False


class FrameReader:
    """Frames of one connection, in; items, out. ``frame_max`` may be raised once it is negotiated."""

    __slots__ = (
        "_assembly_bytes",
        "_contents",
        "_dead",
        "_ignored",
        "_ignores_contents",
        "_is_deaf",
        "_latest",
        "_needed_bytes",
        "_opened",
        "_pending",
        "_properties_cache",
        "_publish_cache",
        "_unread",
        "_unread_at",
        "channel_max",
        "frame_max",
        "max_message_size_bytes",
        "read_limit",
    )

    def __init__(
        self, frame_max: int, max_message_size_bytes: int = MAX_MESSAGE_SIZE_BYTES, *, opened: set[int] | None = None
    ) -> None:
        """``opened``: the channels that the client has ever opened, kept up to date here; ``None``: any may be used."""
        #: Largest payload taken, in bytes (the reference tolerates the frame's overhead on top).
        self.frame_max = frame_max
        self.max_message_size_bytes = max_message_size_bytes
        #: Channels above this cannot be open.
        self.channel_max = 65_535
        #: Frames that one call takes, see `READ_LIMIT`.
        self.read_limit = READ_LIMIT
        self._opened = opened
        self._ignores_contents = False
        self._pending = bytearray()
        self._needed_bytes = FRAME_OVERHEAD_BYTES
        #: What the last call left because of `READ_LIMIT`, and where it begins; empty if it read to the end.
        self._unread = b""
        self._unread_at = 0
        self._contents: dict[int, _Content] = {}
        #: Body bytes announced by the contents in assembly.
        self._assembly_bytes = 0
        self._ignored: set[int] = set()
        #: Per channel the item that a further publish or settlement may join; lives during one `feed`.
        self._latest: dict[int, FrameItem] = {}
        self._publish_cache: dict[bytes, tuple[str, str, bool]] = {}
        self._properties_cache: dict[bytes, bool] = {}
        #: There was a fault: the client's end of the connection is all that is still looked for.
        self._dead = False
        #: Nor that, since nobody knows where a frame begins.
        self._is_deaf = False

    def ignore_channel(self, channel: int) -> None:
        """The server closes this channel: drop all but its close methods until the client's ``close-ok``."""
        self._ignored.add(channel)
        self._drop_content(channel)

    def ignore_contents(self) -> None:
        """The connection is ending: nothing is assembled any more."""
        self._ignores_contents = True
        self._contents.clear()
        self._assembly_bytes = 0

    @property
    def is_assembling(self) -> bool:
        """Parts of a large message have come, and are kept until the rest has."""
        return self._assembly_bytes > 0

    @property
    def has_more(self) -> bool:
        """The last `feed` did not read to the end: call it again, with or without further data."""
        return bool(self._unread)

    def feed(self, data: bytes) -> list[FrameItem]:
        """The next items, at most `READ_LIMIT` frames of them. Never raises for what the peer sent; see `Fault`."""
        if self._is_deaf:
            return []
        pending = self._pending
        buffer, at = data, 0
        if self._unread:
            buffer, at = self._unread, self._unread_at
            self._unread = b""
            if data:
                buffer, at = buffer[at:] + data, 0
        elif pending:
            pending += data
            if len(pending) < self._needed_bytes:
                return []
            buffer = bytes(pending)
            pending.clear()
        items: list[FrameItem] = []
        self._latest.clear()
        try:
            rest_at = (self._read_last_words if self._dead else self._read_frames)(buffer, at, items)
        except _Violation as violation:
            if self._dead:
                self._is_deaf = True
                return items
            self._dead = True
            self._contents.clear()
            items.append(Fault(0, violation.error, violation.method_index))
            self._unread, self._unread_at = buffer, at  # once more, for the client's last words
            return items
        if not self._unread and rest_at < len(buffer):
            pending += memoryview(buffer)[rest_at:]
        return items

    def _read_frames(self, buffer: bytes, at: int, items: list[FrameItem]) -> int:  # noqa: C901 - the hot loop
        """Read over complete frames from ``at`` on; return where the incomplete one begins, or note what is left."""
        unpack_prefix = FRAME_PREFIX.unpack_from
        unpack_content = CONTENT_PREFIX.unpack_from
        publish_cache = self._publish_cache
        properties_cache = self._properties_cache
        contents = self._contents
        ignored = self._ignored
        frame_max = self.frame_max
        body_max = min(self.max_message_size_bytes, frame_max)
        end = len(buffer)
        run_channel = -1
        for _ in range(self.read_limit):
            if end - at < FRAME_OVERHEAD_BYTES:
                self._needed_bytes = FRAME_OVERHEAD_BYTES
                return at
            kind, channel, size = unpack_prefix(buffer, at)
            if size > frame_max:
                raise _Violation(501, f"a frame of {size} bytes is larger than the limit of {frame_max}")
            stop = at + 7 + size
            if stop >= end:
                self._needed_bytes = FRAME_OVERHEAD_BYTES + size
                return at
            if buffer[stop] != FRAME_END:
                raise _Violation(501, f"a frame ends with octet {buffer[stop]} instead of {FRAME_END}")
            payload = buffer[at + 7 : stop]
            at = stop + 1
            publish = publish_cache.get(payload)
            if publish is None or kind != FRAME_METHOD or not channel or channel in contents or channel in ignored:
                run_channel = -1
                self._read_frame(kind, channel, payload, items)
                if not (kind == FRAME_METHOD and channel in contents):
                    continue
                content = contents[channel]
                publish = (content.exchange, content.routing_key, content.mandatory)
            # A publish: take its content at once if it is all here, or leave it to `_read_frame`.
            if end - at > CONTENT_PREFIX.size:
                kind, header_channel, size, class_weight, body_bytes = unpack_content(buffer, at)
                stop = at + 7 + size
                if (
                    kind == FRAME_HEADER
                    and header_channel == channel
                    and class_weight == BASIC_CLASS_WEIGHT
                    and _CONTENT_HEADER_BYTES_MIN <= size <= frame_max
                    and 0 < body_bytes <= body_max
                    and stop + FRAME_OVERHEAD_BYTES + body_bytes < end
                    and buffer[stop] == FRAME_END
                ):
                    kind, body_channel, size = unpack_prefix(buffer, stop + 1)
                    body_stop = stop + 8 + body_bytes
                    if (
                        kind == FRAME_BODY
                        and body_channel == channel
                        and size == body_bytes
                        and buffer[body_stop] == FRAME_END
                    ):
                        properties = buffer[at + 19 : stop]
                        persistent = properties_cache.get(properties)
                        if persistent is None:
                            persistent = self._check_properties(properties)
                        if channel != run_channel:
                            run = self._run_of_publishes(channel, items)
                            append_message = run.messages.append
                            append_mandatory = run.mandatory.append
                            run_channel = channel
                        exchange, routing_key, mandatory = publish
                        append_message(
                            Message(
                                _NO_MSG_ID,
                                exchange,
                                routing_key,
                                properties,
                                buffer[stop + 8 : body_stop],
                                persistent,
                            )
                        )
                        append_mandatory(mandatory)
                        at = body_stop + 1
                        if contents:
                            contents.pop(channel, None)
                        continue
            if channel not in contents:
                self._begin_content(channel, publish, items)
        if at == end and self.read_limit == 1:  # one by one: nobody expects to be asked again for nothing
            self._needed_bytes = FRAME_OVERHEAD_BYTES
        else:
            self._unread, self._unread_at = buffer, at
        return at

    def _read_last_words(self, buffer: bytes, at: int, items: list[FrameItem]) -> int:
        """After a fault, as `_read_frames`: a client that is told of it answers, and waits for the end."""
        end = len(buffer)
        for _ in range(self.read_limit):
            if end - at < FRAME_OVERHEAD_BYTES:
                self._needed_bytes = FRAME_OVERHEAD_BYTES
                return at
            kind, channel, size = FRAME_PREFIX.unpack_from(buffer, at)
            stop = at + 7 + size
            if size > self.frame_max or (stop < end and buffer[stop] != FRAME_END):
                raise _Violation(501, "the framing is lost")
            if stop >= end:
                self._needed_bytes = FRAME_OVERHEAD_BYTES + size
                return at
            index = int.from_bytes(buffer[at + 7 : at + 11], "big")
            if kind == FRAME_METHOD and not channel and index in _LAST_WORDS:
                self._read_other_method(channel, buffer[at + 7 : stop], index, items)
            at = stop + 1
        if at == end:
            self._needed_bytes = FRAME_OVERHEAD_BYTES
        else:
            self._unread, self._unread_at = buffer, at
        return at

    def _read_frame(self, kind: int, channel: int, payload: bytes, items: list[FrameItem]) -> None:
        """One frame, outside the fast path."""
        if channel in self._ignored:
            self._read_ignored(kind, channel, payload, items)
        elif kind == FRAME_METHOD:
            self._read_method(channel, payload, items)
        elif kind == FRAME_HEADER:
            if not self._ignores_contents:
                self._read_content_header(channel, payload, items)
        elif kind == FRAME_BODY:
            if not self._ignores_contents:
                self._read_body(channel, payload, items)
        elif kind == FRAME_HEARTBEAT:
            if channel != 0:
                raise _Violation(505, f"a heartbeat came on channel {channel}")
            if payload:
                raise _Violation(501, "a heartbeat carries a payload")
        else:
            raise _Violation(501, f"unknown frame type {kind}")

    def _read_ignored(self, kind: int, channel: int, payload: bytes, items: list[FrameItem]) -> None:
        """While the server closes a channel only the client's ``close`` and ``close-ok`` matter."""
        if kind != FRAME_METHOD:
            return
        index = int.from_bytes(payload[:4], "big")
        if index in (_METHOD_CHANNEL_CLOSE, _METHOD_CHANNEL_CLOSE_OK):
            self._read_other_method(channel, payload, index, items)
            if index == _METHOD_CHANNEL_CLOSE_OK:
                self._ignored.discard(channel)

    def _read_method(self, channel: int, payload: bytes, items: list[FrameItem]) -> None:
        index = int.from_bytes(payload[:4], "big")
        if channel in self._contents:
            raise _Violation(505, "expected a content frame, got a method", index)
        if channel == 0 and index >> 16 != 10:
            raise _Violation(503, f"class {index >> 16} is not for channel 0", index)
        if channel != 0 and index >> 16 == 10:
            raise _Violation(503, f"class 10 is for channel 0 only, not {channel}", index)
        if index == BASIC_PUBLISH:
            self._begin_content(channel, self._read_publish(payload), items)
        elif index in _SETTLE_METHODS:
            if len(payload) != SETTLE_PAYLOAD.size:
                raise _Violation(501, "a settlement has the wrong size", index)
            _, delivery_tag, bits = SETTLE_PAYLOAD.unpack(payload)
            settlement = (delivery_tag, settle_bits(index, bits))
            latest = self._latest.get(channel)
            if type(latest) is Settlements:
                latest.settlements.append(settlement)
            else:
                self._emit(channel, Settlements(channel, [settlement]), items)
        else:
            self._read_other_method(channel, payload, index, items)

    def _begin_content(self, channel: int, publish: tuple[str, str, bool], items: list[FrameItem]) -> None:
        """The content follows. It is kept for channels that have been opened only, since their number is limited; an
        empty item says that there was something on another one, and nothing behind it matters."""
        if self._ignores_contents:
            return
        if self._opened is not None and channel not in self._opened:
            self.ignore_contents()
            self._emit(channel, Publishes(channel, [], []), items)
            return
        self._contents[channel] = _Content(*publish)

    def _read_other_method(self, channel: int, payload: bytes, index: int, items: list[FrameItem]) -> None:
        if index == _METHOD_CHANNEL_OPEN and self._opened is not None and channel <= self.channel_max:
            self._opened.add(channel)
        try:
            method = decode_method(payload)
        except MalformedValue as error:
            raise _Violation(501, f"undecodable method: {error}", index) from None
        if method is None:
            raise _Violation(503, f"unknown method {index >> 16}.{index & 0xFFFF}", index)
        self._emit(channel, MethodReceived(channel, method), items)

    def _read_publish(self, payload: bytes) -> tuple[str, str, bool]:
        try:
            exchange, at = read_short_string(payload, 6)
            routing_key, at = read_short_string(payload, at)
        except MalformedValue as error:
            raise _Violation(501, f"undecodable method: {error}", BASIC_PUBLISH) from None
        if len(payload) != at + 1:
            raise _Violation(501, "basic.publish has the wrong size", BASIC_PUBLISH)
        if payload[at] & 2:
            raise _Violation(540, "immediate=true", BASIC_PUBLISH)
        publish = (exchange, routing_key, bool(payload[at] & 1))
        if len(self._publish_cache) >= PUBLISH_CACHE_ENTRIES:
            self._publish_cache.clear()
        self._publish_cache[payload] = publish
        return publish

    def _read_content_header(self, channel: int, payload: bytes, items: list[FrameItem]) -> None:
        content = self._contents.get(channel)
        if content is None or content.properties is not None:
            raise _Violation(505, "a content header came without its method")
        if len(payload) < _CONTENT_HEADER_BYTES_MIN:
            raise _Violation(501, "a content header is cut off", BASIC_PUBLISH)
        class_id = int.from_bytes(payload[:2], "big")
        if class_id != BASIC_CLASS_WEIGHT >> 16:
            raise _Violation(505, f"expected a content header of class 60, got class {class_id}", BASIC_PUBLISH)
        if payload[2:4] != b"\x00\x00":
            raise _Violation(501, "the weight of a content header is not 0", BASIC_PUBLISH)
        body_bytes = int.from_bytes(payload[4:12], "big")
        content.properties = payload[12:]
        content.persistent = self._check_properties(content.properties)
        content.remaining_bytes = body_bytes
        if body_bytes > self.max_message_size_bytes:
            content.thrown_away = True
            self._emit(channel, ContentTooLarge(channel, body_bytes), items)
            return
        if self._assembly_bytes + body_bytes > ASSEMBLY_MESSAGES_MAX * self.max_message_size_bytes:
            raise _Violation(506, "too many large messages are under way on this connection", BASIC_PUBLISH)
        self._assembly_bytes += body_bytes
        if body_bytes == 0:
            self._complete(channel, content, items)

    def _read_body(self, channel: int, payload: bytes, items: list[FrameItem]) -> None:
        content = self._contents.get(channel)
        if content is None or content.properties is None:
            raise _Violation(505, "a body frame came without its content header")
        if len(payload) > content.remaining_bytes:
            raise _Violation(505, "a body is longer than its content header says", BASIC_PUBLISH)
        content.remaining_bytes -= len(payload)
        if content.thrown_away:
            if content.remaining_bytes == 0:
                del self._contents[channel]
            return
        if payload:  # empty frames cost nothing to send and must cost nothing to keep
            content.parts.append(payload)
        if content.remaining_bytes == 0:
            self._complete(channel, content, items)

    def _complete(self, channel: int, content: _Content, items: list[FrameItem]) -> None:
        assert content.properties is not None, "a content is complete only after its header"
        body = b"".join(content.parts)
        self._assembly_bytes -= len(body)
        del self._contents[channel]
        run = self._run_of_publishes(channel, items)
        run.messages.append(
            Message(_NO_MSG_ID, content.exchange, content.routing_key, content.properties, body, content.persistent)
        )
        run.mandatory.append(content.mandatory)

    def _check_properties(self, properties: bytes) -> bool:
        """True for a persistent message. Raises `_Violation` if the property list does not add up."""
        try:
            persistent = scan_properties(properties)
        except MalformedValue as error:
            raise _Violation(501, f"undecodable properties: {error}", BASIC_PUBLISH) from None
        if len(properties) <= PROPERTIES_CACHE_BYTES_MAX:
            cache = self._properties_cache
            if len(cache) >= PROPERTIES_CACHE_ENTRIES:
                cache.clear()
            cache[properties] = persistent
        return persistent

    def _run_of_publishes(self, channel: int, items: list[FrameItem]) -> Publishes:
        latest = self._latest.get(channel)
        if type(latest) is Publishes:
            return latest
        run = Publishes(channel, [], [])
        self._emit(channel, run, items)
        return run

    def _emit(self, channel: int, item: FrameItem, items: list[FrameItem]) -> None:
        items.append(item)
        self._latest[channel] = item

    def _drop_content(self, channel: int) -> None:
        content = self._contents.pop(channel, None)
        if content is not None and content.properties is not None and not content.thrown_away:
            self._assembly_bytes -= sum(map(len, content.parts)) + content.remaining_bytes

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        announced = 0
        for content in self._contents.values():
            if content.properties is not None:
                assert content.remaining_bytes > 0, "a content with nothing to come would have been emitted"
                if not content.thrown_away:
                    announced += sum(map(len, content.parts)) + content.remaining_bytes
        assert self._dead or announced == self._assembly_bytes, "the assembly account matches what is assembled"
        assert not self._ignored & self._contents.keys(), "nothing is assembled for a channel that is closing"
        if self._opened is not None:
            assert self._dead or self._contents.keys() <= self._opened, "contents are assembled on open channels"
        assert len(self._publish_cache) <= PUBLISH_CACHE_ENTRIES, "the cache is bounded"
        assert len(self._properties_cache) <= PROPERTIES_CACHE_ENTRIES, "the cache is bounded"
        assert len(self._pending) < self._needed_bytes, "a complete frame waits only behind the limit"
        assert not (self._unread and self._pending), "an incomplete frame is put aside when all before it is read"

"""What every `Carrier` promises, as one suite. A test module subclasses it and gives the fixture ``place``.

``place`` is the carrier of a node that listens, the address where it can, and the carrier of a node that dials it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from cluster.transport.carrier import (
    LARGEST_FRAME_BYTES,
    Carrier,
    Connection,
    IncomingStream,
    OutgoingStream,
    ProbeResult,
    StreamBroken,
    StreamKind,
)

SILENCE_TIMEOUT_MS = 6000
CHUNK = bytes(64 * 1024)
#: More than any carrier may hold for one stream.
MANY_CHUNKS = 1024

Place = tuple[Carrier, str, Carrier]


@dataclass(slots=True)
class Visit:
    """A stream that somebody has opened: served until `leave` is set."""

    kind: StreamKind
    stream: IncomingStream
    task: asyncio.Task[None]
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    is_cancelled: asyncio.Event = field(default_factory=asyncio.Event)


class House:
    """A carrier that serves, and one that dials it."""

    def __init__(self, place: Place) -> None:
        self.host, self.address, self.guest = place
        self.visits: asyncio.Queue[Visit] = asyncio.Queue()
        self.connections: list[Connection] = []

    async def accept(self, kind: StreamKind, stream: IncomingStream) -> None:
        task = asyncio.current_task()
        assert task is not None, "a stream is served by a task"
        visit = Visit(kind, stream, task)
        self.visits.put_nowait(visit)
        try:
            await visit.leave.wait()
        except asyncio.CancelledError:
            visit.is_cancelled.set()
            raise

    async def serve(self) -> int:
        return await self.host.serve(self.address, self.accept, silence_timeout_ms=SILENCE_TIMEOUT_MS)

    def connect(self) -> Connection:
        connection = self.guest.connect(self.address, silence_timeout_ms=SILENCE_TIMEOUT_MS)
        self.connections.append(connection)
        return connection

    async def visit(self, connection: Connection, kind: StreamKind) -> tuple[OutgoingStream, Visit]:
        """Both ends of a new stream, on which a first frame has passed."""
        stream = connection.open_stream(kind)
        await stream.write(b"knock")
        visit = await self.visits.get()
        assert visit.kind is kind
        assert await visit.stream.read() == b"knock"
        return stream, visit


class CarrierContract:
    """The suite."""

    @pytest.fixture
    async def house(self, place: Place) -> AsyncIterator[House]:
        house = House(place)
        yield house
        for connection in house.connections:
            await connection.close()
        await house.host.stop()

    async def test_frames_arrive_whole_and_in_order_both_ways(self, house: House) -> None:
        await house.serve()
        stream, visit = await house.visit(house.connect(), StreamKind.CONSENSUS)
        frames = [b"", b"a", *(bytes([number]) * number * 10 for number in range(100)), b""]
        for frame in frames:
            await stream.write(frame)
            await visit.stream.write(frame)
        assert [await visit.stream.read() for _ in frames] == frames
        assert [await stream.read() for _ in frames] == frames
        assert visit.stream.caller

    async def test_a_frame_may_be_large(self, house: House) -> None:
        await house.serve()
        stream, visit = await house.visit(house.connect(), StreamKind.QUEUES)
        large = bytes(range(256)) * (LARGEST_FRAME_BYTES // 256)
        writing = asyncio.ensure_future(stream.write(large))
        assert await visit.stream.read() == large
        await writing

    async def test_a_frame_that_is_too_large_does_not_arrive_and_breaks_the_stream(self, house: House) -> None:
        """Whoever knocks makes nobody hold more."""
        await house.serve()
        stream, visit = await house.visit(house.connect(), StreamKind.QUEUES)
        with suppress(StreamBroken):
            await stream.write(bytes(LARGEST_FRAME_BYTES + 1))
        with suppress(StreamBroken):
            assert await visit.stream.read() is None
        visit.leave.set()
        with pytest.raises(StreamBroken):
            await stream.read()

    async def test_a_writer_waits_for_the_reader_and_only_on_its_own_stream(self, house: House) -> None:
        await house.serve()
        connection = house.connect()
        bulk, unread = await house.visit(connection, StreamKind.QUEUES)
        written = 0

        async def write_much() -> None:
            nonlocal written
            while written < MANY_CHUNKS:
                await bulk.write(CHUNK)
                written += 1

        writing = asyncio.ensure_future(write_much())
        urgent, visit = await house.visit(connection, StreamKind.CONSENSUS)
        for _ in range(20):
            await urgent.write(b"urgent")
            assert await visit.stream.read() == b"urgent"
        await asyncio.wait([writing], timeout=0.3)
        assert written < MANY_CHUNKS, "nobody has read"
        for _ in range(MANY_CHUNKS):
            assert await unread.stream.read() == CHUNK
        await writing

    async def test_a_stream_that_was_served_ends(self, house: House) -> None:
        await house.serve()
        stream, visit = await house.visit(house.connect(), StreamKind.QUEUES)
        await visit.stream.write(b"last word")
        visit.leave.set()
        assert await stream.read() == b"last word"
        assert await stream.read() is None
        with pytest.raises(StreamBroken):
            await stream.write(b"too late")

    async def test_a_server_that_is_cancelled_by_its_own_side_ends_its_stream_only(self, house: House) -> None:
        await house.serve()
        connection = house.connect()
        _, visit = await house.visit(connection, StreamKind.QUEUES)
        other, other_visit = await house.visit(connection, StreamKind.CONSENSUS)
        visit.task.cancel()
        await visit.is_cancelled.wait()
        await other.write(b"still here")
        assert await other_visit.stream.read() == b"still here"

    async def test_a_dialer_that_cancels_ends_the_serving(self, house: House) -> None:
        await house.serve()
        stream, visit = await house.visit(house.connect(), StreamKind.QUEUES)
        stream.cancel()
        stream.cancel()
        await visit.is_cancelled.wait()
        with pytest.raises(StreamBroken):
            await stream.write(b"too late")

    async def test_hanging_up_ends_the_serving_of_every_stream(self, house: House) -> None:
        await house.serve()
        connection = house.connect()
        visits = [(await house.visit(connection, kind))[1] for kind in StreamKind]
        await connection.close()
        await connection.close()
        for visit in visits:
            await visit.is_cancelled.wait()

    async def test_stopping_ends_what_is_served_and_refuses_whoever_comes(self, house: House) -> None:
        await house.serve()
        stream, visit = await house.visit(house.connect(), StreamKind.QUEUES)
        assert await house.guest.probe(house.address, 1) is ProbeResult.ACCEPTED
        await house.host.stop()
        await visit.is_cancelled.wait()
        with pytest.raises(StreamBroken):
            await stream.read()
        assert await house.guest.probe(house.address, 1) is ProbeResult.REFUSED

    async def test_where_nobody_listens_a_stream_breaks(self, house: House) -> None:
        stream = house.connect().open_stream(StreamKind.QUEUES)
        with pytest.raises(StreamBroken, match="refused"):
            await self._ask(stream)

    async def _ask(self, stream: OutgoingStream) -> bytes | None:
        await stream.write(b"hello")
        return await stream.read()

    async def test_an_address_is_served_once(self, house: House) -> None:
        port = await house.serve()
        assert house.address.endswith(f":{port}")
        with pytest.raises(OSError, match=r"already|in use"):
            await house.host.serve(house.address, house.accept, silence_timeout_ms=SILENCE_TIMEOUT_MS)

    async def test_a_port_may_be_chosen(self, house: House) -> None:
        house.address = house.address.rpartition(":")[0] + ":0"
        port = await house.serve()
        house.address = house.address.rpartition(":")[0] + f":{port}"
        await house.visit(house.connect(), StreamKind.CONSENSUS)

"""The network in memory keeps the promises of a carrier, and breaks what a network may break."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

import pytest

from cluster.transport.carrier import (
    Connection,
    IncomingStream,
    OutgoingStream,
    ProbeResult,
    StreamBroken,
    StreamKind,
)
from tests.support import memory_connection
from tests.support.carrier_contract import CarrierContract, Place
from tests.support.memory_carrier import WINDOW_BYTES, MemoryCarrier, MemoryNetwork
from tests.support.memory_path import pass_time


class TestMemoryCarrier(CarrierContract):
    @pytest.fixture(params=range(4))
    def place(self, request: pytest.FixtureRequest) -> Place:
        network = MemoryNetwork(Random(request.param))
        if request.param:
            for path in (network.path("host", "guest"), network.path("guest", "host")):
                path.delay_max_s = 0.05
        return network.carrier("host"), "host:1", network.carrier("guest")


@dataclass(slots=True)
class Wire:
    """One stream between two hosts, with what its acceptor has read."""

    network: MemoryNetwork
    host: MemoryCarrier
    guest: MemoryCarrier
    stream: OutgoingStream
    connection: Connection
    read: list[bytes]
    ended: asyncio.Event


async def lay(seed: int) -> Wire:
    """It is open; the acceptor reads a frame each millisecond."""
    network = MemoryNetwork(Random(seed))
    host, guest = network.carrier("host"), network.carrier("guest")
    read: list[bytes] = []
    ended = asyncio.Event()

    async def accept(kind: StreamKind, stream: IncomingStream) -> None:
        try:
            while (frame := await stream.read()) is not None:
                read.append(frame)
                await pass_time(0.001)
        finally:
            ended.set()

    await host.serve("host:1", accept, silence_timeout_ms=6000)
    connection = guest.connect("host:1", silence_timeout_ms=6000)
    stream = connection.open_stream(StreamKind.QUEUES)
    await pass_time(0.1)
    return Wire(network, host, guest, stream, connection, read, ended)


async def test_a_reset_loses_a_suffix_and_only_that() -> None:
    kept = set()
    for seed in range(40):
        wire = await lay(seed)
        wire.network.path("guest", "host").delay_max_s = 0.02
        frames = [bytes([number]) for number in range(20)]
        for frame in frames:
            await wire.stream.write(frame)
        await pass_time(0.01)
        wire.network.reset("host", "guest")
        await wire.ended.wait()
        assert wire.read == frames[: len(wire.read)]
        kept.add(len(wire.read))
        with pytest.raises(StreamBroken, match="connection reset"):
            await wire.stream.write(b"late")
    assert len(kept) > 5, "how much is lost is open"


async def test_a_cut_holds_what_was_sent_and_then_the_writer() -> None:
    wire = await lay(1)
    wire.network.path("guest", "host").cut()
    chunk = bytes(WINDOW_BYTES // 4)
    for _ in range(4):
        await wire.stream.write(chunk)
    writing = asyncio.ensure_future(wire.stream.write(chunk))
    await pass_time(1)
    assert (wire.read, writing.done()) == ([], False)
    wire.network.path("guest", "host").heal()
    await writing
    await pass_time(1)
    assert wire.read == [chunk] * 5


async def test_who_hangs_up_behind_a_cut_leaves_the_other_end_half_open() -> None:
    """The notice is lost with the cut; what still comes from the other end is answered with a reset after it."""
    wire = await lay(1)
    await wire.stream.write(b"first")
    await pass_time(0.1)
    wire.network.path("host", "guest").cut()
    wire.host.kill()
    await wire.stream.write(b"nobody hears this")
    await pass_time(1)
    wire.network.path("host", "guest").heal()
    await wire.stream.write(b"nor this")
    with pytest.raises(StreamBroken, match="reset by peer"):
        await wire.stream.read()
    assert wire.read == [b"first"]


@pytest.mark.parametrize("seed", range(4))
async def test_a_lost_machine_is_found_out_by_its_silence(seed: int) -> None:
    wire = await lay(seed)
    await wire.stream.write(b"first")
    began = asyncio.get_running_loop().time()
    wire.network.vanish("host")
    with pytest.raises(StreamBroken, match="nothing was heard"):
        await wire.stream.read()
    assert 4 <= asyncio.get_running_loop().time() - began <= 6


async def test_a_frame_that_is_too_large_breaks_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_connection, "LARGEST_FRAME_BYTES", 100)
    wire = await lay(1)
    await wire.stream.write(bytes(100))
    await pass_time(0.1)
    with pytest.raises(StreamBroken, match="a frame of 101 bytes is larger than 100"):
        await wire.stream.write(bytes(101))
    await wire.ended.wait()
    assert wire.read == [bytes(100)]


async def test_a_probe_tells_a_dead_process_from_a_silent_machine() -> None:
    wire = await lay(1)
    there, back = wire.network.path("guest", "host"), wire.network.path("host", "guest")

    async def probe() -> ProbeResult:
        return await wire.guest.probe("host:1", 1)

    assert await probe() is ProbeResult.ACCEPTED
    for path in (there, back):
        path.cut()
        assert await probe() is ProbeResult.SILENT
        path.heal()
        assert await probe() is ProbeResult.ACCEPTED
    there.is_refusing = True
    assert await probe() is ProbeResult.REFUSED
    there.is_refusing = False
    there.delay_min_s = there.delay_max_s = 2
    assert await probe() is ProbeResult.SILENT
    there.delay_min_s = there.delay_max_s = 0
    assert await wire.guest.probe("host:2", 1) is ProbeResult.REFUSED
    wire.host.kill()
    assert await probe() is ProbeResult.REFUSED
    wire.network.vanish("host")
    assert await probe() is ProbeResult.SILENT
    wire.network.carrier("host")
    assert await probe() is ProbeResult.REFUSED


async def test_a_killed_process_does_nothing_any_more() -> None:
    wire = await lay(1)
    wire.guest.kill()
    await wire.ended.wait()
    with pytest.raises(StreamBroken):
        await wire.guest.connect("host:1", silence_timeout_ms=6000).open_stream(StreamKind.QUEUES).write(b"ghost")
    assert await wire.guest.probe("host:1", 1) is ProbeResult.SILENT

"""What somebody who has not logged in can make the server do and keep."""

from __future__ import annotations

import asyncio
import logging

import pytest

from node.amqp.connection import FRAME_MIN_BYTES, ConnectionState
from node.amqp.frames import PROTOCOL_HEADER
from node.amqp.login_throttle import DELAY_STEP_S, FAILURES_FREE
from node.auth import LoginRefused
from tests.support.amqp_frames import method_bytes, publish_bytes
from tests.support.observed_broker import ObservedBroker
from tests.support.server_client import Channel, Client, Connection, MemoryServer, server_of


def login(password: str, *, wants_answer: bool = True) -> bytes:
    capabilities = {"capabilities": {"authentication_failure_close": wants_answer}}
    return method_bytes(0, Connection.StartOk(capabilities, "PLAIN", f"\0guest\0{password}"))  # type: ignore[arg-type]


@pytest.fixture
async def server(broker: ObservedBroker) -> MemoryServer:
    return await server_of(broker)


def unfinished_publish(channel: int) -> bytes:
    """The method; header and body are to come."""
    data = publish_bytes(channel)
    return data[: 7 + int.from_bytes(data[3:7], "big") + 1]


@pytest.mark.parametrize("begin", [b"", login("guest")], ids=["as a stranger", "logged in"])
async def test_content_on_channels_that_are_not_open_is_not_kept(server: MemoryServer, begin: bytes) -> None:
    client = Client(server)
    client.shell.data_received(PROTOCOL_HEADER + begin)
    await client.settle()
    client.frames()
    for channel in range(1, 2000):
        client.shell.data_received(unfinished_publish(channel))
    await client.settle()
    client.shell.machine.check_invariants()
    assert not client.shell.machine.reader._contents
    if begin:
        (close,) = client.frames()
        assert (close.reply_code, "channel" in close.reply_text) == (504, True)
    else:
        assert client.state() is ConnectionState.SILENT


async def test_content_on_a_channel_that_is_not_open_is_504_wherever_it_is_cut(server: MemoryServer) -> None:
    data = publish_bytes(5, payload=b"some body")
    for cut in range(1, len(data)):
        client = await Client(server).open()
        client.shell.data_received(data[:cut])
        client.shell.data_received(data[cut:])
        await client.settle()
        (close,) = client.frames()
        assert (close.name, close.reply_code) == ("Connection.Close", 504)
        assert close.reply_text == "CHANNEL_ERROR - expected 'channel.open'"
        assert await client.send(Connection.CloseOk(), channel=0) == []
        assert client.transport.is_closed


@pytest.mark.parametrize("begin", [b"", login("guest")], ids=["as a stranger", "logged in"])
async def test_frames_above_the_smallest_limit_are_refused_before_tuning(server: MemoryServer, begin: bytes) -> None:
    client = Client(server)
    client.shell.data_received(PROTOCOL_HEADER + begin)
    await client.settle()
    client.frames()
    client.shell.data_received(b"\x01\x00\x00" + (FRAME_MIN_BYTES + 1).to_bytes(4, "big") + b"x")
    await client.settle()
    if begin:
        (close,) = client.frames()
        assert (close.name, close.reply_code) == ("Connection.Close", 501)
    else:
        assert client.state() is ConnectionState.SILENT


async def test_a_client_may_send_ahead_of_the_answers(server: MemoryServer, broker: ObservedBroker) -> None:
    """As with the reference, which looks at one frame after the other: large frames may follow the tuning at once."""
    client = Client(server)
    tuned = method_bytes(0, Connection.TuneOk(100, 131_072, 0)) + method_bytes(0, Connection.Open("/"))
    client.shell.data_received(
        PROTOCOL_HEADER
        + login("guest")
        + tuned
        + method_bytes(1, Channel.Open())
        + publish_bytes(1, payload=bytes(100_000))
    )
    await client.settle()
    assert client.names() == ["Connection.Start", "Connection.Tune", "Connection.OpenOk", "Channel.OpenOk"]
    assert [name for name, _ in broker.calls].count("publish") == 1


async def test_what_a_closing_connection_sends_is_not_assembled(server: MemoryServer) -> None:
    client = await Client(server).open()
    large = publish_bytes(1, payload=bytes(100_000))
    assembling = []
    client.shell.data_received(large[:50_000])
    assembling.append(client.shell.machine.reader.is_assembling)
    client.shell.close(320, "shutdown")
    await client.settle()
    assembling.append(client.shell.machine.reader.is_assembling)
    client.shell.data_received(large[50_000:])
    client.shell.data_received(large[:50_000])
    assembling.append(client.shell.machine.reader.is_assembling)
    assert assembling == [True, False, False]
    client.shell.machine.check_invariants()


async def test_of_too_many_handshakes_the_oldest_ends(broker: ObservedBroker, caplog: pytest.LogCaptureFixture) -> None:
    server = await server_of(broker, handshakes_max=3)
    served = await Client(server).open()
    strangers = [Client(server) for _ in range(6)]
    await served.settle()
    assert [client.transport.is_closed for client in strangers] == [True] * 3 + [False] * 3
    assert not served.transport.is_closed, "who has entered a vhost does not count"
    assert caplog.text.count(" dropped: ") == 1, "the others are counted"
    await Client(server).open()
    strangers[4].transport.close()
    await served.settle()
    late = Client(server)
    await served.settle()
    assert not strangers[5].transport.is_closed, "nor who has left"
    assert not late.transport.is_closed


async def test_a_failed_login_is_logged_once_with_the_name_and_without_the_password(
    server: MemoryServer, broker: ObservedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mechanism: str, _response: bytes, _peer_host: str) -> str:
        raise LoginRefused(mechanism, "user 'guest': unknown, or the password is wrong")

    monkeypatch.setattr(broker, "authenticate", refuse)
    caplog.set_level(logging.INFO)
    client = Client(server)
    client.shell.data_received(PROTOCOL_HEADER + login("hunter2"))
    await client.settle()
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 1
    assert "user 'guest': unknown, or the password is wrong" in lines[0]
    assert "hunter2" not in caplog.text


async def test_after_many_failures_an_address_waits_and_nobody_else_does(server: MemoryServer) -> None:
    for _ in range(FAILURES_FREE):
        client = Client(server)
        client.shell.data_received(PROTOCOL_HEADER + login("wrong"))
        await client.settle()
        assert client.names() == ["Connection.Start", "Connection.Close"]
    loop = asyncio.get_running_loop()
    later: list[float] = []
    waiting, other = Client(server), Client(server)
    other.shell._peer = ("127.0.0.2", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting.shell, "_loop", _Recording(loop, later))
        for client in (waiting, other):
            client.shell.data_received(PROTOCOL_HEADER + login("guest"))
            await client.settle()
    assert other.names() == ["Connection.Start", "Connection.Tune"]
    assert waiting.names() == ["Connection.Start"], "a right password waits, too"
    assert later == [DELAY_STEP_S]
    assert waiting.state() is ConnectionState.AUTHENTICATING


class _Recording:
    """A loop on which nothing comes later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, later: list[float]) -> None:
        self._loop = loop
        self._later = later

    def time(self) -> float:
        return self._loop.time()

    def call_soon(self, callback: object) -> object:
        return self._loop.call_soon(callback)  # type: ignore[arg-type]

    def call_later(self, delay_s: float, *_: object) -> None:
        self._later.append(delay_s)


async def test_an_alarm_stops_the_reading_of_a_body_that_has_begun(
    server: MemoryServer, broker: ObservedBroker
) -> None:
    client = await Client(server).open()
    connection = broker.connections[-1]
    asked: list[bool] = []

    def may_publish() -> bool:
        asked.append(True)
        broker.controls[-1].pause_reading()
        return False

    connection.may_publish = may_publish
    client.shell.data_received(publish_bytes(1, payload=bytes(100_000))[:50_000])
    await client.settle()
    assert asked
    assert client.is_held_back(), "half a body is memory, too"

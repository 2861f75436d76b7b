"""The connection machine: handshake, tuning, heartbeats, closing. Time is a number that the test moves."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from node.amqp.codec import READ_LIMIT
from node.amqp.connection import (
    CLOSING_TIMEOUT_S,
    HANDSHAKE_TIMEOUT_S,
    SILENT_CLOSE_DELAY_S,
    Authenticate,
    CloseBroker,
    ConnectionEvent,
    ConnectionLimits,
    ConnectionMachine,
    ConnectionState,
    Disconnect,
    EnterVhost,
)
from node.amqp.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER, MethodReceived, Publishes
from node.errors import ConnectionFailure
from tests.support.amqp_frames import method_bytes, publish_bytes, unmarshal_all

Connection, Channel = commands.Connection, commands.Channel
ALL_CAPABILITIES = {"authentication_failure_close": True, "connection.blocked": True}


class Driver:
    def __init__(self, capabilities: dict[str, bool] | None = None, **limits: Any) -> None:
        self.now = 100.0
        self.output: list[bytes] = []
        self.capabilities = ALL_CAPABILITIES if capabilities is None else capabilities
        self.machine = ConnectionMachine(self.now, self.output, ConnectionLimits(**limits), {"product": "Warren"})

    def receive(self, data: bytes) -> list[ConnectionEvent]:
        self.machine.receive(self.now, data)
        return self.events()

    def has_input(self) -> bool:
        return self.machine.has_input

    def events(self) -> list[ConnectionEvent]:
        events = []
        while self.machine.has_input:
            if (event := self.machine.next_event(self.now)) is not None:
                events.append(event)
            self.machine.check_invariants()
        return events

    def send(self, method: base.Frame, channel: int = 0) -> list[ConnectionEvent]:
        return self.receive(method_bytes(channel, method))

    def sent(self) -> list[Any]:
        data = b"".join(self.output)
        self.output.clear()
        return [frame for _, frame in unmarshal_all(data)]

    def names(self) -> list[str]:
        return [frame.name for frame in self.sent()]

    def start(self, mechanism: str = "PLAIN") -> list[ConnectionEvent]:
        assert self.receive(PROTOCOL_HEADER) == []
        assert self.names() == ["Connection.Start"]
        properties: Any = {"capabilities": self.capabilities}
        return self.send(Connection.StartOk(properties, mechanism, "\0guest\0guest"))

    def tune(self, channel_max: int = 10, frame_max: int = 8192, heartbeat: int = 10) -> list[ConnectionEvent]:
        assert self.start() == [Authenticate("PLAIN", b"\0guest\0guest")]
        self.machine.authenticated("guest")
        assert self.names() == ["Connection.Tune"]
        return self.send(Connection.TuneOk(channel_max, frame_max, heartbeat))

    def open(self, **tuned: int) -> Driver:
        assert self.tune(**tuned) == []
        assert self.send(Connection.Open("/")) == [EnterVhost("/")]
        self.machine.entered("/")
        assert self.names() == ["Connection.OpenOk"]
        (opened,) = self.send(Channel.Open(), channel=1)
        assert isinstance(opened, MethodReceived)
        return self

    def pass_time(self, seconds: float) -> list[ConnectionEvent]:
        self.now += seconds
        self.machine.tick(self.now)
        return self.events()

    def close_frame(self) -> tuple[int, str]:
        """Code and text of the ``connection.close`` sent last."""
        frame = self.sent()[-1]
        assert frame.name == "Connection.Close"
        assert self.machine.state is ConnectionState.CLOSING_BY_SERVER
        return frame.reply_code, frame.reply_text


# --- header ---


@pytest.mark.parametrize("header", [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x09\x01"])
def test_accepted_headers_bytewise(header: bytes) -> None:
    driver = Driver()
    for octet in header:
        assert driver.names() == []
        assert driver.receive(bytes((octet,))) == []
    (start,) = driver.sent()
    assert (start.version_major, start.version_minor, start.mechanisms) == (0, 9, "PLAIN AMQPLAIN")
    assert start.server_properties["product"] == "Warren"
    assert start.server_properties["capabilities"]["publisher_confirms"] is True


@pytest.mark.parametrize("header", [b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x08\x00", b"GET / HTTP/1.1\r\n"])
def test_other_headers_are_answered_with_ours_and_the_end(header: bytes) -> None:
    driver = Driver()
    assert driver.receive(header) == [Disconnect()]
    assert driver.output == [PROTOCOL_HEADER]
    assert driver.machine.state is ConnectionState.CLOSED
    assert driver.receive(b"more") == []


# --- login ---


def test_the_response_is_not_shown() -> None:
    assert "guest" not in repr(Authenticate("PLAIN", b"\0guest\0guest"))


def test_a_refused_login_is_told_to_who_can_understand_it() -> None:
    driver = Driver()
    driver.start("AMQPLAIN")
    driver.machine.authentication_failed(driver.now)
    assert driver.close_frame() == (
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism AMQPLAIN. "
        "For details see the broker logfile.",
    )


def test_a_refused_login_is_silent_otherwise() -> None:
    driver = Driver(capabilities={})
    driver.start()
    driver.machine.authentication_failed(driver.now)
    assert driver.names() == []
    assert driver.pass_time(SILENT_CLOSE_DELAY_S - 0.1) == []
    assert driver.pass_time(0.2) == [Disconnect()]
    assert driver.names() == []


@pytest.mark.parametrize(
    "data",
    [
        method_bytes(0, Connection.Open("/")),
        method_bytes(1, Channel.Open()),
        publish_bytes(1),
        b"\x09" + bytes(7) + b"\xce",
        method_bytes(0, Connection.StartOk({}, "EXTERNAL", "")),
    ],
)
def test_a_bad_handshake_learns_nothing(data: bytes) -> None:
    driver = Driver()
    driver.receive(PROTOCOL_HEADER)
    driver.names()
    assert driver.receive(data) == []
    assert driver.names() == []
    assert driver.machine.state is ConnectionState.SILENT
    assert driver.pass_time(SILENT_CLOSE_DELAY_S) == [Disconnect()]


def test_the_handshake_has_a_time_limit() -> None:
    driver = Driver()
    driver.start()
    assert driver.pass_time(HANDSHAKE_TIMEOUT_S) == []
    assert driver.pass_time(0.1) == [Disconnect()]
    opened = Driver().open(heartbeat=0)
    assert opened.pass_time(10 * HANDSHAKE_TIMEOUT_S) == []


# --- tuning ---


@pytest.mark.parametrize(
    ("tuned", "text"),
    [
        ({"frame_max": 131_073}, "frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ({"frame_max": 0}, "frame_max = 0 (no limit) is higher than the maximum allowed value (131072)"),
        ({"frame_max": 4095}, "frame_max = 4095 is lower than the minimum allowed value (4096)"),
        ({"channel_max": 2048}, "channel_max = 2048 is higher than the maximum allowed value (2047)"),
        ({"channel_max": 0}, "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
    ],
)
def test_tuning_beyond_the_proposal_is_530(tuned: dict[str, int], text: str) -> None:
    driver = Driver()
    assert driver.tune(**tuned) == [CloseBroker()]
    code, reply = driver.close_frame()
    assert code == 530
    assert reply == f"NOT_ALLOWED - failed to negotiate connection parameters: negotiated {text}"


def test_the_tuned_values_are_used() -> None:
    driver = Driver().open(channel_max=7, frame_max=5000, heartbeat=3)
    machine = driver.machine
    assert (machine.channel_max, machine.frame_max, machine.heartbeat_s) == (7, 5000, 3)
    assert machine.reader.frame_max == 5000


def test_without_server_limits_anything_goes() -> None:
    machine = Driver(frame_max=0, channel_max=0).open(channel_max=0, frame_max=0).machine
    assert (machine.channel_max, machine.frame_max) == (65_535, 2**32 - 1)


def test_a_vhost_that_cannot_be_entered() -> None:
    driver = Driver()
    driver.tune()
    driver.send(Connection.Open("other"))
    driver.machine.fail(driver.now, ConnectionFailure(530, "vhost other not found"), Connection.Open.index)
    frame = driver.sent()[-1]
    assert (frame.reply_code, frame.class_id, frame.method_id) == (530, 10, 40)


# --- running ---


def test_items_of_channels_are_handed_on_in_order() -> None:
    driver = Driver().open()
    opened, publishes = driver.receive(method_bytes(1, Channel.Open()) + publish_bytes(1))
    assert isinstance(opened, MethodReceived)
    assert isinstance(publishes, Publishes)


def test_a_channel_above_channel_max_is_530() -> None:
    driver = Driver().open(channel_max=10)
    assert driver.send(Channel.Open(), channel=11) == [CloseBroker()]
    assert driver.close_frame()[0] == 530


def test_a_fault_comes_after_what_was_good() -> None:
    driver = Driver().open()
    good, end = driver.receive(publish_bytes(1) + b"\x04\x00\x01\x00\x00\x00\x00\xce")
    assert isinstance(good, Publishes)
    assert end == CloseBroker()
    assert driver.close_frame() == (501, "FRAME_ERROR - unknown frame type 4")


@pytest.mark.parametrize("method", [Connection.TuneOk(), Connection.Start(), Connection.SecureOk("x")])
def test_methods_out_of_place_are_503(method: base.Frame) -> None:
    driver = Driver().open()
    assert driver.send(method) == [CloseBroker()]
    assert driver.close_frame()[0] == 503


def test_update_secret_is_answered() -> None:
    driver = Driver().open()
    driver.send(Connection.UpdateSecret("new", "expires"))
    assert driver.names() == ["Connection.UpdateSecretOk"]


def test_blocked_goes_to_those_who_understand_it() -> None:
    driver = Driver().open()
    driver.machine.blocked("low on memory")
    driver.machine.unblocked()
    assert driver.names() == ["Connection.Blocked", "Connection.Unblocked"]
    deaf = Driver(capabilities={}).open()
    deaf.machine.blocked("low on memory")
    deaf.machine.unblocked()
    assert deaf.names() == []


# --- heartbeats ---


def test_a_heartbeat_is_sent_after_half_the_interval_without_traffic() -> None:
    driver = Driver().open(heartbeat=10)
    driver.pass_time(4)
    driver.machine.sent(driver.now)
    driver.pass_time(4.9)
    assert driver.output == []
    driver.pass_time(0.1)
    assert driver.output == [HEARTBEAT_FRAME]
    driver.output.clear()
    driver.pass_time(4.9)
    assert driver.output == []


def test_a_peer_is_dead_after_two_intervals_of_silence() -> None:
    driver = Driver().open(heartbeat=10)
    assert driver.pass_time(20) == []
    driver.receive(HEARTBEAT_FRAME)
    assert driver.pass_time(20) == []
    assert driver.pass_time(0.1) == [Disconnect()]
    assert driver.machine.state is ConnectionState.CLOSED


def test_silence_proves_nothing_while_we_do_not_read() -> None:
    driver = Driver().open(heartbeat=10)
    driver.machine.is_reading_paused = True
    assert driver.pass_time(1000) == []
    driver.machine.is_reading_paused = False
    assert driver.pass_time(20) == []
    assert driver.pass_time(0.1) == [Disconnect()]


def test_no_heartbeats_when_the_client_wants_none() -> None:
    driver = Driver().open(heartbeat=0)
    assert driver.pass_time(100_000) == []
    assert driver.output == []


# --- closing ---


def test_a_close_by_the_client_waits_for_the_broker() -> None:
    driver = Driver().open()
    publishes, end = driver.receive(
        publish_bytes(1) + method_bytes(0, Connection.Close(200, "", 0, 0)) + publish_bytes(1)
    )
    assert isinstance(publishes, Publishes)
    assert end == CloseBroker()
    assert driver.names() == []
    driver.machine.broker_closed()
    assert driver.names() == ["Connection.CloseOk"]
    assert driver.events() == [Disconnect()]


@pytest.mark.parametrize("answer", [Connection.CloseOk(), Connection.Close(200, "", 0, 0)])
def test_a_close_by_the_server_waits_for_the_answer(answer: base.Frame) -> None:
    driver = Driver().open()
    driver.machine.fail(driver.now, ConnectionFailure(320, "shutdown"), 0)
    assert driver.close_frame() == (320, "CONNECTION_FORCED - shutdown")
    assert driver.receive(publish_bytes(1) + method_bytes(1, Channel.Open())) == [CloseBroker()]
    driver.machine.fail(driver.now, ConnectionFailure(541, "again"), 0)
    assert driver.names() == []
    assert driver.send(answer) == [Disconnect()]
    assert driver.names() == (["Connection.CloseOk"] if isinstance(answer, Connection.Close) else [])


def test_a_close_because_of_a_fault_waits_for_the_answer() -> None:
    driver = Driver().open()
    assert driver.receive(b"\x04\x00\x01\x00\x00\x00\x00\xce" + publish_bytes(1)) == [CloseBroker()]
    assert driver.close_frame() == (501, "FRAME_ERROR - unknown frame type 4")
    assert driver.send(Connection.CloseOk()) == [Disconnect()]


def test_the_answer_to_a_close_has_a_time_limit() -> None:
    driver = Driver().open(heartbeat=0)
    driver.machine.fail(driver.now, ConnectionFailure(320, "shutdown"), 0)
    assert driver.pass_time(CLOSING_TIMEOUT_S - 0.1) == [CloseBroker()]
    assert driver.pass_time(0.2) == [Disconnect()]


# --- more than one call of the reader reads ---


def test_what_is_left_is_read_when_it_is_asked_for() -> None:
    driver = Driver().open()
    assert not driver.has_input()
    driver.machine.receive(driver.now, publish_bytes(1) * (2 * READ_LIMIT + 1))
    counts = []
    while driver.has_input():
        event = driver.machine.next_event(driver.now)
        assert isinstance(event, Publishes)
        counts.append(len(event.messages))
    assert counts == [READ_LIMIT, READ_LIMIT, 1]
    assert driver.events() == []


def test_input_that_comes_to_nothing_is_no_event() -> None:
    driver = Driver().open()
    driver.machine.receive(driver.now, HEARTBEAT_FRAME * 2 * READ_LIMIT)
    for _ in range(2):
        assert driver.has_input(), "nobody knows yet"
        assert driver.machine.next_event(driver.now) is None
    assert not driver.has_input()


def test_half_a_frame_is_no_input() -> None:
    driver = Driver().open()
    driver.machine.receive(driver.now, publish_bytes(1)[:-1])
    assert not driver.has_input()


def test_a_close_behind_the_limit_is_found() -> None:
    driver = Driver().open()
    bye = method_bytes(0, Connection.Close(200, "", 0, 0))
    *publishes, end = driver.receive(publish_bytes(1) * 2 * READ_LIMIT + bye)
    assert [type(event) for event in publishes] == [Publishes] * 2
    assert end == CloseBroker()


def test_what_is_left_behind_a_close_by_the_client_is_dropped() -> None:
    driver = Driver().open()
    bye = method_bytes(0, Connection.Close(200, "", 0, 0))
    assert driver.receive(bye + publish_bytes(1) * 3 * READ_LIMIT) == [CloseBroker()]
    assert not driver.has_input()
    driver.machine.broker_closed()
    assert driver.events() == [Disconnect()]


def test_the_answer_to_a_close_is_found_behind_what_is_left() -> None:
    driver = Driver().open()
    driver.machine.receive(driver.now, publish_bytes(1) * 3 * READ_LIMIT + method_bytes(0, Connection.CloseOk()))
    driver.machine.fail(driver.now, ConnectionFailure(320, "shutdown"), 0)
    assert driver.events() == [CloseBroker(), Disconnect()]
    assert not driver.has_input()


def test_a_closed_connection_does_not_read_what_is_left() -> None:
    driver = Driver().open(heartbeat=10)
    driver.machine.receive(driver.now, publish_bytes(1) * 3 * READ_LIMIT)
    assert driver.pass_time(21) == [Disconnect()]
    assert not driver.has_input()


def test_a_silent_connection_does_not_read_what_is_left() -> None:
    driver = Driver(capabilities={})
    driver.start()
    driver.machine.receive(driver.now, HEARTBEAT_FRAME * 3 * READ_LIMIT)
    driver.machine.authentication_failed(driver.now)
    assert not driver.has_input()
    assert driver.events() == []

"""The real Toxiproxy: what each fault of lines does to bytes and connections, seen at both ends."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.harm.lines import CLIENTS, Line, LineFaults, all_lines, directed
from chaos.harm.toxiproxy import Toxiproxy, ToxiproxyError, ToxiproxyMissingError, find_server, toxiproxy_server

pytestmark = pytest.mark.integration

LINES = all_lines([1, 2], with_clients=True)
TIMEOUT_S = 20.0


class Listener:
    """Takes connections, and keeps what arrives, with the time. A question mark it answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.accepted: queue.Queue[socket.socket] = queue.Queue()
        self._connections: list[socket.socket] = []
        #: Empty bytes when a connection ends.
        self.arrived: queue.Queue[tuple[float, bytes]] = queue.Queue()
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            self.accepted.put(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        while True:
            try:
                received = connection.recv(1 << 16)
            except OSError:
                received = b""
            self.arrived.put((time.monotonic(), received))
            if received == b"?":
                connection.sendall(b"!")
            if not received:
                return

    def take(self) -> bytes:
        """The next piece."""
        return self.arrived.get(timeout=TIMEOUT_S)[1]

    def take_all(self, count: int) -> list[bytes]:
        """Pieces, until they are ``count`` bytes."""
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < count:
            pieces.append(self.take())
            assert pieces[-1], "the connection ended"
        return pieces

    def close(self) -> None:
        # A thread that waits in accept() would keep the socket open.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._socket.close()
        for connection in self._connections:
            connection.close()


class Wired:
    """Two listeners behind proxies on all lines."""

    def __init__(self, server: Toxiproxy) -> None:
        self.server = server
        self.listeners = {1: Listener(), 2: Listener()}
        self.faults = LineFaults(LINES)
        self.addresses = {line: server.create(line, self.listeners[line.destination].address) for line in LINES}
        self._numbers = 0
        self._connections: list[socket.socket] = []

    def lay(self, fault: str, *on: Line, **told: float) -> int:
        self._numbers += 1
        self._set(self.faults.lay(self._numbers, fault, on, told))
        return self._numbers

    def lift(self, number: int) -> None:
        self._set(self.faults.lift(number))

    def _set(self, lines: set[Line]) -> None:
        for line in lines:
            self.server.set(line, self.faults.state(line))

    def connect(self, source: int, destination: int) -> socket.socket:
        host, _, port = self.addresses[Line(source, destination)].rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._connections.append(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def pair(self, source: int, destination: int) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection that works."""
        near = self.connect(source, destination)
        near.sendall(b"hello")
        far = self.listeners[destination].accepted.get(timeout=TIMEOUT_S)
        assert self.listeners[destination].take() == b"hello"
        return near, far

    def is_through(self, source: int, destination: int) -> bool:
        """True if a new connection carries a byte there and back."""
        try:
            near = self.connect(source, destination)
            near.sendall(b"?")
            return near.recv(1) == b"!"
        except ConnectionError:
            return False

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for listener in self.listeners.values():
            listener.close()


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    try:
        find_server()
    except ToxiproxyMissingError as missing:
        pytest.skip(str(missing))
    with toxiproxy_server(tmp_path / "toxiproxy.log") as server:
        wired = Wired(server)
        yield wired
        wired.close()


def test_without_faults_everything_passes(wired: Wired) -> None:
    assert all(wired.is_through(*line) for line in sorted(LINES))


def test_a_black_hole_in_one_direction(wired: Wired) -> None:
    """n1 is not heard by n2 any more, neither on its own connections nor on those that n2 opened; and hears it."""
    near, far = wired.pair(1, 2)
    other_near, other_far = wired.pair(2, 1)
    hole = wired.lay("black hole", Line(1, 2))
    near.sendall(b"from n1")
    other_far.sendall(b"from n1 as well")
    far.sendall(b"from n2")
    other_near.sendall(b"from n2 as well")
    assert near.recv(100) == b"from n2"
    assert wired.listeners[1].take() == b"from n2 as well"
    assert wired.is_through(CLIENTS, 2)
    assert wired.listeners[2].arrived.get(timeout=TIMEOUT_S)[1] == b"?", "what n1 sent would have come before"
    other_near.setblocking(False)
    with pytest.raises(BlockingIOError):
        other_near.recv(100)
    wired.lift(hole)
    assert wired.is_through(1, 2)
    assert near.recv(100) == b"", "what was held back ends with its connection"


def test_a_cut_ends_connections_and_refuses_others(wired: Wired) -> None:
    near, _ = wired.pair(1, 2)
    cut = wired.lay("cut", Line(1, 2))
    assert near.recv(100) == b""
    with pytest.raises(ConnectionRefusedError):
        wired.connect(1, 2)
    assert wired.is_through(2, 1)
    wired.lift(cut)
    assert wired.is_through(1, 2)


def test_a_reset_is_one(wired: Wired) -> None:
    near, _ = wired.pair(1, 2)
    reset = wired.lay("reset", Line(1, 2))
    assert near.recv(100) == b"", "those that there were end"
    again = wired.connect(1, 2)
    again.sendall(b"x")
    with pytest.raises(ConnectionResetError):
        again.recv(100)
    wired.lift(reset)
    assert wired.is_through(1, 2)


@pytest.mark.parametrize("count", [1, 1013])
def test_a_limit_ends_a_connection_in_the_middle_of_what_is_sent(wired: Wired, count: int) -> None:
    wired.lay("limit", Line(CLIENTS, 1), size=count)
    near = wired.connect(CLIENTS, 1)
    near.sendall(bytes(5000))
    assert sum(map(len, wired.listeners[1].take_all(count))) == count
    assert wired.listeners[1].take() == b""


def test_a_delay_lies_on_one_direction(wired: Wired) -> None:
    near, far = wired.pair(1, 2)
    wired.lay("delay", Line(1, 2), latency=0.3)
    began = time.monotonic()
    near.sendall(b"x")
    arrived, _ = wired.listeners[2].arrived.get(timeout=TIMEOUT_S)
    answered = time.monotonic()
    far.sendall(b"y")
    assert near.recv(1) == b"y"
    there_s, back_s = arrived - began, time.monotonic() - answered
    assert there_s >= 0.3
    assert back_s < there_s


def test_a_throttle_lets_so_many_bytes_through(wired: Wired) -> None:
    near, _ = wired.pair(CLIENTS, 1)
    wired.lay("throttle", Line(CLIENTS, 1), rate=64_000)
    began = time.monotonic()
    near.sendall(bytes(64_000))
    wired.listeners[1].take_all(64_000)
    assert time.monotonic() - began >= 0.9


def test_slices(wired: Wired) -> None:
    near, _ = wired.pair(CLIENTS, 1)
    wired.lay("slice", Line(CLIENTS, 1), size=7, pause=0.005)
    near.sendall(bytes(70))
    pieces = wired.listeners[1].take_all(70)
    assert len(pieces) > 1, "sent at once, and it arrives in pieces"


def test_faults_on_one_line_end_in_any_order(wired: Wired) -> None:
    numbers = [
        wired.lay("delay", *directed([1], [2], is_both_ways=True), latency=0.01),
        wired.lay("cut", Line(1, 2)),
        wired.lay("throttle", Line(1, 2), rate=1_000_000),
    ]
    for number in (numbers[1], numbers[0], numbers[2]):
        wired.lift(number)
        assert wired.is_through(1, 2)
    assert wired.faults.is_clear


def test_a_server_that_is_gone_is_an_error(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    wired.server.close()
    with pytest.raises(ToxiproxyError, match="could not look at"):
        wired.lay("cut", Line(1, 2))
    monkeypatch.setenv("TOXIPROXY_SERVER", "/nowhere/toxiproxy-server")
    with pytest.raises(ToxiproxyMissingError, match="make toxiproxy"):
        find_server()

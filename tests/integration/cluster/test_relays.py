"""What the relays between the nodes of tests do: links that are cut in one direction or both, and closed ports."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from node.config import parse_address
from tests.support.ports import free_port
from tests.support.relays import Relays

pytestmark = pytest.mark.integration

#: For what must not come; what must come is waited for as long as it takes.
PATIENCE_S = 0.3


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """The port of node b."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        yield server


@pytest.fixture
def relays(listener: socket.socket) -> Iterator[Relays]:
    port = listener.getsockname()[1]
    links = Relays({"a": f"127.0.0.1:{free_port()}", "b": f"127.0.0.1:{port}"}, taken=[port])
    yield links
    links.close()


def dial(relays: Relays, timeout_s: float | None = None) -> socket.socket:
    """As node a does that wants node b."""
    address = parse_address(relays.address("a", "b"))
    return socket.create_connection((address.host, address.port), timeout_s)


def hears_nothing(connection: socket.socket) -> bool:
    connection.settimeout(PATIENCE_S)
    try:
        connection.recv(100)
    except TimeoutError:
        connection.settimeout(None)
        return True
    return False


def test_what_is_said_during_a_cut_arrives_after_the_heal(relays: Relays, listener: socket.socket) -> None:
    with dial(relays) as ours, listener.accept()[0] as theirs:
        ours.sendall(b"before")
        assert theirs.recv(100) == b"before"
        relays.cut("a", "b")
        ours.sendall(b"meanwhile")
        theirs.sendall(b"likewise")
        assert hears_nothing(theirs)
        assert hears_nothing(ours)
        relays.heal()
        assert theirs.recv(100) == b"meanwhile"
        assert ours.recv(100) == b"likewise"


def test_a_cut_in_one_direction_leaves_the_other(relays: Relays, listener: socket.socket) -> None:
    with dial(relays) as ours, listener.accept()[0] as theirs:
        relays.cut_way("a", "b")
        ours.sendall(b"nobody hears this")
        theirs.sendall(b"but this")
        assert ours.recv(100) == b"but this"
        assert hears_nothing(theirs)


def test_nobody_hears_of_an_end_beyond_a_cut(relays: Relays, listener: socket.socket) -> None:
    with dial(relays) as ours:
        theirs = listener.accept()[0]
        relays.isolate("b")
        theirs.close()
        assert hears_nothing(ours)
        relays.heal_link("a", "b")
        assert ours.recv(100) == b""


def test_a_new_connection_gets_through_after_the_heal_only(relays: Relays, listener: socket.socket) -> None:
    relays.cut("a", "b")
    with pytest.raises(TimeoutError):
        dial(relays, PATIENCE_S)
    relays.heal()
    with dial(relays) as ours, listener.accept()[0] as theirs:
        theirs.sendall(b"welcome")
        assert ours.recv(100) == b"welcome"


def test_a_closed_port_refuses_and_can_be_opened_again(relays: Relays, listener: socket.socket) -> None:
    relays.close_ports("b")
    with pytest.raises(ConnectionRefusedError):
        dial(relays)
    relays.open_ports("b")
    with dial(relays) as ours, listener.accept()[0]:
        assert hears_nothing(ours)

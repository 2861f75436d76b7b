"""What TCP lets an application see, over simulated links: order, delays, cuts, resets that lose a suffix, silence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from chaos.sim.loop import simulated_loop
from chaos.sim.network import Link, Network
from chaos.sim.sockets import HIGH_WATER_BYTES, SimulatedTransport, connect, listen

ADDRESS = ("n1", 5672)


class Peer(asyncio.Protocol):
    """Keeps what happens to it."""

    def __init__(self) -> None:
        self.received = b""
        self.transport: SimulatedTransport
        self.end: object = "open"
        self.is_writing = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.end = exc

    def pause_writing(self) -> None:
        self.is_writing = False

    def resume_writing(self) -> None:
        self.is_writing = True


class World:
    """A server on n1 and a client on c1; every chunk takes 10 ms."""

    def __init__(self) -> None:
        self.loop = simulated_loop()
        self.network = Network(self.loop, lambda _source, _target: Link(lambda: 0.010))
        self.server_process = self.loop.start_process("n1")
        self.client_process = self.loop.start_process("c1")
        self.servers: list[Peer] = []

    def serve(self) -> None:
        def make() -> Peer:
            self.servers.append(Peer())
            return self.servers[-1]

        self.server_process.call_soon(listen, self.network, self.server_process, ADDRESS, make)
        self.after(0)

    def dial(self) -> asyncio.Task[Any]:
        task = self.client_process.create_task(connect(self.network, self.client_process, "c1", ADDRESS, Peer))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return task

    def connection(self) -> tuple[Peer, Peer]:
        self.serve()
        task = self.dial()
        self.after(0.030)
        client: Peer = task.result()
        return client, self.servers[-1]

    def after(self, seconds: float) -> None:
        self.loop.run_until(self.loop.now_s + seconds)
        self.network.check_invariants()

    def cut(self, source: str, target: str, *, is_cut: bool = True) -> None:
        self.network.link(source, target).is_cut = is_cut
        self.network.changed()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.close()


def test_bytes_arrive_in_order_after_the_delay(world: World) -> None:
    client, server = world.connection()
    client.transport.write(b"one ")
    world.after(0.005)
    client.transport.write(b"two")
    world.after(0.006)
    assert server.received == b"one "
    world.after(0.006)
    assert server.received == b"one two"


def test_a_narrow_link_takes_its_time_and_keeps_the_order(world: World) -> None:
    client, server = world.connection()
    world.network.link("c1", "n1").bytes_per_s = 1000
    client.transport.write(b"a" * 100)
    client.transport.write(b"b")
    world.after(0.109)
    assert server.received == b""
    world.after(0.003)
    assert server.received == b"a" * 100 + b"b"


def test_nobody_listens(world: World) -> None:
    task = world.dial()
    world.after(0.030)
    assert isinstance(task.exception(), ConnectionRefusedError)


def test_a_link_that_refuses_leaves_connections_alone(world: World) -> None:
    client, server = world.connection()
    world.network.link("c1", "n1").is_refusing = True
    task = world.dial()
    client.transport.write(b"still here")
    world.after(0.030)
    assert isinstance(task.exception(), ConnectionRefusedError)
    assert server.received == b"still here"


def test_a_cut_holds_everything_up_and_loses_nothing(world: World) -> None:
    """One direction only: the server is heard all the time."""
    client, server = world.connection()
    world.cut("c1", "n1")
    client.transport.write(b"late")
    server.transport.write(b"in time")
    dialled = world.dial()
    world.after(5)
    assert (server.received, client.received, dialled.done()) == (b"", b"in time", False)
    world.cut("c1", "n1", is_cut=False)
    world.after(0.030)
    assert server.received == b"late"


def test_a_reset_loses_a_suffix(world: World) -> None:
    client, server = world.connection()
    for part in (b"1", b"2", b"3"):
        client.transport.write(part)
    assert world.network.reset("c1", "n1", keep=lambda count: min(count, 2), told=("c1", "n1")) == 1
    world.after(0.030)
    assert server.received == b"12"
    assert isinstance(server.end, ConnectionResetError)
    assert isinstance(client.end, ConnectionResetError)


def test_who_is_not_told_of_a_reset_learns_by_sending(world: World) -> None:
    client, server = world.connection()
    world.network.reset("c1", "n1", keep=lambda _count: 0, told=("n1",))
    world.after(10)
    assert isinstance(server.end, ConnectionResetError)
    assert str(client.end) == "open"
    client.transport.write(b"are you there?")
    world.after(0.030)
    assert isinstance(client.end, ConnectionResetError)


def test_of_what_a_heal_brings_in_one_piece_each_part_knows_when_it_was_sent(world: World) -> None:
    client, server = world.connection()
    world.cut("c1", "n1")
    began_s = world.loop.now_s
    for data in (b"abc", b"de"):
        world.client_process.call_soon(client.transport.write, data)
        world.after(1.0)
    world.cut("c1", "n1", is_cut=False)
    world.after(0.1)
    assert server.received == b"abcde"
    heard = [(end, round(sent_s - began_s)) for end, sent_s in server.transport.heard]
    assert heard == [(3, 0), (5, 1)]


def test_a_reset_that_a_cut_hides_is_learned_when_it_heals(world: World) -> None:
    """A stream never goes on behind a hole."""
    client, server = world.connection()
    client.transport.write(b"lost")
    world.cut("c1", "n1")
    world.cut("n1", "c1")
    world.network.reset("c1", "n1", keep=lambda _count: 0, told=("c1", "n1"))
    client.transport.write(b"later")
    world.after(1)
    world.cut("c1", "n1", is_cut=False)
    world.cut("n1", "c1", is_cut=False)
    world.after(0.030)
    assert server.received == b""
    assert isinstance(client.end, ConnectionResetError)


def test_what_a_killed_process_had_sent_arrives_before_the_reset(world: World) -> None:
    client, server = world.connection()
    server.transport.write(b"last words")
    world.server_process.kill()
    world.network.process_died(world.server_process)
    world.after(0.030)
    assert client.received == b"last words"
    assert isinstance(client.end, ConnectionResetError)
    task = world.dial()
    world.after(0.030)
    assert isinstance(task.exception(), ConnectionRefusedError)


def test_a_lost_machine_says_nothing_until_it_is_back(world: World) -> None:
    client, _server = world.connection()
    world.server_process.kill()
    world.network.host_lost(world.server_process, "n1")
    client.transport.write(b"are you there?")
    task = world.dial()
    world.after(60)
    assert (client.end, task.done()) == ("open", False)
    world.network.host_back("n1")
    world.after(0.030)
    assert isinstance(client.end, ConnectionResetError)


def test_the_kernel_of_a_paused_process_takes_what_fits(world: World) -> None:
    client, server = world.connection()
    world.server_process.pause()
    client.transport.write(b"x" * (HIGH_WATER_BYTES + 1))
    world.after(1)
    assert (client.is_writing, server.received) == (False, b"")
    world.server_process.resume()
    world.after(0.030)
    assert len(server.received) == HIGH_WATER_BYTES + 1
    assert client.is_writing


def test_who_does_not_read_holds_up_the_writer(world: World) -> None:
    client, server = world.connection()
    server.transport.pause_reading()
    client.transport.write(b"x" * (HIGH_WATER_BYTES + 1))
    world.after(1)
    assert (client.is_writing, server.received) == (False, b"")
    server.transport.resume_reading()
    world.after(0.030)
    assert client.is_writing


def test_an_orderly_end_comes_behind_everything(world: World) -> None:
    client, server = world.connection()
    client.transport.write(b"goodbye")
    client.transport.close()
    client.transport.write(b"too late")
    world.after(0.030)
    assert (server.received, server.end, client.end) == (b"goodbye", None, None)
    assert server.transport.is_closing()


def test_a_port_is_taken_while_its_process_lives(world: World) -> None:
    world.serve()
    other = world.loop.start_process("n1 again")
    with pytest.raises(OSError, match="in use"):
        listen(world.network, other, ADDRESS, Peer)
    world.server_process.kill()
    listen(world.network, other, ADDRESS, Peer)


def test_a_connection_that_came_too_late_is_given_back(world: World) -> None:
    """The dialler has given up while the answer was on its way."""
    world.serve()
    task = world.dial()
    world.after(0.015)
    task.cancel()
    world.after(0.030)
    assert isinstance(world.servers[0].end, ConnectionResetError)


def test_everything_happens_on_behalf_of_its_process(world: World) -> None:
    """What the server schedules when bytes arrive dies with the server, not with the client."""
    client, server = world.connection()
    seen: list[str] = []
    server.data_received = lambda _data: asyncio.get_running_loop().call_later(1, seen.append, "later")  # type: ignore[method-assign,assignment]
    client.transport.write(b"x")
    world.after(0.5)
    world.client_process.kill()
    world.after(1)
    assert seen == ["later"]

"""When clients are served: not before this node is ready, not while it pauses, not after its end."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence

import pytest

from cluster.runtime.client_service import ClientService, cannot_listen
from cluster.runtime.ending import Ending
from cluster.runtime.standing import Hindrance, Pause
from cluster.transport.admin_port import ExitCode
from node.amqp.server.listing import ConnectionListing
from node.config import Address
from node.errors import ConnectionFailure

ADDRESS = Address("127.0.0.1", 5672)
NO_QUORUM = Pause(Hindrance.NO_QUORUM, "it has no quorum", 0)
BEHIND = Pause(Hindrance.BEHIND, "it is behind", 0)


class Server:
    """Implements `ClientServer`."""

    def __init__(self, failure: OSError | None) -> None:
        self.failure = failure
        self.said = self.refused = ""
        self.is_running = False
        self.objections: list[str | None] = []
        #: `stop` waits for it, as for clients that are slow to answer.
        self.all_closed = asyncio.Event()
        self.all_closed.set()

    async def start(self, host: str, port: int) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.is_running = True

    def refuse(self, text: str) -> None:
        self.refused = text

    async def stop(self, text: str = "shutdown") -> None:
        self.is_running = False
        self.said = text
        await self.all_closed.wait()

    def close_objectionable(self, objection: Callable[[str, str], str | None]) -> None:
        self.objections.append(objection("u", "v"))

    def connections(self) -> Sequence[ConnectionListing]:
        return []


class Bench:
    def __init__(self) -> None:
        self.servers: list[Server] = []
        self.failure: OSError | None = None
        self.ending = Ending()
        self.deletions = 0
        self.refusal: ConnectionFailure | None = None
        self.service = ClientService(ADDRESS, self.make_server, self.delete_abandoned, self.ending)

    def make_server(self) -> Server:
        self.servers.append(Server(self.failure))
        return self.servers[-1]

    async def delete_abandoned(self) -> None:
        self.deletions += 1
        if self.refusal is not None:
            raise self.refusal

    async def quorum(self, has_quorum: bool) -> None:
        self.service.pause_changed(None if has_quorum else NO_QUORUM)
        for _ in range(5):
            await asyncio.sleep(0)
        self.service.check_invariants()

    def running(self) -> list[bool]:
        return [server.is_running for server in self.servers]


async def test_nobody_is_served_before_this_node_has_its_roles() -> None:
    bench = Bench()
    await bench.quorum(True)
    assert not bench.servers
    await bench.service.open(None)
    assert (bench.running(), bench.service.is_serving) == ([True], True)
    await bench.quorum(True)
    assert bench.running() == [True], "it serves already"


async def test_a_node_that_is_ready_without_a_quorum_serves_when_there_is_one() -> None:
    bench = Bench()
    await bench.service.open(NO_QUORUM)
    assert not bench.service.is_serving
    await bench.quorum(True)
    assert bench.service.is_serving


async def test_a_pause_closes_everything_and_its_end_begins_anew() -> None:
    bench = Bench()
    await bench.service.open(None)
    await bench.quorum(False)
    assert (bench.running(), bench.service.is_serving, bench.service.connections()) == ([False], False, [])
    assert "pause_minority" in bench.servers[0].said
    bench.refusal = ConnectionFailure(541, "no quorum")
    await bench.quorum(True)
    assert (bench.running(), bench.service.is_serving) == ([False, True], True)
    assert bench.deletions == 1, "queues that were abandoned meanwhile"
    assert bench.ending.failure is None


async def test_who_is_to_begin_again_serves_in_this_life_no_more() -> None:
    """`warrenctl await_startup` behind a `reset` means the next one."""
    bench = Bench()
    await bench.service.open(None)
    bench.ending.begin_again()
    assert not bench.service.is_serving
    bench.service.check_invariants()


async def test_changes_come_one_after_the_other() -> None:
    bench = Bench()
    await bench.service.open(None)
    for has_quorum in (False, True, False):
        bench.service.pause_changed(None if has_quorum else NO_QUORUM)
    await bench.quorum(True)
    assert bench.running() == [False, False, True]


async def test_an_address_that_was_taken_during_a_pause_ends_the_node() -> None:
    bench = Bench()
    await bench.service.open(None)
    await bench.quorum(False)
    bench.failure = OSError(errno.EADDRINUSE, "in use")
    await bench.quorum(True)
    assert bench.ending.failure is not None
    assert bench.ending.failure.exit_code == ExitCode.CONFIG
    assert not bench.service.is_serving


async def test_nobody_is_served_after_the_end() -> None:
    bench = Bench()
    bench.ending.stop()
    await bench.service.open(None)
    assert not bench.servers


async def test_nobody_is_served_by_a_node_that_waits_for_its_last_connections_to_close() -> None:
    bench = Bench()
    await bench.service.open(None)
    bench.servers[0].all_closed.clear()
    stopping = asyncio.create_task(bench.service.stop())
    await asyncio.sleep(0)
    assert (bench.running(), bench.service.is_serving) == ([False], False)
    bench.servers[0].all_closed.set()
    await stopping
    assert not bench.service.is_serving
    bench.service.check_invariants()


async def test_a_node_that_stops_in_a_pause_waits_for_the_connections_that_the_pause_closes() -> None:
    """They give back what they had of queues here, which are closed next; and a node that begins again in this process
    must not leave a server behind."""
    bench = Bench()
    await bench.service.open(None)
    bench.servers[0].all_closed.clear()
    await bench.quorum(False)
    assert bench.servers[0].refused
    stopping = asyncio.create_task(bench.service.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not stopping.done()
    bench.servers[0].all_closed.set()
    await stopping
    bench.service.check_invariants()


async def test_the_first_failure_counts() -> None:
    ending = Ending()
    ending.fail("the disk failed")
    ending.fail("and much else", ExitCode.CONFIG)
    await ending.wait()
    assert ending.failure == ("the disk failed", ExitCode.SOFTWARE)


async def test_clients_are_not_listened_to_from_the_moment_of_the_pause() -> None:
    bench = Bench()
    await bench.service.open(None)
    bench.service.pause_changed(BEHIND)
    assert "lags" in bench.servers[0].refused, "not in a later turn: what is read until then would be acted upon"
    assert not bench.service.is_serving
    await bench.quorum(True)
    assert bench.running() == [False, True]


async def test_nobody_is_let_in_by_the_end_of_a_pause_that_another_one_has_followed() -> None:
    bench = Bench()
    await bench.service.open(None)
    bench.servers[0].all_closed.clear()
    for has_quorum in (False, True, False):
        await bench.quorum(has_quorum)
    bench.servers[0].all_closed.set()
    await bench.quorum(False)
    assert (bench.running(), bench.service.is_serving) == ([False], False)
    assert bench.deletions == 0
    await bench.quorum(True)
    assert (bench.running(), bench.service.is_serving, bench.deletions) == ([False, True], True, 1)


async def test_a_pause_that_begins_while_the_server_starts_lets_nobody_in() -> None:
    bench = Bench()
    opening = asyncio.create_task(bench.service.open(None))
    await asyncio.sleep(0)
    bench.service.pause_changed(BEHIND)
    await opening
    assert not bench.service.is_serving
    assert "lags" in bench.servers[0].refused
    await bench.quorum(True)
    assert bench.running() == [False, True]


async def test_connections_that_lost_their_user_or_vhost_are_looked_for_where_there_are_any() -> None:
    bench = Bench()
    bench.service.access_ended(lambda user, vhost: f"{user} {vhost}")
    await bench.service.open(None)
    bench.service.access_ended(lambda user, vhost: f"{user} {vhost}")
    assert bench.servers[0].objections == ["u v"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EADDRINUSE, "whatever the library says"),
            "Address already in use; stop what uses that port (this node itself, if it runs already), or set `key` to "
            "another one",
        ),
        (
            OSError(errno.EADDRNOTAVAIL, ""),
            "Cannot assign requested address; set `key` to an address of this machine, or to one that stands for all "
            "of them (0.0.0.0)",
        ),
        (OSError(errno.EACCES, ""), "Permission denied; set `key` to a port that this user may use (1024 or more)"),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "[Errno -2] Name or service not known; set `key` to a name or an address of this machine",
        ),
        (OSError(errno.EAFNOSUPPORT, ""), "Address family not supported by protocol; set `key` to another address"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_reason_not_to_listen_has_its_remedy(error: OSError, said: str) -> None:
    assert str(cannot_listen("key", ADDRESS, error)) == f"`key`: cannot listen on 127.0.0.1:5672: {said}"


async def test_a_node_that_went_on_serving_deletes_abandoned_queues_when_the_cluster_decides_again() -> None:
    bench = Bench()
    await bench.service.open(None)
    await bench.quorum(True)
    assert (bench.running(), bench.deletions) == ([True], 1)


async def test_abandoned_queues_are_looked_for_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may be decided when its connection has ended long ago, and nobody has paused meanwhile."""
    monkeypatch.setattr("cluster.runtime.client_service.SWEEP_EVERY_S", 0)
    bench = Bench()
    bench.refusal = ConnectionFailure(541, "not decided in time")
    await bench.service.open(None)
    looked: list[int] = []
    for _ in range(3):
        for _ in range(10):
            await asyncio.sleep(0)
        looked.append(bench.deletions)
    assert 0 < looked[0] < looked[1] < looked[2], "also if nothing could be decided"
    await bench.service.stop()

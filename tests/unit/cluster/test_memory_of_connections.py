"""Connections and channels that are over are freed at once: no cycle of references is left to the garbage collector.

Why that matters: see `tests.support.without_collector`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

import pytest

from cluster.composition import Node, compose_node
from node.amqp.frames import PROTOCOL_HEADER
from tests.support.amqp_frames import publish_bytes
from tests.support.server_client import Basic, Channel, Client, Confirm, Connection, Queue, Tx
from tests.support.small_world import SmallWorld, small_config
from tests.support.without_collector import alive, without_collector

LASTING = "lasting"
#: The server and the broker.
PARTS = ("node.amqp.", "node.broker.")


@pytest.fixture
def no_collection() -> Iterator[None]:
    with without_collector():
        yield


@pytest.fixture
async def small() -> SmallWorld:
    return SmallWorld()


@pytest.fixture
async def node(small: SmallWorld) -> AsyncIterator[Node]:
    node = compose_node(small_config(), small.world)
    await (await node.start())
    await node.admin.add_user("ann", "secret", ())
    await node.admin.set_permissions("/", "ann", ".*", ".*", ".*")
    yield node
    await node.close()


async def connected(small: SmallWorld, password: str = "secret") -> Client:
    client = Client(cast(Any, small))
    client.shell.data_received(PROTOCOL_HEADER)
    await client.send(Connection.StartOk({}, "PLAIN", f"\0ann\0{password}"), channel=0)
    return client


async def entered(small: SmallWorld) -> Client:
    """On a channel that publishes with confirms and consumes, and on one that works in transactions."""
    client = await connected(small)
    await client.send(Connection.TuneOk(100, 131_072, 0), Connection.Open("/"), channel=0)
    await client.send(Channel.Open(), Queue.Declare(queue=LASTING, durable=True), Confirm.Select())
    await client.send(Basic.Consume(queue=LASTING, consumer_tag="tag"), data=publish_bytes(1, "", LASTING))
    await client.send(Channel.Open(), Queue.Declare(queue="own", exclusive=True), Tx.Select(), channel=2)
    await client.send(channel=2, data=publish_bytes(2, "", LASTING))
    return client


async def says_goodbye(client: Client, _node: Node) -> None:
    assert await client.send(Connection.Close(200, "", 0, 0), channel=0) == ["Connection.CloseOk"]


async def vanishes(client: Client, _node: Node) -> None:
    client.transport.abort()


async def vanishes_as_it_asks(client: Client, _node: Node) -> None:
    client.shell.data_received(b"".join([publish_bytes(1, "", LASTING)] * 3))
    client.transport.abort()


async def makes_a_mistake(client: Client, _node: Node) -> None:
    assert "Connection.Close" in await client.send(Channel.Open())
    await client.send(Connection.CloseOk(), channel=0)


async def is_sent_away(client: Client, node: Node) -> None:
    await node.admin.delete_user("ann")
    await client.settle()
    await client.send(Connection.CloseOk(), channel=0)


async def is_done_with_its_channels(client: Client, _node: Node) -> None:
    """The connection stays."""
    await client.send(Channel.Close(200, "", 0, 0))
    assert "Channel.Close" in await client.send(Queue.Declare(queue="nonesuch", passive=True), channel=2)
    await client.send(Channel.CloseOk(), channel=2)


End = Callable[[Client, Node], Awaitable[None]]


@pytest.mark.parametrize("end", [says_goodbye, vanishes, vanishes_as_it_asks, makes_a_mistake, is_sent_away])
@pytest.mark.usefixtures("no_collection")
async def test_a_connection_that_is_over_is_freed_at_once(node: Node, small: SmallWorld, end: End) -> None:
    before = alive(*PARTS)
    client = await entered(small)
    assert (alive(*PARTS) - before)["ChannelShell"] == 2
    await end(client, node)
    await client.settle()
    assert client.transport.is_closed
    del client
    assert alive(*PARTS) - before == Counter()


@pytest.mark.usefixtures("no_collection")
async def test_so_are_those_who_never_get_in(node: Node, small: SmallWorld) -> None:
    before = alive(*PARTS)
    for client in (await connected(small), await connected(small, "wrong")):
        client.transport.abort()
        await client.settle()
    del client
    assert alive(*PARTS) - before == Counter()


@pytest.mark.usefixtures("no_collection")
async def test_so_are_channels_of_a_connection_that_stays(node: Node, small: SmallWorld) -> None:
    client = await connected(small)
    await client.send(Connection.TuneOk(100, 131_072, 0), Connection.Open("/"), channel=0)
    before = alive(*PARTS)
    await client.send(Channel.Open(), Queue.Declare(queue=LASTING, durable=True), Confirm.Select())
    await client.send(Basic.Consume(queue=LASTING, consumer_tag="tag"), data=publish_bytes(1, "", LASTING))
    await client.send(Channel.Open(), channel=2)
    assert (alive(*PARTS) - before)["ChannelShell"] == 2
    await is_done_with_its_channels(client, node)
    await client.settle()
    assert {kind for kind in alive(*PARTS) - before if "Channel" in kind} == set()
    client.transport.abort()
    await client.settle()

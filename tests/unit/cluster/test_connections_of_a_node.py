"""The connections of a whole node: how they end with a user or a vhost, what they may do, how they are listed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from cluster.composition import Node, compose_node
from node.amqp.connection import ConnectionState
from node.amqp.frames import PROTOCOL_HEADER
from node.amqp.server.bounds import client_bounds
from tests.support.amqp_frames import publish_bytes
from tests.support.server_client import Basic, Channel, Client, Connection, Queue
from tests.support.small_world import SmallWorld, small_config


class WorldWithClients(SmallWorld):
    """They go with their test: a node that stops would give them ten seconds to answer its farewell."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[Client] = []


@pytest.fixture
async def small() -> WorldWithClients:
    return WorldWithClients()


@pytest.fixture
async def node(small: WorldWithClients) -> AsyncIterator[Node]:
    node = compose_node(small_config(), small.world)
    await (await node.start())
    for vhost in ("a", "b"):
        await node.admin.add_vhost(vhost)
    for user in ("ann", "bob"):
        await node.admin.add_user(user, "secret", ())
        for vhost in ("a", "b"):
            await node.admin.set_permissions(vhost, user, ".*", ".*", ".*")
    yield node
    for client in small.clients:
        client.transport.abort()
    await node.close()


async def logged_in(small: WorldWithClients, user: str) -> Client:
    """The login is accepted, nothing more."""
    client = Client(cast(Any, small))
    small.clients.append(client)
    client.shell.data_received(PROTOCOL_HEADER)
    names = await client.send(Connection.StartOk({}, "PLAIN", f"\0{user}\0secret"), channel=0)
    assert names[-1] == "Connection.Tune"
    return client


async def entered(small: WorldWithClients, user: str, vhost: str) -> Client:
    client = await logged_in(small, user)
    names = await client.send(Connection.TuneOk(100, 131_072, 0), Connection.Open(vhost), channel=0)
    assert names == ["Connection.OpenOk"]
    assert await client.send(Channel.Open()) == ["Channel.OpenOk"]
    return client


async def farewell(client: Client) -> tuple[int | None, str] | None:
    """What the client reads, if it is being closed."""
    await client.settle()
    closes = [frame for frame in client.frames() if isinstance(frame, Connection.Close)]
    if not closes:
        return None
    await client.send(Connection.CloseOk(), channel=0)
    return closes[0].reply_code, closes[0].reply_text


async def test_a_node_lets_in_as_many_clients_as_its_descriptors_allow(caplog: pytest.LogCaptureFixture) -> None:
    small = WorldWithClients()
    small.world = replace(small.world, system=replace(small.world.system, open_files_max=64))
    bounds = client_bounds(64)
    node = compose_node(small_config(), small.world)
    await (await node.start())
    assert caplog.messages.count(bounds.shortage) == 1, "said at the start, once"

    strangers = [Client(cast(Any, small)) for _ in range(bounds.handshakes + 1)]
    await strangers[0].settle()
    assert [client.transport.is_closed for client in strangers] == [True] + [False] * bounds.handshakes
    for client in strangers:
        client.transport.abort()
    await strangers[0].settle()

    for _ in range(bounds.connections):
        await entered(small, "guest", "/")
    too_many = Client(cast(Any, small))
    assert too_many.transport.is_closed
    assert caplog.text.count("refused: there are too many connections") == 1
    assert [client.transport.is_closed for client in small.clients] == [False] * bounds.connections
    for client in small.clients:
        client.transport.abort()
    await node.close()


async def test_the_connections_of_a_deleted_user_are_closed_and_no_others(node: Node, small: WorldWithClients) -> None:
    ann = [await entered(small, "ann", vhost) for vhost in ("a", "b")]
    bob = await entered(small, "bob", "a")
    await node.admin.delete_user("ann")
    assert [await farewell(client) for client in ann] == [(320, "CONNECTION_FORCED - user 'ann' is deleted")] * 2
    assert await farewell(bob) is None


async def test_so_is_one_that_has_only_logged_in(node: Node, small: WorldWithClients) -> None:
    client = await logged_in(small, "ann")
    await node.admin.delete_user("ann")
    await node.admin.add_user("ann", "another secret", ())
    await node.admin.set_permissions("a", "ann", ".*", ".*", ".*")
    assert await farewell(client) == (320, "CONNECTION_FORCED - user 'ann' is deleted")
    assert client.state() is ConnectionState.CLOSED


async def test_the_connections_to_a_deleted_vhost_are_closed_and_no_others(node: Node, small: WorldWithClients) -> None:
    inside, outside = await entered(small, "ann", "a"), await entered(small, "ann", "b")
    await node.admin.delete_vhost("a")
    assert await farewell(inside) == (320, "CONNECTION_FORCED - vhost 'a' is deleted")
    assert await farewell(outside) is None


async def test_what_a_snapshot_no_longer_knows_is_gone_too(node: Node, small: WorldWithClients) -> None:
    """A node that was cut off gets the changes of that time all at once."""
    client = await entered(small, "ann", "a")
    group = node.runtime.metadata
    with_ann = group.state.snapshot()
    await node.admin.delete_user("ann")
    assert await farewell(client) is not None
    without_ann = group.state.snapshot()
    group.restore(with_ann)
    client = await entered(small, "ann", "a")
    group.restore(without_ann)
    assert await farewell(client) == (320, "CONNECTION_FORCED - user 'ann' is deleted")


async def test_permissions_count_from_the_next_operation_on(node: Node, small: WorldWithClients) -> None:
    client = await entered(small, "ann", "a")
    publish = publish_bytes(1, exchange="amq.direct")
    assert await client.send(data=publish) == []
    await node.admin.set_permissions("a", "ann", ".*", "^$", ".*")
    assert await client.send(data=publish) == ["Channel.Close"]
    await client.send(Channel.CloseOk())
    await client.send(Channel.Open())
    await node.admin.set_permissions("a", "ann", ".*", ".*", ".*")
    assert await client.send(data=publish) == []
    await node.admin.clear_permissions("a", "ann")
    assert await client.send(data=publish) == ["Channel.Close"]


async def test_a_consumer_names_its_channel_as_the_list_of_channels_does(node: Node, small: WorldWithClients) -> None:
    client = await entered(small, "ann", "a")
    await client.send(Channel.Open(), channel=2)
    await client.send(Queue.Declare(queue="q"), Basic.Consume(queue="q"), channel=2)
    await client.settle()
    consumers = (await node.admin.list_consumers("a", ("channel_pid",), local=True)).rows
    channels = dict((await node.admin.list_channels(("number", "pid"), local=True)).rows)
    assert consumers == ((channels[2],),)
    assert len(set(channels.values())) == 2

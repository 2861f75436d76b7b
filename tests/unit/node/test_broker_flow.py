"""Connection, channel, queue and store joined: a publisher without confirms is slowed to the pace of the slowest.

The credits of these tests: connection to channel and channel to queue {20, 5}, queue to store {40, 8}.
"""

from __future__ import annotations

import pytest

from node.amqp.ports import PublishRequest
from node.broker import connection as connection_module
from node.flow.credit import Credit, FlowControl
from node.flow.stage import CONNECTION_MEMORY_MS, STAGE_MEMORY_MS
from node.topology.commands import DeleteQueue
from tests.support.broker_bench import BrokerBench, Client, request


@pytest.fixture
async def bench() -> BrokerBench:
    return BrokerBench(FlowControl(in_process=Credit(20, 5), store=Credit(40, 8)))


async def publisher(bench: BrokerBench, queue: str = "q") -> Client:
    client = bench.client()
    await client.declare(queue, durable=True)
    return client


def requests(count: int, *, key: str = "q", exchange: str = "") -> list[PublishRequest]:
    """Persistent messages: each is in the store until the disk has synced."""
    return [request(key=key, exchange=exchange, persistent=True) for _ in range(count)]


def in_store(bench: BrokerBench, queue: str = "q") -> int:
    return bench.node.copy(queue).in_flight_messages


async def publish_while_read(bench: BrokerBench, client: Client, batch: int, turns: int, queue: str = "q") -> int:
    """A client that never stops: one batch per turn for as long as its socket is read. How many went in."""
    sent = 0
    for _ in range(turns):
        if client.control.pauses:
            break
        client.channel.publish(requests(batch, key=queue))
        await bench.run()
        sent += batch
    return sent


async def test_a_publisher_is_stopped_hop_by_hop_and_goes_on_when_the_store_does(bench: BrokerBench) -> None:
    client = await publisher(bench)
    # The store's 40 are used up; then the queue withholds and the channel uses up its 20; with the last of them it
    # withholds, too, and the connection uses up its own 20.
    assert await publish_while_read(bench, client, batch=10, turns=100) == 70
    assert (client.control.pauses, client.connection.state) == (1, "flow")
    assert (client.connection.flow_state, client.channel.flow_state) == ("flow", "flow")
    assert in_store(bench) == 70, "nothing was thrown away or kept back"
    (path,) = client.connection.slow_paths()
    assert [(hop.receiver, hop.balance, hop.state) for hop in path.hops] == [
        ("channel 1", 0, "blocked"),
        (1, -10, "blocked"),
    ]
    assert (path.channel, path.queue_id) == (1, 1)
    await bench.sync()
    assert client.control.pauses == 0
    assert await publish_while_read(bench, client, batch=10, turns=3) == 30, "the credit is whole again"
    assert bench.node.copy("q").ready == 100


async def test_a_store_that_keeps_up_slowly_sets_the_pace(bench: BrokerBench) -> None:
    """An fsync is always under way, and what comes meanwhile waits for the next."""
    client = await publisher(bench)
    bound = 40 + 20 + 20 + 3 * 7  # the credit of each hop and a batch more
    rounds = 50
    for _ in range(rounds):
        await publish_while_read(bench, client, batch=7, turns=3)
        fsync = bench.node.group_commit.begin()
        assert fsync is not None
        await publish_while_read(bench, client, batch=7, turns=100)
        assert client.control.pauses == 1
        assert in_store(bench) <= bound
        fsync.run()
        bench.node.group_commit.complete(fsync)
        bench.node.queues.durable_advanced()
        await bench.run()
    assert bench.node.copy("q").ready <= (rounds + 1) * bound
    await bench.sync()
    assert client.control.pauses == 0


async def test_a_batch_beyond_all_credit_is_not_cut_and_not_noticed_if_nobody_is_behind(bench: BrokerBench) -> None:
    client = await publisher(bench)
    for _ in range(5):
        client.channel.publish([request() for _ in range(39)])  # transient: the store has done with them at once
        assert client.control.pauses == 0
        assert client.connection.state == client.channel.flow_state == "running"
    await bench.run()
    assert bench.node.copy("q").ready == 195


async def test_who_has_the_queue_to_wait_for_waits_and_others_do_not(bench: BrokerBench) -> None:
    slow, quick = await publisher(bench, "slow"), await publisher(bench, "quick")
    await publish_while_read(bench, slow, batch=10, turns=100, queue="slow")
    assert await publish_while_read(bench, quick, batch=10, turns=3, queue="quick") == 30
    assert (slow.control.pauses, quick.control.pauses) == (1, 0)
    assert quick.connection.slow_paths() == []


async def test_one_slow_queue_holds_up_its_channel_and_the_connection_with_all_its_channels(bench: BrokerBench) -> None:
    client = await publisher(bench, "slow")
    await client.declare("quick", durable=True)
    other = client.connection.open_channel(2, client.sink)
    await publish_while_read(bench, client, batch=10, turns=100, queue="slow")
    other.publish(requests(3, key="quick"))  # read before the socket was paused
    await bench.run()
    assert (client.channel.flow_state, other.flow_state) == ("flow", "running")
    assert [path.channel for path in client.connection.slow_paths()] == [1]


async def test_a_message_to_several_queues_costs_each_of_them_once(bench: BrokerBench) -> None:
    client = bench.client()
    for name in ("a", "b"):
        await client.declare(name, durable=True)
        await client.definitions.bind_queue(name, "amq.fanout", "", {})
    sent = 0
    while not client.control.pauses:
        client.channel.publish(requests(10, exchange="amq.fanout"))
        await bench.run()
        sent += 10
    assert sent == 70
    assert {path.queue_id for path in client.connection.slow_paths()} == set(bench.node.masterships)
    await bench.client().definitions.purge_queue("a")  # its store has nothing left to do
    await bench.run()
    assert client.control.pauses == 1, "the other queue is as slow as before"
    await bench.sync()
    assert client.control.pauses == 0


async def test_flow_is_shown_a_while_longer(bench: BrokerBench) -> None:
    client = await publisher(bench)
    await publish_while_read(bench, client, batch=10, turns=100)
    await bench.sync()
    bench.flow.advance(STAGE_MEMORY_MS + 1)
    assert (client.connection.state, client.channel.flow_state) == ("flow", "running")
    (path,) = client.connection.slow_paths()
    assert [hop.state for hop in path.hops] == ["freed", "freed"]
    bench.flow.advance(CONNECTION_MEMORY_MS + 1)
    assert (client.connection.state, client.connection.slow_paths()) == ("running", [])


async def test_a_channel_that_closes_frees_its_connection(bench: BrokerBench) -> None:
    client = await publisher(bench)
    await publish_while_read(bench, client, batch=10, turns=100)
    await client.channel.close()
    assert client.control.pauses == 0
    await bench.sync()


async def test_a_queue_that_is_deleted_frees_its_publishers(bench: BrokerBench) -> None:
    client, other = await publisher(bench), bench.client()
    await publish_while_read(bench, client, batch=10, turns=100)
    await other.definitions.delete_queue("q", if_unused=False, if_empty=False)
    await bench.run()
    assert client.control.pauses == 0


async def test_what_a_deletion_held_back_frees_its_publishers_as_well(bench: BrokerBench) -> None:
    client = await publisher(bench)
    queue_id = bench.node.queue("q").queue_id
    await bench.node.gateway.delete_if(queue_id, False, False)
    await publish_while_read(bench, client, batch=10, turns=100)
    assert client.control.pauses == 1, "the sealed queue processes nothing"
    bench.catalogue.apply(DeleteQueue("/", "q", queue_id))
    assert client.control.pauses == 0


async def test_large_messages_are_bounded_in_bytes(bench: BrokerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "UNCONFIRMED_BYTES", Credit(1000, 500))
    client = await publisher(bench)
    for _ in range(2):
        client.channel.publish([request("x" * 500, persistent=True)])
    assert (client.control.pauses, client.connection.state) == (1, "flow")
    (path,) = client.connection.slow_paths()
    assert (path.channel, path.hops[0].receiver, path.queue_id) == (0, "unconfirmed bytes", 1)
    await bench.sync()
    assert client.control.pauses == 0

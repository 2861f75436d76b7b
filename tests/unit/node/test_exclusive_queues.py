"""Exclusive queues: locked to their connection, and gone with it, at the latest when agreement is possible again."""

from __future__ import annotations

import asyncio

import pytest

from node.errors import ChannelError, ConnectionFailure
from node.queues.events import ConsumerSpec
from node.topology.commands import DeleteQueue
from node.topology.records import QueueRecord
from tests.support.broker_bench import BrokerBench, request


@pytest.fixture
async def bench() -> BrokerBench:
    return BrokerBench()


async def test_an_exclusive_queue_is_locked_and_dies_with_its_connection(bench: BrokerBench) -> None:
    owner, other = bench.client(), bench.client()
    await owner.declare("mine", exclusive=True)
    owner.channel.publish([request(key="mine")])
    uses = [
        other.declare("mine"),
        other.declare("mine", passive=True),
        other.channel.consume("mine", ConsumerSpec("tag", no_ack=False, exclusive=False)),
        other.channel.get("mine", no_ack=True),
        other.definitions.purge_queue("mine"),
        other.definitions.bind_queue("mine", "amq.direct", "k", {}),
        other.definitions.unbind_queue("mine", "amq.direct", "k", {}),
        other.definitions.delete_queue("mine", if_unused=False, if_empty=False),
    ]
    for use in uses:
        with pytest.raises(ChannelError) as caught:
            await use
        assert caught.value.reply_code == 405
    other.channel.publish([request(key="mine")])  # publishing is free
    assert bench.node.copy("mine").ready == 2
    await owner.connection.close()
    await owner.connection.close()
    await bench.run()
    assert bench.catalogue.topology.queues("/") == []
    assert list(bench.broker.connections.values()) == [other.connection]


async def test_an_exclusive_queue_that_could_not_be_deleted_is_deleted_when_agreement_is_possible_again(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, other = bench.client(), bench.client()
    await owner.declare("orphan", exclusive=True)
    await other.declare("used", exclusive=True)
    await other.declare("shared")

    async def undecided(_command: object) -> None:
        raise ConnectionFailure(541, "the cluster has not decided")

    with monkeypatch.context() as patch:
        patch.setattr(bench.catalogue, "submit", undecided)
        await owner.connection.close()
    assert bench.catalogue.topology.queue("/", "orphan") is not None

    await bench.broker.delete_abandoned_queues()
    assert sorted(queue.name for queue in bench.catalogue.topology.queues("/")) == ["shared", "used"]


async def test_a_queue_that_another_channel_declares_while_its_namesake_is_deleted_dies_with_its_connection(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = bench.client()
    await owner.declare("q", exclusive=True)

    async def too_late(command: DeleteQueue) -> object:
        patch.undo()
        bench.catalogue.apply(DeleteQueue("/", "q"))
        await owner.declare("q", exclusive=True)
        return bench.catalogue.apply(command)

    with monkeypatch.context() as patch:
        patch.setattr(bench.catalogue, "submit", too_late)
        await owner.definitions.delete_queue("q", if_unused=False, if_empty=False)
    assert bench.catalogue.topology.queue("/", "q") is not None
    await owner.connection.close()
    assert bench.catalogue.topology.queue("/", "q") is None


async def test_exclusive_queues_are_deleted_side_by_side_and_what_is_left_of_them_later(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of them take longer than the end of a connection is waited for."""
    monkeypatch.setattr("node.broker.deletion.DELETED_AT_ONCE", 3)
    owner = bench.client()
    for number in range(8):
        await owner.declare(f"q{number}", exclusive=True)
    submit = bench.catalogue.submit
    begun: list[str] = []

    async def slowly(command: DeleteQueue) -> object:
        begun.append(command.name)
        if len(begun) > 3:
            await asyncio.Event().wait()
        return await submit(command)

    with monkeypatch.context() as patch:
        patch.setattr(bench.catalogue, "submit", slowly)
        closing = asyncio.ensure_future(owner.connection.close())
        for _ in range(10):
            await asyncio.sleep(0)
        assert begun == [f"q{number}" for number in range(6)]
        closing.cancel()
        await asyncio.wait([closing])
    assert [queue.name for queue in bench.catalogue.topology.queues("/")] == ["q3", "q4", "q5", "q6", "q7"]
    await bench.broker.delete_abandoned_queues()
    assert list(bench.catalogue.topology.queues("/")) == []


@pytest.mark.parametrize("is_refused", [True, False])
async def test_a_connection_does_not_remember_every_exclusive_queue_that_it_ever_declared(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """A client may declare one for each question that it asks, for years."""
    monkeypatch.setattr("node.broker.definitions.EXCLUSIVE_QUEUES_UNLOOKED", 4)
    owner, other = bench.client(), bench.client()
    await owner.declare("stays", exclusive=True)
    looked_for: list[str] = []
    find = bench.catalogue.topology.queue

    def find_observed(vhost: str, name: str) -> QueueRecord | None:
        looked_for.append(name)
        return find(vhost, name)

    for number in range(1000):
        if is_refused:
            await other.declare(f"q{number}")
            with pytest.raises(ChannelError, match="RESOURCE_LOCKED"):
                await owner.declare(f"q{number}", exclusive=True)
        else:
            await owner.declare(f"q{number}", exclusive=True)
            bench.catalogue.apply(DeleteQueue("/", f"q{number}"))
    monkeypatch.setattr(bench.catalogue.topology, "queue", find_observed)
    await owner.connection.close()
    assert "stays" in looked_for
    assert len(looked_for) < 20
    assert find("/", "stays") is None

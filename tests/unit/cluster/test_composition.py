"""A node from its composition to its end, in a world without sockets, threads and files."""

from __future__ import annotations

import asyncio
import errno

import pytest

from cluster.composition import compose_node
from cluster.transport.admin_port import ExitCode, QueueSelection
from node.errors import ConfigError, StorageError
from node.topology.commands import DeclareQueue
from tests.support.small_world import SmallWorld, leave_seven_messages, running, small_config

TAKEN = OSError(errno.EADDRINUSE, "address already in use")


async def test_a_node_founds_its_cluster_and_serves() -> None:
    small = SmallWorld()
    async with running(small) as node:
        assert small.carrier.admin is not None
        assert small.carrier.admin.port is node.admin
        assert [(each.host, each.port) for each in small.ports.listeners] == [("127.0.0.1", 5672)]
        assert node.clients.is_serving
        state = node.runtime.metadata.state
        assert state.topology.vhosts() == ["/"]
        assert [user.name for user in state.users.users()] == ["guest"]
        assert state.members[node.config.node_name].is_up
        assert (await node.admin.status())["pid"] == 1
    assert not small.ports.listeners[0].is_open
    assert small.carrier.is_stopped
    assert set(small.workers) == {"sync", "raft-sync", "recovery"}
    assert all(worker.is_closed for worker in small.workers.values())
    assert node.failure is None


async def test_a_node_serves_tells_and_stops_while_a_queue_recovers() -> None:
    small = SmallWorld()
    orders = await leave_seven_messages(small)
    # As if the process had been killed.
    (terms,) = (path for path in small.disk.snapshot() if path.endswith(f"/{orders.queue_id}/clean.terms"))
    small.disk.unlink(terms)
    small.held = ["recovery"]
    async with running(small) as node:
        assert node.clients.is_serving
        listed = await node.admin.list_queues("/", ("name", "state"), QueueSelection())
        assert listed.rows == (("orders", "{recovering, 0%}"),)
        other = await node.runtime.metadata.submit(DeclareQueue("/", "other", durable=True))
        assert list(node.runtime.queues.roles) == [other.queue_id]
        node.check_invariants()
    small.held = []
    async with running(small) as node:
        while orders.queue_id not in node.runtime.queues.roles:  # noqa: ASYNC110 - a few turns of the loop
            await asyncio.sleep(0)
        assert node.runtime.queues.roles[orders.queue_id].local.ready == 7
        listed = await node.admin.list_queues("/", ("name", "state"), QueueSelection())
        assert listed.rows == (("orders", "running"), ("other", "running"))


async def test_the_next_start_is_another_incarnation_of_the_same_node() -> None:
    small = SmallWorld()
    async with running(small) as node:
        queue = await node.runtime.metadata.submit(DeclareQueue("/", "orders", durable=True))
    async with running(small) as again:
        assert (node.runtime.incarnation, again.runtime.incarnation) == (1, 2)
        assert again.runtime.records.find_queue(queue.queue_id) == queue
        assert queue.queue_id in again.runtime.queues.roles
        assert len(list(again.runtime.metadata.state.users.users())) == 1, "a cluster is founded once"


async def test_what_is_stored_follows_from_the_world() -> None:
    """Salts, terms and identities are drawn from its chance, and from nowhere else."""

    async def stored(seed: int) -> dict[str, bytes]:
        small = SmallWorld(seed)
        async with running(small) as node:
            return {"users": node.runtime.metadata.state.snapshot()}

    assert await stored(1) == await stored(1)
    assert await stored(1) != await stored(2)


async def test_run_ends_when_it_is_asked_to() -> None:
    small = SmallWorld()
    node = compose_node(small_config(), small.world)
    ending = asyncio.create_task(node.run())
    async with asyncio.timeout(30):
        await small.ports.has_listener.wait()
        node.stop()
        await ending
    assert node.failure is None
    assert not small.ports.listeners[0].is_open


async def test_a_stop_before_there_is_a_quorum_waits_for_nobody() -> None:
    small = SmallWorld()
    others = [f"cluster_formation.classic_config.nodes.{n} = n{n}@127.0.0.1:{7000 + n}" for n in (1, 2, 3)]
    node = compose_node(small_config("cluster.cookie = correct horse battery", *others), small.world)
    ending = asyncio.create_task(node.run())
    await asyncio.sleep(0)
    node.stop()
    async with asyncio.timeout(30):
        await ending
    assert not small.ports.listeners


async def test_an_address_for_the_cluster_that_is_taken() -> None:
    small = SmallWorld()
    small.carrier.failure = TAKEN
    with pytest.raises(ConfigError, match=r"`cluster.listener`: cannot listen on .*: Address already in use; stop"):
        await compose_node(small_config(), small.world).run()


async def test_an_address_for_clients_that_is_taken_ends_the_node() -> None:
    small = SmallWorld()
    small.ports.failure = TAKEN
    node = compose_node(small_config(), small.world)
    async with asyncio.timeout(30):
        await node.run()
    assert node.failure is not None
    assert node.failure.exit_code == ExitCode.CONFIG
    assert node.failure.reason.startswith("`listeners.tcp.default`: cannot listen on 127.0.0.1:5672")


async def test_a_disk_that_fails_ends_the_node() -> None:
    small = SmallWorld()
    node = compose_node(small_config(), small.world)
    small.disk.fail_syncs = "/data/raft"
    async with asyncio.timeout(30):
        await node.run()
    assert node.failure is not None
    assert node.failure.exit_code == ExitCode.SOFTWARE
    assert "the disk failed, this node stops: fsync of /data/raft/log failed" in node.failure.reason


async def test_a_count_of_starts_that_cannot_be_read_is_no_first_start() -> None:
    small = SmallWorld()
    async with running(small):
        pass
    small.disk.open("/data/incarnation").pwrite(b"?", 0)
    with pytest.raises(StorageError, match="should hold the number of starts"):
        compose_node(small_config(), small.world)

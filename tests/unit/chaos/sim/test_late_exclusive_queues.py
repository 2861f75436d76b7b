"""An exclusive queue whose declaration is decided only when its connection has ended long ago goes all the same.

Two of three nodes run, and the disk of the one where the client is hangs for some seconds: nothing is committed, and so
nobody is behind, and nobody pauses. The client goes away meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.sim.client import Connection, open_connection
from chaos.sim.machine import AMQP_PORT
from tests.support.amounts import slow
from tests.support.sim_lab import NAMES, Lab


@pytest.mark.parametrize("hangs_s", [20, slow(40)])
def test_an_exclusive_queue_that_is_declared_behind_the_end_of_its_connection_goes(lab: Lab, hangs_s: int) -> None:
    for machine in lab.cluster.machines.values():
        machine._personality = replace(machine._personality, sync_ms=(1, 1))
    lab.found()
    leader = lab.leader()
    follower, third = [name for name in NAMES if name != leader]
    lab.cluster.kill(third)
    lab.pass_time(10)
    process = lab.loop.start_process("client")
    connections: list[Connection] = []

    async def declare() -> None:
        connection = await open_connection(lab.cluster.network, process, "client", (follower, AMQP_PORT))
        connections.append(connection)
        channel = await connection.channel()
        lab.cluster.slow_disk(follower, hangs_s * 1000)
        await channel.declare("q", durable=False, exclusive=True)

    asked = process.create_task(declare())
    lab.pass_time(1)
    assert not asked.done()
    connections[0].abort()
    lab.cluster.slow_disk_end(follower)  # for whatever comes behind the sync that hangs
    for _ in range(hangs_s + 10):
        lab.pass_time(1)
        assert lab.cluster.nodes[follower].clients.is_serving, "it is as current as anybody, and does not pause"
    assert not lab.cluster.nodes[follower].clients.connections(), "the client is gone"
    lab.start(third)
    lab.pass_time(120)
    topology = lab.cluster.nodes[leader].runtime.metadata.state.topology
    assert topology.queue("/", "q") is None, "nobody can use it, or delete it"

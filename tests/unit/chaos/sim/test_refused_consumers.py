"""An auto-delete queue that nobody has ever consumed stays, with all that was confirmed, though somebody was refused as
its consumer while its node was down."""

from __future__ import annotations

import asyncio

import pytest

from chaos.sim.client import Channel, ClosedError
from cluster.metadata.commands import ChangeTopology
from node.ids import NodeName
from node.topology.commands import DeclareQueue
from tests.support.sim_lab import Lab

COUNT = 20


@pytest.mark.parametrize("is_tried", [False, True])
@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_consumer_that_was_refused_was_none(founded_lab: Lab, is_tried: bool, is_orderly: bool) -> None:
    lab = founded_lab
    lab.change("n2", ChangeTopology(DeclareQueue("/", "q", durable=True, auto_delete=True), NodeName("n2")))
    lab.until_converged()
    lab.publish("n2", "q", COUNT)
    if is_orderly:
        lab.cluster.stop("n2")
    else:
        lab.cluster.kill("n2")
    lab.pass_time(10)
    if is_tried:

        async def consume(channel: Channel) -> None:
            await channel.consume("q", "t")

        with pytest.raises(ClosedError, match="404"):
            lab.use_channel("n1", consume)
    lab.start("n2")
    lab.pass_time(20)
    topology = lab.cluster.nodes["n1"].runtime.metadata.state.topology
    assert topology.queue("/", "q") is not None
    assert lab.ready("n1", "q") == COUNT


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_cut", [False, True])
def test_whose_master_is_lost_before_it_could_tell_of_the_consumer_may_stay(
    founded_lab: Lab, is_cut: bool, is_killed: bool
) -> None:
    lab = founded_lab
    lab.change("n1", ChangeTopology(DeclareQueue("/", "q", durable=True, auto_delete=True), NodeName("n1")))
    lab.until_converged()
    if is_cut:
        for other in ("n2", "n3"):
            lab.cluster.cut("n1", other)

    async def consume(channel: Channel) -> None:
        await channel.consume("q", "t")
        await asyncio.sleep(0.5)

    lab.use_channel("n1", consume)
    if is_killed:
        lab.cluster.kill("n1")
    else:
        lab.cluster.machines["n1"].disk.fail_writes = "/raft/"
        lab.pass_time(30)
    assert list(lab.cluster.consumed_in_secret) == (["q"] if is_cut else [])

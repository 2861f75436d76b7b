"""The mirrored cases of RabbitMQ's ``queue_master_location_SUITE``: where a new queue begins under a policy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.ha.harness import Cluster, cluster
from tests.conformance.ha.runs import simulated

MIN_MASTERS = {"queue-master-locator": "min-masters"}


async def uneven(c: Cluster, **masters: int) -> None:
    """Queues that no policy concerns, so many with their masters on each node."""
    for node, number in masters.items():
        channel = await c.channel(node)
        for position in range(number):
            await channel.declare(f"other-{node}-{position}")


async def declared(c: Cluster, policy: dict[str, Any]) -> tuple[str, set[str]]:
    """Master and mirrors of a queue that is declared on n1."""
    await c.set_policy({**policy, **MIN_MASTERS}, pattern="^q$")
    await c.declare("q", "n1")
    placement = c.placement("q")
    return placement.master, set(placement.mirrors)


@pytest.mark.parametrize("params", [["n9"], ["n9", "n8"]])
@simulated
async def test_l1_a_policy_whose_nodes_do_not_exist_hinders_nobody(params: list[str]) -> None:
    async with cluster() as c:
        await uneven(c, n1=2, n2=1)
        master, mirrors = await declared(c, {"ha-mode": "nodes", "ha-params": params})
        assert (master, mirrors) == ("n3", set()), "the one with the fewest masters, alone"
        await c.publish("q", [b"it works"], "n2")


@simulated
async def test_l2_among_listed_nodes_the_one_with_the_fewest_masters() -> None:
    async with cluster() as c:
        await uneven(c, n1=3, n2=2)
        assert await declared(c, {"ha-mode": "nodes", "ha-params": ["n1", "n2"]}) == ("n2", {"n1"})


@simulated
async def test_l3_among_all_nodes_the_one_with_the_fewest_masters() -> None:
    async with cluster() as c:
        await uneven(c, n1=2, n2=1, n3=2)
        assert await declared(c, {"ha-mode": "all"}) == ("n2", {"n1", "n3"})


@simulated
async def test_l4_exactly_so_many_copies_beginning_with_the_node_of_the_fewest_masters() -> None:
    async with cluster() as c:
        await uneven(c, n1=1, n2=2)
        master, mirrors = await declared(c, {"ha-mode": "exactly", "ha-params": 2})
        assert master == "n3"
        assert len(mirrors) == 1

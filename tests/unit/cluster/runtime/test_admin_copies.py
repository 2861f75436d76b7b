"""What is asked of the members that are up before an operator's command gives up the copies of others."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.metadata.commands import Command, ForcePromote, NodeDown, Request, RequestId
from cluster.metadata.errors import NoQuorumError, StillServedError
from cluster.metadata.events import Applied
from cluster.runtime.admin_copies import AdminCopies, Inheritance
from cluster.transport.admin_port import AdminRefused, ExitCode
from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.pieces import at_once
from node.topology.records import QueueRecord
from tests.support.metadata_state import N1, N2, N3, N4, StateUnderTest

N5 = NodeName("n5")


class Members:
    """n2 is asked, in a cluster in which queues wait for n1; of the others, those that answer have what ``disks`` says:
    of queues by their names, how far each copy is."""

    def __init__(self, cluster: StateUnderTest, disks: Mapping[NodeName, Mapping[str, int]]) -> None:
        self.state = cluster.state
        self.disks = disks
        runtime = SimpleNamespace(
            node=N2,
            metadata=SimpleNamespace(state=cluster.state),
            links=SimpleNamespace(linked_nodes=lambda: [N3, N4, N5]),
            copy_reach=lambda queue: self.disks[N2].get(queue.name),
        )
        self.copies = AdminCopies(cast(Any, runtime), cast(Any, self))

    async def held_copies(
        self, nodes: Sequence[NodeName], queue_ids: Sequence[QueueId]
    ) -> dict[NodeName, Mapping[QueueId, int]]:
        names = {
            queue.queue_id: queue.name for queue in self.state.topology.all_queues() if queue.queue_id in queue_ids
        }
        return {
            node: {queue_id: self.disks[node][name] for queue_id, name in names.items() if name in self.disks[node]}
            for node in nodes
            if node in self.disks
        }

    async def inherited(self) -> tuple[Inheritance, dict[str, NodeName]]:
        found = await self.copies.inheritance(N1)
        return found, {found.queues[queue_id].name: heir for queue_id, heir in found.heirs.items()}


def waiting(*names: str, up: Collection[str] = ("n2", "n3", "n4", "n5")) -> StateUnderTest:
    """Queues of which n1 had the only complete copy, without mirrors, in a cluster of five."""
    cluster = StateUnderTest("n1", "n2", "n3", "n4", "n5")
    for name in names:
        cluster.declare(name)
    for node in ("n1", "n2", "n3", "n4", "n5"):
        if node not in up:
            cluster.down(node)
    return cluster


async def test_a_queue_goes_to_whoever_has_something_and_farthest() -> None:
    members = Members(waiting("a", "b", "c"), {N2: {"a": 0}, N3: {"b": 7}, N4: {"b": 9, "a": 0}, N5: {}})
    found, heirs = await members.inherited()
    assert heirs == {"a": N2, "b": N4}
    assert [queue.name for queue in found.lost] == ["c"]


async def test_a_mirror_of_the_record_comes_before_copies_that_reach_farther() -> None:
    cluster = StateUnderTest("n1", "n2", "n3", "n4")
    cluster.declare("a")
    cluster.policy({"ha-mode": "nodes", "ha-params": ["n1", "n3"]})
    cluster.down("n1")
    assert cluster.record("a").mirrors == (N3,)
    assert (await Members(cluster, {N2: {"a": 99}, N3: {"a": 0}, N4: {}}).inherited())[1] == {"a": N3}
    found, heirs = await Members(cluster, {N2: {"a": 99}, N3: {}, N4: {}}).inherited()
    assert heirs == {"a": N2}
    found, heirs = await Members(cluster, {N2: {}, N3: {}, N4: {}}).inherited()
    assert (heirs, found.lost) == ({}, []), "the mirror may serve, empty as it is"


async def test_nothing_is_deleted_unconfirmed_of_which_a_silent_member_may_have_something() -> None:
    members = Members(waiting("a", "b", up=("n2", "n3", "n4")), {N2: {}, N3: {}, N4: {}})
    found, _ = await members.inherited()
    assert found.unheard == [N5]
    with pytest.raises(
        AdminRefused, match=r"queue 'a' in .*, queue 'b' in .* would be deleted, and n5 did not say"
    ) as caught:
        members.copies.require_confirmation(found)
    assert caught.value.exit_code is ExitCode.SOFTWARE
    all_served = Members(waiting("a", up=("n2", "n3", "n4")), {N2: {"a": 0}, N3: {}, N4: {}})
    members.copies.require_confirmation((await all_served.inherited())[0])
    all_heard = Members(waiting("a"), {N2: {}, N3: {}, N4: {}, N5: {}})
    all_heard.copies.require_confirmation((await all_heard.inherited())[0])


async def test_who_is_refused_a_promotion_leaves_the_others_theirs() -> None:
    members = Members(waiting("a", "b"), {N2: {"a": 0, "b": 0}, N3: {}, N4: {}, N5: {}})
    found, _ = await members.inherited()
    proposed: list[Command] = []

    async def refuse_first(command: Command) -> None:
        proposed.append(command)
        if len(proposed) == 1:
            raise StillServedError("a", "n1")

    await members.copies.hand_over(found, refuse_first)
    assert proposed == [ForcePromote(queue_id, N2, Epoch(1)) for queue_id in found.queues]

    async def decide_nothing(_command: Command) -> None:
        raise NoQuorumError("nobody has decided")

    with pytest.raises(NoQuorumError):
        await members.copies.hand_over(found, decide_nothing)


async def promote(members: Members, node: NodeName, name: str = "a") -> None:
    queue = members.state.topology.queue("/", name)
    assert isinstance(queue, QueueRecord)
    await members.copies.require_something(queue, node)


async def test_a_promotion_needs_something_to_promote() -> None:
    members = Members(waiting("a", up=("n2", "n3", "n4", "n5")), {N2: {}, N3: {"a": 0}, N4: {}})
    await promote(members, N3)
    with pytest.raises(
        AdminRefused, match=r"n4 has nothing of .* complete copy was on n1, .* n3 has something"
    ) as caught:
        await promote(members, N4)
    assert caught.value.exit_code is ExitCode.SOFTWARE
    with pytest.raises(AdminRefused, match="n5 did not say whether it has anything") as caught:
        await promote(members, N5)
    assert caught.value.exit_code is ExitCode.TEMPORARY


async def test_what_is_refused_for_another_reason_is_left_to_those_who_know_it() -> None:
    nobody_answers: dict[NodeName, dict[str, int]] = {N2: {}}
    await promote(Members(waiting("a", up=("n1", "n2", "n3")), nobody_answers), N3)  # it is served
    members = Members(waiting("a", up=("n2", "n3")), nobody_answers)
    for node in (N4, NodeName("n9")):  # down, unknown
        await promote(members, node)
    with pytest.raises(AdminRefused):
        await promote(members, N3)


@pytest.mark.parametrize("asked", ["to forget", "to promote"])
async def test_what_a_node_leaves_behind_is_looked_for_when_every_record_says_that_it_is_down(asked: str) -> None:
    """Its own says so first; a queue that it had alone would be deleted with the copy that somebody else has of it."""
    cluster = waiting("a", "b", up=("n1", "n2", "n3", "n4", "n5"))
    members = Members(cluster, {N2: {}, N3: {"a": 0, "b": 0}, N4: {}, N5: {}})
    request = Request(RequestId(N2, Incarnation(1), 1), NodeDown(N1, Incarnation(1)))
    pieces = cluster.state.apply_in_pieces(cluster.index + 1, request)
    next(pieces)
    assert not cluster.state.members[N1].is_up
    task: asyncio.Future[Any] = asyncio.ensure_future(
        members.inherited() if asked == "to forget" else promote(members, N4, "b")
    )
    await asyncio.sleep(0)
    assert isinstance(at_once(pieces), Applied)
    if asked == "to forget":
        assert (await task)[1] == {"a": N3, "b": N3}
    else:
        with pytest.raises(AdminRefused, match="n4 has nothing of"):
            await task

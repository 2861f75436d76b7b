"""To forget a node deletes what nobody else has, or the operator has agreed to: an heir may go meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.metadata.commands import Command, DropMirror, ForcePromote, ForgetNode
from cluster.metadata.kinds import FIRST_PROTOCOL
from cluster.runtime.admin import NodeAdmin
from cluster.transport.admin_port import AdminRefused, ExitCode, exit_code_of
from node.errors import WarrenError
from node.ids import NodeName, QueueId
from tests.support.metadata_state import N1, N2, N3, N4, StateUnderTest, follows
from tests.unit.cluster.runtime.test_admin import node_admin


class Asked:
    """n2 is asked to forget n1; of the others, those that answer have what ``disks`` says. Implements what the admin
    service needs of the metadata group and of its peers."""

    def __init__(self, cluster: StateUnderTest, disks: Mapping[NodeName, Sequence[str]]) -> None:
        self.cluster = cluster
        self.state = cluster.state
        self.disks = disks
        self.consensus = SimpleNamespace(pause=None, leader=N2, voters=(N1, N2, N3, N4))
        self.proposed: list[Command] = []
        #: Called before a command is decided.
        self.meanwhile: Callable[[Command], object] = lambda _command: None

    @property
    def admin(self) -> NodeAdmin:
        runtime = SimpleNamespace(
            metadata=self,
            node=N2,
            links=SimpleNamespace(linked_nodes=lambda: [N3, N4]),
            copy_reach=lambda queue: 0 if queue.name in self.disks[N2] else None,
        )
        return node_admin(runtime, self)

    async def change_everywhere(self, command: Command) -> Any:
        self.proposed.append(command)
        self.meanwhile(command)
        applied = self.cluster.apply(command)
        if applied.error is not None:
            raise applied.error
        return applied.result

    async def held_copies(
        self, nodes: Sequence[NodeName], queue_ids: Sequence[QueueId]
    ) -> dict[NodeName, Mapping[QueueId, int]]:
        names = {queue_id: queue.name for queue_id in queue_ids if (queue := self.state.topology.queue_by_id(queue_id))}
        return {
            node: {queue_id: 0 for queue_id, name in names.items() if name in self.disks[node]}
            for node in nodes
            if node in self.disks
        }

    async def refusal(self) -> WarrenError:
        with pytest.raises(WarrenError) as caught:
            await self.admin.forget_cluster_node("n1")
        assert N1 in self.state.members
        return caught.value


def alone_on_n1(*names: str, protocol: int | None = None) -> StateUnderTest:
    """Queues of which n1, which is down, had the only complete copy, in a cluster of four."""
    cluster = StateUnderTest("n1", "n2", "n3", "n4", **({} if protocol is None else {"protocol": protocol}))
    for name in names:
        cluster.declare(name)
    cluster.down("n1")
    return cluster


def left_to_n3(*, is_following: bool) -> StateUnderTest:
    """A queue whose mirror n3 lacks what was there before it."""
    cluster = StateUnderTest("n1", "n2", "n3", "n4")
    cluster.declare("a")
    cluster.policy({"ha-mode": "nodes", "ha-params": ["n1", "n3"], "ha-promote-on-failure": "when-synced"})
    if is_following:
        follows(cluster, N3, name="a")
    cluster.down("n1")
    assert (cluster.record("a").is_down, cluster.record("a").mirrors) == (True, (N3,))
    return cluster


async def test_a_queue_whose_heir_goes_before_it_is_promoted_is_not_deleted_unasked() -> None:
    asked = Asked(alone_on_n1("a", "b"), {N2: (), N3: ("a", "b"), N4: ()})
    asked.meanwhile = lambda command: asked.cluster.down("n3") if isinstance(command, ForgetNode) else None
    refusal = await asked.refusal()
    assert exit_code_of(refusal) is ExitCode.SOFTWARE
    assert "queue 'a' in vhost '/', queue 'b' in vhost '/' would be deleted" in str(refusal)
    assert "start what is down and ask again, or give --confirm" in str(refusal)
    assert asked.cluster.exists("a")
    assert asked.cluster.exists("b")


@pytest.mark.parametrize("kind", [ForcePromote, ForgetNode])
async def test_whoever_goes_when_it_was_found_to_be_the_heir_the_queue_stays(kind: type[Command]) -> None:
    asked = Asked(alone_on_n1("a"), {N2: (), N3: ("a",), N4: ()})
    asked.meanwhile = lambda command: asked.cluster.down("n3") if isinstance(command, kind) else None
    await asked.refusal()
    assert asked.cluster.record("a").complete == (N1,), "it waits for what n1 has, as before"
    asked.cluster.up("n1", 2)
    assert asked.cluster.record("a").in_service


@pytest.mark.parametrize("is_following", [False, True])
async def test_a_mirror_that_leaves_the_record_meanwhile_does_not_have_its_queue_deleted(is_following: bool) -> None:
    asked = Asked(left_to_n3(is_following=is_following), {N2: (), N3: ("a",), N4: ()})

    def leave(command: Command) -> None:
        if isinstance(command, ForgetNode):
            record = asked.cluster.record("a")
            asked.cluster.apply(DropMirror(record.queue_id, record.epoch, N3))

    asked.meanwhile = leave
    if is_following:
        await asked.refusal()
    else:
        await asked.admin.forget_cluster_node("n1")  # n3 was promoted before
    assert asked.cluster.exists("a")


@pytest.mark.parametrize("is_following", [False, True])
async def test_a_mirror_that_does_not_answer_is_no_sure_heir(is_following: bool) -> None:
    asked = Asked(left_to_n3(is_following=is_following), {N2: (), N4: ()})
    with pytest.raises(AdminRefused, match=r"queue 'a' in .*, and n3 did not say.*--confirm") as caught:
        await asked.admin.forget_cluster_node("n1")
    assert caught.value.exit_code is ExitCode.SOFTWARE
    assert asked.proposed == []
    await asked.admin.forget_cluster_node("n1", is_confirmed=True)
    assert asked.cluster.record("a").master == N3


async def test_what_nobody_has_anything_of_is_deleted_without_a_question() -> None:
    asked = Asked(alone_on_n1("a", "b"), {N2: (), N3: ("b",), N4: ()})
    asked.cluster.declare("transient", "n2", durable=False)
    answer = await asked.admin.forget_cluster_node("n1")
    assert (answer["deleted_queues"], answer["lossy_queues"]) == (
        ["queue 'a' in vhost '/'"],
        {"queue 'b' in vhost '/'": N3},
    )
    assert not asked.cluster.exists("a")


async def test_who_has_agreed_is_not_asked_again() -> None:
    asked = Asked(alone_on_n1("a"), {N2: (), N3: ("a",), N4: ()})
    asked.meanwhile = lambda command: asked.cluster.down("n3") if isinstance(command, ForgetNode) else None
    answer = await asked.admin.forget_cluster_node("n1", is_confirmed=True)
    assert answer["deleted_queues"] == ["queue 'a' in vhost '/'"]


async def test_a_cluster_in_which_a_member_would_not_understand_it_forgets_as_before() -> None:
    asked = Asked(alone_on_n1("a", protocol=FIRST_PROTOCOL), {N2: (), N3: (), N4: ()})
    assert (await asked.admin.forget_cluster_node("n1"))["deleted_queues"] == ["queue 'a' in vhost '/'"]
    assert asked.proposed == [ForgetNode(N1, is_voter=True)]

"""When the leader asks for a new protocol, and for whom it vouches."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from cluster.metadata.commands import RaiseProtocol
from cluster.metadata.records import MemberRecord
from cluster.runtime.protocol_watch import ProtocolWatch
from node.ids import Incarnation, NodeName

N1, N2 = NodeName("n1"), NodeName("n2")
LIFE_1, LIFE_2 = Incarnation(1), Incarnation(2)


def member(node: NodeName, life: Incarnation) -> MemberRecord:
    return MemberRecord(node, "h:1", "h:2", life, is_up=True)


async def test_who_begins_again_in_the_turn_of_the_proposal_is_not_taken_for_who_was_asked() -> None:
    """It may have begun with the release before."""
    proposed: list[RaiseProtocol] = []
    spawned: list[Coroutine[Any, Any, Any]] = []
    admissions = SimpleNamespace(admitted={}, is_forgotten=lambda _voter: False)
    members = {N1: member(N1, LIFE_1), N2: member(N2, LIFE_1)}
    state = SimpleNamespace(members=members, admissions=admissions, protocol=2)
    log = SimpleNamespace(voters=(N1, N2), configuration_index=2)
    group = SimpleNamespace(core=SimpleNamespace(is_leader=True, log=log), applied_index=5)
    links = SimpleNamespace(up_peers=[N2], spoken_with=lambda _peer: (LIFE_1, 3))

    async def change(command: RaiseProtocol) -> None:
        proposed.append(command)

    watch = ProtocolWatch(
        N1, LIFE_1, 3, cast(Any, state), cast(Any, None), change=change, spawn=lambda work, _what: spawned.append(work)
    )
    watch.join(cast(Any, group), cast(Any, links))
    watch.follow()
    members[N2] = member(N2, LIFE_2)
    for work in spawned:
        await work
    assert proposed == [RaiseProtocol(3, ((N1, LIFE_1), (N2, LIFE_1)))], "which the cluster refuses"

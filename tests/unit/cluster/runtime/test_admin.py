"""What operators are answered: the exit codes of changes that the cluster refuses, or cannot decide now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.metadata.commands import Command
from cluster.metadata.errors import NoQuorumError, NoSuchPolicyError, NoSuchUserError, NoSuchVhostError, UserExistsError
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from cluster.raft.config import ProposalRefusedError
from cluster.runtime.admin import NodeAdmin
from cluster.transport.admin_port import AdminRefused, ExitCode, exit_code_of
from node.auth import UserDirectory
from node.errors import StorageError, WarrenError
from node.ids import NodeName

POLICY = PolicyRecord("/", "ha", "^", {"ha-mode": "all"}, 0, "queues")
CHANGES: dict[str, Callable[[NodeAdmin], Awaitable[object]]] = {
    "set_policy": lambda admin: admin.set_policy(POLICY),
    "clear_policy": lambda admin: admin.clear_policy("/", "ha"),
    "add_user": lambda admin: admin.add_user("u", "p", ()),
    "delete_user": lambda admin: admin.delete_user("u"),
    "change_password": lambda admin: admin.change_password("u", "p"),
    "set_user_tags": lambda admin: admin.set_user_tags("u", ("t",)),
    "set_permissions": lambda admin: admin.set_permissions("/", "u", "", "", ""),
    "clear_permissions": lambda admin: admin.clear_permissions("/", "u"),
    "add_vhost": lambda admin: admin.add_vhost("v"),
}


class RefusingGroup:
    """A metadata group that commits nothing."""

    def __init__(self, refusal: WarrenError) -> None:
        self.refusal = refusal
        self.state = MetadataState(UserDirectory(frozenset()))

    async def change_everywhere(self, _command: Command) -> Any:
        raise self.refusal


def admin_of(group: RefusingGroup) -> NodeAdmin:
    runtime = SimpleNamespace(metadata=group, node=NodeName("n1"))
    return NodeAdmin(cast(Any, runtime), cast(Any, None), list, lambda: None, "0")


async def refused(change: str, refusal: WarrenError) -> WarrenError:
    with pytest.raises(WarrenError) as caught:
        await CHANGES[change](admin_of(RefusingGroup(refusal)))
    return caught.value


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("refusal", "exit_code"),
    [
        (ProposalRefusedError("20000 proposals of this node wait already"), ExitCode.TEMPORARY),
        (NoQuorumError("the cluster has not decided"), ExitCode.TEMPORARY),
        (NoSuchUserError("u"), ExitCode.NO_USER),
        (NoSuchVhostError("v"), ExitCode.DATA),
        (UserExistsError("u"), ExitCode.SOFTWARE),
        (NoSuchPolicyError(), ExitCode.SOFTWARE),
        (StorageError("input/output error"), ExitCode.SOFTWARE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, WarrenError) else "",
)
async def test_a_change_that_is_not_made_says_whether_it_is_worth_trying_again(
    change: str, refusal: WarrenError, exit_code: ExitCode
) -> None:
    error = await refused(change, refusal)
    assert exit_code_of(error) == exit_code
    assert str(error) == str(refusal)


async def test_a_policy_that_makes_no_sense_is_not_proposed() -> None:
    group = RefusingGroup(ProposalRefusedError("no leader"))
    bad = PolicyRecord("/", "ha", "^", {"ha-mode": "some"}, 0, "queues")
    with pytest.raises(AdminRefused, match="is not a valid ha-mode value") as caught:
        await admin_of(group).set_policy(bad)
    assert caught.value.exit_code is ExitCode.SOFTWARE

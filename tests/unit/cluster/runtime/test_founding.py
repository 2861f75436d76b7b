"""What every cluster has is made once, whoever dies on the way and however long a majority is away."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any, cast

import pytest

from cluster.metadata.commands import (
    AddUser,
    ChangeTopology,
    ClearPermissions,
    Command,
    DeleteUser,
    FoundCluster,
    Request,
    RequestId,
)
from cluster.metadata.errors import AlreadyFoundedError, NoQuorumError
from cluster.metadata.state import MetadataState
from cluster.runtime.founding import found
from node.auth import UserDirectory
from node.config import build_config, parse_settings
from node.ids import Incarnation
from node.topology.commands import CreateVhost, DeleteVhost

CONFIG = build_config(parse_settings("node_name = n1\ndefault_pass = secret", "node.conf"))


class Dead(Exception):
    """The node has died."""


class Group:
    """A metadata group whose commands are applied by the real state machine, or meet what the test says."""

    def __init__(self) -> None:
        self.state = MetadataState(UserDirectory())
        self.index = 0
        self.topology = self.state.topology
        self.decided: list[str] = []
        #: What the next proposals meet instead of a decision.
        self.troubles: list[Exception | None] = []

    async def change(self, command: Command) -> None:
        if self.troubles and (trouble := self.troubles.pop(0)) is not None:
            raise trouble
        self.apply(command)
        self.decided.append(type(command).__name__)

    def apply(self, command: Command) -> None:
        self.index += 1
        request = Request(RequestId(CONFIG.node_name, Incarnation(1), self.index), command)
        if (error := self.state.apply(self.index, request).error) is not None:
            raise error

    async def found(self) -> None:
        await found(CONFIG, cast(Any, self), Random(1))

    @property
    def may_guest(self) -> bool:
        return self.state.users.check_password("guest", "secret") and self.state.users.may_enter("guest", "/")


async def test_a_cluster_is_founded_once() -> None:
    group = Group()
    await group.found()
    assert group.decided == [FoundCluster.__name__]
    assert group.may_guest
    await group.found()
    assert group.decided == [FoundCluster.__name__]


async def test_a_founder_that_dies_on_the_way_is_followed_by_the_next() -> None:
    """Wherever it dies: there is nothing, or everything."""
    for proposals_done in range(3):
        group = Group()
        group.troubles = [*[None] * proposals_done, Dead()]
        with suppress(Dead):
            await group.found()
        assert bool(group.topology.vhosts()) == group.may_guest
        await group.found()
        assert group.may_guest


async def test_a_majority_is_waited_for() -> None:
    group = Group()
    away = NoQuorumError("nobody answers")
    group.troubles = [away, away]
    await group.found()
    assert group.decided == [FoundCluster.__name__]


async def test_two_founders_found_one_cluster() -> None:
    group = Group()
    group.apply(FoundCluster("/", "guest", "of another founder", ()))
    assert group.state.is_founded
    with pytest.raises(AlreadyFoundedError):
        group.apply(FoundCluster("/", "guest", "mine", ()))
    user = group.state.users.user("guest")
    assert user is not None
    assert user.password_hash == "of another founder"


async def test_what_an_earlier_release_began_is_completed() -> None:
    """It made the user first, and stopped there."""
    group = Group()
    group.apply(AddUser("guest", "of then", ("administrator",)))
    await group.found()
    user = group.state.users.user("guest")
    assert user is not None
    assert user.password_hash == "of then"
    assert group.state.users.may_enter("guest", "/")


async def test_a_vhost_that_was_deleted_does_not_come_back() -> None:
    group = Group()
    await group.found()
    group.apply(ChangeTopology(DeleteVhost("/"), CONFIG.node_name))
    group.state.restore(group.state.snapshot())
    await group.found()
    assert group.topology.vhosts() == []


async def test_a_default_user_that_was_deleted_does_not_come_back() -> None:
    group = Group()
    await group.found()
    group.apply(DeleteUser("guest"))
    await group.found()
    assert group.state.users.user("guest") is None


async def test_permissions_that_were_taken_from_the_default_user_stay_taken() -> None:
    group = Group()
    await group.found()
    group.apply(ClearPermissions("/", "guest"))
    await group.found()
    assert not group.state.users.may_enter("guest", "/")


async def test_who_is_held_up_makes_nothing_in_a_cluster_that_others_have_founded() -> None:
    """And whose user an operator has deleted since."""
    group, away = Group(), NoQuorumError("nobody answers")
    group.troubles = [away]
    change = group.change

    async def change_late(command: Command) -> None:
        try:
            await change(command)
        finally:
            group.apply(ChangeTopology(CreateVhost("/"), CONFIG.node_name))

    group.change = change_late  # type: ignore[method-assign]
    await group.found()
    assert group.decided == []
    assert group.state.users.user("guest") is None

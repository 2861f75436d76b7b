"""What a line held until its operator was told that nobody knows does not undo what he has had done since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from cluster.metadata.commands import ClearPolicy
from cluster.metadata.errors import NoQuorumError
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from cluster.runtime.driver_config import DriverConfig
from cluster.transport.admin_port import AdminPort, AdminRefused
from tests.support.sim_lab import NAMES, Lab

POLICY = PolicyRecord("/", "lab", "", {"max-length": 1}, 0, "queues")
Asked = Callable[[AdminPort], Coroutine[Any, Any, Any]]


async def delete_and_add_user(admin: AdminPort) -> None:
    await admin.delete_user("alice")
    await admin.add_user("alice", "secret", ())


#: By name: what comes late, what the operator has done since, and what shows it.
UNDOINGS: dict[str, tuple[Asked, Asked, Callable[[MetadataState], bool]]] = {
    "clear_policy": (
        lambda admin: admin.clear_policy("/", "lab"),
        lambda admin: admin.set_policy(POLICY),
        lambda state: ("/", "lab") in state.policies,
    ),
    "delete_user": (
        lambda admin: admin.delete_user("alice"),
        delete_and_add_user,
        lambda state: state.users.user("alice") is not None,
    ),
    "clear_permissions": (
        lambda admin: admin.clear_permissions("/", "alice"),
        lambda admin: admin.set_permissions("/", "alice", ".*", ".*", ".*"),
        lambda state: state.users.may_enter("alice", "/"),
    ),
}


def settle_in(lab: Lab) -> tuple[str, str, str]:
    """The leader, and the two others."""
    lab.ask("n1", lambda admin: admin.set_policy(POLICY))
    lab.ask("n1", lambda admin: admin.add_user("alice", "secret", ()))
    lab.ask("n1", lambda admin: admin.set_permissions("/", "alice", ".*", ".*", ".*"))
    lab.until_converged()
    leader = lab.leader()
    entry, other = (name for name in NAMES if name != leader)
    return leader, entry, other


def until_refused(lab: Lab, asked: asyncio.Task[Any]) -> None:
    while not asked.done():
        lab.pass_time(0.02)
    assert isinstance(asked.exception(), AdminRefused)


@pytest.mark.parametrize("name", UNDOINGS)
def test_a_late_word_does_not_undo_what_was_done_since(founded_lab: Lab, name: str) -> None:
    late, since, is_there = UNDOINGS[name]
    lab = founded_lab
    leader, entry, other = settle_in(lab)
    lab.cluster.cut(entry, leader)
    until_refused(lab, lab.begin_to_ask(entry, late))
    lab.ask(other, since)
    lab.cluster.cut_end(entry, leader)
    lab.pass_time(5)
    lab.until_converged()
    assert [is_there(lab.cluster.nodes[each].runtime.metadata.state) for each in NAMES] == [True, True, True]


@pytest.mark.parametrize("name", UNDOINGS)
def test_a_node_that_was_heard_again_in_time_has_it_done(founded_lab: Lab, name: str) -> None:
    late, _, is_there = UNDOINGS[name]
    lab = founded_lab
    leader, entry, _ = settle_in(lab)
    lab.cluster.cut(entry, leader)
    asked = lab.begin_to_ask(entry, late)
    lab.pass_time(2)
    lab.cluster.cut_end(entry, leader)
    lab.pass_time(1)
    assert asked.done()
    assert asked.exception() is None
    assert not is_there(lab.cluster.nodes[entry].runtime.metadata.state)


def tries_ms(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of a proposal that always gets lost: when a follower has forwarded it."""
    _, entry, _ = settle_in(lab)
    tries: list[int] = []
    monkeypatch.setattr(lab.cluster.nodes[entry].raft.core, "propose", lambda now_ms, _payloads: tries.append(now_ms))
    with pytest.raises(NoQuorumError):
        lab.change(entry, ClearPolicy("/", "lab"))
    between_ms = [later - earlier for earlier, later in pairwise(tries)]
    assert max(between_ms) <= 2 * DriverConfig().retry_interval_ms
    return tries


def test_a_node_whose_time_is_nearly_up_forwards_no_more(founded_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest copy would be good for longer than whoever waits is kept waiting."""
    config = DriverConfig()
    first_ms, *_, last_ms = tries_ms(founded_lab, monkeypatch)
    forwarded_for_ms = config.proposal_timeout_ms - founded_lab.cluster.nodes["n1"].raft.core.config.proposal_age_max_ms
    assert forwarded_for_ms - 2 * config.retry_interval_ms <= last_ms - first_ms <= forwarded_for_ms


def test_a_node_whose_elections_may_take_all_the_time_forwards_for_half_of_it(
    founded_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a `raft.election_timeout_ms` of half a minute: what has got lost once would not be said again."""
    config = DriverConfig()
    for node in founded_lab.cluster.nodes.values():
        monkeypatch.setattr(
            node.raft.core, "config", replace(node.raft.core.config, proposal_age_max_ms=config.proposal_timeout_ms)
        )
    first_ms, *_, last_ms = tries_ms(founded_lab, monkeypatch)
    assert last_ms - first_ms >= config.proposal_timeout_ms // 2 - 2 * config.retry_interval_ms


def test_a_node_pauses_when_nothing_that_it_has_forwarded_is_good_any_more(founded_lab: Lab) -> None:
    raft = founded_lab.cluster.nodes["n1"].raft
    config = raft.core.config
    assert config.proposal_age_max_ms + config.election_timeout_min_ms == raft._standing.pause_after_ms

"""How much a leader takes that is not committed yet: memory must not grow while a majority is missing."""

from __future__ import annotations

from random import Random

import pytest

from cluster.raft.core import ProposalRefusedError, RaftConfig, RaftCore, founding_state
from cluster.raft.leadership import MAX_UNCOMMITTED_BYTES
from node.ids import NodeName

HALF = bytes(MAX_UNCOMMITTED_BYTES // 2)


def commit_everything(core: RaftCore) -> None:
    while core.has_work:
        core.appended(core.take_ready())


@pytest.fixture
def leader() -> RaftCore:
    """Of a group of one: what it has written is committed."""
    node = NodeName("n1")
    core = RaftCore(RaftConfig(node), founding_state([node]), Random(1), now_ms=0)
    commit_everything(core)
    core.tick(5000)
    commit_everything(core)
    assert core.is_leader
    return core


def test_proposals_are_taken_up_to_the_limit_and_refused_above_it(leader: RaftCore) -> None:
    leader.propose(5000, [HALF])
    leader.propose(5000, [HALF])
    with pytest.raises(ProposalRefusedError, match=f"{MAX_UNCOMMITTED_BYTES} bytes wait"):
        leader.propose(5000, [b"x"])


def test_what_is_committed_makes_room(leader: RaftCore) -> None:
    leader.propose(5000, [HALF, HALF])
    commit_everything(leader)
    leader.propose(5000, [HALF, HALF])
    with pytest.raises(ProposalRefusedError):
        leader.propose(5000, [b"x"])


def test_one_that_is_larger_than_the_limit_is_taken_if_nothing_else_waits(leader: RaftCore) -> None:
    """It would wait for ever otherwise."""
    leader.propose(5000, [HALF, HALF, b"x"])
    commit_everything(leader)
    assert leader.log.commit == leader.log.last_index

"""When a learner keeps pace: whoever is to vote has next to nothing to catch up with, whatever is on its way."""

from __future__ import annotations

from random import Random

import pytest

from cluster.raft.config import RaftConfig, founding_state
from cluster.raft.core import RaftCore
from cluster.raft.messages import AppendResponse, HeartbeatResponse, Voter
from node.ids import NodeName

N1, N2 = NodeName("n1"), NodeName("n2")
ROUND_MS = RaftConfig(N1).election_timeout_min_ms
STEP_MS = 10


class Teaching:
    """A leader alone that commits something at every step, and what it has sent to its learner."""

    def __init__(self, delay_ms: int) -> None:
        """From an entry to the answer for it."""
        self.core = RaftCore(RaftConfig(N1), founding_state([]), Random(1), now_ms=0)
        self.core.found(0, [Voter(N1, "a1")])
        self.now_ms = 0
        self.delay_ms = delay_ms
        self.answers: list[tuple[int, int]] = []
        self.pass_time(100)
        assert self.core.is_leader
        self.core.set_learners(self.now_ms, [Voter(N2, "a2")])

    def pass_time(self, by_ms: int, *, commits: bool = False) -> None:
        for _ in range(by_ms // STEP_MS):
            self.now_ms += STEP_MS
            self.core.tick(self.now_ms)
            if commits:
                self.core.propose(self.now_ms, [b"command"])
            while self.core.has_work:
                self.core.appended(self.core.take_ready())
            self.core.check_invariants()

    def teach(self, by_ms: int, *, commits: bool = True) -> None:
        """The learner answers for what was there ``delay_ms`` ago."""
        for _ in range(by_ms // STEP_MS):
            self.pass_time(STEP_MS, commits=commits)
            self.answers.append((self.now_ms + self.delay_ms, self.core.log.last_index))
            while self.answers and self.answers[0][0] <= self.now_ms:
                self.answer(self.answers.pop(0)[1])

    def answer(self, index: int) -> None:
        self.core.step(self.now_ms, HeartbeatResponse(N2, N1, self.core.term, self.now_ms, 1))
        self.core.step(self.now_ms, AppendResponse(N2, N1, self.core.term, True, index))
        self.core.check_invariants()

    @property
    def has_learned(self) -> bool:
        return self.core.has_learned(N2)


def test_who_keeps_pace_has_learned_though_it_never_has_all_that_is_committed() -> None:
    teaching = Teaching(delay_ms=200)
    teaching.teach(1000)
    for _ in range(100):
        teaching.teach(STEP_MS)
        assert teaching.has_learned


def test_who_is_a_whole_election_behind_has_not_learned_until_it_is_quicker() -> None:
    teaching = Teaching(delay_ms=ROUND_MS)
    for _ in range(500):
        teaching.teach(STEP_MS)
        assert not teaching.has_learned
    teaching.delay_ms = 0
    teaching.answers.clear()
    teaching.teach(3 * STEP_MS)
    assert teaching.has_learned


def test_who_kept_pace_once_and_stays_behind_has_not_learned() -> None:
    """It answers heartbeats; its disk is slow."""
    teaching = Teaching(delay_ms=200)
    teaching.teach(1000)
    assert teaching.has_learned
    for _ in range(2 * ROUND_MS // STEP_MS):
        teaching.pass_time(STEP_MS, commits=True)
        teaching.core.step(teaching.now_ms, HeartbeatResponse(N2, N1, teaching.core.term, teaching.now_ms, 1))
    assert not teaching.has_learned


def test_who_had_everything_and_was_away_has_not_learned_at_its_first_word() -> None:
    """It could not be given the vote while it kept pace: a change before was not decided."""
    teaching = Teaching(delay_ms=0)
    teaching.teach(1000)
    assert teaching.has_learned
    teaching.pass_time(50 * ROUND_MS, commits=True)
    teaching.core.step(teaching.now_ms, HeartbeatResponse(N2, N1, teaching.core.term, teaching.now_ms, 1))
    assert not teaching.has_learned


@pytest.mark.parametrize("idle_ms", [0, 20 * ROUND_MS])
def test_a_log_that_rested_makes_nobody_slow(idle_ms: int) -> None:
    teaching = Teaching(delay_ms=200)
    teaching.teach(500, commits=False)
    assert teaching.has_learned
    teaching.teach(idle_ms, commits=False)
    for _ in range(200):
        teaching.teach(STEP_MS)
        assert teaching.has_learned


def test_a_long_lesson_is_no_reason_to_wait_when_it_is_over() -> None:
    teaching = Teaching(delay_ms=0)
    teaching.pass_time(50 * ROUND_MS)
    assert not teaching.has_learned
    teaching.answer(teaching.core.log.last_index)
    assert teaching.has_learned

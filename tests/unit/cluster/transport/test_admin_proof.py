"""A challenge is good for one request, of one kind, for a while."""

from __future__ import annotations

from random import Random

import pytest

from cluster.transport.admin_proof import (
    CHALLENGE_TIMEOUT_S,
    CHALLENGES_MAX,
    NONCE_BYTES,
    Challenges,
    caller_proof,
    node_proof,
)

SECRET = b"correct horse"
NONCE = bytes(range(NONCE_BYTES))
STATUS, SHUTDOWN = "/warren.admin.Admin/Status", "/warren.admin.Admin/Shutdown"


class Desk:
    """A node's challenges, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.challenges = Challenges(SECRET, lambda: self.now_s, Random(1).randbytes)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_whoever_knows_the_secret_is_heard_once(desk: Desk) -> None:
    nonce, proof = desk.challenges.challenge(NONCE)
    assert proof == node_proof(SECRET, NONCE, nonce)
    answer = caller_proof(SECRET, NONCE, nonce, STATUS)
    assert desk.challenges.is_proven(nonce, answer, STATUS)
    assert not desk.challenges.is_proven(nonce, answer, STATUS), "a recorded request is worth nothing"


def test_an_answer_is_for_one_method_and_one_challenge(desk: Desk) -> None:
    nonce, _ = desk.challenges.challenge(NONCE)
    assert not desk.challenges.is_proven(nonce, caller_proof(SECRET, NONCE, nonce, STATUS), SHUTDOWN)
    first, _ = desk.challenges.challenge(NONCE)
    second, _ = desk.challenges.challenge(NONCE)
    assert not desk.challenges.is_proven(second, caller_proof(SECRET, NONCE, first, STATUS), STATUS)
    assert not desk.challenges.is_proven(b"", b"", STATUS)


@pytest.mark.parametrize(("after_s", "is_in_time"), [(CHALLENGE_TIMEOUT_S, True), (CHALLENGE_TIMEOUT_S + 0.1, False)])
def test_an_answer_may_come_too_late(desk: Desk, after_s: float, is_in_time: bool) -> None:
    nonce, _ = desk.challenges.challenge(NONCE)
    desk.now_s += after_s
    assert desk.challenges.is_proven(nonce, caller_proof(SECRET, NONCE, nonce, STATUS), STATUS) is is_in_time


def test_a_node_cannot_be_filled_with_challenges(desk: Desk) -> None:
    nonces = [desk.challenges.challenge(NONCE)[0] for _ in range(CHALLENGES_MAX + 1)]
    assert len(desk.challenges) == CHALLENGES_MAX
    proven = [desk.challenges.is_proven(each, caller_proof(SECRET, NONCE, each, STATUS), STATUS) for each in nonces]
    assert proven == [False] + [True] * CHALLENGES_MAX, "the oldest went"


def test_a_nonce_that_leaves_the_node_little_to_answer_is_refused(desk: Desk) -> None:
    with pytest.raises(ValueError, match="a nonce has 32 bytes"):
        desk.challenges.challenge(b"")


def test_a_proof_of_one_side_is_none_of_the_other() -> None:
    assert node_proof(SECRET, NONCE, NONCE) != caller_proof(SECRET, NONCE, NONCE, "")

"""How a leader finds where a follower's log agrees with its own, and what an answer tells it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.raft.log import RaftLog
from cluster.raft.messages import Entry, EntryKind, Snapshot
from cluster.raft.progress import MAX_IN_FLIGHT_REQUESTS, Progress, ProgressState


def log_of(*terms: int) -> RaftLog:
    entries = [Entry(index, term, EntryKind.COMMAND) for index, term in enumerate(terms, 1)]
    return RaftLog(Snapshot(0, 0, ()), entries)


@pytest.mark.parametrize(
    ("leader", "follower", "refused", "agreed"),
    [
        ((1, 1, 4, 4, 4), (1, 1), 5, 2),  # too short: behind its end nothing can agree
        (
            (1, 1, 2, 2, 4, 4),
            (1, 1, 2, 2, 2, 2),
            6,
            4,
        ),  # longer in a term that both have: where ours of it ends
        ((1, 1, 4, 4), (1, 1, 3, 3), 4, 2),  # a term that the leader never had: before it
        ((1, 1, 1, 4), (1, 2, 2, 2), 4, 3),  # a higher term than ours there: at our last entry of a lower one
    ],
)
def test_a_refusal_tells_the_leader_the_highest_index_that_may_agree(
    leader: tuple[int, ...], follower: tuple[int, ...], refused: int, agreed: int
) -> None:
    conflict = log_of(*follower).conflict_at(refused)
    assert log_of(*leader).possible_agreement(refused, *conflict) == agreed


@pytest.mark.parametrize(("max_bytes", "taken"), [(30, 3), (29, 2), (20, 2), (19, 1), (10, 1), (9, 1)])
def test_a_request_carries_as_many_entries_as_fit_and_one_at_least(max_bytes: int, taken: int) -> None:
    log = RaftLog(Snapshot(0, 0, ()), [Entry(index, 1, EntryKind.COMMAND, bytes(10)) for index in range(1, 4)])
    assert len(log.slice(1, 4, max_bytes)) == taken


def test_an_answer_that_is_repeated_is_no_news() -> None:
    progress = Progress(next_index=4, now_ms=0)
    assert progress.note_accepted(3)
    assert not progress.note_accepted(3)
    assert not progress.note_accepted(2)
    assert progress.match == 3


def test_what_a_follower_has_is_not_sent_to_it_again() -> None:
    """An old answer may say more than the probe that is under way asked for."""
    progress = Progress(next_index=4, now_ms=0)
    progress.note_accepted(7)
    progress.check_invariants()
    assert progress.state is ProgressState.PROBE
    assert progress.next == 8


def test_a_probe_begins_behind_what_the_follower_is_known_to_have() -> None:
    """Whatever an old refusal says."""
    progress = Progress(next_index=4, now_ms=0)
    progress.note_accepted(7)
    progress.become_probe(3)
    progress.check_invariants()
    assert progress.next == 8
    progress.become_probe(9)
    assert progress.next == 9


def test_who_begins_to_stream_sends_everything_the_follower_is_not_known_to_have() -> None:
    progress = Progress(next_index=9, now_ms=0)
    progress.note_accepted(5)
    assert progress.next == 9
    progress.become_replicate()
    assert progress.next == 6


@pytest.mark.parametrize(
    "leave", [lambda progress: progress.become_probe(1), lambda progress: progress.become_snapshot(5)]
)
def test_what_was_on_its_way_before_does_not_hold_up_who_streams_again(leave: Callable[[Progress], None]) -> None:
    progress = Progress(next_index=1, now_ms=0)
    progress.become_replicate()
    paused = []
    for index in range(1, MAX_IN_FLIGHT_REQUESTS + 1):
        paused.append(progress.is_paused)
        progress.note_sent(index)
    paused.append(progress.is_paused)
    assert paused == [False] * MAX_IN_FLIGHT_REQUESTS + [True]
    leave(progress)
    progress.become_replicate()
    assert (progress.is_paused, len(progress.in_flight)) == (False, 0)
    progress.check_invariants()

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
        ((1, 1, 4, 4), (1, 1, 1, 1), 4, 2),  # the first term of all, longer: where ours of it ends
        ((1, 1, 2), (1, 1, 3), 3, 2),  # a higher term than ours in that very place: before it
    ],
)
def test_a_refusal_tells_the_leader_the_highest_index_that_may_agree(
    leader: tuple[int, ...], follower: tuple[int, ...], refused: int, agreed: int
) -> None:
    conflict = log_of(*follower).conflict_at(refused)
    assert log_of(*leader).possible_agreement(refused, *conflict) == agreed


@pytest.mark.parametrize(
    ("index", "conflict"), [(1, (1, 1)), (2, (1, 1)), (3, (3, 3)), (5, (3, 3)), (6, (6, 0)), (9, (6, 0))]
)
def test_a_refusal_says_where_the_term_begins_that_is_there_or_where_the_log_ends(
    index: int, conflict: tuple[int, int]
) -> None:
    assert log_of(1, 1, 3, 3, 3).conflict_at(index) == conflict


def compacted_log() -> RaftLog:
    """Up to entry 3, and two of the same term behind it."""
    return RaftLog(Snapshot(3, 2, ()), [Entry(index, 2, EntryKind.COMMAND, b"x") for index in range(4, 6)])


def test_of_a_term_that_began_in_what_is_compacted_the_first_entry_is_named_that_is_there() -> None:
    assert compacted_log().conflict_at(5) == (4, 2)


def test_a_follower_whose_log_ends_in_what_is_compacted_agrees_there_at_the_most() -> None:
    """So it gets the snapshot at once."""
    assert compacted_log().possible_agreement(5, 2, 0) == 1


def test_a_slice_ends_before_its_end() -> None:
    assert [entry.index for entry in compacted_log().slice(4, 5, 100)] == [4]
    assert [entry.index for entry in compacted_log().slice(4, 6, 100)] == [4, 5]
    assert compacted_log().slice(6, 4, 100) == ()
    assert [entry.index for entry in log_of(1, 1, 1).slice(2, 3, 100)] == [2]


def test_what_is_appended_behind_a_write_that_is_under_way_does_not_take_its_confirmation_away() -> None:
    """Only what cuts something off does."""
    log = log_of(1)
    log.merge([Entry(2, 1, EntryKind.COMMAND)], next_ready=1)
    log.take_unwritten()
    log.merge([Entry(3, 1, EntryKind.COMMAND)], next_ready=2)
    log.take_unwritten()
    log.note_stable(2, 1)
    assert log.stable == 2
    log.check_invariants()


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


def test_an_answer_to_a_request_makes_room_for_another() -> None:
    """And one to a later request for all before it, too."""
    progress = Progress(next_index=4, now_ms=0)
    progress.become_replicate()
    for index in (4, 6, 7, 9):
        progress.note_sent(index)
    progress.note_accepted(4)
    assert list(progress.in_flight) == [6, 7, 9]
    progress.note_accepted(8)
    assert list(progress.in_flight) == [9]
    assert progress.next == 10


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


def test_the_kinds_of_entries_keep_their_numbers() -> None:
    """They are on disk."""
    assert [(kind.name, kind.value) for kind in EntryKind] == [
        ("NOOP", 0),
        ("COMMAND", 1),
        ("ADD_VOTER", 2),
        ("REMOVE_VOTER", 3),
    ]


def test_a_write_from_before_a_snapshot_that_was_received_makes_nothing_behind_it_durable() -> None:
    log = log_of(1)
    log.merge([Entry(2, 1, EntryKind.COMMAND), Entry(3, 1, EntryKind.COMMAND)], next_ready=1)
    log.take_unwritten()
    log.reset_to(Snapshot(2, 2, ()), next_ready=2)
    log.merge([Entry(3, 2, EntryKind.COMMAND)], next_ready=2)
    log.take_unwritten()
    log.note_stable(3, 1)
    assert log.stable == 2, "that was the entry of term 1"
    log.note_stable(3, 2)
    assert log.stable == 3


@pytest.mark.parametrize(("proven_until_ms", "stamp_ms"), [(299, 0), (300, 77), (301, 77)])
def test_a_stamp_is_good_from_the_moment_at_which_it_was_heard(proven_until_ms: int, stamp_ms: int) -> None:
    progress = Progress(next_index=1, now_ms=0)
    progress.note_stamps(300, stamp_ms=77, echo_ms=1)
    progress.note_leading(proven_until_ms)
    assert progress.stamp_ms == stamp_ms


def test_what_is_in_the_snapshot_is_in_the_log_no_more_when_it_is_read() -> None:
    """The file has it still, for slow followers."""
    for first in (1, 2, 3):
        log = RaftLog(Snapshot(2, 1, ()), [Entry(index, 1, EntryKind.COMMAND) for index in range(first, 5)])
        assert (log.last_index, [entry.index for entry in log.slice(3, 5, 100)]) == (4, [3, 4])
        log.check_invariants()

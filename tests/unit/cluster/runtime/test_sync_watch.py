"""When a sync of the log counts as hanging, and what this node does then."""

from __future__ import annotations

import logging

import pytest

from cluster.raft.core import founding_state
from cluster.raft.messages import HeartbeatResponse, PreVoteRequest, TimeoutNow
from cluster.runtime.sync_watch import HANGING_SNAPSHOT_MS, SyncWatch
from tests.support.raft_core import N1, N2, N3, drain, make_core, make_leader, of_type

HANGING_MS = 10_000


class Bench:
    """n1 leads n2 and n3, which answer; a sync of its begins at 5000."""

    def __init__(self) -> None:
        self.core = make_leader(make_core())
        self.watch = SyncWatch(self.core, HANGING_MS)
        self.watch.began(5000)

    def leads(self) -> bool:
        return self.core.is_leader

    def heard(self, now_ms: int) -> None:
        for peer in (N2, N3):
            self.core.step(now_ms, HeartbeatResponse(peer, N1, self.core.term, 0, 0))
        drain(self.core)

    def look(self, now_ms: int) -> bool:
        self.heard(now_ms)
        return self.watch.look(now_ms) is not None


def test_a_sync_that_takes_long_hands_the_lead_over(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.INFO):
        assert not bench.look(5000 + HANGING_MS - 1)
        assert not bench.look(5000 + HANGING_MS)
        assert bench.leads()
        assert bench.look(5001 + HANGING_MS)
        assert bench.watch.look(5100 + HANGING_MS)
    assert not bench.leads()
    assert [message.receiver for message in of_type(drain(bench.core), TimeoutNow)] == [N2]
    assert caplog.text.count("the disk hangs") == 1
    with caplog.at_level(logging.INFO):
        bench.watch.ended()
        bench.watch.ended()
    assert caplog.text.count("may lead the cluster again") == 1


def test_it_stands_when_the_sync_has_ended_and_not_before() -> None:
    bench = Bench()
    for now_ms in (HANGING_MS + 5000, HANGING_MS + 5100):
        bench.look(now_ms)
    drain(bench.core)
    bench.core.tick(HANGING_MS + 10_000)
    bench.core.step(HANGING_MS + 10_000, TimeoutNow(N2, N1, bench.core.term))
    assert drain(bench.core) == []
    bench.watch.ended()
    bench.core.tick(HANGING_MS + 20_000)
    assert of_type(drain(bench.core), PreVoteRequest)


def test_a_node_that_was_frozen_hears_of_the_end_of_its_sync_before_it_says_that_it_hangs() -> None:
    bench = Bench()
    assert not bench.look(5000 + 10 * HANGING_MS)
    bench.watch.ended()
    assert not bench.look(5001 + 10 * HANGING_MS)
    bench.watch.began(5002 + 10 * HANGING_MS)
    assert not bench.look(5003 + 10 * HANGING_MS)
    assert bench.leads()


def test_a_group_of_one_is_led_by_whom_it_has() -> None:
    core = make_core(state=founding_state([N1]))
    core.tick(5000)
    drain(core)
    watch = SyncWatch(core, HANGING_MS)
    watch.began(5000)
    watch.look(5000 + HANGING_MS)
    assert watch.look(5001 + HANGING_MS) is not None
    assert core.is_leader


def test_who_has_not_heard_a_majority_of_others_leads_on() -> None:
    bench = Bench()
    bench.look(5000 + HANGING_MS)
    bench.core.peer_down(5001 + HANGING_MS, N3)
    assert bench.watch.look(5001 + HANGING_MS) is not None
    assert bench.leads()
    bench.look(5100 + HANGING_MS)
    assert not bench.leads()


def test_a_sync_that_waits_behind_a_snapshot_does_not_hang_before_that_does() -> None:
    """All nodes write theirs at about the same time: if none of them may lead, all clients are sent away."""
    bench = Bench()
    since_ms = 4000
    for now_ms in range(5000, since_ms + HANGING_SNAPSHOT_MS, 1000):
        bench.heard(now_ms)
        assert bench.watch.look(now_ms, since_ms) is None
    assert bench.leads()
    for later_ms, hangs in ((HANGING_MS - 1001, False), (HANGING_MS, False), (HANGING_MS + 1, True)):
        now_ms = since_ms + HANGING_SNAPSHOT_MS + later_ms
        bench.heard(now_ms)
        assert (bench.watch.look(now_ms, since_ms) is not None) == hangs
    assert not bench.leads()


def test_the_time_of_a_sync_begins_when_the_snapshot_is_written() -> None:
    bench = Bench()
    bench.watch.look(5000 + 3 * HANGING_MS, 5000)
    assert not bench.look(4999 + 4 * HANGING_MS)
    assert not bench.look(5000 + 4 * HANGING_MS)
    assert bench.look(5001 + 4 * HANGING_MS)
    assert bench.watch.look(5002 + 4 * HANGING_MS, 5002 + 4 * HANGING_MS), "what hangs, hangs until it has ended"


def test_a_sync_for_which_a_snapshot_has_to_wait_hangs_all_the_same() -> None:
    """The worker does one thing after the other: what is given to it while the disk hangs is not what that sync waits
    for."""
    bench = Bench()
    for now_ms, hangs in ((5000 + HANGING_MS, False), (5001 + HANGING_MS, True)):
        bench.heard(now_ms)
        assert (bench.watch.look(now_ms, 6000) is not None) == hangs
    assert not bench.leads()

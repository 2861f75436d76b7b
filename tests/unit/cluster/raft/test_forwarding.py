"""What a follower forwards comes in time or not at all: whoever was told that nobody knows may have done otherwise."""

from __future__ import annotations

from random import Random

import pytest

from cluster.raft.config import ProposalRefusedError, RaftConfig
from cluster.raft.core import RaftCore, founding_state
from cluster.raft.messages import AppendRequest, EntryKind, ForwardedProposal, Heartbeat
from cluster.runtime.driver_config import DriverConfig
from tests.support.raft_core import N1, N2, TRIO, drain, make_core, make_leader, of_type
from tests.support.raft_network import RaftNetwork

NAMES = ["n1", "n2", "n3"]
ELECTION_TIMEOUT_MS = RaftConfig(N1).election_timeout_min_ms
#: As `cluster.runtime.raft_driver` repeats.
RETRY_MS = DriverConfig().retry_interval_ms
#: As old as a node may be and serve.
PAUSE_AFTER_MS = DriverConfig().quorum_grace_ms + ELECTION_TIMEOUT_MS


def commands(core: RaftCore) -> list[bytes]:
    entries = core.log.slice(core.log.base_index + 1, core.log.last_index + 1, 1 << 20)
    return [entry.payload for entry in entries if entry.kind is EntryKind.COMMAND]


def forwarded(core: RaftCore, now_ms: int) -> ForwardedProposal:
    core.propose(now_ms, [b"x"])
    (message,) = of_type(drain(core), ForwardedProposal)
    return message


# --- the leader


@pytest.mark.parametrize(
    ("as_of_ms", "is_taken"), [(6000, True), (4000, True), (3000, True), (2999, False), (-500, False), (6002, False)]
)
def test_a_leader_takes_what_is_as_old_as_it_may_be_and_of_its_own_clock(as_of_ms: int, is_taken: bool) -> None:
    core = make_leader(make_core())
    core.step(6000, ForwardedProposal(N2, N1, (b"x",), as_of_ms))
    assert commands(core) == [b"x"] * is_taken


def test_a_leader_takes_what_a_release_of_before_forwards() -> None:
    """It does not say of when that is."""
    core = make_leader(make_core())
    core.step(60_000, ForwardedProposal(N2, N1, (b"x",)))
    assert commands(core) == [b"x"]


# --- the follower


def test_a_proposal_is_of_the_heartbeat_that_brought_the_latest_proof() -> None:
    """However long ago that came, and whatever else was heard since."""
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 2, 0, 0, 70_000, 0))
    core.step(110, Heartbeat(N2, N1, 2, 0, 3, 70_100, 0))
    assert forwarded(core, 120).as_of_ms == 70_000, "of the first of the leader, until there is one"
    core.step(210, Heartbeat(N2, N1, 2, 0, 3, 70_200, 111))
    core.step(310, Heartbeat(N2, N1, 2, 0, 3, 70_300, 111))
    assert forwarded(core, 900).as_of_ms == 70_200
    core.step(910, Heartbeat(N2, N1, 2, 0, 3, 70_900, 311))
    assert forwarded(core, 910).as_of_ms == 70_900


def test_the_first_word_of_a_leader_is_taken_for_as_much_older_as_the_latest_proof_is_too_old() -> None:
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 2, 0, 3, 70_000, 0))
    core.step(2000, Heartbeat(N2, N1, 2, 0, 3, 72_000, 1501))
    core.step(3900, Heartbeat(N2, N1, 3, 0, 0, 73_900, 0))
    assert forwarded(core, 3900).as_of_ms == 73_900 - (3900 - 1500 - ELECTION_TIMEOUT_MS)
    core.step(4100, Heartbeat(N2, N1, 3, 0, 4, 74_100, 3901))
    assert forwarded(core, 4100).as_of_ms == 74_100


def test_what_a_leader_has_heard_of_the_life_before_is_no_proof() -> None:
    core = RaftCore(RaftConfig(N1), founding_state(TRIO), Random(1), now_ms=5000)
    core.step(5100, Heartbeat(N2, N1, 2, 0, 3, 70_000, 4000))
    core.step(5200, Heartbeat(N2, N1, 2, 0, 3, 70_100, 4100))
    assert forwarded(core, 5200).as_of_ms == 70_000


def test_to_a_leader_of_a_release_without_stamps_nothing_is_said() -> None:
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 2, 0, 0, 0, 0))
    assert forwarded(core, 20).as_of_ms is None


def test_nothing_is_forwarded_to_a_leader_before_its_first_heartbeat() -> None:
    """It comes with the news that it leads, unless it is lost; what says no time would be taken at any."""
    core = make_core()
    core.step(10, Heartbeat(N2, N1, 1, 0, 3, 70_000, 0))
    core.step(20, AppendRequest(N2, N1, 2, 3, 1, (), 0))
    assert core.leader == N2
    with pytest.raises(ProposalRefusedError, match="has yet to be heard"):
        core.propose(30, [b"x"])


# --- together


class Client:
    """Has a word of its own forwarded by a follower, again and again, until that node gives up."""

    def __init__(self, network: RaftNetwork, name: str, word: bytes) -> None:
        self.network, self.name, self.word = network, name, word
        self.gave_up_ms: int | None = None

    def run(self, duration_ms: int) -> None:
        end_ms = self.network.now_ms + duration_ms
        while self.network.now_ms < end_ms:
            if self.network.now_ms % RETRY_MS == 0 and self.gave_up_ms is None and not self.is_done:
                self.network.propose(self.name, self.word)
            self.network.run(10)
            core, node = self.network.core(self.name), self.network.nodes[self.name]
            if self.network.now_ms - core.currency.as_of_ms(node.applied_index) >= PAUSE_AFTER_MS and not self.is_done:
                self.gave_up_ms = self.gave_up_ms or self.network.now_ms

    @property
    def is_done(self) -> bool:
        return self.word in self.network.applied(self.name)


def at_work(seed: int = 1) -> tuple[RaftNetwork, str, str]:
    """The leader and a follower, at a round time."""
    network = RaftNetwork(NAMES, seed)
    leader = network.elect()
    network.run(2000 - network.now_ms % 1000)
    return network, leader, next(name for name in NAMES if name != leader)


@pytest.mark.parametrize("held_ms", [4200, 5000, 6500, 30_000])
def test_no_copy_comes_after_its_node_gave_up_over_a_line_that_held_all_of_them(held_ms: int) -> None:
    """The follower hears its leader all the time; the latest copy was sent a moment before it gave up."""
    network, leader, follower = at_work()
    network.hold(follower, leader)
    client = Client(network, follower, b"late")
    client.run(held_ms)
    assert client.gave_up_ms is not None
    network.let_go(follower, leader)
    network.run(5000)
    assert network.leader() == leader
    assert b"late" not in network.appended_ms
    again = Client(network, follower, b"again")
    again.run(1000)
    assert again.is_done


def test_of_copies_that_a_line_held_for_a_while_those_that_are_not_too_late_are_taken() -> None:
    network, leader, follower = at_work()
    network.hold(follower, leader)
    client = Client(network, follower, b"x")
    client.run(2000)
    network.let_go(follower, leader)
    client.run(100)
    assert client.is_done


def test_what_a_frozen_leader_finds_in_its_socket_is_too_late() -> None:
    """It believes to lead until it has looked at the clock; what it took then would be in its log, and might be
    decided if it is elected again."""
    network, leader, follower = at_work()
    client = Client(network, follower, b"late")
    network.propose(follower, client.word)
    (message,) = [each for each in network.sent if isinstance(each, ForwardedProposal)]
    core = network.core(leader)
    core.step(network.now_ms + 6000, message)
    assert core.is_leader
    assert b"late" not in commands(core)


@pytest.mark.parametrize("one_way_ms", [300, 1000])
@pytest.mark.parametrize("is_one_line", [True, False])
def test_proposals_get_through_where_links_take_a_second_each_way(one_way_ms: int, is_one_line: bool) -> None:
    network, leader, follower = at_work()
    links = [(a, b) for a in NAMES for b in NAMES if not is_one_line or {a, b} == {leader, follower}]
    for slow_ms in range(100, one_way_ms + 1, 100):  # all at once would be a silence in which the leader steps down
        network.slow_ms = dict.fromkeys(links, slow_ms)
        network.run(1000)
    network.run(10_000)
    for number in range(5):
        client = Client(network, follower, b"%d" % number)
        for _ in range(100):
            if not client.is_done:
                client.gave_up_ms = None  # where every link is so slow a node is too old to serve, and pauses
                client.run(100)
        assert client.is_done
    assert network.leader() == leader


@pytest.mark.parametrize("seed", range(5))
def test_after_an_election_proposals_get_through_at_once(seed: int) -> None:
    """What the new leader says first may be its no-op here, as links change the order."""
    network, leader, _ = at_work(seed)
    network.crash(leader)
    network.run_until(lambda: network.leader() is not None)
    follower = next(name for name in NAMES if name not in (leader, network.leader()))
    network.run_until(lambda: network.propose(follower, b"x"), 20)
    network.run(50)
    assert b"x" in network.applied(follower)

"""A node that is not current enough serves no clients, and says why."""

from __future__ import annotations

import pytest

from cluster.runtime.pause_notice import PauseNotice
from cluster.runtime.standing import Hindrance, Pause, StandingWatch
from node.errors import DiskFullError
from node.ids import NodeName
from tests.support.raft_network import RaftNetwork

NAMES = ["n1", "n2", "n3"]
PAUSE_AFTER_MS = 4000


class Bench:
    """Three nodes, and what each thinks of its standing, looked at every 50 ms."""

    def __init__(self, names: list[str] = NAMES, pause_after_ms: int = PAUSE_AFTER_MS) -> None:
        self.network = RaftNetwork(names)
        self.watches = {
            name: StandingWatch(self.network.core(name), pause_after_ms, self.network.now_ms) for name in names
        }
        self.leader = self.network.elect()
        #: Of the disk of each node.
        self.refused: dict[str, DiskFullError] = {}
        self.run(1000)

    def run(self, duration_ms: int) -> None:
        for _ in range(duration_ms // 50):
            self.network.run(50)
            for name, watch in self.watches.items():
                watch.look(self.network.now_ms, self.network.nodes[name].applied_index, self.refused.get(name))
                watch.check_invariants()

    def pause(self, name: str) -> Pause | None:
        return self.watches[name].pause

    def hindrance(self, name: str) -> Hindrance | None:
        pause = self.pause(name)
        return None if pause is None else pause.hindrance

    @property
    def followers(self) -> list[str]:
        return [name for name in self.network.nodes if name != self.leader]


#: Of a node with the least `cluster.silence_timeout_ms` that the configuration accepts for these elections.
LEAST_PAUSE_AFTER_MS = 2400


@pytest.mark.parametrize("pause_after_ms", [PAUSE_AFTER_MS, LEAST_PAUSE_AFTER_MS])
def test_an_election_is_no_reason_to_pause(pause_after_ms: int) -> None:
    bench = Bench(pause_after_ms=pause_after_ms)
    bench.network.crash(bench.leader)
    for name in bench.followers:
        bench.watches[bench.leader] = bench.watches[name]  # what is dead is not looked at
    bench.run(6000)
    assert bench.network.leader() is not None
    assert [bench.pause(name) for name in bench.followers] == [None, None]


@pytest.mark.parametrize("is_leader", [True, False])
def test_who_is_cut_off_pauses_before_the_others_stop_waiting_for_it(is_leader: bool) -> None:
    bench = Bench()
    outsider = bench.leader if is_leader else bench.followers[0]
    rest = [name for name in NAMES if name != outsider]
    cut_ms = bench.network.now_ms
    bench.network.partition([outsider], rest)
    bench.run(PAUSE_AFTER_MS - 1000)
    assert bench.pause(outsider) is None
    bench.run(1500)
    pause = bench.pause(outsider)
    assert pause is not None
    assert pause.hindrance is Hindrance.NO_QUORUM
    assert pause.since_ms <= cut_ms + PAUSE_AFTER_MS + 50
    assert [bench.pause(name) for name in rest] == [None, None]
    bench.network.heal()
    bench.run(3000)
    assert bench.pause(outsider) is None


def test_who_hears_the_leader_and_cannot_write_what_it_says_pauses_too() -> None:
    bench = Bench()
    slow = bench.followers[0]
    bench.network.nodes[slow].disk_delay_max_ms = 20_000
    bench.network.propose(bench.leader, b"declared elsewhere")
    committed_ms = bench.network.now_ms
    bench.run(PAUSE_AFTER_MS + 200)
    assert bench.network.core(slow).has_quorum(bench.network.now_ms)
    pause = bench.pause(slow)
    assert pause is not None
    assert pause.hindrance is Hindrance.BEHIND
    assert pause.since_ms <= committed_ms + PAUSE_AFTER_MS + 100
    assert "entry 5 is committed" in pause.reason
    bench.network.nodes[slow].disk_delay_max_ms = 0
    bench.run(20_000)
    assert bench.pause(slow) is None, "it has caught up"


def test_a_slow_disk_without_anything_to_write_is_no_reason() -> None:
    bench = Bench()
    bench.network.nodes[bench.followers[0]].disk_delay_max_ms = 1_000_000
    bench.run(10_000)
    assert bench.pause(bench.followers[0]) is None


def test_a_disk_that_refuses_the_log_is_named_and_not_forgiven_before_it_takes_it() -> None:
    bench = Bench()
    full = bench.followers[0]
    bench.refused[full] = DiskFullError("no space left")
    bench.network.partition([full], [name for name in NAMES if name != full])  # it answers nobody meanwhile
    bench.run(5000)
    assert bench.hindrance(full) is Hindrance.STORAGE
    assert "no space left" in (bench.pause(full) or Pause(Hindrance.BEHIND, "", 0)).reason
    bench.network.heal()
    bench.run(3000)
    assert bench.pause(full) is not None
    bench.refused.clear()
    bench.run(3000)
    assert bench.pause(full) is None


def test_the_reason_may_change_and_the_beginning_stays() -> None:
    bench = Bench()
    outsider = bench.followers[0]
    bench.network.partition([outsider], [name for name in NAMES if name != outsider])
    bench.run(5000)
    first = bench.pause(outsider)
    bench.refused[outsider] = DiskFullError("no space left")
    bench.run(500)
    second = bench.pause(outsider)
    assert first is not None
    assert second is not None
    assert (first.hindrance, second.hindrance) == (Hindrance.NO_QUORUM, Hindrance.STORAGE)
    assert first.since_ms == second.since_ms


def test_a_node_that_knows_a_majority_to_be_gone_waits_for_nothing() -> None:
    bench = Bench()
    last = bench.followers[0]
    watch = bench.watches[last]
    bench.run(50)
    watch.peer_gone(NodeName(bench.leader))
    bench.run(50)
    assert watch.pause is None
    watch.peer_gone(NodeName(bench.followers[1]))
    bench.run(50)
    assert bench.hindrance(last) is Hindrance.NO_QUORUM
    watch.peer_heard(NodeName(bench.leader))
    bench.run(100)
    assert watch.pause is None


def test_a_node_alone_never_pauses_not_even_when_its_disk_is_full() -> None:
    bench = Bench(["n1"])
    bench.refused["n1"] = DiskFullError("no space left")
    bench.run(20_000)
    assert bench.pause("n1") is None


def test_a_node_that_stood_still_knows_before_the_next_look() -> None:
    bench = Bench()
    frozen = bench.followers[0]
    watch, applied_index = bench.watches[frozen], bench.network.nodes[frozen].applied_index
    now_ms = bench.network.now_ms
    assert not watch.is_stale(now_ms, applied_index)
    assert watch.is_stale(now_ms + PAUSE_AFTER_MS, applied_index)


def test_a_process_that_is_gone_and_no_voter_costs_no_looks() -> None:
    """It was forgotten, and nobody will hear of it again."""
    bench = Bench()
    watch, applied_index = bench.watches["n1"], bench.network.nodes["n1"].applied_index
    watch.peer_gone(NodeName("forgotten"))
    assert watch.next_look_ms(applied_index) > bench.network.now_ms
    watch.peer_gone(NodeName("n2"))
    assert watch.next_look_ms(applied_index) == 0


class OnNotice:
    """A follower that tells another of its pauses; its disk is full, and it has paused."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        self.full, self.peer = (NodeName(name) for name in bench.followers)
        self.notice = PauseNotice(PAUSE_AFTER_MS)
        core, now_ms = bench.network.core(self.full), bench.network.now_ms
        #: By what it has applied.
        self.is_declared_down = False
        bench.watches[self.full] = StandingWatch(
            core, PAUSE_AFTER_MS, now_ms, self.notice, lambda: self.is_declared_down
        )
        self.notice.link_up(self.peer)
        self.others = [name for name in NAMES if name != self.full]
        self.fill_disk()

    def fill_disk(self) -> None:
        self.bench.refused[self.full] = DiskFullError("no space left")
        self.bench.network.partition([self.full], self.others)  # it answers nobody meanwhile
        self.bench.run(PAUSE_AFTER_MS + 500)

    def make_room(self) -> None:
        self.bench.refused.clear()
        self.bench.network.heal()
        self.bench.run(3000)

    def answer(self) -> None:
        self.notice.heard(self.peer, self.notice.standing)

    def serves(self) -> bool:
        return self.bench.pause(self.full) is None

    def says(self) -> str:
        return "paused" if self.notice.is_given else "serves"


def test_who_has_paused_says_so_and_serves_again_when_all_know() -> None:
    node = OnNotice()
    assert not node.serves()
    assert node.says() == "paused"
    node.answer()
    node.make_room()
    assert node.says() == "serves"
    assert not node.serves(), "it has not heard whether its peer waits for it again"
    assert f"has yet to hear that {node.peer} knows" in (node.bench.pause(node.full) or ("", ""))[1]
    node.answer()
    node.bench.run(500)
    assert node.serves()


def test_what_was_done_before_all_knew_is_applied_before_it_serves() -> None:
    node = OnNotice()
    node.answer()
    node.make_room()
    network = node.bench.network
    network.partition([node.full], node.others)
    network.propose(node.bench.leader, b"answered without waiting for it")
    node.answer()
    node.bench.run(1000)
    assert not node.serves(), "what it knows of the group is older than the answer of its peer"
    network.heal()
    node.bench.run(500)
    assert node.serves()
    assert network.nodes[node.full].applied_index == network.nodes[node.bench.leader].applied_index


def test_who_was_declared_down_serves_when_it_is_up_in_the_records_again() -> None:
    """Before that nobody waits for it: a queue that is declared meanwhile may be unknown here, and what is published to
    it would be unroutable, and confirmed."""
    node = OnNotice()
    node.answer()
    node.is_declared_down = True
    node.make_room()
    node.answer()
    node.bench.run(1000)
    assert not node.serves()
    assert "the cluster has it as down" in (node.bench.pause(node.full) or ("", ""))[1]
    node.is_declared_down = False
    node.bench.run(100)
    assert node.serves()


def test_a_disk_that_is_full_again_takes_the_word_back() -> None:
    node = OnNotice()
    node.answer()
    node.make_room()
    first = node.notice.standing
    node.fill_disk()
    assert node.says() == "paused"
    node.notice.heard(node.peer, first)
    node.make_room()
    assert not node.serves(), "that was an answer to what it said before"
    node.answer()
    node.bench.run(500)
    assert node.serves()


def test_without_notice_a_node_returns_as_soon_as_it_is_current() -> None:
    node = OnNotice()
    core = node.bench.network.core(node.full)
    node.bench.watches[node.full] = StandingWatch(core, PAUSE_AFTER_MS, node.bench.network.now_ms - PAUSE_AFTER_MS)
    node.bench.run(100)
    assert not node.serves()
    node.make_room()
    assert node.serves()

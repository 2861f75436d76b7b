"""A queue set and the mesh: links that break, masters that are ahead of this node, mirrors that cannot be reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

import node.queues.digests
import node.queues.local_replica
from cluster.mirroring.reports import ReportFollows, ReportMirrorStalled
from cluster.mirroring.settings import MIRROR_UNREACHABLE_MS
from node.ids import ChannelKey
from node.pieces import at_once
from tests.support.queue_sets import N1, N2, OTHER, Q, QueueSetNetwork, QueueSetNode, mastership, pair, queue_record
from tests.support.sizes import reachable_sizes


def test_an_attach_that_comes_before_the_record_waits_for_it() -> None:
    network = QueueSetNetwork(N1, N2)
    network[N1].queues.follow(Q, mastership(Q, N1, N2))
    network[N1].publish(Q, 1)
    network.pump()
    assert network[N1].confirmed() == []
    network[N2].queues.follow(Q, mastership(Q, N1, N2))
    network.pump()
    assert network[N1].confirmed() == [1]
    assert network[N2].depth(Q) == 1


def test_a_master_that_is_ahead_in_the_log_is_heard_by_the_part_that_the_log_will_give() -> None:
    """It has dropped this mirror and taken it back, which this node has yet to learn: its copy will be closed first."""
    network = pair()
    network[N1].publish(Q, 1, persistent=False)
    network.pump()
    out, back = mastership(Q, N1), replace(mastership(Q, N1, N2, synchronised=()), following=())
    network[N1].applied_index = 3
    for record in (out, back):
        network[N1].queues.follow(Q, record)
    at_once(network[N1].queues.policy_changed())
    network.pump()
    assert not network[N1].reports, "what it answered now would be said of a copy that ends"
    network[N2].applied_index = 2
    network[N2].queues.follow(Q, out)
    network[N2].applied_index = 3
    network[N2].queues.follow(Q, back)
    network[N2].queues.log_applied()
    network.pump()
    assert network[N2].depth(Q) == 0, "its memory is lost"
    assert [report for _, report in network[N1].reports] == [ReportFollows(N2)], "and its master knows"


def test_a_master_that_is_ahead_by_what_does_not_concern_its_mirror_waits_only_for_the_log() -> None:
    network = pair()
    network[N1].applied_index = 9
    network[N1].queues.link_down(N2)
    network[N2].queues.link_down(N1)
    network[N1].queues.link_up(N2)
    network[N1].publish(Q, 1)
    network.pump()
    assert network[N1].confirmed() == []
    network[N2].applied_index = 9
    network[N2].queues.log_applied()
    network.pump()
    assert network[N1].confirmed() == [1]


def test_what_came_early_over_a_link_that_broke_is_forgotten() -> None:
    network = QueueSetNetwork(N1, N2)
    network[N1].queues.follow(Q, mastership(Q, N1, N2))
    network.pump()
    network[N2].queues.link_down(N1)
    network[N2].queues.follow(Q, mastership(Q, N1, N2))
    network[N2].turn()
    assert not network.wires.get((N2, N1)), "it answers no conversation that is over"


def test_a_broken_link_holds_confirms_until_it_is_back() -> None:
    network = pair()
    network[N1].queues.link_down(N2)
    network[N2].queues.link_down(N1)
    network[N1].publish(Q, 1)
    network.pump()
    assert network[N1].confirmed() == []
    network[N1].queues.link_up(N2)
    network.pump()
    assert network[N1].confirmed() == [1]


def test_a_broken_link_holds_confirms_no_longer_than_a_comparison_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came since the mirror attached has never been compared. No time passes here."""
    for module in (node.queues.digests, node.queues.local_replica):
        monkeypatch.setattr(module, "DIGEST_SEGMENT_ENTRIES", 4)
    monkeypatch.setattr(node.queues.local_replica, "PREPARED_ENTRIES", 8)
    network = pair()
    network[N1].publish(Q, 1, 60)
    network.pump()
    network[N1].queues.link_down(N2)
    network[N2].queues.link_down(N1)
    network[N1].publish(Q, 61)
    network.pump()
    assert network[N1].confirmed() == list(range(1, 61))
    network[N1].queues.link_up(N2)
    network.pump()
    assert network[N1].confirmed() == list(range(1, 62))


def test_what_waits_for_a_comparison_is_looked_at_when_it_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror takes it when it is drained, and nobody calls it then."""
    for module in (node.queues.digests, node.queues.local_replica):
        monkeypatch.setattr(module, "DIGEST_SEGMENT_ENTRIES", 4)
    network = pair()
    network[N1].publish(Q, 1, 60)
    network.pump()
    for here, there in ((N1, N2), (N2, N1)):
        network[here].queues.link_down(there)
    network[N1].queues.link_up(N2)
    network[N1].turn()
    network[N1].publish(Q, 61)
    network[N1].turn()
    monkeypatch.setattr(node.queues.local_replica, "PREPARED_ENTRIES", 8)
    mirror = network[N2]
    mirror.queues.follow(OTHER, mastership(OTHER, N2))
    mirror.publish(OTHER, 1)
    while wire := network.wires[N1, N2]:
        mirror.queues.receive(N1, wire.popleft())
    mirror.pending.popleft()()
    mirror.sync()  # a round ends before the attach is taken
    mirror.turn()
    assert mirror.depth(Q) == 61
    running = mirror.group_commit.begin()
    assert running is not None, "what has waited is written"
    mirror.queues.check_invariants()
    running.run()
    mirror.group_commit.complete(running)
    mirror.queues.durable_advanced()
    network.pump()
    assert network[N1].confirmed() == list(range(1, 62))


def test_a_mirror_without_a_link_is_reported_when_the_time_is_up() -> None:
    network = pair()
    node = network[N1]
    node.queues.link_down(N2)
    for now_ms in (0, 2000, MIRROR_UNREACHABLE_MS - 1):
        node.queues.tick(now_ms)
        node.turn()
    assert node.reports == []
    node.queues.tick(MIRROR_UNREACHABLE_MS)
    node.turn()
    assert [type(report) for _, report in node.reports] == [ReportMirrorStalled]


def test_time_alone_makes_no_work_for_a_queue_whose_mirrors_are_quiet() -> None:
    network = pair()
    network[N1].queues.tick(100)
    assert not network[N1].pending


def test_a_copy_in_memory_ends_with_its_part_in_the_record_though_its_node_lives() -> None:
    """What the rules of mastership presume (`MetadataState`): a master declared down by mistake comes back empty."""
    queue = queue_record(9, durable=False)
    node = QueueSetNetwork(N1)[N1]
    node.queues.follow(queue, mastership(queue, N1))
    node.publish(queue, 1)
    node.turn()
    node.queues.follow(queue, mastership(queue, N1, is_down=True))
    node.queues.follow(queue, mastership(queue, N1, epoch=2))
    assert node.depth(queue) == 0


def test_what_came_early_is_not_heard_by_a_later_part_than_it_was_meant_for() -> None:
    """It was said to a mirror that was dropped since: its promise of what was not delivered is old."""
    network = QueueSetNetwork(N1, N2)
    network[N1].queues.follow(Q, mastership(Q, N1, N2))
    network.pump()
    for applied_index, record in ((2, mastership(Q, N1)), (3, mastership(Q, N1, N2))):
        network[N2].applied_index = applied_index
        network[N2].queues.follow(Q, record)
    network[N2].turn()
    assert not network.wires.get((N2, N1)), "it answers no conversation that is over"


def waiting_after_an_attach(applied_index: int, *, is_over: bool) -> tuple[QueueSetNode, int]:
    """A node that has applied so much of the log, and plays no role yet when a master attaches that has applied five
    entries; and how many queues have something waiting there. ``is_over``: by what is committed, it is no mirror."""
    network = QueueSetNetwork(N1, N2)
    master, mirror = network[N1], network[N2]
    master.applied_index = 5
    master.queues.follow(Q, mastership(Q, N1, N2))
    master.publish(Q, 1, 3)
    master.turn()
    mirror.applied_index = applied_index
    if is_over:
        mirror.given_up.add(Q.queue_id)
    for message in network.wires[N1, N2]:
        mirror.queues.receive(N1, message)
    return mirror, waiting(mirror)


def waiting(node: QueueSetNode) -> int:
    return reachable_sizes([node.queues], ("cluster", "node"), lambda _name: True)["EarlyMessages._waiting"]


@pytest.mark.parametrize("applied_index", [4, 6])
def test_what_a_master_says_to_a_mirror_that_has_no_role_yet_is_kept_until_it_is_none(applied_index: int) -> None:
    """The queue may be deleted, or the mirror dropped, in entries that this node is given as a snapshot."""
    mirror, kept = waiting_after_an_attach(applied_index, is_over=False)
    assert kept
    mirror.applied_index = 7
    mirror.queues.log_applied()
    assert waiting(mirror), "its role may take a while to begin"
    mirror.given_up.add(Q.queue_id)
    mirror.queues.log_applied()
    assert not waiting(mirror)


def test_what_a_master_says_that_is_ahead_is_kept_whatever_is_known_of_the_queue() -> None:
    mirror, kept = waiting_after_an_attach(4, is_over=True)
    assert kept, "it may be of a queue of which this node is yet to hear"
    mirror.applied_index = 5
    mirror.queues.log_applied()
    assert not waiting(mirror)


def test_what_a_master_says_that_comes_behind_the_end_of_the_mirror_is_not_kept() -> None:
    """Its frames may be slower than the log, and nothing of that conversation will be answered."""
    _, kept = waiting_after_an_attach(6, is_over=True)
    assert not kept


def test_a_queue_with_consumers_on_a_node_whose_link_is_full_goes_on_when_it_has_room() -> None:
    network = pair()
    node = network[N1]
    node.full = {N2}
    node.consume(Q, ChannelKey(N2, 1))
    node.publish(Q, 1, 2)
    network.pump()
    assert list(node.line) == [Q.queue_id]
    assert node.delivered() == []
    node.full = set()
    node.line.pop(Q.queue_id)()
    assert [body for body, _ in node.delivered()] == [b"message 1", b"message 2"], "at once: others wait behind it"
    network.pump()
    assert node.line == {}


def test_a_queue_that_has_gone_while_it_waited_for_room_is_not_missed() -> None:
    network = pair()
    node = network[N1]
    node.full = {N2}
    node.consume(Q, ChannelKey(N2, 1))
    node.publish(Q, 1)
    network.pump()
    node.queues.queue_deleted(Q)
    node.full = set()
    node.line.pop(Q.queue_id)()
    network.pump()
    assert node.delivered() == []

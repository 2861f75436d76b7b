"""What a node is to its queues, record by record, with real storage on simulated disks (`tests.support.queue_sets`)."""

from __future__ import annotations

import pytest

from cluster.metadata.mastership import add_mirror, drop_mirror, node_down, take_service
from cluster.mirroring.master import MirroringSettings
from cluster.mirroring.messages import Attach, AttachRefused, Ops
from cluster.mirroring.reports import ReportFenced, ReportSynchronised
from cluster.runtime.drain_turns import TURN_S
from node.errors import DiskFullError
from node.flow.credit import Credit
from node.ids import Epoch, SeqId
from node.pieces import at_once
from node.queues.events import Deliver, GrantCredit, QueueEffect
from node.queues.options import QueueOptions
from node.queues.queue_process import DISPATCH_MAX, QueueProcess
from node.queues.variable_queue import VariableQueue
from tests.support.queue_sets import (
    CLIENT,
    N1,
    N2,
    OTHER,
    Q,
    QueueSetNetwork,
    QueueSetNode,
    alone,
    mastership,
    pair,
    queue_record,
)

NOWHERE = SeqId(0)


# --- durability ---


def test_a_persistent_message_is_confirmed_when_its_generation_is_on_disk_and_not_before() -> None:
    node = alone()
    node.publish(Q, 1, 2)
    node.turn()
    assert node.confirmed() == []
    node.sync()
    node.turn()
    assert node.confirmed() == [1, 2]


def test_what_is_published_while_a_round_runs_waits_for_the_next_round() -> None:
    node = alone()
    node.publish(Q, 1)
    node.turn()
    running = node.group_commit.begin()
    assert running is not None
    node.publish(Q, 2)
    node.turn()
    running.run()
    node.group_commit.complete(running)
    node.queues.durable_advanced()
    node.turn()
    assert node.confirmed() == [1]
    node.sync()
    node.turn()
    assert node.confirmed() == [1, 2]


def test_a_transient_message_is_confirmed_in_its_turn() -> None:
    node = alone()
    node.publish(Q, 1, persistent=False)
    node.turn()
    assert node.confirmed() == [1]


def test_a_mirrored_message_waits_for_the_disk_of_the_mirror() -> None:
    network = pair()
    network[N1].publish(Q, 1)
    network.pump(synced=False)
    network[N1].sync()
    network.pump(synced=False)
    assert network[N1].confirmed() == []
    network[N2].sync()
    network.pump(synced=False)
    assert network[N1].confirmed() == [1]


# --- roles ---


def test_a_clean_restart_keeps_messages_and_knows_what_was_never_delivered() -> None:
    node = alone()
    node.publish(Q, 1, 2)
    node.turn()
    node.sync()
    node.restart_cleanly()
    node.queues.follow(Q, mastership(Q, N1, epoch=2))
    node.consume(Q)
    node.turn()
    assert node.delivered() == [(b"message 1", False), (b"message 2", False)]


def test_a_promoted_mirror_has_what_was_confirmed_and_flags_what_may_have_been_delivered() -> None:
    network = pair()
    network[N1].publish(Q, 1, 2)
    network[N1].consume(Q)
    network.pump()
    assert network[N1].delivered() == [(b"message 1", False), (b"message 2", False)]

    network[N2].queues.follow(Q, mastership(Q, N2, epoch=2))
    network[N2].consume(Q)
    network[N2].turn()
    assert network[N2].role(Q) == "master"
    assert network[N2].delivered() == [(b"message 1", True), (b"message 2", True)]


def test_a_fenced_master_becomes_a_mirror_of_the_new_one_and_gives_up_what_only_it_has() -> None:
    network = pair()
    network[N1].publish(Q, 1)
    network.pump()
    network[N1].publish(Q, 2)  # nobody else will ever hear of it
    network[N1].turn()
    network.wires.clear()
    network.follow(Q, mastership(Q, N2, N1, epoch=2, synchronised=()))
    network.pump()
    assert network[N1].role(Q) == "mirror"
    assert network[N1].ended == [Q.queue_id]
    assert network[N1].depth(Q) == network[N2].depth(Q) == 1
    network[N2].publish(Q, 3)
    network.pump()
    assert network[N1].depth(Q) == network[N2].depth(Q) == 2


def test_a_master_that_hears_of_a_later_one_stops_before_the_commit_reaches_it() -> None:
    network = pair()
    network[N1].publish(Q, 1)
    network.pump(synced=False)
    network[N2].queues.follow(Q, mastership(Q, N2, N1, epoch=2, synchronised=()))
    network.pump()
    assert [type(report) for _, report in network[N1].reports] == [ReportFenced]
    network[N1].publish(Q, 2)
    network[N1].consume(Q)
    network.pump()
    assert network[N1].confirmed() == []
    assert network[N1].delivered() == []

    network[N1].queues.follow(Q, mastership(Q, N2, N1, epoch=2, synchronised=()))
    network.pump()
    assert network[N1].depth(Q) == network[N2].depth(Q) == 1


@pytest.mark.parametrize(
    "old",
    [
        Attach(Q.queue_id, Epoch(2), 1, 1, NOWHERE, NOWHERE, {}, (), 0, hears_between=True, may_lack_refused=False),
        Ops(Q.queue_id, Epoch(2), 1, 2, ()),
    ],
    ids=["attach", "stream"],
)
def test_a_master_refuses_what_an_earlier_one_says(old: Attach | Ops) -> None:
    network = pair()
    network[N1].queues.follow(Q, mastership(Q, N1, N2, epoch=3))
    network[N1].turn()
    network.wires.clear()
    network[N1].queues.receive(N2, old)
    network[N1].turn()
    sent = [message for message in network.wires[N1, N2] if isinstance(message, AttachRefused)]
    assert [(refusal.epoch, refusal.known_epoch) for refusal in sent] == [(2, 3)]


def test_a_master_that_missed_the_epochs_between_flags_everything_again() -> None:
    """A snapshot may skip the commits in which another node was the master and delivered."""
    network = pair()
    network[N1].publish(Q, 1)
    network.pump()
    network[N1].queues.follow(Q, mastership(Q, N1, N2, epoch=3))
    assert network[N1].ended == [Q.queue_id], "consumers and sessions of the earlier mastership are gone"
    network[N1].consume(Q)
    network[N1].turn()
    assert network[N1].delivered() == [(b"message 1", True)]


def test_a_record_of_an_earlier_epoch_takes_no_role_away() -> None:
    network = pair(mastership(Q, N1, N2, epoch=3))
    network[N1].queues.follow(Q, mastership(Q, N2, N1, epoch=2))
    assert network[N1].role(Q) == "master"


def test_a_mirror_that_the_policy_drops_deletes_its_files() -> None:
    network = pair()
    network[N1].publish(Q, 1)
    network.pump()
    assert network[N2].has_files(Q)
    network[N2].queues.follow(Q, mastership(Q, N1), is_discarded=True)
    assert network[N2].role(Q) == "none"
    assert not network[N2].has_files(Q)


def test_a_mirror_that_was_declared_down_keeps_its_files_and_rejoins_with_them() -> None:
    network = pair()
    network[N1].publish(Q, 1, 3)
    network.pump()
    network[N2].queues.follow(Q, mastership(Q, N1))
    assert network[N2].role(Q) == "none"
    assert network[N2].has_files(Q)
    network[N1].queues.follow(Q, mastership(Q, N1))
    network.follow(Q, mastership(Q, N1, N2, synchronised=()))
    assert network[N2].depth(Q) == 3, "it begins with what it had"
    network.pump()
    assert [report for _, report in network[N1].reports] == [ReportSynchronised(N2)]


def test_a_master_declared_down_serves_nobody_until_it_returns() -> None:
    node = alone()
    node.publish(Q, 1)
    node.turn()
    node.sync()
    node.queues.follow(Q, mastership(Q, N1, is_down=True))
    assert node.role(Q) == "none"
    assert node.ended == [Q.queue_id]
    node.queues.follow(Q, mastership(Q, N1, epoch=2))
    assert node.depth(Q) == 1


def test_a_deleted_queue_leaves_nothing_whether_it_is_open_or_not() -> None:
    network = pair()
    network[N1].publish(Q, 1)
    network.pump()
    network[N2].queues.follow(Q, mastership(Q, N1))  # declared down: files without a role
    for node in network.nodes.values():
        node.queues.queue_deleted(Q)
        assert node.role(Q) == "none"
        assert not node.has_files(Q)


# --- policies ---


def test_a_policy_change_sets_limits_and_begins_to_synchronise() -> None:
    network = QueueSetNetwork(N1, N2)
    network[N1].queues.follow(Q, mastership(Q, N1))
    network[N1].publish(Q, 1, 3)
    network.pump()
    network.follow(Q, mastership(Q, N1, N2, synchronised=()))
    network.pump()
    assert network[N2].depth(Q) == 0
    for node in network.nodes.values():
        node.settings = MirroringSettings(sync_automatically=True)
        node.options = QueueOptions(max_length=2)
        at_once(node.queues.policy_changed())
    network.pump()
    assert network[N1].depth(Q) == network[N2].depth(Q) == 2


def test_mode_and_version_follow_the_policy_on_every_copy() -> None:
    """When the queue is opened, and when the policy changes."""
    network = QueueSetNetwork(N1, N2)
    for node in network.nodes.values():
        node.options = QueueOptions(is_lazy=True, index_version=1)
    network.follow(Q, mastership(Q, N1, N2))
    network.pump()

    def engines() -> list[tuple[object, object]]:
        found = [node.queues.roles[Q.queue_id].local.backing_queue_status() for node in network.nodes.values()]
        return [(status["mode"], status["version"]) for status in found]

    assert engines() == [("lazy", 1)] * 2
    for node in network.nodes.values():
        node.options = QueueOptions(is_lazy=False, index_version=2)
        at_once(node.queues.policy_changed())
        node.queues.roles[Q.queue_id].local.engine.maintain()
    assert engines() == [("default", 2)] * 2


# --- credit flow ---


def publisher_of(network: QueueSetNetwork) -> QueueProcess:
    """n1 masters the queue, n2 mirrors it. Credit: {20, 5} to the queue, {40, 8} to each store and the mirror."""
    flow = network[N1].flow
    flow.in_process = Credit(20, 5)
    flow.store = flow.between_nodes = Credit(40, 8)
    network.follow(Q, mastership(Q, N1, N2))
    network.pump()
    process = network[N1].process(Q)
    process.flow.begin(CLIENT, 5)
    return process


def granted(node: QueueSetNode) -> int:
    return sum(each.messages for each in node.effects if isinstance(each, GrantCredit))


def slowest(process: QueueProcess) -> str:
    hop = process.flow.slowest(0)
    assert hop is not None
    return f"{hop.receiver} {hop.state}"


def test_a_mirror_that_does_not_apply_is_the_slowest_hop_and_holds_grants_back() -> None:
    network = QueueSetNetwork(N1, N2)
    process = publisher_of(network)
    network[N1].publish(Q, 1, 45)
    for _ in range(2):
        network[N1].turn()
        network[N1].sync()  # the master's own disk is quick, but the wire to n2 does not move
    network[N1].turn()
    assert slowest(process) == "mirror n2 blocked"
    assert granted(network[N1]) == 0
    network.pump()
    assert granted(network[N1]) == 45
    assert network[N1].confirmed() == list(range(1, 46))


def test_a_mirror_whose_disk_is_slow_is_named_apart_from_the_mirror() -> None:
    network = QueueSetNetwork(N1, N2)
    process = publisher_of(network)
    network[N1].publish(Q, 1, 45)
    network[N1].turn()
    network[N1].sync()
    for _ in range(3):
        for wire in list(network.wires):
            while network.wires[wire]:
                network[wire[1]].queues.receive(wire[0], network.wires[wire].popleft())
        network[N2].turn()  # applies and answers, but never syncs
        network[N1].turn()
    assert slowest(process) == "mirror n2 -> store blocked"
    network.pump()
    assert slowest(process) == "mirror n2 -> store freed"
    assert granted(network[N1]) == 45


def test_a_slow_disk_of_the_master_is_its_store() -> None:
    network = QueueSetNetwork(N1)
    network[N1].flow.store = Credit(40, 8)
    network[N1].queues.follow(Q, mastership(Q, N1))
    process = network[N1].process(Q)
    process.flow.begin(CLIENT, 5)
    network[N1].publish(Q, 1, 30)
    network[N1].publish(Q, 31, 30, persistent=False)
    network[N1].turn()
    assert (granted(network[N1]), process.flow.stage.state(0)) == (60, "running"), "transient messages owe it nothing"
    network[N1].publish(Q, 61, 10)
    network[N1].turn()
    assert (granted(network[N1]), slowest(process)) == (60, "store blocked")
    network[N1].sync()
    network[N1].turn()
    assert (granted(network[N1]), slowest(process)) == (70, "store freed")


def test_a_record_without_the_slow_mirror_frees_the_publishers() -> None:
    network = QueueSetNetwork(N1, N2)
    process = publisher_of(network)
    network[N1].publish(Q, 1, 45)
    network[N1].turn()
    network[N1].sync()
    network[N1].turn()
    assert slowest(process) == "mirror n2 blocked"
    network[N1].queues.follow(Q, mastership(Q, N1, epoch=1))
    network[N1].turn()
    assert granted(network[N1]) == 45


# --- turns ---


def test_a_turn_that_has_lasted_leaves_the_other_queues_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those come first then, though the first queue has more to do already."""
    node = alone()
    third = queue_record(9)
    for queue in (OTHER, third):
        node.queues.follow(queue, mastership(queue, N1))
    node.turn()
    drained: list[int] = []

    def drain(process: QueueProcess) -> list[QueueEffect]:
        drained.append(process.record.queue_id)
        if drained == [Q.queue_id]:
            node.queues.touch(Q.queue_id)
        return []

    monkeypatch.setattr(QueueProcess, "drain", drain)
    # The first look begins the turn; there is time for one queue.
    node.look_s = 0.6 * TURN_S
    for queue in (Q, OTHER, third):
        node.queues.touch(queue.queue_id)
    seen = []
    while node.pending:
        node.pending.popleft()()
        node.queues.check_invariants()
        seen.append(list(drained))
    assert seen == [[7], [7, 8], [7, 8, 9], [7, 8, 9, 7]]


def test_a_backlog_is_delivered_over_several_turns() -> None:
    node = alone()
    node.publish(Q, 1, 2 * DISPATCH_MAX + 10)
    node.turn()
    node.consume(Q)
    shares = []
    while node.pending:
        node.effects.clear()
        node.pending.popleft()()
        shares += [len(effect.deliveries) for effect in node.effects if isinstance(effect, Deliver)]
    assert shares == [DISPATCH_MAX, DISPATCH_MAX, 10]


# --- paging ---


def test_every_copy_here_can_page_and_those_that_are_gone_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(VariableQueue, "ram_duration_s", lambda _queue, now_ms: now_ms / 1000)
    monkeypatch.setattr(VariableQueue, "set_ram_duration_target", lambda _queue, seconds: told.append(seconds))
    network = QueueSetNetwork(N1, N2)
    network.follow(Q, mastership(Q, N1, N2))
    network.follow(OTHER, mastership(OTHER, N1))
    master, mirror = network[N1].queues, network[N2].queues
    assert list(master.paging.paging_queue_ids()) == [Q.queue_id, OTHER.queue_id]
    assert list(mirror.paging.paging_queue_ids()) == [Q.queue_id], "a mirror holds as much memory as its master"
    master.queue_deleted(OTHER)
    assert master.paging.ram_durations_s([Q.queue_id, OTHER.queue_id], 5000) == [5.0]
    master.paging.set_ram_duration_targets([Q.queue_id, OTHER.queue_id], 2.5)
    assert told == [2.5]


def test_a_copy_that_is_opened_again_does_not_repeat_its_attach_ids() -> None:
    """What a mirror of the same epoch still says to the first life must not be taken for an answer to the second."""
    network, record = QueueSetNetwork(N1, N2), mastership(Q, N1, N2, synchronised=())
    network.follow(Q, record)
    ids: list[int] = []
    for _ in range(2):
        network[N1].turn()
        ids += [message.attach_id for message in network.wires[N1, N2] if isinstance(message, Attach)]
        network.pump()
        network[N1].queues.out_of_service(Q.queue_id, DiskFullError("no room"))
        assert network[N1].queues.starved() == [Q.queue_id]
        network[N1].queues.forgive(Q.queue_id)
        network[N1].queues.follow(Q, record)
    assert len(set(ids)) == 2
    assert network[N1].queues.starved() == []


@pytest.mark.parametrize("is_skipped", [False, True], ids=["log", "snapshot"])
def test_a_mirror_flags_what_was_delivered_while_it_was_none(is_skipped: bool) -> None:
    """It was complete all the time, so it may be elected; and a snapshot says nothing of what was in between."""
    was = mastership(Q, N1, N2)
    network = pair(was)
    network[N1].publish(Q, 1, 1500)
    network.pump()
    network[N1].consume(Q)
    network[N1].turn()
    # N2 is paused: it hears nothing any more.
    network.wires.clear()
    network[N1].turn()
    assert len(network[N1].delivered()) < 1500, "N2 has yet to say that it would flag the rest"
    dropped = drop_mirror(was, N2)
    taken_back = take_service(add_mirror(dropped, N2))
    for record in (dropped, taken_back):
        assert N2 in record.complete
        network[N1].queues.follow(Q, record)
        network[N1].turn()
    delivered = len(network[N1].delivered())
    network.wires.clear()
    elected = node_down(taken_back, N1, False, True)
    assert elected is not None
    if is_skipped:
        network[N2].queues.records_skipped(Q.queue_id)
    for record in (elected,) if is_skipped else (dropped, taken_back, elected):
        network[N2].queues.follow(Q, record)
        network[N2].turn()
    network[N2].queues.link_down(N1)
    network[N2].queues.follow(Q, take_service(elected))
    network[N2].consume(Q)
    for _ in range(20):
        network[N2].turn()
    again = network[N2].delivered()
    assert len(again) == 1500
    assert all(flag for _, flag in again[:delivered])


def test_a_master_that_became_a_mirror_knows_by_the_policy_what_its_own_master_may_have_refused() -> None:
    """That one is of a release that does not say so, and the policy is lifted before this node is elected again."""
    network = pair()
    network[N1].publish(Q, 1)
    network.pump()
    network[N1].options = QueueOptions(max_length=10, rejects_overflow=True)
    at_once(network[N1].queues.policy_changed())
    network.follow(Q, mastership(Q, N2, N1, epoch=2))
    network.pump()
    network[N1].options = QueueOptions()
    at_once(network[N1].queues.policy_changed())
    network.follow(Q, mastership(Q, N1, N2, epoch=3))
    assert network[N1].process(Q).backing_queue.knows_out_of_order

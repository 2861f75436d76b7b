"""Who stops in an orderly way says how far messages were delivered: nothing else is flagged as redelivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import HORIZON_STEP_MIN
from cluster.mirroring.promotion import knows_deliveries
from cluster.mirroring.reports import ReportTakesService
from cluster.mirroring.succession import END_TIMEOUT_MS
from cluster.runtime.queue_role import MasterRole
from node.errors import DiskFullError, StorageError
from node.ids import Epoch, NodeName
from node.queues.events import QueueEffect
from node.topology.records import QueueRecord
from tests.support.messages import make_message
from tests.support.queue_sets import CLIENT, N1, N2, N3, Q, QueueSetNetwork, QueueSetNode, mastership, pair


def at_work() -> QueueSetNetwork:
    """n1 has five messages and has delivered two of them; n2 mirrors it."""
    network = pair(served(mastership(Q, N1, N2), 0))
    network[N1].publish(Q, 1, 5)
    network.pump()
    for _ in range(2):
        assert network[N1].process(Q).get(CLIENT, no_ack=False) is not None
    network[N1].queues.touch(Q.queue_id)
    network.pump()
    return network


def served(record: MastershipRecord, epoch: int | None) -> MastershipRecord:
    """With the last epoch before the record's in which a master was in service."""
    return replace(record, served_epoch=None if epoch is None else Epoch(epoch))


def flags(node: QueueSetNode) -> list[bool]:
    """Of what the master on this node delivers."""
    node.consume(Q)
    node.turn()
    return [is_flagged for _, is_flagged in node.delivered()]


def test_a_mirror_that_heard_the_end_flags_what_was_delivered() -> None:
    network = at_work()
    network[N1].queues.begin_end()
    network.pump()
    assert network[N1].queues.is_end_known
    assert network[N2].queues.is_end_known
    network[N2].queues.follow(Q, served(mastership(Q, N2, epoch=2), 1))
    assert flags(network[N2]) == [True, True, False, False, False]


def test_after_an_end_that_was_not_said_everything_below_the_horizon_is_flagged() -> None:
    network = at_work()
    network[N2].queues.follow(Q, served(mastership(Q, N2, epoch=2), 1))
    assert flags(network[N2]) == [True] * 5


def test_a_master_that_ends_delivers_nothing_any_more() -> None:
    network = at_work()
    network[N1].queues.begin_end()
    network[N1].publish(Q, 6)
    network.pump()
    role = network[N1].queues.roles[Q.queue_id]
    assert isinstance(role, MasterRole)
    assert (role.process.ready, role.process.is_closed) == (3, True), "what comes is held back for the next master"
    assert role.mirrored.fetch(1, ack_required=True) == []


@pytest.mark.parametrize("first", [N1, N2])
@pytest.mark.parametrize("is_mirror_before", [False, True])
def test_whoever_serves_first_after_all_have_stopped_knows_what_was_delivered(
    first: NodeName, is_mirror_before: bool
) -> None:
    """``is_mirror_before``: a record that was committed meanwhile makes it a mirror of a master that never served."""
    network = at_work()
    network[N1].queues.begin_end()
    network.pump()
    other = N2 if first == N1 else N1
    for node in network.nodes.values():
        node.restart_cleanly()
        node.effects.clear()
    if is_mirror_before:
        elected = replace(mastership(Q, other, first, epoch=2), in_service=False)
        network[first].queues.follow(Q, served(elected, 1))
    network[first].queues.follow(Q, served(mastership(Q, first, epoch=3), 1))
    assert flags(network[first]) == [True, True, False, False, False]


def test_a_mirror_that_stops_before_a_master_came_knows_it_the_next_time_as_well() -> None:
    network = at_work()
    network[N1].queues.begin_end()
    network.pump()
    network[N2].restart_cleanly()
    network[N2].queues.follow(Q, served(replace(mastership(Q, N1, N2, epoch=2), in_service=False), 1))
    network[N2].restart_cleanly()
    network[N2].queues.follow(Q, served(mastership(Q, N2, epoch=3), 1))
    assert flags(network[N2]) == [True, True, False, False, False]


@pytest.mark.parametrize("served_epoch", [2, None])
def test_what_was_kept_is_worth_nothing_once_another_master_was_in_service(served_epoch: int | None) -> None:
    network = at_work()
    network[N1].queues.begin_end()
    network.pump()
    network[N2].restart_cleanly()
    network[N2].queues.follow(Q, mastership(Q, N1, N2, epoch=2))  # which attaches to nobody, and delivers
    network[N2].queues.follow(Q, served(mastership(Q, N2, epoch=3), served_epoch))
    assert flags(network[N2]) == [True] * 5


def test_a_mirror_that_leaves_while_its_master_goes_on_flags_everything() -> None:
    network = at_work()
    network[N2].restart_cleanly()
    network[N2].queues.follow(Q, served(mastership(Q, N2, epoch=2), 1))
    assert flags(network[N2]) == [True] * 5


def test_a_copy_opened_as_the_masters_is_believed_until_somebody_else_has_served() -> None:
    network = at_work()
    local = network[N1].queues.roles[Q.queue_id].local
    local.close_deliveries(Epoch(1), local.delivered_below)
    assert knows_deliveries(local, N1, served(mastership(Q, N1, epoch=3), 1))
    assert not knows_deliveries(local, N1, served(mastership(Q, N1, epoch=3), 2))
    assert not knows_deliveries(local, N1, served(mastership(Q, N1, epoch=3), None)), "of an older release"


def test_a_mirror_that_is_attached_anew_hears_of_the_end_as_well() -> None:
    network = at_work()
    network[N1].queues.begin_end()
    network.pump()
    network[N1].queues.link_down(N2)
    network[N1].queues.link_up(N2)
    network.pump()
    assert network[N2].queues.is_end_known
    network[N2].queues.follow(Q, served(mastership(Q, N2, epoch=2), 1))
    assert flags(network[N2]) == [True, True, False, False, False]


# --- a mastership that ends because another node is to have it ---


def moved(*, in_service: bool) -> MastershipRecord:
    """To n2, in an orderly way: n1 stays."""
    return served(replace(mastership(Q, N2, N1, epoch=2), in_service=in_service), 1)


def asks_for_service(node: QueueSetNode) -> bool:
    return any(isinstance(report, ReportTakesService) for _, report in node.reports)


@pytest.mark.parametrize("order", [(N1, N2), (N2, N1)])
def test_after_a_move_what_was_delivered_is_flagged_and_nothing_else(order: tuple[NodeName, NodeName]) -> None:
    network = at_work()
    for node in order:
        network[node].queues.follow(Q, moved(in_service=False))
        network[node].turn()
        assert not asks_for_service(network[N2]), "the master before has yet to say how far it came"
    network.pump()
    assert asks_for_service(network[N2])
    network.follow(Q, moved(in_service=True))
    network.pump()
    assert flags(network[N2]) == [True, True, False, False, False]


@pytest.mark.parametrize("way", ["is silent", "link broke", "link is new"])
def test_a_master_before_that_does_not_say_how_far_it_came_is_not_waited_for_long(way: str) -> None:
    network = at_work()
    network[N2].queues.follow(Q, moved(in_service=False))
    network[N2].turn()
    if way == "link broke":
        network[N2].queues.link_down(N1)
    elif way == "link is new":
        network[N2].queues.link_up(N1)
    else:
        for now_ms in (0, END_TIMEOUT_MS - 1):
            network[N2].queues.tick(now_ms)
            network[N2].turn()
            assert not asks_for_service(network[N2])
        network[N2].queues.tick(END_TIMEOUT_MS)
    network[N2].turn()
    assert asks_for_service(network[N2])
    network[N2].queues.follow(Q, moved(in_service=True))
    network[N1].queues.follow(Q, moved(in_service=True))
    network.pump()
    assert flags(network[N2]) == [True] * 5, "what is said too late counts for nothing"


def test_a_master_that_cannot_speak_to_the_one_before_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    network = at_work()
    network[N2].queues.link_down(N1)
    monkeypatch.setattr(network[N2], "linked_nodes", lambda: [])
    network[N2].queues.follow(Q, moved(in_service=False))
    network[N2].turn()
    assert asks_for_service(network[N2])


@pytest.mark.parametrize("is_promoted_before", [False, True])
def test_a_master_before_that_has_restarted_is_not_waited_for(is_promoted_before: bool) -> None:
    """It is in the record again, and has nothing to say of its earlier life."""
    network = at_work()
    if is_promoted_before:
        network[N2].queues.follow(Q, moved(in_service=False))
        network[N2].turn()
        assert not asks_for_service(network[N2])
    network[N2].queues.link_down(N1)
    network[N2].queues.link_up(N1)
    network[N2].queues.follow(Q, moved(in_service=False))
    network[N2].turn()
    assert asks_for_service(network[N2])


def test_an_elected_master_does_not_wait_for_one_that_left() -> None:
    network = at_work()
    network[N2].queues.follow(Q, served(replace(mastership(Q, N2, epoch=2), in_service=False), 1))
    network[N2].turn()
    assert asks_for_service(network[N2])


def test_a_master_whose_disk_failed_has_said_how_far_it_came_when_it_hands_over() -> None:
    network = at_work()
    network[N1].queues.out_of_service(Q.queue_id, DiskFullError("no space left on device"))
    network.pump()
    assert network[N2].queues.roles[Q.queue_id].is_end_known is False, "it may yet go on in this epoch"
    network.follow(Q, moved(in_service=False))
    network.pump()
    network[N2].queues.follow(Q, moved(in_service=True))
    assert flags(network[N2]) == [True, True, False, False, False]


def test_a_master_that_breaks_in_the_hands_of_a_channel_says_nothing_behind_its_last_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a channel does with a confirm is a call of the queue, and fails: the turn that was to be sent is not. The
    mirror would take what is said behind something that is kept for a gap, and hear no more."""
    network = at_work()

    def fail(queue: QueueRecord, _effects: Sequence[QueueEffect]) -> None:
        network[N1].publish(queue, 7)
        network[N1].queues.out_of_service(queue.queue_id, StorageError("input/output error"))

    monkeypatch.setattr(network[N1], "dispatch", fail)
    network[N1].publish(Q, 6)
    network.pump()
    assert network[N1].role(Q) == "none"
    network[N1].queues.follow(Q, moved(in_service=False))
    network.pump()
    assert network[N2].queues.roles[Q.queue_id].is_end_known
    network[N2].queues.follow(Q, moved(in_service=True))
    assert flags(network[N2]) == [True, True, False, False, False, False]


def test_a_master_that_never_served_has_no_last_word_to_keep() -> None:
    """It lacks something, and its disk fails. Declared down, it deletes its copy, and is forgotten with its failure."""
    network = QueueSetNetwork(N1, N2)
    node = network[N1]
    elected = replace(mastership(Q, N1, epoch=2), complete=(N2,), in_service=False)
    node.queues.follow(Q, served(elected, 1))
    node.queues.out_of_service(Q.queue_id, StorageError("input/output error"))
    node.queues.follow(Q, served(replace(elected, master=N2, is_down=True), 1))
    assert not node.queues.is_failed(Q.queue_id)
    node.queues.check_invariants()


def test_a_copy_that_came_back_before_it_handed_over_has_said_nothing() -> None:
    network = at_work()
    network[N1].queues.out_of_service(Q.queue_id, DiskFullError("no space left on device"))
    network[N1].queues.forgive(Q.queue_id)
    network[N1].queues.follow(Q, served(mastership(Q, N1, N2), 0))
    network.pump()
    network[N1].effects.clear()
    assert flags(network[N1]) == [True, True, False, False, False]
    network.pump()
    network.follow(Q, moved(in_service=False))
    network.pump()
    network[N2].queues.follow(Q, moved(in_service=True))
    assert flags(network[N2]) == [True] * 5


def test_what_was_sent_again_to_the_new_master_stays_flagged_whatever_the_one_before_says_then() -> None:
    """That one may have delivered it, and nobody else has heard of it."""
    network = at_work()
    network[N2].queues.follow(Q, moved(in_service=False))
    network[N2].process(Q).publish(CLIENT, [make_message(6)], [6], is_resent=True)
    network[N2].turn()
    network[N1].queues.follow(Q, moved(in_service=False))
    network.pump()
    network.follow(Q, moved(in_service=True))
    network.pump()
    assert flags(network[N2])[-1]


def moved_after_one_delivery(messages: int) -> QueueSetNetwork:
    """The first of three copies has delivered the first message, and the second is to take over from it."""
    network = QueueSetNetwork(N1, N2, N3)
    network.follow(Q, served(mastership(Q, N1, N2, N3), 0))
    network[N1].publish(Q, 1, messages)
    network.pump()
    assert network[N1].process(Q).get(CLIENT, no_ack=False) is not None
    network[N1].queues.touch(Q.queue_id)
    network.pump()
    network.follow(Q, served(replace(mastership(Q, N2, N3, N1, epoch=2), in_service=False), 1))
    network.pump()
    return network


def test_a_master_that_knows_how_far_the_one_before_came_promises_as_little_as_that_one_did() -> None:
    """So when it is gone as well its successor flags no more than after a single failure."""
    network = moved_after_one_delivery(1000)
    network.follow(Q, served(mastership(Q, N2, N3, N1, epoch=2), 2))
    network.pump()
    network[N3].queues.follow(Q, served(mastership(Q, N3, epoch=3), 2))
    deliveries = network[N3].process(Q).backing_queue.fetch(1000, ack_required=True)
    assert [delivery.redelivered for delivery in deliveries] == [
        seq_id < 1 + HORIZON_STEP_MIN for seq_id in range(1000)
    ]


def test_a_third_copy_hears_it_too_and_knows_it_if_the_new_master_never_serves() -> None:
    network = moved_after_one_delivery(5)
    network[N3].queues.follow(Q, served(mastership(Q, N3, N1, epoch=3), 1))
    assert flags(network[N3]) == [True, False, False, False, False]

"""A master whose copy went out of service for want of room, and that goes on in the same epoch when there is some."""

from __future__ import annotations

import pytest

from cluster.metadata.mastership import drop_mirror, mark_synchronised
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import HORIZON_STEP_MIN
from cluster.mirroring.reports import ReportSynchronised
from node.errors import DiskFullError
from tests.support.queue_sets import N1, N2, Q, QueueSetNetwork, QueueSetNode, mastership, pair


def in_its_second_life(network: QueueSetNetwork, record: MastershipRecord) -> QueueSetNode:
    """N1 goes on in the same epoch, since there is room again, and its link with N2 has broken meanwhile."""
    node = network[N1]
    node.queues.out_of_service(Q.queue_id, DiskFullError("no room"))
    node.is_linked = False
    node.queues.link_down(N2)
    network[N2].queues.link_down(N1)
    node.queues.forgive(Q.queue_id)
    node.queues.follow(Q, record)
    node.turn()
    node.effects.clear()
    return node


def linked_again(network: QueueSetNetwork) -> None:
    for node, peer in ((N1, N2), (N2, N1)):
        network[node].is_linked = True
        network[node].queues.link_up(peer)
    network.pump()


def test_a_copy_that_is_opened_again_delivers_what_its_mirrors_have_heard_of() -> None:
    """They know of an end of its deliveries that was promised in its first life; one of them may be elected by it."""
    record = mastership(Q, N1, N2, synchronised=())
    network = pair(record)
    network[N1].publish(Q, 1, 2 * HORIZON_STEP_MIN)
    network.pump()
    node = in_its_second_life(network, record)
    node.consume(Q)
    for _ in range(3):
        node.turn()
    lossy = mastership(Q, N2, epoch=2)
    network[N2].queues.follow(Q, lossy)
    network[N2].consume(Q)
    network[N2].turn()
    delivered = {body for body, _ in node.delivered()}
    assert all(is_flagged for body, is_flagged in network[N2].delivered() if body in delivered)


@pytest.mark.parametrize("what", ["answers", "is dropped"])
def test_a_copy_that_is_opened_again_goes_on_when_its_mirrors_have_heard_it(what: str) -> None:
    record = mastership(Q, N1, N2, synchronised=())
    network = pair(record)
    network[N1].publish(Q, 1, 3)
    network.pump()
    node = in_its_second_life(network, record)
    node.consume(Q)
    node.publish(Q, 4)
    node.turn()
    node.sync()
    node.turn()
    assert (node.delivered(), node.confirmed()) == ([], [])
    if what == "answers":
        linked_again(network)
    else:
        node.queues.follow(Q, drop_mirror(record, N2))
        node.turn()
    assert (len(node.delivered()), node.confirmed()) == (4, [4])


def test_what_a_first_life_has_said_of_a_mirror_holds_for_the_confirms_of_the_second() -> None:
    """That N2 is synchronised is proposed, and decided when the copy has gone out of service and come again."""
    record = mastership(Q, N1, N2, synchronised=())
    network = pair(record)
    network[N1].publish(Q, 1)
    network.pump()
    assert ReportSynchronised(N2) in [report for _, report in network[N1].reports]
    node = in_its_second_life(network, record)
    node.publish(Q, 2)
    node.turn()
    node.sync()
    node.turn()
    confirmed = node.confirmed()
    synchronised = mark_synchronised(record, N2)
    node.queues.follow(Q, synchronised)
    node.turn()
    assert confirmed == node.confirmed() == [], "N2 has everything confirmed, so the cluster believes"
    linked_again(network)
    assert node.confirmed() == [2]
    assert network[N2].depth(Q) == 2


def test_a_mirror_that_was_to_lack_nothing_still_is() -> None:
    """N1 has something that N2 has not, and confirms it to nobody before N2 has it: not even when it is sent again."""
    record = mastership(Q, N1, N2, synchronised=())
    network = pair(record)
    network[N1].publish(Q, 1)
    network.pump()
    network[N1].publish(Q, 2)
    network[N1].turn()
    network[N1].sync()
    network[N1].turn()
    network.wires.clear()
    node = in_its_second_life(network, record)
    assert node.depth(Q) == 2
    node.publish(Q, 2)
    linked_again(network)
    assert node.confirmed() == [2]
    assert network[N2].depth(Q) == 2, "it is what nobody asked for, and the cluster is about to hear that it is so"

"""What a node does when the storage of one of its queues fails, or has no room: the others go on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cluster.mirroring.master import MirroringSettings
from node.errors import DiskFullError, StorageError
from node.pieces import at_once
from node.queues.events import QueueEffect
from node.queues.options import QueueOptions
from node.queues.variable_queue import VariableQueue
from node.topology.records import QueueRecord
from tests.support.queue_sets import (
    N1,
    N2,
    OTHER,
    Q,
    QueueSetNetwork,
    QueueSetNode,
    alone,
    mastership,
    pair,
)


def fail_writes(node: QueueSetNode, queue: QueueRecord = Q) -> None:
    node.disk.fail_writes = f"/queues/{queue.queue_id}/"


def test_a_queue_whose_disk_fails_stops_and_the_others_go_on() -> None:
    node = alone()
    node.queues.follow(OTHER, mastership(OTHER, N1))
    fail_writes(node)
    node.publish(Q, 1)
    node.publish(OTHER, 2)
    node.turn()
    node.sync()
    node.turn()
    assert node.confirmed() == [2]
    assert node.role(Q) == "none"
    assert node.ended == [Q.queue_id]
    assert [record.queue_id for record in node.failed] == [Q.queue_id], "said once"


def test_a_mirror_whose_disk_fails_asks_to_be_left_out_and_does_not_confirm() -> None:
    network = pair()
    network.follow(OTHER, mastership(OTHER, N1, N2))
    network.pump()
    fail_writes(network[N2])
    network[N1].publish(Q, 1)
    network[N1].publish(OTHER, 2)
    network.pump()
    assert network[N1].confirmed() == [2]
    assert [record.queue_id for record in network[N2].failed] == [Q.queue_id]
    network[N1].publish(Q, 3)  # what the master still sends reaches nobody, and harms nobody
    network.pump()

    network[N2].queues.follow(Q, mastership(Q, N1), is_discarded=True)
    network[N1].queues.follow(Q, mastership(Q, N1))
    network.pump()
    assert network[N1].confirmed() == [1, 2, 3]


def test_a_copy_out_of_service_says_so_under_each_new_record_and_takes_no_role() -> None:
    network = pair()
    fail_writes(network[N1])
    network[N1].publish(Q, 1)
    network.pump()
    moved = mastership(Q, N2, N1, epoch=2)
    network.follow(Q, moved)
    network.follow(Q, moved)
    assert network[N1].failed[1:] == [moved]
    assert network[N1].role(Q) == "none"
    network[N1].queues.follow(Q, mastership(Q, N1, epoch=3))  # nobody else is left: still not
    assert network[N1].role(Q) == "none"


def test_a_copy_out_of_service_is_opened_again_after_the_node_left_the_record() -> None:
    network = pair()
    network[N1].publish(Q, 1)
    network.pump()
    fail_writes(network[N2])
    network[N1].publish(Q, 2)
    network.pump()
    assert network[N2].role(Q) == "none"
    network[N2].disk.fail_writes = None
    network[N2].queues.follow(Q, mastership(Q, N1), is_discarded=True)
    assert not network[N2].has_files(Q)
    network[N1].queues.follow(Q, mastership(Q, N1))
    for node in network.nodes.values():
        node.settings = MirroringSettings(sync_automatically=True)
    network.follow(Q, mastership(Q, N1, N2, synchronised=()))
    at_once(network[N1].queues.policy_changed())
    network.pump()
    assert network[N2].depth(Q) == 2


def test_a_queue_that_cannot_be_opened_is_reported() -> None:
    node = QueueSetNetwork(N1)[N1]
    node.queues.follow(OTHER, mastership(OTHER, N1))
    node.disk.fail_writes = f"/queues/{Q.queue_id}/"
    node.queues.follow(Q, mastership(Q, N1))
    assert node.role(Q) == "none"
    assert [record.queue_id for record in node.failed] == [Q.queue_id]
    assert node.role(OTHER) == "master"


def test_confirms_come_when_there_is_space_again_though_nobody_calls() -> None:
    node = alone()
    node.publish(Q, 1)
    node.turn()
    node.sync()
    node.turn()
    assert node.confirmed() == [1]
    node.disk.capacity_bytes = node.disk.used_bytes
    node.publish(Q, 2, 3)
    node.turn()
    for _ in range(3):
        # Rounds go on: others write.
        node.group_commit.mark_dirty(node.disk.directory("/"))
        node.sync()
        node.turn()
    assert node.confirmed() == [1]
    node.disk.capacity_bytes = 1 << 40
    node.files.maintain(0)
    node.sync()
    node.turn()
    assert node.confirmed() == [1, 2, 3, 4]


@pytest.mark.parametrize("role", ["master", "mirror"])
def test_they_come_though_it_is_a_conversion_that_finds_the_space(role: str) -> None:
    """It writes what is collected before it goes on."""
    network = QueueSetNetwork(N1, N2)
    for node in network.nodes.values():
        node.options = QueueOptions(index_version=1)
    network.follow(Q, mastership(Q, N1, N2))
    network.pump()
    node = network[N1 if role == "master" else N2]
    node.disk.full_for = f"/queues/{Q.queue_id}/"
    network[N1].publish(Q, 1)
    network.pump()
    node.options = QueueOptions(index_version=2)
    at_once(node.queues.policy_changed())
    node.group_commit.mark_dirty(node.disk.directory("/"))  # rounds go on: others write
    network.pump()
    assert network[N1].confirmed() == []
    node.disk.full_for = None
    for tick in range(3):
        node.files.maintain(tick * 100)
        network.pump()
    assert network[N1].confirmed() == [1]


def test_they_come_though_a_conversion_writes_what_the_round_had_no_room_for() -> None:
    node = alone()
    node.options = QueueOptions(index_version=1)
    at_once(node.queues.policy_changed())
    node.turn()
    node.sync()
    node.publish(Q, 1)
    node.turn()
    generation = node.group_commit.open_generation
    node.group_commit.mark_dirty(node.disk.directory("/"))
    node.group_commit.remove_buffer(node.vhosts()[0])  # as if too many others came first
    node.sync()
    node.turn()
    node.group_commit.add_buffer(node.vhosts()[0])
    assert node.group_commit.durable_generation == generation
    node.files.maintain(0)
    for _ in range(3):
        node.turn()
        node.sync()
    node.turn()
    assert node.confirmed() == [1]


def test_a_policy_change_survives_a_queue_whose_disk_fails() -> None:
    node = alone()
    node.queues.follow(OTHER, mastership(OTHER, N1))
    node.publish(OTHER, 1, 3)
    fail_writes(node)
    node.publish(Q, 1, 3)
    node.group_commit.begin()
    node.options = QueueOptions(max_length=1)
    at_once(node.queues.policy_changed())
    node.turn()
    assert node.role(Q) == "none"
    assert node.depth(OTHER) == 1


def test_a_write_that_fails_at_the_end_of_the_turn_is_noticed_though_nobody_calls() -> None:
    node = alone()
    fail_writes(node)
    node.publish(Q, 1)
    node.turn()
    node.sync()
    node.turn()
    assert [record.queue_id for record in node.failed] == [Q.queue_id]


def test_a_stop_gets_past_a_queue_whose_disk_fails() -> None:
    node = alone()
    node.publish(Q, 1)
    node.queues.follow(OTHER, mastership(OTHER, N1))
    node.publish(OTHER, 2)
    fail_writes(node)
    node.restart_cleanly()
    node.queues.follow(OTHER, mastership(OTHER, N1, epoch=2))
    assert node.depth(OTHER) == 1


def test_a_deletion_gets_past_a_queue_whose_disk_fails() -> None:
    node = alone()
    fail_writes(node)
    node.publish(Q, 1)
    node.turn()
    node.sync()
    node.turn()
    assert node.role(Q) == "none"
    node.queues.queue_deleted(Q)
    assert not node.has_files(Q)


def test_a_queue_whose_disk_fails_while_it_pages_leaves_the_others_in_service(monkeypatch: pytest.MonkeyPatch) -> None:
    node = alone()
    node.queues.follow(OTHER, mastership(OTHER, N1))
    told: list[float] = []

    def page(_queue: VariableQueue, seconds: float) -> None:
        told.append(seconds)
        if len(told) == 1:
            raise DiskFullError("no room")

    monkeypatch.setattr(VariableQueue, "set_ram_duration_target", page)
    node.queues.paging.set_ram_duration_targets([Q.queue_id, OTHER.queue_id], 0.0)
    assert told == [0.0, 0.0]
    assert (node.role(Q), node.role(OTHER)) == ("none", "master")
    node.queues.check_invariants()


def test_a_master_that_fails_while_its_channels_hear_from_it_says_nothing_behind_its_last_words() -> None:
    """A channel that is told of confirms may publish more, and that may be what fails."""
    network = pair()
    master, mirror = network[N1], network[N2]
    master.consume(Q)
    network.pump()
    dispatch = master.dispatch

    def fail(queue: QueueRecord, effects: Sequence[QueueEffect]) -> None:
        dispatch(queue, effects)
        master.queues.out_of_service(Q.queue_id, StorageError("a read failed"))

    master.dispatch = fail  # type: ignore[method-assign]
    master.publish(Q, 1)
    master.turn()
    assert master.role(Q) == "none"
    assert not network.wires[N1, N2]
    network.follow(Q, mastership(Q, N2, N1, epoch=2))
    network.pump()
    assert mirror.role(Q) == "master"

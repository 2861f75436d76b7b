"""Reading from outside whether a data directory has something of a queue, and how far that is."""

from __future__ import annotations

from cluster.runtime.queue_files import NodeQueueFiles
from node.ids import QueueId
from node.queues.stored_copies import UNKNOWN_REACH, stored_reach
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import SimulatedDisk
from node.store.shared.config import StoreConfig
from node.topology.records import QueueRecord
from tests.support.messages import publications
from tests.support.stores import DATA_DIRECTORY, open_at_once

ORDERS = QueueRecord(QueueId(7), "/", "orders", True, None, False, {})


def reach(disk: SimulatedDisk, vhost: str = "/", queue_id: int = 7) -> int | None:
    return stored_reach(disk, DATA_DIRECTORY, vhost, QueueId(queue_id))


def test_a_copy_that_was_closed_in_order_tells_how_far_it_is() -> None:
    disk = SimulatedDisk()
    assert reach(disk) is None
    queue = open_at_once(NodeQueueFiles(disk, DATA_DIRECTORY, GroupCommit(), StoreConfig(), lambda: 0.0), ORDERS)
    queue.publish(publications(1, 10))
    assert reach(disk) == UNKNOWN_REACH, "it is open"
    queue.terminate()
    assert reach(disk) == 10
    before = disk.operations
    assert (reach(disk, queue_id=8), reach(disk, vhost="other")) == (None, None)
    assert disk.operations == before, "nothing is made by looking"


def test_a_copy_of_which_somebody_knows_how_far_it_is_reaches_farther_than_one_of_which_nobody_does() -> None:
    """However little it has."""
    disk = SimulatedDisk()
    queue = open_at_once(NodeQueueFiles(disk, DATA_DIRECTORY, GroupCommit(), StoreConfig(), lambda: 0.0), ORDERS)
    queue.publish(publications(1, 1))
    queue.terminate()
    known = reach(disk)
    assert known is not None
    assert known > UNKNOWN_REACH


def test_what_was_deleted_is_no_copy() -> None:
    disk = SimulatedDisk()
    files = NodeQueueFiles(disk, DATA_DIRECTORY, GroupCommit(), StoreConfig(), lambda: 0.0)
    queue = open_at_once(files, ORDERS)
    queue.publish(publications(1, 10))
    queue.terminate()
    files.delete_queue(ORDERS)
    assert reach(disk) is None

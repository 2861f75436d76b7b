"""What a node does with the files of very many queues is done in steps."""

from __future__ import annotations

from itertools import pairwise

from cluster.runtime.queue_files import DELETED_PER_STEP, NodeQueueFiles
from node.ids import QueueId
from node.queues.vhost_store import vhost_directory
from node.store.deletions import QUEUES_NAME
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import SimulatedDisk
from node.store.shared.config import StoreConfig
from node.topology.records import QueueRecord
from tests.support.stores import DATA_DIRECTORY, open_at_once


def test_queues_that_were_deleted_while_this_node_was_away_go_some_in_each_step() -> None:
    disk, group_commit = SimulatedDisk(), GroupCommit()
    files = NodeQueueFiles(disk, DATA_DIRECTORY, group_commit, StoreConfig(), lambda: 0.0)
    queues = [QueueRecord(QueueId(n), "/", f"q{n}", True, None, False, {}) for n in range(3 * DELETED_PER_STEP)]
    for queue in queues:
        open_at_once(files, queue)
    files.close()
    files = NodeQueueFiles(disk, DATA_DIRECTORY, group_commit, StoreConfig(), lambda: 0.0)
    for queue in queues:
        files.delete_queue(queue)
    opening = files.vhost_opening("/")
    assert opening is not None
    left = [len(disk.list(f"{vhost_directory(DATA_DIRECTORY, '/')}/{QUEUES_NAME}")) for _ in opening]
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) == DELETED_PER_STEP

"""A vhost store on the simulated disk, with the shell's part of the group commit played by the test."""

from __future__ import annotations

import random

from cluster.runtime.queue_files import NodeQueueFiles
from node.ids import QueueId, QueueName
from node.queues.local_replica import LocalReplica
from node.queues.vhost_store import VhostStore
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.shared.config import StoreConfig
from node.store.steps import run_through
from node.topology.records import QueueRecord

DATA_DIRECTORY = "/data"
QUEUE_ID = QueueId(7)
QUEUE_NAME = QueueName("/", "orders")


def run_sync_round(group_commit: GroupCommit) -> bool:
    """Flush, fsync, complete; false if there was nothing to do."""
    sync_round = group_commit.begin()
    if sync_round is None:
        return False
    sync_round.run()
    group_commit.complete(sync_round)
    return True


def open_at_once(files: NodeQueueFiles, queue: QueueRecord) -> LocalReplica:
    """Open a queue, and its vhost before it, on this thread."""
    vhost = files.vhost_opening(queue.vhost)
    if vhost is not None:
        run_through(vhost)
    return run_through(files.queue_opening(queue, None, lambda _done, _total: None))


class StoreHarness:
    """One node's storage through restarts and crashes."""

    def __init__(
        self, config: StoreConfig | None = None, *, durable: bool = True, disk: SimulatedDisk | None = None
    ) -> None:
        """``durable``: of the queue."""
        self.config = config or StoreConfig()
        self.durable = durable
        self.disk = disk or SimulatedDisk()
        self.start()

    def start(self) -> None:
        self.group_commit = GroupCommit()
        self.store = VhostStore(self.disk, DATA_DIRECTORY, "/", self.group_commit, self.config)

    def open_queue(self, durable: bool | None = None) -> LocalReplica:
        return self.store.open_queue(QUEUE_ID, QUEUE_NAME, self.durable if durable is None else durable)

    @property
    def queue_directory(self) -> str:
        return f"{self.store.directory}/queues/{QUEUE_ID}"

    def sync(self) -> None:
        """One whole round: flush, fsync, complete. Raises `StorageError` if an fsync does, after telling the group."""
        run_sync_round(self.group_commit)

    def restart(self) -> LocalReplica:
        """Clean stop and start."""
        self.store.close()
        self.start()
        return self.open_queue()

    def crash(self, style: CrashStyle = CrashStyle.DROP, seed: int = 0) -> LocalReplica:
        """Lose power and start again."""
        self.disk.crash(style, random.Random(seed))
        self.start()
        return self.open_queue()

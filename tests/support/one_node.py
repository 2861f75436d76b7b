"""The queues of a node that is alone, as its broker reaches them: real gateway, queue set and storage, simulated disk.

Everything runs on the test's event loop, and the test says when the disk has synced: `run` lets everything happen that
is under way, `sync` makes durable what was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroringSettings
from cluster.mirroring.messages import MirrorMessage
from cluster.mirroring.reports import MirroringReport
from cluster.runtime.applier import SLICE_PIECES
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.queue_set import QueueSet
from cluster.sessions.gateway import ClusterGateway
from cluster.sessions.messages import SessionMessage
from node.flow.credit import FlowControl
from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.message import Message, decode_envelope
from node.queues.events import DeleteUnused, QueueEffect
from node.queues.options import QueueOptions, queue_options
from node.queues.queue_process import QueueProcess
from node.queues.replica import ReplicaQueue
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import SimulatedDisk
from node.store.shared.config import StoreConfig
from node.store.steps import Job
from node.topology.commands import DeleteQueue
from node.topology.records import QueueRecord
from node.topology.topology import TopologyObserver
from tests.support.local_catalogue import LocalCatalogue
from tests.support.stores import DATA_DIRECTORY, run_sync_round

N1 = NodeName("n1")


class _NoMirrors:
    """Satisfies `cluster.runtime.queue_set.MirrorLinks`."""

    def send(self, node: NodeName, message: MirrorMessage) -> None:
        raise AssertionError("nobody else is there")

    def is_congested_now(self, node: NodeName) -> bool:
        return False

    is_full_now = is_congested_now

    def when_room(self, node: NodeName, key: Hashable, go_on: Callable[[], None]) -> None:
        raise AssertionError("no link is ever full")

    def linked_nodes(self) -> Sequence[NodeName]:
        return ()


def _clock() -> float:
    return 0.0


class OneNode(TopologyObserver):
    """n1. It is the ports of its queue set and the `Links` of its gateway, and masters whatever is declared.

    To be made on a running event loop.
    """

    def __init__(self, flow: FlowControl | None = None) -> None:
        flow = flow or FlowControl()
        self._loop = asyncio.get_running_loop()
        #: Callbacks of the queue set that wait for the next turn of the loop.
        self._due = 0
        self.catalogue = LocalCatalogue()
        self.masterships: dict[QueueId, MastershipRecord] = {}
        self.disk = SimulatedDisk()
        self.group_commit = GroupCommit()
        files = NodeQueueFiles(self.disk, DATA_DIRECTORY, self.group_commit, StoreConfig(), _clock)
        self.queues = QueueSet(
            N1,
            files,
            self.group_commit,
            links=_NoMirrors(),
            settings=self,
            effects=self,
            cluster=self,
            request_sync=lambda: None,  # the test syncs when it likes
            call_soon=self._call_soon,
            run_job=self._run_job,
            incarnation=Incarnation(1),
            flow=flow,
            slice_pieces=SLICE_PIECES,
            clock=_clock,
        )
        files.on_queue_changed = self.queues.touch
        #: Sealed queues whose deletion nobody brings to an end; it is for the test to do.
        self.deletions_open: list[QueueRecord] = []
        self.queues.on_deletion_open = self.deletions_open.append
        self.gateway = ClusterGateway(
            N1,
            self.queues,
            self,
            self.masterships.get,
            self.queue_record,
            self._loop,
            flow,
            incarnation=Incarnation(1),
            clock=_clock,
            slice_pieces=SLICE_PIECES,
        )
        self.catalogue.topology.observe(self)

    # --- time ---

    def _call_soon(self, callback: Callable[[], None]) -> None:
        self._due += 1
        self._loop.call_soon(self._called, callback)

    def _run_job(self, job: Job, on_done: Callable[[BaseException | None], None]) -> None:
        job()
        self._call_soon(lambda: on_done(None))

    def _called(self, callback: Callable[[], None]) -> None:
        self._due -= 1
        callback()

    async def run(self) -> None:
        """Until nothing is under way but what waits for the disk."""
        await asyncio.sleep(0)
        while self._due:  # noqa: ASYNC110 - turns of the loop are what this counts
            await asyncio.sleep(0)
        self.check_invariants()

    async def sync(self) -> None:
        """One whole round of the group commit, and what follows from it."""
        await self.run()
        if run_sync_round(self.group_commit):
            self.queues.durable_advanced()
        await self.run()

    # --- what tests ask ---

    def queue(self, name: str) -> QueueRecord:
        """By name, in the vhost ``/``."""
        record = self.catalogue.topology.queue("/", name)
        assert record is not None, f"there is no queue {name}"
        return record

    def process(self, name: str) -> QueueProcess:
        process = self.queues.process(self.queue(name).queue_id)
        assert process is not None, "this node masters every queue"
        return process

    def copy(self, name: str) -> ReplicaQueue:
        """What is stored of this queue."""
        return self.queues.roles[self.queue(name).queue_id].local

    def messages(self, name: str) -> list[Message]:
        """Everything live in this queue, in order; it stays there."""
        copy = self.copy(name)
        positions = [seq_id for segment, _ in copy.live_counts() for seq_id in copy.live_positions(segment)]
        return [decode_envelope(envelope)[0] for _, envelope in copy.read(positions)]

    def has_files(self, queue_id: QueueId) -> bool:
        return any(f"/queues/{queue_id}/" in path for path in self.disk.snapshot())

    def check_invariants(self) -> None:
        self.queues.check_invariants()
        self.gateway.check_invariants()
        self.catalogue.topology.check_invariants()

    # --- the topology ---

    def queue_added(self, queue: QueueRecord) -> None:
        record = MastershipRecord(queue.queue_id, Epoch(1), N1, complete=(N1,))
        self.masterships[queue.queue_id] = record
        self.queues.follow(queue, record)

    def queue_removed(self, queue: QueueRecord) -> None:
        del self.masterships[queue.queue_id]
        self.queues.queue_deleted(queue)
        self.gateway.queue_deleted(queue.queue_id)

    def queue_record(self, queue_id: QueueId) -> QueueRecord | None:
        return next((each for each in self.catalogue.topology.all_queues() if each.queue_id == queue_id), None)

    # --- ports of the queue set ---

    def is_mirror(self, _queue_id: QueueId) -> bool:
        return False

    def applied_index_of(self, _queue_id: QueueId) -> int:
        return 1

    def dispatch(self, queue: QueueRecord, effects: Sequence[QueueEffect]) -> None:
        self.gateway.local_effects(queue.queue_id, [each for each in effects if not isinstance(each, DeleteUnused)])
        process = self.queues.process(queue.queue_id)
        is_unused = process is not None and process.is_unused
        if is_unused and any(isinstance(each, DeleteUnused) for each in effects):
            self._call_soon(lambda: self.catalogue.apply(DeleteQueue(queue.vhost, queue.name, queue.queue_id)))

    def role_began(self, record: MastershipRecord) -> None:
        self.gateway.mastership_changed(record)

    def role_ended(self, queue_id: QueueId) -> None:
        self.gateway.queue_stopped(queue_id)

    def was_consumed(self, queue: QueueRecord) -> bool:
        return queue.was_consumed

    def mirroring_settings(self, queue: QueueRecord) -> MirroringSettings:
        return MirroringSettings(is_durable=queue.durable)

    def queue_options(self, queue: QueueRecord) -> QueueOptions:
        return queue_options(queue.arguments)

    def storage_failed(self, record: MastershipRecord, *, is_damaged: bool) -> None:
        raise AssertionError("no disk fails here")

    def report(self, record: MastershipRecord, report: MirroringReport) -> None:
        raise AssertionError("a queue without mirrors has nothing to report")

    # --- Links ---

    def send(self, node: NodeName, message: SessionMessage) -> None:
        raise AssertionError("nobody else is there")

    def is_up(self, node: NodeName) -> bool:
        return False

    def is_congested(self, node: NodeName) -> bool:
        return False

    def is_congested_now(self, node: NodeName) -> bool:
        return False

"""Queue sets of several nodes on simulated disks: real storage, real mirroring, and a test that turns every crank.

A harness: what is between the nodes are lists that `pump` hands over, and what they agree on is what the test says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroringSettings
from cluster.mirroring.messages import MirrorMessage
from cluster.mirroring.reports import MirroringReport
from cluster.runtime.applier import SLICE_PIECES
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.queue_role import MasterRole, MirrorRole
from cluster.runtime.queue_set import QueueSet
from node.errors import StorageError
from node.flow.credit import FlowControl
from node.ids import ChannelKey, Epoch, Incarnation, NodeName, QueueId
from node.queues.events import ConfirmPublished, ConsumerSpec, Deliver, QueueEffect
from node.queues.options import QueueOptions
from node.queues.queue_process import QueueProcess
from node.queues.vhost_store import VhostStore
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import SimulatedDisk
from node.store.shared.config import StoreConfig
from node.store.steps import Job
from node.topology.records import QueueRecord
from tests.support.messages import make_message
from tests.support.stores import run_sync_round

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
DATA_DIRECTORY = "/data"
#: The channel that publishes and consumes in these tests.
CLIENT = ChannelKey(N1, 1)


def queue_record(number: int = 7, *, durable: bool = True) -> QueueRecord:
    return QueueRecord(QueueId(number), "/", f"q{number}", durable, None, False, {})


def mastership(
    queue: QueueRecord,
    master: NodeName,
    *mirrors: NodeName,
    epoch: int = 1,
    synchronised: Sequence[NodeName] | None = None,
    is_down: bool = False,
) -> MastershipRecord:
    """Every mirror is synchronised unless ``synchronised`` says otherwise; nobody else is complete."""
    complete = tuple(mirrors if synchronised is None else synchronised)
    return MastershipRecord(
        queue.queue_id,
        Epoch(epoch),
        master,
        mirrors,
        complete,
        complete=(master, *complete),
        is_down=is_down,
        following=mirrors,
        in_service=not is_down,
    )


class QueueSetNode:
    """One node. It is all the ports of its queue set, and keeps what it was told."""

    def __init__(self, name: NodeName, network: QueueSetNetwork) -> None:
        self.name = name
        self.network = network
        self.disk = SimulatedDisk()
        self.settings = MirroringSettings()
        self.options = QueueOptions()
        self.flow = FlowControl()
        self.effects: list[QueueEffect] = []
        #: Jobs are not done by themselves, they are kept.
        self.holds_jobs = False
        self.held: deque[Callable[[], None]] = deque()
        self.ended: list[QueueId] = []
        #: Roles that began after a recovery.
        self.began: list[MastershipRecord] = []
        self.failed: list[MastershipRecord] = []
        #: Of the last failure.
        self.is_damaged = False
        self.reports: list[tuple[MastershipRecord, MirroringReport]] = []
        #: Nodes to whose consumers nothing can be sent, and who waits for that.
        self.full: set[NodeName] = set()
        self.line: dict[Hashable, Callable[[], None]] = {}
        self.incarnation = 0
        #: With all others, or with none.
        self.is_linked = True
        #: Queues that were deleted, or of which this node is no mirror by what is committed.
        self.given_up: set[QueueId] = set()
        #: How far this node has applied the metadata log.
        self.applied_index = 1
        self.now_s = self.look_s = 0.0
        self.start()

    def applied_index_of(self, _queue_id: QueueId) -> int:
        return self.applied_index

    def is_mirror(self, queue_id: QueueId) -> bool:
        return queue_id not in self.given_up

    def start(self) -> None:
        self.incarnation += 1
        self.group_commit = GroupCommit()
        self.disk.on_sync_failed = self.group_commit.distrust
        self.files = NodeQueueFiles(self.disk, DATA_DIRECTORY, self.group_commit, StoreConfig(), self.clock)
        self.pending: deque[Callable[[], None]] = deque()
        self.queues = QueueSet(
            self.name,
            self.files,
            self.group_commit,
            links=self,
            settings=self,
            effects=self,
            cluster=self,
            request_sync=self.request_sync,
            call_soon=self.pending.append,
            run_job=self.run_job,
            incarnation=Incarnation(self.incarnation),
            flow=self.flow,
            slice_pieces=SLICE_PIECES,
            clock=self.clock,
        )
        self.files.on_queue_changed = self.queues.touch
        self.files.on_vhost_wanted = self.queues.open_vhost
        self.files.is_vhost_awaited = self.queues.awaits_vhost

    def clock(self) -> float:
        """Seconds; each look at it costs as many as the test says."""
        self.now_s += self.look_s
        return self.now_s

    def restart_cleanly(self) -> None:
        self.queues.close()
        self.files.close()
        self.start()

    # --- ports of the queue set ---

    def send(self, node: NodeName, message: MirrorMessage) -> None:
        self.network.send(self.name, node, message)

    def is_congested_now(self, node: NodeName) -> bool:
        return False

    def is_full_now(self, node: NodeName) -> bool:
        return node in self.full

    def when_room(self, node: NodeName, key: Hashable, go_on: Callable[[], None]) -> None:
        assert node in self.full, "there is something to wait for"
        self.line.setdefault(key, go_on)

    def linked_nodes(self) -> Sequence[NodeName]:
        return [node for node in self.network.nodes if node != self.name] if self.is_linked else []

    def dispatch(self, queue: QueueRecord, effects: Sequence[QueueEffect]) -> None:
        self.effects += effects

    def role_ended(self, queue_id: QueueId) -> None:
        self.ended.append(queue_id)

    def role_began(self, record: MastershipRecord) -> None:
        self.began.append(record)

    def run_job(self, job: Job, on_done: Callable[[BaseException | None], None]) -> None:
        """The job is done in the next turn, or when the test says so (`holds_jobs`, `held`)."""

        def run() -> None:
            try:
                job()
            except StorageError as error:
                on_done(error)
            else:
                on_done(None)

        (self.held if self.holds_jobs else self.pending).append(run)

    def storage_failed(self, record: MastershipRecord, *, is_damaged: bool) -> None:
        self.failed.append(record)
        self.is_damaged = is_damaged

    def report(self, record: MastershipRecord, report: MirroringReport) -> None:
        self.reports.append((record, report))

    def request_sync(self) -> None:
        """The test syncs when it likes, with `sync`."""

    def was_consumed(self, queue: QueueRecord) -> bool:
        return queue.was_consumed

    def mirroring_settings(self, queue: QueueRecord) -> MirroringSettings:
        return MirroringSettings(
            is_durable=queue.durable,
            refuses_publishes=self.options.refuses_publishes,
            sync_automatically=self.settings.sync_automatically,
        )

    def queue_options(self, queue: QueueRecord) -> QueueOptions:
        return self.options

    # --- what tests do and ask ---

    def turn(self) -> None:
        while self.pending:
            self.pending.popleft()()
        self.queues.check_invariants()

    def sync(self) -> None:
        """One round of the group commit."""
        if run_sync_round(self.group_commit):
            self.queues.durable_advanced()

    def vhosts(self) -> list[VhostStore]:
        """What is open of the files of vhosts."""
        return list(self.files._vhosts.values())

    def process(self, queue: QueueRecord) -> QueueProcess:
        process = self.queues.process(queue.queue_id)
        assert process is not None, f"{self.name} does not master {queue.name}"
        return process

    def publish(self, queue: QueueRecord, first: int, count: int = 1, *, persistent: bool = True) -> None:
        """Messages ``first`` ..., each with its counter as publish sequence number."""
        counters = range(first, first + count)
        messages = [make_message(counter, persistent=persistent) for counter in counters]
        self.process(queue).publish(CLIENT, messages, list(counters))
        self.queues.touch(queue.queue_id)

    def consume(self, queue: QueueRecord, channel: ChannelKey | None = None) -> None:
        self.process(queue).consume(channel or CLIENT, ConsumerSpec("tag", no_ack=False, exclusive=False))
        self.queues.touch(queue.queue_id)

    def confirmed(self) -> list[int]:
        return sorted(seq for each in self.effects if isinstance(each, ConfirmPublished) for seq in each.publish_seqs)

    def delivered(self) -> list[tuple[bytes, bool]]:
        """Body and redelivered flag of what consumers got."""
        deliveries = [each.deliveries for each in self.effects if isinstance(each, Deliver)]
        return [(each.message.body, each.redelivered) for batch in deliveries for each in batch]

    def role(self, queue: QueueRecord) -> str:
        role = self.queues.roles.get(queue.queue_id)
        return {MasterRole: "master", MirrorRole: "mirror", type(None): "none"}[type(role)]

    def depth(self, queue: QueueRecord) -> int:
        local = self.queues.roles[queue.queue_id].local
        return local.ready + local.unacked

    def has_files(self, queue: QueueRecord) -> bool:
        return any(f"/queues/{queue.queue_id}/" in path for path in self.disk.snapshot())


class QueueSetNetwork:
    """Ordered wires between the nodes; nothing moves until `pump`."""

    def __init__(self, *names: NodeName) -> None:
        self.nodes: dict[NodeName, QueueSetNode] = {}
        self.wires: dict[tuple[NodeName, NodeName], deque[MirrorMessage]] = {}
        for name in names:
            self.nodes[name] = QueueSetNode(name, self)

    def __getitem__(self, name: NodeName) -> QueueSetNode:
        return self.nodes[name]

    def send(self, sender: NodeName, receiver: NodeName, message: MirrorMessage) -> None:
        self.wires.setdefault((sender, receiver), deque()).append(message)

    def follow(self, queue: QueueRecord, record: MastershipRecord) -> None:
        """Every node applies the record."""
        for node in self.nodes.values():
            node.queues.follow(queue, record)

    def pump(self, *, synced: bool = True) -> None:
        """Turns, syncs and deliveries until nothing is under way."""
        while True:
            for node in self.nodes.values():
                node.turn()
                if synced:
                    node.sync()
                    node.turn()
            busy = [(pair, wire) for pair, wire in self.wires.items() if wire]
            if not busy:
                return
            for (sender, receiver), wire in busy:
                while wire:
                    self.nodes[receiver].queues.receive(sender, wire.popleft())


Q, OTHER = queue_record(7), queue_record(8)


def alone(queue: QueueRecord = Q) -> QueueSetNode:
    """One node that masters one queue."""
    node = QueueSetNetwork(N1)[N1]
    node.queues.follow(queue, mastership(queue, N1))
    return node


def pair(record: MastershipRecord | None = None) -> QueueSetNetwork:
    """n1 masters the queue, n2 mirrors it, and they have met."""
    network = QueueSetNetwork(N1, N2)
    network.follow(Q, record or mastership(Q, N1, N2))
    network.pump()
    return network

"""The whole storage of a vhost, crashed after every single disk operation of a recorded workload.

The workload is three durable queues, of which one is deleted, and one that is not durable: small and big messages,
persistent and transient, some of them in several queues; acks, requeues, purges; lazy mode and memory targets on and
off; compaction; a disk that is full now and then, so that messages are settled of which a part was written. It is the
same for every crash, and so are its confirms up to the crash. What must hold after recovery,
whatever the crash left of unsynced operations:

- every confirmed message that nobody settled is there, in its place, with the same bytes, in order;
- nothing is there that was not published at that place;
- an ack whose zeroed slot was durable is not undone;
- if only the process was killed, no ack that was written is undone;
- a deleted queue is there as a whole or not at all, and not at all once the deletion is durable;
- nothing is reported as damaged.

Without waiting for syncs (``durability = flush``) the same holds of what a sync has covered. A clean stop is crashed
before each of its own operations, too.
"""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from node.errors import StorageError
from node.ids import QueueId, QueueName, SeqId
from node.message import Message
from node.queues.backing_queue import Publication
from node.queues.local_replica import LocalReplica
from node.queues.vhost_store import VhostStore
from node.store.disk.group_commit import GroupCommit
from node.store.disk.guarded import WRITE_EVERY_MS
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.formats.record import HEADER_BYTES, SLOT_BYTES, ZERO_SLOT
from node.store.shared.config import StoreConfig
from tests.support.amounts import slow
from tests.support.index_driver import CountedDisk
from tests.support.messages import make_message
from tests.support.stores import DATA_DIRECTORY, run_sync_round

SEGMENT_ENTRIES = 8
CAPACITY_BYTES = 1 << 40
NAMES = {QueueId(1): "orders", QueueId(2): "audit", QueueId(3): "metrics", QueueId(4): "drafts"}
NOT_DURABLE = QueueId(3)
#: This queue is deleted before this round.
DELETED, DELETED_AT = QueueId(4), 40


def config(compaction: str, version: int, *, is_flush: bool = False) -> StoreConfig:
    return StoreConfig(
        confirm_after_sync=not is_flush,
        queue_version=version,
        v1_segment_entries=SEGMENT_ENTRIES,
        v1_journal_entries_max=12,
        embed_below_bytes=60,
        file_size_limit_bytes=512,
        v2_segment_entries=SEGMENT_ENTRIES,
        io_batch_messages=2,
        compaction=compaction,
    )


class Workload:
    """One life of the storage; what it was promised is kept beside it."""

    def __init__(self, disk: SimulatedDisk, compaction: str, version: int | None, *, is_flush: bool = False) -> None:
        """``version`` of the indexes; ``None``: they are converted both ways. ``is_flush``: nothing waits for syncs,
        but they happen, and what they covered is what must survive."""
        self.disk = disk
        self.version = version
        self.config = config(compaction, version or 2, is_flush=is_flush)
        self.now_ms = 0
        #: queue -> position -> message, of everything persistent ever published in a durable queue.
        self.published: dict[QueueId, dict[int, Message]] = {queue_id: {} for queue_id in NAMES}
        self.confirmed: dict[QueueId, set[int]] = {queue_id: set() for queue_id in NAMES}
        self.settled: dict[QueueId, set[int]] = {queue_id: set() for queue_id in NAMES}
        #: Settled positions of which everything was written that is to be written of them.
        self.written_acks: dict[QueueId, set[int]] = {queue_id: set() for queue_id in NAMES}
        self.is_deleted = False
        #: The deletion is durable.
        self.is_gone = False

    def run(self, rounds: int) -> None:
        """Raises `StorageError` when a sync failed."""
        # Of its own, so that the rest is as it would be with enough space.
        rng, full = random.Random(5), random.Random(6)
        self.group_commit = GroupCommit()
        self.store = VhostStore(self.disk, DATA_DIRECTORY, "/", self.group_commit, self.config)
        queues = self.queues = {
            queue_id: self.store.open_queue(queue_id, QueueName("/", name), queue_id != NOT_DURABLE)
            for queue_id, name in NAMES.items()
        }
        counter = 0
        for turn in range(rounds):
            if turn == DELETED_AT:
                self.is_deleted = True
                queues.pop(DELETED).delete()
            for _ in range(rng.randint(1, 4)):
                counter += 1
                body = counter.to_bytes(4, "big") + bytes(rng.choice((0, 20, 90, 150, 250)))
                message = make_message(counter, body=body, persistent=rng.random() < 0.8)
                chosen = rng.sample(sorted(queues), rng.choice((1, 1, 2, 3)))
                for queue_id in chosen:
                    self.publish(queue_id, queues[queue_id], message)
            if turn != DELETED_AT and full.random() < 0.3:
                self.fill_up(full.randint(0, 900), full.choice((None, ".qi", ".qi")), full.choice((0, 0.3, 0.7, 1)))
            for queue_id in rng.sample(sorted(queues), 2):
                self.consume(queue_id, queues[queue_id], rng, turn)
            if rng.random() < 0.3:
                self.disturb(queues[rng.choice(sorted(queues))], rng)
            self.sync()
            self.disk.full_for, self.disk.capacity_bytes = None, CAPACITY_BYTES
            self.is_gone = self.is_deleted
            for queue_id, queue in queues.items():
                self.confirmed[queue_id].update(token for token in queue.drain_confirmed() if isinstance(token, int))
        # So that the last operation of all is a sync.
        self.publish(QueueId(1), queues[QueueId(1)], make_message(counter + 1))
        self.sync()

    def stop(self, *, is_round_running: bool) -> None:
        """A clean stop, begun in the middle of a turn: its messages are in no sync yet, or in one that goes on."""
        rng = random.Random(self.disk.operations)
        for counter in range(100_000, 100_012):
            message = make_message(counter, body=counter.to_bytes(4, "big") + bytes(rng.choice((20, 90, 250))))
            for queue_id in rng.sample(sorted(self.queues), 2):
                self.publish(queue_id, self.queues[queue_id], message)
            self.store.flush_writes()
        running = self.group_commit.begin() if is_round_running else None
        for queue in self.queues.values():
            queue.terminate()
        if running is not None:
            running.run()
            self.group_commit.complete(running)
        self.store.close()

    def fill_up(self, room_bytes: int, full_for: str | None, share: float) -> None:
        """The disk has so much room when this turn's messages are written, and to the end of the turn; or it has none
        for some files."""
        self.disk.full_for = full_for
        if full_for is None:
            self.disk.capacity_bytes = self.disk.used_bytes + room_bytes
        self.disk.prefix_of = lambda longest: int(longest * share)
        self.store.flush_writes()

    def sync(self) -> None:
        self.store.flush_writes()
        for queue_id, queue in self.queues.items():
            # (With more finished segments than one turn deletes there is more to flush.)
            if not queue.is_disk_full and not self.store.has_unflushed:
                self.written_acks[queue_id] = set(self.settled[queue_id])
        for _ in range(3):
            self.now_ms += WRITE_EVERY_MS // 2
            self.store.maintain(self.now_ms)
        for _ in range(10):
            self.store.reclaim()
        run_sync_round(self.group_commit)

    def publish(self, queue_id: QueueId, queue: LocalReplica, message: Message) -> None:
        seq_id = queue.next_seq_id
        if message.persistent and queue_id != NOT_DURABLE:
            self.published[queue_id][seq_id] = message
            queue.publish([Publication(message, int(seq_id))])
        else:
            queue.publish([Publication(message)])

    def consume(self, queue_id: QueueId, queue: LocalReplica, rng: random.Random, turn: int) -> None:
        deliveries = queue.fetch(rng.randint(0, 9), ack_required=True)
        rng.shuffle(deliveries)
        for delivery in deliveries:
            if rng.random() < 0.2:
                queue.requeue([delivery.seq_id])
            elif rng.random() < 0.9:
                self.settled[queue_id].add(delivery.seq_id)
                queue.ack([delivery.seq_id])
        if turn % 60 == 59:
            self.settled[queue_id] |= {s for s in self.published[queue_id] if queue.read([SeqId(s)])}
            queue.requeue_all()
            queue.purge()

    def disturb(self, queue: LocalReplica, rng: random.Random) -> None:
        if self.version is None and rng.random() < 0.3:
            queue.set_index_version(rng.choice((1, 2)))
        elif rng.random() < 0.5:
            queue.set_lazy(rng.random() < 0.5)
        else:
            queue.engine.paging.target_ram_count = rng.choice((None, 0, 2))
            queue.engine.paging.page_out()

    def durable_acks(self, queue_id: QueueId) -> set[int]:
        """Settled positions whose slot is zero in what every crash leaves of a file that every crash leaves.

        (For indexes of version 2; an entry that is being converted has no slot yet. The files of the deleted queue are
        elsewhere.)
        """
        if self.version != 2 or (queue_id == DELETED and self.is_deleted):
            return set()
        directory = f"{self.store.directory}/queues/{queue_id}"
        durable = self.disk.durable_snapshot()
        found: set[int] = set()
        for seq_id in self.settled[queue_id] & self.confirmed[queue_id]:
            path = f"{directory}/{seq_id // SEGMENT_ENTRIES}.qi"
            content = durable.get(path)
            at = HEADER_BYTES + seq_id % SEGMENT_ENTRIES * SLOT_BYTES
            if content is not None and content[at : at + SLOT_BYTES] != ZERO_SLOT:
                continue
            # A full disk may have refused its publish in the middle, and what of that was written survive alone.
            slots = [data[max(0, at - start) : at + SLOT_BYTES - start] for start, data in self.disk.unsynced(path)]
            if not any(slot.strip(b"\0") for slot in slots if slot):
                found.add(seq_id)
        return found


def check_recovered(workload: Workload, disk: SimulatedDisk, acks: dict[QueueId, set[int]]) -> None:
    """On a disk that has space again. ``acks``: of what must not come back."""
    disk.capacity_bytes = CAPACITY_BYTES
    store = VhostStore(disk, DATA_DIRECTORY, "/", GroupCommit(), workload.config)
    assert store.store_recovery.corrupt == []
    on_disk = dict(store.queues_on_disk())
    assert DELETED not in on_disk or not workload.is_gone, "a durable deletion is not undone"
    for queue_id, name in NAMES.items():
        if queue_id == DELETED and workload.is_deleted and DELETED not in on_disk:
            continue
        queue = store.open_queue(queue_id, QueueName("/", name), queue_id != NOT_DURABLE)
        report = queue.recovery_report
        assert report is None or report.corrupt == 0, report
        published = workload.published[queue_id]
        deliveries = queue.fetch(queue.ready, ack_required=True)
        found = {int(delivery.seq_id): delivery.message for delivery in deliveries}
        assert list(found) == sorted(found), "in order"
        for seq_id, message in found.items():
            assert published[seq_id] == message, "nothing is invented"
        owed = workload.confirmed[queue_id] - workload.settled[queue_id]
        assert owed <= found.keys(), f"lost in {name}: {sorted(owed - found.keys())}"
        back = found.keys() & acks[queue_id]
        assert not back, f"acks of {sorted(back)} in {name} are undone"
        queue.check_invariants()
    store.check_invariants()


def run_everywhere(compaction: str, version: int | None, rounds: int, step: int, *, is_flush: bool = False) -> int:
    """Before every ``step``-th operation look at what a crash in each style leaves, and have the sync fail there.

    Returns the number of operations.
    """
    disk = CountedDisk()
    workload = Workload(disk, compaction, version, is_flush=is_flush)

    def crash() -> None:
        if disk.operations % step or not hasattr(workload, "store"):
            return
        durable_acks = {queue_id: workload.durable_acks(queue_id) for queue_id in NAMES}
        for style in CrashStyle:
            crashed = disk.twin()
            crashed.crash(style, random.Random(crashed.operations))
            check_recovered(workload, crashed, durable_acks)
        check_recovered(workload, disk.twin(), workload.written_acks)

    disk.on_operation = crash
    workload.run(rounds)
    if not is_flush:
        # From an operation on that is none they fail as from the next one that is.
        syncs = disk.sync_numbers
        for operation in sorted({syncs[bisect_left(syncs, number)] for number in range(step, disk.operations, step)}):
            fail_a_sync(compaction, version, rounds, operation)
    return disk.operations


def fail_a_sync(compaction: str, version: int | None, rounds: int, operation: int) -> None:
    """Every fsync from ``operation`` on fails: what it covered is never confirmed, and what was before it stays."""
    workload = Workload(SimulatedDisk(), compaction, version)
    workload.disk.fail_sync_after = operation
    with pytest.raises(StorageError):
        workload.run(rounds)
    workload.disk.crash(CrashStyle.DROP, random.Random(operation))
    check_recovered(workload, workload.disk, {queue_id: set() for queue_id in NAMES})


KINDS = [("holes", 2), ("merge", 2), ("holes", 1), ("holes", None)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [397, slow(1)])
@pytest.mark.parametrize(("compaction", "version"), KINDS)
def test_a_crash_before_an_operation(compaction: str, version: int | None, step: int) -> None:
    assert run_everywhere(compaction, version, rounds=80, step=step) >= 500


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [149, slow(7)])
@pytest.mark.parametrize(("compaction", "version"), KINDS)
def test_without_waiting_for_syncs_only_what_none_has_covered_is_at_risk(
    compaction: str, version: int | None, step: int
) -> None:
    """``durability = flush`` and a loss of power: what was durable once stays so, wherever it is moved to."""
    assert run_everywhere(compaction, version, rounds=80, step=step, is_flush=True) >= 500


@pytest.mark.parametrize("step", [23, slow(1)])
@pytest.mark.parametrize("is_round_running", [False, True])
@pytest.mark.parametrize(("compaction", "version"), KINDS)
def test_a_crash_before_an_operation_of_a_clean_stop(
    compaction: str, version: int | None, is_round_running: bool, step: int
) -> None:
    crashes = 0

    def crash() -> None:
        nonlocal crashes
        if workload.disk.operations % step:
            return
        for style in CrashStyle:
            for seed in range(1 if style is CrashStyle.DROP else 2):
                disk = workload.disk.twin()
                disk.crash(style, random.Random(disk.operations * 2 + seed))
                check_recovered(workload, disk, {queue_id: set() for queue_id in NAMES})
                crashes += 1

    for rounds in (2, 12):
        workload = Workload(SimulatedDisk(), compaction, version)
        workload.run(rounds)
        workload.disk.on_operation = crash
        workload.stop(is_round_running=is_round_running)
        workload.disk.on_operation = None
        crash()
    assert crashes >= 500 // step, "the stops have operations"

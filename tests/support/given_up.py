"""Queues whose roles end because the disk refuses something, on a simulated disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from node.errors import OpenFilesError, StorageError
from node.ids import QueueId, QueueName
from node.queues.local_replica import LocalReplica
from node.store.disk.disk import DiskFile
from tests.support.messages import publications
from tests.support.stores import StoreHarness

FIRST, SECOND, THIRD = QueueId(7), QueueId(8), QueueId(9)
BODY_BYTES = 5_000


def open_queue(
    harness: StoreHarness, queue_id: QueueId, version: int | None = None, *, durable: bool = True
) -> LocalReplica:
    return harness.store.open_queue(queue_id, QueueName("/", f"q{queue_id}"), durable, version)


def fan_out(
    harness: StoreHarness, count: int, version: int, body_bytes: int = BODY_BYTES
) -> tuple[LocalReplica, LocalReplica]:
    """Two queues with the same durable messages."""
    queues = open_queue(harness, FIRST, version), open_queue(harness, SECOND, version)
    for queue in queues:
        queue.publish(publications(1, count, body=bytes(body_bytes)))
    harness.sync()
    return queues


def publish_transient(harness: StoreHarness, queue: LocalReplica, first: int, count: int) -> None:
    """Into the transient shared store, as under pressure."""
    queue.set_lazy(True)
    queue.publish(publications(first, count, persistent=False, body=bytes(BODY_BYTES)))
    care(harness)


def care(harness: StoreHarness, turns: int = 60) -> None:
    for now_s in range(turns):
        harness.store.maintain(now_s * 1000)
        harness.store.reclaim()
        harness.sync()
    harness.store.check_invariants()


def settle_all(queue: LocalReplica) -> None:
    queue.ack([delivery.seq_id for delivery in queue.fetch(10_000, ack_required=True)])


def transient_messages(harness: StoreHarness) -> int:
    return harness.store._stores.transient.status().messages


def persistent_messages(harness: StoreHarness) -> int:
    return harness.store.shared_status().messages


def fail(queue: LocalReplica, error: StorageError | None = None) -> None:
    """The queue's role ends because its storage has failed."""
    queue.engine.writes.fail(error or StorageError("write of 0.qi failed: Input/output error (errno 5)"))
    queue.terminate()


@contextmanager
def no_descriptors(harness: StoreHarness, suffix: str, *, after: int = 0) -> Iterator[None]:
    """There are descriptors for so many files of a kind, and no more."""
    wanted, left = harness.disk.open, after

    def refuse(path: str) -> DiskFile:
        nonlocal left
        if path.endswith(suffix):
            if not left:
                raise OpenFilesError(f"open of {path} failed: Too many open files (errno 24)")
            left -= 1
        return wanted(path)

    harness.disk.open = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        harness.disk.open = wanted  # type: ignore[method-assign]

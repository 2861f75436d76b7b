"""Copies that come and go as chance has it: nothing is lost, and nothing stays in the shared stores."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from node.errors import StorageError
from node.ids import QueueId, SeqId
from node.queues.local_replica import LocalReplica
from node.store.shared.config import StoreConfig
from tests.support.full_disk import Refusal
from tests.support.given_up import (
    BODY_BYTES,
    FIRST,
    SECOND,
    THIRD,
    care,
    fail,
    no_descriptors,
    open_queue,
    persistent_messages,
    transient_messages,
)
from tests.support.messages import publications
from tests.support.stores import StoreHarness


class Fates:
    """Queues with the same messages, which are acked, closed, failed, opened and deleted as chance has it."""

    def __init__(self, seed: int, version: int) -> None:
        self.chance = random.Random(seed)
        self.version = version
        config = StoreConfig(
            v1_segment_entries=16, v1_journal_entries_max=24, v2_segment_entries=16, file_size_limit_bytes=30_000
        )
        self.harness = StoreHarness(config)
        self.queues: dict[QueueId, LocalReplica] = {}
        #: What each must have, by counter.
        self.live: dict[QueueId, set[int]] = {}
        self.counter = 0
        for queue_id in (FIRST, SECOND, THIRD):
            self.open(queue_id)
            self.live[queue_id] = set()

    def open(self, queue_id: QueueId) -> None:
        version = self.chance.choice((1, 2)) if self.version == 0 else self.version
        self.queues[queue_id] = open_queue(self.harness, queue_id, version)

    def publish(self) -> None:
        count = self.chance.randrange(1, 20)
        size = self.chance.choice((10, BODY_BYTES))
        persistent = self.chance.random() < 0.8
        for queue_id, queue in self.queues.items():
            if self.chance.random() < 0.8:
                queue.publish(publications(self.counter + 1, count, persistent=persistent, body=bytes(size)))
                if persistent:
                    self.live[queue_id] |= set(range(self.counter + 1, self.counter + count + 1))
        self.counter += count
        self.harness.sync()

    def settle(self, queue_id: QueueId) -> None:
        queue = self.queues[queue_id]
        deliveries = queue.fetch(self.chance.randrange(1, 20), True)
        chosen = [delivery for delivery in deliveries if self.chance.random() < 0.7]
        self.live[queue_id] -= {counter_of(delivery.message.msg_id) for delivery in chosen}
        queue.ack([delivery.seq_id for delivery in chosen])
        queue.requeue([SeqId(delivery.seq_id) for delivery in deliveries if delivery not in chosen])

    def abandon(self, queue_id: QueueId) -> None:
        fail(self.queues.pop(queue_id))
        if self.chance.random() < 0.3:
            suffix = self.chance.choice((".qi", ".idx", ".jif"))
            for opened in range(self.chance.randrange(3)):
                with suppress(StorageError), no_descriptors(self.harness, suffix, after=opened):
                    self.open(queue_id)
                    break
        if queue_id not in self.queues:
            self.open(queue_id)
        self.came_again(queue_id)

    def refuse_writes(self) -> None:
        """The disk fails, or is full, for files of some kind, and roles end by that."""
        disk = self.harness.disk
        suffix = self.chance.choice((".qi", ".qs", ".jif", ".idx", "seq.bounds"))
        if self.chance.random() < 0.5:
            disk.fail_writes = suffix
            self.end_roles()
            disk.fail_writes = None
        else:
            with Refusal(disk, suffix, self.chance.randrange(1, 5), self.chance.random()):
                self.end_roles()
        for queue_id in (FIRST, SECOND, THIRD):
            if queue_id not in self.queues:
                self.open(queue_id)
                self.came_again(queue_id)

    def end_roles(self) -> None:
        confirmed = {queue_id: set(live) for queue_id, live in self.live.items()}
        with suppress(StorageError):
            self.publish()
        for queue_id in list(self.queues):
            with suppress(StorageError):
                self.settle(queue_id)
                confirmed[queue_id] &= self.live[queue_id]
        # What is published now may find no room, and is not confirmed then.
        self.live = confirmed
        self.harness.store.flush_writes()
        for queue_id, queue in list(self.queues.items()):
            if queue.engine.has_failed or self.chance.random() < 0.5:
                del self.queues[queue_id]
                with suppress(StorageError):
                    queue.terminate()
                with suppress(StorageError):
                    self.open(queue_id)
                    self.came_again(queue_id)

    def came_again(self, queue_id: QueueId) -> None:
        """Acks that were in no file are forgotten; nothing that is live may be."""
        found = {counter_of(msg_id) for msg_id in msg_ids_of(self.queues[queue_id])}
        assert self.live[queue_id] <= found, "nothing is lost"
        self.live[queue_id] = found

    def delete(self, queue_id: QueueId) -> None:
        fail(self.queues.pop(queue_id))
        self.harness.store.delete_queue_directory(queue_id)
        self.live[queue_id] = set()
        self.open(queue_id)

    def step(self) -> None:
        queue_id = self.chance.choice(list(self.queues))
        what = self.chance.randrange(14)
        if what < 4:
            self.publish()
        elif what < 7:
            self.settle(queue_id)
        elif what == 7:
            self.abandon(queue_id)
        elif what == 8:
            self.queues.pop(queue_id).terminate()
            self.open(queue_id)
            self.came_again(queue_id)
        elif what == 12:
            self.refuse_writes()
        elif what == 13:
            self.queues[queue_id].set_index_version(self.chance.choice((1, 2)) if self.version == 0 else self.version)
            care(self.harness, 2)
        elif what == 9 and self.chance.random() < 0.3:
            self.delete(queue_id)
        elif what == 10 and self.chance.random() < 0.3:
            self.queues[queue_id].purge()
            self.live[queue_id] = set()
        else:
            self.queues[queue_id].set_lazy(self.chance.random() < 0.5)
            care(self.harness, 1)

    def end(self) -> None:
        for queue_id, queue in self.queues.items():
            deliveries = queue.fetch(10_000, True)
            found = {counter_of(delivery.message.msg_id) for delivery in deliveries}
            assert self.live[queue_id] <= found, "nothing is lost"
            queue.ack([delivery.seq_id for delivery in deliveries])
        care(self.harness, 200)
        assert (transient_messages(self.harness), persistent_messages(self.harness)) == (0, 0)


def counter_of(msg_id: bytes) -> int:
    return int.from_bytes(msg_id[8:], "big")


def msg_ids_of(queue: LocalReplica) -> list[bytes]:
    return [holding.msg_id for segment, _ in queue.live_counts() for holding in queue.holdings(segment)]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_becomes_of_copies_nothing_is_lost_and_nothing_stays(seed: int, version: int) -> None:
    fates = Fates(seed, version)
    for _ in range(60):
        fates.step()
    fates.end()

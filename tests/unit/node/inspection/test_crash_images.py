"""What a crash leaves is no damage: disks that lost, kept and tore writes at random, then verified as real files."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from node.ids import QueueId
from node.inspection.findings import Kind
from node.inspection.verification import verify
from node.queues.local_replica import LocalReplica
from node.store.disk.simulated import CrashStyle
from tests.support.amounts import slow
from tests.support.messages import publications
from tests.support.storage_on_disk import BIG_BODY, BILLS, BILLS_NAME, ORDERS, ORDERS_NAME, SMALL
from tests.support.stores import DATA_DIRECTORY, StoreHarness

#: Crashes, and how many torn writes are among them at least.
CRASHES = [(40, 3), slow((150, 10))]


def work(harness: StoreHarness, chance: random.Random) -> None:
    """Publishes, fan-outs, acks, syncs and compaction in random order, ended at a random place."""
    queues = {
        queue_id: harness.store.open_queue(queue_id, name, durable=True)
        for queue_id, name in ((ORDERS, ORDERS_NAME), (BILLS, BILLS_NAME))
    }
    counter = 1
    for _ in range(chance.randrange(5, 40)):
        step = chance.randrange(5)
        if step <= 1:
            batch = publications(counter, chance.randrange(1, 6), body=BIG_BODY if step else None)
            counter += len(batch)
            for queue in chance.sample(list(queues.values()), chance.randrange(1, 3)):
                queue.publish(batch)
        elif step == 2:
            settle_some(queues, chance)
        elif step == 3:
            harness.sync()
        else:
            harness.store.maintain(0)
            harness.store.flush_writes()


def settle_some(queues: dict[QueueId, LocalReplica], chance: random.Random) -> None:
    queue = chance.choice(list(queues.values()))
    deliveries = queue.fetch(6, ack_required=True)
    queue.ack([delivery.seq_id for delivery in deliveries if chance.random() < 0.8])
    queue.requeue_all()


@pytest.mark.parametrize(("crashes", "torn_min"), CRASHES)
def test_a_crash_leaves_no_damage(crashes: int, torn_min: int, tmp_path: Path) -> None:
    counts: Counter[Kind] = Counter()
    for seed in range(crashes):
        chance = random.Random(seed)
        harness = StoreHarness(SMALL)
        work(harness, chance)
        harness.disk.crash(chance.choice(list(CrashStyle)), chance)
        directory = tmp_path / str(seed)
        for path, content in harness.disk.snapshot().items():
            place = directory / path.removeprefix(DATA_DIRECTORY + "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        # Their names were synced with vhost.json; a snapshot knows of files only.
        for vhost in directory.glob("vhosts/*"):
            (vhost / "msg_store_persistent").mkdir(exist_ok=True)
        result = verify(str(directory))
        assert not result.has_damage, f"seed {seed}: {[p for p in result.findings.problems if p.kind is Kind.DAMAGE]}"
        counts.update(result.findings.counts)
    assert counts[Kind.TORN] > torn_min

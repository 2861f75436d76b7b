"""How fast the local storage engine is: microseconds per message, one JSON line. Fixed seed, no group commit thread.

python tests/bench/store_bench.py [directory]
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time

from node.ids import OriginId, QueueId, QueueName
from node.message import Message
from node.queues.backing_queue import Publication
from node.queues.vhost_store import VhostStore
from node.store.disk.disk import RealDisk
from node.store.disk.group_commit import GroupCommit
from node.store.shared.config import StoreConfig
from tests.support.messages import make_msg_id

MESSAGES = 40_000
BATCH = 200
BODY_BYTES = 1024


def main() -> None:
    rng = random.Random(1)
    directory = tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None)
    group_commit = GroupCommit()
    store = VhostStore(RealDisk(), directory, "/", group_commit, StoreConfig())
    queue = store.open_queue(QueueId(1), QueueName("/", "bench"), durable=True)
    body = rng.randbytes(BODY_BYTES)
    origin = OriginId(rng.randbytes(8))
    batches = [
        [
            Publication(Message(make_msg_id(origin, n), "", "bench", b"\x18\x00\x00\x02", body, True), n)
            for n in range(first, first + BATCH)
        ]
        for first in range(1, MESSAGES + 1, BATCH)
    ]
    seconds = {"publish": 0.0, "flush": 0.0, "sync": 0.0, "fetch": 0.0, "ack": 0.0, "flush_acks": 0.0}
    clock = time.perf_counter
    for batch in batches:
        start = clock()
        queue.publish(batch)
        published = clock()
        store.flush_writes()
        flushed = clock()
        seconds["publish"] += published - start
        seconds["flush"] += flushed - published
    start = clock()
    sync_round = group_commit.begin()
    assert sync_round is not None, "something was written"
    sync_round.run()
    group_commit.complete(sync_round)
    confirmed = len(queue.drain_confirmed())
    seconds["sync"] = clock() - start
    for _ in batches:
        start = clock()
        deliveries = queue.fetch(BATCH, ack_required=True)
        fetched = clock()
        queue.ack([delivery.seq_id for delivery in deliveries])
        acked = clock()
        store.flush_writes()
        seconds["fetch"] += fetched - start
        seconds["ack"] += acked - fetched
        seconds["flush_acks"] += clock() - acked
    assert confirmed == MESSAGES, "every message was confirmed"
    assert queue.status().ready == queue.status().unacked == 0, "every message was settled"
    queue.delete()
    store.close()
    shutil.rmtree(directory)
    result = {f"{name}_us_per_message": round(total / MESSAGES * 1e6, 2) for name, total in seconds.items()}
    print(json.dumps({"messages": MESSAGES, "batch": BATCH, "body_bytes": BODY_BYTES, **result}))


if __name__ == "__main__":
    main()

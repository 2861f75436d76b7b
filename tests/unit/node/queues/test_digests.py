"""What a replica says of its content, and how much of it is read from disk to say so."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import node.queues.local_replica
import node.queues.variable_queue
from cluster.mirroring.promotion import undelivered_start
from node.ids import SeqId
from node.queues import vhost_store
from node.queues.local_replica import LocalReplica
from node.queues.replica import SegmentDigest, SeqRange
from node.store.store_config import StoreConfig
from tests.support.digests import expected_digests
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.stores import StoreHarness

#: Positions of a digest segment here: two segments of the index.
ENTRIES = 16


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (node.queues.local_replica, node.queues.variable_queue):
        monkeypatch.setattr(module, "DIGEST_SEGMENT_ENTRIES", ENTRIES)
    # Keep two messages in Q3, so that delta begins early.
    monkeypatch.setattr("node.queues.stages.LOAD_MESSAGES", 2)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def harness(request: pytest.FixtureRequest) -> StoreHarness:
    return StoreHarness(
        StoreConfig(queue_version=request.param, v1_segment_entries=8, v1_journal_entries_max=12, v2_segment_entries=8)
    )


def fill(harness: StoreHarness, count: int) -> LocalReplica:
    """A lazy queue with positions 0 to ``count - 1`` on disk, all but two in delta."""
    queue = harness.open_queue()
    queue.set_lazy(True)
    for first in range(0, count, 2):
        queue.publish(publications(first + 1, 2))
        harness.sync()
    assert queue.stage_counts.delta == count - 2
    return queue


def digests_of(positions: Iterable[int]) -> list[SegmentDigest]:
    """Of messages whose numbers are their positions and one."""
    return expected_digests({seq_id: msg_id_of(seq_id + 1) for seq_id in positions}, ENTRIES)


def test_the_digest_is_a_hash_of_msg_ids_and_zeros_by_position() -> None:
    """Written down, so that a change of the definition is seen: nodes that are one cluster must agree."""
    assert digests_of([1, 3]) == [SegmentDigest(0, 2, 0x0)]


def test_a_segment_in_all_stages_and_unacked(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 5))
    queue.fetch(2, ack_required=True)
    assert queue.digests() == digests_of(range(5))
    queue.ack([SeqId(0)])
    queue.set_lazy(True)
    for first in range(5, 40, 5):
        queue.publish(publications(first + 1, 5))
        harness.sync()
        queue.page_out()
        assert queue.live_counts() == [(each.segment, each.entries) for each in digests_of(range(1, first + 5))]
        assert queue.digests() == digests_of(range(1, first + 5))
    assert queue.stage_counts.delta, "some are on disk only"
    late = [make_message(1), make_message(60)]
    queue.insert([SeqId(0), SeqId(59)], late, [message.envelope() for message in late])
    queue.remove([SeqRange(SeqId(18), SeqId(25))])
    live = [*range(18), *range(25, 40), 59]
    assert queue.digests() == digests_of(live), "settled ones are still in the files"
    assert [queue.live_positions(segment) for segment in range(4)] == [
        [seq_id for seq_id in live if seq_id // ENTRIES == segment] for segment in range(4)
    ]
    queue.check_invariants()
    harness.sync()
    assert harness.restart().digests() == digests_of(live)


def test_counts_and_positions_are_known_in_memory(harness: StoreHarness) -> None:
    queue = fill(harness, 200)
    queue.remove([SeqRange(SeqId(50), SeqId(60))])
    harness.sync()
    before = harness.disk.reads
    assert queue.live_counts() == [(each.segment, each.entries) for each in digests_of([*range(50), *range(60, 200)])]
    assert queue.live_positions(3) == [48, 49, 60, 61, 62, 63]
    assert harness.disk.reads == before


def test_a_promotion_reads_nothing(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.mirroring.promotion.DIGEST_SEGMENT_ENTRIES", ENTRIES)
    queue = fill(harness, 200)
    before = harness.disk.reads
    assert undelivered_start(queue, SeqId(101)) == 101
    assert harness.disk.reads == before
    queue.remove([SeqRange(SeqId(90), SeqId(101)), SeqRange(SeqId(150), SeqId(151))])
    before = harness.disk.reads
    assert undelivered_start(queue, SeqId(101)) == 200, "the tail has a hole"
    assert undelivered_start(queue, SeqId(151)) == 151
    assert harness.disk.reads == before


# -- warming


def warm_up(harness: StoreHarness) -> int:
    """Maintain until nothing is read any more. Returns how many calls read something."""
    calls = 0
    while True:
        before = harness.disk.reads
        harness.store.maintain(0)
        if harness.disk.reads == before:
            return calls
        calls += 1


def test_what_was_warmed_is_not_read_again(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vhost_store, "WARMED_ENTRIES", 3 * ENTRIES)
    queue = fill(harness, 320)
    queue.digests()
    queue = harness.restart()
    queue.set_lazy(True)
    assert queue.digests() == digests_of(range(320))
    queue._digest_cache.clear()
    assert warm_up(harness) >= 5, "in bounded steps"
    before = harness.disk.reads
    assert len(queue._digest_cache) == 19, "all but the first, of which some are in memory"
    queue._digest_cache[0] = digests_of(range(320))[0]
    assert queue.digests() == digests_of(range(320))
    assert harness.disk.reads == before


def test_a_queue_that_nobody_compares_is_not_warmed(harness: StoreHarness) -> None:
    queue = fill(harness, 320)
    assert warm_up(harness) == 0
    assert not queue.wants_warming

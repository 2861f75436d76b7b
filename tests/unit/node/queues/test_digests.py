"""What a replica says of its content, and how much of it is read from disk to say so."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import pytest

import node.queues.digests
import node.queues.local_replica
from cluster.mirroring.promotion import undelivered_start
from node.ids import QueueId, QueueName, SeqId
from node.queues import vhost_store
from node.queues.local_replica import LocalReplica
from node.queues.replica import SegmentDigest, SeqRange
from node.queues.vhost_store import VhostStore
from node.store.shared.config import StoreConfig
from node.store.steps import Steps, run_through
from tests.support.digests import expected_digests
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.stores import DATA_DIRECTORY, QUEUE_ID, QUEUE_NAME, StoreHarness

#: Positions of a digest segment here: two segments of the index.
ENTRIES = 16


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (node.queues.digests, node.queues.local_replica):
        monkeypatch.setattr(module, "DIGEST_SEGMENT_ENTRIES", ENTRIES)
    # Of a lazy queue the first segment is in Q3, delta begins with the second.
    monkeypatch.setattr("node.queues.stages.LOAD_MESSAGES", ENTRIES)
    monkeypatch.setattr("node.queues.stages.READ_AHEAD_MESSAGES", ENTRIES)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def harness(request: pytest.FixtureRequest) -> StoreHarness:
    return StoreHarness(
        StoreConfig(queue_version=request.param, v1_segment_entries=8, v1_journal_entries_max=12, v2_segment_entries=8)
    )


def fill(harness: StoreHarness, count: int, queue: LocalReplica | None = None) -> LocalReplica:
    """A lazy queue with positions 0 to ``count - 1`` on disk, all but the first segment in delta."""
    queue = queue or harness.open_queue()
    queue.set_lazy(True)
    for first in range(0, count, 2):
        queue.publish(publications(first + 1, 2))
        harness.sync()
    assert queue.engine.stage_counts.delta == count - ENTRIES
    return queue


def digests_of(positions: Iterable[int]) -> list[SegmentDigest]:
    """Of messages whose numbers are their positions and one."""
    return expected_digests({seq_id: msg_id_of(seq_id + 1) for seq_id in positions}, ENTRIES)


def test_the_digest_is_a_hash_of_msg_ids_and_zeros_by_position(harness: StoreHarness) -> None:
    """Written down, so that a change of the definition is seen: the nodes of a cluster must agree."""
    queue = harness.open_queue()
    queue.publish(publications(1, 4))
    queue.remove([SeqRange(SeqId(2), SeqId(3)), SeqRange(SeqId(0), SeqId(1))])
    hashed = bytes(16) + b"origin-1" + (2).to_bytes(8, "big") + bytes(16) + b"origin-1" + (4).to_bytes(8, "big")
    digest = blake2b(hashed + bytes(12 * 16), digest_size=8).digest()
    assert queue.digests() == digests_of([1, 3]) == [SegmentDigest(0, 2, int.from_bytes(digest, "big"))]


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
        queue.engine.paging.page_out()
        assert queue.live_counts() == [(each.segment, each.entries) for each in digests_of(range(1, first + 5))]
        assert queue.digests() == digests_of(range(1, first + 5))
    assert queue.engine.stage_counts.delta, "some are on disk only"
    late = [make_message(1), make_message(60)]
    queue.insert([SeqId(0), SeqId(59)], late, [message.envelope() for message in late])
    queue.remove([SeqRange(SeqId(18), SeqId(25))])
    live = [*range(18), *range(25, 40), 59]
    assert queue.digests() == digests_of(live), "settled ones are still in the files"
    assert [queue.live_positions(segment) for segment in range(4)] == [
        [seq_id for seq_id in live if seq_id // ENTRIES == segment] for segment in range(4)
    ]
    assert [queue.msg_ids(segment) for segment in range(4)] == [
        [msg_id_of(seq_id + 1) for seq_id in live if seq_id // ENTRIES == segment] for segment in range(4)
    ]
    queue.check_invariants()
    harness.sync()
    assert harness.restart().digests() == digests_of(live)


def test_the_content_tells_of_changes_only_while_a_digest_is_kept(harness: StoreHarness) -> None:
    queue = fill(harness, 3 * ENTRIES)

    def is_observed() -> bool:
        return queue.engine.content.observer is not None

    assert not is_observed(), "nobody compares this queue: its traffic pays nothing for digests"
    queue.digests()
    assert is_observed()
    queue.purge()
    assert not is_observed(), "nothing is left that a change could spoil"
    queue.publish(publications(100, 1))
    queue.digests()
    assert is_observed()
    queue.check_invariants()
    queue.terminate()
    assert not is_observed(), "a circle would keep the messages in memory until the collector finds it"
    queue.check_invariants()


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


def test_digests_that_are_kept_are_memory_of_the_queue(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 20 * ENTRIES))
    before = queue.status().memory_bytes
    assert len(queue.digests()) == 20
    assert queue.status().memory_bytes > before + 20 * 100


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
    queue = harness.open_queue()
    assert queue.digests() == [], "it is mirrored"
    fill(harness, 320, queue)
    assert warm_up(harness) >= 6, "19 segments, three at a time"
    before = harness.disk.reads
    assert queue.digests() == digests_of(range(320))
    assert harness.disk.reads == before
    queue.check_invariants()


def test_to_warm_costs_a_look_at_each_segment_and_all_entries_of_those_that_are_computed(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of version 1 count more: each of its records is parsed."""
    monkeypatch.setattr(node.queues.digests, "V1_ENTRY_COST", 4)
    queue = fill(harness, 320)
    queue.remove([SeqRange(SeqId(18), SeqId(20)), SeqRange(SeqId(2 * ENTRIES), SeqId(3 * ENTRIES))])
    entry_cost = 4 if harness.config.queue_version == 1 else 1
    assert queue.warm(1) == 1 + (ENTRIES - 2) * entry_cost
    assert queue.warm(2) == 2 + ENTRIES * entry_cost, "in the first of these two is nothing"
    queue.check_invariants()
    assert queue.warm(2 + ENTRIES * entry_cost) == 2 * (1 + ENTRIES * entry_cost), "the second begins within the bound"
    assert queue.warm(1 + ENTRIES * entry_cost) == 1 + ENTRIES * entry_cost, "there it would not"
    queue.digests()
    assert queue.warm(1_000_000) == 19, "all are known"
    assert queue.warm(5) == 5
    assert queue.warm(0) == 0


def test_a_mirrored_queue_is_warmed_while_it_is_opened(harness: StoreHarness) -> None:
    """A step per segment: an attach right after the start of a node would read them all in one turn."""
    fill(harness, 320)
    harness.store.close()
    harness.start()
    opening = harness.store.queue_opening(QUEUE_ID, QUEUE_NAME, True, is_compared=True)
    steps = 0
    most_reads = 0
    while True:
        before = harness.disk.reads
        try:
            job = next(opening)
        except StopIteration as end:
            queue = end.value
            break
        most_reads = max(most_reads, harness.disk.reads - before)
        steps += 1
        if job is not None:
            job()
    assert steps >= 18
    assert most_reads <= 8
    before = harness.disk.reads
    assert queue.digests() == digests_of(range(320))
    assert harness.disk.reads - before <= 4, "the ends of what is on disk change at once"
    queue.check_invariants()


def opened_but_not_warm(harness: StoreHarness) -> Steps[LocalReplica]:
    """What is left of opening a queue of 320 messages that will be compared."""
    fill(harness, 320)
    harness.store.close()
    harness.start()
    opening = harness.store.queue_opening(QUEUE_ID, QUEUE_NAME, True, is_compared=True)
    while not harness.store._open:
        if (job := next(opening)) is not None:
            job()
    return opening


def test_an_opening_that_is_given_up_while_it_warms_leaves_the_queue_for_another(harness: StoreHarness) -> None:
    opening = opened_but_not_warm(harness)
    opening.close()
    assert harness.open_queue().digests() == digests_of(range(320))


def test_a_queue_that_nobody_compares_is_not_warmed(harness: StoreHarness) -> None:
    queue = fill(harness, 320)
    assert warm_up(harness) == 0
    assert not queue.wants_warming


def test_a_queue_is_worth_warming_as_soon_as_a_segment_may_lie_on_disk_only(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.digests()
    fill(harness, 2 * ENTRIES - 2, queue)
    assert not queue.wants_warming
    queue.publish(publications(2 * ENTRIES - 1, 2))
    assert queue.engine.stage_counts.delta == ENTRIES
    assert warm_up(harness) == 1
    assert queue.wants_warming


def test_the_segment_at_the_tail_is_left_until_it_is_full(harness: StoreHarness) -> None:
    queue = fill(harness, 330)
    queue.digests()
    queue.publish(publications(331, 1))
    harness.sync()
    assert warm_up(harness) == 0, "it changes at once"
    before = harness.disk.reads
    assert queue.digests() == digests_of(range(331))
    assert harness.disk.reads > before


def test_the_segment_at_the_head_is_left(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.queues.stages.LOAD_MESSAGES", ENTRIES + 4)
    queue = harness.open_queue()
    queue.digests()
    queue.set_lazy(True)
    queue.publish(publications(1, ENTRIES + 4))
    queue.publish(publications(ENTRIES + 5, ENTRIES + 8))
    harness.sync()
    assert queue.engine.stage_counts.delta == ENTRIES + 8, "of two segments, none is wholly on disk only"
    assert queue.wants_warming
    assert warm_up(harness) == 0
    assert queue.digests() == digests_of(range(2 * ENTRIES + 12))


def test_a_segment_that_changed_is_warmed_again(harness: StoreHarness) -> None:
    queue = fill(harness, 320)
    queue.digests()
    queue.remove([SeqRange(SeqId(100), SeqId(102))])
    assert warm_up(harness) == 1
    before = harness.disk.reads
    assert queue.digests() == digests_of([*range(100), *range(102, 320)])
    assert harness.disk.reads == before


@pytest.mark.parametrize("persistent", [False, True])
def test_segments_with_something_unacked_are_not_warmed(harness: StoreHarness, persistent: bool) -> None:
    """They change soon; and what is unacked need not be on disk, so that the index does not count all of them."""
    queue = harness.open_queue()
    queue.digests()
    queue.publish(publications(1, 128, persistent=persistent))
    queue.fetch(128, ack_required=True)
    queue.requeue([SeqId(seq_id) for seq_id in range(1, 128, 2)])
    queue.set_lazy(True)
    harness.sync()
    while queue.engine.maintain():
        harness.sync()
    assert queue.engine.stage_counts.delta == 32, "unacked positions lie between those in delta"
    assert queue.wants_warming
    assert warm_up(harness) == 0
    queue.check_invariants()
    assert queue.digests() == digests_of(range(128))


def test_a_disk_that_cannot_be_read_takes_the_queue_out_of_service(harness: StoreHarness) -> None:
    changed: list[QueueId] = []
    harness.store = VhostStore(
        harness.disk, DATA_DIRECTORY, "/", harness.group_commit, harness.config, on_queue_changed=changed.append
    )
    queue = fill(harness, 320)
    queue.digests()
    # The third: because what version 1 has read last is remembered.
    queue.remove([SeqRange(SeqId(first), SeqId(first + 1)) for first in (100, 200, 300)])
    harness.disk.fail_reads = harness.queue_directory
    before = harness.disk.reads
    harness.store.maintain(0)
    assert changed == [QUEUE_ID]
    assert harness.disk.reads == before + 1, "nothing else is tried"
    assert queue.engine.has_failed
    harness.store.maintain(0)
    assert changed == [QUEUE_ID], "said once"


def test_a_disk_that_cannot_be_read_while_a_queue_is_warmed_leaves_it_open_and_out_of_service(
    harness: StoreHarness,
) -> None:
    opening = opened_but_not_warm(harness)
    harness.disk.fail_reads = harness.queue_directory
    queue = run_through(opening)
    assert queue.engine.has_failed


def test_a_queue_with_much_to_do_does_not_keep_the_others_waiting(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vhost_store, "WARMED_ENTRIES", 1)
    queues = [harness.open_queue(), harness.store.open_queue(QueueId(8), QueueName("/", "other"), durable=True)]
    for queue in queues:
        queue.digests()
        fill(harness, 320, queue)
    for _ in range(20):
        harness.store.maintain(0)
    left: list[int] = []
    for queue in queues:
        before = harness.disk.reads
        queue.digests()
        left.append(harness.disk.reads - before)
    assert abs(left[0] - left[1]) <= 2, "as much was done for the one as for the other"
    assert 0 < left[0] <= 20, "of 19 segments, about ten were done"

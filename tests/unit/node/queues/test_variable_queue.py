"""The local engine beyond the contract: restarts, crashes, failures, memory, positions, mirroring's view."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.errors import StorageError
from node.ids import Epoch, OriginId, QueueId, QueueName, SeqId
from node.message import decode_envelope
from node.queues.backing_queue import Publication
from node.queues.local_replica import LocalReplica
from node.queues.origins import ORIGINS_MAX
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, Holding, SeqRange
from node.store.disk.simulated import CrashStyle
from node.store.shared.config import StoreConfig
from tests.support.backing_queue_contract import counters
from tests.support.digests import expected_digests
from tests.support.messages import make_message, make_msg_id, msg_id_of, publications
from tests.support.stores import QUEUE_ID, QUEUE_NAME, StoreHarness


@pytest.fixture
def harness() -> StoreHarness:
    return StoreHarness()


def test_a_clean_restart_keeps_order_flags_and_origins(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 5))
    queue.publish(publications(6, 2, persistent=False))
    taken = queue.fetch(2, ack_required=True)
    queue.ack([taken[0].seq_id])
    queue.discard([Publication(make_message(3, origin=OriginId(b"elsewher")))])
    next_seq_id = queue.next_seq_id
    queue = harness.restart()
    report = queue.recovery_report
    assert report is not None
    assert (report.clean, report.messages, report.redelivered) == (True, 4, 1)
    assert queue.next_seq_id == next_seq_id
    assert queue.is_duplicate(msg_id_of(7)), "transient messages are gone, but were accepted"
    assert queue.is_duplicate(msg_id_of(3, OriginId(b"elsewher")))
    deliveries = queue.fetch(9, ack_required=True)
    assert counters(deliveries) == [2, 3, 4, 5]
    assert [delivery.redelivered for delivery in deliveries] == [True, False, False, False]


def test_a_crash_keeps_what_was_confirmed_and_flags_it(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 3))
    harness.sync()
    assert queue.drain_confirmed() == [1, 2, 3]
    queue.publish(publications(4, 2))
    harness.store.flush_writes()
    assert queue.drain_confirmed() == []
    queue = harness.crash()
    deliveries = queue.fetch(9, ack_required=True)
    assert counters(deliveries) == [1, 2, 3]
    assert all(delivery.redelivered for delivery in deliveries)
    assert queue.is_duplicate(msg_id_of(3))
    assert not queue.is_duplicate(msg_id_of(4))


@pytest.mark.parametrize("embed_below_bytes", [0, 4096])
def test_what_a_dead_process_left_unsynced_is_synced_by_recovery(embed_below_bytes: int) -> None:
    harness = StoreHarness(StoreConfig(embed_below_bytes=embed_below_bytes))
    harness.open_queue().publish(publications(1, 2))
    harness.store.flush_writes()
    harness.start()  # the process died, the machine did not
    queue = harness.open_queue()
    queue.confirm_when_safe(msg_id_of(1), "again")
    assert queue.drain_confirmed() == ["again"]
    assert counters(harness.crash().fetch(9, True)) == [1, 2]


def test_a_clean_stop_syncs_files_that_are_closed_already(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    for counter in range(1, 7):
        queue.publish(publications(counter, 1))
        harness.store.flush_writes()
        queue.advance_next_seq_id(SeqId(counter * 4096))
    harness.store.close()
    assert counters(harness.crash().fetch(9, True)) == [1, 2, 3, 4, 5, 6]


def test_the_terms_of_a_clean_stop_are_used_once(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    queue = harness.restart()
    queue = harness.crash()
    assert queue.recovery_report is not None
    assert not queue.recovery_report.clean


def test_positions_are_not_used_again_after_a_crash_even_if_everything_is_settled(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    for counter in range(1, 4):
        queue.publish(publications(counter, 1))
        harness.sync()
        queue.advance_next_seq_id(SeqId(counter * 4096 + 50))
    queue.purge()
    queue.publish(publications(4, 10, persistent=False))
    harness.sync()
    used = queue.next_seq_id
    queue = harness.crash()
    assert queue.next_seq_id >= used
    assert queue.ready == 0


TRANSIENT = make_message(1, persistent=False)


@pytest.mark.parametrize(
    "jump",
    [
        lambda queue: queue.advance_next_seq_id(SeqId(1 << 40)),
        lambda queue: queue.insert([SeqId(1 << 40)], [TRANSIENT], [TRANSIENT.envelope()]),
        lambda queue: queue.publish(publications(1, 8, persistent=False)),
        lambda queue: queue.publish_delivered(publications(1, 8, persistent=False)),
    ],
    ids=["advance", "insert", "publish", "publish delivered"],
)
def test_positions_beyond_the_reserved_are_reserved_though_nothing_is_stored(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch, jump: Callable[[LocalReplica], object]
) -> None:
    monkeypatch.setattr("node.store.index.terms.RESERVE_STEP", 10)
    queue = harness.open_queue()
    harness.sync()
    jump(queue)
    assert harness.store.has_unflushed
    harness.sync()
    used = queue.next_seq_id
    assert harness.crash().next_seq_id >= used


def test_a_clean_stop_makes_the_reservation_durable(harness: StoreHarness) -> None:
    """The start after it takes the bound for durable and uses positions below it."""
    harness.open_queue()
    harness.store.flush_writes()
    queue = harness.restart()
    queue.publish(publications(1, 3))
    harness.sync()
    queue = harness.crash()
    queue.purge()
    harness.restart()
    queue = harness.crash()
    assert queue.next_seq_id >= 3


def test_a_transient_queue_has_no_directory(harness: StoreHarness) -> None:
    queue = harness.open_queue(durable=False)
    queue.publish(publications(1, 2))
    assert queue.drain_confirmed() == [1, 2], "nothing to wait for"
    assert not harness.disk.exists(harness.queue_directory)
    queue.terminate()
    assert harness.crash().ready == 0


def test_flush_durability_confirms_without_a_sync() -> None:
    harness = StoreHarness(StoreConfig(confirm_after_sync=False))
    queue = harness.open_queue()
    queue.publish(publications(1, 2))
    assert queue.drain_confirmed() == []
    stamp = queue.write_generation
    assert queue.durable_generation < stamp
    harness.store.flush_writes()
    assert queue.durable_generation >= stamp
    assert queue.drain_confirmed() == [1, 2]


def test_a_settled_duplicate_is_confirmed_at_once(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.sync()
    queue.drain_confirmed()
    queue.confirm_when_safe(msg_id_of(1), "again")
    assert queue.drain_confirmed() == ["again"]


def test_a_duplicate_between_flush_and_sync_waits_for_the_sync(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.store.flush_writes()
    queue.confirm_when_safe(msg_id_of(1), "again")
    assert queue.drain_confirmed() == []
    harness.sync()
    assert queue.drain_confirmed() == [1, "again"]


def test_origins_are_bounded_and_the_least_recent_goes(harness: StoreHarness) -> None:
    queue = harness.open_queue(durable=False)
    first = OriginId(bytes(8))
    for number in range(ORIGINS_MAX):
        queue.discard([Publication(make_message(1, origin=OriginId(number.to_bytes(8, "big"))))])
    queue.discard([Publication(make_message(2, origin=first))])
    queue.discard([Publication(make_message(1, origin=OriginId(b"\xff" * 8)))])
    assert len(queue.origins()) == ORIGINS_MAX
    assert queue.is_duplicate(make_msg_id(first, 2))
    assert not queue.is_duplicate(make_msg_id(OriginId((1).to_bytes(8, "big")), 1))


# -- failures


@pytest.mark.parametrize("big", [False, True])
def test_a_full_disk_is_waited_for(big: bool) -> None:
    """Nothing is confirmed and nothing is lost meanwhile; the queue goes on serving what it has."""
    harness = StoreHarness(StoreConfig(embed_below_bytes=0 if big else 4096))
    queue = harness.open_queue()
    other = harness.store.open_queue(QueueId(8), QueueName("/", "other"), durable=True)
    other.publish(publications(101, 3))
    queue.publish(publications(1, 1))
    earlier = queue.write_generation
    harness.sync()
    assert queue.drain_confirmed() == [1]
    harness.disk.capacity_bytes = harness.disk.used_bytes
    queue.publish(publications(2, 2))
    stamp = queue.write_generation
    for _ in range(3):
        # Rounds go on: what needs no space is written and synced.
        other.fetch(1, ack_required=False)
        other.engine.flush_writes()
        harness.group_commit.mark_dirty(harness.disk.directory(harness.queue_directory))
        harness.sync()
        assert harness.group_commit.durable_generation >= stamp
        assert queue.drain_confirmed() == []
        assert queue.is_disk_full
        assert earlier <= queue.durable_generation < stamp
        queue.check_invariants()
    assert counters(queue.fetch(2, ack_required=False)) == [1, 2]
    harness.disk.capacity_bytes = 1 << 40
    assert queue.engine.wants_maintenance
    queue.engine.maintain()
    harness.sync()
    assert (queue.is_disk_full, queue.drain_confirmed()) == (False, [2, 3])
    queue = harness.crash(CrashStyle.DROP)
    assert counters(queue.fetch(9, True)) == [3]


def test_the_part_that_found_space_is_confirmed_by_its_own_round() -> None:
    """Even if the rest is settled before it is ever written."""
    harness = StoreHarness(StoreConfig(v2_segment_entries=8))
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.sync()
    assert queue.drain_confirmed() == [1]
    deliveries = queue.publish_delivered(publications(2, 10))
    # Space for the first of the two segments.
    harness.disk.capacity_bytes = harness.disk.used_bytes + 800
    queue.engine.flush_writes()
    assert [queue.is_disk_full] == [True]
    unwritten = [each.seq_id for each in deliveries if each.seq_id >= 8]
    assert queue.ack(unwritten) == 3
    queue.engine.flush_writes()
    assert [queue.is_disk_full] == [False]
    assert queue.drain_confirmed() == [9, 10, 11], "what is settled, and nothing that is not durable"
    assert queue.durable_generation < queue.write_generation
    harness.sync()
    assert queue.drain_confirmed() == list(range(2, 9))


@pytest.mark.parametrize("big", [False, True])
def test_a_failed_write_takes_the_queue_out_of_service(big: bool) -> None:
    harness = StoreHarness(StoreConfig(embed_below_bytes=0 if big else 4096))
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.sync()
    assert queue.drain_confirmed() == [1]
    harness.disk.fail_writes = "msg_store_persistent" if big else ".qs"
    queue.publish(publications(2, 1))
    stamp = queue.write_generation
    harness.sync()
    for operation in (queue.drain_confirmed, queue.purge, lambda: queue.publish(publications(3, 1))):
        with pytest.raises(StorageError, match="injected"):
            operation()
    assert queue.durable_generation < stamp
    assert queue.status().ready == 2
    harness.disk.fail_writes = None
    queue = harness.restart()
    assert queue.recovery_report is not None
    assert not queue.recovery_report.clean
    assert counters(queue.fetch(9, True)) == [1]


def test_a_failed_write_leaves_other_queues_alone(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    other = harness.store.open_queue(QueueId(8), QueueName("/", "other"), durable=True)
    harness.disk.fail_writes = f"/queues/{QUEUE_ID}/"
    queue.publish(publications(1, 1))
    other.publish(publications(1, 1))
    stamp = queue.write_generation
    harness.sync()
    assert other.drain_confirmed() == [1]
    assert other.durable_generation >= stamp
    assert queue.durable_generation < stamp, "the round was not for the queue whose write failed"
    with pytest.raises(StorageError):
        queue.drain_confirmed()


def test_nothing_is_confirmed_after_a_failed_fsync(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.disk.fail_syncs = ".qs"
    sync_round = harness.group_commit.begin()
    assert sync_round is not None
    with pytest.raises(StorageError) as caught:
        sync_round.run()
    harness.group_commit.fail(sync_round, caught.value)
    harness.disk.fail_syncs = None
    with pytest.raises(StorageError, match="fsync"):
        queue.drain_confirmed()
    queue.terminate()
    assert harness.crash().ready == 0


# -- memory


def test_bodies_beyond_the_target_are_read_back_in_batches() -> None:
    harness = StoreHarness(StoreConfig(v2_segment_entries=64, io_batch_messages=32))
    queue = harness.open_queue()
    queue.engine.paging.target_ram_count = 10
    for first in range(1, 500, 50):
        queue.publish(publications(first, 50, body=b"b" * 100))
        harness.store.flush_writes()
        queue.engine.paging.page_out()
        queue.check_invariants()
    status = queue.status()
    assert (status.ready, status.in_ram, status.ready_bytes) == (500, 10, 50_000)
    assert queue.engine.stage_counts.delta > 300
    assert counters(queue.fetch(20, ack_required=True)) == list(range(1, 21))
    queue.check_invariants()
    assert queue.requeue_all() == 20
    assert counters(queue.fetch(500, ack_required=False)) == list(range(1, 501))
    queue.check_invariants()
    assert queue.status().in_ram == 0


def test_memory_is_that_of_bodies_messages_and_positions() -> None:
    """By estimates: what a message object takes, and what a position takes whose body is on disk. The index has a bit
    for each."""
    harness = StoreHarness(StoreConfig(v2_segment_entries=64))
    queue = harness.open_queue()
    queue.publish(publications(1, 10, body=bytes(1000)))
    harness.sync()
    before = queue.status().memory_bytes
    queue.publish(publications(11, 50, body=bytes(1000)))
    harness.sync()
    assert queue.status().memory_bytes - before == pytest.approx(50 * (1000 + 500), abs=8)
    queue.fetch(30, ack_required=True)
    assert queue.status().memory_bytes - before == pytest.approx(50 * (1000 + 500), abs=8), "the same if unacked"
    queue.engine.paging.target_ram_count = 0
    while queue.engine.paging.page_out():
        pass
    assert queue.status().memory_bytes - before == pytest.approx(60 * 250 - 10 * (1000 + 500), abs=8)


def test_unacked_bodies_leave_memory_too(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 10))
    harness.store.flush_writes()
    queue.fetch(10, ack_required=True)
    queue.set_ram_duration_target(0.0)
    queue.engine.paging.page_out()
    assert queue.status().in_ram == 0
    queue.check_invariants()


def test_a_turn_with_many_bytes_does_not_wait_for_its_end(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 200, body=b"b" * 4000))
    assert harness.disk.exists(f"{harness.queue_directory}/0.qs")


# -- mirroring


def test_insert_below_the_tail_and_remove(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    late, early = make_message(10), make_message(1)
    queue.insert([SeqId(10)], [late], [late.envelope()])
    queue.insert([SeqId(3), SeqId(10)], [early, early], [early.envelope()] * 2)
    assert (queue.first_live_seq_id, queue.next_seq_id) == (3, 11)
    assert queue.holdings(0) == [Holding(SeqId(3), early.msg_id), Holding(SeqId(10), late.msg_id)]
    assert queue.digests() == expected_digests({3: early.msg_id, 10: late.msg_id}, DIGEST_SEGMENT_ENTRIES)
    assert queue.read([SeqId(10), SeqId(5), SeqId(3)]) == [(10, late.envelope()), (3, early.envelope())]
    assert queue.remove([SeqRange(SeqId(0), SeqId(1 << 50))]) == 2
    assert queue.digests() == []
    assert queue.first_live_seq_id == 11
    queue.check_invariants()


def test_an_older_sync_batch_does_not_lower_the_origins(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(5, 1))
    queue.insert([SeqId(7), SeqId(8)], [make_message(4), make_message(3)], [b"", b""])
    assert queue.origins() == {OriginId(b"origin-1"): 5}
    queue.merge_origins({OriginId(b"origin-1"): 4, OriginId(b"origin-2"): 9})
    assert queue.origins() == {OriginId(b"origin-1"): 5, OriginId(b"origin-2"): 9}


def test_the_first_live_position_is_the_lowest_of_what_is_ready_and_what_is_unacked(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    assert queue.first_live_seq_id == queue.next_seq_id
    queue.publish(publications(1, 4))
    assert queue.first_live_seq_id == 0
    queue.fetch(2, ack_required=True)
    assert queue.first_live_seq_id == 0, "unacked, before what is ready"
    queue.ack([SeqId(0)])
    assert queue.first_live_seq_id == 1
    queue.fetch(2, ack_required=True)
    assert queue.first_live_seq_id == 1, "of several that are unacked the first; nothing is ready"
    queue.requeue([SeqId(1)])
    assert queue.first_live_seq_id == 1, "ready, before what is unacked"
    queue.ack([SeqId(2), SeqId(3)])
    queue.purge()
    assert queue.first_live_seq_id == queue.next_seq_id == 4


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("how", ["ack", "drop", "purge", "remove"])
def test_what_is_settled_asks_for_a_write_if_it_is_on_disk(harness: StoreHarness, how: str, persistent: bool) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 4, persistent=persistent))
    harness.sync()
    match how:
        case "ack":
            queue.ack([delivery.seq_id for delivery in queue.fetch(4, ack_required=True)])
        case "drop":
            queue.drop(4)
        case "purge":
            queue.purge()
        case "remove":
            queue.remove([SeqRange(SeqId(0), SeqId(4))])
    assert queue.ready + queue.unacked == 0
    assert harness.store.has_unflushed is persistent


def test_marked_messages_are_delivered_flagged(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 3))
    queue.mark_delivered_below(SeqId(2))
    assert [delivery.redelivered for delivery in queue.fetch(3, True)] == [True, True, False]


def test_what_counts_as_delivered_is_kept_over_a_clean_stop_with_the_epoch_it_is_true_of(
    harness: StoreHarness,
) -> None:
    queue = harness.open_queue()
    assert queue.delivered_epoch == 0, "nothing is known"
    queue.publish(publications(1, 4))
    queue.fetch(3, ack_required=True)
    queue.requeue_all()
    queue.close_deliveries(Epoch(7), SeqId(2))
    queue = harness.restart()
    assert (queue.delivered_epoch, queue.delivered_below) == (7, 2)
    assert [delivery.redelivered for delivery in queue.fetch(4, True)] == [True, True, False, False]
    queue.requeue_all()
    queue.mark_none_delivered()
    assert [delivery.redelivered for delivery in queue.fetch(4, True)] == [False] * 4
    harness.sync()
    queue = harness.crash()
    assert (queue.delivered_epoch, queue.delivered_below >= 4) == (0, True), "after a crash everything may have been"


def test_to_insert_nothing_or_what_is_there_changes_nothing(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 3))
    harness.sync()
    before = (queue.status(), queue.origins())
    queue.insert([], [], [])
    queue.insert([SeqId(0), SeqId(2)], [make_message(1)] * 2, [make_message(1).envelope()] * 2)
    queue.remove([])
    queue.publish([])
    assert (queue.status(), queue.origins()) == before
    assert not harness.store.has_unflushed
    assert counters(queue.fetch(9, True)) == [1, 2, 3]


def test_what_is_on_disk_only_is_listed_and_read_like_the_rest(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.queues.stages.LOAD_MESSAGES", 8)
    queue = harness.open_queue()
    queue.set_lazy(True)
    for first in range(1, 41, 4):
        queue.publish(publications(first, 4, persistent=first % 8 == 1))
        harness.sync()
    queue.fetch(3, ack_required=True)
    assert queue.engine.stage_counts.delta == 32
    queue.remove([SeqRange(SeqId(20), SeqId(30))])
    left = [SeqId(seq_id) for seq_id in range(40) if not 20 <= seq_id < 30]
    assert queue.holdings(0) == [Holding(seq_id, msg_id_of(seq_id + 1)) for seq_id in left]
    assert queue.live_positions(0) == left
    assert queue.live_counts() == [(0, 30)]
    envelopes = dict(queue.read([SeqId(seq_id) for seq_id in range(45)]))
    assert list(envelopes) == left
    assert all(decode_envelope(envelopes[seq_id])[0].msg_id == msg_id_of(seq_id + 1) for seq_id in left)


def test_bodies_of_transient_unacked_messages_are_written_when_they_leave_memory(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 3, persistent=False))
    queue.publish(publications(4, 3))
    harness.sync()
    queue.fetch(6, ack_required=True)
    queue.set_ram_duration_target(0.0)
    queue.engine.maintain()
    assert queue.status().in_ram == 0
    harness.sync()
    assert queue.requeue_all() == 6
    delivered = queue.fetch(6, ack_required=True)
    assert [each.message.body for each in delivered] == [make_message(each).body for each in range(1, 7)]
    assert counters(harness.crash().fetch(9, True)) == [4, 5, 6], "they are no more persistent for that"


def test_a_purge_of_nothing_is_none(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    assert queue.purge() == 0
    queue.publish(publications(1, 2))
    harness.sync()
    queue.fetch(2, ack_required=True)
    assert queue.purge() == 0
    queue.check_invariants()
    assert queue.ack([SeqId(0), SeqId(1)]) == 2


def test_generations_say_when_a_write_is_safe(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    assert queue.durable_generation >= queue.write_generation, "nothing is under way"
    stamp = queue.write_generation
    queue.publish(publications(1, 1))
    assert queue.durable_generation < stamp
    harness.store.flush_writes()
    assert queue.durable_generation < stamp
    harness.sync()
    assert queue.durable_generation >= stamp
    queue.publish(publications(2, 1, persistent=False))
    assert queue.durable_generation >= queue.write_generation, "a transient message waits for nothing"


def test_tombstones_do_not_pile_up(harness: StoreHarness) -> None:
    queue = harness.open_queue(durable=False)
    queue.publish(publications(1, 5000, persistent=False))
    queue.remove([SeqRange(SeqId(1), SeqId(5000))])
    queue.check_invariants()
    assert counters(queue.fetch(2, True)) == [1]


def test_the_name_is_kept_for_people(harness: StoreHarness) -> None:
    harness.open_queue()
    assert harness.store.queues_on_disk() == [(QUEUE_ID, QUEUE_NAME)]


# --- credit flow ---


@pytest.mark.parametrize("tokens", [True, False])
def test_in_flight_is_what_was_published_and_is_not_durable(harness: StoreHarness, tokens: bool) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 5, tokens=tokens))
    queue.publish(publications(6, 5, persistent=False, tokens=tokens))
    assert queue.in_flight_messages == 5
    queue.engine.flush_writes()
    queue.drain_confirmed()
    assert queue.in_flight_messages == 5, "written is not yet durable"
    harness.sync()
    queue.drain_confirmed()
    assert queue.in_flight_messages == 0


def test_what_is_settled_is_not_in_flight_any_more(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 5))
    taken = queue.fetch(3, ack_required=True)
    assert queue.in_flight_messages == 5
    queue.ack([each.seq_id for each in taken])
    assert queue.in_flight_messages == 2
    queue.purge()
    assert queue.in_flight_messages == 0


def test_what_is_published_while_a_round_runs_is_in_flight_until_the_next(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 2, tokens=False))
    running = harness.group_commit.begin()
    assert running is not None
    queue.publish(publications(3, 5, tokens=False))
    running.run()
    harness.group_commit.complete(running)
    assert queue.in_flight_messages == 5
    harness.sync()
    assert queue.in_flight_messages == 0


def test_a_queue_without_disk_has_nothing_in_flight(harness: StoreHarness) -> None:
    queue = harness.open_queue(durable=False)
    queue.publish(publications(1, 5))
    assert (queue.in_flight_messages, queue.mirrors_in_flight()) == (0, ())

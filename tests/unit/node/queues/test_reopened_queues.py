"""A queue that is opened again, in the same life of the node, after it could not be closed cleanly.

Its acks gave references of the shared store back and are in no file: what it finds again must not give them back a
second time, for another queue may have the same messages.
"""

from __future__ import annotations

import random

import pytest

from cluster.mirroring.master import MirroringSettings
from node.errors import DiskFullError, OpenFilesError, StorageError
from node.ids import QueueName
from node.queues.options import QueueOptions
from node.store.disk.simulated import CrashStyle
from node.store.index.conversion import ConvertingIndex
from node.store.shared.config import StoreConfig
from tests.support.full_disk import Refusal
from tests.support.given_up import FIRST, SECOND, fan_out, open_queue, settle_all
from tests.support.messages import make_message, publications
from tests.support.queue_sets import CLIENT, N1, N2, OTHER, Q, QueueSetNetwork, mastership
from tests.support.stores import StoreHarness

BODY_BYTES = 20_000


def collect_garbage(harness: StoreHarness) -> None:
    for now_s in range(100):
        harness.store.maintain(now_s * 1000)
        harness.store.reclaim()
        harness.sync()
    harness.store.check_invariants()


def messages_left_after_a_clean_start(harness: StoreHarness) -> int:
    harness.store.close()
    harness.start()
    return harness.store.shared_status().messages


@pytest.mark.parametrize("version", [1, 2])
def test_what_another_queue_has_outlives_a_queue_that_failed_with_acks(version: int) -> None:
    harness = StoreHarness()
    first, second = fan_out(harness, 3, version, BODY_BYTES)
    first.ack([delivery.seq_id for delivery in first.fetch(1, ack_required=True)])
    first.engine.writes.fail(StorageError("write of 0.qi failed: Input/output error (errno 5)"))
    first.terminate()
    settle_all(open_queue(harness, FIRST, version))
    collect_garbage(harness)
    second.terminate()
    second = open_queue(harness, SECOND, version)
    deliveries = second.fetch(9, True)
    assert [len(delivery.message.body) for delivery in deliveries] == [BODY_BYTES] * 3
    second.ack([delivery.seq_id for delivery in deliveries])
    assert messages_left_after_a_clean_start(harness) == 0, "what nobody gave back is found by the next start"


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_queue_finds_again_in_the_shared_store_is_durable_when_its_generation_is(version: int) -> None:
    """Its own files were synced when it was opened again; a file of the shared store waits for its round."""
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, version)
    harness.sync()
    large = publications(1, 1, body=bytes(BODY_BYTES))
    queue.publish(large)
    harness.store.flush_writes()
    queue.engine.writes.fail(OpenFilesError("open of 1.qi failed: Too many open files (errno 24)"))
    queue.terminate()
    sync_round = harness.group_commit.begin()
    assert sync_round is not None
    queue = open_queue(harness, FIRST, version)
    assert queue.ready == 1
    assert queue.is_duplicate(large[0].message.msg_id)
    queue.confirm_when_safe(large[0].message.msg_id, "sent again")
    assert queue.drain_confirmed() == [], "a loss of power would take the message"
    assert queue.durable_generation < sync_round.generation, "a mirror must not call it durable either"
    sync_round.run()
    harness.group_commit.complete(sync_round)
    harness.sync()  # of what the opening wrote, if anything
    assert queue.drain_confirmed() == ["sent again"]
    assert queue.durable_generation == queue.write_generation
    assert harness.crash().ready == 1


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_queue_finds_again_before_a_round_has_begun_is_durable_with_the_next(version: int) -> None:
    harness = StoreHarness()
    queue = open_queue(harness, FIRST, version)
    queue.publish(publications(1, 1, body=bytes(BODY_BYTES)))
    harness.store.flush_writes()
    queue.engine.writes.fail(OpenFilesError("open of 1.qi failed: Too many open files (errno 24)"))
    queue.terminate()
    queue = open_queue(harness, FIRST, version)
    assert queue.durable_generation < queue.write_generation
    harness.sync()
    assert queue.durable_generation == queue.write_generation


@pytest.mark.parametrize(("version", "count", "refused"), [(1, 10, ".jif"), (2, 320, ".qs")])
def test_what_another_queue_has_outlives_a_queue_that_was_closed_on_a_full_disk(
    version: int, count: int, refused: str
) -> None:
    harness = StoreHarness(StoreConfig(v2_segment_entries=32))
    first, second = fan_out(harness, count, version, BODY_BYTES)
    with Refusal(harness.disk, refused, 1, 0.0):
        deliveries = first.fetch(count, True)
        first.publish(publications(1001, 1, body=bytes(10)))
        first.ack([delivery.seq_id for delivery in deliveries if delivery.seq_id % 32 < 20])  # in many segments
        with pytest.raises(DiskFullError):
            first.terminate()
    settle_all(open_queue(harness, FIRST, version))
    collect_garbage(harness)
    second.terminate()
    second = open_queue(harness, SECOND, version)
    assert [len(delivery.message.body) for delivery in second.fetch(count, True)] == [BODY_BYTES] * count


def test_a_conversion_that_a_full_disk_did_not_let_go_on_loses_nothing_when_there_is_room() -> None:
    """It had given back the references of what was converted already, and found no room to say so."""
    harness = StoreHarness(StoreConfig(v1_segment_entries=512))
    queue = open_queue(harness, FIRST, 1)
    queue.publish(publications(1, 2000, body=bytes(5_000)))
    harness.sync()
    queue.set_index_version(2)
    for now_s in range(3000):
        harness.store.maintain(now_s * 1000)
        harness.sync()
        index = queue.engine.content.index
        if isinstance(index, ConvertingIndex) and index._noted and not index.is_finished:
            break
    assert queue.engine.is_converting
    harness.sync()
    harness.disk.crash(CrashStyle.DROP, random.Random(1))
    harness.start()
    open_handles = harness.disk.open_handles
    with Refusal(harness.disk, ".jif", 1, 0.0), pytest.raises(DiskFullError):
        open_queue(harness, FIRST, 2)
    assert harness.disk.open_handles == open_handles
    queue = open_queue(harness, FIRST, 2)
    assert sum(len(queue.fetch(500, True)) for _ in range(5)) == 2000


def test_what_a_failed_copy_had_that_was_deleted_is_found_by_the_next_start() -> None:
    harness = StoreHarness()
    first, second = fan_out(harness, 5, 2, BODY_BYTES)
    settle_all(second)
    first.engine.writes.fail(StorageError("write of 0.qi failed: Input/output error (errno 5)"))
    first.terminate()
    harness.store.delete_queue_directory(FIRST)
    collect_garbage(harness)
    assert messages_left_after_a_clean_start(harness) == 0


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_queue_had_that_was_deleted_while_it_was_opened_first_is_given_back(version: int) -> None:
    harness = StoreHarness()
    fan_out(harness, 5, version, BODY_BYTES)
    harness.disk.crash(CrashStyle.DROP, random.Random(1))
    harness.start()
    harness.store.delete_queue_directory(SECOND)
    steps = harness.store.queue_opening(FIRST, QueueName("/", f"q{FIRST}"), True, version)
    next(steps)
    steps.close()
    harness.store.delete_queue_directory(FIRST)
    collect_garbage(harness)
    assert harness.store.shared_status().messages == 0


def test_references_of_a_deleted_queue_that_could_not_be_read_are_found_by_the_next_start() -> None:
    harness = StoreHarness()
    for queue in fan_out(harness, 5, 2, BODY_BYTES):
        queue.terminate()
    for queue_id in (FIRST, SECOND):
        harness.store.delete_queue_directory(queue_id)
    harness.sync()
    harness.disk.fail_reads = "/deleting/"
    collect_garbage(harness)
    harness.disk.fail_reads = None
    assert messages_left_after_a_clean_start(harness) == 0


def test_a_queue_that_was_closed_cleanly_leaves_the_tables_of_the_shared_store_in_force() -> None:
    harness = StoreHarness()
    first, second = fan_out(harness, 5, 2, BODY_BYTES)
    settle_all(first)
    first.terminate()
    open_queue(harness, FIRST).terminate()
    second.terminate()
    assert messages_left_after_a_clean_start(harness) == 5
    assert harness.store.store_recovery.clean


def test_a_mirror_that_was_dropped_with_a_full_disk_and_taken_back_takes_nothing_of_another_queue() -> None:
    network = QueueSetNetwork(N1, N2)
    for node in network.nodes.values():
        node.options = QueueOptions(index_version=1)
        node.settings = MirroringSettings(sync_automatically=True)
    for queue in (Q, OTHER):
        network.follow(queue, mastership(queue, N1, N2))
    network.pump()
    messages = [make_message(counter, body=bytes(BODY_BYTES)) for counter in range(10)]
    for queue in (Q, OTHER):
        network[N1].process(queue).publish(CLIENT, messages, list(range(10)))
        network[N1].queues.touch(queue.queue_id)
    network.pump()
    mirror = network[N2]
    mirror.disk.capacity_bytes = mirror.disk.used_bytes
    for _ in messages:
        assert network[N1].process(Q).get(CLIENT, True) is not None
    network[N1].queues.touch(Q.queue_id)
    network.pump()
    network.follow(Q, mastership(Q, N1))
    network.pump()
    mirror.disk.capacity_bytes = 1 << 40
    network.follow(Q, mastership(Q, N1, N2, synchronised=()))
    network.pump()
    assert (mirror.depth(Q), mirror.depth(OTHER)) == (0, 10)
    for tick in range(50):
        mirror.files.maintain(tick * 1000)
        mirror.files.reclaim()
        mirror.sync()
    mirror.restart_cleanly()
    mirror.queues.follow(OTHER, mastership(OTHER, N2, epoch=2))
    mirror.turn()
    mirror.sync()
    mirror.turn()
    mirror.consume(OTHER)
    for _ in range(5):
        mirror.turn()
        mirror.sync()
    assert len(mirror.delivered()) == 10

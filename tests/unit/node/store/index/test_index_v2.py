"""What the index writes, when, and what it tells of a damaged one. Driven through `VariableQueue`, its only owner."""

from __future__ import annotations

import random

import pytest

from node.errors import StorageError
from node.ids import SeqId
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, SeqRange
from node.store.disk.simulated import CrashStyle, SimulatedFile
from node.store.formats.record import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    SLOT_BYTES,
    SLOT_MSG_ID_AT,
    STATUS_PRESENT,
    ZERO_SLOT,
    unpack_slot,
)
from node.store.index.terms import RESERVE_STEP
from node.store.index.v2.scan import BadSlot, scan_slots
from node.store.shared.config import StoreConfig
from tests.support.digests import expected_digests
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.stores import StoreHarness

#: Entries of a segment, unless a test wants fewer.
SEGMENT_ENTRIES = StoreConfig().v2_segment_entries
INDEX_FILE_BYTES = HEADER_BYTES + SEGMENT_ENTRIES * SLOT_BYTES


@pytest.fixture
def harness() -> StoreHarness:
    return StoreHarness(StoreConfig(embed_below_bytes=100))


def segment_files(harness: StoreHarness) -> list[str]:
    return [name for name in harness.disk.list(harness.queue_directory) if name.endswith((".qi", ".qs"))]


def slot(harness: StoreHarness, number: int) -> bytes:
    start = HEADER_BYTES + number * SLOT_BYTES
    return harness.disk.snapshot()[f"{harness.queue_directory}/0.qi"][start : start + SLOT_BYTES]


def test_a_turn_is_two_writes(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.store.flush_writes()
    before = harness.disk.operations
    queue.publish(publications(2, 50))
    queue.publish(publications(52, 50))
    harness.store.flush_writes()
    assert harness.disk.operations == before + 2


def test_what_is_settled_within_the_turn_touches_no_file(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 10))
    queue.ack([delivery.seq_id for delivery in queue.fetch(10, ack_required=True)])
    harness.store.flush_writes()
    assert segment_files(harness) == []


def test_transient_messages_touch_no_file(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 10, persistent=False))
    harness.store.flush_writes()
    assert segment_files(harness) == []


def test_an_ack_zeroes_the_slot(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 3))
    harness.sync()
    queue.fetch(3, ack_required=True)
    queue.ack([SeqId(1)])
    harness.store.flush_writes()
    assert slot(harness, 1) == ZERO_SLOT
    assert slot(harness, 0)[0] == slot(harness, 2)[0] == 1


def test_scattered_acks_are_written_as_one(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 100))
    harness.sync()
    queue.fetch(100, ack_required=True)
    before = harness.disk.operations
    queue.ack([SeqId(seq_id) for seq_id in range(0, 100, 2)])
    harness.store.flush_writes()
    assert harness.disk.operations == before + 1
    assert [seq_id for seq_id in range(100) if slot(harness, seq_id) != ZERO_SLOT] == list(range(1, 100, 2))
    queue.check_invariants()


def test_a_pair_of_files_goes_when_all_of_it_is_acked_and_the_queue_has_moved_on(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 5))
    harness.sync()
    queue.purge()
    harness.sync()
    assert segment_files(harness) == ["0.qi", "0.qs"], "later messages still go there"
    queue.advance_next_seq_id(SeqId(SEGMENT_ENTRIES))
    queue.publish(publications(6, 1))
    harness.sync()
    assert segment_files(harness) == ["1.qi", "1.qs"]
    queue.check_invariants()


def test_a_batch_over_the_end_of_a_segment(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.advance_next_seq_id(SeqId(SEGMENT_ENTRIES - 2))
    queue.publish(publications(1, 5))
    harness.sync()
    assert segment_files(harness) == ["0.qi", "0.qs", "1.qi", "1.qs"]
    queue = harness.crash()
    assert [delivery.seq_id for delivery in queue.fetch(9, True)] == list(range(4094, 4099))


def test_a_position_can_be_filled_again_in_the_turn_it_was_settled(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.sync()
    other = make_message(2)
    queue.remove([SeqRange(SeqId(0), SeqId(1))])
    queue.insert([SeqId(0)], [other], [other.envelope()])
    harness.sync()
    queue.check_invariants()
    queue = harness.crash()
    assert queue.read([SeqId(0)]) == [(0, other.envelope())]


def test_the_index_file_has_its_whole_length_from_the_start(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.store.flush_writes()
    assert len(harness.disk.snapshot()[f"{harness.queue_directory}/0.qi"]) == INDEX_FILE_BYTES


def test_few_segments_stay_open(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    for counter in range(1, 9):
        queue.publish(publications(counter, 1))
        harness.store.flush_writes()
        queue.advance_next_seq_id(SeqId(counter * SEGMENT_ENTRIES))
        queue.check_invariants()
    harness.sync()
    assert len(queue.drain_confirmed()) == 8
    queue = harness.crash()
    assert queue.ready == 8


# -- damage


def damaged(harness: StoreHarness, name: str, offset: int, big: bool = False) -> None:
    """Three messages, a flipped bit, and a crash."""
    queue = harness.open_queue()
    queue.publish(publications(1, 3, body=b"x" * 200 if big else None))
    harness.sync()
    harness.disk.flip_bit(f"{harness.store.directory}/{name}", offset)
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    harness.start()


@pytest.mark.parametrize("offset", [HEADER_BYTES + SLOT_BYTES + at for at in (1, 2, 4, 20, 24, 28)])
def test_a_damaged_slot_is_quarantined(harness: StoreHarness, offset: int) -> None:
    damaged(harness, "queues/7/0.qi", offset)
    queue = harness.open_queue()
    report = queue.recovery_report
    assert report is not None
    assert (report.corrupt, report.torn, report.messages) == (1, 0, 2)
    assert [delivery.seq_id for delivery in queue.fetch(9, True)] == [0, 2]
    assert harness.disk.list(f"{harness.queue_directory}/quarantine") == ["1.bad"]
    queue = harness.restart()
    assert queue.recovery_report is not None
    assert (queue.recovery_report.corrupt, queue.ready) == (0, 2), "it is reported once"


def test_a_flipped_status_is_mended(harness: StoreHarness) -> None:
    """In the file as well: with no room in RAM the message is read from it again."""
    damaged(harness, "queues/7/0.qi", HEADER_BYTES + SLOT_BYTES)
    whole = slot(harness, 1)
    queue = harness.open_queue()
    assert [delivery.seq_id for delivery in queue.fetch(9, True)] == [0, 1, 2]
    assert slot(harness, 1) == bytes((STATUS_PRESENT,)) + whole[1:]


def test_a_status_that_nobody_writes_is_damage(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 3))
    harness.sync()
    harness.disk.flip_bit(f"{harness.queue_directory}/0.qi", HEADER_BYTES + SLOT_BYTES, bit=5)
    report = harness.crash().recovery_report
    assert report is not None
    assert (report.corrupt, report.messages) == (1, 2)


def test_a_damaged_message_is_quarantined(harness: StoreHarness) -> None:
    """Its slot, and the whole of its record, for whoever wants to know what became of it."""
    damaged(harness, "queues/7/0.qs", HEADER_BYTES + 100)
    of_slot = unpack_slot(1, slot(harness, 1))
    assert of_slot is not None
    end = of_slot.offset + RECORD_HEADER_BYTES + of_slot.overhead_bytes + of_slot.body_bytes
    record = harness.disk.snapshot()[f"{harness.queue_directory}/0.qs"][of_slot.offset : end]
    before = slot(harness, 1)
    queue = harness.open_queue()
    assert harness.disk.snapshot()[f"{harness.queue_directory}/quarantine/1.bad"] == before + record
    report = queue.recovery_report
    assert report is not None
    assert (report.corrupt, report.torn, report.messages) == (1, 0, 2)
    assert report.problems[0].endswith("damaged message in the .qs file")


def test_a_damaged_message_of_the_shared_store_is_corrupt_not_torn(harness: StoreHarness) -> None:
    damaged(harness, "msg_store_persistent/0.rdq", HEADER_BYTES + 300, big=True)
    queue = harness.open_queue()
    report = queue.recovery_report
    assert report is not None
    assert (report.corrupt, report.torn, report.messages) == (1, 0, 2)


@pytest.mark.parametrize("name", ["0.qi", "0.qs"])
def test_a_damaged_header_costs_no_message(harness: StoreHarness, name: str) -> None:
    damaged(harness, f"queues/7/{name}", 2)
    queue = harness.open_queue()
    assert queue.recovery_report is not None
    assert (queue.recovery_report.corrupt, queue.ready) == (1, 3)


def test_a_recovery_writes_no_slot_that_is_whole(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.open_queue().publish(publications(1, 20))
    harness.sync()
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    harness.start()
    offsets: set[int] = set()
    pwrite = SimulatedFile.pwrite

    def watched(file: SimulatedFile, data: bytes, offset: int) -> None:
        if file.path.endswith(".qi"):
            offsets.add(offset)
        pwrite(file, data, offset)

    monkeypatch.setattr(SimulatedFile, "pwrite", watched)
    assert harness.open_queue().ready == 20
    assert offsets == {0}, "the headers only"


def test_a_torn_publish_is_dropped_and_counted(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 2))
    harness.sync()
    file = harness.disk.open(f"{harness.queue_directory}/0.qi")
    file.pwrite(slot(harness, 1)[:17], HEADER_BYTES + 2 * SLOT_BYTES)
    file.sync()
    queue = harness.crash()
    report = queue.recovery_report
    assert report is not None
    assert (report.torn, report.corrupt, report.messages) == (1, 0, 2)


def test_a_torn_ack_counts_as_an_ack(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 2))
    harness.sync()
    file = harness.disk.open(f"{harness.queue_directory}/0.qi")
    file.pwrite(bytes(7), HEADER_BYTES + SLOT_BYTES)
    file.sync()
    queue = harness.crash()
    report = queue.recovery_report
    assert report is not None
    assert (report.torn_acks, report.torn, report.corrupt, report.messages) == (1, 0, 0, 1)


def test_a_slot_whose_message_never_reached_the_disk_is_torn(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.sync()
    queue.publish(publications(2, 2))
    harness.store.flush_writes()
    harness.disk.open(f"{harness.queue_directory}/0.qi").sync()
    queue = harness.crash(CrashStyle.DROP)
    report = queue.recovery_report
    assert report is not None
    assert (report.torn, report.corrupt, report.messages) == (2, 0, 1)


def test_damage_after_a_clean_stop_is_found_when_it_is_read_and_quarantined_by_the_next_start(
    harness: StoreHarness,
) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 3))
    harness.store.close()
    harness.disk.flip_bit(f"{harness.queue_directory}/0.qs", HEADER_BYTES + 100)
    harness.start()
    queue = harness.open_queue()
    report = queue.recovery_report
    assert report is not None
    assert (report.clean, queue.ready) == (True, 3)
    with pytest.raises(StorageError, match="damaged"):
        queue.fetch(9, ack_required=True)
    queue = harness.restart()
    report = queue.recovery_report
    assert report is not None
    assert (report.clean, report.corrupt, queue.ready) == (False, 1, 2)


def test_damage_found_by_a_read_takes_the_queue_out_of_service() -> None:
    harness = StoreHarness()
    queue = harness.open_queue()
    queue.publish(publications(1, 2))
    harness.sync()
    queue.set_ram_duration_target(0.0)
    queue.engine.paging.page_out()
    harness.disk.flip_bit(f"{harness.queue_directory}/0.qs", HEADER_BYTES + 30)
    with pytest.raises(StorageError, match="damaged"):
        queue.fetch(1, ack_required=True)
    with pytest.raises(StorageError, match="out of service"):
        queue.fetch(1, ack_required=True)


# -- where a message lives, and what a start reads


def test_small_messages_live_in_the_queues_file_and_big_ones_in_the_shared_store(harness: StoreHarness) -> None:
    """The threshold counts properties and body."""
    queue = harness.open_queue()
    properties = len(make_message(1).properties)
    for number, body_bytes in enumerate((99 - properties, 100 - properties), 1):
        body = bytes([number]) * body_bytes
        queue.publish(publications(number, 1, body=body))
        harness.sync()
        files = {path: data for path, data in harness.disk.snapshot().items() if body in data}
        assert [path.rpartition(".")[2] for path in files] == [("qs", "rdq")[number - 1]]


def test_a_start_after_a_clean_stop_reads_no_segment() -> None:
    """Only what comes to the head is looked up, whatever the length of the queue."""
    reads: list[int] = []
    for messages in (3000, 30_000):
        harness = StoreHarness()
        queue = harness.open_queue()
        for first in range(1, messages, 1000):
            queue.publish(publications(first, 1000))
            harness.store.flush_writes()
        harness.store.close()
        before = harness.disk.reads
        harness.start()
        queue = harness.open_queue()
        reads.append(harness.disk.reads - before)
        assert queue.ready == messages
        queue.check_invariants()
    assert reads[0] == reads[1]


def test_a_purge_deletes_files_a_few_at_a_time() -> None:
    harness = StoreHarness(StoreConfig(v2_segment_entries=8))
    queue = harness.open_queue()
    queue.publish(publications(1, 800))
    harness.sync()
    assert len(segment_files(harness)) == 200
    queue.purge()
    queue.advance_next_seq_id(SeqId(900))
    left = []
    while harness.store.has_unflushed:
        harness.store.flush_writes()
        left.append(len(segment_files(harness)))
    assert len(left) >= 6
    assert left[-1] == 0


def test_a_purge_neither_reads_nor_writes_what_is_in_segments_that_are_deleted() -> None:
    harness = StoreHarness(StoreConfig(v2_segment_entries=8))
    queue = harness.open_queue()
    queue.set_lazy(True)
    queue.publish(publications(1, 80))
    harness.sync()
    queue.advance_next_seq_id(SeqId(90))
    harness.sync()
    files = len(segment_files(harness))
    reads, operations = harness.disk.reads, harness.disk.operations
    assert queue.purge() == 80
    harness.store.flush_writes()
    assert harness.disk.reads == reads
    assert harness.disk.operations - operations == files - len(segment_files(harness)) == 16, "unlinks"
    while harness.store.has_unflushed:
        harness.store.flush_writes()
    harness.sync()
    assert harness.crash().ready == 0


def test_a_segment_that_was_to_be_deleted_and_is_filled_again_begins_anew() -> None:
    """Its last acks were never written: what they settled must not come back with what is there now."""
    harness = StoreHarness(StoreConfig(v2_segment_entries=8))
    queue = harness.open_queue()
    queue.publish(publications(1, 400))
    harness.sync()
    queue.purge()
    harness.store.flush_writes()
    assert len(segment_files(harness)) > 20, "not all are deleted at once"
    late = make_message(900)
    queue.insert([SeqId(389)], [late], [late.envelope()])
    while harness.store.has_unflushed:
        harness.store.flush_writes()
    harness.sync()
    queue = harness.crash()
    assert [delivery.seq_id for delivery in queue.fetch(99, True)] == [389]


def test_damage_found_by_a_comparison_takes_the_queue_out_of_service() -> None:
    """Digests are made without checking slots: a damaged msg_id makes a different one, and who compares then looks."""
    harness = StoreHarness()
    queue = harness.open_queue()
    queue.set_lazy(True)
    for first in range(1, 6001, 1000):
        queue.publish(publications(first, 1000))
    harness.sync()
    path = f"{harness.queue_directory}/0.qi"
    sound = expected_digests({at: msg_id_of(at + 1) for at in range(6000)}, DIGEST_SEGMENT_ENTRIES)
    harness.disk.flip_bit(path, HEADER_BYTES + 4000 * SLOT_BYTES + SLOT_MSG_ID_AT + 15)
    assert [one == other for one, other in zip(queue.digests(), sound, strict=True)] == [False, True]
    assert queue.digests()[0].entries == SEGMENT_ENTRIES, "what is live is not taken from the disk"
    with pytest.raises(StorageError, match="damaged"):
        queue.holdings(0)
    with pytest.raises(StorageError, match="out of service"):
        queue.read([SeqId(1)])
    queue = harness.restart()
    report = queue.recovery_report
    assert report is not None
    assert (report.clean, report.corrupt, queue.ready) == (False, 1, 5999)


def test_damage_that_leaves_the_msg_id_does_not_touch_the_digest() -> None:
    """What the digest says is true; the damage is found when the message is read."""
    harness = StoreHarness()
    queue = harness.open_queue()
    queue.set_lazy(True)
    for first in range(1, 6001, 1000):
        queue.publish(publications(first, 1000))
    harness.sync()
    harness.disk.flip_bit(f"{harness.queue_directory}/0.qi", HEADER_BYTES + 4000 * SLOT_BYTES + SLOT_MSG_ID_AT + 16)
    assert queue.digests() == expected_digests({at: msg_id_of(at + 1) for at in range(6000)}, DIGEST_SEGMENT_ENTRIES)
    with pytest.raises(StorageError, match="damaged"):
        queue.read([SeqId(4000)])


def test_an_index_file_that_is_cut_off_has_no_digest() -> None:
    harness = StoreHarness(StoreConfig(v2_segment_entries=64))
    queue = harness.open_queue()
    queue.set_lazy(True)
    for first in range(1, 10_001, 1000):
        queue.publish(publications(first, 1000))
    harness.sync()
    file = harness.disk.open(f"{harness.queue_directory}/100.qi")
    file.truncate(HEADER_BYTES + 63 * SLOT_BYTES)
    with pytest.raises(StorageError, match="cut off"):
        queue.digests()
    assert queue.engine.has_failed


def test_a_mirror_of_transient_messages_reserves_positions_too(harness: StoreHarness) -> None:
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.sync()
    far = SeqId(RESERVE_STEP + 10)
    message = make_message(2, persistent=False)
    queue.insert([far], [message], [message.envelope()])
    harness.sync()
    assert harness.crash().next_seq_id > far


def test_of_an_index_file_that_is_cut_off_everything_before_is_read() -> None:
    """A slot of which there is only a part was torn, unless nothing was ever in it."""
    whole = b"\xff" * SLOT_BYTES
    content = bytes(HEADER_BYTES) + ZERO_SLOT + whole
    corrupt = (25, BadSlot("corrupt"))
    assert list(scan_slots(3, content, 8)) == [corrupt]
    assert list(scan_slots(3, content + bytes(SLOT_BYTES - 1), 8)) == [corrupt]
    assert list(scan_slots(3, content + whole[:-1], 8)) == [corrupt, (26, BadSlot("torn"))]

"""Files of a vhost cut anywhere after a crash: what was durable is missed and reported, whatever the cut looks like.

A file cut at the border of two records looks like the end of an earlier life; only the notes of durable lengths tell
(`node.store.disk.guarded`). What is served afterwards is what was published, in order.
"""

from __future__ import annotations

import random

import pytest

from node.errors import StorageError
from node.message import Message
from node.queues.backing_queue import Publication
from node.queues.vhost_store import VhostStore
from node.store.disk.group_commit import GroupCommit
from node.store.disk.guarded import WRITE_EVERY_MS
from node.store.disk.length_file import LENGTHS_NAME, SUFFIXES, read_lengths
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.formats.record import (
    JOURNAL_FORMAT,
    RECORD_HEADER_BYTES,
    SEGMENT_FORMAT,
    SLOT_BYTES,
    Damage,
    Slot,
    slot_offset,
)
from node.store.index.v1.format import KIND_ACK, Record, checksum_seed, scan_records
from node.store.index.v2.scan import scan_slots
from node.store.shared.config import StoreConfig
from node.store.shared.store_file import scan_store_file
from tests.support.amounts import slow
from tests.support.messages import make_message
from tests.support.stores import DATA_DIRECTORY, QUEUE_ID, QUEUE_NAME, run_sync_round

KINDS = [(version, is_closed) for version in (1, 2) for is_closed in (False, True)]


class Story:
    """A queue with small and big messages, some of them settled, and everything durable; then a stop or a crash."""

    def __init__(self, version: int, *, is_closed: bool, has_big: bool = True) -> None:
        self.config = StoreConfig(
            queue_version=version,
            v1_segment_entries=8,
            v1_journal_entries_max=12,
            v2_segment_entries=8,
            embed_below_bytes=60,
            file_size_limit_bytes=512,
        )
        self.disk = SimulatedDisk()
        group_commit = GroupCommit()
        store = VhostStore(self.disk, DATA_DIRECTORY, "/", group_commit, self.config)
        self.directory = store.directory
        queue = store.open_queue(QUEUE_ID, QUEUE_NAME, True)
        self.published: dict[int, Message] = {}
        self.owed: set[int] = set()
        for counter in range(1, 25):
            message = make_message(
                counter, body=counter.to_bytes(4, "big") + bytes(90 if has_big and counter % 3 == 0 else 10)
            )
            self.published[queue.next_seq_id] = message
            self.owed.add(queue.next_seq_id)
            queue.publish([Publication(message)])
            if counter % 5 == 0:
                (delivery,) = queue.fetch(1, ack_required=True)
                queue.ack([delivery.seq_id])
                self.owed.discard(delivery.seq_id)
            run_sync_round(group_commit)
        if is_closed:
            store.close()
        else:
            # Quiet for a second, and the round that follows.
            for now_ms in (WRITE_EVERY_MS, 2 * WRITE_EVERY_MS):
                store.maintain(now_ms)
                run_sync_round(group_commit)
        self.disk.crash(CrashStyle.DROP, random.Random(0))
        self._note_pieces()
        #: Damage of the shared store that a start reported which never came to the queue.
        self.passed_by = 0
        #: Unfinished writes that the last start counted.
        self.torn = 0

    def files(self) -> dict[str, int]:
        """Sizes of the files that are guarded, by path."""
        return {path: len(content) for path, content in self.disk.snapshot().items() if path.endswith(SUFFIXES)}

    def _note_pieces(self) -> None:
        """Where everything is that a message needs."""
        #: By position: path and end of each record (or slot) of an index that names it; one of them suffices.
        self.named: dict[int, list[tuple[str, int]]] = {}
        #: By position: path and end of the record with the message, if it is not in the index's record.
        self.stored: dict[int, tuple[str, int]] = {}
        positions = {message.msg_id: seq_id for seq_id, message in self.published.items()}
        for path, content in self.disk.snapshot().items():
            stem, _, suffix = path.rpartition("/")[2].rpartition(".")
            if suffix in ("idx", "jif"):
                file_format = SEGMENT_FORMAT if suffix == "idx" else JOURNAL_FORMAT
                for record in scan_records(content, checksum_seed(file_format, int(stem))):
                    if isinstance(record, Record) and record.kind != KIND_ACK:
                        self.named.setdefault(record.seq_id, []).append((path, record.end))
            elif suffix == "qi":
                for seq_id, slot in scan_slots(int(stem), content, 8):
                    assert isinstance(slot, Slot)
                    self.named[seq_id] = [(path, slot_offset(seq_id, 8) + SLOT_BYTES)]
                    if not slot.shared:
                        end = slot.offset + RECORD_HEADER_BYTES + slot.overhead_bytes + slot.body_bytes
                        self.stored[seq_id] = (path.removesuffix("qi") + "qs", end)
            elif suffix == "rdq":
                for found in scan_store_file(self.disk.open(path), [], lambda _size: None):
                    assert not isinstance(found, Damage)
                    end = found.offset + RECORD_HEADER_BYTES + found.size
                    self.stored[positions[found.msg_id]] = (path, end)

    def lost(self, path: str, size: int) -> set[int]:
        """What a file cut to ``size`` has lost: all whose record ends behind the cut."""

        def is_left(piece: tuple[str, int]) -> bool:
            return piece[0] != path or piece[1] <= size

        return {
            seq_id
            for seq_id in self.owed
            if not any(map(is_left, self.named[seq_id])) or (seq_id in self.stored and not is_left(self.stored[seq_id]))
        }

    def cut(self, path: str, size: int, *, passes_by: bool = False) -> tuple[int, set[int]]:
        """Start with a file cut to ``size``. Returns how much damage was reported, and the positions served.

        ``passes_by``: the queue is opened by the second start only; the first one crashes before it comes to it.
        """
        disk = self.disk.twin()
        file = disk.open(path)
        file.truncate(size)
        file.sync()
        if passes_by:
            group_commit = GroupCommit()
            store = VhostStore(disk, DATA_DIRECTORY, "/", group_commit, self.config)
            self.passed_by = len(store.store_recovery.corrupt)
            store.maintain(WRITE_EVERY_MS)
            run_sync_round(group_commit)
            disk.crash(CrashStyle.DROP, random.Random(0))
        store = VhostStore(disk, DATA_DIRECTORY, "/", GroupCommit(), self.config)
        queue = store.open_queue(QUEUE_ID, QUEUE_NAME, True)
        report = queue.recovery_report
        assert report is not None
        found: list[int] = []
        try:
            for delivery in queue.fetch(queue.ready, ack_required=True):
                assert self.published[delivery.seq_id] == delivery.message, "nothing is invented"
                found.append(delivery.seq_id)
        except StorageError:
            report.corrupt += 1
        assert found == sorted(found)
        queue.check_invariants()
        store.check_invariants()
        self.torn = report.torn
        return report.corrupt + len(store.store_recovery.corrupt), set(found)


def cut_everywhere(version: int, step: int, *, is_closed: bool) -> None:
    story = Story(version, is_closed=is_closed)
    count = 0
    for path, whole in story.files().items():
        for size in range(count % step, whole, step):
            damage, found = story.cut(path, size)
            assert damage, f"{path} cut to {size} of {whole} bytes"
            assert story.owed - found == story.lost(path, size), f"{path} cut to {size} bytes: the rest is there"
        count += whole
    assert count > 1000


@pytest.mark.parametrize(("version", "is_closed"), KINDS)
def test_every_durable_file_is_noted_with_its_whole_length(version: int, is_closed: bool) -> None:
    story = Story(version, is_closed=is_closed)
    files = story.files()
    lengths = read_lengths(story.disk, story.directory).lengths
    # The name of a segment that journals still stand for need not be durable yet.
    assert {path: length for path, length in lengths.items() if path in files} == files
    index_suffixes = {1: {"idx"} if is_closed else {"idx", "jif"}, 2: {"qi", "qs"}}[version]
    assert {path.rpartition(".")[2] for path in files} == index_suffixes | {"bounds", "rdq"}


@pytest.mark.parametrize(("version", "is_closed"), KINDS)
def test_without_a_cut_nothing_is_reported_and_all_is_there(version: int, is_closed: bool) -> None:
    story = Story(version, is_closed=is_closed)
    for path, whole in story.files().items():
        damage, found = story.cut(path, whole)
        assert damage == 0
        assert story.owed <= found


@pytest.mark.parametrize(("version", "is_closed"), KINDS)
def test_some_cuts(version: int, is_closed: bool) -> None:
    cut_everywhere(version, 41, is_closed=is_closed)


@pytest.mark.parametrize("step", [67, slow(13)])
@pytest.mark.parametrize(("version", "is_closed"), KINDS)
def test_a_start_that_never_comes_to_the_queue_leaves_the_damage_to_be_found(
    version: int, is_closed: bool, step: int
) -> None:
    story = Story(version, is_closed=is_closed)
    for path, whole in story.files().items():
        for size in range(0, whole, step):
            damage, found = story.cut(path, size, passes_by=True)
            assert damage + story.passed_by, f"{path} cut to {size} of {whole} bytes"
            assert story.owed - found == story.lost(path, size), f"{path} cut to {size} bytes: the rest is there"


@pytest.mark.parametrize("step", [19, slow(3)])
@pytest.mark.parametrize("version", [1, 2])
def test_what_was_durable_once_is_no_unfinished_write(version: int, step: int) -> None:
    """(With messages in the shared store there are some: entries whose acks were cut off name what is gone.)"""
    story = Story(version, is_closed=False, has_big=False)
    for path, whole in story.files().items():
        for size in range(0, whole, step):
            damage, _ = story.cut(path, size)
            assert damage
            assert not story.torn, f"{path} cut to {size} of {whole} bytes"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("version", "is_closed"), KINDS)
def test_every_cut(version: int, is_closed: bool) -> None:
    cut_everywhere(version, 1, is_closed=is_closed)


def test_a_cut_of_the_notes_themselves_harms_nothing() -> None:
    story = Story(2, is_closed=False)
    path = f"{story.directory}/{LENGTHS_NAME}"
    for size in range(0, len(story.disk.snapshot()[path]), 16):
        damage, found = story.cut(path, size)
        assert damage == 0
        assert story.owed <= found

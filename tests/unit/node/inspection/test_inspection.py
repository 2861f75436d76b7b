"""Every figure of an inspection, on directories that the real storage made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from node.errors import StorageError
from node.inspection.figures import (
    DeletingFigures,
    JournalFigures,
    OldestMessage,
    SegmentFigures,
    StoreFileFigures,
    V1SegmentFigures,
)
from node.inspection.inspection import inspect
from node.inspection.places import NotStorageError
from node.inspection.verification import verify
from node.store.disk.disk import ReadOnlyDisk
from tests.support.messages import msg_id_of, publications
from tests.support.storage_on_disk import (
    BIG_BODY,
    BILLS,
    NodeOnDisk,
    fill,
    snapshot,
    write_v1_queue,
    write_vhost_file,
)

#: Of the envelopes of tests/support/messages.py, beside the body: header, "exchange", "key", properties.
OVERHEAD = 27 + 8 + 3 + 3
RECORD = 12 + OVERHEAD


@pytest.fixture
def node(tmp_path: Path) -> NodeOnDisk:
    node = NodeOnDisk(tmp_path / "n1")
    fill(node)
    return node


def test_a_vhost_on_its_way_out_is_not_looked_at(node: NodeOnDisk) -> None:
    node.stop()
    (vhost,) = inspect(str(node.directory)).vhosts
    directory = Path(vhost.directory)
    directory.rename(directory.with_name(f"{directory.name}.1.deleting"))
    assert inspect(str(node.directory)).vhosts == []


def test_a_queues_figures_after_a_clean_stop(node: NodeOnDisk) -> None:
    node.stop()
    (vhost,) = inspect(str(node.directory)).vhosts
    assert (vhost.name, vhost.format, vhost.v2_segment_entries, vhost.problem) == ("/", 2, 8, "")
    orders, bills = vhost.queues
    assert (orders.queue_id, orders.name, orders.vhost, orders.durable) == (7, "orders", "/", True)
    assert orders.index_versions == [2]
    assert orders.stopped_cleanly
    assert (orders.next_seq_id, orders.next_deliver_seq_id) == (16, 13)
    assert orders.reserved_seq_id > 16
    assert orders.messages == 13
    # Positions 2 to 8 have bodies "message 3" to "message 9".
    assert orders.body_bytes == 7 * 9 + 3 * 10 + 3 * len(BIG_BODY)
    assert bills.messages == 4
    assert bills.segments == [
        SegmentFigures(
            0, present=4, free=4, persistent=4, shared=4, index_bytes=320, store_bytes=64, first_live=0, last_live=3
        )
    ]


def test_a_segments_figures(node: NodeOnDisk) -> None:
    node.stop()
    first, second = inspect(str(node.queue())).vhosts[0].queues[0].segments
    assert first == SegmentFigures(
        0,
        present=6,
        settled=2,
        persistent=6,
        embedded=6,
        index_bytes=320,
        store_bytes=64 + 8 * (RECORD + 9),
        live_bytes=6 * (RECORD + 9),
        garbage_bytes=2 * (RECORD + 9),
        first_live=2,
        last_live=7,
    )
    assert (second.present, second.settled, second.free, second.embedded, second.shared) == (7, 1, 0, 4, 3)
    assert (second.first_live, second.last_live) == (8, 15)
    assert second.live_bytes == 3 * (RECORD + 10) + RECORD + 9


def test_transient_messages_and_free_slots_of_a_running_queue(tmp_path: Path) -> None:
    node = NodeOnDisk(tmp_path)
    queue = node.open()
    queue.set_lazy(True)
    queue.publish(publications(1, 2, persistent=False))
    queue.publish(publications(3, 1))
    queue.engine.maintain()
    node.sync()
    (figures,) = inspect(str(tmp_path)).vhosts[0].queues
    assert not figures.stopped_cleanly
    assert figures.next_seq_id is None
    (segment,) = figures.segments
    assert (segment.present, segment.transient, segment.persistent, segment.free) == (3, 2, 1, 5)


def test_a_shared_stores_figures(node: NodeOnDisk) -> None:
    """Message 14 is settled by both queues: a hole between 13 and 15."""
    for queue, ready_before in ((node.bills, 1), (node.orders, 10)):
        deliveries = queue.fetch(ready_before + 1, ack_required=True)
        queue.ack([deliveries[-1].seq_id])
        queue.requeue_all()
    node.sync()
    size = RECORD + len(BIG_BODY)
    expected = StoreFileFigures(
        0,
        file_bytes=64 + 4 * size,
        records=4,
        live_records=3,
        valid_bytes=3 * size,
        garbage_bytes=size,
        holes=1,
        largest_hole_bytes=size,
        oldest=OldestMessage(msg_id_of(13).hex(), 8, 0),
    )
    running = inspect(str(node.directory)).vhosts[0].persistent_store
    assert running is not None
    assert running.live_according_to == "queues"
    assert running.files == [expected]
    node.stop()
    stopped = inspect(str(node.shared)).vhosts[0].persistent_store
    assert stopped is not None
    assert stopped.live_according_to == "tables"
    assert stopped.files == [expected]
    assert (stopped.messages, stopped.valid_bytes, stopped.garbage_bytes) == (3, 3 * size, size)


def test_the_totals(node: NodeOnDisk) -> None:
    totals = inspect(str(node.directory)).totals
    assert (totals.vhosts, totals.queues, totals.messages, totals.stored_messages) == (1, 2, 17, 4)
    assert totals.queue_garbage_bytes == 2 * (RECORD + 9)
    assert totals.store_garbage_bytes == 0
    queue_files = list(node.vhost.rglob("*.q[is]"))
    assert totals.queue_file_bytes == sum(path.stat().st_size for path in queue_files)


def test_one_queue_of_many(node: NodeOnDisk) -> None:
    result = inspect(str(node.directory), queue_name="bills")
    assert [queue.name for queue in result.vhosts[0].queues] == ["bills"]
    assert result.vhosts[0].persistent_store is None
    assert inspect(str(node.directory), queue_name="none").totals.queues == 0


def test_version_1_after_a_crash(tmp_path: Path) -> None:
    """Two journals were carried over, their twelve entries and three more; the third has the rest and the acks."""
    write_vhost_file(tmp_path / "v")
    directory = write_v1_queue(tmp_path / "v", stops_cleanly=False)
    (queue,) = inspect(str(directory)).vhosts[0].queues
    assert queue.index_versions == [1]
    assert queue.messages == 17
    assert queue.journals == [JournalFigures(1, file_bytes=392, records=6, publishes=5, ack_records=1, acked=3, live=5)]
    first, second = queue.v1_segments
    assert (first.publishes, first.live, first.embedded, first.shared) == (8, 5, 4, 1)
    assert (first.first_live, first.last_live) == (3, 7)
    assert (second.first_live, second.last_live) == (8, 14)
    assert first.live_bytes + first.garbage_bytes + 64 == first.file_bytes


def test_version_1_after_a_clean_stop(tmp_path: Path) -> None:
    write_vhost_file(tmp_path / "v")
    write_v1_queue(tmp_path / "v", stops_cleanly=True)
    result = inspect(str(tmp_path / "v"))
    (queue,) = result.vhosts[0].queues
    assert (queue.stopped_cleanly, queue.next_seq_id, queue.messages, queue.journals) == (True, 20, 17, [])
    small = 20 + OVERHEAD + len("small")
    assert queue.v1_segments[2] == V1SegmentFigures(
        2,
        file_bytes=64 + 3 * small + 40,
        publishes=4,
        live=4,
        persistent=4,
        embedded=3,
        shared=1,
        live_bytes=3 * small + 40,
        first_live=16,
        last_live=19,
    )
    assert queue.v1_segments[0].acked == 3
    store = result.vhosts[0].persistent_store
    assert store is not None
    assert (store.messages, store.files[0].records, store.files[0].holes) == (5, 6, 1)
    assert store.files[0].oldest == OldestMessage(msg_id_of(6).hex(), 9, 5)


def test_unreadable_bytes_are_counted(node: NodeOnDisk) -> None:
    path = node.shared / "0.rdq"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    store = inspect(str(node.directory)).vhosts[0].persistent_store
    assert store is not None
    assert (store.files[0].records, store.files[0].unreadable_bytes) == (3, RECORD + len(BIG_BODY))


def test_nothing_changes(node: NodeOnDisk) -> None:
    before = snapshot(node.directory)
    inspect(str(node.directory))
    assert snapshot(node.directory) == before


def test_progress_is_told_of_every_queue_and_store(node: NodeOnDisk) -> None:
    told: list[tuple[str, int, int]] = []
    inspect(str(node.directory), on_progress=lambda what, done, total: told.append((what, done, total)))
    assert told == [(str(node.queue()), 0, 3), (str(node.queue(BILLS)), 1, 3), (str(node.shared), 2, 3)]


def test_what_is_not_storage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(NotStorageError, match="is neither"):
        inspect(str(tmp_path))
    (tmp_path / "msg_store_transient").mkdir()
    with pytest.raises(NotStorageError, match="emptied at every start"):
        inspect(str(tmp_path / "msg_store_transient"))


def test_what_is_settled_at_the_end_of_a_segment_and_of_a_store_file(tmp_path: Path) -> None:
    node = NodeOnDisk(tmp_path)
    queue = node.open()
    queue.publish(publications(1, 8))
    queue.publish(publications(9, 2, body=BIG_BODY))
    node.sync()
    deliveries = queue.fetch(10, ack_required=True)
    queue.ack([deliveries[position].seq_id for position in (6, 7, 9)])
    node.sync()
    (vhost,) = inspect(str(tmp_path)).vhosts
    first, second = vhost.queues[0].segments
    assert (first.present, first.settled, first.free, first.last_live) == (6, 2, 0, 5)
    # Nobody knows which positions of the last segment were used.
    assert (second.present, second.settled, second.free) == (1, 0, 7)
    assert vhost.persistent_store is not None
    (file,) = vhost.persistent_store.files
    assert (file.live_records, file.holes, file.largest_hole_bytes) == (1, 1, RECORD + len(BIG_BODY))


def test_the_disk_of_an_inspection_cannot_write(node: NodeOnDisk) -> None:
    disk = ReadOnlyDisk()
    path = str(node.shared / "0.rdq")
    before = snapshot(node.directory)
    file = disk.open(path)
    changes: list[Callable[[], object]] = [
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        lambda: disk.create(path),
        lambda: disk.rename(path, path + "2"),
        lambda: disk.unlink(path),
        lambda: disk.remove_directory(str(node.shared)),
        lambda: disk.mkdir(path + "3"),
        lambda: disk.sync_directory(str(node.shared)),
    ]
    for change in changes:
        with pytest.raises(StorageError):
            change()
    file.close()
    assert snapshot(node.directory) == before


def test_deleted_queues_are_counted_and_nothing_in_them_is(node: NodeOnDisk) -> None:
    node.orders.delete()
    node.store.close()
    result = inspect(str(node.directory))
    (vhost,) = result.vhosts
    assert [queue.name for queue in vhost.queues] == ["bills"]
    files = list(next((node.vhost / "deleting").iterdir()).iterdir())
    assert vhost.deleting == DeletingFigures(1, len(files), sum(path.stat().st_size for path in files))
    assert vhost.deleting.files > 2
    assert vhost.persistent_store is not None
    assert vhost.persistent_store.messages == 4, "the other queue has them all"
    verification = verify(str(node.directory))
    assert (verification.queues, verification.has_damage) == (1, False)
    with pytest.raises(NotStorageError, match="belongs to a queue that was deleted"):
        inspect(str(files[0].parent))

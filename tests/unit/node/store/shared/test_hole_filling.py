"""Which record goes into which hole."""

from __future__ import annotations

from node.store.formats.record import RECORD_HEADER_BYTES
from node.store.shared.compaction import hole_filling
from node.store.shared.config import StoreConfig
from tests.support.compacted_store import RECORD_BYTES, node_of
from tests.support.shared_store import STORE_DIRECTORY, SharedStoreNode


def test_holes_that_are_filled_are_in_nobodys_way() -> None:
    """More of them than holes are tried for one record."""
    count = 9 * (hole_filling.HOLES_TRIED_MAX + 10)
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=64 + count * RECORD_BYTES, compaction="holes"))
    node.write(*range(1, count + 2))
    node.sync()
    node.release(*(counter for counter in range(1, count + 1) if counter % 3))
    node.compact()
    node.check()
    assert len(node.disk.snapshot()[f"{STORE_DIRECTORY}/0.rdq"]) == 64 + count // 3 * RECORD_BYTES


def test_a_hole_may_leave_room_for_nothing_but_the_header_of_what_is_left() -> None:
    pair_bytes = 2 * RECORD_BYTES + RECORD_HEADER_BYTES
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=64 + 5 * pair_bytes, compaction="holes"))
    for counter in range(1, 11, 2):
        node.write(counter, body_bytes=100 + RECORD_HEADER_BYTES)
        node.write(counter + 1)
    node.write(11)
    node.sync()
    node.release(*range(1, 11, 2))
    node.compact()
    node.check()
    assert node.store.status().moved_bytes == 3 * RECORD_BYTES
    node.start(may_open_clean=False)
    node.check()


def test_a_record_settled_since_its_file_was_surveyed_takes_no_part() -> None:
    """Whatever its size: those before it are moved all the same."""
    node = node_of("holes")
    node.write(*range(1, 9))
    node.write(9, body_bytes=150)
    node.write(10, 11)
    node.sync()
    node.release(*range(1, 7))
    while not [name for name in node.files() if name.endswith(".holes")]:
        node.store.maintain()
    node.release(9)
    node.compact()
    node.check()
    assert node.store.status().moved_bytes == 3 * RECORD_BYTES
    assert len(node.disk.snapshot()[f"{STORE_DIRECTORY}/0.rdq"]) == 64 + 3 * RECORD_BYTES, "7, 8 and 10"


def test_a_note_is_closed_when_it_is_written() -> None:
    node = node_of("holes")
    node.write(*range(1, 12))
    node.sync()
    node.release(*range(1, 7))
    before = node.disk.open_handles
    while not [name for name in node.files() if name.endswith(".holes")]:
        node.store.maintain()
    node.sync()
    assert node.disk.open_handles == before

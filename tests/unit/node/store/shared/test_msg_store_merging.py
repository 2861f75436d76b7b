"""Reclaiming garbage by merging files: which are chosen, and what is served from where meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from node.errors import OpenFilesError
from node.store.disk.disk import DiskFile
from node.store.shared.compaction.compaction import PAUSE_TICKS
from node.store.shared.config import StoreConfig
from node.store.shared.store_files import FileSummary
from tests.support.compacted_store import FILE_BYTES, RECORD_BYTES, node_of, ten_of_forty
from tests.support.messages import msg_id_of
from tests.support.shared_store import STORE_DIRECTORY, SharedStoreNode


def merged() -> SharedStoreNode:
    """The first two files have become the sixth a moment ago."""
    node = ten_of_forty("merge")
    while "5.rdq" not in node.files():
        node.sync()
        node.store.maintain()
    return node


def served_from(node: SharedStoreNode) -> set[int | None]:
    """Files that have what was alive in the first two."""
    locations = [node.store._table.get(msg_id_of(counter)) for counter in (4, 8, 12, 16, 20)]
    return {location and location.file for location in locations}


def test_while_the_name_of_a_merged_file_is_synced_the_tables_are_switched_to_it() -> None:
    """And then there is nothing to do but wait."""
    node = merged()
    while node.store.maintain().has_worked:
        pass
    assert node.files()[:5] == ["0.rdq", "1.rdq", "2.rdq", "3.rdq", "4.rdq"], "the old ones are not needed any more"
    assert served_from(node) == {5}
    node.check()


class CountedSummaries(dict[int, FileSummary]):
    """Counts how often somebody goes through all files."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        self.looks += 1
        return super().__iter__()


def test_who_found_no_pair_to_merge_looks_again_when_there_is_more_garbage() -> None:
    """A look goes through all files, of which there may be ten thousand, and there is a step every two milliseconds."""
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=16 * RECORD_BYTES, compaction="merge"))
    node.write(*range(1, 200))
    node.sync()
    files = node.store._files
    # Their evidence is kept: none is merged.
    for summary in files.summaries.values():
        summary.is_frozen = True
    counted = files.summaries = CountedSummaries(files.summaries)
    node.release(*(counter for counter in range(1, 199) if counter % 4))
    looks = []
    for counter in (None, None, None, 4, None, 8, None):
        if counter is not None:
            node.release(counter)
        node.store.maintain()
        looks.append(counted.looks)
    assert looks == [1, 1, 1, 2, 2, 3, 3], "a record is a sixteenth of a file"


def test_files_are_merged_when_more_than_half_of_all_is_garbage_and_what_is_left_fits_in_one() -> None:
    node = node_of("merge")
    node.write(*range(1, 41))
    node.sync()
    node.release(*(counter for counter in range(1, 41) if counter % 2))
    node.compact()
    assert node.files() == ["0.rdq", "1.rdq", "2.rdq", "3.rdq"], "half is not more than half"
    node.release(40)
    node.compact()
    node.check()
    assert node.files() == ["4.rdq", "5.rdq"]
    assert len(node.disk.snapshot()[f"{STORE_DIRECTORY}/4.rdq"]) == FILE_BYTES, "as much as a file holds"


def test_two_files_are_not_worth_merging() -> None:
    node = node_of("merge")
    node.write(*range(1, 21))
    node.sync()
    node.release(*(counter for counter in range(1, 21) if counter % 5))
    node.compact()
    assert node.files() == ["0.rdq", "1.rdq"]
    node.write(21)
    node.compact()
    node.check()
    assert node.files() == ["2.rdq", "3.rdq"], "the one that takes writes, and that of the two"


def test_files_are_merged_with_neighbours_only() -> None:
    node = ten_of_forty("merge")
    # The second keeps its evidence.
    node.store._files.summaries[1].is_frozen = True
    node.compact()
    node.check()
    assert node.files() == ["0.rdq", "1.rdq", "4.rdq", "5.rdq"]


def test_a_store_that_closes_behind_the_renaming_of_a_merged_file_serves_from_it() -> None:
    node = merged()
    node.stop()
    node.start()
    assert node.store.recovery.clean
    assert served_from(node) == {5}
    node.check()


def test_a_merged_file_that_cannot_be_opened_under_its_name_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ten_of_forty("merge")

    def refuse(path: str) -> DiskFile:
        raise OpenFilesError(f"open of {path} failed")

    with monkeypatch.context() as patch:
        rename = node.disk.rename

        def rename_and_refuse(old_path: str, new_path: str) -> None:
            rename(old_path, new_path)
            patch.setattr(node.disk, "open", refuse)

        patch.setattr(node.disk, "rename", rename_and_refuse)
        while not node.store._compactor._pause_ticks:
            node.sync()
            node.store.maintain()
    assert "5.rdq" not in node.files()
    assert served_from(node) == {0, 1}
    node.check()
    for _ in range(PAUSE_TICKS):
        node.store.tick()
    node.compact()
    assert {f"{number}.rdq" for number in node.store._files.summaries} == set(node.files())
    assert "0.rdq" not in node.files(), "it is merged another time"
    node.check()


def test_neighbours_are_read_with_one_call() -> None:
    """A file of small messages has a million."""
    reads = set()
    for kept in (3, 6, 9):
        node = SharedStoreNode(StoreConfig(file_size_limit_bytes=20 * RECORD_BYTES, compaction="merge"))
        node.write(*range(1, 62))
        node.sync()
        node.release(*(counter for counter in range(1, 61) if not 0 < counter % 20 <= kept))
        before = node.disk.reads
        for _ in range(30):
            node.sync()
            node.store.maintain()
        reads.add(node.disk.reads - before)
        assert node.store.status().moved_bytes == 2 * kept * RECORD_BYTES
        node.check()
    assert len(reads) == 1

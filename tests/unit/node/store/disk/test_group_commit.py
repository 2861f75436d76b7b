"""Generations close, run and become durable; buffers are flushed before a generation closes."""

from __future__ import annotations

import pytest

from node.errors import OpenFilesError, StorageError
from node.store.disk.disk import Disk, RealDisk
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import SimulatedDisk


class _File:
    def __init__(self) -> None:
        self.syncs = 0
        self.error: StorageError | None = None

    def sync(self) -> None:
        if self.error is not None:
            raise self.error
        self.syncs += 1


class _Buffer:
    def __init__(self, group_commit: GroupCommit, file: _File) -> None:
        self.group_commit = group_commit
        self.file = file
        self.has_unflushed = False
        self.flushed_in: list[int] = []

    @property
    def unflushed_since(self) -> int:
        return 1

    def flush_writes(self, at_most: int) -> int:
        assert at_most > 0
        self.has_unflushed = False
        self.flushed_in.append(self.group_commit.open_generation)
        self.group_commit.mark_dirty(self.file)
        return 1


@pytest.fixture
def group_commit() -> GroupCommit:
    return GroupCommit()


def test_nothing_to_do(group_commit: GroupCommit) -> None:
    assert not group_commit.has_dirty
    assert group_commit.begin() is None


@pytest.mark.parametrize("disk", [RealDisk(), SimulatedDisk()], ids=["real", "simulated"])
def test_a_directory_is_synced_once_whoever_asks_for_it(disk: Disk, group_commit: GroupCommit) -> None:
    for path in ("/a", "/a/b", "/a"):
        group_commit.mark_dirty(disk.directory(path))
    sync_round = group_commit.begin()
    assert sync_round is not None
    assert list(sync_round.files) == [disk.directory("/a"), disk.directory("/a/b")]


def test_one_round(group_commit: GroupCommit) -> None:
    file = _File()
    group_commit.mark_dirty(file)
    group_commit.mark_dirty(file)
    written_in = group_commit.open_generation
    sync_round = group_commit.begin()
    assert sync_round is not None
    assert group_commit.open_generation == written_in + 1
    sync_round.run()
    assert (file.syncs, group_commit.durable_generation) == (1, written_in - 1)
    group_commit.complete(sync_round)
    assert group_commit.durable_generation == written_in
    group_commit.check_invariants()


def test_a_write_during_a_round_waits_for_the_next(group_commit: GroupCommit) -> None:
    file = _File()
    group_commit.mark_dirty(file)
    first = group_commit.begin()
    assert first is not None
    group_commit.mark_dirty(file)
    late = group_commit.open_generation
    assert group_commit.begin() is None, "one round at a time"
    group_commit.complete(first)
    assert group_commit.durable_generation < late
    second = group_commit.begin()
    assert second is not None
    group_commit.complete(second)
    assert group_commit.durable_generation == late


def test_a_failure_is_for_good(group_commit: GroupCommit) -> None:
    file = _File()
    file.error = StorageError("no")
    group_commit.mark_dirty(file)
    sync_round = group_commit.begin()
    assert sync_round is not None
    with pytest.raises(StorageError) as caught:
        sync_round.run()
    group_commit.fail(sync_round, caught.value)
    group_commit.mark_dirty(file)
    assert group_commit.begin() is None
    assert group_commit.failure is caught.value
    assert group_commit.durable_generation == 0


def test_buffers_write_before_the_generation_closes(group_commit: GroupCommit) -> None:
    buffer = _Buffer(group_commit, _File())
    group_commit.add_buffer(buffer)
    buffer.has_unflushed = True
    assert group_commit.has_dirty
    opened = group_commit.open_generation
    sync_round = group_commit.begin()
    assert sync_round is not None
    assert buffer.flushed_in == [opened]
    assert list(sync_round.files) == [buffer.file]
    group_commit.complete(sync_round)
    group_commit.remove_buffer(buffer)
    buffer.has_unflushed = True
    assert not group_commit.has_dirty


def test_a_bounded_number_writes_and_the_others_come_first_the_next_time() -> None:
    group_commit = GroupCommit(flushed_max=2)
    buffers = [_Buffer(group_commit, _File()) for _ in range(5)]
    for buffer in buffers:
        group_commit.add_buffer(buffer)
        buffer.has_unflushed = True
    for _ in range(3):
        sync_round = group_commit.begin()
        assert sync_round is not None
        group_commit.complete(sync_round)
        buffers[0].has_unflushed = True  # it collects on and on
    assert [buffer.flushed_in for buffer in buffers] == [[1, 3], [1], [2], [2], [3]]
    assert group_commit.has_dirty, "what is left is for the next"


def test_a_round_that_found_no_descriptor_goes_on_where_it_was(group_commit: GroupCommit) -> None:
    first, refused, last = _File(), _File(), _File()
    for file in (first, refused, last):
        group_commit.mark_dirty(file)
    refused.error = OpenFilesError("no descriptor")
    sync_round = group_commit.begin()
    assert sync_round is not None
    for _ in range(2):
        with pytest.raises(OpenFilesError):
            sync_round.run()
    refused.error = None
    sync_round.run()
    assert (first.syncs, refused.syncs, last.syncs) == (1, 1, 1)

"""Descriptors of the simulated disk: how many there are, whose, and that there may be no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.errors import OpenFilesError
from node.store.disk.simulated import SimulatedDisk


def test_a_closed_file_keeps_its_descriptor_until_a_sync_has_covered_it() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    owing, abandoned, owing_nothing = disk.create("/d/f"), disk.create("/d/g"), disk.open("/d/f")
    assert len(disk.descriptors) == 3
    owing.close()
    abandoned.abandon()
    owing_nothing.close()
    assert [path for path, _ in disk.open_files()] == ["/d/f"]
    owing.sync()
    assert disk.open_files() == []


def test_a_limit_of_descriptors() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    first = disk.create("/d/f")
    disk.open_limit = 1
    operations: tuple[Callable[[], object], ...] = (
        lambda: disk.open("/d/f"),
        lambda: disk.create("/d/g"),
        lambda: disk.list("/d"),
        lambda: disk.directory("/d").sync(),
        lambda: disk.remove_directory("/d"),
        lambda: disk.reread("/d/f"),
    )
    for operate in operations:
        with pytest.raises(OpenFilesError, match="errno 24"):
            operate()
    first.abandon()
    assert disk.list("/d") == ["f"]
    for operate in operations[2:]:
        operate()
    disk.open_limit = None
    assert not disk.exists("/d")


def test_a_file_that_is_dropped_open_is_remembered_until_the_process_ends() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    disk.create("/d/f")
    disk.create("/d/g").abandon()
    assert disk.descriptors.dropped == ["/d/f"]
    assert disk.open_files() == [("/d/f", "/d/f")]
    disk.unlink("/d/f")
    assert disk.open_files() == [("/d/f", None)]
    disk.lose_handles()
    assert (disk.descriptors.dropped, disk.open_files()) == ([], [])

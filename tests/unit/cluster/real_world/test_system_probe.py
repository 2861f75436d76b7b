"""What the operating system is asked, and how its answers are read."""

from __future__ import annotations

import errno
import os
import resource
from mmap import mmap
from pathlib import Path

import psutil
import pytest

from cluster.real_world.system_probe import SystemProbe, memory_group_limits, raise_open_files_limit
from node.errors import DirectoryGoneError, StorageError
from node.store.disk.disk import RealDisk
from node.store.disk.simulated import SimulatedDisk
from tests.support.descriptors import open_descriptors


def test_used_memory_is_what_is_resident() -> None:
    probe = SystemProbe(SimulatedDisk(), "/data")
    with mmap(-1, 64_000_000) as ballast:  # from the kernel, whatever the allocator has in stock
        ballast.write(b"x" * len(ballast))
        used_bytes = probe.used_memory_bytes()
        assert used_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
    assert probe.used_memory_bytes() < used_bytes - 50_000_000
    probe.close()


def test_memory_can_be_returned_and_measured_the_slow_way() -> None:
    probe = SystemProbe(SimulatedDisk(), "/data")
    probe.return_memory()
    probe.close()
    probe.close()
    assert probe.used_memory_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


def test_free_room_is_that_of_the_data_directory(tmp_path: Path) -> None:
    probe = SystemProbe(RealDisk(), str(tmp_path))
    assert probe.free_disk_bytes() == pytest.approx(psutil.disk_usage(str(tmp_path)).free, rel=0.1)
    probe.close()
    nowhere = SystemProbe(RealDisk(), str(tmp_path / "missing"))
    with pytest.raises(StorageError, match="statvfs of"):
        nowhere.free_disk_bytes()
    nowhere.close()


def test_a_data_directory_that_was_there_and_is_removed_or_replaced_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    probe = SystemProbe(RealDisk(), str(data))
    probe.free_disk_bytes()  # a node that begins: the directory is empty as yet
    write(data / "identity", "")
    probe.free_disk_bytes()
    data.rename(tmp_path / "elsewhere")
    with pytest.raises(DirectoryGoneError, match="was removed while this node ran"):
        probe.free_disk_bytes()
    data.mkdir()
    with pytest.raises(DirectoryGoneError, match="or another directory is in its place"):
        probe.free_disk_bytes()
    probe.close()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_control_groups_of_the_second_generation_limit_with_all_above_them(tmp_path: Path) -> None:
    write(tmp_path / "proc", "0::/system/warren\n")
    write(tmp_path / "fs/system/warren/memory.max", "max\n")
    write(tmp_path / "fs/system/memory.max", "2000\n")
    write(tmp_path / "fs/memory.max", "3000\n")
    assert memory_group_limits(tmp_path / "proc", tmp_path / "fs") == [2000, 3000]


def test_control_groups_of_the_first_generation_have_a_tree_per_controller(tmp_path: Path) -> None:
    write(tmp_path / "proc", "9:name=systemd:/x\n5:cpu,memory:/box\n2:cpuset:/y\n")
    write(tmp_path / "fs/memory/box/memory.limit_in_bytes", "1000\n")
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_group_limits(tmp_path / "proc", tmp_path / "fs") == [1000, 9223372036854771712]


def test_a_container_sees_its_own_group_at_the_root(tmp_path: Path) -> None:
    write(tmp_path / "proc", "0::/../../hidden\n")
    write(tmp_path / "fs/memory.max", "4000\n")
    assert 4000 in memory_group_limits(tmp_path / "proc", tmp_path / "fs")


def test_a_system_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert memory_group_limits(tmp_path / "missing", tmp_path) == []


def test_the_probe_knows_whether_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = SystemProbe(SimulatedDisk(), "/data")
    nothing, open_file = Path(os.devnull), os.open
    before = open_descriptors(nothing)

    def refuse_the_fourth(path: str, flags: int) -> int:
        if path == os.devnull and open_descriptors(nothing) - before == 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_file(path, flags)

    monkeypatch.setattr(os, "open", refuse_the_fourth)
    assert probe.can_open_files(3)
    assert not probe.can_open_files(4)
    assert open_descriptors(nothing) == before, "it has only tried"
    probe.close()


def test_a_node_may_open_as_many_files_as_the_system_lets_it() -> None:
    """A thousand queues are more than the 1,024 files that most systems begin with."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:
        assert raise_open_files_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

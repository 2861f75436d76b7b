"""Marks, small disks and slow syncs, with real processes and mounts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.harm import marked, slow_syncs, small_disks
from chaos.harm.journal import Journal, heal, outstanding
from chaos.harm.undoers import UNDOERS
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

#: Begins a child in a session of its own, whose parent then ends, as daemons do.
DAEMON = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin, start_new_session=True)
"""
ONE_MIB = 1 << 20


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path) as journal:
        yield journal


@pytest.fixture
def mounts() -> None:
    if why := small_disks.why_none():
        pytest.skip(why)


@pytest.fixture
def compiler() -> None:
    if why := slow_syncs.why_none():
        pytest.skip(why)


def begin(mark: str, program: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=marked.marked_environment(mark))


def test_whoever_has_a_mark_is_found_and_nobody_else() -> None:
    mark, other = marked.new_mark(), marked.new_mark()
    children = [begin(each, "input()") for each in (mark, f"{mark}/n1", f"{mark}/n10", other)]
    try:

        def found(wanted: str) -> list[int]:
            return sorted(process.pid for process in marked.processes_of(wanted))

        eventually(lambda: found(mark) == sorted(child.pid for child in children[:3]), "all have begun")
        assert found(f"{mark}/n1") == [children[1].pid]
        assert marked.kill_all(mark) == []
        assert [child.wait() for child in children[:3]] == [-9, -9, -9]
        assert found(other) == [children[3].pid]
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_a_daemon_that_has_left_its_parent_is_healed_away(tmp_path: Path) -> None:
    mark = marked.new_mark()
    with Journal(tmp_path) as journal:
        journal.will_do(marked.HOW, "a daemon", mark=mark)
        child = begin(mark, DAEMON)
        assert child.wait() == 0
        [daemon] = marked.processes_of(mark)
    assert [each.problem for each in heal(tmp_path, UNDOERS)] == [""]
    eventually(lambda: marked.processes_of(mark) == [], f"{daemon} has ended")
    child.communicate()


@pytest.mark.usefixtures("mounts")
def test_a_small_disk_can_be_full(tmp_path: Path, journal: Journal) -> None:
    disk = small_disks.SmallDisk(tmp_path / "n1", journal, 64 * ONE_MIB)
    try:
        before_bytes = disk.free_bytes
        assert 32 * ONE_MIB < before_bytes < 64 * ONE_MIB
        disk.fill(leave_bytes=ONE_MIB)
        assert ONE_MIB <= disk.free_bytes < ONE_MIB + (1 << 13)
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.place / "data").write_bytes(b"x" * ONE_MIB)
        (disk.place / "data").unlink()
        disk.empty()
        assert disk.free_bytes == before_bytes
        assert list(disk.place.iterdir()) == [], "nodes want a directory in which nothing is"
    finally:
        disk.close()
    disk.close()
    assert not disk.place.is_mount()
    assert outstanding(tmp_path) == []


@pytest.mark.usefixtures("mounts")
def test_a_disk_that_its_maker_has_left_is_healed_away(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        place = small_disks.SmallDisk(tmp_path / "n1", journal, 64 * ONE_MIB).place
    assert place.is_mount()
    with (place / "data").open("wb"):
        [healed] = heal(tmp_path, UNDOERS)
        assert "unmount it by hand" in healed.problem
        assert outstanding(tmp_path) != []
    assert [each.problem for each in heal(tmp_path, UNDOERS)] == [""]
    assert not place.is_mount()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n1", "undo.jsonl"]


@pytest.mark.usefixtures("compiler")
def test_a_sync_takes_as_long_as_it_is_told(tmp_path: Path) -> None:
    """A sync that is told to take a while cannot have taken less."""
    syncs = slow_syncs.SlowSyncs(slow_syncs.compile_library(tmp_path), tmp_path / "latency")
    program = """
import os, sys
with open(sys.argv[1], "wb") as file:
    for line in sys.stdin:
        getattr(os, line.strip())(file.fileno())
        print("synced", flush=True)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "file")]
    environment = {**os.environ, **syncs.environment}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for name in ("fsync", "fdatasync"):
            syncs.set(0.25)
            begun_s = time.monotonic()
            child.stdin.write(f"{name}\n")
            assert child.stdout.readline() == "synced\n"
            assert time.monotonic() - begun_s >= 0.25
            syncs.set(0.0)
        child.stdin.close()
    assert child.returncode == 0

"""What a failed sync leaves in memory is not believed by the start after it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.errors import StorageError
from node.store.disk.disk import RealDisk, read_whole, write_durably
from node.store.disk.distrust import NOTE_FILE, OwnDisk, note_failed_syncs, reread_if_noted
from node.store.disk.simulated import SimulatedDisk


def disk_with_a_file() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("/data/raft")
    write_durably(disk, "/data/raft/log", b"kept")
    note_failed_syncs(disk, "/data")
    return disk


def fail_to_sync(disk: SimulatedDisk, data: bytes) -> None:
    disk.fail_syncs = "log"
    file = disk.open("/data/raft/log")
    file.append(data)
    with pytest.raises(StorageError, match="fsync"):
        file.sync()
    disk.fail_syncs = None


def test_what_a_sync_could_not_write_is_seen_until_the_next_start() -> None:
    disk = disk_with_a_file()
    fail_to_sync(disk, b" and lost")
    assert read_whole(disk, "/data/raft/log") == b"kept and lost"
    reread_if_noted(disk, "/data")
    assert read_whole(disk, "/data/raft/log") == b"kept"
    assert not disk.exists(f"/data/{NOTE_FILE}")


def test_what_was_written_since_and_not_yet_synced_stays() -> None:
    disk = disk_with_a_file()
    fail_to_sync(disk, b" lost")
    disk.open("/data/raft/log").pwrite(b"KEPT", 0)
    reread_if_noted(disk, "/data")
    assert read_whole(disk, "/data/raft/log") == b"KEPT"


def test_without_a_failed_sync_nothing_is_given_up() -> None:
    disk = disk_with_a_file()
    disk.open("/data/raft/log").append(b" soon")
    reread_if_noted(disk, "/data")
    assert read_whole(disk, "/data/raft/log") == b"kept soon"


def test_a_disk_that_takes_no_note_either_leaves_the_failure_to_be_told() -> None:
    disk = disk_with_a_file()
    disk.fail_writes = NOTE_FILE
    fail_to_sync(disk, b" lost")
    assert not disk.exists(f"/data/{NOTE_FILE}")


def test_the_files_of_the_system_are_reread_and_stay_what_they_are(tmp_path: Path) -> None:
    disk: OwnDisk = RealDisk()
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "1").write_bytes(b"unsynced")
    (tmp_path / "elsewhere").symlink_to("queues")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / NOTE_FILE).touch()
    reread_if_noted(disk, str(tmp_path))
    assert (tmp_path / "queues" / "1").read_bytes() == b"unsynced"
    assert not (tmp_path / NOTE_FILE).exists()
    disk.reread(str(tmp_path / "gone"))


def test_a_failed_sync_of_the_system_leaves_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    note_failed_syncs(disk, str(tmp_path))
    file = disk.create(str(tmp_path / "log"))
    file.append(b"lost")

    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fdatasync", fail)
    with pytest.raises(StorageError, match="fsync"):
        file.sync()
    assert (tmp_path / NOTE_FILE).exists()

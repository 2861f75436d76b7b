"""What a failed sync leaves in memory is not believed by the start after it, even if nobody lived to tell of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.errors import StorageError
from node.store.disk.disk import RealDisk, read_whole, write_durably
from node.store.disk.distrust import MARK_FILE, OwnDisk, Use, reread_if_marked
from node.store.disk.simulated import SimulatedDisk

MARK = f"/data/{MARK_FILE}"


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("/data/raft")
    write_durably(disk, "/data/raft/log", b"kept")
    return disk


def fail_to_sync(disk: SimulatedDisk, data: bytes) -> None:
    disk.fail_syncs = "log"
    file = disk.open("/data/raft/log")
    file.append(data)
    with pytest.raises(StorageError, match="fsync"):
        file.sync()
    disk.fail_syncs = None


def test_what_a_sync_could_not_write_is_seen_until_the_next_start(disk: SimulatedDisk) -> None:
    use = Use(disk, "/data")
    fail_to_sync(disk, b" and lost")
    use.end()
    assert read_whole(disk, "/data/raft/log") == b"kept and lost"
    reread_if_marked(disk, "/data")
    assert read_whole(disk, "/data/raft/log") == b"kept"


def test_nor_is_it_believed_if_the_process_died_before_it_heard(disk: SimulatedDisk) -> None:
    Use(disk, "/data")
    disk.on_sync_failed = lambda: None
    fail_to_sync(disk, b" and lost")
    reread_if_marked(disk, "/data")
    assert read_whole(disk, "/data/raft/log") == b"kept"


def test_the_mark_lasts_until_somebody_ends_in_order(disk: SimulatedDisk) -> None:
    Use(disk, "/data")
    reread_if_marked(disk, "/data")
    second = Use(disk, "/data")
    assert disk.exists(MARK)
    second.end()
    assert not disk.exists(MARK)


def test_what_was_written_since_and_not_yet_synced_stays(disk: SimulatedDisk) -> None:
    Use(disk, "/data")
    fail_to_sync(disk, b" lost")
    disk.open("/data/raft/log").pwrite(b"KEPT", 0)
    reread_if_marked(disk, "/data")
    assert read_whole(disk, "/data/raft/log") == b"KEPT"


def test_after_an_orderly_end_nothing_is_given_up(disk: SimulatedDisk) -> None:
    Use(disk, "/data").end()
    fail_to_sync(disk, b" shown")
    reread_if_marked(disk, "/data")
    assert read_whole(disk, "/data/raft/log") == b"kept shown"


def test_a_disk_that_takes_no_mark_takes_no_start(disk: SimulatedDisk) -> None:
    disk.fail_writes = MARK_FILE
    with pytest.raises(StorageError, match=MARK_FILE):
        Use(disk, "/data")


def test_a_mark_that_cannot_be_taken_away_is_no_failure(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    use = Use(disk, "/data")

    def refuse(path: str) -> None:
        raise StorageError(f"unlink of {path} failed")

    monkeypatch.setattr(disk, "unlink", refuse)
    use.end()
    assert disk.exists(MARK)


def test_the_files_of_the_system_are_reread_and_stay_what_they_are(tmp_path: Path) -> None:
    disk: OwnDisk = RealDisk()
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "1").write_bytes(b"unsynced")
    (tmp_path / "elsewhere").symlink_to("queues")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / MARK_FILE).touch()
    reread_if_marked(disk, str(tmp_path))
    assert (tmp_path / "queues" / "1").read_bytes() == b"unsynced"
    disk.reread(str(tmp_path / "gone"))


def test_what_the_node_may_not_read_is_none_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data directory may be a file system of its own, with a `lost+found` that is root's."""
    disk: OwnDisk = RealDisk()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "note").write_text("of somebody else")
    (tmp_path / "raft").mkdir()
    (tmp_path / MARK_FILE).touch()
    reread: list[str] = []
    open_file, list_directory = os.open, os.listdir

    def may_open(path: str, flags: int) -> int:
        if path == str(tmp_path / "note"):
            raise PermissionError(13, "Permission denied", path)
        reread.append(path)
        return open_file(path, flags)

    def may_list(path: str) -> list[str]:
        if path == str(tmp_path / "lost+found"):
            raise PermissionError(13, "Permission denied", path)
        return list_directory(path)

    monkeypatch.setattr("os.open", may_open)
    monkeypatch.setattr("os.listdir", may_list)
    reread_if_marked(disk, str(tmp_path))
    assert str(tmp_path / "raft") in reread


def test_a_disk_that_cannot_be_read_takes_no_start(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    Use(disk, "/data")

    def fail(path: str) -> None:
        raise StorageError(f"open of {path} failed") from OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "reread", fail)
    with pytest.raises(StorageError, match="open"):
        reread_if_marked(disk, "/data")


def test_a_failed_sync_of_the_system_leaves_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    use = Use(disk, str(tmp_path))
    file = disk.create(str(tmp_path / "log"))
    file.append(b"lost")

    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fdatasync", fail)
    with pytest.raises(StorageError, match="fsync"):
        file.sync()
    use.end()
    assert (tmp_path / MARK_FILE).exists()

"""What a failed sync leaves in memory is not believed by the start after it, even if nobody lived to tell of it."""

from __future__ import annotations

import os
from pathlib import Path
from socket import AF_UNIX, socket

import pytest

from node.errors import StorageError
from node.store.disk.disk import RealDisk, read_whole, write_durably
from node.store.disk.distrust import MARK_FILE, OwnDisk, Use, reread_if_marked
from node.store.disk.simulated import SimulatedDisk
from tests.support.descriptors import open_descriptors

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
    reread_if_marked(disk, "/data", ["raft"])
    assert read_whole(disk, "/data/raft/log") == b"kept"


def test_nor_is_it_believed_if_the_process_died_before_it_heard(disk: SimulatedDisk) -> None:
    Use(disk, "/data")
    disk.on_sync_failed = lambda _error: None
    fail_to_sync(disk, b" and lost")
    reread_if_marked(disk, "/data", ["raft"])
    assert read_whole(disk, "/data/raft/log") == b"kept"


def test_the_mark_takes_no_descriptor(disk: SimulatedDisk) -> None:
    Use(disk, "/data")
    assert disk.exists(MARK)
    assert list(disk.descriptors.taken()) == []


def test_who_does_not_trust_the_disk_any_more_hears_before_whoever_asked_for_the_sync(disk: SimulatedDisk) -> None:
    heard: list[str] = []
    Use(disk, "/data").on_failed = lambda error: heard.append(str(error))
    fail_to_sync(disk, b" and lost")
    assert heard == ["fsync of /data/raft/log failed: injected error (errno 5)"]


def test_the_mark_lasts_until_somebody_ends_in_order(disk: SimulatedDisk) -> None:
    Use(disk, "/data")
    reread_if_marked(disk, "/data", ["raft"])
    second = Use(disk, "/data")
    assert disk.exists(MARK)
    second.end()
    assert not disk.exists(MARK)


def test_what_was_written_since_and_not_yet_synced_stays(disk: SimulatedDisk) -> None:
    Use(disk, "/data")
    fail_to_sync(disk, b" lost")
    disk.open("/data/raft/log").pwrite(b"KEPT", 0)
    reread_if_marked(disk, "/data", ["raft"])
    assert read_whole(disk, "/data/raft/log") == b"KEPT"


def test_after_an_orderly_end_nothing_is_given_up(disk: SimulatedDisk) -> None:
    Use(disk, "/data").end()
    fail_to_sync(disk, b" shown")
    reread_if_marked(disk, "/data", ["raft"])
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


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files whose memory the system was asked to give up."""
    names: list[str] = []
    advise = os.posix_fadvise

    def note(fd: int, offset: int, size: int, advice: int) -> None:
        names.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        advise(fd, offset, size, advice)

    monkeypatch.setattr("os.posix_fadvise", note)
    return names


def test_the_files_of_the_system_are_reread_and_stay_what_they_are(tmp_path: Path, given_up: list[str]) -> None:
    disk: OwnDisk = RealDisk()
    (tmp_path / "vhosts" / "1").mkdir(parents=True)
    (tmp_path / "vhosts" / "1" / "index").write_bytes(b"unsynced")
    (tmp_path / "name").write_bytes(b"n1")
    (tmp_path / MARK_FILE).touch()
    reread_if_marked(disk, str(tmp_path), ["name", "gone", "vhosts"])
    assert given_up == [str(tmp_path / "name"), str(tmp_path / "vhosts" / "1" / "index")]
    assert (tmp_path / "vhosts" / "1" / "index").read_bytes() == b"unsynced"


def test_what_somebody_else_has_put_there_is_left_alone(tmp_path: Path, given_up: list[str]) -> None:
    """Each of these would fail, or never end: a start after a kill must not depend on them."""
    disk: OwnDisk = RealDisk()
    own = tmp_path / "vhosts"
    own.mkdir()
    for directory in (tmp_path, own):
        (directory / "loop").symlink_to(".")
        (directory / "descriptors").symlink_to("/proc/self/fd")
        (directory / "nowhere").symlink_to("gone")
        os.mkfifo(directory / "pipe")
        with socket(AF_UNIX) as listener:
            listener.bind(str(directory / "socket"))
    (tmp_path / "lost+found").mkdir()
    (tmp_path / MARK_FILE).touch()
    reread_if_marked(disk, str(tmp_path), ["raft", "vhosts"])
    assert given_up == []


def test_a_directory_of_the_node_on_another_disk_is_reread(tmp_path: Path, given_up: list[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "log").touch()
    (tmp_path / "raft").symlink_to("elsewhere")
    (tmp_path / MARK_FILE).touch()
    reread_if_marked(RealDisk(), str(tmp_path), ["raft"])
    assert given_up == [str(tmp_path / "elsewhere" / "log")]


def test_a_file_of_the_node_that_may_not_be_read_takes_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "log").touch()
    (tmp_path / MARK_FILE).touch()

    def refuse(path: str, _flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        reread_if_marked(RealDisk(), str(tmp_path), ["raft"])


def test_a_disk_that_cannot_be_read_takes_no_start(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    Use(disk, "/data")

    def fail(path: str) -> None:
        raise StorageError(f"open of {path} failed") from OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "reread", fail)
    with pytest.raises(StorageError, match="open"):
        reread_if_marked(disk, "/data", ["raft"])


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


def test_a_mark_holds_no_descriptor(tmp_path: Path) -> None:
    """A process that begins again, to join a cluster or to be reset, marks the directory each time."""
    use = Use(RealDisk(), str(tmp_path))
    assert (tmp_path / MARK_FILE).exists()
    assert open_descriptors(tmp_path) == 0
    use.end()
    assert not (tmp_path / MARK_FILE).exists()

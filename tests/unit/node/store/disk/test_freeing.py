"""The last descriptor of an unlinked file is closed by a thread, so that nobody waits for the file system."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from node.store.disk import disk
from node.store.disk.disk import FREEING, RealDisk
from node.store.disk.freeing import WAITING_MAX, Freeing


class Closes:
    """Stands for the file system: who closed what, and when it may go on."""

    def __init__(self) -> None:
        self.by_thread: dict[int, int] = {}
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self._caller = threading.get_ident()

    def close(self, descriptor: int) -> None:
        if threading.get_ident() != self._caller:
            self.has_begun.set()
            assert self.may_go_on.wait(30)
        self.by_thread[descriptor] = threading.get_ident()


def open_below(directory: Path) -> list[str]:
    """Where descriptors of this process lead, as the system says it."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(entry.readlink()))
        except FileNotFoundError:
            continue  # that of the listing itself
    return [name for name in names if name.startswith(str(directory))]


def test_an_unlinked_file_is_gone_at_once_and_its_space_soon(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")

    RealDisk().unlink(str(path))

    assert not path.exists()
    FREEING.wait()
    assert open_below(tmp_path) == []


def test_a_thread_closes_the_descriptor_of_an_unlinked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    closes = Closes()
    mine = Freeing(closes.close)
    monkeypatch.setattr(disk, "FREEING", mine)

    RealDisk().unlink(str(path))

    # The file system is still at it.
    assert closes.has_begun.wait(30)
    assert not path.exists()
    closes.may_go_on.set()
    mine.wait()
    [(descriptor, thread)] = closes.by_thread.items()
    os.close(descriptor)
    assert thread != threading.get_ident()


def test_a_missing_file_is_neither_made_nor_an_error(tmp_path: Path) -> None:
    RealDisk().unlink(str(tmp_path / "never-was"))
    FREEING.wait()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_stops_nobody(tmp_path: Path) -> None:
    """Opening a pipe usually waits for its other end, and a link leads to something that is to stay."""
    (tmp_path / "precious").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "pipe")
    RealDisk().unlink(str(tmp_path / "pipe"))
    RealDisk().unlink(str(tmp_path / "link"))
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_without_a_thread_the_caller_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    closes = Closes()
    mine = Freeing(closes.close)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as system:
        system.setattr(threading.Thread, "start", refuse)
        mine.close(1)
    assert closes.by_thread == {1: threading.get_ident()}
    closes.may_go_on.set()
    mine.close(2)
    mine.wait()
    assert closes.by_thread[2] != threading.get_ident()


def test_what_waits_is_bounded() -> None:
    """Who unlinks faster than the file system frees waits for it himself."""
    closes = Closes()
    mine = Freeing(closes.close)
    # One is being closed, the rest waits.
    mine.close(0)
    assert closes.has_begun.wait(30)
    for descriptor in range(1, WAITING_MAX + 1):
        mine.close(descriptor)
    assert closes.by_thread == {}

    mine.close(1000)

    assert closes.by_thread == {1000: threading.get_ident()}
    closes.may_go_on.set()
    mine.wait()
    assert sorted(closes.by_thread) == [*range(WAITING_MAX + 1), 1000]


def test_a_descriptor_that_cannot_be_closed_stops_nothing() -> None:
    closed: list[int] = []

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        raise OSError("input/output error")

    mine = Freeing(close)
    mine.close(1)
    mine.close(2)
    mine.wait()
    assert closed == [1, 2]

"""What the system refuses comes out of the real disk as a `StorageError`, want of descriptors as one of its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from node.errors import OpenFilesError, StorageError
from node.store.disk.disk import RealDisk

#: A name that no file system takes, so that each call of the system fails with an errno that is about no single file.
REFUSED_NAME = "x" * 300
OPERATIONS: dict[str, Callable[[RealDisk, str], object]] = {
    "open": lambda disk, path: disk.open(path),
    "create": lambda disk, path: disk.create(path),
    "rename": lambda disk, path: disk.rename(path, f"{path}y"),
    "unlink": lambda disk, path: disk.unlink(path),
    "remove_directory": lambda disk, path: disk.remove_directory(path),
    "list": lambda disk, path: disk.list(path),
    "exists": lambda disk, path: disk.exists(path),
    "mkdir": lambda disk, path: disk.mkdir(path),
    "sync_directory": lambda disk, path: disk.sync_directory(path),
    "directory": lambda disk, path: disk.directory(path).sync(),
    "reread": lambda disk, path: disk.reread(path),
    "free_bytes": lambda disk, path: disk.free_bytes(path),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_the_system_refuses_is_a_storage_error(tmp_path: Path, operation: str) -> None:
    with pytest.raises(StorageError, match=r"x failed: File name too long \(errno 36\)"):
        OPERATIONS[operation](RealDisk(), f"{tmp_path}/{REFUSED_NAME}")


def test_every_operation_of_the_disk_is_tried_with_what_the_system_refuses() -> None:
    operations = {name for name in vars(RealDisk) if not name.startswith("_")}
    assert operations == OPERATIONS.keys() | {"announce_cut"}, "which keeps nothing here"


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.EMFILE, "`ulimit -Hn`, LimitNOFILE"), (errno.ENFILE, "`fs.file-max`")]
)
def test_want_of_descriptors_is_told_from_a_broken_disk_and_names_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    for operation in ("open", "create", "list", "sync_directory"):
        with pytest.raises(OpenFilesError) as caught:
            OPERATIONS[operation](RealDisk(), str(tmp_path))
        assert os.strerror(number) in str(caught.value)
        assert remedy in str(caught.value)


def test_a_directory_that_finds_no_descriptor_for_its_sync_is_no_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, failed, really_open = RealDisk(), list[StorageError](), os.open
    disk.on_sync_failed = failed.append
    directory = disk.directory(str(tmp_path))

    def refuse(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OpenFilesError):
        directory.sync()
    monkeypatch.setattr(os, "open", really_open)
    directory.sync()
    assert failed == []

"""Long work on files, cut into steps, so that a loop can turn between them.

A start after a crash reads everything that a vhost has. It is written as a generator, straight on, like work that
nobody interrupts. Each item ends a step of some milliseconds at most; what is yielded is

- ``None``: go on whenever you like;
- a `Job`: carry it out before the next step, on this thread or another. It waits for the disk (it syncs files) and
  touches nothing that the steps look at. If it raises, the error is thrown into the steps.

Whoever closes the steps instead of going on leaves files that the next start recovers: that is all a crash would do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from node.errors import StorageError
from node.store.disk.disk import Disk
from node.store.disk.group_commit import Syncable

_T = TypeVar("_T")

#: Waits for the disk. Raises `StorageError`.
Job = Callable[[], None]
#: See the module text.
Steps = Generator[Job | None, None, _T]

#: A step reads so much with one call, two or three milliseconds if the system has fetched it (`fetch_ahead`): a segment
#: of messages of a kilobyte.
READ_BYTES_MAX = 5 << 20


def run_through(steps: Steps[_T]) -> _T:
    """Take all steps at once, on this thread. Raises what they raise."""
    try:
        job = next(steps)
        while True:
            try:
                if job is not None:
                    job()
            except StorageError as error:
                job = steps.throw(error)
            else:
                job = next(steps)
    except StopIteration as end:
        value: _T = end.value
        return value


def sync_job(files: Sequence[Syncable]) -> Job:
    """Syncs open files and directories."""

    def sync() -> None:
        for file in files:
            file.sync()

    return sync


def fetch_ahead(disk: Disk, path: str) -> None:
    """A file is read soon: the system may fetch it meanwhile. Only a hint, unless there is no such file."""
    if disk.exists(path):
        file = disk.open(path)
        file.will_read(file.size, 0)
        file.close()


def read_in_steps(disk: Disk, path: str) -> Steps[bytes]:
    """Content of a file. Raises `StorageError` if it cannot be read."""
    file = disk.open(path)
    try:
        size = file.size
        if size <= READ_BYTES_MAX:
            return file.pread(size, 0)
        pieces: list[bytes] = []
        for at in range(0, size, READ_BYTES_MAX):
            pieces.append(file.pread(READ_BYTES_MAX, at))
            yield None
        return b"".join(pieces)
    finally:
        file.close()

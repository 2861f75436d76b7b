"""One process per data directory: two that wrote into the same files would destroy both their work."""

from __future__ import annotations

import fcntl
import os

from node.errors import ConfigError

LOCK_NAME = "lock"


class DataLock:
    """Held from construction to the end of the process, however it ends: the system gives it back.

    Raises `ConfigError` if another process has the directory, `OSError` if the lock's file cannot be made.
    """

    def __init__(self, data_dir: str) -> None:
        self._fd = os.open(f"{data_dir}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._fd, 20).decode(errors="replace").strip()
            self.release()
            raise ConfigError(
                f"data_dir {data_dir} is in use by process {holder or '(unknown)'}: stop that node first, or give this "
                "one another data_dir"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """The directory may be used again."""
        os.close(self._fd)

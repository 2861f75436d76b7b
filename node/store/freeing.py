"""Freeing the space of unlinked files on a thread of its own.

A file without a name lives until its last descriptor is closed; whoever closes that waits until the file system has
freed the blocks, some five milliseconds for 16 MB. So an unlink holds a descriptor, which makes it cheap, and a thread
closes it. The name is gone at once; the space comes back a little later. (A forked process would have to begin anew;
there is none.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue

#: Descriptors that wait. Who unlinks faster than the file system frees closes the next one himself.
WAITING_MAX = 64


class Freeing:
    """Closes descriptors; the thread begins with the first, and ends with the process."""

    def __init__(self, close: Callable[[int], None]) -> None:
        self._close = close
        self._descriptors: Queue[int] = Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None

    def close(self, descriptor: int) -> None:
        """Nobody uses ``descriptor`` any more. Never raises; waits only if `WAITING_MAX` others wait, or if the system
        has no thread left."""
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="freeing", daemon=True)
                thread.start()
                self._thread = thread
            self._descriptors.put_nowait(descriptor)
        except (Full, RuntimeError):
            with suppress(OSError):
                self._close(descriptor)

    def wait(self) -> None:
        """Until all space is free that was given up before."""
        self._descriptors.join()

    def _run(self) -> None:
        while True:
            descriptor = self._descriptors.get()
            with suppress(OSError):
                self._close(descriptor)
            self._descriptors.task_done()

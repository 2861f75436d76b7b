"""Freeing the space of files on a thread of its own.

A file without a name lives until its last descriptor is closed; whoever closes that waits until the file system has
freed the blocks, some five milliseconds for 16 MB. So an unlink holds a descriptor, which makes it cheap, and a thread
closes it. The name is gone at once; the space comes back a little later. And whoever cuts a file waits until what is
being written of it is written, and for the journal of the file system: half a millisecond for a megabyte as a rule, 25
beside many fsyncs. So files are cut by that thread too (`DiskFile.begin_cut`). (A forked process would have to begin
anew; there is none.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Full, Queue

#: Jobs that wait. Who gives up space faster than the file system frees it does the next one himself.
WAITING_MAX = 64


class Freeing:
    """Does jobs in their order; the thread begins with the first, and ends with the process."""

    def __init__(self, close: Callable[[int], None]) -> None:
        self._close = close
        self._jobs: Queue[Callable[[], None]] = Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None

    def close(self, descriptor: int) -> None:
        """Nobody uses ``descriptor`` any more. Never raises."""
        self.run(partial(self._close_quietly, descriptor))

    def run(self, job: Callable[[], None]) -> None:
        """Have ``job`` done, which does not raise. Waits only if `WAITING_MAX` others wait, or if the system has no
        thread left."""
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="freeing", daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.put_nowait(job)
        except (Full, RuntimeError):
            job()

    def wait(self) -> None:
        """Until all space is free that was given up before."""
        self._jobs.join()

    def _close_quietly(self, descriptor: int) -> None:
        with suppress(OSError):
            self._close(descriptor)

    def _run(self) -> None:
        while True:
            self._jobs.get()()
            self._jobs.task_done()

"""Whether a node is to stop, and why."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from cluster.transport.admin_port import ExitCode


class Failure(NamedTuple):
    """What ends a node that was not asked to stop."""

    reason: str
    #: Of the process.
    exit_code: ExitCode


class Ending:
    """Asked for by an operator, or forced by a failure; the first failure is the one that counts."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self.failure: Failure | None = None
        #: The node is to begin again in the same process, from what is on its disk.
        self.begins_again = False

    def stop(self) -> None:
        """Begin an orderly stop; a node that was about to begin again does not."""
        self.begins_again = False
        self._requested.set()

    def close(self) -> None:
        """What was asked for, or forced, is under way; if nothing was, it is a stop."""
        self._requested.set()

    def fail(self, reason: str, exit_code: ExitCode = ExitCode.SOFTWARE) -> None:
        """The node cannot go on."""
        if self.failure is None:
            self.failure = Failure(reason, exit_code)
        self.stop()

    def begin_again(self) -> None:
        """Begin an orderly stop, after which the node is started again at once."""
        if not self.is_requested:
            self.begins_again = True
            self._requested.set()

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    async def wait(self) -> None:
        """Until the node is to stop."""
        await self._requested.wait()

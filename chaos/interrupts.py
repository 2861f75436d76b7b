"""One way to be stopped: SIGTERM does what Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

#: As a shell reports a program that Ctrl-C ended.
EXIT_INTERRUPTED = 130


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM then does what Ctrl-C does, so that what was started is cleaned up.

    Also where Ctrl-C does nothing: scripts start what they put in the background with SIGINT ignored.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """In the background of a script SIGINT is ignored, here and in every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

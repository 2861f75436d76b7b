"""What holds for every test."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

import chaos  # noqa: F401 - it keeps gRPC out of forks, which has to be said before a test imports that

# A commit passes or it does not, whatever was tried before and wherever: the same examples every time, and no memory of
# earlier failures. Whoever looks for new ones: `--hypothesis-profile search`.
settings.register_profile("search", settings.get_profile("default"))
settings.register_profile("reproducible", derandomize=True, database=None)
settings.load_profile("reproducible")


def pytest_configure() -> None:
    """In the background of a script SIGINT is ignored, here and in every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests stay until the end: to look for garbage among them, while they are made and then in each test,
    takes a tenth of the time of all. What a test leaves is small."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()

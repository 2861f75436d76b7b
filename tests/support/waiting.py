"""The only way tests on real time wait: for a condition, with a bound, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

#: Every condition comes true within a second or two on an idle machine; a loaded one is given far more.
DEFAULT_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.02
#: Of `eventually_async`, whose conditions cost nothing: they look at objects of the same process.
_ASYNC_POLL_INTERVAL_S = 0.002

_Value = TypeVar("_Value")


def eventually(
    question: Callable[[], _Value],
    what: str,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    *,
    poll_interval_s: float = POLL_INTERVAL_S,
    may_ask_again: Callable[[Exception], bool] = lambda _error: False,
) -> _Value:
    """The first true answer of ``question``; fails with ``what`` and the last answer if there is none in time.

    An exception that ``may_ask_again`` accepts is no answer yet; any other ends the wait.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer: object
        try:
            answer = value = question()
            if value:
                return value
        except Exception as error:
            if not may_ask_again(error):
                raise
            answer = error
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}; the last answer was {answer!r}"
        time.sleep(poll_interval_s)


async def eventually_async(question: Callable[[], _Value], what: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> _Value:
    """`eventually` for what comes true in this event loop, while others run."""
    deadline = time.monotonic() + timeout_s
    while not (answer := question()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}; the last answer was {answer!r}"
        await asyncio.sleep(_ASYNC_POLL_INTERVAL_S)
    return answer

"""The time by which whoever conducts a run waits."""

from __future__ import annotations

import asyncio


def now_s() -> float:
    """Of the running loop: in tests it is virtual."""
    return asyncio.get_running_loop().time()

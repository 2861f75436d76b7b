"""The garbage collector of a node: never a pause that grows with the number of messages.

Messages and positions make no cycles: counting references frees them. But a full collection looks at each of them, a
tenth of a second for a million, in the middle of whatever the loop does. So young objects are collected as ever (cycles
of errors and of what was just made die there), what lives at the start is set aside, and everything is looked at only
once an hour. Until then what is older and in a cycle stays: connections, channels and queues must leave none behind.
"""

from __future__ import annotations

import asyncio
import gc

#: Allocations per collection of the youngest, and such collections per collection of the middle generation. Whatever
#: stays is looked at twice, so their product decides how long one takes (0.4 us per object) and not how long all take:
#: with 400,000, a consumer that took everything without acking stopped a node for 158 ms at a time.
_YOUNG, _MIDDLE = 2_000, 5
#: Middle collections per full one: never by count.
_FULL = 1_000_000_000
FULL_EVERY_S = 3600.0


def tune_collector(loop: asyncio.AbstractEventLoop) -> None:
    """To be called once, when the node is built."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)
    loop.call_later(FULL_EVERY_S, _collect, loop)


def _collect(loop: asyncio.AbstractEventLoop) -> None:
    gc.collect()
    loop.call_later(FULL_EVERY_S, _collect, loop)

"""Makes a node write down how late a timer of its event loop comes, for measurements.

Python imports a module of this name when it starts. With this directory on ``PYTHONPATH`` and ``WARREN_LOOP_WATCH`` set
to a path, a process that runs a uvloop appends a line per pause to that path and its process id: when a timer was due
(`time.monotonic`), and how many seconds later it came. Nothing else of the process is touched.
"""

import os

_PATH = os.environ.get("WARREN_LOOP_WATCH")
#: Shorter ones are not noted; the loop's clock has a resolution of a millisecond.
_NOTED_S = 0.003
_EVERY_S = 0.001

if _PATH:
    import asyncio
    import time
    from collections.abc import Coroutine
    from pathlib import Path
    from typing import Any

    import uvloop

    _run = uvloop.run

    async def _watched(main: Coroutine[Any, Any, Any]) -> Any:
        loop = asyncio.get_running_loop()
        with Path(f"{_PATH}.{os.getpid()}").open("w", buffering=1) as log:  # noqa: ASYNC230 - nobody is served yet

            def fire(due_s: float) -> None:
                came_s = time.monotonic()
                if came_s - due_s >= _NOTED_S:
                    log.write(f"{due_s:.6f} {came_s - due_s:.6f}\n")
                loop.call_later(_EVERY_S, fire, time.monotonic() + _EVERY_S)

            fire(time.monotonic())
            return await main

    def _run_watched(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        return _run(_watched(main), **options)

    uvloop.run = _run_watched

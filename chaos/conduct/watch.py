"""Asking the nodes of a cluster how its queues stand, again and again, each for itself.

Every node that runs is asked by a task of its own, so that one that does not answer holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType

from chaos.clients.ports import Recorder
from chaos.conduct.masters import MasterWatch
from chaos.record.kinds import Kind
from chaos.record.process_record import RunClock
from chaos.targets.target import NotNow, QueueView, Target

#: Between an answer and the next question.
PAUSE_S = 0.2
#: Between two rows that say how long a queue is.
DEPTH_EVERY_US = 1_000_000


class Watch:
    """Of the queues of a run. Use it as a context; what its tasks raise is raised by `check`."""

    def __init__(self, target: Target, queues: Sequence[str], record: Recorder, clock: RunClock) -> None:
        self._target = target
        self._record = record
        self._clock = clock
        began_us = clock.now_us()
        self.masters = {
            name: MasterWatch(index, record, began_us, target.is_running) for index, name in enumerate(queues, 1)
        }
        self._indices = {name: index for index, name in enumerate(queues, 1)}
        self._depth_us = dict.fromkeys(queues, 0)
        self._tasks: list[asyncio.Task[None]] = []
        self._looked = asyncio.Event()

    async def __aenter__(self) -> Watch:
        self._tasks = [asyncio.create_task(self._ask_again(facts.number)) for facts in self._target.nodes]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise what a task has met."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def views(self) -> dict[str, QueueView]:
        """The latest of every queue of which somebody tells."""
        return {name: watch.current for name, watch in self.masters.items() if watch.current is not None}

    def failovers(self, queue: str | None = None) -> int:
        """Promotions so far: of one queue, or of all."""
        return sum(watch.failovers for name, watch in self.masters.items() if queue in (None, name))

    async def next_look(self) -> None:
        """Until somebody has answered once more, or it is known that nobody does. Raises what `check` raises."""
        self._looked.clear()
        looking = asyncio.ensure_future(self._looked.wait())
        try:
            await asyncio.wait([looking, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            looking.cancel()
        self.check()

    async def _ask_again(self, node: int) -> None:
        while True:
            if self._target.is_running(node):
                await self._ask(node)
            else:
                self._heard(node, {}, 0)
            self._looked.set()
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, node: int) -> None:
        asked_us = self._clock.now_us()
        try:
            said = {view.queue: view for view in await self._target.operator(node).queues()}
        except NotNow:
            said = {}
        self._heard(node, said, asked_us)

    def _heard(self, node: int, said: Mapping[str, QueueView], asked_us: int) -> None:
        now_us = self._clock.now_us()
        for name, watch in self.masters.items():
            if name not in said:
                watch.silent(node)
                continue
            watch.said(node, said[name], asked_us, now_us)
            self._note_depth(name, watch.current, now_us)

    def _note_depth(self, name: str, view: QueueView | None, now_us: int) -> None:
        if view is None or view.ready is None or now_us - self._depth_us[name] < DEPTH_EVERY_US:
            return
        self._depth_us[name] = now_us
        length = view.ready + (view.unacked or 0)
        self._record.note(Kind.DEPTH, now_us, queue=self._indices[name], number=length)

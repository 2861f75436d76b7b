"""Exchanges that clients declare through one node after the other, and look for through all the others.

Checked: what somebody was told to exist is there for everybody, through whatever node that serves clients; and while
nothing is wrong but that nodes with a full disk serve nobody, a declaration is quick: nobody waits for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import count

from chaos.sim.answers import is_missing
from chaos.sim.client import Channel, ClosedError
from chaos.sim.consumers import Visitor
from chaos.sim.stage import Stage
from chaos.sim.workload import RECONNECT_PAUSE_S, TROUBLE

#: Between two declarations.
PAUSE_S = 0.05
#: From the connection to the answer, with the slowest disks and links that scenarios draw.
QUICK_S = 1.0
#: That a node has paused has been heard everywhere.
HEARD_S = 0.5


class Declarer:
    """One client that declares."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._number = number
        self._visitor = Visitor(f"d{number}", stage.world, lambda _exchange: f"d{number}")
        self._names = count(1)

    async def go_on(self, lasts_ms: int) -> bool:
        """For so long."""
        end_s = self._stage.loop.now_s + lasts_ms / 1000
        while self._stage.loop.now_s < end_s:
            exchange = f"d{self._number}.{next(self._names)}"
            if await self._declare(exchange):
                await self._look_for(exchange)
            await self._delete(exchange)
            await asyncio.sleep(PAUSE_S)
        return True

    async def _declare(self, exchange: str) -> bool:
        """Whether that was answered."""
        left_out = self._left_out()
        asking = asyncio.ensure_future(self._visitor.request(lambda channel: channel.declare_exchange(exchange)))
        await asyncio.wait({asking}, timeout=QUICK_S)
        if left_out and left_out == self._left_out() and not asking.done():
            names = ", ".join(sorted(left_out))
            self._violate(f"a declaration takes more than {QUICK_S} s beside {names}, where no client is served")
        try:
            await asking
        except TROUBLE:
            return False
        return True

    def _left_out(self) -> frozenset[str]:
        """Nodes that have paused for their full disks; none if anything else is wrong."""
        cluster, now_s = self._stage.cluster, self._stage.loop.now_s
        if len(cluster.nodes) < len(cluster.machines) or cluster.has_slow_links:
            return frozenset()
        full = {name for name, machine in cluster.machines.items() if machine.is_disk_bad}
        for name, node in cluster.nodes.items():
            pause = node.raft.pause
            if name in full and (pause is None or now_s < pause.since_ms / 1000 + HEARD_S):
                return frozenset()
            if name not in full and not node.clients.is_serving:
                return frozenset()
        return frozenset(full)

    async def _look_for(self, exchange: str) -> None:
        def look(channel: Channel) -> Awaitable[object]:
            return channel.declare_exchange(exchange, passive=True)

        for entry in range(len(self._stage.world.nodes)):
            try:
                await self._visitor.request(look, entry=entry)
            except TROUBLE as error:
                if is_missing(error):
                    self._violate(f"{exchange} was declared, and is not there on node {entry + 1}: {error}")

    async def _delete(self, exchange: str) -> None:
        """Until that is answered."""
        while True:
            try:
                await self._visitor.request(lambda channel: channel.delete_exchange(exchange))
            except TROUBLE as error:
                if isinstance(error, ClosedError) and is_missing(error):
                    return
                await asyncio.sleep(RECONNECT_PAUSE_S)
            else:
                return

    def _violate(self, text: str) -> None:
        self._stage.violate("declaration", text)

"""Exchanges and bindings that clients make and take away again, each request through another node.

Checked: what somebody was told to exist is there for everybody, also if another one declared it a moment ago; what was
bound routes, through whatever node; what was unbound does not; an auto-delete exchange is gone, for
everybody, when the answer to the last unbinding is there; and what was confirmed is in the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from chaos.sim.client import Channel, ClosedError, Delivered
from chaos.sim.consumers import Visitor
from chaos.sim.stage import Stage
from chaos.sim.workload import TROUBLE

NOT_FOUND = 404
KEY = "key"
#: Between two publishes.
PAUSE_S = 0.2


class Wiring:
    """A direct exchange, bound to a fanout exchange that deletes itself, bound to a queue; any number of times."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._visitor, self._other = (
            Visitor(name, stage.world, lambda _queue: f"x{number}") for name in (f"x{number}", f"y{number}")
        )
        self._queue, self._source, self._middle = f"x{number}", f"source {number}", f"middle {number}"
        #: One after the other.
        self._turn = asyncio.Lock()
        self._confirmed = 0

    async def stay(self, lasts_ms: int) -> bool:
        """Everything is made, used for a while, and taken away."""
        async with self._turn:
            self._confirmed = 0
            await self._wire()
            end_s = self._stage.loop.now_s + lasts_ms / 1000
            await self._publish(self._source, KEY)
            while self._stage.loop.now_s < end_s:
                await asyncio.sleep(PAUSE_S)
                await self._publish(self._source, KEY)
            await self._insist(lambda channel: channel.unbind(self._queue, self._middle, KEY))
            await self._publish(self._source, KEY, is_bound=False)
            await self._insist(self._require_gone)
            await self._insist(self._count)
            await self._insist(lambda channel: channel.delete_exchange(self._source))
            await self._insist(lambda channel: channel.delete(self._queue))
        return True

    async def _wire(self) -> None:
        insist, queue, source, middle = self._insist, self._queue, self._source, self._middle
        await asyncio.gather(self._declare(self._visitor), self._declare(self._other))
        await insist(lambda channel: channel.declare_exchange(middle, auto_delete=True))
        await insist(lambda channel: channel.declare_exchange(source, "direct"))
        await insist(lambda channel: channel.bind(queue, middle, KEY))
        await insist(lambda channel: channel.bind_exchange(middle, source, KEY))

    async def _declare(self, visitor: Visitor) -> None:
        """Two do this at the same time: whoever is answered uses the queue at once."""
        await visitor.insist(lambda channel: channel.declare(self._queue))
        await self._publish("", self._queue)

    async def _insist(self, ask: Callable[[Channel], Coroutine[Any, Any, Any]]) -> None:
        """Whatever is not found was there, or is not there yet, for somebody who was told otherwise."""

        async def ask_and_look(channel: Channel) -> None:
            try:
                await ask(channel)
            except ClosedError as error:
                if error.code == NOT_FOUND:
                    self._stage.violate("wiring", f"through node {channel.entry + 1}: {error}")
                    return
                raise

        await self._visitor.insist(ask_and_look)

    async def _publish(self, exchange: str, key: str, *, is_bound: bool = True) -> None:
        """Until one is confirmed."""
        while True:
            try:
                await self._visitor.request(lambda channel: self._publish_one(channel, exchange, key, is_bound))
            except TROUBLE as error:
                if isinstance(error, ClosedError) and error.code == NOT_FOUND:
                    self._stage.violate("wiring", f"a publish: {error}")
                await asyncio.sleep(PAUSE_S)
            else:
                return

    async def _publish_one(self, channel: Channel, exchange: str, key: str, is_bound: bool) -> None:
        await channel.confirm_select()
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        returned: list[Delivered] = []

        def lost(error: ClosedError) -> None:
            if not confirmed.done():
                confirmed.set_exception(error)

        channel.on_return = returned.append
        channel.on_confirm = lambda _number, _multiple, is_ack: confirmed.set_result(is_ack)
        channel.on_closed = lost
        channel.publish(key, b"wired", exchange=exchange, mandatory=True)
        is_confirmed = await confirmed
        if is_bound == bool(returned):
            what = "was returned although it is bound" if is_bound else "was routed after it was unbound"
            self._stage.violate("wiring", f"a publish to '{exchange}' through node {channel.entry + 1} {what}")
        self._confirmed += is_confirmed and is_bound

    async def _require_gone(self, channel: Channel) -> None:
        try:
            await channel.declare_exchange(self._middle, passive=True)
        except ClosedError as error:
            if error.code == NOT_FOUND:
                return
            raise
        self._stage.violate("wiring", f"{self._middle} outlives its last binding on node {channel.entry + 1}")

    async def _count(self, channel: Channel) -> None:
        ready, _ = await channel.declare(self._queue, passive=True)
        if ready < self._confirmed:
            self._stage.violate("wiring", f"{self._queue} has {ready} of {self._confirmed} messages")

"""Clients with an auto-delete queue that they keep for long, while masters change and nodes are cut off.

Checked: as long as a keeper's consumer is there the queue is, with all that it has, also when another consumer is
cancelled meanwhile; that it goes with the last one is for `chaos.sim.convergence`. A keeper is there as long as the
broker speaks to it on its channel, and the cluster has not declared its node down since it began: then the consumer
counts as gone, and the keeper is told.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from chaos.sim.answers import is_missing
from chaos.sim.client import Channel, ClosedError
from chaos.sim.consumers import Visitor
from chaos.sim.stage import Stage
from chaos.sim.workload import TROUBLE

MESSAGES = 5


class Keeper:
    """One of them, any number of times."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._number = number
        self._visitor, self._passer = (Visitor(f"{name}{number}", stage.world, lambda _: "") for name in ("k", "l"))
        self._stays = 0

    async def keep(self, lasts_ms: int, passing_ms: int, home: int, entry: int) -> bool:
        """For so long; somebody else consumes, too, until ``passing_ms`` have passed, if that is not 0. The queue is
        made through the node at the position ``home``, and consumed through the one at ``entry``."""
        self._stays += 1
        name = f"k{self._number}.{self._stays}"
        is_consumed = False
        self._stage.unconsumed[name] = None

        async def use(channel: Channel) -> None:
            nonlocal is_consumed
            began_us, is_over = self._visitor.log.now_us(), asyncio.Event()
            channel.on_cancel = lambda _tag: self._lost(name, channel, began_us, is_over)
            channel.on_closed = lambda _error: is_over.set()
            await channel.qos(1)
            await channel.consume(name, "kept")
            is_consumed = True
            passing = self._passer.process.create_task(self._pass_by(name, passing_ms)) if passing_ms else None
            with suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), lasts_ms / 1000)
            if passing is not None:
                await passing
            try:
                await channel.declare(name, auto_delete=True, passive=True)
            except ClosedError as error:
                if is_missing(error):
                    self._lost(name, channel, began_us, is_over)
                raise
            self._stage.sightings.note("an auto-delete queue was kept")
            await channel.cancel("kept")

        with suppress(*TROUBLE):
            await self._visitor.request(lambda channel: self._fill(channel, name), entry=home)
            # It takes as long as it stays, and whatever is asked has an answer.
            await self._visitor.request(use, (lasts_ms + passing_ms) / 1000 + 60, entry=entry)
        if is_consumed and self._stage.is_remembered:
            del self._stage.unconsumed[name]
        return True

    async def _fill(self, channel: Channel, name: str) -> None:
        await channel.declare(name, auto_delete=True)
        await channel.confirm_select()
        confirmed = asyncio.Event()
        channel.on_confirm = lambda number, _multiple, _is_ack: confirmed.set() if number == MESSAGES else None
        channel.on_closed = lambda _error: confirmed.set()
        for number in range(MESSAGES):
            channel.publish(name, b"%d" % number)
        await confirmed.wait()
        if channel.closed is not None:
            raise channel.closed

    async def _pass_by(self, name: str, lasts_ms: int) -> None:
        async def use(channel: Channel) -> None:
            await channel.qos(1)
            await channel.consume(name, "passing")
            await asyncio.sleep(lasts_ms / 1000)
            await channel.cancel("passing")
            self._stage.sightings.note("a consumer beside a keeper was cancelled")

        with suppress(*TROUBLE):
            await self._passer.request(use, lasts_ms / 1000 + 20)

    def _lost(self, name: str, channel: Channel, began_us: int, is_over: asyncio.Event) -> None:
        """The broker has told, on this channel, that the queue is gone."""
        is_over.set()
        node = self._stage.world.nodes[channel.entry][0]
        if not self._stage.was_down(node, began_us):
            self._stage.violate("kept", f"{name} was deleted though {node} has had a consumer of it all the time")

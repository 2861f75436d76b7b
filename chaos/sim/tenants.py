"""Vhosts that operators make and delete again, with clients in between.

Checked: a client of a vhost gets what was published to it since it was made, never anything of one of the same name
before. That nothing of a deleted vhost stays on any disk is for `chaos.sim.convergence`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from chaos.sim.client import Channel
from chaos.sim.consumers import Visitor
from chaos.sim.stage import OPERATOR_PAUSE_S, Stage
from chaos.sim.workload import TROUBLE
from cluster.metadata.records import PolicyRecord

QUEUE = "kept"
BODIES = 8
#: Every queue of a tenant has mirrors.
POLICY = {"ha-mode": "all", "ha-sync-mode": "automatic"}


class Tenant:
    """One vhost, any number of times."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._vhost = f"tenant {number}"
        self._visitor = Visitor(f"h{number}", stage.world, lambda _queue: QUEUE, vhost=self._vhost)
        #: One tenancy after the other.
        self._turn = asyncio.Lock()
        self._tenancies = 0

    async def stay(self, lasts_ms: int) -> bool:
        """The vhost is made, used, and after a while deleted."""
        async with self._turn:
            self._tenancies += 1
            tenancy = self._tenancies
            while not await self._move_in(tenancy):  # noqa: ASYNC110 - as with every operator: nobody tells when to ask
                await asyncio.sleep(OPERATOR_PAUSE_S)
            await asyncio.sleep(lasts_ms / 1000)
            await self._use(lambda channel: self._take(channel, tenancy))
            while not await self._move_out():  # noqa: ASYNC110
                await asyncio.sleep(OPERATOR_PAUSE_S)
        return True

    async def _move_in(self, tenancy: int) -> bool:
        operated, vhost = self._stage.operated, self._vhost
        await operated(lambda admin: admin.add_vhost(vhost))
        await operated(lambda admin: admin.set_permissions(vhost, "guest", ".*", ".*", ".*"))
        await operated(lambda admin: admin.set_policy(PolicyRecord(vhost, "all", "", dict(POLICY), 0, "queues")))
        return await self._use(lambda channel: self._fill(channel, tenancy))

    async def _use(self, use: Callable[[Channel], Coroutine[Any, Any, None]]) -> bool:
        try:
            await self._visitor.request(use)
        except TROUBLE:
            return False
        return True

    async def _fill(self, channel: Channel, tenancy: int) -> None:
        await channel.declare(QUEUE)
        await channel.confirm_select()
        confirmed = asyncio.Event()
        channel.on_confirm = lambda number, _multiple, _is_ack: confirmed.set() if number == BODIES else None
        for _ in range(BODIES):
            channel.publish(QUEUE, b"%d" % tenancy)
        await confirmed.wait()

    async def _take(self, channel: Channel, tenancy: int) -> None:
        while (delivered := await channel.get(QUEUE, no_ack=True)) is not None:
            if delivered.body != b"%d" % tenancy:
                text = f"tenancy {tenancy} of {self._vhost} got a message of tenancy {delivered.body.decode()}"
                self._stage.violate("resurrected", text)

    async def _move_out(self) -> bool:
        """Whether it is certain that the vhost is deleted."""
        if await self._stage.operated(lambda admin: admin.delete_vhost(self._vhost)):
            return True
        return self._stage.is_everywhere(lambda state: self._vhost not in state.topology.vhosts())

"""Clients whose user is deleted, or their vhost, or both, while they are connected.

Checked: whoever is connected then is so no longer soon after that is decided, whatever node it is connected to; and
what a connection has had for itself goes with it (`chaos.sim.convergence`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from chaos.sim.client import Channel
from chaos.sim.consumers import Visitor
from chaos.sim.schedule import OF_USER, OF_VHOST
from chaos.sim.stage import OPERATOR_PAUSE_S, VHOST, Stage
from chaos.sim.workload import RECONNECT_PAUSE_S, TROUBLE
from cluster.metadata.state import MetadataState
from cluster.transport.admin_port import AdminPort

GUEST = "guest"
#: A client gives up a node that has lost its power after two heartbeats, and looks every half.
CLOSED_WITHIN_S = 20.0
#: Longer than anybody lodges.
LODGING_MAX_S = 120.0


class Lodger:
    """One of them, any number of times."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._number = number
        #: One stay after the other.
        self._turn = asyncio.Lock()
        self._stays = self._visits = 0

    async def lodge(self, lasts_ms: int, what: str, entry: int) -> bool:
        """A user or a vhost is made, or both; a client is connected through the node at a position, and stays; after
        so long they are deleted again."""
        async with self._turn:
            self._stays += 1
            name = f"lodger {self._number}.{self._stays}"
            user, vhost = GUEST if what == OF_VHOST else name, VHOST if what == OF_USER else name
            visitor = Visitor(f"o{self._number}.{self._stays}", self._stage.world, str, vhost=vhost, user=user)
            self._stage.world.answers.lodgers.add(visitor.name)
            await self._move_in(user, vhost)
            is_over, is_in = asyncio.Event(), asyncio.Event()
            staying = visitor.process.create_task(self._stay(visitor, entry, is_over, is_in))
            await is_in.wait()
            await asyncio.sleep(lasts_ms / 1000)
            await self._move_out(user, vhost)
            is_over.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(staying), CLOSED_WITHIN_S)
            if not staying.done():
                node = self._stage.world.nodes[entry][0]
                where = f"{visitor.name} is connected to {node} as {user}, to {vhost}"
                self._stage.violate("access", f"{where}: {name} was deleted {CLOSED_WITHIN_S:g} s ago")
                staying.cancel()
        return True

    async def _move_in(self, user: str, vhost: str) -> None:
        """As often as it takes: what is there already is refused the next time."""
        while not await self._are_there(user, vhost):
            if vhost != VHOST:
                await self._stage.operated(lambda admin: admin.add_vhost(vhost))
            if user != GUEST:
                await self._stage.operated(lambda admin: admin.add_user(user, user, []))
            await asyncio.sleep(OPERATOR_PAUSE_S)

    async def _are_there(self, user: str, vhost: str) -> bool:
        return await self._stage.operated(lambda admin: admin.set_permissions(vhost, user, ".*", ".*", ".*"))

    async def _stay(self, visitor: Visitor, entry: int, is_over: asyncio.Event, is_in: asyncio.Event) -> None:
        """Connected, again and again if need be, until that ``is_over``; then as long as the broker bears it."""

        async def use(channel: Channel) -> None:
            self._visits += 1
            queue, is_closed = f"o{self._number}.{self._stays}.{self._visits}", asyncio.Event()
            channel.on_closed = lambda _error: is_closed.set()
            await channel.declare(queue, durable=False, exclusive=True)
            await channel.consume(queue, "tag", no_ack=True)
            is_in.set()
            await is_closed.wait()

        while not is_over.is_set():
            with suppress(*TROUBLE):
                await visitor.request(use, LODGING_MAX_S, entry=entry)
            await asyncio.sleep(RECONNECT_PAUSE_S)

    async def _move_out(self, user: str, vhost: str) -> None:
        """Until it is certain that they are deleted."""
        if user != GUEST:
            await self._delete(lambda admin: admin.delete_user(user), lambda state: state.users.user(user) is None)
        if vhost != VHOST:
            await self._delete(
                lambda admin: admin.delete_vhost(vhost), lambda state: vhost not in state.topology.vhosts()
            )

    async def _delete(
        self, ask: Callable[[AdminPort], Coroutine[Any, Any, Any]], is_gone: Callable[[MetadataState], bool]
    ) -> None:
        while not await self._stage.operated(ask) and not self._stage.is_everywhere(is_gone):  # noqa: ASYNC110
            await asyncio.sleep(OPERATOR_PAUSE_S)

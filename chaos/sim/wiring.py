"""Exchanges and bindings that clients make and take away again, each request through another node.

A *source* exchange leads to a fanout exchange in the *middle*, which deletes itself, and on to a queue. The way between
the two is of a kind (`chaos.sim.schedule.WIRING_KINDS`): a binding of a direct, a topic or a headers exchange, or none,
where the middle is the alternate exchange of the source; then a binding to a *side*, where nothing is bound, takes a
message off that way.

Checked: what somebody was told to exist is there for everybody, also if another one declared it a moment ago; what was
bound routes, through whatever node; what was unbound, or bound for other messages, does not; an auto-delete exchange
is gone, for everybody, when the answer to the last unbinding is there; what was confirmed is in the queue; and that
is not deleted as unused while somebody consumes from it, and is when nobody does.

A request without an answer may be carried out at any time later. So each source has a name, and each binding that comes
and goes a key of its own, and that one is gone is judged only if there was but one request for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from chaos.sim.answers import is_missing
from chaos.sim.client import NOT_FOUND, PRECONDITION_FAILED, Channel, ClosedError, Delivered
from chaos.sim.consumers import Visitor
from chaos.sim.schedule import ARGUED, BY_POLICY, DIRECT, HEADERS, TOPIC
from chaos.sim.stage import VHOST, Stage
from chaos.sim.workload import RECONNECT_PAUSE_S, TROUBLE
from cluster.metadata.records import PolicyRecord

KEY = "key"
#: Between two publishes.
PAUSE_S = 0.2
#: What is confirmed to a queue of a wiring may not be lost, whatever policy the others have.
SAFE = {
    "ha-mode": "all",
    "ha-sync-mode": "automatic",
    "ha-promote-on-failure": "when-synced",
    "ha-promote-on-shutdown": "when-synced",
}
#: An alternate exchange that there is not, which is as good as none.
MISSING = "missing"
#: What is reached when a message has gone by a way of this kind.
_REACHED = {
    TOPIC: "a topic exchange routed",
    HEADERS: "a headers exchange routed",
    ARGUED: "an alternate exchange took what had no route",
    BY_POLICY: "a policy named an alternate exchange",
}
_NOTHING: Mapping[str, Any] = {}


class Way(NamedTuple):
    """How a message is published, and a binding that takes it."""

    exchange: str
    key: str
    headers: Mapping[str, Any] = _NOTHING
    binding_key: str = ""
    arguments: Mapping[str, Any] = _NOTHING


def a_way(kind: str, exchange: str, number: int) -> Way:
    """The binding takes no message of another number."""
    if kind == TOPIC:
        return Way(exchange, f"any.{number}.of.them", binding_key=f"*.{number}.#")
    if kind == HEADERS:
        wanted = {"number": number, "what": "wired"}
        return Way(exchange, KEY, {**wanted, "more": "than that"}, arguments={**wanted, "x-match": "all"})
    return Way(exchange, f"{KEY} {number}", binding_key=f"{KEY} {number}")


class Wiring:
    """One of them, any number of times."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._visitor, self._other = (
            Visitor(name, stage.world, lambda _queue: f"x{number}") for name in (f"x{number}", f"y{number}")
        )
        self._number = number
        self._queue, self._middle, self._side = f"x{number}", f"middle {number}", f"side {number}"
        #: One after the other.
        self._turn = asyncio.Lock()
        self._kind, self._source = DIRECT, ""
        self._stays, self._ways = count(1), count()
        self._confirmed = 0
        #: No other request to name the alternate exchange can still be carried out.
        self._is_policy_sure = True

    async def stay(self, lasts_ms: int, kind: str) -> bool:
        """Everything is made, used for a while, and taken away."""
        async with self._turn:
            self._kind, self._source = kind, f"{kind} {self._number}.{next(self._stays)}"
            self._confirmed = 0
            way = self._next_way()
            await self._wire(way)
            end_s = self._stage.loop.now_s + lasts_ms / 1000
            await self._publish(way)
            while self._stage.loop.now_s < end_s:
                await asyncio.sleep(PAUSE_S)
                await self._publish(way)
                await self._come_and_go()
            await self._unwire(way)
            if not self._stage.personality.is_flush:
                await self._insist(self._count)
            await self._insist(lambda channel: channel.delete_exchange(self._source))
            await self._insist(lambda channel: channel.delete_exchange(self._side))
            await self._delete_unused()
        return True

    @property
    def _is_alternate(self) -> bool:
        """What is bound does not come to the middle, and what is not does."""
        return self._kind in (ARGUED, BY_POLICY)

    def _next_way(self) -> Way:
        return a_way(self._kind, self._source, next(self._ways))

    # --- exchanges and bindings ---

    async def _wire(self, way: Way) -> None:
        insist, queue, source, middle = self._insist, self._queue, self._source, self._middle
        await self._operate(PolicyRecord(VHOST, "wired", "^x", SAFE, 1, "queues"))
        await asyncio.gather(self._declare(self._visitor), self._declare(self._other))
        kind = DIRECT if self._is_alternate else self._kind
        arguments = {"alternate-exchange": middle} if self._kind == ARGUED else {}
        await insist(lambda channel: channel.declare_exchange(middle, auto_delete=True))
        await insist(lambda channel: channel.declare_exchange(self._side))
        await insist(lambda channel: channel.declare_exchange(source, kind, arguments=arguments))
        await insist(lambda channel: channel.bind(queue, middle, KEY))
        if self._kind == BY_POLICY:
            self._is_policy_sure = await self._name_alternate(middle)
        elif not self._is_alternate:
            await insist(lambda channel: channel.bind_exchange(middle, source, way.binding_key, way.arguments))

    async def _declare(self, visitor: Visitor) -> None:
        """Two do this at the same time: whoever is answered uses the queue at once."""
        await visitor.insist(lambda channel: channel.declare(self._queue))
        await self._publish(Way("", self._queue))

    async def _come_and_go(self) -> None:
        """A binding of the source that was never there is made, and taken away again. A node remembers where it has
        routed a message of the kind: so all of them go through the same one."""
        way, is_open = self._next_way(), self._is_alternate
        is_of_queue = not is_open and self._stage.world.dice(way) < 50
        destination = self._queue if is_of_queue else self._side if is_open else self._middle
        binding = (destination, self._source, way.binding_key, way.arguments)
        bind = Channel.bind if is_of_queue else Channel.bind_exchange
        unbind = Channel.unbind if is_of_queue else Channel.unbind_exchange
        at = await self._publish(way, is_routed=is_open)
        is_sure = await self._insist(lambda channel: bind(channel, *binding))
        at = await self._publish(way, is_routed=not is_open, at=at)
        await self._insist(lambda channel: unbind(channel, *binding))
        if is_sure:
            await self._publish(way, is_routed=is_open, at=at)
            self._stage.sightings.note(
                "a binding of a queue went" if is_of_queue else "a binding between exchanges went"
            )

    async def _unwire(self, way: Way) -> None:
        at = await self._publish(way)
        if self._kind == BY_POLICY:
            await self._name_alternate(MISSING)
            if self._is_policy_sure:
                await self._publish(way, is_routed=False, at=at)
        await self._insist(lambda channel: channel.unbind(self._queue, self._middle, KEY))
        await self._publish(way, is_routed=False, at=at)
        await self._insist(self._require_gone)

    async def _require_gone(self, channel: Channel) -> None:
        try:
            await channel.declare_exchange(self._middle, passive=True)
        except ClosedError as error:
            if error.code == NOT_FOUND:
                return
            raise
        self._violate(f"{self._middle} outlives its last binding on node {channel.entry + 1}")

    # --- messages ---

    async def _publish(self, way: Way, *, is_routed: bool = True, at: int | None = None) -> int:
        """Until one is confirmed; the position of the node that did. The node ``at`` a position is tried first."""
        while True:
            entry = self._visitor.next_node() if at is None else at
            at = None
            try:
                await self._visitor.request(lambda channel: self._publish_one(channel, way, is_routed), entry=entry)
            except TROUBLE as error:
                if is_missing(error):
                    self._violate(f"a publish: {error}")
                await asyncio.sleep(PAUSE_S)
            else:
                return entry

    async def _publish_one(self, channel: Channel, way: Way, is_routed: bool) -> None:
        await channel.confirm_select()
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        returned: list[Delivered] = []

        def lost(error: ClosedError) -> None:
            if not confirmed.done():
                confirmed.set_exception(error)

        channel.on_return = returned.append
        channel.on_confirm = lambda _number, _multiple, is_ack: confirmed.set_result(is_ack)
        channel.on_closed = lost
        channel.publish(way.key, b"wired", exchange=way.exchange, mandatory=True, headers=way.headers)
        is_confirmed = await confirmed
        if is_routed == bool(returned):
            what = "was returned although it has a way" if is_routed else "was routed although it has no way"
            self._violate(f"a publish to '{way.exchange}' through node {channel.entry + 1} {what}")
        self._confirmed += is_confirmed and is_routed
        if is_routed and way.exchange and self._kind in _REACHED:
            self._stage.sightings.note(_REACHED[self._kind])

    async def _count(self, channel: Channel) -> None:
        ready, _ = await channel.declare(self._queue, passive=True)
        if ready < self._confirmed:
            self._violate(f"{self._queue} has {ready} of {self._confirmed} messages")

    # --- the end of the queue ---

    async def _delete_unused(self) -> None:
        """Until it is gone; it may have been an attempt before that had no answer."""
        is_first = True
        while True:
            try:
                await self._visitor.request(partial(self._use_and_delete, is_first=is_first))
            except TROUBLE as error:
                if is_missing(error):
                    if is_first:
                        self._violate(f"{self._queue} was deleted by nobody: {error}")
                    return
                is_first = False
                await asyncio.sleep(RECONNECT_PAUSE_S)
            else:
                return

    async def _use_and_delete(self, channel: Channel, *, is_first: bool) -> None:
        """A node attaches the consumers of its clients to every master before it asks that one for anything else, so a
        master that is asked here has heard of this one, whatever becomes of links and nodes. Consumers of attempts
        before may be there longer than their connections."""
        queue, node = self._queue, channel.entry + 1
        await channel.consume(queue, "tag")
        asker = await channel.connection.channel()
        try:
            await asker.delete(queue, if_unused=True)
        except ClosedError as error:
            if error.code != PRECONDITION_FAILED:
                raise
            self._stage.sightings.note("a used queue was not deleted as unused")
        else:
            self._violate(f"{queue} was deleted as unused beside a consumer on node {node}")
            return
        await channel.cancel("tag")
        try:
            await channel.delete(queue, if_unused=True)
        except ClosedError as error:
            if is_first and error.code == PRECONDITION_FAILED:
                self._violate(f"{queue} was not deleted as unused through node {node}: {error}")
            raise
        self._stage.sightings.note("an unused queue was deleted on that condition")

    # --- asking ---

    async def _insist(self, ask: Callable[[Channel], Coroutine[Any, Any, Any]]) -> bool:
        """Until it is answered; whether nothing that was asked can still be carried out later.

        Whatever is not found was there, or is not there yet, for somebody who was told otherwise."""

        async def ask_and_look(channel: Channel) -> None:
            try:
                await ask(channel)
            except ClosedError as error:
                if not is_missing(error):
                    raise
                self._violate(f"through node {channel.entry + 1}: {error}")

        is_sure = True
        while True:
            try:
                await self._visitor.request(ask_and_look)
            except TROUBLE:
                is_sure = False
                await asyncio.sleep(RECONNECT_PAUSE_S)
            else:
                return is_sure

    async def _name_alternate(self, exchange: str) -> bool:
        pattern, definition = f"^{re.escape(self._source)}$", {"alternate-exchange": exchange}
        return await self._operate(PolicyRecord(VHOST, self._source, pattern, definition, 1, "exchanges"))

    async def _operate(self, policy: PolicyRecord) -> bool:
        """As `_insist`, of an operator."""
        is_sure = True
        while not await self._stage.operated(
            lambda admin: admin.set_policy(policy), at=self._stage.world.nodes[self._visitor.next_node()][0]
        ):
            is_sure = False
            await asyncio.sleep(RECONNECT_PAUSE_S)
        return is_sure

    def _violate(self, text: str) -> None:
        self._stage.violate("wiring", text)

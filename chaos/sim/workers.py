"""Clients that do much on one channel: they consume from several queues, settle many deliveries with one word, get
messages between deliveries, cancel and consume again, and close the channel to open another of the same number.

What a worker does with a delivery depends on the message and how often this worker has seen it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from chaos.history import Kind, ProcKind
from chaos.sim.client import Channel, ClosedError, Delivered
from chaos.sim.consumers import PROOF_DELAY_S, Settling, record_delivery, record_settlement
from chaos.sim.workload import TROUBLE, Client, Surroundings
from chaos.workload.message_id import MessageId

#: Of a hundred deliveries, so many are settled alone, so many with all before them, so many given back alone and so
#: many with all before them. The others are held, until they are settled with later ones or the channel ends.
ALONE, TOGETHER, BACK_ALONE, BACK_TOGETHER = 35, 30, 5, 8
#: So many consumers of one queue a worker has on its channel.
CONSUMERS_MAX = 2
#: So often a worker gives a message back.
GIVEN_BACK_MAX = 3


class Held(NamedTuple):
    """A delivery that is not settled."""

    queue: int
    message: MessageId
    delivered: Delivered


class Worker(Client):
    """See the module text."""

    def __init__(
        self,
        number: int,
        world: Surroundings,
        queue_name: Callable[[int], str],
        *,
        prefetch: int,
        is_channel_wide: bool,
    ) -> None:
        super().__init__(f"w{number}", world, ProcKind.CONSUMER)
        self._queue_name = queue_name
        self._prefetch = prefetch
        self._is_channel_wide = is_channel_wide
        self._is_started = False
        #: Queues that it wants to consume.
        self._wanted: dict[int, None] = {}
        #: Consumers of this channel, by all that it was told: tag -> queue.
        self._tags: dict[str, int] = {}
        self._consumed = 0
        #: By delivery tag, in their order.
        self._held: dict[int, Held] = {}
        self._settlings: dict[int, Settling] = {}
        self._is_proving = False
        self._seen: dict[MessageId, int] = {}
        #: Queues of which a message was asked for, and is not there yet.
        self._asked_of: deque[int] = deque()
        #: What is got and what is delivered may overtake each other, as with RabbitMQ, whose channels look for the
        #: answer first: in the history they are of two channels.
        self._getting_id = 0
        #: Requests that change what it consumes, one after the other.
        self._is_changing = False

    # --- what it is told ---

    def work(self, queues: list[int]) -> None:
        """Consume these from now on."""
        self._wanted = dict.fromkeys(queues)
        if self._is_started:
            self.drop(is_orderly=True)
        else:
            self._is_started = True
            self.start()

    def consume(self, queue: int) -> None:
        """This queue, too, on the same channel, or once more; again, if it was cancelled."""
        self._wanted[queue] = None
        self._change(lambda channel: self._consume(channel, queue))

    def cancel(self, queue: int) -> None:
        """Not this queue any more. What was delivered stays."""
        self._wanted.pop(queue, None)
        self._change(lambda channel: self._cancel(channel, queue))

    def get(self, queue: int) -> None:
        """One message, which is held as what is delivered."""
        channel = self._usable()
        if channel is not None:
            self.process.create_task(self._get(channel, queue))

    def reopen(self) -> None:
        """Close the channel, which gives back what it holds, and go on with another on the same connection."""
        channel = self._usable()
        if channel is not None and not self._is_changing:
            self.process.create_task(self._reopen(channel))

    def settle_all(self) -> None:
        """Acknowledge everything so far in one word."""
        if self._usable() is not None and self._held:
            self._settle_up_to(max(self._held), is_requeued=False)

    def _usable(self) -> Channel | None:
        channel = self.channel
        return None if channel is None or channel.closed is not None else channel

    def _change(self, change: Callable[[Channel], Coroutine[Any, Any, None]]) -> None:
        channel = self._usable()
        if channel is None or self._is_changing:
            return

        async def do_it() -> None:
            self._is_changing = True
            with suppress(*TROUBLE):
                await change(channel)
            if channel is self.channel:
                self._is_changing = False

        self.process.create_task(do_it())

    # --- consuming ---

    async def begin(self, channel: Channel) -> None:
        self._held.clear()
        self._tags.clear()
        self._asked_of, self._getting_id = deque(), next(self.world.channel_ids)
        self._settlings = {}
        self._is_proving, self._is_changing = False, True
        channel.on_cancel = lambda tag: self._cancelled(channel, tag)
        channel.on_deliver = lambda delivered: self._delivered(channel, delivered)
        channel.on_got = lambda delivered: self._got(channel, delivered)
        self.channel = channel
        await channel.qos(self._prefetch, is_channel_wide=self._is_channel_wide)
        for queue in list(self._wanted):
            await self._consume(channel, queue)
        if channel is self.channel:
            self._is_changing = False

    async def _consume(self, channel: Channel, queue: int) -> None:
        if list(self._tags.values()).count(queue) >= CONSUMERS_MAX:
            return
        self._consumed += 1
        tag = f"{queue}.{self._consumed}"
        await channel.consume(self._queue_name(queue), tag)
        if channel is self.channel:
            self._tags[tag] = queue

    async def _cancel(self, channel: Channel, queue: int) -> None:
        for tag in [tag for tag, consumed in self._tags.items() if consumed == queue]:
            await channel.cancel(tag)
            if channel is self.channel:
                self._tags.pop(tag, None)

    async def _get(self, channel: Channel, queue: int) -> None:
        self._asked_of.append(queue)
        with suppress(*TROUBLE):
            await channel.get(self._queue_name(queue))

    async def _reopen(self, channel: Channel) -> None:
        """Who is asked for something meanwhile finds no channel."""
        channel.on_closed = lambda _error: None
        self.channel = None
        self.log.record(Kind.CONN_LOST, channel_id=self.channel_id, err="closed by us")
        self.ended()
        try:
            await channel.close()
            again = await channel.connection.channel()
            self.adopt(again, channel.entry)
            await self.begin(again)
            self.world.note("a channel was closed and opened again")
        except TROUBLE:
            self.lose()

    def ended(self) -> None:
        self._tags.clear()
        self._held.clear()

    def _cancelled(self, channel: Channel, tag: str) -> None:
        queue = int(tag.partition(".")[0])
        self._tags.pop(tag, None)
        self.world.answers.cancelled(self.name, self.world.nodes[channel.entry][0], queue, channel.heard_us)
        self.drop(is_orderly=True)

    @property
    def places(self) -> list[tuple[int, int]]:
        """What it consumes by all that it was told, and through which node."""
        channel = self._usable()
        return [] if channel is None else [(queue, channel.entry) for queue in self._tags.values()]

    def is_waiting_for(self, queue: int) -> bool:
        """It consumes this, and would take another message, however its limit is counted."""
        return any(place[0] == queue for place in self.places) and len(self._held) < self._prefetch

    # --- deliveries ---

    def _got(self, channel: Channel, delivered: Delivered | None) -> None:
        if channel is not self.channel:
            return
        queue = self._asked_of.popleft()
        if delivered is not None:
            self._take(queue, delivered, self._getting_id)
            self.world.note("a message was got beside consumers")

    def _delivered(self, channel: Channel, delivered: Delivered) -> None:
        queue = int(delivered.consumer_tag.partition(".")[0])
        if channel is self.channel:
            self._take(queue, delivered, self.channel_id)
        else:  # on its way when the channel was closed: it comes again
            record_delivery(self.log, self.world.run_tag, queue, delivered, channel.label)

    def _take(self, queue: int, delivered: Delivered, stream_id: int) -> None:
        tag, channel_id = delivered.delivery_tag, self.channel_id
        message = record_delivery(self.log, self.world.run_tag, queue, delivered, stream_id)
        if message is None:
            return
        self.world.on_moment("deliver", queue)
        self._held[tag] = Held(queue, message, delivered)
        times = self._seen[message] = self._seen.get(message, 0) + 1
        habit = self.world.dice(self.name, message, times)
        if habit >= ALONE + TOGETHER + BACK_ALONE + BACK_TOGETHER:
            return
        delay_s = 0.0 if habit % 3 else 0.01 * (habit % 7)
        self.process.call_later(delay_s, self._settle, channel_id, tag, habit, times > GIVEN_BACK_MAX)

    def _settle(self, channel_id: int, tag: int, habit: int, is_known: bool) -> None:
        if channel_id != self.channel_id or self._usable() is None or tag not in self._held:
            return
        is_requeued = habit >= ALONE + TOGETHER and not is_known
        is_alone = habit < ALONE or ALONE + TOGETHER <= habit < ALONE + TOGETHER + BACK_ALONE
        if is_alone:
            self._settle_one(tag, is_requeued)
        else:
            self._settle_up_to(tag, is_requeued=is_requeued)

    def _settle_one(self, tag: int, is_requeued: bool) -> None:
        assert self.channel is not None, "it is usable"
        self._settled(tag, is_requeued)
        if is_requeued:
            self.channel.nack(tag)
        else:
            self.channel.ack(tag)
        self._prove_later()

    def _settle_up_to(self, last_tag: int, *, is_requeued: bool) -> None:
        assert self.channel is not None, "it is usable"
        tags = [tag for tag in self._held if tag <= last_tag]
        for tag in tags:
            self._settled(tag, is_requeued)
        if is_requeued:
            self.channel.nack(last_tag, multiple=True)
        else:
            self.channel.ack(last_tag, multiple=True)
        if len(tags) > 1:
            self.world.note("some were given back together" if is_requeued else "some were acknowledged together")
        self._prove_later()

    def _settled(self, tag: int, is_requeued: bool) -> None:
        held = self._held.pop(tag)
        record_settlement(self.log, held.queue, held.delivered, held.message, self.channel_id, is_requeued=is_requeued)
        if not is_requeued:
            assert self.channel is not None, "it is usable"
            if held.queue not in self._settlings:
                self._settlings[held.queue] = Settling(self.log, self.world, self.channel.entry, held.queue)
            self._settlings[held.queue].sent(held.message, held.delivered)

    def _prove_later(self) -> None:
        if any(self._settlings.values()) and not self._is_proving:
            self._is_proving = True
            self.process.call_later(PROOF_DELAY_S, self._ask_for_proof, self.channel)

    def _ask_for_proof(self, channel: Channel) -> None:
        if channel is self.channel and channel.closed is None:
            self.process.create_task(self._prove(channel))

    async def _prove(self, channel: Channel) -> None:
        for queue, settling in list(self._settlings.items()):
            if settling:
                asked = settling.ask()
                try:
                    await channel.declare(self._queue_name(queue), passive=True)
                except (ClosedError, OSError, TimeoutError):
                    return
                settling.answered(asked)
        if channel is self.channel:
            self._is_proving = False

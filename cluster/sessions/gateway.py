"""`ClusterGateway`: `Entry` with futures and timers, as the channels of a broker see it.

A caller that has to wait holds a future until `CallGoesOn` names its call. It proceeds in the next turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from cluster.metadata.records import MastershipRecord
from cluster.sessions.calls import OPERATION_TIMEOUT_S
from cluster.sessions.entry import Entry
from cluster.sessions.ports import CallGoesOn, EntryEffect, Links, LocalQueues
from cluster.sessions.questions import Answer, Question
from cluster.sessions.routes import Call, CallState, ConsumerKey
from node.errors import ChannelError
from node.flow.credit import FlowControl
from node.ids import ChannelKey, Epoch, Incarnation, NodeName, QueueId
from node.pieces import InTurns
from node.queues.backing_queue import Delivery
from node.queues.events import ConsumerSpec
from node.topology.records import QueueRecord

#: `get` on a queue that has ready messages, which its mirrors do not know as deliverable yet, or which are on their way
#: back (`node.queues.returns`): one round trip helps, or some turns. The client hears that the queue is empty only if
#: it is, or if it has waited as long as for any other answer.
GET_RETRY_S = 0.002
#: `delete_if` on a queue whose master is about to take service: a commit helps.
DELETE_RETRY_S = 0.02
#: Opening sessions over a new link has so much of a turn of the loop.
OPEN_S = 0.002
DELETE_TRIES_MAX = 500


class ClusterGateway:
    """Implements `node.queues.gateway.QueueGateway` for a cluster."""

    def __init__(
        self,
        node: NodeName,
        local: LocalQueues,
        links: Links,
        mastership: Callable[[QueueId], MastershipRecord | None],
        queue_record: Callable[[QueueId], QueueRecord | None],
        loop: asyncio.AbstractEventLoop,
        flow: FlowControl | None = None,
        *,
        incarnation: Incarnation,
        clock: Callable[[], float],
        slice_pieces: int,
    ) -> None:
        """``clock`` (seconds) goes on within a turn of the loop, in which so many sessions at most are opened over a
        new link."""
        self._loop = loop
        #: Hears that an auto-delete queue has a consumer.
        self.note_consumer: Callable[[QueueRecord], None] = lambda _queue: None
        self._queue_record = queue_record
        self._entry = entry = Entry(
            node, local, links, mastership, queue_record, self._carry_out, flow, incarnation=incarnation
        )
        self._calls = entry.calls
        #: Callers that wait, by call id.
        self._waiting: dict[int, asyncio.Future[None]] = {}
        #: Queues whose master can be reached again.
        self._to_open: dict[QueueId, None] = {}
        self._openings = InTurns(self._open_next, OPEN_S, loop.call_soon, clock, slice_pieces)
        # What needs no loop is the machine's own: nothing stands between a channel and it, or between it and a queue.
        self.mastership_changed = entry.mastership_changed
        self.queue_deleted = entry.queue_deleted
        self.queue_stopped = entry.queue_stopped
        self.routed_queues = entry.routed_queues
        self.link_free = entry.link_free
        self.link_down = entry.link_down
        self.local_effects = entry.local_effects
        self.receive = entry.receive
        self.open_channel = entry.open_channel
        self.publish = entry.publish
        self.settle_ack = entry.settle_ack
        self.settle_requeue = entry.settle_requeue
        self.settle_discard = entry.settle_discard
        self.grant = entry.grant
        self.close_channel = entry.close_channel
        self.busiest_queue = entry.busiest_queue

    def link_up(self, node: NodeName) -> None:
        """Sessions with the masters on ``node`` are opened, some in each turn."""
        self._to_open.update(dict.fromkeys(self._entry.waiting_for(node)))
        self._openings.go_on()

    def _open_next(self) -> bool:
        """By now it may be open, have another master, or be gone."""
        if not self._to_open:
            return False
        queue_id, _ = self._to_open.popitem()
        self._entry.reopen(queue_id)
        return True

    # --- questions ---

    async def consume(self, channel: ChannelKey, queue_id: QueueId, spec: ConsumerSpec) -> None:
        await self._ask(channel, queue_id, Question("consume", consumer=spec))
        self._note_consumed(queue_id)
        # Our caller goes on within this turn, and tells its client.
        self._loop.call_soon(self._entry.consumer_started, ConsumerKey(channel, spec.consumer_tag))

    def note_consumers(self) -> None:
        """All members know of such notes from now on: say what could not be said before."""
        for queue_id in self._entry.consumed_queues():
            self._note_consumed(queue_id)

    def _note_consumed(self, queue_id: QueueId) -> None:
        queue = self._queue_record(queue_id)
        if queue is not None and queue.auto_delete:
            self.note_consumer(queue)

    async def cancel(self, channel: ChannelKey, queue_id: QueueId, consumer_tag: str) -> None:
        if not self._entry.drop_consumer(queue_id, ConsumerKey(channel, consumer_tag)):
            return
        try:
            _, answer = await self._ask(channel, queue_id, Question("cancel", consumer_tag=consumer_tag))
        except ChannelError:
            if self._entry.has_session(queue_id):
                raise
            return  # the consumer went with the session that it was in, or with the queue
        queue = self._queue_record(queue_id)
        if not answer.consumers and queue is not None and queue.auto_delete:
            # It goes with its last consumer, and the client may rely on it: whoever asks waits until that is decided.
            with suppress(ChannelError):
                await self._ask(None, queue_id, Question("counts"))

    async def get(self, channel: ChannelKey, queue_id: QueueId, no_ack: bool) -> tuple[int, Delivery, int] | None:
        deadline_s = self._loop.time() + OPERATION_TIMEOUT_S
        while True:
            call, answer = await self._ask(channel, queue_id, Question("get", no_ack=no_ack))
            if answer.delivery is not None:
                return call.session, answer.delivery, answer.number
            if not answer.number or self._loop.time() > deadline_s:
                return None
            await asyncio.sleep(GET_RETRY_S)

    async def purge(self, queue_id: QueueId) -> int:
        _, answer = await self._ask(None, queue_id, Question("purge"))
        return answer.number

    async def counts(self, queue_id: QueueId) -> tuple[int, int]:
        _, answer = await self._ask(None, queue_id, Question("counts"))
        return answer.number, answer.consumers

    async def delete_if(self, queue_id: QueueId, if_unused: bool, if_empty: bool) -> tuple[int, Epoch]:
        question = Question("delete_if", if_unused=if_unused, if_empty=if_empty)
        for _ in range(DELETE_TRIES_MAX):
            _, answer = await self._ask(None, queue_id, question)
            if answer.epoch:
                return answer.number, Epoch(answer.epoch)
            # Its master is named, and not in service yet.
            await asyncio.sleep(DELETE_RETRY_S)
        raise ChannelError(404, "the queue is changing its master: try again")

    async def delete_abandoned(self, queue_id: QueueId) -> None:
        await self._ask(None, queue_id, Question("unseal"))

    # --- futures and timers ---

    async def _ask(self, channel: ChannelKey | None, queue_id: QueueId, question: Question) -> tuple[Call, Answer]:
        call = self._calls.ask(channel, queue_id, question, self._loop.time())
        while (answer := self._calls.proceed(call)) is None:
            try:
                if call.state is CallState.READY:
                    await asyncio.sleep(0)
                else:
                    await self._woken(call)
            except BaseException:
                self._calls.abandon(call)
                raise
        return call, answer

    async def _woken(self, call: Call) -> None:
        future = self._waiting[call.call_id] = self._loop.create_future()
        try:
            async with asyncio.timeout_at(call.deadline_s):
                await future
        except TimeoutError:
            raise self._calls.time_is_up(call) from None
        finally:
            del self._waiting[call.call_id]

    def _carry_out(self, effect: EntryEffect) -> None:
        if isinstance(effect, CallGoesOn):
            future = self._waiting.get(effect.call_id)
            if future is not None and not future.done():
                future.set_result(None)
        else:
            self._loop.call_later(effect.delay_s, self._entry.reopen, effect.queue_id)

    def check_invariants(self) -> None:
        self._entry.check_invariants()
        assert not self._to_open or self._openings.is_under_way, "who waits for a session has a turn coming"

"""`ClusterGateway`: how the channels of this node reach any queue of the cluster, through moves and broken links.

See `cluster.sessions.routes` for the state of one queue and `cluster.sessions.messages` for the conversation. When
the master is this node the gateway calls the queue process directly; nothing else differs, so a queue that moves
here or away is the ordinary case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from cluster.metadata.records import MastershipRecord
from cluster.sessions.credits import ChannelCredits
from cluster.sessions.messages import (
    SessionCall,
    SessionChannelClosed,
    SessionConfirm,
    SessionConsumerCancelled,
    SessionCredit,
    SessionDeliver,
    SessionGrant,
    SessionMessage,
    SessionOpen,
    SessionOpened,
    SessionPublish,
    SessionReply,
    SessionSettle,
)
from cluster.sessions.routes import ConsumerKey, Route, RouteState
from node.errors import ChannelError
from node.flow.credit import FlowControl
from node.ids import ChannelKey, NodeName, QueueId, SeqId
from node.message import Message, decode_envelope, iter_envelopes, pack_envelopes
from node.queues.backing_queue import Delivery
from node.queues.events import (
    CancelConsumer,
    ConfirmPublished,
    ConsumerSpec,
    Deliver,
    GrantCredit,
    QueueEffect,
    RejectPublished,
)
from node.queues.gateway import QueueChannelSink
from node.queues.queue_process import QueueProcess
from node.topology.records import QueueRecord

#: How long a request waits for a queue that is changing its master before it is refused (the reference's
#: ``channel_operation_timeout``).
OPERATION_TIMEOUT_S = 15.0
#: Pause before a refused session is tried again: the master has not applied the record yet, a matter of one heartbeat.
REOPEN_DELAY_S = 0.02
#: `get` on a queue that has ready messages which its mirrors do not know as deliverable yet: one round trip helps.
GET_RETRY_S = 0.002
GET_TRIES_MAX = 500
#: Above every publish sequence number.
NEVER = 1 << 64


class LocalQueues(Protocol):
    """The queues mastered on this node."""

    def process(self, queue_id: QueueId) -> QueueProcess | None: ...

    def touch(self, queue_id: QueueId) -> None:
        """The queue process was called: drain it at the end of this loop turn."""

    def run(self, queue_id: QueueId) -> None:
        """Drain the queue process now."""

    def out_of_service(self, queue_id: QueueId, error: Exception) -> None:
        """A call into the queue process raised this: end its role here."""


class Links(Protocol):
    """The mesh, as sessions use it."""

    def send(self, node: NodeName, message: SessionMessage) -> None: ...

    def is_up(self, node: NodeName) -> bool: ...

    def is_congested(self, node: NodeName) -> bool:
        """Much waits to be sent to ``node``; `ClusterGateway.link_free` follows."""


class SessionLost(Exception):
    """The session ended before the answer: ask again on the next one."""


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
    ) -> None:
        self._node = node
        self._local = local
        self._links = links
        self._mastership = mastership
        self._queue_record = queue_record
        self._loop = loop
        self._sinks: dict[int, QueueChannelSink] = {}
        self._credits = ChannelCredits(node, flow or FlowControl(), self._sinks, local.process, links.is_congested)
        #: Queues that a channel has used: the ones to tell when it closes.
        self._used: dict[int, set[QueueId]] = {}
        self._routes: dict[QueueId, Route] = {}
        self._calls: dict[int, tuple[Route, int, asyncio.Future[SessionReply]]] = {}
        #: Consumers being started -> (session, deliveries) that came too early.
        self._early: dict[ConsumerKey, list[tuple[int, Sequence[Delivery]]]] = {}
        self._channel_ids = 0
        self._session_numbers = 0
        self._call_ids = 0

    # --- what changes around us ---

    def mastership_changed(self, record: MastershipRecord) -> None:
        """A record was applied here; called after this node has taken up its own new role."""
        route = self._routes.get(record.queue_id)
        if route is None:
            return
        moved = route.adopt(record)
        if moved:
            self._cancel_consumers_that_asked(route)
        if moved or record.is_down:
            self._lose(route)
        if route.state is RouteState.WAITING:
            self._open(route)

    def queue_deleted(self, queue_id: QueueId) -> None:
        """Consumers are cancelled; publishes under way count as confirmed, as in the reference."""
        route = self._routes.pop(queue_id, None)
        if route is None:
            return
        self._fail_calls(route)
        for key in route.consumers:
            if (sink := self._sinks.get(key.channel.channel_id)) is not None:
                sink.queue_cancelled_consumer(queue_id, key.consumer_tag)
        for channel_id, publishes in route.unconfirmed.items():
            if (sink := self._sinks.get(channel_id)) is not None:
                sink.queue_confirmed(queue_id, list(publishes))
        self._credits.close_route(route)
        route.opened.set()  # whoever waits finds the queue gone

    def routed_queues(self) -> list[QueueId]:
        """Queues that channels of this node have used."""
        return list(self._routes)

    def link_up(self, node: NodeName) -> None:
        for route in list(self._routes.values()):
            if route.master == node and route.state is RouteState.WAITING:
                self._open(route)

    def link_free(self, node: NodeName) -> None:
        """The link to ``node`` is congested no longer."""
        self._credits.link_free(node)

    def link_down(self, node: NodeName) -> None:
        self._credits.link_free(node)
        for route in self._routes.values():
            if route.master == node:
                self._lose(route)

    def queue_stopped(self, queue_id: QueueId) -> None:
        """The queue process on this node ended; the next record says where the queue goes on."""
        route = self._routes.get(queue_id)
        if route is not None and route.master == self._node:
            self._lose(route)

    def local_effects(self, queue_id: QueueId, effects: Sequence[QueueEffect]) -> None:
        """Effects of a queue process on this node, for channels of this node."""
        route = self._routes.get(queue_id)
        if route is None or route.state is not RouteState.OPEN:
            return
        for effect in effects:
            if isinstance(effect, Deliver):
                self._delivered(route, effect.channel.channel_id, effect.consumer_tag, effect.deliveries)
            elif isinstance(effect, ConfirmPublished):
                self._confirmed(route, effect.channel.channel_id, effect.publish_seqs, rejected=False)
            elif isinstance(effect, RejectPublished):
                self._confirmed(route, effect.channel.channel_id, effect.publish_seqs, rejected=True)
            elif isinstance(effect, GrantCredit):
                self._credits.pay(route, effect.channel.channel_id, effect.messages)
            elif isinstance(effect, CancelConsumer):
                self._consumer_cancelled(route, effect.channel.channel_id, effect.consumer_tag)

    def receive(self, node: NodeName, message: SessionMessage) -> None:
        """A master's word. Anything of another session or another node is a straggler and ignored."""
        route = self._routes.get(message.queue_id)
        if route is None or message.session != route.session or node != route.master:
            return
        if isinstance(message, SessionDeliver):
            deliveries = [
                Delivery(seq_id, body, flag)
                for seq_id, body, flag in zip(
                    message.seq_ids, iter_envelopes(message.envelopes), message.redelivered, strict=True
                )
            ]
            self._delivered(route, message.channel_id, message.consumer_tag, deliveries)
        elif isinstance(message, SessionConfirm):
            self._confirmed(route, message.channel_id, message.publish_seqs, message.rejected)
        elif isinstance(message, SessionCredit):
            self._credits.pay(route, message.channel_id, message.messages)
        elif isinstance(message, SessionReply):
            waiting = self._calls.pop(message.call_id, None)
            if waiting is not None and not waiting[2].done():
                waiting[2].set_result(message)
        elif isinstance(message, SessionConsumerCancelled):
            self._consumer_cancelled(route, message.channel_id, message.consumer_tag)
        elif isinstance(message, SessionOpened):
            self._opened(route, message)

    # --- QueueGateway: hot ---

    def open_channel(self, sink: QueueChannelSink) -> ChannelKey:
        self._channel_ids += 1
        self._sinks[self._channel_ids] = sink
        self._used[self._channel_ids] = set()
        return ChannelKey(self._node, self._channel_ids)

    def publish(
        self, channel: ChannelKey, queue_id: QueueId, messages: Sequence[Message], publish_seqs: Sequence[int]
    ) -> None:
        route = self._route(channel, queue_id)
        if route is None:
            if tracked := [seq for seq in publish_seqs if seq]:
                self._sinks[channel.channel_id].queue_confirmed(queue_id, tracked)
            return
        channel_id = channel.channel_id
        self._credits.open_channel(route, channel_id)
        if publish_seqs[0]:  # a channel is in confirm mode or it is not: all or none of a batch
            route.unconfirmed.setdefault(channel_id, {}).update(zip(publish_seqs, messages, strict=True))
            if route.state is not RouteState.OPEN:
                route.first_unsent.setdefault(channel_id, publish_seqs[0])
        elif route.state is not RouteState.OPEN:
            route.untracked.extend((channel_id, message) for message in messages)
        if route.state is RouteState.OPEN:
            self._send_publishes(route, channel_id, publish_seqs, messages)
        else:
            self._credits.sent(route, channel_id, len(messages))

    def settle_ack(self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]) -> None:
        self._settle(channel, queue_id, session, "ack", seq_ids)

    def settle_requeue(self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]) -> None:
        self._settle(channel, queue_id, session, "requeue", seq_ids)

    def settle_discard(self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]) -> None:
        self._settle(channel, queue_id, session, "discard", seq_ids)

    def grant(self, channel: ChannelKey, queue_id: QueueId, session: int, consumer_tag: str, count: int) -> None:
        route = self._live_route(queue_id, session)
        if route is None:
            return
        if route.master == self._node:
            self._call(route, lambda process: process.grant(channel, consumer_tag, count))
        else:
            self._links.send(route.master, SessionGrant(queue_id, session, channel.channel_id, consumer_tag, count))

    def close_channel(self, channel: ChannelKey) -> None:
        channel_id = channel.channel_id
        self._sinks.pop(channel_id, None)
        self._credits.close_channel(channel_id)
        for queue_id in self._used.pop(channel_id, ()):
            route = self._routes.get(queue_id)
            if route is None:
                continue
            for key in [key for key in route.consumers if key.channel == channel]:
                del route.consumers[key]
            route.hops.pop(channel_id, None)
            publishes = route.unconfirmed.pop(channel_id, {})
            route.first_unsent.pop(channel_id, None)
            if route.state is not RouteState.OPEN:
                # Nobody waits for the confirms any more, but the messages were handed to us: still on their way.
                route.untracked.extend((channel_id, message) for message in publishes.values())
            elif route.master == self._node:
                self._call(route, lambda process: process.channel_down(channel))
            elif channel_id in route.local_channels:
                self._links.send(route.master, SessionChannelClosed(queue_id, route.session, channel_id))

    def busiest_queue(self, channel: ChannelKey) -> QueueId | None:
        counts = {
            queue_id: len(route.unconfirmed.get(channel.channel_id, ()))
            for queue_id in self._used.get(channel.channel_id, ())
            if (route := self._routes.get(queue_id)) is not None
        }
        return max(counts, key=lambda queue_id: counts[queue_id]) if any(counts.values()) else None

    # --- QueueGateway: cold ---

    async def consume(self, channel: ChannelKey, queue_id: QueueId, spec: ConsumerSpec) -> None:
        def local(process: QueueProcess) -> SessionReply:
            process.consume(channel, spec)
            return _DONE

        key = ConsumerKey(channel, spec.consumer_tag)

        def attached(route: Route) -> None:
            if channel.channel_id in self._sinks:
                route.consumers[key] = spec

        # Deliveries may arrive in one frame with the master's answer: they wait until our caller has heard it.
        self._early[key] = []
        try:
            await self._ask(channel, queue_id, "consume", local, attached, consumer=spec)
        except BaseException:
            del self._early[key]
            raise
        self._loop.call_soon(self._deliver_early, queue_id, key)

    async def cancel(self, channel: ChannelKey, queue_id: QueueId, consumer_tag: str) -> None:
        route = self._routes.get(queue_id)
        if route is None or route.consumers.pop(ConsumerKey(channel, consumer_tag), None) is None:
            return

        def local(process: QueueProcess) -> SessionReply:
            process.cancel(channel, consumer_tag)
            self._local.run(queue_id)  # its last deliveries go before the answer
            return _DONE

        if route.state is not RouteState.WAITING:  # otherwise it will simply not be attached again
            await self._ask(channel, queue_id, "cancel", local, consumer_tag=consumer_tag)

    async def get(self, channel: ChannelKey, queue_id: QueueId, no_ack: bool) -> tuple[int, Delivery, int] | None:
        for _ in range(GET_TRIES_MAX):
            got, ready = await self._get_once(channel, queue_id, no_ack)
            if got is not None or not ready:
                return got
            # Messages are ready, but the mirrors have not yet been told that they may be delivered.
            await asyncio.sleep(GET_RETRY_S)
        return None

    async def _get_once(
        self, channel: ChannelKey, queue_id: QueueId, no_ack: bool
    ) -> tuple[tuple[int, Delivery, int] | None, int]:
        """The message if there is one, and how many are ready after it."""
        session = 0
        found: Delivery | None = None

        def local(process: QueueProcess) -> SessionReply:
            nonlocal found
            found = process.get(channel, no_ack)
            return _number(process.ready)

        def answered(route: Route) -> None:
            nonlocal session
            session = route.session

        reply = await self._ask(channel, queue_id, "get", local, answered, no_ack=no_ack)
        if reply.envelope:
            message, _ = decode_envelope(reply.envelope)
            found = Delivery(reply.seq_id, message, reply.redelivered)
        return (None if found is None else (session, found, reply.number)), reply.number

    async def purge(self, queue_id: QueueId) -> int:
        reply = await self._ask(None, queue_id, "purge", lambda process: _number(process.purge()))
        return reply.number

    async def counts(self, queue_id: QueueId) -> tuple[int, int]:
        reply = await self._ask(
            None, queue_id, "counts", lambda process: _number(process.ready, process.consumer_count)
        )
        return reply.number, reply.consumers

    async def delete_if(self, queue_id: QueueId, if_unused: bool, if_empty: bool) -> int:
        reply = await self._ask(
            None,
            queue_id,
            "delete_if",
            lambda process: _number(process.seal_for_delete(if_unused, if_empty)),
            if_unused=if_unused,
            if_empty=if_empty,
        )
        return reply.number

    async def delete_abandoned(self, queue_id: QueueId) -> None:
        def local(process: QueueProcess) -> SessionReply:
            process.unseal()
            return _DONE

        await self._ask(None, queue_id, "unseal", local)

    # --- sessions ---

    def _route(self, channel: ChannelKey | None, queue_id: QueueId) -> Route | None:
        """The route to a queue, made and opened on first use; ``None`` if the queue does not exist."""
        route = self._routes.get(queue_id)
        if route is None:
            record = self._mastership(queue_id)
            if record is None:
                return None
            route = self._routes[queue_id] = Route(queue_id, record)
            self._open(route)
        if channel is not None and channel.channel_id in self._used:
            self._used[channel.channel_id].add(queue_id)
        return route

    def _open(self, route: Route) -> None:
        if route.is_down or route.state is not RouteState.WAITING:
            return
        is_local = route.master == self._node
        if is_local and self._local.process(route.queue_id) is None:
            return  # this node is about to take up the role; `mastership_changed` follows
        if not is_local and not self._links.is_up(route.master):
            return
        self._session_numbers += 1
        route.begin(self._session_numbers)
        if is_local:
            self._resume(route)
        else:
            self._links.send(
                route.master, SessionOpen(route.queue_id, route.session, route.epoch, self._credits.more_after(route))
            )

    def _opened(self, route: Route, message: SessionOpened) -> None:
        if not message.refused:
            if route.state is RouteState.OPENING:
                self._resume(route)
            return
        self._lose(route)
        self._loop.call_later(REOPEN_DELAY_S, self._open_again, route)

    def _open_again(self, route: Route) -> None:
        if self._routes.get(route.queue_id) is route:
            self._open(route)

    def _resume(self, route: Route) -> None:
        """The session stands: send again what was never answered, attach the consumers again."""
        route.open()
        self._credits.open_route(route)
        unsent, route.first_unsent = route.first_unsent, {}
        for channel_id, publishes in list(route.unconfirmed.items()):
            self._send_again(route, channel_id, publishes, unsent.get(channel_id, NEVER))
        while route.untracked and route.state is RouteState.OPEN:
            channel_id, message = route.untracked.popleft()
            self._send_publishes(route, channel_id, [0], [message], is_resent=True)
        for key, spec in list(route.consumers.items()):
            if route.state is RouteState.OPEN:
                self._attach_again(route, key, spec)

    def _send_again(self, route: Route, channel_id: int, publishes: Mapping[int, Message], first_unsent: int) -> None:
        """An earlier master was given what lies before ``first_unsent``, and may have delivered it."""
        for is_resent in (True, False):
            chosen = {seq: each for seq, each in publishes.items() if (seq < first_unsent) is is_resent}
            if chosen and route.state is RouteState.OPEN:  # the storage of a local queue may fail at any of these
                self._send_publishes(route, channel_id, list(chosen), list(chosen.values()), is_resent=is_resent)

    def _attach_again(self, route: Route, key: ConsumerKey, spec: ConsumerSpec) -> None:
        if route.master == self._node:
            try:
                self._process(route).consume(key.channel, spec)
            except ChannelError:
                self._consumer_cancelled(route, key.channel.channel_id, key.consumer_tag)
            except Exception as error:
                self._local.out_of_service(route.queue_id, error)
            self._local.touch(route.queue_id)
            return
        future = self._send_call(route, "consume", key.channel.channel_id, consumer=spec)

        def answered(done: asyncio.Future[SessionReply]) -> None:
            if not done.cancelled() and done.exception() is None and done.result().reply_code:
                self._consumer_cancelled(route, key.channel.channel_id, key.consumer_tag)

        future.add_done_callback(answered)

    def _lose(self, route: Route) -> None:
        route.lose()
        self._fail_calls(route)

    def _fail_calls(self, route: Route) -> None:
        for call_id, (owner, _, future) in list(self._calls.items()):
            if owner is route:
                del self._calls[call_id]
                if not future.done():
                    future.set_exception(SessionLost())
                    future.exception()  # seen: an attach that nobody awaits must not warn

    def _cancel_consumers_that_asked(self, route: Route) -> None:
        """``x-cancel-on-ha-failover``: these learn of the move instead of continuing."""
        for key, spec in list(route.consumers.items()):
            if spec.cancel_on_failover:
                self._consumer_cancelled(route, key.channel.channel_id, key.consumer_tag)

    def _consumer_cancelled(self, route: Route, channel_id: int, consumer_tag: str) -> None:
        key = ConsumerKey(ChannelKey(self._node, channel_id), consumer_tag)
        if route.consumers.pop(key, None) is not None and (sink := self._sinks.get(channel_id)) is not None:
            sink.queue_cancelled_consumer(route.queue_id, consumer_tag)

    # --- hot helpers ---

    def _process(self, route: Route) -> QueueProcess:
        process = self._local.process(route.queue_id)
        assert process is not None, "an open local route has its process: the runtime closes routes first"
        return process

    def _call(self, route: Route, call: Callable[[QueueProcess], object]) -> None:
        """Call the queue process of an open local route. If it fails the route waits for another master."""
        try:
            call(self._process(route))
        except Exception as error:
            self._local.out_of_service(route.queue_id, error)
        self._local.touch(route.queue_id)

    def _live_route(self, queue_id: QueueId, session: int) -> Route | None:
        route = self._routes.get(queue_id)
        if route is None or route.session != session or route.state is not RouteState.OPEN:
            return None
        return route

    def _send_publishes(
        self,
        route: Route,
        channel_id: int,
        publish_seqs: Sequence[int],
        messages: Sequence[Message],
        *,
        is_resent: bool = False,
    ) -> None:
        queue_id = route.queue_id
        if route.master == self._node:
            channel = ChannelKey(self._node, channel_id)
            self._call(route, lambda process: process.publish(channel, messages, publish_seqs, is_resent=is_resent))
            self._credits.sent(route, channel_id, len(messages))
            return
        self._credits.sent(route, channel_id, len(messages))
        route.local_channels.add(channel_id)
        self._links.send(
            route.master,
            SessionPublish(queue_id, route.session, channel_id, publish_seqs, pack_envelopes(messages), is_resent),
        )

    def _settle(
        self, channel: ChannelKey, queue_id: QueueId, session: int, outcome: str, seq_ids: Sequence[SeqId]
    ) -> None:
        route = self._live_route(queue_id, session)
        if route is None:
            return  # delivered under an earlier mastership: the queue has requeued these already
        if route.master == self._node:
            self._call(route, lambda process: settle_locally(process, channel, outcome, seq_ids))
        else:
            self._links.send(route.master, SessionSettle(queue_id, session, channel.channel_id, outcome, seq_ids))

    def _delivered(self, route: Route, channel_id: int, consumer_tag: str, deliveries: Sequence[Delivery]) -> None:
        if self._early:
            key = ConsumerKey(ChannelKey(self._node, channel_id), consumer_tag)
            if (early := self._early.get(key)) is not None:
                early.append((route.session, deliveries))
                return
        if (sink := self._sinks.get(channel_id)) is not None:
            sink.queue_delivered(route.queue_id, route.session, consumer_tag, deliveries)

    def _deliver_early(self, queue_id: QueueId, key: ConsumerKey) -> None:
        for session, deliveries in self._early.pop(key, ()):
            if (sink := self._sinks.get(key.channel.channel_id)) is not None and self._live_route(queue_id, session):
                sink.queue_delivered(queue_id, session, key.consumer_tag, deliveries)

    def _confirmed(self, route: Route, channel_id: int, publish_seqs: Sequence[int], rejected: bool) -> None:
        waiting = route.unconfirmed.get(channel_id)
        if waiting is None:
            return
        answered = [seq for seq in publish_seqs if waiting.pop(seq, None) is not None]
        if not waiting:
            del route.unconfirmed[channel_id]
        sink = self._sinks.get(channel_id)
        if sink is not None and answered:
            if rejected:
                sink.queue_rejected(route.queue_id, answered)
            else:
                sink.queue_confirmed(route.queue_id, answered)

    # --- calls ---

    async def _ask(
        self,
        channel: ChannelKey | None,
        queue_id: QueueId,
        verb: str,
        local: Callable[[QueueProcess], SessionReply],
        answered: Callable[[Route], None] | None = None,
        **arguments: object,
    ) -> SessionReply:
        """Ask the master, again and again over its moves, within `OPERATION_TIMEOUT_S`."""
        deadline = self._loop.time() + OPERATION_TIMEOUT_S
        while True:
            route = await self._open_route(channel, queue_id, deadline)
            if channel is not None and channel.channel_id not in self._sinks:
                # It closed while this waited: whatever it were given now, nobody would ever take it back.
                raise ChannelError(404, f"{self._describe(queue_id)}: the channel was closed meanwhile")
            session = route.session
            if route.master == self._node:
                try:
                    reply = local(self._process(route))
                except ChannelError:
                    raise
                except Exception as error:
                    self._local.out_of_service(queue_id, error)
                    await asyncio.sleep(0)  # its role may be gone already, and nothing would change while this asks
                    continue
                self._local.touch(queue_id)
            else:
                channel_id = 0 if channel is None else channel.channel_id
                route.local_channels.add(channel_id)
                try:
                    async with asyncio.timeout_at(deadline):
                        reply = await self._send_call(route, verb, channel_id, **arguments)
                except SessionLost:
                    continue
                except TimeoutError:
                    raise ChannelError(404, f"{self._describe(queue_id)} did not answer in time") from None
            if verb in _BOUND_TO_SESSION and (self._routes.get(queue_id) is not route or route.session != session):
                continue  # what it gave is gone with the session that was replaced before we came to hear of it
            if reply.reply_code:
                raise ChannelError(reply.reply_code, reply.reply_text)
            if answered is not None:
                answered(route)
            return reply

    async def _open_route(self, channel: ChannelKey | None, queue_id: QueueId, deadline: float) -> Route:
        while True:
            route = self._route(channel, queue_id)
            if route is None:
                raise ChannelError(404, "the queue has been deleted")
            if route.state is RouteState.OPEN:
                return route
            if route.is_down:
                raise ChannelError(
                    404, f"home node '{route.master}' of {self._describe(queue_id)} is down or inaccessible"
                )
            try:
                async with asyncio.timeout_at(deadline):
                    await route.opened.wait()
            except TimeoutError:
                text = f"home node '{route.master}' of {self._describe(queue_id)} is inaccessible"
                raise ChannelError(404, text) from None

    def _send_call(self, route: Route, verb: str, channel_id: int, **arguments: object) -> asyncio.Future[SessionReply]:
        self._call_ids += 1
        future: asyncio.Future[SessionReply] = self._loop.create_future()
        self._calls[self._call_ids] = (route, route.session, future)
        call = SessionCall(route.queue_id, route.session, self._call_ids, verb, channel_id, **arguments)  # type: ignore[arg-type]
        self._links.send(route.master, call)
        return future

    def _describe(self, queue_id: QueueId) -> str:
        """As the reference writes it: ``durable queue 'q' in vhost '/'``."""
        queue = self._queue_record(queue_id)
        if queue is None:
            return "a deleted queue"
        durable = "durable " if queue.durable else ""
        return f"{durable}queue '{queue.name}' in vhost '{queue.vhost}'"

    def check_invariants(self) -> None:
        for route in self._routes.values():
            route.check_invariants()
            self._credits.check_invariants(route)
        assert self._used.keys() == self._sinks.keys(), "a channel has a sink as long as it may use queues"
        for owner, session, _ in self._calls.values():
            assert session == owner.session, "calls of an ended session have been failed"


#: Questions whose answer means nothing in the next session.
_BOUND_TO_SESSION = frozenset({"consume", "get"})
_DONE = SessionReply(QueueId(0), 0, 0)


def _number(number: int, consumers: int = 0) -> SessionReply:
    return SessionReply(QueueId(0), 0, 0, number=number, consumers=consumers)


def settle_locally(process: QueueProcess, channel: ChannelKey, outcome: str, seq_ids: Sequence[SeqId]) -> None:
    """Apply one settlement to a queue process on this node."""
    if outcome == "ack":
        process.ack(channel, seq_ids)
    elif outcome == "requeue":
        process.requeue(channel, seq_ids)
    else:
        process.discard(channel, seq_ids)

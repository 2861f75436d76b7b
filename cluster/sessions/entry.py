"""`Entry`: how the channels of this node reach any queue of the cluster, through moves and broken links. Pure.

Parts: `Route` is the state of one queue (`cluster.sessions.routes`); `ChannelPublishes`, `ChannelConsumers`,
`ChannelCalls` and `ChannelCredits` are what channels have under way. Here the sessions begin and end, and what masters
say is handed to the parts. The conversation with a master is in `cluster.sessions.messages`, its other end in
`cluster.sessions.host`. When the master is this node the queue process is called directly; nothing else differs, so a
queue that moves here or away is the ordinary case.

What is promised to a channel
-----------------------------
- **A tracked publish is confirmed or rejected exactly once.** It is kept (`Route.unconfirmed`) until the master answers
  for it, and taken out by the first answer, so a second one finds nothing. The end of a session answers nothing: the
  next one gets all that is left. A queue that is deleted, or does not exist, confirms: nobody misses the message.
- **It is in the queue once**, although it may be sent several times. A message id is (origin of the channel, counter),
  and what an origin publishes to a queue comes in the order of its counters, so one high-water counter per origin is
  enough for each copy of the queue to recognise a repetition (`BackingQueue.is_duplicate`). What an earlier master may
  have delivered, without any mirror having heard of it, is sent as *resent* and delivered with the redelivered flag;
  what no session has carried yet (from `Route.first_unsent` on) is not.
- **Order per channel and queue is kept.** A session is one conversation over a link that keeps order, and a new session
  begins with what is left of the old ones, in order of publishing, before anything newer. What the link has no room for
  holds up all that is said after it in the same session (`cluster.sessions.backlog`).
- **A call is answered or refused**, within `OPERATION_TIMEOUT_S`. If its session ends it is asked again in the next.
- **A consumer is served by every later master**, or told that it is cancelled. It hears nothing before its caller knows
  that it exists. A session with a master elsewhere begins with the consumers, so they wait for no room on the link.
- **A delivery can be settled in its own session only.** At the end of a session the queue takes back what was not
  settled; a settlement that comes later names positions that have been given to others, and goes nowhere. So channels
  are told of the end, and what they have not sent to their clients they do not send.
- A publish that nobody tracks is promised nothing, and still kept for the next session, up to a bound. Its client waits
  for the queue to keep up, as with any other, but not for one that is down.

What there is, and what ends it
-------------------------------
===================  ==================================================================================================
session              link to the master down; refused by the master, or said by it to have ended; mastership moved or
                     down; the queue process of this node stopped; queue deleted
unconfirmed publish  confirmed or rejected by the master; queue deleted; its channel closed (if it has no session to be
                     in, the message stays untracked)
call                 answered; refused; time is up; abandoned by its caller
consumer             see `cluster.sessions.consumers`
route                queue deleted
channel              closed
===================  ==================================================================================================

A message of a session that is over, or of another node than the master, is a straggler and ignored. A refused session
is tried again after `REOPEN_DELAY_S`: the master has not applied the record yet that we have; and ever more seldom, if
it is that one's copy which is not open. With a new link, as with a new record, that begins anew. A session that cannot
be opened (no link, no master, this node not ready) is opened by the event that ends the obstacle.

What goes out, and why at once
------------------------------
Words to masters (`Links`), to channels (`QueueChannelSink`) and to queue processes on this node (`LocalQueues`) leave
by calls, in the middle of what is done; effects for the shell (`EntryEffect`) likewise. A list of effects would have to
be walked again for each publish and each delivery, and a queue process here would lag behind the state of its route.
The price is re-entrance in two places. A queue process that fails is taken out of service at once, and that comes back
as `queue_stopped`: so after each call into a queue process the state of the route is looked at anew. And a channel that
is told of anything but credit may publish and settle within that call: what waited for a confirm (a commit that is
answered), or what it had no time for before. So whoever tells it has nothing left to do that this would have to come
after, and looks at the state anew as well.

Nothing here outlives the process: a restarted entry node has no channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.metadata.records import MastershipRecord
from cluster.sessions.calls import ChannelCalls
from cluster.sessions.consumers import ChannelConsumers
from cluster.sessions.credits import ChannelCredits
from cluster.sessions.early import EarlyDelivery
from cluster.sessions.entry_node import EntryNode
from cluster.sessions.messages import (
    SessionConfirm,
    SessionConsumerCancelled,
    SessionCredit,
    SessionDeliver,
    SessionGrant,
    SessionMessage,
    SessionOpen,
    SessionOpened,
    SessionReply,
    SessionSettle,
)
from cluster.sessions.outgoing import Outgoing
from cluster.sessions.ports import NO_PROCESS, EntryEffect, Links, LocalQueues, ReopenLater
from cluster.sessions.publishes import ChannelPublishes
from cluster.sessions.questions import settle
from cluster.sessions.routes import CallState, ConsumerKey, Route, RouteState
from node.flow.credit import FlowControl
from node.ids import ChannelKey, Incarnation, NodeName, QueueId, SeqId, numbers_of_life
from node.message import iter_envelopes
from node.queues.backing_queue import Delivery
from node.queues.events import CancelConsumer, ConfirmPublished, Deliver, GrantCredit, QueueEffect, RejectPublished
from node.queues.gateway import QueueChannelSink
from node.queues.queue_process import QueueProcess
from node.topology.records import QueueRecord

#: Pause before a refused session is tried again: the master has not applied the record yet, a matter of one heartbeat.
REOPEN_DELAY_S = 0.02
#: Or it is opening its copy, which may take minutes, as those of thousands of queues: each refusal doubles the pause.
REOPEN_DELAY_MAX_S = 0.5


class Entry:
    """See the top of this module."""

    def __init__(
        self,
        node: NodeName,
        local: LocalQueues,
        links: Links,
        mastership: Callable[[QueueId], MastershipRecord | None],
        queue_record: Callable[[QueueId], QueueRecord | None],
        emit: Callable[[EntryEffect], None],
        flow: FlowControl | None = None,
        *,
        incarnation: Incarnation,
    ) -> None:
        """``emit`` takes an effect for the shell, which carries it out later, never at once."""
        self._outgoing = Outgoing(links)
        here = EntryNode(node, local, self._outgoing, emit)
        self._node = node
        self._local = local
        self._links = links
        self._mastership = mastership
        self._emit = emit
        self._sinks = here.sinks
        self._credits = ChannelCredits(node, flow or FlowControl(), here.sinks, local.process, links.is_congested)
        self._publishes = ChannelPublishes(here, self._credits, self._route)
        self._routes: dict[QueueId, Route] = {}
        self._consumers = ChannelConsumers(here, self._routes.get)
        # Every publish, delivery and confirm passes here: the parts are reached without a call between.
        self.publish = self._publishes.publish
        self._answered = self._publishes.answered
        self._early = self._consumers.early
        self.calls = ChannelCalls(here, self._consumers, self._route, queue_record)
        #: Queues that a channel has used and that exist: the ones to tell when it closes. (Dicts for their order.)
        self._used: dict[int, dict[QueueId, None]] = {}
        #: The last ones. To an earlier life of this node a queue may still owe confirms on its channels, and answers in
        #: its sessions.
        self._channel_ids = self._session_numbers = numbers_of_life(incarnation)

    # --- what changes around us ---

    def mastership_changed(self, record: MastershipRecord) -> None:
        """A record was applied here; called after this node has taken up its own new role."""
        route = self._routes.get(record.queue_id)
        if route is None:
            return
        moved = route.adopt(record)
        if moved or record.is_down:
            ended = self._end_session(route)
            if record.is_down:  # before anybody can publish more
                self._publishes.queue_down(route)
            self._session_ended(route, ended)
        if moved:
            self._consumers.mastership_moved(route)
        self._open(route)

    def queue_deleted(self, queue_id: QueueId) -> None:
        """Consumers are cancelled; publishes under way count as confirmed, as in the reference."""
        route = self._routes.pop(queue_id, None)
        if route is None:
            return
        self.calls.route_closed(route)
        self._consumers.queue_deleted(route)
        self._publishes.queue_deleted(route)
        self._outgoing.session_over(route)
        self._credits.close_route(route)
        for channel_id in route.used_by:
            del self._used[channel_id][queue_id]

    def routed_queues(self) -> list[QueueId]:
        """Queues that channels of this node have used."""
        return list(self._routes)

    def consumed_queues(self) -> list[QueueId]:
        """Those of which some channel has, or had, a consumer."""
        return [route.queue_id for route in self._routes.values() if route.has_consumed]

    def waiting_for(self, node: NodeName) -> list[QueueId]:
        """Queues to which a new link to ``node`` may open a session (`reopen`)."""
        return [
            route.queue_id
            for route in self._routes.values()
            if route.master == node and route.state is RouteState.WAITING
        ]

    def link_free(self, node: NodeName) -> None:
        """The link to ``node`` is congested no longer."""
        if self._outgoing.link_free(node):
            self._credits.link_free(node)

    def link_down(self, node: NodeName) -> None:
        """All sessions over it are ended before anybody is told of one: who is may use another."""
        ended = [(route, self._end_session(route)) for route in self._routes.values() if route.master == node]
        self._credits.link_free(node)
        for route, session in ended:
            route.reopen_delay_s = 0.0  # whoever comes back may be in another life
            self._session_ended(route, session)

    def queue_stopped(self, queue_id: QueueId) -> None:
        """The queue process on this node ended; the next record says where the queue goes on."""
        route = self._routes.get(queue_id)
        if route is not None and route.master == self._node:
            self._lose(route)

    def reopen(self, queue_id: QueueId) -> None:
        """The time of `ReopenLater` has come, or the link to its master."""
        route = self._routes.get(queue_id)
        if route is not None:
            self._open(route)

    # --- what queues say: hot ---

    def local_effects(self, queue_id: QueueId, effects: Sequence[QueueEffect]) -> None:
        """Effects of a queue process on this node, for channels of this node."""
        route = self._routes.get(queue_id)
        if route is None or route.state is not RouteState.OPEN:
            return
        for effect in effects:
            if isinstance(effect, Deliver):
                self._delivered(route, effect.channel.channel_id, effect.consumer_tag, effect.deliveries)
            elif isinstance(effect, ConfirmPublished):
                self._answered(route, effect.channel.channel_id, effect.publish_seqs, rejected=False)
            elif isinstance(effect, RejectPublished):
                self._answered(route, effect.channel.channel_id, effect.publish_seqs, rejected=True)
            elif isinstance(effect, GrantCredit):
                if route.state is RouteState.OPEN:  # it may have failed in the hands of a channel, as above
                    self._credits.pay(route, effect.channel.channel_id, effect.messages)
            elif isinstance(effect, CancelConsumer):
                self._consumers.cancelled(route, effect.channel.channel_id, effect.consumer_tag)

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
            self._answered(route, message.channel_id, message.publish_seqs, message.rejected)
        elif isinstance(message, SessionCredit):
            if route.state is RouteState.OPEN:
                self._credits.pay(route, message.channel_id, message.messages)
        elif isinstance(message, SessionReply):
            self.calls.answered(route, message)
            self._consumers.attached(route, message)
        elif isinstance(message, SessionConsumerCancelled):
            self._consumers.cancelled(route, message.channel_id, message.consumer_tag)
        elif isinstance(message, SessionOpened):
            self._opened(route, message)

    def _delivered(self, route: Route, channel_id: int, consumer_tag: str, deliveries: Sequence[Delivery]) -> None:
        early = self._early.get(channel_id) if self._early else None
        if early and early.keeps(EarlyDelivery(route.queue_id, route.session, consumer_tag, deliveries)):
            return
        if route.state is not RouteState.OPEN and self._consumers.gives_back(route, channel_id, consumer_tag):
            return  # its queue has taken them back, of which the channel has been told
        if (sink := self._sinks.get(channel_id)) is not None:
            sink.queue_delivered(route.queue_id, route.session, consumer_tag, deliveries)

    # --- what channels do: hot ---

    def open_channel(self, sink: QueueChannelSink) -> ChannelKey:
        """See `QueueGateway`, here and below."""
        self._channel_ids += 1
        self._sinks[self._channel_ids] = sink
        self._used[self._channel_ids] = {}
        return ChannelKey(self._node, self._channel_ids)

    def settle_ack(self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]) -> None:
        self._settle(channel, queue_id, session, "ack", seq_ids)

    def settle_requeue(
        self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId], more_follow: bool = False
    ) -> None:
        self._settle(channel, queue_id, session, "requeue", seq_ids, more_follow)

    def settle_discard(self, channel: ChannelKey, queue_id: QueueId, session: int, seq_ids: Sequence[SeqId]) -> None:
        self._settle(channel, queue_id, session, "discard", seq_ids)

    def grant(self, channel: ChannelKey, queue_id: QueueId, session: int, consumer_tag: str, count: int) -> None:
        route = self._live_route(queue_id, session)
        if route is None:
            return
        if route.master == self._node:
            self._call(route, lambda process: process.grant(channel, consumer_tag, count))
        else:
            self._outgoing.say(route, SessionGrant(queue_id, session, channel.channel_id, consumer_tag, count))

    def _live_route(self, queue_id: QueueId, session: int) -> Route | None:
        route = self._routes.get(queue_id)
        if route is None or route.session != session or route.state is not RouteState.OPEN:
            return None
        return route

    def _call(self, route: Route, call: Callable[[QueueProcess], object]) -> None:
        """Call the queue process of an open local route. If it fails the route waits for another master."""
        queue_id = route.queue_id
        try:
            process = self._local.process(queue_id)
            assert process is not None, NO_PROCESS
            call(process)
        except Exception as error:
            self._local.out_of_service(queue_id, error)
        self._local.touch(queue_id)

    def _settle(
        self,
        channel: ChannelKey,
        queue_id: QueueId,
        session: int,
        outcome: str,
        seq_ids: Sequence[SeqId],
        more_follow: bool = False,
    ) -> None:
        route = self._live_route(queue_id, session)
        if route is None:
            return  # delivered under an earlier mastership: the queue has requeued these already
        if route.master == self._node:
            self._call(route, lambda process: settle(process, channel, outcome, seq_ids, more_follow))
        else:
            settled = SessionSettle(queue_id, session, channel.channel_id, outcome, seq_ids, more_follow)
            self._outgoing.say(route, settled)

    # --- what channels do: cold ---

    def close_channel(self, channel: ChannelKey) -> None:
        channel_id = channel.channel_id
        self._sinks.pop(channel_id, None)
        self._credits.close_channel(channel_id)
        for queue_id in self._used.pop(channel_id, ()):
            route = self._routes[queue_id]
            del route.used_by[channel_id]
            self._consumers.channel_closed(route, channel)
            route.hops.pop(channel_id, None)
            self._publishes.channel_closed(route, channel_id)
            self._publishes.say_closed(route, channel_id)
            if route.state is RouteState.OPEN and route.master == self._node:
                self._call(route, lambda process: process.channel_down(channel))

    def busiest_queue(self, channel: ChannelKey) -> QueueId | None:
        counts = {
            queue_id: len(self._routes[queue_id].unconfirmed.get(channel.channel_id, ()))
            for queue_id in self._used.get(channel.channel_id, ())
        }
        return max(counts, key=lambda queue_id: counts[queue_id]) if any(counts.values()) else None

    def consumer_started(self, key: ConsumerKey) -> None:
        """The client has been told that this consumer exists: what came too early may follow."""
        self._consumers.started(key)

    def drop_consumer(self, queue_id: QueueId, key: ConsumerKey) -> bool:
        """The client cancels a consumer. True if its queue has to be asked to; otherwise it just does not hear of it
        again."""
        route = self._routes.get(queue_id)
        if route is None or route.consumers.pop(key, None) is None:
            return False
        return route.state is not RouteState.WAITING

    def has_session(self, queue_id: QueueId) -> bool:
        """The queue's master knows the consumers that are here."""
        route = self._routes.get(queue_id)
        return route is not None and route.state is RouteState.OPEN

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
        if channel is not None:
            used = self._used.get(channel.channel_id)
            if used is not None and queue_id not in used:
                used[queue_id] = route.used_by[channel.channel_id] = None
        return route

    def _open(self, route: Route) -> None:
        """Begin a session, if there is none and one can be had."""
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
                route.master,
                SessionOpen(
                    route.queue_id,
                    route.session,
                    route.epoch,
                    self._credits.more_after(route),
                    route.has_consumed,
                ),
            )

    def _opened(self, route: Route, message: SessionOpened) -> None:
        if not message.refused:
            if route.state is RouteState.OPENING:
                self._resume(route)
            return
        self._lose(route)
        delay_s = route.reopen_delay_s or REOPEN_DELAY_S
        route.reopen_delay_s = min(2 * delay_s, REOPEN_DELAY_MAX_S)
        self._emit(ReopenLater(route.queue_id, delay_s))

    def _resume(self, route: Route) -> None:
        """The session stands: send again what was never answered, attach the consumers again, let callers ask."""
        route.open()
        self.calls.route_opened(route)
        self._credits.open_route(route)
        if route.master != self._node:
            # First: behind what the link has no room for they may come after the queue was deleted for want of them.
            self._consumers.attach_again(route)
            self._publishes.session_opened(route)
            return
        # A queue here refuses a consumer at once, and its channel may publish when it hears of that: behind the rest.
        self._publishes.session_opened(route)
        self._consumers.attach_again(route)
        if route.has_consumed and route.state is RouteState.OPEN:
            self._call(route, QueueProcess.was_consumed)

    def _lose(self, route: Route) -> None:
        self._session_ended(route, self._end_session(route))

    def _end_session(self, route: Route) -> int:
        """It is over, and who is to know is told next (`_session_ended`). Returns its number, 0 if it was not open."""
        session = route.session if route.state is RouteState.OPEN else 0
        self._outgoing.session_over(route)
        route.lose()
        return session

    def _session_ended(self, route: Route, session: int) -> None:
        self.calls.session_over(route)
        if session:
            self._consumers.session_over(route, session)

    def check_invariants(self) -> None:
        assert self._used.keys() == self._sinks.keys(), "a channel has a sink as long as it may use queues"
        self._consumers.check_invariants()
        sessions = [route.session for route in self._routes.values() if route.session]
        assert len(set(sessions)) == len(sessions), "no two routes share a session number"
        used = sum(len(queues) for queues in self._used.values())
        assert used == sum(len(route.used_by) for route in self._routes.values()), "no channel remembers what is gone"
        assert max(sessions, default=0) <= self._session_numbers, "session numbers are counted here"
        self._outgoing.check_invariants(self._routes)
        for queue_id, route in self._routes.items():
            assert route.queue_id == queue_id, "a route lies under its queue"
            route.check_invariants()
            self._credits.check_invariants(route)
            known = route.used_by.keys()
            assert all(queue_id in self._used[channel_id] for channel_id in known), "both know that it is used"
            named = route.unconfirmed.keys() | route.hops.keys() | route.first_unsent.keys()
            named |= {key.channel.channel_id for key in route.consumers}
            assert named <= known, "whoever has something on a route is found there when its channel closes"
            if route.master == self._node:
                asked = [call for call in route.calls.values() if call.state is CallState.ASKED]
                assert (asked, route.attaching) == ([], {}), "nobody sends messages to a queue on this node"
                assert route.state is not RouteState.OPENING, "a queue on this node needs no opening"

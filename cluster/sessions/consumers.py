"""`ChannelConsumers`: the consumers of this node's channels, over all sessions.

A consumer exists on its route (`Route.consumers`) from the master's answer until it is cancelled: by its client, by the
queue, by the deletion of either, or, if it asked for that (``x-cancel-on-ha-failover``), by a move of the mastership.
In between it is attached again to every master.

What comes before its client was told of it: `cluster.sessions.early`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cluster.sessions.early import EarlyDeliveries, EarlyDelivery
from cluster.sessions.entry_node import EntryNode
from cluster.sessions.messages import SessionCall, SessionReply
from cluster.sessions.ports import NO_PROCESS
from cluster.sessions.routes import ConsumerKey, Route, RouteState
from node.errors import ChannelError
from node.ids import ChannelKey, QueueId
from node.queues.events import ConsumerSpec


class ChannelConsumers:
    """See the top of this module."""

    def __init__(self, here: EntryNode, find_route: Callable[[QueueId], Route | None]) -> None:
        """``find_route``: of a queue that a channel here has used."""
        self._here = here
        self._find_route = find_route
        #: Of channels on which a consumer is being started.
        self.early: dict[int, EarlyDeliveries] = {}

    # --- the beginning ---

    def starting(self, key: ConsumerKey) -> None:
        """The queue is about to be asked for this consumer."""
        self.early.setdefault(key.channel.channel_id, EarlyDeliveries()).starting(key.consumer_tag)

    def given_up(self, key: ConsumerKey) -> None:
        """It came to nothing."""
        self._hand_on(key.channel, self.early[key.channel.channel_id].given_up(key.consumer_tag))

    def started(self, key: ConsumerKey) -> None:
        """Its client knows of it."""
        self._hand_on(key.channel, self.early[key.channel.channel_id].started(key.consumer_tag))

    def _hand_on(self, channel: ChannelKey, due: Iterable[EarlyDelivery]) -> None:
        if not self.early[channel.channel_id]:
            del self.early[channel.channel_id]
        for early in due:
            sink = self._here.sinks.get(channel.channel_id)
            if sink is not None and not self._is_over(channel, early):
                sink.queue_delivered(early.queue_id, early.session, early.consumer_tag, early.deliveries)

    def _is_over(self, channel: ChannelKey, early: EarlyDelivery) -> bool:
        """Deliveries of a session that is over are not worth telling: they come again; but not those that nobody
        acknowledges, which their queue has forgotten."""
        route = self._find_route(early.queue_id)
        if route is None:
            return True
        spec = route.consumers.get(ConsumerKey(channel, early.consumer_tag))
        return not route.is_live(early.session) and (spec is None or not spec.no_ack)

    # --- a new session ---

    def attach_again(self, route: Route) -> None:
        """A session has opened: its master does not know of the consumers yet."""
        session = route.session
        for key, spec in list(route.consumers.items()):
            if route.state is not RouteState.OPEN:  # the storage of a local queue may fail at any of these
                break
            if route.master == self._here.name:
                self._attach_here(route, key, spec)
            else:
                self._attach_elsewhere(route, key, spec)
        if route.has_consumed and route.is_live(session) and route.master != self._here.name:
            # These are all: whatever comes behind them says so, and there may be nothing else for long.
            question = SessionCall(route.queue_id, session, next(self._here.call_ids), "counts", 0)
            self._here.outgoing.say(route, question)

    def _attach_here(self, route: Route, key: ConsumerKey, spec: ConsumerSpec) -> None:
        local, queue_id, session = self._here.local, route.queue_id, route.session
        try:
            process = local.process(queue_id)
            assert process is not None, NO_PROCESS
            if process.is_closed:
                process.when_unsealed(lambda: self._attach_late(route, session, key, spec))
                return
            process.consume(key.channel, spec)
        except ChannelError:
            self.cancelled(route, key.channel.channel_id, key.consumer_tag)
        except Exception as error:
            local.out_of_service(queue_id, error)
        local.touch(queue_id)

    def _attach_late(self, route: Route, session: int, key: ConsumerKey, spec: ConsumerSpec) -> None:
        """The queue, which was sealed when the session began, is not deleted."""
        if route.is_live(session) and route.consumers.get(key) is spec:
            self._attach_here(route, key, spec)

    def _attach_elsewhere(self, route: Route, key: ConsumerKey, spec: ConsumerSpec) -> None:
        call_id = next(self._here.call_ids)
        route.attaching[call_id] = key
        # The master has to be told when the channel closes, though it may hear nothing else of it.
        route.local_channels.add(key.channel.channel_id)
        self._here.outgoing.say(
            route,
            SessionCall(route.queue_id, route.session, call_id, "consume", key.channel.channel_id, spec),
        )

    def attached(self, route: Route, reply: SessionReply) -> None:
        """The master of an open session has answered to an attach, or to something else."""
        key = route.attaching.pop(reply.call_id, None)
        if key is not None and reply.reply_code:
            self.cancelled(route, key.channel.channel_id, key.consumer_tag)

    # --- the end ---

    def session_over(self, route: Route, session: int) -> None:
        """Channels may keep some of its deliveries, which their clients have not seen. Also of consumers that are being
        cancelled."""
        if route.has_consumed:
            for channel_id in list(route.used_by):
                if (sink := self._here.sinks.get(channel_id)) is not None:
                    sink.queue_session_over(route.queue_id, session)

    def gives_back(self, route: Route, channel_id: int, consumer_tag: str) -> bool:
        """At the end of a session: what it was delivered and has not settled is its queue's again."""
        spec = route.consumers.get(ConsumerKey(ChannelKey(self._here.name, channel_id), consumer_tag))
        return spec is not None and not spec.no_ack

    def cancelled(self, route: Route, channel_id: int, consumer_tag: str) -> None:
        """The queue has ended this consumer, or will not have it: its client is told."""
        key = ConsumerKey(ChannelKey(self._here.name, channel_id), consumer_tag)
        if route.consumers.pop(key, None) is not None and (sink := self._here.sinks.get(channel_id)) is not None:
            sink.queue_cancelled_consumer(route.queue_id, consumer_tag)

    def mastership_moved(self, route: Route) -> None:
        """Those that asked for it learn of the move instead of going on."""
        for key, spec in list(route.consumers.items()):
            if spec.cancel_on_failover:
                self.cancelled(route, key.channel.channel_id, key.consumer_tag)

    def queue_deleted(self, route: Route) -> None:
        """All of its consumers end."""
        for key in route.consumers:
            if (sink := self._here.sinks.get(key.channel.channel_id)) is not None:
                sink.queue_cancelled_consumer(route.queue_id, key.consumer_tag)

    def channel_closed(self, route: Route, channel: ChannelKey) -> None:
        """Nobody is told."""
        for key in [key for key in route.consumers if key.channel == channel]:
            del route.consumers[key]

    def check_invariants(self) -> None:
        assert all(self.early.values()), "only channels on which a consumer is being started are here"
        for early in self.early.values():
            early.check_invariants()

"""`ChannelPublishes`: publishes on their way to queues, kept until the master of each queue has answered for them.

The promises are in `cluster.sessions.entry`, the tables on the route: ``unconfirmed``, ``first_unsent``, ``untracked``.
What goes to another node is in none but the first while it waits for the link, whose rule is in
`cluster.sessions.backlog`: a new session, too, is given everything at once, and sends it as the link has room.
Every publish comes through here, so there is one call per batch and step, and none per message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cluster.sessions.backlog import Publishes
from cluster.sessions.credits import ChannelCredits
from cluster.sessions.entry_node import EntryNode
from cluster.sessions.messages import SessionChannelClosed
from cluster.sessions.ports import NO_PROCESS
from cluster.sessions.routes import Route, RouteState
from node.ids import ChannelKey, QueueId
from node.message import Message
from node.queues.events import INTERNAL_SEQ_BASE


class ChannelPublishes:
    """See the top of this module."""

    def __init__(
        self,
        here: EntryNode,
        credits: ChannelCredits,
        find_route: Callable[[ChannelKey | None, QueueId], Route | None],
    ) -> None:
        self._node = here.name
        self._local = here.local
        self._outgoing = here.outgoing
        self._sinks = here.sinks
        self._credits = credits
        self._find_route = find_route

    def publish(
        self, channel: ChannelKey, queue_id: QueueId, messages: Sequence[Message], publish_seqs: Sequence[int]
    ) -> None:
        """See `QueueGateway.publish`."""
        route = self._find_route(channel, queue_id)
        if route is None:
            if tracked := [seq for seq in publish_seqs if seq]:
                self._sinks[channel.channel_id].queue_confirmed(queue_id, tracked)
            return
        channel_id = channel.channel_id
        self._credits.open_channel(route, channel_id)
        if route.is_down and publish_seqs[0] >= INTERNAL_SEQ_BASE:
            route.untracked.add(channel_id, messages, is_resent=False)
            self._sinks[channel_id].queue_confirmed(queue_id, publish_seqs)
            return
        if publish_seqs[0]:  # a channel is in confirm mode or it is not: all or none of a batch
            route.unconfirmed.setdefault(channel_id, {}).update(zip(publish_seqs, messages, strict=True))
            if route.state is not RouteState.OPEN:
                route.first_unsent.setdefault(channel_id, publish_seqs[0])
        elif route.state is not RouteState.OPEN:
            route.untracked.add(channel_id, messages, is_resent=False)
        if route.state is RouteState.OPEN:
            self._send(route, channel_id, publish_seqs, messages)
        elif publish_seqs[0] or not route.is_down:
            self._credits.sent(route, channel_id, len(messages))

    def answered(self, route: Route, channel_id: int, publish_seqs: Sequence[int], rejected: bool) -> None:
        """The queue has these, or refused them. What was answered before is not answered again."""
        waiting = route.unconfirmed.get(channel_id)
        if waiting is None:
            return
        answered = [seq for seq in publish_seqs if waiting.pop(seq, None) is not None]
        if not waiting:
            del route.unconfirmed[channel_id]
        if route.backlog and answered:  # the master will not process, in this session, what goes out no more
            self._credits.pay(route, channel_id, self._outgoing.answered(route, channel_id, frozenset(answered)))
        if route.is_down:  # the last words of a master that others have missed before this node did
            self._credits.pay(route, channel_id, len(answered))
        sink = self._sinks.get(channel_id)
        if sink is not None and answered:
            if rejected:
                sink.queue_rejected(route.queue_id, answered)
            else:
                sink.queue_confirmed(route.queue_id, answered)

    def session_opened(self, route: Route) -> None:
        """Send what no master has answered for, in order of publishing."""
        closed: dict[int, None] = {}
        while route.untracked and route.state is RouteState.OPEN:
            channel_id, messages, is_resent = route.untracked.take_some()
            self._send(route, channel_id, [0] * len(messages), messages, is_resent=is_resent)
            if channel_id not in self._sinks:
                closed[channel_id] = None
        for channel_id in closed:
            self.say_closed(route, channel_id)
        for channel_id, publishes in list(route.unconfirmed.items()):
            self._send_again(route, channel_id, publishes)

    def queue_down(self, route: Route) -> None:
        """Nobody serves it until a certain node is back. Who waits for its confirms waits on, and nobody else does."""
        left = {channel_id: self._leave(route, channel_id) for channel_id in list(route.unconfirmed)}
        self._credits.route_down(route)
        for channel_id, seqs in left.items():
            if seqs and (sink := self._sinks.get(channel_id)) is not None:
                sink.queue_confirmed(route.queue_id, seqs)

    def _leave(self, route: Route, channel_id: int) -> list[int]:
        """What the channel has numbered for itself waits untracked. Older than all else of it, as it is sent."""
        publishes = route.unconfirmed[channel_id]
        left = {seq: message for seq, message in publishes.items() if seq >= INTERNAL_SEQ_BASE}
        if not left:
            return []
        kept = {seq: message for seq, message in publishes.items() if seq not in left}
        if kept:
            route.unconfirmed[channel_id] = kept
        else:
            del route.unconfirmed[channel_id]
        first_unsent = route.first_unsent.get(channel_id)
        if first_unsent in left:
            del route.first_unsent[channel_id]
            if kept:
                route.first_unsent[channel_id] = next(iter(kept))
        for seqs, is_resent in _by_history(left, first_unsent if first_unsent in left else None):
            route.untracked.add(channel_id, [left[seq] for seq in seqs], is_resent=is_resent)
        return list(left)

    def say_closed(self, route: Route, channel_id: int) -> None:
        """If a master elsewhere has heard of this channel in the present session, it hears that it is gone."""
        if channel_id in route.local_channels:
            route.local_channels.discard(channel_id)
            if route.state is RouteState.OPEN:
                self._outgoing.say(route, SessionChannelClosed(route.queue_id, route.session, channel_id))

    def _send_again(self, route: Route, channel_id: int, publishes: Mapping[int, Message]) -> None:
        for chosen, is_resent in _by_history(publishes, route.first_unsent.get(channel_id)):
            if route.state is not RouteState.OPEN:
                return  # the storage of a local queue has failed: what no session has carried is still known as such
            if not is_resent:
                route.first_unsent.pop(channel_id, None)
            if chosen:
                self._send(route, channel_id, chosen, [publishes[seq] for seq in chosen], is_resent=is_resent)

    def _send(
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
            try:
                process = self._local.process(queue_id)
                assert process is not None, NO_PROCESS
                process.publish(ChannelKey(self._node, channel_id), messages, publish_seqs, is_resent=is_resent)
            except Exception as error:
                self._local.out_of_service(queue_id, error)
            self._local.touch(queue_id)
            self._credits.sent(route, channel_id, len(messages))
            return
        route.local_channels.add(channel_id)
        self._outgoing.publish(route, Publishes(channel_id, publish_seqs, messages, is_resent))
        self._credits.sent(route, channel_id, len(messages))

    def queue_deleted(self, route: Route) -> None:
        """What is under way counts as confirmed, as in the reference."""
        for channel_id, publishes in route.unconfirmed.items():
            if (sink := self._sinks.get(channel_id)) is not None:
                sink.queue_confirmed(route.queue_id, list(publishes))

    def channel_closed(self, route: Route, channel_id: int) -> None:
        """Nobody waits for the confirms any more."""
        publishes = route.unconfirmed.pop(channel_id, {})
        first_unsent = route.first_unsent.pop(channel_id, None)
        if route.state is not RouteState.OPEN:  # the messages were handed to us: still on their way
            for seqs, is_resent in _by_history(publishes, first_unsent):
                route.untracked.add(channel_id, [publishes[seq] for seq in seqs], is_resent=is_resent)


def _by_history(publishes: Mapping[int, Message], first_unsent: int | None) -> tuple[tuple[list[int], bool], ...]:
    """Which of these an earlier master was given, so that it may have delivered them, and which not.

    The former lie before ``first_unsent`` (all, if there is none). The order is that of the table: numbers begin anew
    when a channel asks for confirms.
    """
    seqs = list(publishes)
    border = len(seqs) if first_unsent is None else seqs.index(first_unsent)
    return (seqs[:border], True), (seqs[border:], False)

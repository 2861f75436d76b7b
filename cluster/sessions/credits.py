"""The credit of this node's channels towards queues, wherever their masters are (`node.flow.credit`).

The balances lie on the routes (`Route.hops`). The hop to a queue on this node is settled as soon as the queue process
has taken a batch; the hop to another node is paid when the master's `SessionCredit` arrives, or when what waits to be
sent again is answered (`cluster.sessions.backlog`). While a route is not open what is published costs, and nobody
grants. While the queue is down, though, which may be for days, the credit is what is kept of one channel for it, and
only what waits for a confirm costs: a channel that is blocked cannot be used for anything else, nor can its connection.

The link to another node is a hop of its own, in bytes, because all sessions share it: a channel that publishes over a
link on which too much waits to be sent (`Links.is_congested`), or to a queue for which something waits for the link
(`cluster.sessions.backlog`), is blocked until nothing does or the link is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cluster.sessions.routes import Route, RouteState
from node.flow.credit import Credit, FlowControl, Hop
from node.ids import ChannelKey, NodeName, QueueId
from node.queues.gateway import QueueChannelSink
from node.queues.queue_process import QueueProcess

#: A link is congested or it is not: the transport counts its bytes.
_LINK_CREDIT = Credit(1, 1)
#: What is kept of one channel for a queue that is down: more than a client leaves unconfirmed that means to hear of it.
DOWN_CREDIT = Credit(10_000, 10_000)


class ChannelCredits:
    """Changes the balances and tells the channels. ``sinks`` are the open channels, by channel id."""

    def __init__(
        self,
        node: NodeName,
        flow: FlowControl,
        sinks: Mapping[int, QueueChannelSink],
        process: Callable[[QueueId], QueueProcess | None],
        is_congested: Callable[[NodeName], bool],
    ) -> None:
        self._node = node
        self._flow = flow
        self._sinks = sinks
        self._process = process
        self._is_congested = is_congested
        #: Channels that wait for a link, by the node at its other end.
        self._link_hops: dict[NodeName, dict[int, Hop]] = {}

    def more_after(self, route: Route) -> int:
        """The steps in which the master grants."""
        return self._credit(route).more_after

    def _credit(self, route: Route) -> Credit:
        if route.is_down:
            return DOWN_CREDIT
        return self._flow.in_process if route.master == self._node else self._flow.between_nodes

    def open_channel(self, route: Route, channel_id: int) -> None:
        """The channel is about to publish: it has credit, whether the route is open or not."""
        if channel_id not in route.hops:
            route.hops[channel_id] = Hop(route.queue_id, self._credit(route))
            self._announce(route, channel_id)

    def open_route(self, route: Route) -> None:
        """A new session: nothing is in flight to its master."""
        credit = self._credit(route)
        for channel_id, hop in route.hops.items():
            self._announce(route, channel_id)
            if hop.reset(credit):
                self._sinks[channel_id].queue_hop_changed(hop)

    def route_down(self, route: Route) -> None:
        """Nobody serves the queue: the credit that was used up is given back, but for what is kept."""
        for channel_id, hop in route.hops.items():
            hop.credit = DOWN_CREDIT
            balance = DOWN_CREDIT.initial - len(route.unconfirmed.get(channel_id, ()))
            if hop.change(balance - hop.balance):
                self._sinks[channel_id].queue_hop_changed(hop)

    def _announce(self, route: Route, channel_id: int) -> None:
        """A queue on this node begins to count for the channel; elsewhere the first publish of a session does that."""
        process = self._process(route.queue_id)
        if route.master == self._node and route.state is RouteState.OPEN and process is not None:
            process.flow.begin(ChannelKey(self._node, channel_id), self._credit(route).more_after)

    def sent(self, route: Route, channel_id: int, messages: int) -> None:
        """Messages are on their way, or wait for a session; a queue on this node has taken them already."""
        if route.is_down:
            self.pay(route, channel_id, -messages)
            return
        process = self._process(route.queue_id)
        granted = 0
        if route.master != self._node:
            if route.backlog or self._is_congested(route.master):
                self._wait_for_link(route.master, channel_id)
        elif process is not None:
            granted = process.flow.take(ChannelKey(self._node, channel_id))
        self.pay(route, channel_id, granted - messages)

    def pay(self, route: Route, channel_id: int, messages: int) -> None:
        """Grants of the master, less what was sent to it."""
        hop = route.hops.get(channel_id)
        if hop is not None and hop.change(messages):
            self._sinks[channel_id].queue_hop_changed(hop)

    def _wait_for_link(self, node: NodeName, channel_id: int) -> None:
        hops = self._link_hops.setdefault(node, {})
        sink = self._sinks.get(channel_id)
        if channel_id not in hops and sink is not None:
            hop = hops[channel_id] = Hop(f"link to {node}", _LINK_CREDIT)
            hop.change(-1)
            sink.queue_hop_changed(hop)

    def link_free(self, node: NodeName) -> None:
        """Little waits to be sent to ``node`` any more, or the link is gone and what waited with it."""
        for channel_id, hop in self._link_hops.pop(node, {}).items():
            hop.reset()
            self._sinks[channel_id].queue_hop_changed(hop)

    def close_channel(self, channel_id: int) -> None:
        """It waits for nobody any more; its credit goes with the routes."""
        for hops in self._link_hops.values():
            hops.pop(channel_id, None)

    def close_route(self, route: Route) -> None:
        """The queue is deleted: nobody waits for it."""
        for channel_id, hop in route.hops.items():
            if hop.reset():
                self._sinks[channel_id].queue_hop_changed(hop)

    def check_invariants(self, route: Route) -> None:
        for hops in self._link_hops.values():
            assert hops.keys() <= self._sinks.keys(), "only open channels wait for a link"
        assert route.hops.keys() <= self._sinks.keys(), "credit is kept for open channels only"
        for hop in route.hops.values():
            assert hop.balance <= hop.credit.initial, "nobody is given back what he has not used"
        if route.is_down:
            for channel_id, hop in route.hops.items():
                kept = len(route.unconfirmed.get(channel_id, ()))
                assert hop.balance + kept == DOWN_CREDIT.initial, "for a queue that is down only what is kept counts"

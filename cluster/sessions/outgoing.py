"""`Outgoing`: what this entry node says in its sessions with masters elsewhere, at the pace of the links.

The rule is in `cluster.sessions.backlog`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cluster.sessions.backlog import Publishes
from cluster.sessions.messages import SessionMessage
from cluster.sessions.ports import Links
from cluster.sessions.routes import Route
from node.ids import NodeName, QueueId


class Outgoing:
    """Whatever is said in a session that stands passes here."""

    def __init__(self, links: Links) -> None:
        self._links = links
        #: Routes with a backlog, by the node at the other end of the link. (Dicts for their order.)
        self._waiting: dict[NodeName, dict[QueueId, Route]] = {}

    def say(self, route: Route, word: SessionMessage) -> None:
        """Anything but publishes."""
        if route.backlog:
            route.backlog.add(word)
        else:
            self._links.send(route.master, word)

    def publish(self, route: Route, publishes: Publishes) -> None:
        """As much as the link has room for; the rest waits."""
        if not route.backlog:
            while not self._links.is_congested_now(route.master):
                self._links.send(route.master, publishes.next_frame(route.queue_id, route.session))
                if publishes.is_over:
                    return
            self._waiting.setdefault(route.master, {})[route.queue_id] = route
        route.backlog.add(publishes)

    def link_free(self, node: NodeName) -> bool:
        """The link to ``node`` is congested no longer. True if that is so after all that waited for it has gone out."""
        waiting = self._waiting.get(node, {})
        while waiting:
            queue_id, route = next(iter(waiting.items()))
            while route.backlog:
                if self._links.is_congested_now(node):
                    return False
                self._links.send(node, route.backlog.next_word(queue_id, route.session))
            del waiting[queue_id]
        return not self._links.is_congested_now(node)

    def answered(self, route: Route, channel_id: int, publish_seqs: Collection[int]) -> int:
        """These go out no more, if they wait. Returns how many did."""
        forgotten = route.backlog.forget(channel_id, publish_seqs)
        if forgotten and not route.backlog:
            self._waits_no_more(route)
        return forgotten

    def session_over(self, route: Route) -> None:
        """Its backlog ends with it."""
        if route.backlog:
            self._waits_no_more(route)

    def _waits_no_more(self, route: Route) -> None:
        for waiting in self._waiting.values():
            waiting.pop(route.queue_id, None)

    def check_invariants(self, routes: Mapping[QueueId, Route]) -> None:
        waiting = {queue_id: node for node, queues in self._waiting.items() for queue_id in queues}
        backlogs = {route.queue_id: route.master for route in routes.values() if route.backlog}
        assert waiting == backlogs, "whoever has a backlog goes on when the link to its master is free, and nobody else"

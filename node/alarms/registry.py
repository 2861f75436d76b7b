"""Who in the cluster is short of what: the alarms of all nodes, as one node knows them.

A node raises and clears its own alarms; it tells every peer when a link comes up and whenever something changes, and
each node keeps what it was told last. Publishers are blocked on all nodes as long as any node that is up has an alarm:
a message published anywhere may have to be stored there.

What was said goes with whoever said it. A node that the cluster has declared down takes no messages, so its alarms do
not count. They are kept while its link is up all the same: a node that was declared down by mistake comes back without
a new link, and would not repeat itself. Once it is down *and* its link is lost, they are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from node.ids import NodeName


class Alarm(Enum):
    """What can run short. The value is the resource's name in listings and between nodes."""

    MEMORY = "memory"
    DISK = "disk"


def alarm_reason(alarms: Iterable[Alarm]) -> str:
    """What clients are told (`connection.blocked`), in the reference's words; empty if there is no alarm."""
    raised = set(alarms)
    names = " & ".join(alarm.value for alarm in Alarm if alarm in raised)
    return f"low on {names}" if names else ""


class AlarmRegistry:
    """See the module text. ``node`` is the one that keeps it."""

    __slots__ = ("_node", "_raised", "_up")

    def __init__(self, node: NodeName) -> None:
        self._node = node
        #: What each node said last; nodes without an alarm are left out.
        self._raised: dict[NodeName, frozenset[Alarm]] = {}
        #: Peers that the cluster counts as up.
        self._up: set[NodeName] = set()

    @property
    def own(self) -> frozenset[Alarm]:
        """The alarms of this node."""
        return self._raised.get(self._node, frozenset())

    @property
    def alarmed_peers(self) -> list[NodeName]:
        """Those whose alarms are kept, whether these count or not."""
        return [node for node in self._raised if node != self._node]

    def update(self, node: NodeName, alarms: Iterable[Alarm]) -> bool:
        """``node`` says which alarms it has, all of them. True if that is news."""
        said = frozenset(alarms)
        if said == self._raised.get(node, frozenset()):
            return False
        if said:
            self._raised[node] = said
        else:
            del self._raised[node]
        return True

    def node_up(self, node: NodeName) -> None:
        """The cluster counts the node as running: what it says counts."""
        self._up.add(node)

    def node_down(self, node: NodeName, *, is_linked: bool) -> None:
        """The cluster has declared a peer down."""
        if node == self._node:
            return  # it knows better, and is about to say so
        self._up.discard(node)
        if not is_linked:
            self._raised.pop(node, None)

    def link_lost(self, node: NodeName) -> None:
        """The link to a peer is gone: if it was declared down, too, it said its last."""
        if node not in self._up:
            self._raised.pop(node, None)

    def raised(self) -> list[tuple[NodeName, Alarm]]:
        """The alarms that count, by node and then in a fixed order."""
        return [
            (node, alarm)
            for node in sorted(self._raised)
            if node == self._node or node in self._up
            for alarm in Alarm
            if alarm in self._raised[node]
        ]

    @property
    def reason(self) -> str:
        """Why publishers are blocked; empty if they are not."""
        return alarm_reason(alarm for _, alarm in self.raised())

    def check_invariants(self) -> None:
        assert all(self._raised.values()), "a node without an alarm is not listed"

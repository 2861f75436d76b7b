"""Which node a client connects to, and in which order it tries the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Seconds between AMQP heartbeats: a node that stands still with open sockets is noticed within three of them.
HEARTBEAT_S = 5


@dataclass(slots=True)
class NodeRotation:
    """Endpoints of the cluster from the point of view of one client.

    ``first`` is where it connects to begin with. After a failure it goes to the next node, round and round.
    """

    names: Sequence[str]
    #: AMQP URL per node name.
    urls: Mapping[str, str]
    first: int
    _index: int = field(init=False)

    def __post_init__(self) -> None:
        assert 0 <= self.first < len(self.names), "the first node is one of the cluster's"
        self._index = self.first

    @property
    def node_id(self) -> int:
        """Index of the node to try now."""
        return self._index

    @property
    def url(self) -> str:
        """AMQP URL of the node to try now, with our heartbeat."""
        return f"{self.urls[self.names[self._index]]}?heartbeat={HEARTBEAT_S}"

    def next(self) -> None:
        """Go on to the next node."""
        self._index = (self._index + 1) % len(self.names)

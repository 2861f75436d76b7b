"""What a topology consists of, vhost by vhost, and how it is read from a snapshot piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from node.ids import QueueId
from node.pieces import Pieces
from node.topology.bindings import Bindings
from node.topology.records import BindingRecord, ExchangeRecord, QueueRecord

#: Records that are made, or let go of, in one piece: a millisecond.
RECORDS_PER_PIECE = 200


class VhostContent:
    """Content of one vhost."""

    __slots__ = ("bindings", "exchanges", "made_at_index", "queues")

    def __init__(self, made_at_index: int = 0) -> None:
        #: Index of the entry of the log that made the vhost; 0 if it is not known.
        self.made_at_index = made_at_index
        self.exchanges: dict[str, ExchangeRecord] = {}
        self.queues: dict[str, QueueRecord] = {}
        self.bindings = Bindings()


class TopologyContent:
    """All vhosts."""

    __slots__ = ("queues_by_id", "vhosts")

    def __init__(self, vhosts: dict[str, VhostContent], queues_by_id: dict[QueueId, QueueRecord]) -> None:
        self.vhosts = vhosts
        self.queues_by_id = queues_by_id

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Pieces[TopologyContent]:
        """From what `Topology.snapshot` gave, which is consumed: its lists are empty afterwards."""
        content = cls({}, {})
        for entry in data["vhosts"]:
            yield from content._read_vhost(entry)
        return content

    def _read_vhost(self, entry: Mapping[str, Any]) -> Pieces[None]:
        vhost = entry["name"]
        content = self.vhosts[vhost] = VhostContent(entry.get("made_at_index", 0))
        for plain in entry["exchanges"]:
            exchange = ExchangeRecord(vhost=vhost, **plain)
            content.exchanges[exchange.name] = exchange
        yield
        for number, plain in enumerate(entry["queues"], 1):
            queue = QueueRecord(vhost=vhost, **plain)
            content.queues[queue.name] = queue
            self.queues_by_id[queue.queue_id] = queue
            if number % RECORDS_PER_PIECE == 0:
                yield
        for number, plain in enumerate(entry["bindings"], 1):
            content.bindings.add(BindingRecord(vhost=vhost, **plain))
            if number % RECORDS_PER_PIECE == 0:
                yield

    def dissolve(self) -> Pieces[None]:
        """Nobody looks at it any more: let go of its records, piece by piece. To free many at once takes time, too."""
        while self.queues_by_id:
            for _ in range(min(RECORDS_PER_PIECE, len(self.queues_by_id))):
                queue = self.queues_by_id.popitem()[1]
                self.vhosts[queue.vhost].queues.pop(queue.name, None)
            yield
        for content in self.vhosts.values():
            while some := content.bindings.some(RECORDS_PER_PIECE):
                for binding in some:
                    content.bindings.remove(binding)
                yield

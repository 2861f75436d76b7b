"""What a mirror tells the master that attaches: what it holds where its content differs, a piece in each turn.

Reading what a segment holds takes some ten milliseconds, and one message in a hundred that differs makes nearly every
segment differ; so a mirror with millions of messages is busy for half a minute, and must hear its peers meanwhile. It
goes on with the master's operations between two pieces, too. That changes nothing of what is compared: what they settle
the master has settled before, what they publish is at or above the position that the attach named, where nothing is
described, and what is missing is not sent before the description is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cluster.mirroring.messages import SegmentHoldings
from node.ids import SeqId
from node.queues.replica import ReplicaQueue

#: Segments of one piece, if there is nothing in them. One in which something is read ends it.
PIECE_SEGMENTS = 16


class Description:
    """Of some segments of a replica, below a position; true until everything was said."""

    def __init__(self, local: ReplicaQueue, segments: Iterable[int], below: SeqId) -> None:
        self._local = local
        self._segments = deque(segments)
        self._below = below

    def __bool__(self) -> bool:
        return bool(self._segments)

    def next_piece(self) -> tuple[SegmentHoldings, ...]:
        """What the next segments hold now."""
        piece: list[SegmentHoldings] = []
        while self._segments and len(piece) < PIECE_SEGMENTS:
            segment = self._segments.popleft()
            held = tuple([holding for holding in self._local.holdings(segment) if holding.seq_id < self._below])
            piece.append(SegmentHoldings(segment, held))
            if held:
                break
        return tuple(piece)

"""Comparing what a mirror says it holds with what the master has now."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.mirroring.messages import SegmentHoldings
from cluster.mirroring.ranges import compress
from node.ids import SeqId
from node.queues.replica import ReplicaQueue, SeqRange


def compare(
    local: ReplicaQueue, below: SeqId, mismatched: Sequence[SegmentHoldings]
) -> tuple[list[SeqRange], list[SeqRange]]:
    """What the mirror lacks and what it has in excess, below the position that its attach named.

    The master has gone on since the attach: what it settled meanwhile is in excess (and the stream says so as well).
    A segment that the mirror has nothing of is not read.
    """
    lacking: list[SeqRange] = []
    extras: list[SeqRange] = []
    for holdings in mismatched:
        if not holdings.holdings:
            lacking.extend(compress(seq_id for seq_id in local.live_positions(holdings.segment) if seq_id < below))
            continue
        mine = [holding for holding in local.holdings(holdings.segment) if holding.seq_id < below]
        theirs = {holding for holding in holdings.holdings if holding.seq_id < below}
        lacking.extend(compress(h.seq_id for h in mine if h not in theirs))
        extras.extend(compress(h.seq_id for h in theirs.difference(mine)))
    return lacking, extras

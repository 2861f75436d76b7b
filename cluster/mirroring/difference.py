"""Comparing what a mirror says it holds with what the master has now."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.mirroring.messages import SegmentHoldings
from cluster.mirroring.ranges import compress
from node.ids import SeqId
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, ReplicaQueue, SeqRange


def compare(
    local: ReplicaQueue, below: SeqId, mismatched: Sequence[SegmentHoldings]
) -> tuple[list[SeqRange], list[SeqRange]]:
    """What the mirror lacks and what it has in excess, below the position that its attach named.

    The master has gone on since the attach: what it settled meanwhile is in excess (and the stream says so as well).
    A segment the mirror has nothing of and the master has all of is not read.
    """
    live = dict(local.live_counts())
    lacking: list[SeqRange] = []
    extras: list[SeqRange] = []
    for holdings in mismatched:
        first = holdings.segment * DIGEST_SEGMENT_ENTRIES
        end = SeqId(min(first + DIGEST_SEGMENT_ENTRIES, below))
        entries = live.get(holdings.segment, 0)
        if not holdings.holdings and entries == end - first == DIGEST_SEGMENT_ENTRIES:
            lacking.append(SeqRange(SeqId(first), end))
            continue
        mine = [h for h in local.holdings(holdings.segment) if h.seq_id < end] if entries else []
        theirs = set(holdings.holdings)
        lacking.extend(compress(h.seq_id for h in mine if h not in theirs))
        extras.extend(compress(h.seq_id for h in theirs.difference(mine)))
    return lacking, extras

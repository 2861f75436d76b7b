"""The digests of a queue's content by their definition (`node.queues.replica.SegmentDigest`), a position at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from node.queues.replica import SegmentDigest


def expected_digests(msg_ids: Mapping[int, bytes], segment_entries: int) -> list[SegmentDigest]:
    """``msg_ids``: of everything live, by position."""
    found: list[SegmentDigest] = []
    for segment in sorted({seq_id // segment_entries for seq_id in msg_ids}):
        digest = hashlib.blake2b(digest_size=8)
        positions = range(segment * segment_entries, (segment + 1) * segment_entries)
        for seq_id in positions:
            digest.update(msg_ids.get(seq_id, b"\0" * 16))
        entries = sum(seq_id in msg_ids for seq_id in positions)
        found.append(SegmentDigest(segment, entries, int.from_bytes(digest.digest(), "big")))
    return found

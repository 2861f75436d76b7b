"""Which publishes of one channel still wait for queues, and how much they weigh.

A publish is *confirmed* when every queue it was routed to confirmed it, and *rejected* as soon as all have answered
and one of them refused. Nearly all publishes go to one queue; for those the tracker keeps one dictionary entry (the
size, for flow control) and handles batches without a look at single messages beyond that entry. An answer about
a publish that waits for nothing is ignored: after a failover a queue may answer twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Resolved(NamedTuple):
    """Publishes that wait no longer."""

    confirmed: Sequence[int]
    rejected: Sequence[int]
    #: Size of all of them together.
    size_bytes: int


class _Fanout:
    """A publish on its way to several queues."""

    __slots__ = ("is_rejected", "waiting_queues")

    def __init__(self, waiting_queues: int) -> None:
        self.waiting_queues = waiting_queues
        self.is_rejected = False


class ConfirmTracker:
    """Unconfirmed publishes of one channel. Publish sequence numbers are positive and used once."""

    __slots__ = ("_fanouts", "_size_bytes")

    def __init__(self) -> None:
        #: Every unconfirmed publish -> its size.
        self._size_bytes: dict[int, int] = {}
        #: Those that went to more than one queue.
        self._fanouts: dict[int, _Fanout] = {}

    def __len__(self) -> int:
        return len(self._size_bytes)

    @property
    def size_bytes(self) -> int:
        """Size of all unconfirmed publishes together. Costs a walk over them."""
        return sum(self._size_bytes.values())

    def expect(self, sizes: dict[int, int]) -> None:
        """Publishes (sequence number -> size) that went to one queue each, or to more if `expect_fanout` says so."""
        self._size_bytes.update(sizes)

    def expect_fanout(self, publish_seq: int, queues: int) -> None:
        """This publish went to so many queues (at least two), each of which will answer."""
        self._fanouts[publish_seq] = _Fanout(queues)

    def confirmed(self, publish_seqs: Sequence[int]) -> Resolved:
        """One queue confirmed these."""
        done = publish_seqs if not self._fanouts else None
        failed: list[int] = []
        if done is None:
            done, failed = self._answered(publish_seqs, is_rejected=False)
        return self._resolve(done, failed)

    def rejected(self, publish_seqs: Sequence[int]) -> Resolved:
        """One queue refused these."""
        return self._resolve(*self._answered(publish_seqs, is_rejected=True))

    def _answered(self, publish_seqs: Sequence[int], is_rejected: bool) -> tuple[list[int], list[int]]:
        """Split into those that are confirmed now and those that are rejected now; the others wait on."""
        done: list[int] = []
        failed: list[int] = []
        for seq in publish_seqs:
            fanout = self._fanouts.get(seq)
            if fanout is None:
                (failed if is_rejected else done).append(seq)
                continue
            fanout.waiting_queues -= 1
            fanout.is_rejected = fanout.is_rejected or is_rejected
            if not fanout.waiting_queues:
                del self._fanouts[seq]
                (failed if fanout.is_rejected else done).append(seq)
        return done, failed

    def _resolve(self, done: Sequence[int], failed: Sequence[int]) -> Resolved:
        take = self._size_bytes.pop
        size_bytes = 0
        unknown: set[int] = set()
        for group in (done, failed):
            for seq in group:
                size = take(seq, None)
                if size is None:
                    unknown.add(seq)
                else:
                    size_bytes += size
        if unknown:
            done = [seq for seq in done if seq not in unknown]
            failed = [seq for seq in failed if seq not in unknown]
        return Resolved(done, failed, size_bytes)

    def check_invariants(self) -> None:
        for seq, fanout in self._fanouts.items():
            assert seq in self._size_bytes, "a publish to several queues is one that waits"
            assert fanout.waiting_queues > 0, "a publish that every queue answered is resolved"

"""Linearizable reads at a leader (Raft dissertation, 6.4): the leader must prove that it still was one.

A read is answered with the commit index of the time it was asked, once a majority has acknowledged a heartbeat
round that began later. A leader that has committed nothing in its term does not know yet what earlier leaders
committed: its reads wait for the no-op before their round is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.ids import NodeName

#: Reads waiting for a heartbeat round; more means that nobody answers, and the asker repeats anyway.
MAX_PENDING_READS = 4096


@dataclass(slots=True)
class PendingRead:
    asker: NodeName
    #: The asker's own number for the read.
    context: int
    #: Commit index when the read was asked; ``None`` until the leader has committed in its own term.
    index: int | None
    #: The heartbeat round a majority must acknowledge.
    round: int


class PendingReads:
    """Reads of one leader, in the order they were asked."""

    __slots__ = ("_reads",)

    def __init__(self) -> None:
        self._reads: list[PendingRead] = []

    def clear(self) -> None:
        self._reads.clear()

    def add(self, asker: NodeName, context: int, commit: int | None, last_round: int) -> bool:
        """Ask. ``commit`` is ``None`` before the term's no-op is committed. False if too many wait already."""
        if len(self._reads) >= MAX_PENDING_READS:
            return False
        self._reads.append(PendingRead(asker, context, commit, last_round + 1))
        return True

    def begin(self, commit: int, last_round: int) -> None:
        """The no-op is committed: the reads asked before it start their round now."""
        for read in self._reads:
            if read.index is None:
                read.index = commit
                read.round = last_round + 1

    def wants_round(self, last_round: int) -> bool:
        """True if a read waits for a round later than the last one begun."""
        return any(read.index is not None and read.round > last_round for read in self._reads)

    def take_answered(self, acknowledged_round: int) -> list[PendingRead]:
        """Reads whose round a majority has acknowledged."""
        if not self._reads:
            return []
        answered = [read for read in self._reads if read.index is not None and read.round <= acknowledged_round]
        self._reads = [read for read in self._reads if read.index is None or read.round > acknowledged_round]
        return answered

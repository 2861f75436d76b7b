"""How late a proposal may come: what a node forwards to its leader is good for as long as the node may wait for it.

A proposal may wait in a line that holds, or in the socket of a process that is frozen. Meanwhile its node has told
whoever asked that nobody knows whether it was done; he has looked, and done something else through another node, and a
word that comes after that undoes it. So a node says with each proposal of when it is, and a leader drops what is too
old, as if it had got lost on the way: its node repeats it, if anybody still waits.

**By which clock.** By the leader's, which is never compared with another. Its heartbeats carry stamps, and send back
what it has heard of the follower (`cluster.raft.currency`). A proposal carries the stamp of the first heartbeat that
brought the latest proof: until then the follower's words have come through, and the leader's. While a line holds in
either direction, or a process is frozen at either end, there is no new proof, so what is repeated meanwhile is as old
as what was said first, and gets too old together with it. Nothing is assumed of clocks but that they go at the same
speed, nor of links. (Refused: the stamp of the latest heartbeat and the time passed since by the follower's clock. A
node that hears its leader, and is not heard, would send copies that count as new until it gives up, and these would be
taken when the line lets go, so much later as the bound allows.)

**The bound.** Let the proof be of what the follower said at x; it came with a heartbeat stamped s, later than x. The
leader takes the proposal until s + b, with b = `RaftConfig.proposal_age_max_ms`. The follower pauses, which tells all
who wait, at x + b + e if nothing newer is proven, with e = `RaftConfig.election_timeout_min_ms`; for b is the grace of
`cluster.runtime.standing`. s - x is the way of what was said at x, two intervals of heartbeats,
and a round trip with the quickest majority: where links take milliseconds far less than e, which is a second. If it is
more than e, a word may come after the pause by so much as it is more: a second or two where links take a second each
way, or when a line that has held what was said at x lets go and holds again at once. A node that tells those who wait
because their time is up ends its repeats b earlier (`cluster.runtime.waiting_proposal`); where elections may take so
long that b is most of that time, when half of it is over: what has got lost must be said again, though it may be late.

What is in the leader's log by then is no late word: it is decided before whatever is proposed later, or never.

**Slow lines.** On the way the proposal has aged by the way of the heartbeat, up to two of its intervals, and its own
way: 2.2 s where links take a second each way, and b is 3 s. If every link does, there is a new proof only once in a
round trip; then of the repeats, two in a second, those get through that follow it within some 0.8 s. Where a line takes
1.5 s each way nothing gets through, though its node hears enough to serve clients: what they declare is not decided.

**Before the first proof** of a leader its first heartbeat in the term counts, which comes with the news that it
leads. That proves nothing of what the follower has said, so the stamp is taken for older, by as much as the latest
proof, of a leader before, is older than e: then the bound is x + b + e, as above. An election leaves a second or two of
b; if it was a long one, the proposal is dropped, and repeated after the proof, which comes some heartbeats later.

A release of before stamps no proposals; what it forwards is always taken. Nor do leaders of before stamp heartbeats.
"""

from __future__ import annotations

from cluster.raft.config import ProposalRefusedError, RaftConfig
from cluster.raft.messages import ForwardedProposal, Heartbeat
from node.ids import NodeName


class Forwarding:
    """What a follower knows of its leader's clock. See the top of this module."""

    def __init__(self, config: RaftConfig, now_ms: int) -> None:
        self._config = config
        self._started_ms = now_ms
        #: Whose heartbeats it is about, and in which term.
        self._of: tuple[NodeName, int] | None = None
        #: Of when, by the clock of that leader, a proposal is; ``None``: the leader is of a release without stamps.
        self._as_of_ms: int | None = None

    def heard(self, heartbeat: Heartbeat, now_ms: int, before_ms: int, after_ms: int) -> None:
        """As of ``before_ms`` something was proven before, as of ``after_ms`` is now; all by the own clock."""
        proven_ms = max(before_ms, self._started_ms)
        leader = (heartbeat.sender, heartbeat.term)
        is_first = leader != self._of
        self._of = leader
        if heartbeat.stamp_ms == 0:
            self._as_of_ms = None
        elif after_ms > proven_ms:
            self._as_of_ms = heartbeat.stamp_ms
        elif is_first:
            unproven_ms = now_ms - proven_ms
            self._as_of_ms = heartbeat.stamp_ms - max(0, unproven_ms - self._config.election_timeout_min_ms)

    def goes_to(self, leader: NodeName | None, term: int) -> tuple[NodeName, int] | None:
        """``leader`` and ``term``, if it was heard in this term; else ``None``."""
        return self._of if self._of is not None and self._of == (leader, term) else None

    def as_of_ms(self, leader: NodeName, term: int) -> int | None:
        """Of a proposal to this leader. Raises `ProposalRefusedError` if no heartbeat of it has come in this term."""
        if self.goes_to(leader, term) is None:
            raise ProposalRefusedError(f"{leader} leads term {term}, and has yet to be heard")
        return self._as_of_ms


def is_too_old(proposal: ForwardedProposal, now_ms: int, config: RaftConfig) -> bool:
    """By the clock of the leader, at which it has come. A stamp of later is of another clock."""
    if proposal.as_of_ms is None:
        return False
    return not -1 <= now_ms - proposal.as_of_ms <= config.proposal_age_max_ms

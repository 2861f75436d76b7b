"""What a leader knows about one follower's log, and how much it may send.

`PROBE`      the leader guesses where the logs agree: one request at a time, until one is accepted.
`REPLICATE`  they agree: requests are streamed without waiting, up to a window.
`SNAPSHOT`   the follower needs entries that are compacted: a snapshot is on its way, nothing else is sent.

``match`` is below ``next`` always: ``match`` is known to be on the follower's disk, ``next`` is what is sent next.

Of a learner it knows the *rounds*, too: whether it keeps pace with a log that grows all the time.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

#: Append requests sent and not answered. With `MAX_APPEND_BYTES` each it bounds the memory a slow follower costs.
MAX_IN_FLIGHT_REQUESTS = 32


class ProgressState(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One follower (or the leader itself, whose ``match`` is its own durable log)."""

    __slots__ = (
        "commit_sent",
        "echo_ms",
        "in_flight",
        "is_probe_sent",
        "last_heard_ms",
        "match",
        "next",
        "snapshot_passed_ms",
        "snapshot_sent_ms",
        "stamp_heard",
        "stamp_ms",
        "state",
    )

    def __init__(self, next_index: int, now_ms: int) -> None:
        self.state = ProgressState.PROBE
        #: Highest index known to be durable and equal on the follower.
        self.match = 0
        #: Index of the next entry to send.
        self.next = next_index
        #: In `REPLICATE`: last index of each request sent and not yet answered, ascending.
        self.in_flight: deque[int] = deque()
        #: In `PROBE`: a request is on its way.
        self.is_probe_sent = False
        #: Highest commit index the follower was told.
        self.commit_sent = 0
        #: When anything of the current term came from it; the leader's grace period begins at its election.
        self.last_heard_ms: int | None = now_ms
        #: The latest of the leader's stamps that it has answered, 0 if none. For this and the next two see
        #: `cluster.raft.currency`.
        self.echo_ms = 0
        #: The latest of its own stamps that may be sent back, 0 if none.
        self.stamp_ms = 0
        #: One that may not yet, behind the time when it was heard.
        self.stamp_heard: tuple[int, int] | None = None
        #: In `SNAPSHOT`: since when it is on its way; and since when there are answers to what was sent behind it.
        self.snapshot_sent_ms = 0
        self.snapshot_passed_ms: int | None = None

    def become_probe(self, next_index: int = 0) -> None:
        """Ask at ``next_index``, but not for what it is known to have."""
        self.state = ProgressState.PROBE
        self.next = max(self.match + 1, next_index)
        self.is_probe_sent = False

    def become_replicate(self) -> None:
        self.state = ProgressState.REPLICATE
        self.next = self.match + 1
        self.in_flight.clear()

    def become_snapshot(self, now_ms: int) -> None:
        self.state = ProgressState.SNAPSHOT
        self.snapshot_sent_ms = now_ms
        self.snapshot_passed_ms = None

    def is_snapshot_lost(self, now_ms: int, echo_ms: int | None, patience_ms: int) -> bool:
        """In `SNAPSHOT`: the heartbeat stamped ``echo_ms`` has been answered, and perhaps the snapshot never will be.

        It may be on its way for long, over a slow link; but a link keeps the order, so as soon as there is an answer to
        what was sent behind it, its own is due. ``None``: a release of before has answered, which says no stamp.
        """
        since_ms: int | None = self.snapshot_sent_ms
        if echo_ms is not None:
            if self.snapshot_passed_ms is None and echo_ms > self.snapshot_sent_ms + 1:
                self.snapshot_passed_ms = now_ms
            since_ms = self.snapshot_passed_ms
        return since_ms is not None and now_ms - since_ms >= patience_ms

    @property
    def is_paused(self) -> bool:
        """True if no append request may be sent now."""
        if self.state is ProgressState.REPLICATE:
            return len(self.in_flight) >= MAX_IN_FLIGHT_REQUESTS
        return self.state is ProgressState.SNAPSHOT or self.is_probe_sent

    def note_sent(self, last_index: int) -> None:
        """A request with entries up to ``last_index`` goes out."""
        if self.state is ProgressState.REPLICATE:
            self.next = last_index + 1
            self.in_flight.append(last_index)
        else:
            self.is_probe_sent = True

    def note_accepted(self, index: int) -> bool:
        """The follower holds everything up to ``index``. True if that is news."""
        is_news = index > self.match
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        while self.in_flight and self.in_flight[0] <= index:
            self.in_flight.popleft()
        return is_news

    def note_stamps(self, now_ms: int, stamp_ms: int, echo_ms: int) -> None:
        """It has answered the heartbeat stamped ``echo_ms``. What a release of before answers has no stamps."""
        if stamp_ms == 0:
            self.echo_ms = now_ms + 1
            return
        self.echo_ms = max(self.echo_ms, min(echo_ms, now_ms + 1))
        if self.stamp_heard is None:
            self.stamp_heard = (now_ms, stamp_ms)

    def note_leading(self, until_ms: int) -> None:
        """Its leader has proof of having been the only one until then."""
        if self.stamp_heard is not None and self.stamp_heard[0] <= until_ms:
            self.stamp_ms = self.stamp_heard[1]
            self.stamp_heard = None

    def forget_stamps(self) -> None:
        """Its process is gone."""
        self.echo_ms = self.stamp_ms = 0
        self.stamp_heard = None

    def check_invariants(self) -> None:
        assert self.match < self.next, "what is matched need not be sent"
        assert len(self.in_flight) <= MAX_IN_FLIGHT_REQUESTS, "the window bounds what a slow follower costs"


class Rounds:
    """How quickly a learner learns: the rule of Ongaro's thesis, section 4.2.1.

    A round is over when the learner holds all that the log had at its beginning; the next one begins as soon as
    something else is missing, which may be at once. Whose last round took less than an election timeout keeps pace: the
    vote costs the others no longer than that. It need not have everything ever, as something may always be on its way.
    Who was silent for so long has to show it again: what came meanwhile may be much.
    """

    __slots__ = ("_began_ms", "_goal", "_heard_ms", "_is_quick", "_limit_ms")

    def __init__(self, last_index: int, now_ms: int, limit_ms: int) -> None:
        """The first round begins. Rounds of ``limit_ms`` or more are too slow."""
        self._limit_ms = limit_ms
        #: What the log ended with when the round began; ``None``: nothing was missing when the learner was last heard.
        self._goal: int | None = last_index
        self._began_ms = self._heard_ms = now_ms
        #: The last round was quick, or has left nothing to be learned.
        self._is_quick = False

    def note(self, now_ms: int, match: int, last_index: int) -> None:
        """The learner was heard, and holds everything up to ``match``."""
        if self._goal is not None and match >= self._goal:
            self._is_quick = now_ms - self._began_ms < self._limit_ms or match >= last_index
            self._goal = None
        if self._goal is None and match < last_index:
            self._is_quick = self._is_quick and now_ms - self._heard_ms < self._limit_ms
            self._goal = last_index
            self._began_ms = now_ms
        self._heard_ms = now_ms

    def keeps_pace(self, now_ms: int) -> bool:
        """Its last round was quick, and the present one is not slow yet."""
        return self._is_quick and (self._goal is None or now_ms - self._began_ms < self._limit_ms)

    def check_invariants(self, match: int, last_index: int) -> None:
        assert self._goal is None or match < self._goal, "a round that is over has ended"
        assert self._goal is None or self._goal <= last_index, "nobody has to learn what is not there"

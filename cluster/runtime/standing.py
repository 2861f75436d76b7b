"""Whether this node may serve clients: it may as long as what it knows of the cluster is not too old.

**What could be lost.** A queue is deleted and declared again on one node; a client that has its declare-ok publishes to
it through another. If that other node has not applied the declaration, the message is unroutable there, and confirmed.
So before declare-ok goes out every other node must have applied the declaration, or must have stopped serving clients.

**The argument.** Two bounds hold it together, `pause_after_ms` here and `cluster.runtime.applied_watch.AppliedWatch`'s
wait, which is longer by `VISIBILITY_MARGIN_MS`. Let a change be committed at c.

- A node that is current as of any time after c (`cluster.raft.currency`) has applied it.
- One that is not is, at c + `pause_after_ms`, current as of a time that long ago, and pauses: when the timer comes that
  was set for that time (`next_look_ms`), or, if this process stood still, before it reads another word of a client
  (`is_stale`, asked by `node.amqp.server.turns`). The margin is for the timer and for the start of the wait, which is
  not before c.
- The proposer answers its client when all the others have applied the change, or after the wait: then whoever has not
  has paused. Every case of not having it is the same to this argument, because each keeps the proof from coming: no
  quorum or no leader; a leader that is heard, but only what it said long ago; a disk that refuses or does not finish
  writing the log, on a node that goes on hearing heartbeats; a snapshot that does not come to an end.
- So does a node that finds the change at hand and tells another client of it (`MetadataGroup.wait_known`): it has
  applied it, so its wait begins after c, too.

**Whom the wait leaves out.** A peer that is down in the records, and one whose link broke so long ago that it has
paused by itself if it lost everybody then; if it has begun again since, it is given that time anew. The first was
silent for `cluster.silence_timeout_ms`, which bounds `pause_after_ms` from above, or its process is gone; a living node
that refuses connections looks like that, but then its peers refuse it, too, and a node that knows a majority to be gone
pauses without waiting for anything. What remains: a node that is refused by the others while it does not refuse them,
one that loses the links to its peers one after the other and lags behind meanwhile, and one that is declared down
though it has not paused, because it was heard again before that was committed; each may serve old state for
`pause_after_ms`.

**Who has paused says so**, and is waited for no more: its disk may be full for hours, and its link is up. It serves
again when all know that they have to wait for it again, and what they have done before they knew is applied here
(`cluster.runtime.pause_notice`).

**Who was declared down** and lives is not waited for either, until the `NodeUp` by which it contradicts is applied. So
a node that has paused does not serve again before that: what was committed earlier is applied here then, and whoever
has answered for something later has applied the `NodeUp`, too, and waits.

**Alone.** A group of one is current always: nobody else can change anything. Its clients go on when its disk is full,
for only they can make room.

Under `cluster.partition_handling = ignore` nobody pauses, and the argument does not hold: that is what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import NamedTuple

from cluster.raft.core import RaftCore
from cluster.runtime.pause_notice import PauseNotice
from node.errors import StorageError
from node.ids import NodeName

#: The wait for peers to apply a change is so much longer than a node needs to find itself too old.
VISIBILITY_MARGIN_MS = 1000


#: Of a node with an empty directory.
OF_NO_CLUSTER = (
    "it is of no cluster yet: a new one is founded when all of its nodes have started, and into one that is there a "
    "node is let in by its members"
)


class Hindrance(Enum):
    """What keeps a node from being current, as `cluster_status` and scripts know it."""

    NO_QUORUM = "no_quorum"
    STORAGE = "storage"
    BEHIND = "behind"


class Pause(NamedTuple):
    """Clients are not served."""

    hindrance: Hindrance
    #: For operators, the middle of a sentence.
    reason: str
    #: By the clock of the loop.
    since_ms: int


class StandingWatch:
    """See the top of this module. Whoever has it calls `look` when `next_look_ms` says; it changes by nothing else."""

    def __init__(
        self,
        core: RaftCore,
        pause_after_ms: int,
        now_ms: int,
        notice: PauseNotice | None = None,
        is_declared_down: Callable[[], bool] = lambda: False,
    ) -> None:
        """``notice``: given to the peers of each pause; ``None`` if clients are served all the same.
        ``is_declared_down``: this node is, by what is applied here."""
        self.pause_after_ms = pause_after_ms
        self._notice = notice
        self._is_declared_down = is_declared_down
        #: What keeps this node from serving; ``None``: nothing.
        self.pause: Pause | None = None
        self._core = core
        #: Before the first proof a node counts as current as of its start: it serves nobody yet.
        self._started_ms = now_ms
        #: Peers whose processes are known to be gone (a dict for its order).
        self._gone: dict[NodeName, None] = {}

    def peer_gone(self, peer: NodeName) -> None:
        """Its process is known to be gone."""
        self._gone[peer] = None
        if self._notice is not None:
            self._notice.peer_gone(peer)

    def peer_heard(self, peer: NodeName) -> None:
        """It is not, or not any more: it has said something, or has started again, as others have heard."""
        self._gone.pop(peer, None)

    def is_stale(self, now_ms: int, applied_index: int) -> bool:
        """Too old to serve: `look` would pause."""
        return self._has_lost_majority() or self._age_ms(now_ms, applied_index) >= self.pause_after_ms

    def next_look_ms(self, applied_index: int) -> int:
        """Before this time `look` begins no pause, unless a voter is said to be gone; 0: it is to be called often."""
        if self.pause is not None or _of(self._gone, self._core.voters) or len(self._core.voters) < 2:
            return 0
        return self._current_as_of_ms(applied_index) + self.pause_after_ms

    def look(self, now_ms: int, applied_index: int, refused: StorageError | None) -> bool:
        """True if that has begun or ended a pause. ``refused``: why the disk does not take the log, if it does not."""
        if self.pause is None:
            if not self.is_stale(now_ms, applied_index):
                return False
            self.pause = self._hindrance(now_ms, applied_index, refused)
            if self._notice is not None:
                self._notice.give()
            return True
        if self._is_over(now_ms, applied_index, refused):
            self.pause = None
            return True
        self.pause = self._hindrance(now_ms, applied_index, refused)._replace(since_ms=self.pause.since_ms)
        return False

    def _is_over(self, now_ms: int, applied_index: int, refused: StorageError | None) -> bool:
        """This node is current, as of a time at which all who heed its notice had heard that it would return, and those
        who go by the records wait for it."""
        age_ms = self._age_ms(now_ms, applied_index)
        is_current = refused is None and age_ms < self.pause_after_ms // 2 and not self._has_lost_majority()
        if self._notice is None or not is_current:
            if self._notice is not None:
                self._notice.give()
            return is_current
        self._notice.take_back()
        over_ms = self._notice.over_for_all_ms(now_ms)
        return over_ms is not None and over_ms <= now_ms - age_ms and not self._is_declared_down()

    def _age_ms(self, now_ms: int, applied_index: int) -> int:
        if self._core.voters == (self._core.node,):
            return 0
        return now_ms - self._current_as_of_ms(applied_index)

    def _current_as_of_ms(self, applied_index: int) -> int:
        return max(self._started_ms, self._core.currency.as_of_ms(applied_index))

    def _has_lost_majority(self) -> bool:
        return 2 * len(_of(self._gone, self._core.voters)) >= len(self._core.voters) > 0

    def _hindrance(self, now_ms: int, applied_index: int, refused: StorageError | None) -> Pause:
        if refused is not None:
            reason = f"its disk does not take the log of the cluster's metadata ({refused})"
            return Pause(Hindrance.STORAGE, reason, now_ms)
        if not self._core.voters:
            return Pause(Hindrance.NO_QUORUM, OF_NO_CLUSTER, now_ms)
        if not self._core.has_quorum(now_ms) or self._has_lost_majority():
            return Pause(Hindrance.NO_QUORUM, "it has no quorum: it reaches no majority of the members", now_ms)
        if self._notice is not None and not self._notice.is_given and (peers := self._notice.unheard_by(now_ms)):
            reason = f"it is about to serve clients again, and has yet to hear that {', '.join(peers)} knows"
            return Pause(Hindrance.BEHIND, reason, now_ms)
        if self._is_declared_down():
            reason = "the cluster has it as down, and has yet to decide that it is up"
            return Pause(Hindrance.BEHIND, reason, now_ms)
        missing = self._core.currency.missing_index
        what = f"it has applied entry {applied_index}"
        what += "" if missing is None else f", and entry {missing} is committed"
        return Pause(Hindrance.BEHIND, f"it is behind in the log of the cluster's metadata: {what}", now_ms)

    def check_invariants(self) -> None:
        assert self._core.node not in self._gone, "this node is here"


def _of(names: Collection[NodeName], voters: Collection[NodeName]) -> list[NodeName]:
    return [name for name in names if name in voters]

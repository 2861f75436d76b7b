"""Whether the group of this node lives, when a node says that it was given up for another one, offline.

`warrenctl forget_cluster_node --offline` is the word of an operator who may have erred: the members that the survivor
forgot may be at work, and elect somebody at just this moment. So that nobody follows a leader proves nothing; a node
gives way only if nobody of its group has been found for long enough:

- *Who has followed a leader since its process began*, or has led, stays while it is linked with a majority of the
  voters that its log names, however long they elect; and for `LIFE_GRACE_MS` after it has lost both: links that were
  cut and members that are started again are back by then. If it stood still meanwhile nobody could come back to it: so
  only time counts in which it has looked, which it does about once in a second.
- *Who has just started* knows nothing of the others: they may live, or have all been started again after they were
  lost, and such ones are to elect nobody (they would be a second cluster). So it waits for its leader as long as an
  election takes, and does not stand meanwhile; its vote for another counts, and may be what the others need. If it
  stood still meanwhile (its process was stopped, its disk was slow) it has looked for nobody: of the time between two
  words of the survivor, which come about once in a second, the shortest election timeout counts at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cluster.raft.core import RaftCore
from node.ids import NodeName

#: Longer than a link, once its silence is noticed, or a process takes to come back. Who has lost its majority for good
#: has mostly done so before an operator gives anybody up; if not, it takes over what goes on so much later.
LIFE_GRACE_MS = 20_000
#: Between two looks at most so much counts.
LOOK_MAX_MS = 2000
#: An election may be tried twice.
ELECTIONS = 2


class LivingGroup:
    """See the top of this module."""

    def __init__(self, core: RaftCore, linked: Collection[NodeName], now_ms: Callable[[], int]) -> None:
        """``linked``: the peers of the group whose link is up."""
        self._core = core
        self._linked = linked
        self._now_ms = now_ms
        #: So long a node that has just started has waited for its leader, up to the last word of the survivor.
        self._waited_ms = 0
        self._asked_ms = now_ms()
        #: For so long neither a leader nor a majority was there when this node looked, the last time at ``_looked_ms``.
        self._alone_ms = 0
        self._looked_ms = now_ms()

    def look(self) -> None:
        """To be called about once in a second, and when a link is about to come up, or to go."""
        now_ms = self._now_ms()
        self._alone_ms = 0 if self.lives else self._alone_ms + min(now_ms - self._looked_ms, LOOK_MAX_MS)
        self._looked_ms = now_ms

    @property
    def lives(self) -> bool:
        """It is known to. False: it may live all the same.

        Who does not stand keeps a leader in mind that it has not heard for long.
        """
        core = self._core
        is_led = core.is_leader or core.has_quorum(self._now_ms())
        return is_led or (core.last_led_ms is not None and self._is_together)

    def gives_way(self) -> bool:
        """To a group that goes on for this one: nobody was found for long enough. To be asked at each of its words."""
        self.look()
        if self.lives:
            return False
        if self._core.last_led_ms is None:
            return self._has_waited(self._now_ms())
        return self._alone_ms >= LIFE_GRACE_MS

    def _has_waited(self, now_ms: int) -> bool:
        config = self._core.config
        wait_ms = ELECTIONS * config.election_timeout_max_ms
        self._core.wait_for_leader(now_ms + wait_ms)
        self._waited_ms += min(now_ms - self._asked_ms, config.election_timeout_min_ms)
        self._asked_ms = now_ms
        return self._waited_ms >= wait_ms

    @property
    def _is_together(self) -> bool:
        core = self._core
        return sum(name == core.node or name in self._linked for name in core.voters) >= core.log.quorum

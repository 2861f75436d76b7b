"""Time that passes, told to the queues of a node in slices.

It matters to masters that have mirrors: ten thousand of them take some tens of milliseconds, ten times a second. A
tick that finds the one before it under way adds nothing: what queues measure is seconds, and each hears of the time as
of the tick that began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager

from cluster.runtime.queue_role import MasterRole, Role
from node.ids import QueueId
from node.pieces import InTurns

#: So much of a turn goes to it.
TURN_S = 0.002


class QueueTicks:
    """``masters``: which of the roles are that of a master. ``guarded``: what one queue does wrong stays its own;
    ``touch``: it may have something to say.

    ``call_soon`` as of a loop; ``clock`` (seconds) goes on within a turn of it. A turn tells ``per_turn`` at most.
    """

    def __init__(
        self,
        roles: Mapping[QueueId, Role],
        masters: Collection[QueueId],
        guarded: Callable[[QueueId], AbstractContextManager[None]],
        touch: Callable[[QueueId], None],
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        per_turn: int,
    ) -> None:
        self._roles = roles
        self._masters = masters
        self._guarded = guarded
        self._touch = touch
        self._turns = InTurns(self._tell_next, TURN_S, call_soon, clock, per_turn)
        self._now_ms = 0
        #: Of the tick that is under way. Some may have left meanwhile.
        self._due: deque[QueueId] = deque()

    def tick(self, now_ms: int) -> None:
        """Throttled synchronisation goes on, stalled mirrors are noticed."""
        if not self._due:
            self._now_ms = now_ms
            self._due.extend(self._masters)
            self._turns.go_on()

    def _tell_next(self) -> bool:
        if not self._due:
            return False
        queue_id = self._due.popleft()
        role = self._roles.get(queue_id)
        if isinstance(role, MasterRole) and role.mirrored.wants_tick:
            with self._guarded(queue_id):
                role.mirrored.tick(self._now_ms)
                if role.mirrored.wants_turn:
                    self._touch(queue_id)
        return True

    def check_invariants(self) -> None:
        assert not self._due or self._turns.is_under_way, "who is to be told has a turn coming"

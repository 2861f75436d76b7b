"""Links that came and went, told to the queues of this node in slices.

Every queue is to hear of a link, and ten thousand of them take a tenth of a second. Some hear of it at once, the others
in the next turns. To a queue it is as if it had heard at once: whoever is about to call it, or to take from it what it
has to say, has it catch up first (`LinkNews.catch_up`). So what comes over a new link meets no queue that believes in
the old one, and nothing of the old conversation goes out over the new link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from node.ids import NodeName, QueueId
from node.pieces import InTurns

#: So much of a turn goes to the news.
TURN_S = 0.002


class LinkNews:
    """See the top of this module. ``tell`` does not raise, and knows what to do if the queue is gone.

    ``call_soon`` as of a loop; ``clock`` (seconds) goes on within a turn of it. A turn tells ``per_turn`` at most.
    """

    def __init__(
        self,
        tell: Callable[[QueueId, NodeName, bool], None],
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        per_turn: int,
    ) -> None:
        self._tell = tell
        self._turns = InTurns(self._tell_next, TURN_S, call_soon, clock, per_turn)
        #: What each queue has yet to hear, in its order: who, and whether the link came up. (Also looked at by who asks
        #: whether there is anything.)
        self.pending: dict[QueueId, list[tuple[NodeName, bool]]] = {}
        #: In which they hear it. Some may have caught up.
        self._order: deque[QueueId] = deque()

    def came(self, node: NodeName, queue_ids: Iterable[QueueId], *, is_up: bool) -> None:
        """These are to hear of the link to ``node``."""
        pending = self.pending
        for queue_id in queue_ids:
            pending.setdefault(queue_id, []).append((node, is_up))
            self._order.append(queue_id)
        self._turns.go_on()

    def catch_up(self, queue_id: QueueId) -> None:
        """This queue hears now what it has yet to hear."""
        for node, is_up in self.pending.pop(queue_id, ()):
            self._tell(queue_id, node, is_up)

    def forget(self, queue_id: QueueId) -> None:
        """There is nobody to hear it any more."""
        self.pending.pop(queue_id, None)

    def _tell_next(self) -> bool:
        if not self._order:
            return False
        self.catch_up(self._order.popleft())
        return True

    def check_invariants(self) -> None:
        assert not self.pending or self._turns.is_under_way, "what is to be told has a turn coming"
        assert self.pending.keys() <= set(self._order), "and a place in it"

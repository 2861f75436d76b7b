"""What the log says of mirrors that do not answer: one line per node now and then, and of each mirror once.

A link that is cut silences a mirror of every queue, thousands perhaps, and each of their masters says so again every
few seconds until the mirror is dropped, or answers. While this node has no majority it can have nothing dropped, and
the log has said why: then nothing is said here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from node.ids import NodeName, QueueId

log = logging.getLogger(__name__)

#: Queues that a line names.
NAMED_MAX = 3
#: A mirror that was silent, and of which no more was heard in so many looks (a minute), has answered: twice the time
#: after which a master says it again.
QUIET_LOOKS = 12


class StalledMirrors:
    """``describe``: a queue as the log calls it."""

    def __init__(self, describe: Callable[[QueueId], str]) -> None:
        self._describe = describe
        self._looks = 0
        #: When its silence was last heard of, by the number of the look.
        self._silent: dict[tuple[QueueId, NodeName], int] = {}
        #: Those that the log does not have yet.
        self._untold: dict[NodeName, dict[QueueId, None]] = {}

    def stalled(self, queue_id: QueueId, node: NodeName) -> None:
        """The mirror of a queue on this node does not answer, and is about to be dropped."""
        key = queue_id, node
        if key not in self._silent:
            self._untold.setdefault(node, {})[queue_id] = None
        self._silent[key] = self._looks

    def dropped(self, queue_id: QueueId, node: NodeName) -> None:
        """It was: when it is silent after that, it has been taken back meanwhile."""
        self._silent.pop((queue_id, node), None)

    def look(self, *, has_quorum: bool) -> None:
        """Every few seconds."""
        self._looks += 1
        untold, self._untold = self._untold, {}
        if not has_quorum:
            self._silent.clear()
            return
        for node, queues in sorted(untold.items()):
            named = [self._describe(queue_id) for queue_id in sorted(queues)[:NAMED_MAX]]
            more = len(queues) - len(named)
            text = ", ".join(named) + (f" and {more} more" if more else "")
            log.info("%s does not answer as a mirror of %s: the cluster is asked to go on without it", node, text)
        if self._silent:
            oldest = self._looks - QUIET_LOOKS
            self._silent = {key: look for key, look in self._silent.items() if look >= oldest}

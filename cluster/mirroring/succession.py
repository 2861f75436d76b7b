"""Whether a master that was promoted may yet hear how far the one before it has delivered.

Whoever ceases to be the master because the record names another says so to its mirrors, the new master among them
(`cluster.mirroring.messages`, *End*). It says it when it has applied that record, which may be a little after the new
one has. A master in service cannot use it any more: what it has delivered meanwhile was flagged by the horizon. So it
waits with taking service, for a round trip as a rule: if the master before was moved, and is a mirror now that has been
linked ever since it was heard last. One that died, or was restarted, has nothing to say, and is not waited for.
"""

from __future__ import annotations

from node.ids import Epoch, NodeName, SeqId

#: Who applies commits says it in the same turn. Of whom nothing is heard for so long something else is the matter;
#: then what the horizon says must do.
END_TIMEOUT_MS = 500


class Succession:
    """Of one promoted master, after the one on ``node``, of ``epoch``."""

    __slots__ = ("_since_ms", "delivered_below", "epoch", "is_awaited", "node")

    def __init__(self, node: NodeName, epoch: Epoch, delivered_below: SeqId, *, is_awaited: bool) -> None:
        """``delivered_below``: what was flagged in the copy here before the promotion stays so."""
        self.node = node
        self.epoch = epoch
        self.delivered_below = delivered_below
        #: Service can wait for what the other has to say.
        self.is_awaited = is_awaited
        #: When time was first told.
        self._since_ms: int | None = None

    def heard(self) -> None:
        """It has said it, or will not."""
        self.is_awaited = False

    def tick(self, now_ms: int) -> None:
        """Time passes."""
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms >= END_TIMEOUT_MS:
            self.is_awaited = False

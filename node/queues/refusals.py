"""What a queue has refused (overflow ``reject-publish``), so that it is not taken for accepted when it is sent again.

A refusal may be lost with the link to the publisher's node, which sends the publish again. By then the queue may have
accepted later ones of the same origin, whose high-water mark (`node.queues.origins`) covers it: taken for a duplicate
it would be confirmed, and be nowhere. A queue process knows what it refused itself; what an earlier master has refused
nobody knows, so a replica that is promoted decides by content (`cluster.mirroring.promotion`).
"""

from __future__ import annotations

from collections.abc import Iterable

from node.ids import MsgId

#: The last so many, some two megabytes. What a publisher may not have heard of is among them: its credit bounds what it
#: sends before it hears.
REFUSED_MAX = 16_384


class Refusals:
    """Ids of messages that were refused and have not come again since."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        #: The earliest first. (A dict for its order.)
        self._ids: dict[MsgId, None] = {}

    def add(self, msg_ids: Iterable[MsgId]) -> None:
        """These are refused."""
        ids = self._ids
        ids.update(dict.fromkeys(msg_ids))
        while len(ids) > REFUSED_MAX:
            del ids[next(iter(ids))]

    def take(self, msg_id: MsgId) -> bool:
        """This one comes, and is decided on anew. True if it was refused before."""
        return self._ids.pop(msg_id, self) is not self

    def forget(self, msg_ids: Iterable[MsgId]) -> None:
        """These come, and are new whatever was refused: they are decided on anew."""
        for msg_id in msg_ids:
            self._ids.pop(msg_id, None)

    def __bool__(self) -> bool:
        return bool(self._ids)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if there are too many."""
        assert len(self._ids) <= REFUSED_MAX, "what is remembered is bounded"

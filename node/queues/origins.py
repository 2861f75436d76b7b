"""Which publishes a queue has accepted: a high-water mark per origin, since ids of one origin arrive in growing order.

`ORIGINS_MAX` origins are remembered, the least recently used is forgotten first; a publish that is sent again after
that is accepted twice, which is the safe side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from node.ids import ORIGIN_BYTES, MsgId, OriginId, split_msg_id

#: An origin is one publishing channel; a queue with more of them than this at a time is rare, and the table stays below
#: a megabyte.
ORIGINS_MAX = 4096


class Origins:
    """Last accepted id of each origin."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        #: Least recently used first.
        self.last: dict[OriginId, MsgId] = {}

    def is_known(self, msg_id: MsgId) -> bool:
        """True if this id, or a later one of its origin, was accepted."""
        return msg_id <= self.last.get(OriginId(msg_id[:ORIGIN_BYTES]), b"")

    def accept(self, msg_ids: Sequence[MsgId]) -> None:
        """Move the marks, and the origins to the recently used end. Ids of one origin are ascending."""
        last = self.last
        recent: dict[OriginId, MsgId] = {}
        for msg_id in msg_ids:
            recent[msg_id[:ORIGIN_BYTES]] = msg_id  # type: ignore[index]  # an OriginId by its definition
        for origin, msg_id in recent.items():
            known = last.pop(origin, b"")
            last[origin] = msg_id if msg_id > known else MsgId(known)
        while len(last) > ORIGINS_MAX:
            del last[next(iter(last))]

    def accept_any(self, msg_ids: Iterable[MsgId]) -> None:
        """The same for ids of a sync batch, in any order, which may be older than what is known."""
        highest: dict[OriginId, MsgId] = {}
        for msg_id in msg_ids:
            origin = OriginId(msg_id[:ORIGIN_BYTES])
            if msg_id > highest.get(origin, b""):
                highest[origin] = msg_id
        self.accept(list(highest.values()))

    def counters(self) -> Mapping[OriginId, int]:
        """Highest accepted counter per origin."""
        return {origin: split_msg_id(msg_id)[1] for origin, msg_id in self.last.items()}

    def merge(self, counters: Mapping[OriginId, int]) -> None:
        """Raise the marks to at least these."""
        self.accept([MsgId(origin + counter.to_bytes(8, "big")) for origin, counter in counters.items()])

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the table is too large."""
        assert len(self.last) <= ORIGINS_MAX, "remembered origins are bounded"

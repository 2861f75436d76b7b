"""Whether a master may serve: what the record lets it do, and when to ask for more.

A master that was merely elected touches nothing (`cluster.metadata.mastership`, rules 1 and 2). It asks to take
service, and asks again each time the record counts on a complete copy that is not among its mirrors. A proposal may be
lost with a Raft leader, so what the record does not show yet is said again.
"""

from __future__ import annotations

from cluster.metadata.mastership import is_settled
from cluster.metadata.records import MastershipRecord

#: A proposal may be lost with a Raft leader: say again.
REPORT_REPEAT_MS = 1_000


class Service:
    """Of one master. Call `follow` with every record, `take_request` when something can be said."""

    __slots__ = ("_asked_ms", "_is_asked", "may_confirm", "may_deliver")

    def __init__(self, record: MastershipRecord) -> None:
        self.follow(record)

    def follow(self, record: MastershipRecord) -> None:
        """A commit changed the record."""
        #: The master is in service: mirrors may be attached, messages delivered.
        self.may_deliver = record.in_service
        #: And every complete copy is its own or a mirror's.
        self.may_confirm = is_settled(record)
        self._is_asked = False
        self._asked_ms: int | None = None

    def take_request(self) -> bool:
        """True once per record that does not let the master confirm: it should be proposed that it takes service."""
        if self.may_confirm or self._is_asked:
            return False
        self._is_asked = True
        return True

    @property
    def wants_turn(self) -> bool:
        """True if `take_request` has something to say."""
        return not self.may_confirm and not self._is_asked

    def tick(self, now_ms: int) -> None:
        """Time passes: what was asked for and not granted is asked for again."""
        if not self._is_asked:
            return
        if self._asked_ms is None:
            self._asked_ms = now_ms
        elif now_ms - self._asked_ms >= REPORT_REPEAT_MS:
            self._asked_ms = now_ms
            self._is_asked = False

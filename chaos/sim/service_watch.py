"""Who has served the queues, and whether all that the cluster has decided about its nodes was in order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from cluster.metadata.events import Event, MastershipChanged, MemberChanged, QueueCreated
from cluster.metadata.records import MastershipRecord


class Service(NamedTuple):
    """From a moment on, in microseconds, a queue was served by this node."""

    at_us: int
    epoch: int
    master: str
    #: The mirrors that the last record of this service calls synchronised, and since when it does.
    heirs: Mapping[str, int] = MappingProxyType({})


class Services:
    """Who has served which queue, as the cluster has decided it, and what was not in order."""

    def __init__(self) -> None:
        #: By the identity of the queue, in the order of time.
        self.of_queues: dict[int, list[Service]] = {}
        #: When somebody was taken for dead or forgotten, or something was lost.
        self.unrest: list[int] = []

    def decided(self, event: Event, now_us: int) -> None:
        """Once for each event, in the order of the log."""
        match event:
            case QueueCreated():
                self._is_now(event.mastership, now_us)
            case MastershipChanged():
                if event.new.lossy_promotions > event.old.lossy_promotions:
                    self.unrest.append(now_us)
                self._is_now(event.new, now_us)
            case MemberChanged():
                if event.new is None or not (event.new.is_up or event.is_stopped):
                    self.unrest.append(now_us)

    def _is_now(self, record: MastershipRecord, now_us: int) -> None:
        if not record.in_service:
            return
        services = self.of_queues.setdefault(record.queue_id, [])
        is_same = bool(services) and services[-1].epoch == record.epoch
        before = services.pop() if is_same else Service(now_us, record.epoch, record.master)
        heirs: dict[str, int] = {mirror: before.heirs.get(mirror, now_us) for mirror in record.synchronised}
        services.append(before._replace(heirs=heirs))

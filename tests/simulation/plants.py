"""Safeguards of the product, each taken away by a function: what is left is a defect that it once had, or could have.

By name, as the stored schedules refer to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import MetadataState
from cluster.mirroring import mirror
from cluster.mirroring.confirms import ConfirmLedger
from cluster.mirroring.mirror import MirrorReplica
from cluster.mirroring.service import Service
from cluster.runtime.queue_deletions import QueueDeletions
from cluster.sessions.consumers import ChannelConsumers
from cluster.sessions.messages import SessionCall
from cluster.sessions.routes import ConsumerKey, Route
from node.ids import NodeName, SeqId
from node.queues.events import ConsumerSpec
from node.topology.records import QueueRecord


def orphaned_consumer(planting: pytest.MonkeyPatch) -> None:
    """The simulator's first find: a master that knew only a consumer of a channel, because it was attached again after
    its session broke, was not told when the channel closed."""

    def attach_silently(self: ChannelConsumers, route: Route, key: ConsumerKey, spec: ConsumerSpec) -> None:
        call_id = next(self._here.call_ids)
        route.attaching[call_id] = key
        call = SessionCall(route.queue_id, route.session, call_id, "consume", key.channel.channel_id, spec)
        self._here.links.send(route.master, call)

    planting.setattr(ChannelConsumers, "_attach_elsewhere", attach_silently)


def confirms_before_mirrors(planting: pytest.MonkeyPatch) -> None:
    """A confirm waits for the disk of the master and for nobody else."""
    release = ConfirmLedger.release
    endless = float("inf")
    planting.setattr(ConfirmLedger, "release", lambda self, _applied, _durable: release(self, endless, endless))


def confirms_without_complete_copies(planting: pytest.MonkeyPatch) -> None:
    """A master in service confirms although a complete copy is not among its mirrors."""
    follow = Service.follow

    def hurry(self: Service, record: MastershipRecord) -> None:
        follow(self, record)
        self.may_confirm = record.in_service

    planting.setattr(Service, "follow", hurry)


def promotion_without_flags(planting: pytest.MonkeyPatch) -> None:
    """What an earlier master may have delivered is delivered as if it were new."""
    planting.setattr(mirror, "possibly_delivered_below", lambda *_: SeqId(0))


def restart_unnoticed(planting: pytest.MonkeyPatch) -> None:
    """A mirror in a new life is still taken for the one that had everything in its memory."""

    def believe(self: MetadataState, queue: QueueRecord, node: NodeName) -> None:
        record = self.masterships[queue.queue_id]
        if record.master == node:
            self._follow(queue, replace(record), "master_restarted")

    planting.setattr(MetadataState, "_restarted_unnoticed", believe)


def origins_believed_too_early(planting: pytest.MonkeyPatch) -> None:
    """A mirror that lacks messages takes their second sending for a repetition."""
    promote = MirrorReplica.promote

    def trust(self: MirrorReplica, *args: Any, **kwargs: Any) -> Any:
        self._complete()
        return promote(self, *args, **kwargs)

    planting.setattr(MirrorReplica, "promote", trust)


def auto_delete_forgotten(planting: pytest.MonkeyPatch) -> None:
    """That a queue has had consumers was known to those who had them, and to their master."""

    async def keep_to_itself(_self: QueueDeletions, _queue: QueueRecord) -> None: ...

    planting.setattr(QueueDeletions, "note_consumer", keep_to_itself)


PLANTS: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    plant.__name__: plant
    for plant in (
        orphaned_consumer,
        confirms_before_mirrors,
        confirms_without_complete_copies,
        promotion_without_flags,
        restart_unnoticed,
        origins_believed_too_early,
        auto_delete_forgotten,
    )
}

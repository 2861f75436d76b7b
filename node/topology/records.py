"""What the topology holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.ids import QueueId, QueueName
from node.topology.commands import DestinationKind


@dataclass(frozen=True, slots=True)
class ExchangeRecord:
    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueueRecord:
    queue_id: QueueId
    vhost: str
    name: str
    durable: bool
    exclusive_owner: str | None
    auto_delete: bool
    arguments: Mapping[str, Any]
    #: Of an auto-delete queue: somebody has consumed it, or was about to, so that it goes when nobody does.
    was_consumed: bool = False

    @property
    def queue_name(self) -> QueueName:
        return QueueName(self.vhost, self.name)


@dataclass(frozen=True, slots=True)
class BindingRecord:
    vhost: str
    source: str
    destination: str
    destination_kind: DestinationKind
    routing_key: str
    arguments: Mapping[str, Any]

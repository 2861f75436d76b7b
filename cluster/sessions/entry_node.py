"""`EntryNode`: what the parts of one entry node share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from cluster.sessions.outgoing import Outgoing
from cluster.sessions.ports import EntryEffect, LocalQueues
from node.ids import NodeName
from node.queues.gateway import QueueChannelSink


@dataclass(frozen=True, slots=True)
class EntryNode:
    """See the top of this module."""

    name: NodeName
    local: LocalQueues
    outgoing: Outgoing
    emit: Callable[[EntryEffect], None]
    #: The open channels, by channel id.
    sinks: dict[int, QueueChannelSink] = field(default_factory=dict)
    call_ids: Iterator[int] = field(default_factory=count)

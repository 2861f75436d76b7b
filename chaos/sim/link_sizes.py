"""Links of which little may wait, and whatever is measured by them: all of it is smaller alike."""

from __future__ import annotations

from types import ModuleType

from chaos.sim import carrier
from cluster.mirroring import conversations, turn
from cluster.runtime import records, switchboard
from cluster.sessions import backlog
from cluster.transport import outbox
from cluster.transport.outbox import OutboxLimits
from node.amqp import grants
from node.queues import consumers, queue_process

#: What is measured by `OutboxLimits.congested_bytes`.
MEASURED = (
    (outbox, "MAX_FRAME_BYTES"),
    (switchboard, "UNSAID_BYTES_MAX"),
    (backlog, "FRAME_BYTES_MAX"),
    (turn, "FRAME_BYTES_MAX"),
    (conversations, "SYNC_BATCH_BYTES"),
    (records, "WINDOW_BYTES"),
    (queue_process, "DISPATCH_BYTES_MAX"),
    (consumers, "DELIVERY_WINDOW_BYTES"),
    (grants, "DELIVERY_WINDOW_BYTES"),
    (carrier, "WINDOW_BYTES"),
    (carrier, "WINDOW_STEP_BYTES"),
)


def link_limits(link_bytes: int) -> OutboxLimits:
    """Of links that are congested above so many bytes; as ever if 0."""
    limits = OutboxLimits()
    if not link_bytes:
        return limits
    return OutboxLimits(link_bytes, limits.overflow_bytes * link_bytes // limits.congested_bytes)


def sizes_of_links(link_bytes: int) -> list[tuple[ModuleType, str, int]]:
    """What is to be as large as it is beside such links: 0, as ever."""
    congested_bytes = OutboxLimits().congested_bytes
    return [(module, name, getattr(module, name) * link_bytes // congested_bytes) for module, name in MEASURED]

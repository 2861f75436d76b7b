"""Where the master of a new queue goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.policy.placement import preferred_master_nodes
from node.ids import NodeName
from node.queues.options import queue_settings
from node.topology.records import QueueRecord

DEFAULT_MASTER_LOCATOR = "client-local"


def locate_master(
    queue: QueueRecord,
    definition: Mapping[str, Any],
    origin: NodeName,
    running: Sequence[NodeName],
    master_count: Mapping[NodeName, int],
) -> NodeName:
    """Node of a new queue's master: by ``x-queue-master-locator``, the policy, or where it was declared.

    ``definition``: of the queue's policy. ``master_count``: masters per node; a node that it lacks has none.
    """
    settings = queue_settings(queue.arguments, definition)
    candidates = preferred_master_nodes(definition, sorted(running)) or [origin]
    locator = settings.get("queue-master-locator", DEFAULT_MASTER_LOCATOR)
    if locator == "min-masters":
        return min(candidates, key=lambda node: (master_count.get(node, 0), node))
    if locator == "random":
        # Evenly spread, and the same on every node: a multiplicative hash of the queue's id.
        return candidates[(queue.queue_id * 0x9E3779B1 >> 7) % len(candidates)]
    is_restricted = definition.get("ha-mode") == "nodes"
    return origin if origin in candidates or not is_restricted else candidates[0]

"""``ha-mode: exactly``: a fixed number of replicas, the master included.

Present mirrors stay as long as there is room. RabbitMQ cuts a surplus off the young end whoever is synchronised; here
unsynchronised mirrors go first, since they are worth nothing yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.policy.suggestion import CurrentPlacement, Suggestion
from node.ids import NodeName


def suggest_nodes(params: Any, current: CurrentPlacement, running: Sequence[NodeName]) -> Suggestion:
    room = params - 1
    mirrors = list(current.mirrors)
    for node in [*reversed([node for node in mirrors if node not in current.synchronised]), *reversed(mirrors)]:
        if len(mirrors) > room and node in mirrors:
            mirrors.remove(node)
    candidates = [node for node in running if node != current.master and node not in mirrors]
    return Suggestion(current.master, (*mirrors, *candidates[: room - len(mirrors)]))

"""``ha-mode: exactly``: a fixed number of replicas, the master included.

Present mirrors stay as long as there is room. RabbitMQ cuts a surplus off the young end whoever is synchronised; here
those go first that are worth nothing yet, then those that lack only what a restart loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.policy.suggestion import CurrentPlacement, Suggestion
from node.ids import NodeName


def suggest_nodes(params: Any, current: CurrentPlacement, running: Sequence[NodeName]) -> Suggestion:
    room = params - 1
    mirrors = list(current.mirrors)
    by_worth = sorted(reversed(mirrors), key=lambda node: (node in current.synchronised, node in current.complete))
    for node in by_worth[: max(0, len(mirrors) - room)]:
        mirrors.remove(node)
    candidates = [node for node in running if node != current.master and node not in mirrors]
    return Suggestion(current.master, (*mirrors, *candidates[: room - len(mirrors)]))

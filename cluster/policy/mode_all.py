"""``ha-mode: all``: a replica on every running node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.policy.suggestion import CurrentPlacement, Suggestion, keep_order
from node.ids import NodeName


def suggest_nodes(params: Any, current: CurrentPlacement, running: Sequence[NodeName]) -> Suggestion:
    return Suggestion(current.master, keep_order(current, [node for node in running if node != current.master]))

"""``ha-mode: nodes``: replicas on the listed nodes, as far as they run.

A master that is not listed stays, beside the listed mirrors, until one of them is synchronised; then that one takes
over and the old master goes. So a change of policy never throws away the only complete copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.policy.suggestion import CurrentPlacement, Suggestion, keep_order
from node.ids import NodeName


def suggest_nodes(params: Any, current: CurrentPlacement, running: Sequence[NodeName]) -> Suggestion:
    listed = [NodeName(node) for node in dict.fromkeys(params) if node in running]
    if not listed:
        return Suggestion(current.master, ())
    if current.master in listed:
        master = current.master
    else:
        master = next((node for node in listed if node in current.synchronised), current.master)
    return Suggestion(master, keep_order(current, [node for node in listed if node != master]))

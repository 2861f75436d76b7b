"""Where a mirrored queue should live: one function per ``ha-mode``, each in its own file, chosen here by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster.policy import mode_all, mode_exactly, mode_nodes
from cluster.policy.suggestion import CurrentPlacement, Suggestion
from cluster.policy.validation import problem_of_mode
from node.ids import NodeName

_MODES: Mapping[str, Callable[[Any, CurrentPlacement, Sequence[NodeName]], Suggestion]] = {
    "all": mode_all.suggest_nodes,
    "exactly": mode_exactly.suggest_nodes,
    "nodes": mode_nodes.suggest_nodes,
}


def suggest_nodes(definition: Mapping[str, Any], current: CurrentPlacement, running: Sequence[NodeName]) -> Suggestion:
    """Master and mirrors that a policy's definition asks for; no ``ha-mode``: the master alone.

    ``running`` are the nodes that are up, the preferred ones first. A mode that cannot be used counts as absent.
    """
    if problem_of_mode(definition):
        return Suggestion(current.master, ())
    return _MODES[definition["ha-mode"]](definition.get("ha-params"), current, running)


def preferred_master_nodes(definition: Mapping[str, Any], running: Sequence[NodeName]) -> list[NodeName]:
    """Nodes among which the locator chooses the master of a new queue: the running ones that a ``nodes`` policy lists,
    in its order, or all running ones."""
    if definition.get("ha-mode") == "nodes" and not problem_of_mode(definition):
        listed = [NodeName(node) for node in definition.get("ha-params", ()) if node in running]
        if listed:
            return listed
    return list(running)

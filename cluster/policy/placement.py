"""Where a mirrored queue should live: what each ``ha-mode`` asks for, and where a new queue begins.

All of it is pure: a definition, where the queue is now and who runs go in, a suggestion comes out. Whether and when the
suggestion is followed is `cluster.metadata.mastership`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cluster.policy.validation import problem_of_mode
from node.ids import NodeName


class CurrentPlacement(NamedTuple):
    """Where a queue is now. ``mirrors`` oldest first, ``synchronised`` a subset in the same order."""

    master: NodeName
    mirrors: tuple[NodeName, ...] = ()
    synchronised: tuple[NodeName, ...] = ()
    #: Nodes whose copy has everything that survives a restart; the synchronised mirrors are among them.
    complete: tuple[NodeName, ...] = ()


class Suggestion(NamedTuple):
    """Where it should be. Mirrors that stay keep their order, new ones follow."""

    master: NodeName
    mirrors: tuple[NodeName, ...]


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


def _all(_params: Any, current: CurrentPlacement, running: Sequence[NodeName]) -> Suggestion:
    """A replica on every running node."""
    return Suggestion(current.master, _keep_order(current, [node for node in running if node != current.master]))


def _exactly(params: Any, current: CurrentPlacement, running: Sequence[NodeName]) -> Suggestion:
    """A fixed number of replicas, the master included.

    Present mirrors stay as long as there is room. RabbitMQ cuts a surplus off the young end whoever is synchronised;
    here those go first that are worth nothing yet, then those that lack only what a restart loses.
    """
    room = params - 1
    mirrors = list(current.mirrors)
    by_worth = sorted(reversed(mirrors), key=lambda node: (node in current.synchronised, node in current.complete))
    for node in by_worth[: max(0, len(mirrors) - room)]:
        mirrors.remove(node)
    candidates = [node for node in running if node != current.master and node not in mirrors]
    return Suggestion(current.master, (*mirrors, *candidates[: room - len(mirrors)]))


def _nodes(params: Any, current: CurrentPlacement, running: Sequence[NodeName]) -> Suggestion:
    """Replicas on the listed nodes, as far as they run.

    A master that is not listed stays, beside the listed mirrors, until one of them is synchronised; then that one takes
    over and the old master goes. So a change of policy never throws away the only complete copy.
    """
    listed = [NodeName(node) for node in dict.fromkeys(params) if node in running]
    if not listed:
        return Suggestion(current.master, ())
    if current.master in listed:
        master = current.master
    else:
        master = next((node for node in listed if node in current.synchronised), current.master)
    return Suggestion(master, _keep_order(current, [node for node in listed if node != master]))


def _keep_order(current: CurrentPlacement, wanted: list[NodeName]) -> tuple[NodeName, ...]:
    """``wanted`` with the present mirrors first, in their order."""
    staying = [node for node in current.mirrors if node in wanted]
    return (*staying, *(node for node in wanted if node not in staying))


_MODES: Mapping[str, Callable[[Any, CurrentPlacement, Sequence[NodeName]], Suggestion]] = {
    "all": _all,
    "exactly": _exactly,
    "nodes": _nodes,
}

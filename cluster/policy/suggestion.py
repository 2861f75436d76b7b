"""What a placement function is told and what it answers."""

from __future__ import annotations

from typing import NamedTuple

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


def keep_order(current: CurrentPlacement, wanted: list[NodeName]) -> tuple[NodeName, ...]:
    """``wanted`` with the present mirrors first, in their order."""
    staying = [node for node in current.mirrors if node in wanted]
    return (*staying, *(node for node in wanted if node not in staying))

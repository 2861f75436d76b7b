"""Process ids as an operator's listings print them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PID_NODE = re.compile(r"<?(?:[^@<>]*@)?([^.@<>]+)")


def node_of_pid(pid: object) -> str | None:
    """Node name in a process id as listings print it: ``<n1.1.34.0>``, ``rabbit@n1`` or plain ``n1``."""
    match = _PID_NODE.match(str(pid)) if pid else None
    return match.group(1) if match else None


def nodes_of_pids(cell: object) -> tuple[str, ...]:
    """Node names of a list of process ids, in its order; a listing may print the list as text."""
    if not cell:
        return ()
    items: Sequence[object] = str(cell).strip("[]").split(",") if isinstance(cell, str) else list(cell)  # type: ignore[call-overload]
    nodes = (node_of_pid(str(item).strip()) for item in items)
    return tuple(node for node in nodes if node)

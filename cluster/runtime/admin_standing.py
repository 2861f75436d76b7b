"""What a node that does not serve clients tells operators about that, and what it refuses them.

Without a quorum a node answers out of what it last knew: after a restart that is nothing at all, and then every vhost
seems not to exist. So whatever is about the cluster's metadata is refused, as the reference's paused node refuses it,
with the reason; `cluster_status`, `status` and what concerns the node itself are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from cluster.runtime.node_runtime import NodeRuntime
from cluster.runtime.standing import OF_NO_CLUSTER, Hindrance
from cluster.transport.admin_port import AdminRefused, ExitCode

#: A change that is under way is given up soon after a node has found itself without a quorum.
LOOK_S = 0.25
_STARTING = "starting"
_WITHOUT_IT = (
    "to found it without a node, stop the others, take that one off their lists of nodes, and start them again"
)


_Result = TypeVar("_Result")


class JoinedClients(Protocol):
    """The clients of the node (`cluster.runtime.client_service.ClientService`)."""

    @property
    def has_roles(self) -> bool:
        """The node has joined its cluster."""


class AdminStanding:
    """See the top of this module."""

    def __init__(self, runtime: NodeRuntime, clients: JoinedClients) -> None:
        self._runtime = runtime
        self._clients = clients

    def document(self) -> dict[str, Any] | None:
        """A JSON object; ``None`` if the node has all that it needs to serve clients."""
        runtime, has_roles = self._runtime, self._clients.has_roles
        pause = runtime.metadata.consensus.pause
        if pause is None and has_roles:
            return None
        linked = runtime.links.linked_nodes()
        if pause is None:
            kind, seconds = _STARTING, None
            reason = "it has not joined the cluster yet, which takes a majority of the members"
        else:
            kind, reason, seconds = (
                pause.hindrance.value,
                pause.reason,
                max(0, runtime.now_ms() - pause.since_ms) // 1000,
            )
        return {
            "hindrance": kind,
            "reason": reason,
            "seconds": seconds,
            "reaches": sorted(linked),
            "lacks": [name for name in runtime.member_names() if name not in (runtime.node, *linked)],
            "serves_clients": has_roles and not runtime.config.pauses_minority,
        }

    @property
    def has_no_quorum(self) -> bool:
        """What this node knows of who is up is old."""
        pause = self._runtime.metadata.consensus.pause
        return pause is not None and pause.hindrance is Hindrance.NO_QUORUM

    def require(self) -> None:
        """Raises `AdminRefused` if this node cannot answer for the cluster."""
        document = self.document()
        if document is not None and not document["serves_clients"]:
            raise AdminRefused(ExitCode.TEMPORARY, standing_text(self._runtime.node, document))

    def require_majority(self, way_out: str) -> None:
        """Raises `AdminRefused`, with what to do, while this node reaches no majority and hears of nothing decided.

        ``way_out``: of a node that has a cluster.
        """
        if self.has_no_quorum and (document := self.document()) is not None:
            if document["reason"] == OF_NO_CLUSTER:
                way_out = _WITHOUT_IT
            raise AdminRefused(ExitCode.TEMPORARY, f"{standing_text(self._runtime.node, document)}; {way_out}")

    async def decided(self, change: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """What a change results in, unless this node pauses, or begins to while it waits. Raises `AdminRefused`."""
        self.require()
        task = asyncio.ensure_future(change())
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                document = self.document()
                if not task.done() and document is not None:
                    text = standing_text(self._runtime.node, document)
                    raise AdminRefused(ExitCode.TEMPORARY, f"{text}; it is not known whether the change will be made")
        finally:
            task.cancel()
        return await task


def standing_text(node: str, document: dict[str, Any]) -> str:
    """One sentence. (`cluster.cli.reports` has the words for a terminal.)"""
    duration = "" if document["seconds"] is None else f" for {document['seconds']} s"
    state = "serves clients, but" if document["serves_clients"] else f"is paused{duration}:"
    if document["hindrance"] == _STARTING:
        state = "is not ready:"
    reaches, lacks = (", ".join(document[key]) or "nobody" for key in ("reaches", "lacks"))
    return f"node {node} {state} {document['reason']} (it reaches {reaches}, and lacks {lacks})"

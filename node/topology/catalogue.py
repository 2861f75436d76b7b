"""How a broker reads and changes the topology, without knowing whether it is alone or in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from node.errors import AmqpError
from node.topology.commands import TopologyCommand
from node.topology.topology import Topology


class Catalogue(Protocol):
    """Topology as this node knows it, and the one way to change it."""

    @property
    def topology(self) -> Topology:
        """Local replica, read only. Reads are as new as the last change this node has applied."""

    async def submit(self, command: TopologyCommand) -> Any:
        """Carry out a change; returns after this node has applied it.

        Returns what `Topology.apply` returns (for `DeclareQueue` the `QueueRecord`). Raises `ChannelError` or
        `ConnectionFailure` when the change is refused, `ConnectionFailure` 541 if no quorum can be had in time,
        `QueueMovedError` if the ``epoch`` of a `DeleteQueue` is over.
        """

    async def submit_all(self, commands: Sequence[TopologyCommand]) -> list[AmqpError | None]:
        """Carry out changes of different things, side by side; says of each whether, and by what, it was refused."""

    async def wait_known(self) -> None:
        """Until all nodes that serve clients know what `topology` has now. It may have been declared a moment ago, by
        somebody else who waits for the same; whoever is told that it exists may publish to it through any of them."""

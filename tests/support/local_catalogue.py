"""A catalogue of a broker that is alone: changes apply at once, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.runtime.metadata_group import refusals_of
from node.errors import AmqpError
from node.ids import QueueId
from node.topology.commands import CreateVhost, TopologyCommand
from node.topology.topology import Topology


class LocalCatalogue:
    """Implements `Catalogue`. A new topology begins with the vhost ``/``."""

    def __init__(self, topology: Topology | None = None) -> None:
        if topology is None:
            topology = Topology()
            topology.apply(CreateVhost("/"))
        self._topology = topology
        self._last_queue_id = max((queue.queue_id for queue in topology.all_queues()), default=0)

    @property
    def topology(self) -> Topology:
        return self._topology

    def apply(self, command: TopologyCommand) -> Any:
        """`submit` for those who cannot wait; same result, same errors."""
        # Every command takes a number, so an identity is never used twice even if the command is refused.
        self._last_queue_id += 1
        return self._topology.apply(command, QueueId(self._last_queue_id))

    async def submit(self, command: TopologyCommand) -> Any:
        return self.apply(command)

    async def submit_all(self, commands: Sequence[TopologyCommand]) -> list[AmqpError | None]:
        return await refusals_of(self.submit, commands)

    async def wait_known(self) -> None:
        """There is nobody else."""

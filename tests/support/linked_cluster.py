"""A cluster of real processes whose links can be cut, one by one (`tests.support.relays`).

Each node is configured to find the others at relays of its own. It would rather believe where they say they are, so
each says that it is where nobody listens: then the configuration counts (`cluster.runtime.group_members`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.cluster_under_test.local import LocalCluster, render_config
from chaos.cluster_under_test.readiness import answers_amqp
from cluster.directory import ClusterDirectory
from cluster.transport.admin_client import AdminError
from node.config import parse_address
from tests.support.live_cluster import FAST_DETECTION, LiveCluster
from tests.support.relays import Relays
from tests.support.waiting import eventually


class _RelayedProcesses(LocalCluster):
    """The relays refuse whoever dials a node that is gone."""

    def __init__(self, directory: ClusterDirectory) -> None:
        super().__init__(directory)
        addresses = [text for entry in directory.nodes for text in (entry.amqp_address, entry.cluster_address)]
        self.relays = Relays(
            {entry.name: entry.cluster_address for entry in directory.nodes},
            taken=[parse_address(text).port for text in addresses],
        )

    def configure(self, settings: Sequence[str]) -> None:
        """Write every node's configuration, with the addresses that it finds the others at."""
        for entry in self.directory.nodes:
            lines = [*settings, f"cluster.advertised_address={self.relays.nowhere(entry.name)}"]
            for number, other in enumerate(self.nodes, 1):
                if other != entry.name:
                    address = self.relays.address(entry.name, other)
                    lines.append(f"cluster_formation.classic_config.nodes.{number}={other}@{address}")
            text = render_config(self.directory, entry, lines)
            self.directory.config_path(entry.name).write_text(text, encoding="utf-8")

    async def kill(self, node: str) -> None:
        self.relays.close_ports(node)
        await super().kill(node)

    async def stop(self, node: str) -> None:
        self.relays.close_ports(node)
        await super().stop(node)

    async def restart(self, node: str) -> None:
        if self.is_running(node):
            await self.stop(node)
        self.relays.open_ports(node)
        await super().restart(node)


class LinkedCluster(LiveCluster):
    """Use `run_linked_cluster`."""

    def __init__(self, local: _RelayedProcesses) -> None:
        super().__init__(local)
        self.links = local.relays

    def status(self, node: str) -> dict[str, Any]:
        """What a node says of the cluster; nothing if it does not answer at the moment."""
        try:
            with self.admin(node) as client:
                return client.cluster_status()
        except AdminError:
            return {}

    def is_serving(self, node: str) -> bool:
        """Clients may connect there."""
        return asyncio.run(answers_amqp(parse_address(self.local.directory.node(node).amqp_address)))

    def wait_only_these_serve(self, *nodes: str) -> None:
        def serving() -> list[str]:
            return [node for node in self.nodes if self.is_serving(node)]

        eventually(lambda: serving() == sorted(nodes), f"only {', '.join(nodes) or 'no nodes'} serve")

    def wait_whole(self) -> None:
        """Until every node serves, counts all as running, follows the same leader and knows of no partition."""

        def is_whole() -> bool:
            seen = [self.status(node) for node in self.nodes]
            return (
                all(each.get("running_nodes") == list(self.nodes) for each in seen)
                and not any(each["partitions"] or each["paused"] for each in seen)
                and len({each["leader"] for each in seen}) == 1
                and all(self.is_serving(node) for node in self.nodes)
            )

        eventually(is_whole, "the cluster is whole")

    def repair(self) -> None:
        """Heal every link, start what is down, and wait until nothing is left of what a test did."""
        self.links.heal()
        self.all_up()
        self.wait_whole()
        with self.admin() as client:
            for row in client.list_queues("/", ["name"]).as_dicts():
                client.delete_queue("/", row["name"])


@contextmanager
def run_linked_cluster(path: Path, *settings: str, node_count: int = 3) -> Iterator[LinkedCluster]:
    """As `tests.support.live_cluster.run_cluster`."""
    lines = [*FAST_DETECTION, *settings]
    local = _RelayedProcesses.create(path, node_count, settings=lines)
    assert isinstance(local, _RelayedProcesses)

    async def start() -> None:
        local.configure(lines)
        await local.start()
        await local.wait_ready()

    try:
        asyncio.run(start())
        cluster = LinkedCluster(local)
        cluster.wait_whole()
        yield cluster
    finally:
        local.relays.heal()
        local.kill_all()
        asyncio.run(local.close())
        local.relays.close()

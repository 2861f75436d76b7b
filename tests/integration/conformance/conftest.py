"""What a test leaves is gone with it, however it ends: links that were cut, and writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.countdown_clients import Writers
from tests.support.linked_cluster import LinkedCluster

#: Gives writers of a queue through every node, all of which have been confirmed something.
WriteThroughAll = Callable[[str], Writers]


@pytest.fixture
def cluster(running: LinkedCluster) -> Iterator[LinkedCluster]:
    """That of the module, whole."""
    running.repair()
    yield running
    running.links.heal()


@pytest.fixture
def write_through_all(cluster: LinkedCluster) -> Iterator[WriteThroughAll]:
    begun: list[Writers] = []

    def begin(queue: str) -> Writers:
        writers = Writers(cluster, cluster.nodes, queue)
        begun.append(writers)
        writers.wait_progress(*cluster.nodes)
        return writers

    yield begin
    cluster.links.heal()
    for writers in begun:
        writers.stop()

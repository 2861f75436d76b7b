"""One cluster per module, and where the client and the queue stand in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.live_cluster import LiveCluster, run_cluster


class Stage(NamedTuple):
    """Queues are declared at ``home``, so their masters are there; the program under test runs at ``node``."""

    cluster: LiveCluster
    home: str
    node: str
    #: Put before the names of queues: the policy of the mirrored runs matches it.
    prefix: str

    def name(self, text: str) -> str:
        return self.prefix + text

    @property
    def url(self) -> str:
        return self.cluster.url(self.node)

    @property
    def home_url(self) -> str:
        return self.cluster.url(self.home)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        # Queues that the server names are matched as well: exclusive ones have to take no notice of it.
        running.set_policy("ha-all", r"^(ha|amq)\.", ha_mode="all")
        yield running


@pytest.fixture(params=["n1", "n2"], ids=["master-here", "master-elsewhere"])
def node(request: pytest.FixtureRequest) -> str:
    """Where the client is connected."""
    return str(request.param)


@pytest.fixture(params=["plain.", "ha."], ids=["plain", "mirrored"])
def stage(request: pytest.FixtureRequest, cluster: LiveCluster, node: str) -> Stage:
    assert request.node.originalname is not None
    return Stage(cluster, "n1", node, f"{request.param}{node}.{request.node.originalname}.")

"""N4 and N5 of the conformance cases on five real processes: exactly a majority goes on.

See `tests.integration.conformance.test_cut_links`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.linked_cluster import LinkedCluster, run_linked_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedCluster]:
    with run_linked_cluster(tmp_path_factory.mktemp("cluster"), node_count=5) as cluster:
        yield cluster


def test_n5_of_five_exactly_a_majority_goes_on_when_links_are_cut(cluster: LinkedCluster) -> None:
    cluster.links.isolate("n1", "n2")
    cluster.wait_only_these_serve("n3", "n4", "n5")
    cluster.links.cut("n3", "n4")
    cluster.links.cut("n3", "n5")
    cluster.wait_only_these_serve()
    cluster.links.heal()
    cluster.wait_whole()


def test_n4_of_five_exactly_a_majority_goes_on_when_nodes_die(cluster: LinkedCluster) -> None:
    cluster.kill_and_notice("n1")
    cluster.kill_and_notice("n2")
    cluster.wait_only_these_serve("n3", "n4", "n5")
    cluster.kill("n3")
    cluster.wait_only_these_serve()
    cluster.restart("n2")
    cluster.wait_only_these_serve("n2", "n4", "n5")
    cluster.restart("n1", "n3")
    cluster.wait_whole()

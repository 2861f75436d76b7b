"""What must never come from a node whose disk was wiped in a cluster that was founded before."""

from __future__ import annotations

from chaos.sim.cluster import SimulatedCluster


def check_wiped(cluster: SimulatedCluster) -> None:
    """It has no part in anything, until its disk is found again."""
    for name, node in cluster.nodes.items():
        if cluster.machines[name].disk_before is None:
            continue
        core = node.raft.core
        assert core.log.last_index == 0, f"{name} has lost its disk, and is given nothing under its name"
        assert core.voted_for is None, f"{name} has lost its disk, and does not vote"

"""What a node knows of the life of a peer that has ended, when the peer has come back and cannot be linked with yet."""

from __future__ import annotations

from random import Random

from chaos.sim.cluster import SimulatedCluster
from chaos.sim.convergence import why_not_converged
from chaos.sim.drawing import draw_personality
from chaos.sim.loop import SimulatedLoop
from node.ids import NodeName

NAMES = ("n1", "n2", "n3", "n4")


def test_a_process_that_is_gone_does_not_count_as_gone_when_the_peer_has_started_again(
    quiet_loop: SimulatedLoop,
) -> None:
    """n1 and n2 are cut off from each other, n3 is down, and n4 leads: that is a majority, of which n1 is part."""
    cluster = SimulatedCluster(quiet_loop, draw_personality(Random(1), len(NAMES)), 1)

    def pass_time(seconds: float) -> None:
        quiet_loop.run_until(quiet_loop.now_s + seconds)

    for name in NAMES:
        cluster.start(name)
    pass_time(30)
    assert not why_not_converged(cluster)
    leader = next(node for node in cluster.nodes.values() if node.raft.core.is_leader)
    if leader is not cluster.nodes["n4"]:
        leader.raft.transfer(NodeName("n4"))
    pass_time(5)
    assert cluster.nodes["n4"].raft.core.is_leader
    cluster.kill("n2")
    pass_time(2)
    for source, target in (("n1", "n2"), ("n2", "n1")):
        cluster.cut(source, target)
    cluster.start("n2")
    pass_time(10)
    assert cluster.nodes["n1"].runtime.metadata.state.members[NodeName("n2")].is_up
    cluster.kill("n3")
    pass_time(10)
    assert cluster.nodes["n4"].raft.core.is_leader
    assert cluster.nodes["n1"].raft.pause is None
    assert cluster.nodes["n1"].clients.is_serving

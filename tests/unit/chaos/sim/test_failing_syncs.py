"""A sync that fails ends the node, whoever asked for it and whatever it was of."""

from __future__ import annotations

import pytest

from chaos.sim.loop import SimulatedLoop
from tests.support.sim_lab import PATIENCE_S, Lab


@pytest.mark.parametrize("place", ["/raft/", "/queues/"])
def test_a_node_ends_by_one_failed_sync(quiet_loop: SimulatedLoop, place: str) -> None:
    lab = Lab(quiet_loop)
    lab.found()
    lab.set_policy("n1", {"ha-mode": "all"})
    lab.cluster.fail_sync("n3", place)
    lab.declare("n1", "q")
    lab.publish("n1", "q", 3)
    lab.pass_time(PATIENCE_S)
    [end] = lab.ends_of("n3")
    assert "the disk failed, this node stops: fsync of" in end
    assert place in end
    lab.start("n3")
    lab.until_converged()

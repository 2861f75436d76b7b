"""A link of which one half cannot be opened is given up by both ends, and tried again at once."""

from __future__ import annotations

from node.ids import NodeName
from tests.support.sim_lab import Lab


def test_an_opener_whose_peer_cannot_dial_back_does_not_wait_for_the_handshake_to_time_out(lab: Lab) -> None:
    lab.found()
    lab.pass_time(1)
    lab.cluster.refuse("n3", "n2")
    lab.cluster.reset("n2", "n3", "both", 0)
    lab.pass_time(0.2)
    assert NodeName("n3") not in lab.cluster.nodes["n2"].mesh.up_peers
    lab.cluster.refuse_end("n3", "n2")
    lab.pass_time(2)
    assert NodeName("n3") in lab.cluster.nodes["n2"].mesh.up_peers

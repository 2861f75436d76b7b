"""A mirror that was dropped, and has everything still, when its master dies before it goes on without it."""

from __future__ import annotations

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.runtime.service_requests import ServiceRequests
from node.ids import NodeName
from tests.support.sim_lab import Lab

MESSAGES = 20


def test_a_dropped_mirror_that_has_everything_goes_before_one_that_only_follows(
    founded_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = founded_lab
    lab.set_policy("n1", {"ha-mode": "nodes", "ha-params": ["n1", "n2"]})
    lab.declare("n1", "q")
    lab.until_converged()
    lab.publish("n1", "q", MESSAGES)
    lab.set_policy("n1", {"ha-mode": "all", "ha-sync-mode": "manual"})
    if (leader := lab.leader()) != "n3":
        lab.cluster.nodes[leader].raft.transfer(NodeName("n3"))
    lab.pass_time(2)
    record = lab.record("n3", "q")
    assert record is not None
    assert (record.synchronised, record.following) == (("n2",), ("n2", "n3"))
    ask, is_asked = ServiceRequests.ask, []

    def kill(requests: ServiceRequests, of: MastershipRecord) -> None:
        if of.master == "n1":
            is_asked.append(True)
            lab.loop.call_soon(lab.cluster.kill, "n1")
        ask(requests, of)

    monkeypatch.setattr(ServiceRequests, "ask", kill)
    lab.cluster.cut("n1", "n2")
    lab.cluster.cut("n2", "n1")
    lab.pass_time(15)
    assert is_asked
    lab.pass_time(10)
    record = lab.record("n3", "q")
    assert record is not None
    assert (record.master, record.lossy_promotions) == ("n2", 0)
    assert lab.ready("n3", "q") == MESSAGES

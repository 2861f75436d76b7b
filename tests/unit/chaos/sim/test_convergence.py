"""What the end of a simulated run expects of a cluster that is sound."""

from __future__ import annotations

from chaos.sim.convergence import masters
from cluster.metadata.commands import ChangeTopology
from node.ids import NodeName
from node.topology.commands import DeclareQueue
from tests.support.sim_lab import Lab


def test_only_queues_of_the_workload_are_to_stay_where_they_are(founded_lab: Lab) -> None:
    """Whether a client has consumed an auto-delete queue nobody knows if it was not answered: it may stay or go."""
    lab = founded_lab
    lab.declare("n1", "q0")
    lab.change("n1", ChangeTopology(DeclareQueue("/", "k0.1", durable=True, auto_delete=True), NodeName("n1")))
    lab.until_converged()
    record = lab.record("n1", "q0")
    assert record is not None
    assert masters(lab.cluster) == {record.queue_id: (record.master, record.epoch)}

"""Whole simulated clusters on their way from the release before to this one."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from chaos.sim.client import Channel
from chaos.sim.drawing import draw_schedule
from chaos.sim.loop import SimulatedLoop
from chaos.sim.machine import DATA_DIR
from chaos.sim.run import run_schedule
from chaos.sim.schedule import Step
from cluster.metadata.commands import AdmitNode, ChangeTopology, DropMirror, RaiseProtocol
from cluster.metadata.protocol import ClusterProtocol
from cluster.runtime.identity import IDENTITY_FILE, read_identity
from cluster.runtime.protocol_watch import ProtocolWatch
from node.ids import Incarnation, NodeName
from node.store.disk.disk import write_durably
from node.topology.commands import DeclareQueue
from tests.support.sim_lab import NAMES, PATIENCE_S, Lab
from tests.support.simulated import schedule

IDENTITY_PATH = f"{DATA_DIR}/{IDENTITY_FILE}"
#: Virtual: by then whoever stops has stopped, whoever starts serves, and what is decided is known to all.
REST_S = 15.0


class ReleaseLab(Lab):
    """All nodes are up, those of ``earlier`` with the release before."""

    def __init__(self, loop: SimulatedLoop, earlier: tuple[str, ...] = NAMES) -> None:
        super().__init__(loop, earlier=earlier)
        self.found()

    def upgrade(self, name: str) -> None:
        self.cluster.upgrade(name)
        self.pass_time(5)
        self.until_converged()

    def downgrade(self, name: str) -> None:
        self.cluster.downgrade(name)
        self.pass_time(5)
        self.until_converged()

    def have_lead(self, name: str) -> None:
        (leader,) = (node for node in self.cluster.nodes.values() if node.raft.core.is_leader)
        if leader is not self.cluster.nodes[name]:
            leader.raft.transfer(NodeName(name))
        self.pass_time(5)
        assert self.cluster.nodes[name].raft.core.is_leader

    def protocols(self) -> set[int]:
        return {node.runtime.metadata.state.protocol for node in self.cluster.nodes.values()}

    def held_back_by(self, name: str) -> list[str]:
        return list(self.cluster.nodes[name].runtime.metadata.held_back_by())

    def last_end_of(self, name: str) -> str:
        return self.ends_of(name)[-1]


@pytest.fixture
def loop(quiet_loop: SimulatedLoop) -> SimulatedLoop:
    return quiet_loop


def test_the_protocol_rises_with_the_last_node(loop: SimulatedLoop) -> None:
    lab = ReleaseLab(loop)
    assert lab.protocols() == {2}
    lab.upgrade("n2")
    assert lab.held_back_by("n2") == ["n1 still runs protocol 2", "n3 still runs protocol 2"]
    lab.upgrade("n3")
    assert lab.protocols() == {2}
    assert lab.held_back_by("n3") == ["n1 still runs protocol 2"]
    lab.upgrade("n1")
    assert lab.protocols() == {3}
    assert lab.held_back_by("n1") == []


def test_consumers_from_before_it_rises_are_noted_when_it_does(loop: SimulatedLoop) -> None:
    """Otherwise who knows of them may be lost with one machine, however long after the upgrade."""
    lab = ReleaseLab(loop)
    lab.upgrade("n2")
    lab.upgrade("n3")
    lab.change("n2", ChangeTopology(DeclareQueue("/", "q", durable=True, auto_delete=True), NodeName("n2")))

    async def consume(channel: Channel) -> None:
        await channel.consume("q", "t")
        await asyncio.Event().wait()

    consuming = lab.begin_to_use("n2", consume)
    lab.upgrade("n1")
    assert not consuming.done()
    for node in lab.cluster.nodes.values():
        queue = node.runtime.metadata.topology.queue("/", "q")
        assert queue is not None
        assert queue.was_consumed


def test_a_new_cluster_has_the_newest_protocol_at_once(loop: SimulatedLoop) -> None:
    assert ReleaseLab(loop, earlier=()).protocols() == {3}


def test_a_node_that_is_away_holds_it_back(loop: SimulatedLoop) -> None:
    """It may come back with any release."""
    lab = ReleaseLab(loop)
    lab.cluster.stop("n3")
    lab.cluster.upgrade("n1")
    lab.cluster.upgrade("n2")
    lab.pass_time(PATIENCE_S)
    assert lab.protocols() == {2}
    assert lab.held_back_by("n1") == ["n3 is not running"]
    lab.cluster.upgrade("n3")
    lab.cluster.start("n3")
    lab.until_converged()
    assert lab.protocols() == {3}


def test_until_the_last_node_is_upgraded_all_can_go_back(loop: SimulatedLoop) -> None:
    lab = ReleaseLab(loop)
    for name in ("n1", "n2"):
        lab.upgrade(name)
    for name in ("n2", "n1"):
        lab.downgrade(name)
    assert lab.protocols() == {2}
    assert lab.cluster.machines["n1"].speaks_protocol == 2


def test_what_the_release_before_leaves_without_a_mirror_has_one_when_all_are_upgraded(loop: SimulatedLoop) -> None:
    lab = ReleaseLab(loop)
    lab.set_policy("n1", {"ha-mode": "exactly", "ha-params": 2})
    lab.declare("n1", "q")
    lab.until_converged()
    record = lab.record("n1", "q")
    assert record is not None
    lab.change("n1", DropMirror(record.queue_id, record.epoch, *record.mirrors))
    lab.until_converged()
    record = lab.record("n1", "q")
    assert record is not None
    assert record.mirrors == ()
    for name in NAMES:
        lab.upgrade(name)
    record = lab.record("n1", "q")
    assert record is not None
    assert len(record.mirrors) == 1


def test_then_nobody_can(loop: SimulatedLoop) -> None:
    """The directory itself says so, before anything else of the node is seen by others."""
    lab = ReleaseLab(loop, earlier=())
    machine = lab.cluster.machines["n3"]
    assert b"protocol = 3\n" in lab.identity("n3")
    machine.speaks_protocol = 2
    lab.cluster.stop("n3")
    lab.pass_time(REST_S)
    lab.cluster.start("n3")
    lab.pass_time(REST_S)
    assert "cannot start" in lab.last_end_of("n3")
    assert "needs protocol 3, of a newer release of Warren" in lab.last_end_of("n3")
    assert machine.process is None


def test_a_newcomer_that_asked_just_before_it_rose_is_told_what_to_do(
    loop: SimulatedLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for who is no member yet: to let it in can be decided right behind the new protocol (441951710)."""
    lab = ReleaseLab(loop, earlier=("n3",))
    caplog.set_level(logging.WARNING)
    lab.lose_disk("n3")
    lab.pass_time(10)
    lab.forget("n3", at="n1")
    lab.pass_time(REST_S)
    assert lab.protocols() == {3}
    lab.start("n3")
    lab.pass_time(REST_S)
    machine = lab.cluster.machines["n3"]
    identity = read_identity(machine.disk, DATA_DIR)
    assert identity is not None
    lab.change("n1", AdmitNode(NodeName("n3"), identity.identity, str(machine.config.cluster_advertised_address)))
    lab.pass_time(REST_S)
    assert not lab.cluster.nodes["n3"].clients.is_serving
    assert "refused by the peer: n3 speaks protocol 2, and the cluster needs 3 at least: start n3 with" in caplog.text
    lab.cluster.upgrade_newcomers()
    lab.pass_time(5)
    lab.until_converged()
    assert lab.protocols() == {3}


def test_the_log_says_so_too(loop: SimulatedLoop) -> None:
    """As after a loss of power just before the directory could have it noted."""
    lab = ReleaseLab(loop, earlier=())
    machine = lab.cluster.machines["n3"]
    lab.cluster.kill("n3")
    identity = lab.identity("n3").decode().splitlines()[2:]
    identity[0] = identity[0].replace("directory", "identity")
    write_durably(machine.disk, IDENTITY_PATH, "".join(f"{line}\n" for line in identity).encode())
    machine.speaks_protocol = 2
    lab.cluster.start("n3")
    lab.pass_time(REST_S)
    assert "the log of the metadata needs protocol 3" in lab.last_end_of("n3")
    machine.speaks_protocol = 3
    lab.cluster.start("n3")
    lab.until_converged()
    assert b"protocol = 3\n" in lab.identity("n3")


def test_a_node_stops_at_what_it_does_not_know_and_the_others_go_on(loop: SimulatedLoop) -> None:
    lab = ReleaseLab(loop, earlier=())
    for name in ("n1", "n2"):
        lab.cluster.machines[name].speaks_protocol = 4
        lab.cluster.stop(name)
        lab.pass_time(1)
        lab.cluster.start(name)
        lab.pass_time(REST_S)
    assert lab.protocols() == {3}
    lab.have_lead("n3")  # a follower may be cut off before it hears that it is decided
    node, process = lab.cluster.nodes["n1"], lab.cluster.machines["n1"].process
    assert process is not None
    members = node.runtime.metadata.state.members
    lives = tuple((NodeName(name), Incarnation(members[NodeName(name)].incarnation)) for name in NAMES)
    process.create_task(node.runtime.metadata.change(RaiseProtocol(4, lives)))
    lab.pass_time(REST_S)
    assert "this node stops: the log of the metadata needs protocol 4" in lab.last_end_of("n3")
    assert "upgrade this node" in lab.last_end_of("n3")
    assert sorted(lab.cluster.nodes) == ["n1", "n2"]
    assert lab.protocols() == {4}
    assert all(node.clients.is_serving for node in lab.cluster.nodes.values())
    lab.cluster.machines["n3"].speaks_protocol = 4
    lab.cluster.start("n3")
    lab.until_converged()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 16])
def test_nothing_is_lost_on_the_way(seed: int) -> None:
    """A seed of the campaign in which all nodes are upgraded, one after the other, among faults."""
    schedule = draw_schedule(seed)
    assert schedule.personality.earlier == NAMES
    upgrades = tuple(Step(at_ms, "upgrade", (name,)) for at_ms, name in ((4_000, "n2"), (8_000, "n1"), (12_000, "n3")))
    kept = tuple(step for step in schedule.steps if step.kind not in ("upgrade", "downgrade"))
    steps = tuple(sorted((*kept, *upgrades), key=lambda step: step.at_ms))
    outcome = run_schedule(replace(schedule, steps=steps))
    assert outcome.violations == []
    assert "the protocol of the cluster was raised" in outcome.sightings


def test_a_protocol_that_rises_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a leader of the new release takes all for its like."""
    monkeypatch.setattr(ProtocolWatch, "_newest_of_all", lambda watch: watch._spoken)
    mixed = schedule((500, "kill", "n1"), (1_500, "start", "n1"), earlier=("n1",))
    said = {violation.kind: violation.text for violation in run_schedule(mixed).violations}
    assert "of n1 is known" in said["protocol"]


def test_a_protocol_that_never_rises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProtocolWatch, "_newest_of_all", lambda _watch: 0)
    (violation,) = run_schedule(schedule()).violations
    assert "the protocol is 2, and every node speaks 3" in violation.text


def test_metadata_that_depends_on_the_release_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what only the new release remembers is in its snapshots before all have it."""
    snapshot = ClusterProtocol.snapshot
    monkeypatch.setattr(
        ClusterProtocol, "snapshot", lambda versions: {**snapshot(versions), "release": versions._spoken}
    )
    mixed = schedule((1_000, "upgrade", "n1"), earlier=NAMES)
    assert "replicas" in [violation.kind for violation in run_schedule(mixed).violations]

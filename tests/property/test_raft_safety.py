"""Raft's safety and liveness under random faults.

Each seed is one history: nodes crash and restart, links are cut and lossy, disks are slow, leaders are told to hand
over, logs are compacted. `RaftNetwork` asserts the safety properties of the paper after every event; here the liveness
after healing is asserted, and that nothing acknowledged is missing.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from cluster.raft.core import ProposalRefusedError
from node.ids import NodeName
from tests.support.amounts import few_fast
from tests.support.raft_network import RaftNetwork

FAULT_STEPS = 60


def _fault(network: RaftNetwork, rng: Random, names: list[str]) -> None:
    up = [name for name in names if network.nodes[name].core is not None]
    match rng.randrange(11):
        case 0 | 1 if up:
            victim = rng.choice(up)
            network.crash(victim)
            for other in up:
                if other != victim and rng.random() < 0.5:
                    network.call(other, lambda core: core.peer_down(network.now_ms, NodeName(victim)))
        case 2 | 3:
            for name in names:
                if network.nodes[name].core is None:
                    network.start(name)
        case 4:
            shuffled = rng.sample(names, len(names))
            split = rng.randrange(len(names))
            network.partition(shuffled[:split], shuffled[split:])
        case 5:
            network.cut = {(rng.choice(names), rng.choice(names)) for _ in range(3)}
        case 6:
            network.cut = set()
            network.loss = rng.choice([0.0, 0.05, 0.3])
            network.duplication = rng.choice([0.0, 0.1])
            network.delay_max_ms = rng.choice([5, 50, 300])
            network.disk_delay_max_ms = rng.choice([1, 20, 100])
        case 7 if (leader := network.leader()) is not None:
            with suppress(ProposalRefusedError):
                target = NodeName(rng.choice(names))
                network.call(leader, lambda core: core.transfer_leadership(network.now_ms, target))
        case 8 if up:
            # The power fails: several nodes lose what they had not synced at the same moment, and come back.
            for name in rng.sample(up, rng.randint(1, len(up))):
                network.crash(name)
                network.start(name)
        case _:
            network.run(rng.randint(100, 2500))


def _propose_some(network: RaftNetwork, rng: Random, names: list[str], step: int) -> None:
    for number in range(rng.randrange(4)):
        network.propose(rng.choice(names), *(f"{step}.{number}.{i}".encode() for i in range(rng.randint(1, 4))))


def _assert_live(network: RaftNetwork, names: list[str]) -> None:
    network.heal()
    network.elect()
    decided_before = dict(network.decided)

    def is_applied_everywhere() -> bool:
        end = next((index for index, entry in network.decided.items() if entry.payload == b"the end"), None)
        return end is not None and all(network.nodes[name].applied_index >= end for name in names)

    for _ in range(30):
        leader = network.leader()
        if leader is not None:
            network.propose(leader, b"the end")  # may be lost with an old leader: proposers repeat
        network.run(1000)
        if is_applied_everywhere():
            break
    assert is_applied_everywhere(), network.describe()
    assert all(network.decided[index] == entry for index, entry in decided_before.items())


@pytest.mark.parametrize("seed", few_fast(range(24), 6))
@pytest.mark.parametrize("node_count", [3, 5])
def test_random_faults_break_no_safety_and_healing_restores_progress(seed: int, node_count: int) -> None:
    names = [f"n{number}" for number in range(1, node_count + 1)]
    network = RaftNetwork(names, seed)
    network.compact_every = [None, 7, 20][seed % 3]
    rng = Random(seed * 100 + node_count)
    for step in range(FAULT_STEPS):
        _propose_some(network, rng, names, step)
        network.run(rng.randint(0, 150))
        _fault(network, rng, names)
    _assert_live(network, names)


@pytest.mark.parametrize("seed", few_fast(range(16), 3))
def test_power_failures_with_slow_disks_lose_nothing_decided(seed: int) -> None:
    """Some disks are slow, and several nodes lose what they had not synced at the same moment."""
    names = ["n1", "n2", "n3"]
    network = RaftNetwork(names, seed)
    rng = Random(seed)
    for step in range(40):
        for node in network.nodes.values():
            node.disk_delay_max_ms = rng.choice([1, 1, 400])
        network.run(rng.choice([10, 3000]))
        _propose_some(network, rng, names, step)
        network.run(rng.randint(1, 60))
        victims = rng.sample(names, rng.randint(1, 3))
        for name in victims:
            network.crash(name)
        for name in rng.sample(victims, len(victims)):
            network.start(name)
            network.run(rng.choice([0, 0, 2000]))
    for node in network.nodes.values():
        node.disk_delay_max_ms = None
    _assert_live(network, names)


@pytest.mark.parametrize("seed", range(12))
def test_membership_changes_under_faults_are_safe(seed: int) -> None:
    """Voters come and go one at a time while nodes crash and links fail."""
    names = ["n1", "n2", "n3", "n4", "n5"]
    network = RaftNetwork(names, seed, founders=["n1", "n2", "n3"])
    network.compact_every = [None, 15][seed % 2]
    rng = Random(seed)
    for step in range(FAULT_STEPS):
        _propose_some(network, rng, names, step)
        network.run(rng.randint(0, 400))
        if rng.random() < 0.6:
            _change_membership(network, rng, names)
        if rng.random() < 0.5:
            _fault(network, rng, names)
    network.heal()
    network.elect()
    network.run(3000)
    for name in names:
        _add_voter(network, name)
    _assert_live(network, names)


def _change_membership(network: RaftNetwork, rng: Random, names: list[str]) -> None:
    leader = network.leader()
    if leader is None:
        return
    target = NodeName(rng.choice(names))
    with suppress(ProposalRefusedError):
        if target not in network.core(leader).voters:
            network.call(leader, lambda core: core.propose_add_voter(network.now_ms, target))
        elif len(network.core(leader).voters) > 3:
            network.call(leader, lambda core: core.propose_remove_voter(network.now_ms, target))


def _add_voter(network: RaftNetwork, name: str) -> None:
    def is_voter() -> bool:
        leader = network.leader()
        if leader is None:
            return False
        core = network.core(leader)
        with suppress(ProposalRefusedError):
            network.call(leader, lambda core: core.propose_add_voter(network.now_ms, NodeName(name)))
        return name in core.voters and core.log.commit >= core.log.configuration_index

    network.run_until(is_voter, 60_000)


def test_the_same_seed_gives_the_same_history() -> None:
    histories = []
    for _ in range(2):
        network = RaftNetwork(["n1", "n2", "n3"], seed=5)
        rng = Random(5)
        for step in range(20):
            _propose_some(network, rng, ["n1", "n2", "n3"], step)
            network.run(rng.randint(0, 150))
            _fault(network, rng, ["n1", "n2", "n3"])
        histories.append((network.now_ms, list(network.decided.values()), network.describe()))
    assert histories[0] == histories[1]

"""Under lines that hold, in one direction or both, nothing that was forwarded comes after its node has given up.

A follower has words of its own decided, one after the other, and repeats each as `cluster.runtime.raft_driver` does.
When it has had no proof for as long as a node may serve without one, it gives up what waits, as a pause does.
"""

from __future__ import annotations

from random import Random

import pytest

from cluster.raft.config import RaftConfig
from cluster.runtime.driver_config import DriverConfig
from node.ids import NodeName
from tests.support.amounts import few_fast
from tests.support.raft_network import RaftNetwork

NAMES = ["n1", "n2", "n3"]
RETRY_MS = DriverConfig().retry_interval_ms
PAUSE_AFTER_MS = DriverConfig().quorum_grace_ms + RaftConfig(NodeName("n1")).election_timeout_min_ms
HOLDS = 4


class Proposer:
    """A follower and those who wait for it."""

    def __init__(self, network: RaftNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.gave_up_ms: dict[bytes, int] = {}
        self.words: list[bytes] = []
        self.waiting: dict[bytes, int] = {}

    def run(self, duration_ms: int) -> None:
        for _ in range(duration_ms // 10):
            self._turn()
            self.network.run(10)

    def _turn(self) -> None:
        network, core = self.network, self.network.core(self.name)
        now_ms, applied = network.now_ms, network.applied(self.name)
        self.waiting = {word: at_ms for word, at_ms in self.waiting.items() if word not in applied}
        if now_ms - core.currency.as_of_ms(network.nodes[self.name].applied_index) >= PAUSE_AFTER_MS:
            self.gave_up_ms.update(dict.fromkeys(self.waiting, now_ms))
            self.waiting = {}
            return
        if not self.waiting:
            self.words.append(b"%d" % len(self.words))
            self.waiting[self.words[-1]] = now_ms
        for word, at_ms in self.waiting.items():
            if (now_ms - at_ms) % RETRY_MS == 0:
                network.propose(self.name, word)


@pytest.mark.parametrize("seed", few_fast(range(24), 6))
def test_nothing_comes_after_its_node_has_given_up(seed: int) -> None:
    rng = Random(seed)
    network = RaftNetwork(NAMES, seed)
    leader = network.elect()
    network.run(1000)
    proposer = Proposer(network, next(name for name in NAMES if name != leader))
    others = [name for name in NAMES if name != proposer.name]
    for _ in range(HOLDS):
        proposer.run(rng.randrange(1000, 3000, 10))
        links = [(proposer.name, other) for other in others] if rng.random() < 0.7 else []
        links += [(other, proposer.name) for other in others] if not links or rng.random() < 0.3 else []
        for link in links:
            network.hold(*link)
        proposer.run(rng.randrange(200, 9000, 10))
        for link in links:
            network.let_go(*link)
        if rng.random() < 0.2 and (old := network.leader()) is not None and old != proposer.name:
            network.crash(old)
            proposer.run(rng.randrange(10, 3000, 10))
            network.start(old)
    proposer.run(3000)
    late = {
        word: network.appended_ms[word] - at_ms
        for word, at_ms in proposer.gave_up_ms.items()
        if network.appended_ms.get(word, 0) > at_ms
    }
    assert not late
    assert proposer.words[-1] in network.applied(proposer.name) or proposer.waiting, "the last came in time"
    assert len(network.applied(proposer.name)) >= HOLDS

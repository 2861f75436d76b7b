"""One seed is one run: in every process, under every hash seed, and without steps that are not concerned."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest

from chaos.sim.cluster import SimulatedCluster
from chaos.sim.drawing import draw_schedule, drawn_for
from chaos.sim.loop import simulated_loop
from tests.support.simulated import personality

RUN = """
from chaos.sim.drawing import draw_schedule
from chaos.sim.run import run_schedule
outcome = run_schedule(draw_schedule(6, operations=30, length_ms=3_000))
print(outcome.fingerprint, outcome.turns, len(outcome.story), hash(tuple(map(len, outcome.story))))
"""


@pytest.mark.slow
def test_hash_seeds_change_nothing() -> None:
    """Whatever is iterated keeps the order of insertion, on every node and in the simulator itself."""
    said = [
        subprocess.run(
            [sys.executable, "-c", RUN],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "31337")
    ]
    assert said[0]
    assert said[0] == said[1] == said[2]


def test_each_link_draws_its_own_delays() -> None:
    """A chunk more on one leaves the others as they were."""

    def delays(extra: int) -> list[float]:
        cluster = SimulatedCluster(simulated_loop(), personality(), seed=7)
        other, asked = cluster.network.link("n1", "n2"), cluster.network.link("n2", "n3")
        for _ in range(extra):
            other.delay_s()
        return [asked.delay_s() for _ in range(5)]

    assert delays(0) == delays(3)


def test_each_life_of_a_node_draws_for_itself() -> None:
    def costs(lives_before: int, turns_before: int) -> list[float]:
        cluster = SimulatedCluster(simulated_loop(), personality(), seed=7)
        machine = cluster.machines["n1"]
        for _ in range(lives_before):
            for _ in range(turns_before):
                machine.start_process().turn_cost_s()
                machine.process_ended()
        return [machine.start_process().turn_cost_s()]

    assert costs(1, 1) == costs(1, 1)
    assert costs(0, 0) != costs(1, 1)


def test_each_operation_and_each_fault_is_drawn_for_itself() -> None:
    """One of them that draws more changes no other: all but the personality hang on their numbers."""
    assert drawn_for(3, "operation", 5).random() == Random("3 operation 5").random()
    whole, more = draw_schedule(3, operations=60), draw_schedule(3, operations=120)
    assert all(step in more.steps for step in whole.steps)

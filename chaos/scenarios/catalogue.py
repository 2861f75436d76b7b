"""Every scenario, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaos.scenarios import steps
from chaos.scenarios.model import RunOptions, Scenario


def _mirrored_everywhere(_: Sequence[str]) -> Mapping[str, object]:
    return {"ha-mode": "all", "ha-sync-mode": "automatic"}


def _one_mirror_synchronised_by_hand(nodes: Sequence[str]) -> Mapping[str, object]:
    # Two replicas, so that with the first two nodes dead in turn the third still makes a majority with one of them.
    return {
        "ha-mode": "nodes",
        "ha-params": list(nodes[:2]),
        "ha-sync-mode": "manual",
        "ha-promote-on-failure": "always",
    }


CONTROL = Scenario(
    name="control",
    summary="no fault at all: every anomaly count must be zero, or the checker itself is at fault",
    min_nodes=1,
    policy=_mirrored_everywhere,
    initial_mirrors=lambda nodes: len(nodes) - 1,
    steps=steps.control,
    defaults=RunOptions(messages=10_000, failovers=0),
)

KILL_MASTER = Scenario(
    name="kill-master",
    summary="kill -9 the master under load, let it come back and synchronise, and kill the new master: nothing is lost",
    min_nodes=3,
    policy=_mirrored_everywhere,
    initial_mirrors=lambda nodes: len(nodes) - 1,
    steps=steps.kill_master,
    defaults=RunOptions(messages=20_000, failovers=2),
)

UNSAFE_PROMOTION = Scenario(
    name="unsafe-promotion",
    summary="promote a mirror that was never synchronised: exactly what it did not have is lost, and found by name",
    min_nodes=3,
    policy=_one_mirror_synchronised_by_hand,
    initial_mirrors=lambda _: 1,
    steps=steps.unsafe_promotion,
    defaults=RunOptions(messages=4_000, failovers=1),
    lost_phase=steps.MIRROR_ABSENT,
)

SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in (KILL_MASTER, CONTROL, UNSAFE_PROMOTION)}

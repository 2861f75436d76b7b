"""A mirrored queue under crashes, broken links and late commits: nothing confirmed is lost, replicas converge.

Thresholds are shrunk (segments of 4 positions, horizon steps of 2, batches of 2 messages) so that some dozen messages
cross every boundary. Each seed is a different history; a failing seed reproduces exactly.
"""

from __future__ import annotations

import pytest

import cluster.mirroring.difference
import cluster.mirroring.master
import cluster.mirroring.mirror
import cluster.mirroring.promotion
import cluster.mirroring.sync
import tests.support.memory_replica_queue
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from tests.support.mirroring_world import World

SEEDS = 240
STEPS = 250


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        cluster.mirroring.difference,
        cluster.mirroring.master,
        cluster.mirroring.mirror,
        cluster.mirroring.promotion,
        tests.support.memory_replica_queue,
    ):
        monkeypatch.setattr(module, "DIGEST_SEGMENT_ENTRIES", 4)
    monkeypatch.setattr(cluster.mirroring.master, "HORIZON_STEP_MIN", 2)
    monkeypatch.setattr(cluster.mirroring.master, "HORIZON_STEP_MAX", 8)
    monkeypatch.setattr(cluster.mirroring.mirror, "REPLY_SEGMENTS", 2)
    monkeypatch.setattr(cluster.mirroring.sync, "SYNC_READ_MESSAGES", 2)


def run(seed: int) -> World:
    settings = MirroringSettings(
        sync_automatically=seed % 3 == 0,
        sync_batch_messages=2,
        sync_throughput_bytes=2000 if seed % 2 else 0,
        window_bytes=600 if seed % 5 == 0 else 10_000,
    )
    policy = {"ha-mode": "all", "ha-promote-on-failure": "always" if seed % 4 == 0 else "when-synced"}
    world = World(seed, settings, 5 if seed % 3 == 1 else 3, policy)
    for _ in range(STEPS):
        world.step()
        world.check()
    world.settle_down()
    return world


@pytest.mark.parametrize("part", range(SEEDS // 40))
def test_nothing_confirmed_is_lost_and_replicas_converge(part: int) -> None:
    seen: dict[str, int] = {}
    for seed in range(part * 40, part * 40 + 40):
        try:
            world = run(seed)
            record = world.metadata.record
            assert not world.unconfirmed, "every publish is confirmed in the end"
            assert {record.master, *record.synchronised} == set(world.names), "every mirror is synchronised in the end"
            digests = [node.local.digests() for node in world.nodes.values()]
            assert all(each == digests[0] for each in digests), "replicas agree when quiet"
            master = world.nodes[record.master].role
            assert isinstance(master, MirroredQueue)
            assert all(each[1:] == (0, 0, 0) for each in master.mirrors_in_flight()), "mirrors owe nothing when quiet"
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        for what, count in world.counts.items():
            seen[what] = seen.get(what, 0) + count
    assert all(seen.values()), f"the histories exercise everything: {seen}"


def test_same_seed_same_history() -> None:
    assert run(11).counts == run(11).counts

"""A mirrored queue under crashes, broken links and late commits: nothing confirmed is lost, replicas converge.

Thresholds are shrunk (segments of 4 positions, horizon steps of 2, batches of 2 messages, frames of 200 bytes) so that
some dozen messages cross every boundary. Each seed is a different history; a failing seed reproduces exactly.
"""

from __future__ import annotations

import pytest

import cluster.mirroring.description
import cluster.mirroring.master
import cluster.mirroring.sync
import cluster.mirroring.turn
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from tests.support.amounts import few_fast, slow
from tests.support.mirrored_nodes import Node
from tests.support.mirroring_world import World

#: Histories of one test: enough that each of them sees everything that can happen.
PARTS = [range(16), *(slow(range(first, first + 60)) for first in range(0, 240, 60))]
STEPS = 400


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        "cluster.mirroring.master",
        "cluster.mirroring.mirror",
        "cluster.mirroring.promotion",
        "node.queues.digests",
        "node.queues.local_replica",
    ):
        monkeypatch.setattr(f"{module}.DIGEST_SEGMENT_ENTRIES", 4)
    monkeypatch.setattr(cluster.mirroring.master, "HORIZON_STEP_MIN", 2)
    monkeypatch.setattr(cluster.mirroring.master, "HORIZON_STEP_MAX", 8)
    monkeypatch.setattr(cluster.mirroring.description, "PIECE_SEGMENTS", 2)
    monkeypatch.setattr(cluster.mirroring.sync, "SYNC_READ_MESSAGES", 2)
    monkeypatch.setattr(cluster.mirroring.turn, "FRAME_BYTES_MAX", 200)


def run(seed: int) -> World:
    settings = MirroringSettings(
        sync_automatically=seed % 6 == 4,
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


@pytest.mark.parametrize("seeds", PARTS, ids=str)
def test_nothing_confirmed_is_lost_and_replicas_converge(seeds: range) -> None:
    seen: dict[str, int] = {}
    for seed in seeds:
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


def small_steps(world: World) -> None:
    """Some of what is under way happens, and somebody who serves delivers."""
    chance = world.chance
    for _ in range(chance.choice((0, 5, 20))):
        node = world.nodes[chance.choice(world.names)]
        a, b = chance.sample(world.names, 2)
        chance.choice(
            (
                lambda: world.turn(node),  # noqa: B023 - called at once
                lambda: world.transmit(a, b, 2),  # noqa: B023
                lambda: world._learn(node),  # noqa: B023
                lambda: world.sync_disk(node),  # noqa: B023
                lambda: world.break_link(a, b),  # noqa: B023
                world.commit_next,
                world.commit_next,
                world.commit_proposal,
                lambda: world.fetch(1, ack_required=True),
            )
        )()


def stop(world: World, nodes: list[Node]) -> None:
    """Orderly stops, all at once: masters say how far they have delivered, which may arrive or not; and that the
    nodes go may be noted, or not."""
    nodes = [node for node in nodes if node.is_running]
    world.confirmed_before_stop = set(world.confirmed)
    for node in nodes:
        if isinstance(node.role, MirroredQueue):
            node.role.end()
    if world.chance.random() < 0.8:
        for _ in range(2):
            for node in nodes:
                world.turn(node)
            for a, b in world.links:
                world.transmit(a, b, len(world.links[a, b]))
    for node in nodes:
        for peer in world.names:
            if peer != node.name:
                world._cut(node.name, peer)
        node.stop()
        if world.chance.random() < 0.7:
            world.notice(node)


def stop_and_start(world: World) -> None:
    """Some nodes stop, one after the other or together, most of them in an orderly way, and start in any order."""
    chance = world.chance
    nodes = chance.sample(list(world.nodes.values()), chance.randint(1, 3))
    if chance.random() < 0.4:
        stop(world, nodes)
    for node in nodes:
        if node.is_running:
            world.crash(node) if chance.random() < 0.2 else stop(world, [node])
        small_steps(world)
    for node in chance.sample(nodes, len(nodes)):
        world.restart(node)
        small_steps(world)
        for other in nodes:
            if chance.random() < 0.3:
                world.notice(other)
    for a, b in world.links:
        world.heal_link(a, b)


@pytest.mark.parametrize("part", few_fast(range(4), 1))
def test_what_was_delivered_is_flagged_however_nodes_stop_and_start(part: int) -> None:
    """And what was not is mostly spared, if they stopped in an orderly way."""
    unflagged = 0
    for seed in range(15 * part, 15 * part + 15):
        world = World(seed, MirroringSettings(sync_automatically=True, sync_batch_messages=2))
        try:
            for _ in range(4):
                world.publish(world.chance.randint(1, 8))
                run_rounds(world)
                world.fetch(world.chance.randint(0, 4), ack_required=True)
                world.settle(requeue=False)
                world.run_round()
                stop_and_start(world)
                run_rounds(world)
            world.settle_down()
            while (master := world._master()) is not None and master.ready:
                world.fetch(100, ack_required=True)
                world.run_round()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        unflagged += world.unflagged_after_stop
    assert unflagged > 25


def left_alone(seed: int, promote: str) -> World:
    """The mirrors died, others were placed and follow the master without having been filled; then it dies, too. The
    old mirrors are back by then, and the policy has no place for them."""
    policy = {"ha-mode": "exactly", "ha-params": 3, "ha-promote-on-failure": promote}
    world = World(seed, MirroringSettings(sync_batch_messages=2), 5, policy)
    master, *mirrors = (world.nodes[name] for name in (world.metadata.record.master, *world.metadata.record.mirrors))
    world.publish(world.chance.randint(1, 9))
    run_rounds(world)
    for node in mirrors:
        world.crash(node)
        world.notice(node)
    run_rounds(world, publishing=3)
    record = world.metadata.record
    assert (record.master, record.complete, record.synchronised) == (master.name, (master.name,), ())
    assert len(record.following) == 2
    assert not world.unconfirmed
    for node in mirrors:
        world.restart(node)
    run_rounds(world)
    world.crash(master)
    world.notice(master)
    run_rounds(world, publishing=1)
    return world


def run_rounds(world: World, publishing: int = 0) -> None:
    for _ in range(8):
        world.publish(publishing)
        world.run_round()
    for _ in range(4):
        world.run_round()


@pytest.mark.parametrize("seed", range(12))
def test_a_queue_whose_only_complete_copy_died_waits_for_it(seed: int) -> None:
    world = left_alone(seed, "when-synced")
    assert world.metadata.record.is_down
    confirmed = {msg_id for msg_id, message in world.confirmed.items() if message.persistent}
    for node in world.nodes.values():
        world.restart(node)
    run_rounds(world)
    assert confirmed <= set(world.confirmed), "what was given up would be missing"
    assert not world.unconfirmed, "it serves"
    assert world.metadata.record.lossy_promotions == 0


@pytest.mark.parametrize("seed", range(12))
def test_a_following_mirror_takes_over_if_the_policy_allows_the_loss(seed: int) -> None:
    world = left_alone(seed, "always")
    assert world.metadata.record.in_service
    assert not world.unconfirmed, "it serves"
    for node in world.nodes.values():
        world.restart(node)
    run_rounds(world, publishing=1)
    assert not world.unconfirmed
    assert world.metadata.record.lossy_promotions == 1


def test_same_seed_same_history() -> None:
    assert run(11).counts == run(11).counts

"""What operators and careful clients ask for while masters change: deletions, policies, force."""

from __future__ import annotations

from typing import Any

from chaos.sim.scenarios.scene import ALL_AUTOMATIC, Scene


def conditional_delete(scene: Scene, operations: int) -> None:
    """Queues are to be deleted if they are empty, or unused, while their masters end or are cut off."""
    chance = scene.chance
    scene.change(queues=1, consumers=chance.choice((0, 1)), hold_percent=0, requeue_percent=0)
    scene.change(has_conditional_deletes=True, persistent_percent=100)
    scene.traffic(0, scene.length_ms, operations // 2)
    at_ms = 600.0
    while at_ms < scene.length_ms:
        one = scene.any_node()
        end_ms = at_ms + chance.uniform(100, 2_500)
        scene.at(at_ms, "purge", 0)
        scene.at(at_ms + chance.uniform(5, 60), "delete_if", 0, chance.choice(("empty", "unused")))
        fault_ms = at_ms + chance.uniform(0, 80)
        fault = chance.choice(("kill", "pause", "isolate", "power", "slow_link"))
        if fault == "slow_link":
            for other in scene.nodes:
                if other != one:
                    scene.at(fault_ms, fault, one, other, 1000)
                    scene.at(end_ms, "slow_link_end", one, other)
        else:
            scene.at(fault_ms, fault, one)
            scene.at(end_ms, {"pause": "pause_end", "isolate": "isolate_end"}.get(fault, "start"), one)
        if chance.random() < 0.5:
            scene.at(fault_ms + chance.uniform(0, 100), "kill", other := scene.any_node(one))
            scene.at(end_ms, "start", other)
        scene.publish(end_ms, 0)
        at_ms = end_ms + chance.uniform(300, 1_000)


def policy_changes(scene: Scene, operations: int) -> None:
    """Policies with ``exactly`` and ``nodes`` follow each other while nodes come and go."""
    chance = scene.chance
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 500.0
    while at_ms < scene.length_ms:
        scene.at(at_ms, "policy", a_policy(scene))
        if chance.random() < 0.7:
            node = scene.any_node()
            scene.at(at_ms + chance.uniform(0, 200), chance.choice(("kill", "power", "stop")), node)
            scene.at(at_ms + chance.uniform(250, 1_500), "start", node)
        if chance.random() < 0.3:
            scene.at(at_ms + chance.uniform(100, 400), "sync", scene.any_queue())
        at_ms += chance.uniform(100, 1_000)


def a_policy(scene: Scene) -> dict[str, Any]:
    """Of replicas, and when a copy that lacks something may take over."""
    chance = scene.chance
    policy: dict[str, Any] = {"ha-mode": "exactly", "ha-params": chance.randint(2, len(scene.nodes))}
    if chance.random() < 0.6:
        policy = {"ha-mode": "nodes", "ha-params": scene.shuffled()[: chance.randint(1, len(scene.nodes))]}
    policy["ha-sync-mode"] = chance.choice(("automatic", "manual"))
    policy["ha-promote-on-failure"] = chance.choice(("always", "when-synced"))
    return policy


def limits(scene: Scene, operations: int) -> None:
    """Short queues that refuse what is above their limit, with consumers that give back what they got."""
    chance = scene.chance
    scene.change(
        overflow=chance.choice(("reject-publish", "reject-publish", "drop-head")),
        length_max=5,
        consumers=2,
        requeue_percent=40,
        hold_percent=20,
        prefetch=chance.choice((3, 10)),
    )
    scene.traffic(0, scene.length_ms, operations * 2)
    at_ms = 800.0
    while at_ms < scene.length_ms:
        scene.at(at_ms, "restart_consumer", chance.randrange(2), 0)
        at_ms += chance.uniform(200, 1_500)


def small_frames(scene: Scene, operations: int) -> None:
    """What a master did in a turn leaves in many frames, slowly, and the master ends before the last of them."""
    chance = scene.chance
    scene.change(
        queues=1, consumers=2, hold_percent=50, frame_bytes_max=120, policy=ALL_AUTOMATIC, prefetch=3, publishers=3
    )
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 800.0
    while at_ms < scene.length_ms:
        scene.at(at_ms, "ambush", 0, chance.choice(("deliver", "confirm")), chance.choice(("kill", "power")), 100)
        for _ in range(3):
            scene.publish(at_ms + chance.uniform(0, 30), 0, burst=12)
        at_ms += chance.uniform(500, 1_500)
        scene.at(at_ms, "ambush_end", 0)
        at_ms += chance.uniform(500, 1_000)

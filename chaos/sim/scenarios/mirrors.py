"""What a master says about its mirrors, and what becomes of their copies."""

from __future__ import annotations

from chaos.sim.scenarios.scene import ALL_AUTOMATIC, ALL_MANUAL, Scene


def late_report(scene: Scene, operations: int) -> None:
    """A newcomer is filled. As its master is about to say so, the master is cut off until the others have taken it for
    dead, which leaves the queue down; then it is heard again, or ends for longer just after that."""
    chance = scene.chance
    one, newcomer = scene.shuffled()[:2]
    scene.change(
        queues=1,
        consumers=0,
        policy={"ha-mode": "nodes", "ha-params": [one], "ha-promote-on-failure": "when-synced"},
        persistent_percent=100,
    )
    scene.traffic(0, 1_200, operations)
    at_ms = 1_500.0
    mirrored = {"ha-mode": "nodes", "ha-params": [one, newcomer], "ha-promote-on-failure": "when-synced"}
    scene.at(at_ms - 20, "lie_in_wait", "filled", "isolate")
    scene.at(at_ms, "policy", {**mirrored, "ha-sync-mode": "automatic"})
    at_ms += chance.uniform(6_500, 9_000)
    scene.at(at_ms, "isolate_end", one)
    if chance.random() < 0.5:
        at_ms += chance.uniform(20, 600)
        scene.at(at_ms, chance.choice(("kill", "power")), one)
    scene.publish(at_ms + chance.uniform(0, 2_000), 0)
    scene.at(at_ms + chance.uniform(3_000, 6_000), "start", one)


def stalled_mirror(scene: Scene, operations: int) -> None:
    """Two nodes do not hear each other, and the third hears both: a mirror that has everything is dropped because it
    cannot be spoken to. In the moment in which its master learns that, the master is cut off, and ends later: that copy
    is the only one that is left."""
    chance = scene.chance
    one, other = scene.shuffled()[:2]
    scene.change(
        queues=1,
        consumers=0,
        policy={**chance.choice((ALL_AUTOMATIC, ALL_MANUAL)), "ha-promote-on-failure": "when-synced"},
        persistent_percent=chance.choice((50, 100)),
    )
    scene.change(policy={**scene.personality.policy, "ha-mode": "nodes", "ha-params": [one, other]})
    scene.traffic(0, 1_400, operations)
    at_ms, lasts_ms = 1_500.0, chance.uniform(6_000, 8_500)
    scene.cut(one, other, at_ms, at_ms + lasts_ms)
    scene.at(at_ms + 10, "lie_in_wait", "unsettled", chance.choice(("isolate", "isolate_kill")))
    for _ in range(6):
        scene.publish(at_ms + chance.uniform(0, lasts_ms), 0)
    at_ms += lasts_ms + chance.uniform(100, 3_000)
    scene.at(at_ms, "kill", one)
    scene.at(at_ms + 20, "isolate_end", one)
    scene.at(at_ms + chance.uniform(1_000, 5_000), "start", one)

"""Messages that several queues have, and settings of queues that change while they work."""

from __future__ import annotations

from typing import Any

from chaos.sim.scenarios.scene import ALL_AUTOMATIC, ALL_MANUAL, Scene
from chaos.sim.settings import draw_setting


def fan_out(scene: Scene, operations: int) -> None:
    """Large messages go to two or three queues at once, which settle them at different times, while nodes end, start
    and are given copies: the shared stores have one of each, and count."""
    chance = scene.chance
    scene.change(
        queues=3,
        publishers=2,
        consumers=chance.choice((1, 2, 3)),
        embed_below_bytes=chance.choice((0, 0, 100)),
        body_bytes_max=chance.choice((500, 9_000)),
        file_size_limit_bytes=chance.choice((4_000, 40_000)),
        segment_entries=8,
        persistent_percent=chance.choice((100, 50)),
        policy=chance.choice((ALL_AUTOMATIC, ALL_AUTOMATIC, {"ha-mode": "exactly", "ha-params": 2}, {})),
    )
    scene.traffic(0, scene.length_ms, operations // 3)
    for _ in range(operations):
        at_ms, size = chance.uniform(0, scene.length_ms), chance.randint(0, scene.personality.body_bytes_max)
        queues = sorted(chance.sample(range(3), chance.choice((2, 3))))
        is_persistent = int(chance.randrange(100) < scene.personality.persistent_percent)
        scene.at(at_ms, "fan_out", chance.randrange(2), queues, chance.randint(1, 5), size, is_persistent)
    at_ms = 700.0
    while at_ms < scene.length_ms:
        kind, node = (
            chance.choice(("kill", "power", "stop", "crash", "purge", "full_disk", "fail_writes")),
            scene.any_node(),
        )
        end_ms = at_ms + chance.choice((60, 500, 1_500))
        if kind == "purge":
            scene.at(at_ms, kind, scene.any_queue())
        elif kind == "crash":
            scene.at(at_ms, kind, node, chance.randint(1, 40), chance.choice(("kill", "drop", "subset", "tear")))
        elif kind == "full_disk":
            scene.at(at_ms, kind, node, chance.choice((0, 1_000)))
            scene.at(end_ms, "full_disk_end", node)
        elif kind == "fail_writes":
            scene.at(at_ms, kind, node, "/queues/")
            scene.at(end_ms, "fail_writes_end", node)
        else:
            scene.at(at_ms, kind, node)
        scene.at(end_ms, "start", node)
        at_ms = end_ms + chance.uniform(200, 800)


def settings(scene: Scene, operations: int) -> None:
    """Policies change the version of the index, the mode and the limits of queues, often before the last one has come
    to its end, while nodes end, disks are full or slow, and mirrors come and go."""
    chance = scene.chance
    scene.change(
        segment_entries=8,
        embed_below_bytes=chance.choice((0, 100, 4096)),
        body_bytes_max=chance.choice((50, 500)),
        consumers=chance.choice((0, 1, 2)),
        persistent_percent=chance.choice((100, 50)),
    )
    scene.traffic(0, scene.length_ms, operations * 3)
    bases: tuple[dict[str, Any], ...] = (
        ALL_AUTOMATIC,
        ALL_AUTOMATIC,
        ALL_MANUAL,
        {"ha-mode": "exactly", "ha-params": 2},
    )
    at_ms = 500.0
    while at_ms < scene.length_ms:
        scene.at(at_ms, "policy", {**chance.choice(bases), **draw_setting(chance)})
        at_ms += chance.choice((20, 200, 800))
        kind, node = (
            chance.choice(("kill", "power", "stop", "crash", "full_disk", "slow_disk", "", "")),
            scene.any_node(),
        )
        end_ms = at_ms + chance.choice((60, 500, 1_200))
        if kind == "crash":
            scene.at(at_ms, kind, node, chance.randint(1, 60), chance.choice(("kill", "drop", "subset", "tear")))
        elif kind:
            scene.at(at_ms, kind, node, *{"full_disk": (chance.choice((0, 300)),), "slow_disk": (100,)}.get(kind, ()))
        if kind in ("full_disk", "slow_disk"):
            scene.at(end_ms, f"{kind}_end", node)
        scene.at(end_ms, "start", node)
        at_ms += chance.choice((50, 300, 900))

"""Disks that lack one thing, do not answer, or ail for longer than anybody waits."""

from __future__ import annotations

from chaos.sim.scenarios.scene import ALL_AUTOMATIC, ALL_MANUAL, Scene
from chaos.sim.troubles import KINDS_OF_FILES, READ_PLACES


def _busy_disks(scene: Scene) -> None:
    """Little is in memory for long, and files are many."""
    chance = scene.chance
    scene.change(
        segment_entries=8,
        embed_below_bytes=chance.choice((0, 0, 4096)),
        file_size_limit_bytes=4_000,
        body_bytes_max=chance.choice((500, 2_000)),
        is_lazy=chance.random() < 0.5,
        consumers=chance.choice((0, 1, 2)),
        hold_percent=chance.choice((0, 50)),
        requeue_percent=20,
        persistent_percent=chance.choice((100, 100, 50)),
    )


def _come_and_go(scene: Scene, node: str, at_ms: float, end_ms: float) -> None:
    """Something for which a node opens, reads or removes files meanwhile."""
    chance = scene.chance
    kind = chance.choice(("restart", "restart", "stop", "join", "purge", "delete", "nothing"))
    middle_ms = (at_ms + end_ms) / 2
    if kind in ("restart", "stop"):
        scene.at(at_ms + chance.uniform(10, 200), "kill" if kind == "restart" else "stop", node)
        scene.at(middle_ms, "start", node)
    elif kind == "join":
        others = [other for other in scene.nodes if other != node]
        scene.at(at_ms - 400, "policy", {"ha-mode": "nodes", "ha-params": others})
        scene.at(at_ms + 10, "policy", chance.choice((ALL_AUTOMATIC, ALL_MANUAL)))
    elif kind in ("purge", "delete"):
        scene.at(at_ms + chance.uniform(10, 300), kind, scene.any_queue())


def descriptors(scene: Scene, operations: int) -> None:
    """A node may open no more files for a while, or only a few: as it works, starts, is given copies, deletes. Then a
    queue may be deleted while a node is away, which comes back and can hardly see what it has of that."""
    chance = scene.chance
    _busy_disks(scene)
    scene.traffic(0, scene.length_ms, operations * 2)
    at_ms = 800.0
    while at_ms < scene.length_ms:
        node, end_ms = scene.any_node(), at_ms + chance.choice((300, 1_500, 4_000))
        scene.at(at_ms, "short_of_files", node, chance.choice((0, 0, 1, 2, 4, 8)))
        _come_and_go(scene, node, at_ms, end_ms)
        scene.at(end_ms, "short_of_files_end", node)
        scene.at(end_ms + 50, "start", node)
        at_ms = end_ms + chance.uniform(300, 1_000)
    if chance.random() < 0.3:
        node, end_ms = scene.any_node(), at_ms + chance.choice((1_500, 4_000))
        scene.at(at_ms, chance.choice(("kill", "power")), node)
        scene.at(at_ms + 100, "delete", scene.any_queue())
        # It has none open: with so many, or one more, a life begins.
        scene.at(at_ms + 200, "short_of_files", node, chance.choice((1, 2, 2, 3)))
        scene.at(at_ms + 600, "start", node)
        scene.at(end_ms, "short_of_files_end", node)
        scene.at(end_ms + 50, "start", node)


def same_epoch(scene: Scene, operations: int) -> None:
    """A master whose mirror lacks something loses its copy for want of files, and goes on in its epoch when it may open
    some. It is cut off from that mirror, which has heard its first life, and serves a consumer; then it ends."""
    chance = scene.chance
    _busy_disks(scene)
    steps = {"horizon_step": chance.choice((4, 16)), "prefetch": chance.choice((3, 10))}
    scene.change(queues=1, consumers=1, publishers=2, requeue_percent=0, **steps)
    master, mirror = scene.shuffled()[:2]
    scene.at(0, "policy", {"ha-mode": "nodes", "ha-params": [master]})
    for at_ms in (400, 600):
        scene.publish(at_ms, burst=chance.randint(1, 20))
    scene.at(700, "policy", {"ha-mode": "nodes", "ha-params": [master, mirror], "ha-sync-mode": "manual"})
    for _ in range(operations // 4):
        scene.publish(chance.uniform(900, 1_200), burst=chance.choice((1, 8)))
    short_ms = chance.uniform(1_150, 1_300)
    scene.at(short_ms, "short_of_files", master, 0)
    if chance.random() < 0.3:
        scene.at(short_ms + chance.uniform(-50, 50), "sync", 0)
    again_ms = short_ms + chance.uniform(100, 400)
    scene.publish(chance.uniform(short_ms, again_ms))
    for _ in range(chance.choice((0, 0, operations // 4))):
        # What is sent again has all be flagged, so a flag that lacks is seen only without.
        scene.publish(chance.uniform(again_ms, again_ms + 1_500), burst=chance.choice((1, 8)))
    scene.at(again_ms, "short_of_files_end", master)
    end_ms = again_ms + chance.uniform(1_000, 2_500)
    scene.cut(master, mirror, chance.uniform(short_ms, again_ms), end_ms + 20)
    scene.at(again_ms + chance.uniform(0, 1_000), "consume", 0, 0)
    scene.at(end_ms, chance.choice(("kill", "kill", "kill", "power")), master)
    scene.at(end_ms + chance.uniform(500, 4_000), "start", master)


def unreadable(scene: Scene, operations: int) -> None:
    """Some files of a node cannot be read for a while: of queues that are consumed, filled into mirrors, recovered."""
    chance = scene.chance
    _busy_disks(scene)
    scene.change(policy=chance.choice((ALL_AUTOMATIC, ALL_AUTOMATIC, ALL_MANUAL, {})))
    scene.traffic(0, scene.length_ms, operations * 2)
    at_ms = 800.0
    while at_ms < scene.length_ms:
        node, end_ms = scene.any_node(), at_ms + chance.uniform(300, 2_500)
        scene.at(at_ms, "fail_reads", node, chance.choice(READ_PLACES))
        for consumer in range(scene.personality.consumers):
            scene.at(at_ms + chance.uniform(0, 300), chance.choice(("restart_consumer", "recover")), consumer, 0)
        _come_and_go(scene, node, at_ms, end_ms)
        scene.at(end_ms, "fail_reads_end", node)
        if chance.random() < 0.7:
            # What an operator does: copies that are out of service are opened by a start.
            scene.at(end_ms + 20, "stop", node)
            scene.at(end_ms + 400, "start", node)
        at_ms = end_ms + chance.uniform(600, 1_500)


def one_kind_full(scene: Scene, operations: int) -> None:
    """There is no room for files of one kind, as under a quota or on a disk of their own, and enough for all others."""
    chance = scene.chance
    _busy_disks(scene)
    scene.change(policy=chance.choice((ALL_AUTOMATIC, ALL_AUTOMATIC, {})))
    scene.traffic(0, scene.length_ms, operations * 2)
    at_ms = 700.0
    while at_ms < scene.length_ms:
        node, end_ms = scene.any_node(), at_ms + chance.uniform(300, 2_500)
        scene.at(at_ms, "full_kind", node, chance.choice(KINDS_OF_FILES))
        _come_and_go(scene, node, at_ms, end_ms)
        scene.at(end_ms, "full_kind_end", node)
        scene.at(end_ms + 10, "start", node)
        if chance.random() < 0.3:
            scene.at(end_ms + chance.uniform(0, 300), "power", node)
            scene.at(end_ms + 500, "start", node)
        at_ms = end_ms + chance.uniform(300, 1_000)


def hung_disks(scene: Scene, operations: int) -> None:
    """No sync of a node returns for a while, shorter and longer than anybody waits; then it may lose its power before
    one does, or the others theirs."""
    chance = scene.chance
    scene.change(persistent_percent=100, policy=chance.choice((ALL_AUTOMATIC, ALL_AUTOMATIC, {})))
    at_ms = 800.0
    for _ in range(chance.choice((1, 2))):
        hung = scene.shuffled()[: chance.choice((1, 1, 1, 2))]
        lasts_ms = chance.choice((1_000, 4_000, 11_000, 16_000))
        for node in hung:
            scene.at(at_ms + chance.uniform(0, 200), "hang_disk", node)
            scene.at(at_ms + lasts_ms + chance.uniform(0, 500), "hang_disk_end", node)
        kind, victim = chance.choice(("kill", "power", "stop", "")), chance.choice((hung[0], scene.any_node()))
        if kind:
            end_ms = at_ms + chance.uniform(100, lasts_ms + 600)
            scene.at(end_ms, kind, victim)
            scene.at(end_ms + chance.choice((50, 1_500)), "start", victim)
        if chance.random() < 0.3:
            scene.at(at_ms + chance.uniform(100, lasts_ms), "delete", scene.any_queue())
        at_ms += lasts_ms + chance.uniform(800, 2_000)
    scene.traffic(0, at_ms, operations * 2)
    for node in scene.nodes:
        scene.at(at_ms, "start", node)


def long_faults(scene: Scene, operations: int) -> None:
    """Faults that outlast every timeout: of links, of clients, of what a node waits for on a disk and of operators."""
    chance = scene.chance
    scene.change(consumers=chance.choice((1, 2)), log_entries_kept=chance.choice((0, 5)))
    at_ms, last_ms = 1_000.0, 0.0
    for _ in range(chance.choice((1, 2))):
        node, lasts_ms = scene.any_node(), chance.uniform(12_000, 40_000)
        end_ms = at_ms + lasts_ms
        kind = chance.choice(("isolate", "cut_one_way", "pause", "full_disk", "hang_disk", "kill", "memory_alarm"))
        if kind == "cut_one_way":
            for other in scene.nodes:
                if other != node:
                    scene.at(at_ms, "cut", node, other)
                    scene.at(end_ms, "cut_end", node, other)
        else:
            scene.at(at_ms, kind, node)
            scene.at(end_ms, "start" if kind == "kill" else f"{kind}_end", node)
        if chance.random() < 0.5:
            queue = scene.any_queue()
            scene.at(at_ms + chance.uniform(500, lasts_ms), chance.choice(("delete", "purge", "sync")), queue)
        if chance.random() < 0.4:
            other = scene.any_node(node)
            ends_ms = chance.uniform(at_ms + 5_000, end_ms + 500)
            scene.at(ends_ms, chance.choice(("kill", "power", "stop")), other)
            scene.at(ends_ms + chance.choice((100, 3_000)), "start", other)
        last_ms = max(last_ms, end_ms + 2_000)
        at_ms += chance.uniform(500, lasts_ms)
    scene.traffic(0, last_ms, operations)

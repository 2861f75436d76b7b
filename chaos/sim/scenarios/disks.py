"""Disks that are slow, full, empty or wiped, and nodes that stop and start."""

from __future__ import annotations

from chaos.sim.scenarios.scene import ALL_AUTOMATIC, ALL_MANUAL, Scene


def orderly_restarts(scene: Scene, operations: int) -> None:
    """Nodes are stopped and started, one by one or all at once; now and then the power goes while they stop, or just
    after they have started."""
    chance = scene.chance
    scene.change(consumers=chance.choice((1, 2)), embed_below_bytes=chance.choice((0, 0, 4096)), hold_percent=20)
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 700.0
    while at_ms < scene.length_ms:
        stopped = scene.shuffled()[: chance.choice((1, 1, 2, len(scene.nodes)))]
        for node in stopped:
            scene.at(at_ms + chance.uniform(0, 30), "stop", node)
        if chance.random() < 0.5:
            scene.at(at_ms + chance.uniform(20, 700), chance.choice(("power", "kill")), chance.choice(stopped))
        at_ms += chance.uniform(500, 1_200)
        for node in stopped:
            scene.at(at_ms, "start", node)
            at_ms += chance.choice((0, 50, 500))
        if chance.random() < 0.4:
            victim = chance.choice(stopped)
            scene.at(at_ms + chance.uniform(100, 900), chance.choice(("power", "kill")), victim)
            scene.at(at_ms + 1_000, "start", victim)
        at_ms += chance.uniform(600, 1_500)


def clean_stops(scene: Scene, operations: int) -> None:
    """Nodes are stopped and started in order and nothing else happens to them: all together, all one after the other,
    or one; with messages that somebody consumes, and others that nobody has been given. Then everybody consumes."""
    chance = scene.chance
    scene.change(
        queues=2,
        consumers=2,
        policy=chance.choice((ALL_AUTOMATIC, ALL_AUTOMATIC, {})),
        persistent_percent=100,
        prefetch=chance.choice((1, 3)),
        hold_percent=chance.choice((0, 50)),
    )
    at_ms = 0.0
    for _ in range(2):
        scene.at(at_ms, "consume", 0, 0)
        for _ in range(max(2, operations // 4)):
            scene.publish(at_ms + chance.uniform(0, 900))
        at_ms += 1_200
        stopped = scene.shuffled()[: chance.choice((1, 2, len(scene.nodes), len(scene.nodes)))]
        pause_ms = chance.choice((0, 0, 30, 300, 1_000))
        for node in stopped:
            scene.at(at_ms, "stop", node)
            at_ms += chance.uniform(0, pause_ms)
        at_ms += chance.uniform(1_500, 3_000)
        for node in chance.sample(stopped, len(stopped)):
            scene.at(at_ms, "start", node)
            at_ms += chance.choice((0, 20, 400))
        at_ms += chance.uniform(1_500, 2_500)
    for consumer in range(2):
        scene.at(at_ms, "consume", consumer, consumer)


def single_disk(scene: Scene, operations: int) -> None:
    """Queues without mirrors: what was confirmed is on one disk, and the power goes again and again, once in the moment
    of a confirm, while files are carried over, compacted and removed."""
    chance = scene.chance
    scene.change(
        policy={},
        consumers=chance.choice((0, 1, 2)),
        segment_entries=8,
        file_size_limit_bytes=4_000,
        embed_below_bytes=chance.choice((0, 100, 4096)),
        body_bytes_max=chance.choice((50, 500)),
        sync_ms=(0.1, chance.choice((3, 20))),
        hold_percent=0,
    )
    scene.traffic(0, scene.length_ms, operations * 2)
    at_ms = 600.0
    while at_ms < scene.length_ms:
        queue = scene.any_queue()
        scene.at(at_ms, "ambush", queue, "confirm", "power", 1)
        scene.publish(at_ms + 5, queue, burst=8)
        at_ms += chance.uniform(200, 900)
        scene.at(at_ms, "ambush_end", queue)
        if chance.random() < 0.5:
            victim = scene.any_node()
            scene.at(at_ms, "crash", victim, chance.randint(1, 40), chance.choice(("kill", "drop", "subset", "tear")))
            scene.at(at_ms + 500, "start", victim)
        at_ms += chance.uniform(200, 800)


def wiped_disk(scene: Scene, operations: int) -> None:
    """A node loses its disk, and perhaps another one its power before that is found out."""
    chance = scene.chance
    scene.traffic(0, scene.length_ms, operations)
    at_ms = chance.uniform(600, 2_000)
    wiped = scene.any_node()
    scene.at(at_ms, "wipe", wiped)
    other = scene.any_node(wiped)
    if chance.random() < 0.5:
        scene.at(at_ms + chance.uniform(0, 400), "kill", other)
        scene.at(at_ms + chance.uniform(600, 2_000), "start", other)
    scene.at(at_ms + chance.uniform(2_000, 5_000), "wipe_end", wiped)


def failed_disk(scene: Scene, operations: int) -> None:
    """The disk of a node refuses to write queues, so that it hands them over; later it is the last that could serve."""
    chance = scene.chance
    scene.change(policy={**ALL_AUTOMATIC, "ha-promote-on-failure": "when-synced"}, persistent_percent=100, consumers=0)
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 800.0
    victim = scene.any_node()
    scene.at(at_ms, "fail_writes", victim, chance.choice(("/queues/", "/msg_store")))
    for _ in range(4):
        scene.publish(at_ms + chance.uniform(0, 300))
    at_ms += chance.uniform(300, 1_500)
    for node in scene.nodes:
        if node != victim:
            scene.at(at_ms, "kill", node)
            scene.at(at_ms + chance.uniform(2_000, 4_000), "start", node)
    scene.at(at_ms + chance.uniform(0, 500), "fail_writes_end", victim)
    if chance.random() < 0.5:
        scene.at(at_ms + 600, "kill", victim)
        scene.at(at_ms + 700, "start", victim)


def failed_sync(scene: Scene, operations: int) -> None:
    """A sync fails, the node ends and starts again, and later the power goes, here or everywhere. Now and then the node
    is killed in the moment of the failure."""
    chance = scene.chance
    scene.change(persistent_percent=100, consumers=chance.choice((0, 1)), policy=chance.choice(({}, ALL_AUTOMATIC)))
    scene.traffic(0, scene.length_ms, operations * 2)
    at_ms = 700.0
    while at_ms < scene.length_ms:
        victim = scene.any_node()
        scene.at(at_ms, "fail_sync", victim)
        if chance.random() < 0.3:
            scene.at(at_ms, "crash", victim, chance.randint(1, 6), "kill")
        for _ in range(3):
            scene.publish(at_ms + chance.uniform(0, 30))
        scene.at(at_ms + chance.uniform(0, 30), "policy", chance.choice((ALL_AUTOMATIC, ALL_MANUAL)))
        at_ms += chance.uniform(200, 500)
        scene.at(at_ms, "kill", victim)
        scene.at(at_ms, "fail_sync_end", victim)
        scene.at(at_ms + 1, "start", victim)
        at_ms += chance.uniform(200, 900)
        for node in scene.nodes if chance.random() < 0.5 else [victim]:
            scene.at(at_ms, "power", node)
            scene.at(at_ms + chance.uniform(100, 300), "start", node)
        at_ms += chance.uniform(500, 1_000)


def full_disk(scene: Scene, operations: int) -> None:
    """A disk is full for a while, or slow; its node restarts meanwhile."""
    chance = scene.chance
    scene.change(persistent_percent=100)
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 700.0
    while at_ms < scene.length_ms:
        node, lasts_ms = scene.any_node(), chance.uniform(300, 2_500)
        scene.at(at_ms, "full_disk", node, chance.choice((0, 300, 1_000, 3_000)))
        scene.at(at_ms + lasts_ms, "full_disk_end", node)
        if chance.random() < 0.5:
            scene.at(at_ms + chance.uniform(10, lasts_ms), "kill", node)
        scene.at(at_ms + lasts_ms + 10, "start", node)
        at_ms += lasts_ms + chance.uniform(300, 1_000)


def full_log(scene: Scene, operations: int) -> None:
    """A disk takes the log of the metadata no more until its node has paused, or nearly so, while clients declare
    through every node. When there is room again, what the node says or hears may come late."""
    chance = scene.chance
    scene.change(persistent_percent=100, consumers=0, has_whole_links=True)
    scene.traffic(0, 700, operations // 4)
    for number in range(chance.choice((2, 3))):
        scene.at(chance.uniform(300, 900), "declaring", number, scene.length_ms)
    at_ms, lasts_ms = 900.0, chance.choice((3_000, 4_500, 6_500))
    nodes = scene.shuffled()
    for full in nodes[: (len(nodes) - 1) // 2]:
        scene.at(at_ms + chance.uniform(0, 50), "full_disk", full)
        end_ms = at_ms + lasts_ms + chance.uniform(0, 300)
        scene.at(end_ms, "full_disk_end", full)
        for other in nodes:
            if other != full and chance.random() < 0.5:
                ends = chance.sample((full, other), 2)
                scene.at(end_ms - 20, "slow_link", *ends, chance.choice((100, 300, 1000)))
                scene.at(end_ms + 2_500, "slow_link_end", *ends)


def stale_metadata(scene: Scene, operations: int) -> None:
    """A queue is deleted and declared again while a node's disk takes seconds for each sync of the log, so that it has
    applied the one and not the other, or what the others say to it takes long; clients publish through every node."""
    chance = scene.chance
    scene.change(publishers=3, queues=1, consumers=0, persistent_percent=100, has_whole_links=True, sync_ms=(10, 20))
    scene.traffic(0, 500, operations // 4)
    node, at_ms, lasts_ms = scene.any_node(), 800.0, 13_000.0
    if chance.random() < 0.7:
        scene.at(at_ms, "slow_disk", node, chance.choice((200, 300, 400)))
        scene.at(at_ms + lasts_ms, "slow_disk_end", node)
    else:
        for other in scene.nodes:
            if other != node:
                scene.at(at_ms, "slow_link", other, node, 1000)
                scene.at(at_ms + lasts_ms, "slow_link_end", other, node)
    scene.at(at_ms + 50, "delete", 0)
    for _ in range(operations * 2):
        scene.publish(at_ms + chance.uniform(100, lasts_ms), 0, burst=1)


def quick_acks(scene: Scene, operations: int) -> None:
    """Disks are so slow that messages are settled before they are written."""
    chance = scene.chance
    scene.change(policy={}, consumers=2, queues=1, prefetch=100, hold_percent=0, requeue_percent=0)
    scene.change(persistent_percent=100, link_delay_ms=(0.05, 0.5), slow_chunks_percent=0)
    scene.traffic(0, 200, 1)
    at_ms = 600.0
    for node in scene.nodes:
        scene.at(at_ms, "slow_disk", node, 100)
    for _ in range(operations // 3):
        scene.publish(at_ms, 0, burst=1)
        scene.publish(at_ms + chance.uniform(1, 30), 0, burst=1)
        at_ms += chance.uniform(100, 400)


def torn_stop(scene: Scene, operations: int) -> None:
    """The power goes in one of the operations of the disk with which a node stops."""
    chance = scene.chance
    scene.change(embed_below_bytes=0, consumers=chance.choice((0, 1)), persistent_percent=100, sync_ms=(5, 20))
    scene.change(policy=chance.choice(({}, ALL_AUTOMATIC)))
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 700.0
    while at_ms < scene.length_ms:
        stopped = scene.nodes if chance.random() < 0.5 else [scene.any_node()]
        for _ in range(3):
            scene.publish(at_ms - chance.uniform(0, 6))
        for node in stopped:
            scene.at(at_ms, "stop", node)
            scene.at(at_ms + chance.choice((0, 1, 20, 500)), "crash", node, chance.randint(1, 60), "drop")
        at_ms += chance.uniform(900, 1_500)
        for node in scene.nodes:
            scene.at(at_ms, "start", node)
        at_ms += chance.uniform(500, 900)


def compaction(scene: Scene, operations: int) -> None:
    """The power goes just as garbage is reclaimed, or a journal has been carried over."""
    chance = scene.chance
    scene.change(
        policy={},
        queues=1,
        publishers=3,
        consumers=2,
        segment_entries=8,
        file_size_limit_bytes=4_000,
        embed_below_bytes=chance.choice((0, 0, 4096)),
        body_bytes_max=500,
        sync_ms=(3, 20),
        persistent_percent=100,
        hold_percent=chance.choice((0, 10, 50)),
        requeue_percent=20,
        prefetch=chance.choice((3, 10)),
    )
    scene.traffic(0, scene.length_ms, operations * 3)
    at_ms = 600.0
    while at_ms < scene.length_ms:
        scene.at(at_ms, "lie_in_wait", chance.choice(("reclaiming", "carrying over")), "power")
        at_ms += chance.uniform(200, 800)
        for node in scene.nodes:
            scene.at(at_ms, "start", node)
        at_ms += chance.uniform(50, 300)

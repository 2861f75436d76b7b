"""Masters that end at the worst moment, and nodes that come back."""

from __future__ import annotations

from chaos.sim.drawing import draw_privileges
from chaos.sim.scenarios.scene import ALL_AUTOMATIC, ALL_MANUAL, Scene, automatic_on


def ambush(scene: Scene, operations: int) -> None:
    """The master ends as a client hears of a confirm, or gets a delivery; what it says to the others is slow."""
    chance = scene.chance
    scene.change(queues=1, consumers=chance.choice((1, 2)), hold_percent=chance.choice((0, 20)))
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 800.0
    while at_ms < scene.length_ms:
        moment = chance.choice(("confirm", "deliver"))
        end, slowness = chance.choice(("power", "power", "kill", "pause")), chance.choice((1, 1000, 1000))
        scene.at(at_ms, "ambush", 0, moment, end, slowness)
        scene.publish(at_ms + chance.uniform(0, 20), 0, burst=6)
        at_ms += chance.uniform(400, 2_000)
        scene.at(at_ms, "ambush_end", 0)
        at_ms += chance.uniform(300, 1_500)


def power_return(scene: Scene, operations: int) -> None:
    """Two copies begin anew, one after the other, and are not filled: the third is the only complete one, and the
    master. Then it ends, or all lose their power and come back one by one, it last or not before the end."""
    chance = scene.chance
    promote = chance.choice(("always", "when-synced"))
    scene.change(
        queues=chance.choice((1, 2)),
        consumers=chance.choice((0, 0, 1)),
        policy={**ALL_MANUAL, "ha-promote-on-failure": promote, "ha-promote-on-shutdown": promote},
        persistent_percent=chance.choice((100, 100, 50)),
    )
    scene.traffic(0, 4_500, operations)
    *newcomers, last = scene.shuffled()
    at_ms = chance.uniform(500, 1_000)
    for node in newcomers:
        scene.at(at_ms, "kill", node)
        scene.at(at_ms + chance.uniform(400, 1_200), "start", node)
        at_ms += chance.uniform(1_600, 2_200)
    if chance.random() < 0.4:
        scene.at(at_ms, chance.choice(("kill", "kill", "stop")), last)
    else:
        scene.at(at_ms, "power", *scene.nodes)
        for node in newcomers:
            at_ms += chance.choice((50, 300, 800))
            scene.at(at_ms, "start", node)
    scene.publish(at_ms + 2_500)
    scene.at(at_ms + chance.choice((2_000, 6_000, 9_000)), "start", last)


def dark_confirm(scene: Scene, operations: int) -> None:
    """Everybody loses the power as a client hears of a confirm; the master comes back last."""
    chance = scene.chance
    scene.change(queues=1, consumers=0, persistent_percent=100, sync_ms=(1, 20))
    scene.traffic(0, 600, operations // 3)
    at_ms = 800.0
    while at_ms < scene.length_ms:
        slow = scene.any_node()
        scene.at(at_ms - 20, "slow_disk", slow, chance.choice((1, 10, 100)))
        scene.at(at_ms, "ambush", 0, "confirm", "power_everywhere", 1)
        for _ in range(3):
            scene.publish(at_ms + chance.uniform(0, 20), 0)
        at_ms += chance.uniform(400, 900)
        scene.at(at_ms, "slow_disk_end", slow)
        for node in scene.shuffled()[: len(scene.nodes) - 1]:
            scene.at(at_ms + chance.uniform(0, 300), "start", node)
        at_ms += chance.uniform(1_500, 3_500)
        scene.at(at_ms, "ambush_end", 0)
        for node in scene.nodes:
            scene.at(at_ms, "start", node)
        at_ms += chance.uniform(600, 1_200)


def backlog(scene: Scene, operations: int) -> None:
    """Consumers come to a queue that is full, over slow links; the master ends with one of their first deliveries."""
    chance = scene.chance
    scene.change(queues=1, consumers=2, horizon_step=2, prefetch=chance.choice((10, 100)), hold_percent=100)
    scene.change(publishers=2, overflow="", requeue_percent=0)
    at_ms = 300.0
    while at_ms < scene.length_ms:
        for _ in range(max(2, operations // 6)):
            scene.publish(at_ms + chance.uniform(0, 400), 0)
        at_ms += 900
        scene.at(at_ms, "ambush", 0, "deliver", chance.choice(("power", "kill")), 1000)
        scene.at(at_ms + 1, "consume", chance.randrange(2), 0)
        at_ms += chance.uniform(600, 1_500)
        scene.at(at_ms, "ambush_end", 0)
        scene.at(at_ms + 300, "consume", chance.randrange(2), 0)
        at_ms += chance.uniform(800, 1_600)


def twice(scene: Scene, operations: int) -> None:
    """A master ends while one of its mirrors hears it slowly, and the next one as a client hears of a confirm."""
    chance = scene.chance
    one, near, far = scene.shuffled()[:3]
    scene.change(queues=1, consumers=0, publishers=3, persistent_percent=100)
    scene.change(policy={"ha-mode": "nodes", "ha-params": [one]})
    scene.at(400, "policy", automatic_on((one, near, far)))
    scene.traffic(0, 1_000, operations // 3)
    at_ms = 1_600.0
    scene.at(at_ms, "slow_link", one, far, 1000)
    for _ in range(4):
        scene.publish(at_ms + chance.uniform(5, 40), 0)
    at_ms += chance.uniform(40, 80)
    scene.at(at_ms, "power", one)
    scene.at(at_ms, "slow_link", near, far, chance.choice((1, 100, 1000)))
    scene.at(at_ms + 1, "ambush", 0, "confirm", "power", 1)
    at_ms += chance.uniform(2_500, 5_000)
    scene.at(at_ms, "slow_link_end", near, far)
    scene.at(at_ms, "slow_link_end", one, far)
    scene.at(at_ms, "start", one)
    scene.at(at_ms + chance.uniform(2_000, 4_000), "ambush_end", 0)


def forced_promotion(scene: Scene, operations: int) -> None:
    """All copies stop in an orderly way, one goes on alone and ends, and an operator has another one serve."""
    chance = scene.chance
    one, other, _ = scene.shuffled()[:3]
    scene.change(queues=1, consumers=2, prefetch=3, hold_percent=chance.choice((30, 60)), requeue_percent=0)
    scene.change(policy={"ha-mode": "nodes", "ha-params": [one, other], "ha-promote-on-failure": "when-synced"})
    scene.traffic(0, 1_500, operations)
    at_ms = 1_600.0
    scene.at(at_ms, "stop", one)
    scene.at(at_ms + chance.uniform(0, 5), "stop", other)
    at_ms += chance.uniform(800, 1_200)
    alone, forced = (one, other) if chance.random() < 0.5 else (other, one)
    scene.at(at_ms, "start", alone)
    at_ms += chance.uniform(600, 1_500)
    for consumer in range(2):
        scene.at(at_ms - 300, "restart_consumer", consumer, 0)
    scene.at(at_ms, chance.choice(("kill", "power")), alone)
    scene.at(at_ms + 100, "start", forced)
    for _ in range(4):
        at_ms += 900
        scene.at(at_ms, "force_promote", 0, forced)
    scene.at(at_ms + 1_000, "start", alone)


def unnoticed_restart(scene: Scene, operations: int) -> None:
    """Nodes lose their power and are back before anybody has missed them."""
    chance = scene.chance
    scene.change(policy={"ha-mode": "all", "ha-sync-mode": "manual"}, consumers=chance.choice((0, 1)))
    scene.change(persistent_percent=chance.choice((0, 50)), link_delay_ms=(0.05, 2.0))
    scene.traffic(0, scene.length_ms - 1_000, operations)
    at_ms = 700.0
    while at_ms < scene.length_ms:
        node = scene.any_node()
        scene.at(at_ms, chance.choice(("power", "kill")), node)
        scene.at(at_ms + chance.uniform(1, 60), "start", node)
        at_ms += chance.uniform(150, 1_200)


def cut_off_master(scene: Scene, operations: int) -> None:
    """A mirror that has everything ends. In the moment in which the master learns of it, the master is cut off from the
    others, so that it cannot have the cluster agree to go on without that copy; its clients reach it. Then the copy is
    back, and the master is gone."""
    chance = scene.chance
    scene.change(nodes=3)
    one, other, _third = scene.shuffled()
    scene.change(
        queues=1,
        consumers=0,
        policy={"ha-mode": "nodes", "ha-params": [one, other], "ha-promote-on-failure": "when-synced"},
        persistent_percent=100,
        publishers=3,
    )
    scene.traffic(0, 1_200, operations)
    at_ms = 1_500.0
    scene.at(at_ms - 50, "lie_in_wait", "unsettled", "isolate")
    scene.at(at_ms, "kill", other)
    for _ in range(12):
        scene.publish(at_ms + chance.uniform(0, 3_000), 0, burst=2)
    at_ms += chance.uniform(1_500, 3_500)
    scene.at(at_ms, "kill", one)
    scene.at(at_ms + 20, "isolate_end", one)
    at_ms += chance.uniform(50, 500)
    scene.at(at_ms, "start", other)
    scene.at(at_ms + chance.uniform(3_000, 6_000), "start", one)
    scene.at(at_ms, "reconnect", 0)


def newcomer(scene: Scene, operations: int) -> None:
    """A mirror joins while the master's disk is so slow that nothing is confirmed, is not filled, and must take over:
    what its publishers send again it has never had."""
    chance = scene.chance
    one = scene.any_node()
    scene.change(
        queues=1,
        consumers=0,
        policy={"ha-mode": "nodes", "ha-params": [one], "ha-sync-mode": "manual"},
        persistent_percent=100,
        publishers=3,
        sync_ms=(0.5, 3),
    )
    scene.traffic(0, 1_000, operations // 3)
    at_ms = 1_500.0
    scene.at(at_ms, "slow_disk", one, 1000)
    for _ in range(6):
        scene.publish(at_ms + chance.uniform(10, 300), 0)
    policy = {**ALL_MANUAL, "ha-promote-on-failure": "always"}
    scene.at(at_ms + chance.uniform(20, 250), "policy", policy)
    at_ms += chance.uniform(400, 1_500)
    scene.at(at_ms, chance.choice(("kill", "power")), one)
    scene.at(at_ms, "slow_disk_end", one)
    scene.at(at_ms + chance.uniform(1_000, 4_000), "start", one)
    scene.publish(at_ms + 500, 0)


def partition(scene: Scene, operations: int) -> None:
    """One node against the others, or links that break one by one, and a heal; clients go on on both sides."""
    chance = scene.chance
    scene.change(policy={**ALL_AUTOMATIC, "ha-promote-on-failure": chance.choice(("always", "when-synced"))})
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 700.0
    while at_ms < scene.length_ms:
        end_ms = at_ms + chance.uniform(50, 3_000)
        if chance.random() < 0.6:
            alone = scene.any_node()
            for other in scene.nodes:
                if other != alone:
                    scene.cut(alone, other, at_ms, end_ms)
        elif chance.random() < 0.5:
            one = scene.any_node()
            scene.at(at_ms, "pause", one)
            scene.at(end_ms, "pause_end", one)
        else:
            one = scene.any_node()
            scene.at(at_ms, "cut", one, scene.any_node(one))
            scene.at(at_ms + 1, "reset", one, scene.any_node(one), "both", chance.randrange(100))
            for other in scene.nodes:
                if other != one:
                    scene.at(end_ms, "cut_end", one, other)
        at_ms = end_ms + chance.uniform(100, 1_000)


def sessions(scene: Scene, operations: int) -> None:
    """Connections between nodes break, and clients come and go."""
    chance = scene.chance
    scene.change(consumers=2, queues=1, hold_percent=chance.choice((50, 100)), prefetch=chance.choice((3, 10)))
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 500.0
    while at_ms < scene.length_ms:
        one = scene.any_node()
        scene.at(at_ms, "reset", one, scene.any_node(one), "both", chance.randrange(100))
        scene.at(at_ms + chance.uniform(20, 600), "restart_consumer", chance.randrange(2), 0)
        at_ms += chance.uniform(100, 800)


def privileges(scene: Scene, operations: int) -> None:
    """Consumers that want a queue for themselves, to be served first, or to be told of a new master; or of which only
    one is served. They come and go while masters end or move, links break, and nodes are cut off."""
    chance = scene.chance
    while not scene.personality.consumer_kinds:
        scene.personality = draw_privileges(chance, scene.personality)
    scene.change(consumers=3, queues=chance.choice((1, 2)), hold_percent=chance.choice((0, 30)))
    scene.traffic(0, scene.length_ms, operations)
    at_ms = 400.0
    while at_ms < scene.length_ms:
        for _ in range(chance.randint(1, 3)):
            what = chance.choice(("restart_consumer", "cancel", "consume"))
            scene.at(at_ms + chance.uniform(0, 400), what, chance.randrange(3), scene.any_queue())
        one, lasts_ms = scene.any_node(), chance.uniform(100, 2_000)
        match chance.choice(("end", "end", "isolate", "pause", "reset", "rebalance", "ambush")):
            case "end":
                scene.at(at_ms, chance.choice(("kill", "stop", "power")), one)
                scene.at(at_ms + lasts_ms, "start", one)
            case "isolate":
                scene.at(at_ms, "isolate", one)
                scene.at(at_ms + lasts_ms, "isolate_end", one)
            case "pause":
                scene.at(at_ms, "pause", one)
                scene.at(at_ms + lasts_ms, "pause_end", one)
            case "reset":
                scene.at(at_ms, "reset", one, scene.any_node(one), "both", chance.randrange(100))
            case "rebalance":
                scene.at(at_ms, "rebalance", one)
            case _:
                scene.at(at_ms, "ambush", 0, "deliver", chance.choice(("kill", "pause")), chance.choice((1, 100)))
                scene.at(at_ms + lasts_ms, "ambush_end", 0)
        at_ms += chance.uniform(200, 1_500)


def guests(scene: Scene, operations: int) -> None:
    """Queues that are to go with their consumers, at moments at which those who know of them end."""
    chance = scene.chance
    scene.change(guests=2, consumers=1, queues=1)
    scene.traffic(0, scene.length_ms, operations // 4)
    at_ms = 500.0
    while at_ms < scene.length_ms:
        for _ in range(chance.randint(1, 3)):
            at_ms += chance.uniform(50, 400)
            scene.at(at_ms, "guest", chance.randrange(2), "auto_delete")
        node, lasts_ms = scene.any_node(), chance.uniform(500, 4_000)
        at_ms += chance.uniform(0, 600)
        scene.at(at_ms, "kill", node)
        scene.at(at_ms + lasts_ms, "start", node)
        at_ms += lasts_ms + chance.uniform(500, 2_000)


def elections(scene: Scene, operations: int) -> None:
    """All begin at once, two of them do not hear each other, and the third loses its power as it votes; or everybody
    does as something is decided that the slow disks do not have yet, and whoever has it comes back last."""
    chance = scene.chance
    scene.change(log_entries_kept=chance.choice((0, 5)), sync_ms=(5, 20), link_delay_ms=(0.05, 0.5), consumers=0)
    scene.change(slow_chunks_percent=0)
    scene.traffic(0, scene.length_ms, operations // 2)
    at_ms = 600.0
    while at_ms < scene.length_ms:
        lasts_ms, late = chance.uniform(2_500, 4_500), ""
        if chance.random() < 0.6:
            one, voter, other = scene.shuffled()[:3]
            scene.at(at_ms, "power", *scene.nodes)
            scene.cut(one, other, at_ms, at_ms + lasts_ms)
            for candidate in (one, other):
                scene.at(at_ms, "slow_link", candidate, voter, chance.choice((1, 30, 100, 300)))
                scene.at(at_ms + lasts_ms, "slow_link_end", candidate, voter)
            scene.at(at_ms + 1, "lie_in_wait", "voted", "power_and_part")
            for node in scene.nodes:
                scene.at(at_ms + 20, "start", node)
            for delay_ms in range(100, int(lasts_ms), 25):
                scene.at(at_ms + delay_ms, "start", voter)
        else:
            late = scene.any_node()
            for node in scene.nodes:
                if node != late:
                    scene.at(at_ms - 1, "slow_disk", node, 100)
                    scene.at(at_ms + 200, "slow_disk_end", node)
            scene.at(at_ms, "lie_in_wait", "committed", "power_everywhere")
            scene.at(at_ms + 1, "policy", {**ALL_AUTOMATIC, "ha-sync-batch-size": chance.randint(1, 9)})
            scene.at(at_ms + 20, "policy", {**ALL_AUTOMATIC, "ha-sync-batch-size": chance.randint(1, 9)})
        for node in scene.shuffled():
            if node != late:
                scene.at(at_ms + chance.uniform(300, 900), "start", node)
            scene.at(at_ms + lasts_ms, "start", node)
            scene.at(at_ms + lasts_ms, "isolate_end", node)
        at_ms += lasts_ms + chance.uniform(800, 1_500)


def half_heard(scene: Scene, operations: int) -> None:
    """A master is cut off until another one serves. Then one of its mirrors hears it again, and the new master, which
    does not, ends."""
    chance = scene.chance
    one, near, far = scene.shuffled()[:3]
    scene.change(queues=1, consumers=0, publishers=3, persistent_percent=100)
    scene.change(policy={"ha-mode": "nodes", "ha-params": [one]})
    scene.at(300, "policy", automatic_on((one, near, far)))
    scene.traffic(0, 1_000, operations // 4)
    at_ms = 1_500.0
    back_ms = at_ms + chance.uniform(6_500, 8_000)
    scene.cut(one, far, at_ms, back_ms)
    for _ in range(operations // 2):
        scene.publish(chance.uniform(at_ms, back_ms), 0, burst=2)
    end_ms = back_ms + chance.uniform(200, 2_500)
    scene.cut(one, near, at_ms, end_ms + 3_000)
    scene.at(end_ms, chance.choice(("kill", "power")), near)
    scene.at(end_ms + chance.uniform(4_000, 8_000), "start", near)


def next_life(scene: Scene, operations: int) -> None:
    """The node that publishers are at is killed, and back before a slow mirror has what they published: what its next
    life hears of confirms is for what that one has published. Then the master ends."""
    chance = scene.chance
    master, mirror, entry = scene.shuffled()[:3]
    scene.change(
        queues=1,
        consumers=0,
        publishers=2,
        policy=automatic_on((master, mirror)),
        persistent_percent=100,
    )
    scene.traffic(0, 1_000, operations // 3)
    at_ms = 1_500.0
    while at_ms < scene.length_ms:
        scene.at(at_ms, "slow_link", master, mirror, chance.choice((300, 1_000)))
        for _ in range(4):
            scene.publish(at_ms + chance.uniform(5, 40), 0, burst=4)
        scene.at(at_ms + 45, "kill", entry)
        scene.at(at_ms + chance.uniform(50, 150), "start", entry)
        for _ in range(10):
            scene.publish(at_ms + chance.uniform(300, 1_500), 0, burst=1)
        scene.at(at_ms + chance.uniform(300, 900), "ambush", 0, "confirm", chance.choice(("power", "kill")), 1)
        at_ms += chance.uniform(1_500, 2_500)
        scene.at(at_ms, "ambush_end", 0)
        scene.at(at_ms, "slow_link_end", master, mirror)
        at_ms += chance.uniform(800, 1_500)

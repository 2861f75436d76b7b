"""Clients that do more with a channel, or a queue, than one thing after the other."""

from __future__ import annotations

from chaos.sim.scenarios.operators import a_policy, away_or_late
from chaos.sim.scenarios.scene import ALL_AUTOMATIC, ALL_MANUAL, Scene, automatic_on
from chaos.sim.schedule import LODGINGS
from chaos.sim.troubles import draw_work


def work(scene: Scene, operations: int) -> None:
    """Workers consume several queues on one channel, acknowledge and give back many at once, get, cancel, consume
    again, and open their channels anew, while masters end or move, nodes stand still, and links break or are slow."""
    chance = scene.chance
    scene.change(
        queues=chance.choice((2, 3, 4)),
        publishers=2,
        consumers=chance.choice((0, 1)),
        workers=2,
        prefetch=chance.choice((3, 10, 100)),
        has_channel_limits=chance.random() < 0.4,
        body_bytes_max=chance.choice((50, 500, 9_000, 300_000)),
        policy=chance.choice((ALL_AUTOMATIC, ALL_AUTOMATIC, ALL_MANUAL, a_policy(scene))),
    )
    scene.traffic(0, scene.length_ms, operations * (1 if scene.personality.body_bytes_max > 9_000 else 3))
    scene.steps += draw_work(chance, scene.personality, scene.length_ms, operations)
    _disturb(scene, 700.0)


def keepers(scene: Scene, operations: int) -> None:
    """Auto-delete queues with messages have a consumer that stays, and others that go. The node of the consumer stands
    still, is cut off or slow to reach while the master ends or moves; then others end."""
    chance = scene.chance
    count = len(scene.nodes)
    scene.change(policy=chance.choice((ALL_AUTOMATIC, ALL_AUTOMATIC, ALL_MANUAL)))
    scene.traffic(0, scene.length_ms, operations // 3)
    home, entry = chance.sample(range(count), 2)
    for number in range(chance.choice((2, 3))):
        lasts_ms, passing_ms = chance.choice((2_500, 4_000, 7_000)), chance.choice((0, 300, 900, 1_500, 3_000))
        scene.at(chance.uniform(200, 700), "keep", number, lasts_ms, passing_ms, home, entry)
    master, at_ms = scene.nodes[home], 1_000.0
    consumer, others = scene.nodes[entry], [each for each in scene.nodes if each != scene.nodes[entry]]
    while at_ms < scene.length_ms - 1_000:
        lasts_ms = chance.choice((100, 700, 1_500, 3_300))
        match chance.choice(("pause", "pause", "isolate", "cut", "slow", "reset", "")):
            case "pause" | "isolate" as kind:
                scene.at(at_ms, kind, consumer)
                scene.at(at_ms + lasts_ms, f"{kind}_end", consumer)
            case "cut":
                scene.cut(consumer, chance.choice(others), at_ms, at_ms + lasts_ms)
            case "slow":
                one, other = chance.sample((consumer, chance.choice(others)), 2)
                scene.at(at_ms, "slow_link", one, other, chance.choice((100, 1_000)))
                scene.at(at_ms + lasts_ms, "slow_link_end", one, other)
            case "reset":
                scene.at(at_ms, "reset", consumer, chance.choice(others), chance.choice(("both", "one", "other")), 0)
        moved_ms = at_ms + chance.choice((-300, 0, 10, 200))
        match chance.choice(("kill", "stop", "policy", "policy", "rebalance", "pause", "")):
            case "kill" | "stop" as end:
                scene.at(moved_ms, end, master)
                scene.at(moved_ms + chance.uniform(100, 1_500), "start", master)
            case "policy":
                heirs = chance.sample(scene.nodes, len(scene.nodes) - 1)
                scene.at(moved_ms, "policy", automatic_on(heirs))
            case "rebalance":
                scene.at(moved_ms, "rebalance", chance.choice(others))
            case "pause":
                scene.at(moved_ms, "pause", master)
                scene.at(moved_ms + lasts_ms, "pause_end", master)
        master = chance.choice(others)
        at_ms += lasts_ms + chance.uniform(300, 1_200)


def sent_away(scene: Scene, operations: int) -> None:
    """The node of auto-delete queues returns and is kept from the others for a while: their consumers come before the
    queues are open. What it says to the node of the consumers is late from some moment on."""
    chance = scene.chance
    scene.change(policy={})
    scene.traffic(0, scene.length_ms, operations // 3)
    home, entry = chance.sample(range(len(scene.nodes)), 2)
    for number in range(2):
        scene.at(chance.uniform(200, 600), "keep", number, 7_000, 0, home, entry)
    master, consumer = scene.nodes[home], scene.nodes[entry]
    away_ms = chance.uniform(900, 1_500)
    back_ms = away_ms + chance.uniform(100, 500)
    open_ms = back_ms + chance.uniform(500, 2_500)
    scene.at(away_ms, "kill", master)
    scene.at(back_ms, "start", master)
    for other in scene.nodes:
        if other not in (master, consumer):
            scene.cut(master, other, away_ms, open_ms)
    slow_ms = open_ms - chance.uniform(100, 700)
    scene.at(slow_ms, "slow_link", master, consumer, chance.choice((1_000, 3_000)))
    scene.at(slow_ms + chance.choice((800, 1_600, 2_500)), "slow_link_end", master, consumer)


def overtaken(scene: Scene, operations: int) -> None:
    """The log comes late to the mirror of auto-delete queues, and another change of their records before the one by
    which it is the master. The consumers come before both, and hear late that they are sent away."""
    chance = scene.chance
    places = chance.sample(range(len(scene.nodes)), 4)
    master, heir, other, consumer = (scene.nodes[place] for place in places)
    scene.change(policy=automatic_on((master, heir)))
    scene.traffic(0, scene.length_ms, operations // 3)
    for number in range(2):
        scene.at(chance.uniform(200, 600), "keep", number, 7_000, 0, places[0], places[3])
    late_ms = chance.uniform(1_200, 1_800)
    for each in scene.nodes:
        if each not in (heir, consumer):
            scene.at(late_ms, "slow_link", each, heir, chance.choice((300, 1_000)))
            scene.at(late_ms + 6_000, "slow_link_end", each, heir)
    scene.at(late_ms, "slow_link", heir, consumer, 3_000)
    scene.at(late_ms + chance.choice((4_000, 6_000)), "slow_link_end", heir, consumer)
    scene.at(late_ms + chance.uniform(10, 100), "policy", automatic_on((master, heir, other)))
    gone_ms = late_ms + chance.uniform(120, 300)
    scene.at(gone_ms, "kill", master)
    scene.at(gone_ms + chance.uniform(5_000, 8_000), "start", master)


def _disturb(scene: Scene, at_ms: float) -> None:
    """One thing after the other, until the end."""
    chance = scene.chance
    while at_ms < scene.length_ms:
        one, lasts_ms = scene.any_node(), chance.uniform(50, 2_000)
        other = scene.any_node(one)
        kind = chance.choice(("kill", "stop", "power", "pause", "isolate", "reset", "slow", "move", "client", "ambush"))
        match kind:
            case "kill" | "stop" | "power":
                scene.at(at_ms, kind, one)
                scene.at(at_ms + lasts_ms, "start", one)
            case "pause" | "isolate":
                scene.at(at_ms, kind, one)
                scene.at(at_ms + lasts_ms, f"{kind}_end", one)
            case "reset":
                scene.at(at_ms, "reset", one, other, "both", chance.randrange(100))
            case "slow":
                scene.at(at_ms, "slow_link", one, other, chance.choice((10, 100)))
                scene.at(at_ms + lasts_ms, "slow_link_end", one, other)
            case "move":
                if chance.random() < 0.5:
                    scene.at(at_ms, "rebalance", one)
                else:
                    scene.at(at_ms, "policy", a_policy(scene))
            case "client":
                scene.at(at_ms, "reset", chance.choice(("w0", "w1")), one, chance.choice(("both", "one", "other")), 0)
            case _:
                moment, end = chance.choice(("confirm", "deliver")), chance.choice(("power", "kill", "pause"))
                scene.at(at_ms, "ambush", scene.any_queue(), moment, end, chance.choice((1, 100)))
                for queue in range(scene.personality.queues):
                    scene.at(at_ms + lasts_ms, "ambush_end", queue)
        at_ms += chance.uniform(200, 1_500)


def lodgers(scene: Scene, operations: int) -> None:
    """Users and vhosts are made, and deleted under clients that are connected, while nodes end, stand still, are cut
    off, or hear late of what is decided."""
    chance = scene.chance
    scene.traffic(0, scene.length_ms, operations // 3)
    for number in range(chance.choice((1, 2, 3))):
        at_ms = chance.uniform(200, 1_000)
        while at_ms < scene.length_ms:
            stays_ms, entry = chance.choice((0, 300, 1_500)), chance.randrange(len(scene.nodes))
            scene.at(at_ms, "lodging", number, stays_ms, chance.choice(LODGINGS), entry)
            at_ms += chance.uniform(300, 2_500)
    if chance.random() >= 0.3:
        away_or_late(scene, 800)


def returning(scene: Scene, operations: int) -> None:
    """Queues that refuse what comes while they are full get back, in many slices, what channels held that are reset,
    and a few messages are published meanwhile: those wait, and nobody else asks anything of the queue for a while."""
    chance = scene.chance
    scene.change(
        queues=chance.choice((1, 2)),
        publishers=2,
        consumers=3,
        workers=0,
        prefetch=chance.choice((20, 100)),
        overflow="reject-publish",
        length_max=chance.choice((20, 40)),
        hold_percent=100,
        requeue_percent=0,
        body_bytes_max=chance.choice((50, 9_000)),
        policy=chance.choice(({}, {}, ALL_AUTOMATIC, ALL_MANUAL)),
        thresholds={
            "node.queues.returns.RETURN_MAX": chance.choice((1, 2)),
            "node.queues.queue_process.LET_IN_MAX": chance.choice((1, 2)),
            "node.queues.queue_process.DISPATCH_MAX": chance.choice((1, 5)),
        },
    )
    for consumer in range(3):
        scene.at(100, "consume", consumer, scene.any_queue())
    at_ms = 400.0
    while at_ms < scene.length_ms:
        for queue in range(scene.personality.queues):
            scene.publish(at_ms, queue, burst=chance.randint(5, 15))
        at_ms += chance.uniform(30, 200)
        for consumer in range(3):
            if chance.random() < 0.7:
                scene.at(at_ms, "reset", f"c{consumer}", scene.any_node(), chance.choice(("both", "one", "other")), 0)
        for _ in range(chance.randint(1, 3)):
            scene.publish(at_ms + chance.uniform(0, 6), burst=1)
        at_ms += chance.uniform(100, 1_500)
    if chance.random() < 0.3:
        away_or_late(scene, 800)


def openings(scene: Scene, operations: int) -> None:
    """Nodes open their copies again, one after the other, on disks that take their time, while queues are deleted."""
    chance = scene.chance
    scene.change(
        queues=4,
        publishers=2,
        consumers=1,
        policy=chance.choice((ALL_AUTOMATIC, ALL_MANUAL)),
        sync_ms=chance.choice(((0.1, 20), (20, 200))),
        has_conditional_deletes=True,
        thresholds={"cluster.runtime.recoveries.BEGUN_MAX": chance.choice((1, 2))},
    )
    scene.traffic(100, scene.length_ms, operations)
    at_ms = 600.0
    while at_ms < scene.length_ms:
        node = scene.any_node()
        scene.at(at_ms, chance.choice(("kill", "power")), node)
        at_ms += chance.uniform(50, 600)
        scene.at(at_ms, "start", node)
        for _ in range(chance.randint(1, 4)):
            scene.at(
                at_ms + chance.uniform(50, 600), "delete_if", scene.any_queue(), chance.choice(("empty", "unused"))
            )
        at_ms += chance.uniform(300, 1_500)

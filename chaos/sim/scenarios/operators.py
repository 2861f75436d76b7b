"""What operators and careful clients ask for while masters change: deletions, policies, force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaos.sim.drawing import LINK_BYTES
from chaos.sim.hostile import HOSTILE
from chaos.sim.scenarios.scene import ALL_AUTOMATIC, ALL_MANUAL, Scene, automatic_on
from chaos.sim.schedule import WIRING_KINDS

#: Of a drawn choice, the consumers on links of which little may wait, and their largest message, as so many times what
#: congests the link: 72 MiB on a real one, where clients may publish 128. Half a dozen of these are more than may wait.
MANY_CONSUMERS = 36
LARGE_IN_LINK_BYTES = 9


def conditional_delete(scene: Scene, operations: int) -> None:
    """A queue is to be deleted if it is empty, or unused. Who is about to propose that is cut off or ends, and perhaps
    the master, too. Clients go on; then it is back, with what it wanted to propose."""
    chance = scene.chance
    nodes = scene.shuffled()
    scene.change(queues=1, consumers=chance.choice((0, 1)), hold_percent=0, requeue_percent=0, publishers=3)
    scene.change(
        has_conditional_deletes=True, persistent_percent=100, policy={"ha-mode": "nodes", "ha-params": nodes[:1]}
    )
    scene.at(300, "policy", automatic_on(nodes))
    scene.traffic(0, 1_500, operations // 3)
    at_ms = 1_800.0
    if chance.random() < 0.5:
        scene.at(at_ms, "purge", 0)
    scene.at(at_ms + 200, "lie_in_wait", "deleting", chance.choice(("isolate", "isolate", "isolate_kill")))
    for asked_ms in (250, 600):
        scene.at(at_ms + asked_ms, "delete_if", 0, chance.choice(("empty", "unused", "unused")))
    if chance.random() < 0.5:
        scene.at(at_ms + chance.uniform(260, 400), "kill", nodes[0])
    for one, other in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        scene.at(at_ms + 300, "reset", one, other, "both", 0)
    end_ms = at_ms + chance.choice((2_000, 7_500, 10_000))
    for _ in range(12):
        scene.publish(chance.uniform(at_ms + 300, end_ms), 0, burst=2)
    for node in scene.nodes:
        scene.at(end_ms, "isolate_end", node)
        scene.at(end_ms, "start", node)


def replacement(scene: Scene, operations: int) -> None:
    """A machine loses its disk for good, its node is forgotten and joins as a new one, while one of the others hears of
    what is decided late, or is away meanwhile; then the new node hears that one, or ends and begins again."""
    chance = scene.chance
    lost, late, *others = scene.shuffled()
    scene.traffic(0, scene.length_ms, operations)
    scene.at(600, "wipe", lost)
    at_ms = 4_000.0
    end_ms = at_ms + chance.uniform(300, 3_000)
    is_away = chance.random() < 0.5
    for other in others:
        if is_away:
            scene.cut(other, late, at_ms - chance.uniform(0, 300), end_ms)
        else:
            scene.at(at_ms - 100, "slow_link", other, late, 100)
            scene.at(end_ms, "slow_link_end", other, late)
    scene.at(at_ms + chance.uniform(0, 20), "forget", lost)
    if chance.random() < 0.3:
        scene.at(at_ms + chance.uniform(10, 300), "kill", lost)
        scene.at(at_ms + chance.uniform(300, 600), "start", lost)
    if chance.random() < 0.5:
        for other in others:
            scene.cut(other, lost, at_ms + chance.uniform(10, 200), end_ms + 500)
    scene.at(end_ms + 1_000, "wipe_end", lost)
    scene.at(end_ms + 1_000, "start", lost)


def lost_majority(scene: Scene, operations: int) -> None:
    """Machines are lost, as many as the others cannot go on without: the operator forgets them on one that is down.
    Before, some nodes may end, and be back or not; later, others come in the place of those that were lost."""
    chance = scene.chance
    nodes = scene.shuffled()
    scene.change(persistent_percent=chance.choice((50, 100)), consumers=chance.choice((0, 1, 2)))
    if chance.random() < 0.5:
        scene.change(policy=a_policy(scene))
    lost_ms = chance.uniform(1_500, 4_000)
    scene.traffic(0, lost_ms + 8_000, operations)
    for node in nodes[: chance.randint(0, len(nodes) - 1)]:
        at_ms = lost_ms - chance.uniform(0, 1_200)
        scene.at(at_ms, chance.choice(("kill", "power", "stop")), node)
        if chance.random() < 0.4:
            scene.at(min(lost_ms, at_ms + chance.uniform(100, 1_000)), "start", node)
    scene.at(lost_ms, "lose_for_good", chance.randint((len(nodes) - 1) // 2, len(nodes) - 1))
    at_ms = lost_ms + 4_500.0
    for node in scene.shuffled():
        at_ms += chance.choice((0, 50, 700, 2_000))
        scene.at(at_ms, "start", node)
    if chance.random() < 0.3:
        victim = scene.any_node()
        scene.at(lost_ms + chance.uniform(5_000, 7_000), chance.choice(("kill", "power")), victim)
        scene.at(lost_ms + chance.uniform(7_000, 9_000), "start", victim)
    if chance.random() < 0.3:
        victim = scene.any_node()
        scene.at(lost_ms + 4_400, "crash", victim, chance.randint(1, 60), chance.choice(("kill", "drop", "tear")))
        scene.at(lost_ms + chance.uniform(6_000, 8_000), "start", victim)


def growth(scene: Scene, operations: int) -> None:
    """Machines come that no configuration names, and are told to join. They and others end meanwhile; links break."""
    chance = scene.chance
    scene.change(policy=chance.choice((ALL_AUTOMATIC, ALL_AUTOMATIC, ALL_MANUAL, a_policy(scene))))
    scene.traffic(0, scene.length_ms, operations)
    comers = chance.sample(("a1", "n2b", "z1"), chance.choice((1, 1, 2)))
    at_ms = chance.uniform(500, 1_500)
    for comer in comers:
        scene.at(at_ms, "come", comer, scene.any_node())
        for _ in range(chance.choice((0, 1, 2))):
            victim = chance.choice((comer, comer, scene.any_node()))
            ended_ms = at_ms + chance.uniform(1_000, 3_500)
            scene.at(ended_ms, chance.choice(("kill", "power", "stop", "pause")), victim)
            scene.at(ended_ms + chance.uniform(100, 1_500), "start", victim)
            scene.at(ended_ms + 1_500, "pause_end", victim)
        if chance.random() < 0.4:
            one, cut_ms = scene.any_node(), at_ms + chance.uniform(500, 3_000)
            scene.cut(one, comer, cut_ms, cut_ms + chance.uniform(200, 4_000))
        if chance.random() < 0.3:
            crashed_ms = at_ms + chance.uniform(1_400, 2_600)
            ending = chance.choice(("kill", "drop", "subset", "tear"))
            scene.at(crashed_ms, "crash", comer, chance.randint(1, 60), ending)
            scene.at(crashed_ms + chance.uniform(500, 2_000), "start", comer)
        at_ms += chance.choice((0, 200, 1_500))


def _stays(scene: Scene, kind: str, pause_max_ms: float, ways: Sequence[str] = ()) -> None:
    """One to three of a kind (`chaos.sim.tenants`, `chaos.sim.wiring`), each again and again, in one of some ways."""
    chance = scene.chance
    for number in range(chance.choice((1, 2, 3))):
        at_ms = chance.uniform(300, 1_500)
        while at_ms < scene.length_ms:
            way = (chance.choice(ways),) if ways else ()
            scene.at(at_ms, kind, number, chance.choice((0, 300, 1_500)), *way)
            at_ms += chance.uniform(50, pause_max_ms)


def tenants(scene: Scene, operations: int) -> None:
    """Vhosts are made, used, deleted and made anew while nodes end, stand still, or are cut off."""
    chance = scene.chance
    scene.traffic(0, scene.length_ms, operations // 2)
    _stays(scene, "tenancy", 2_500)
    at_ms = 900.0
    while at_ms < scene.length_ms:
        victim, lasts_ms = scene.any_node(), chance.uniform(300, 3_000)
        begin = chance.choice(("kill", "power", "stop", "pause", "isolate", "crash"))
        more = (chance.randint(1, 60), chance.choice(("kill", "drop", "subset", "tear"))) if begin == "crash" else ()
        scene.at(at_ms, begin, victim, *more)
        scene.at(at_ms + lasts_ms, f"{begin}_end" if begin in ("pause", "isolate") else "start", victim)
        at_ms += chance.uniform(600, 2_500)


def wirings(scene: Scene, operations: int) -> None:
    """Exchanges and bindings are made, used and taken away while nodes end, lag behind, stand still, or are cut off."""
    chance = scene.chance
    scene.change(log_entries_kept=chance.choice((0, 5)), slice_pieces=chance.choice((0, 1, 3)))
    scene.traffic(0, scene.length_ms, operations // 2)
    _stays(scene, "wiring", 1_500, WIRING_KINDS)
    away_or_late(scene, 600)


def away_or_late(scene: Scene, pause_min_ms: int) -> None:
    """Nodes end, stand still, are cut off, or hear late of what is decided, one after the other."""
    chance = scene.chance
    at_ms = 900.0
    while at_ms < scene.length_ms:
        victim, lasts_ms = scene.any_node(), chance.uniform(300, 3_000)
        begin = chance.choice(("kill", "power", "stop", "pause", "isolate", "late", "late"))
        if begin == "late":
            for other in scene.nodes:
                if other != victim:
                    scene.at(at_ms, "slow_link", other, victim, chance.choice((20, 100, 300)))
                    scene.at(at_ms + lasts_ms, "slow_link_end", other, victim)
        else:
            scene.at(at_ms, begin, victim)
            scene.at(at_ms + lasts_ms, f"{begin}_end" if begin in ("pause", "isolate") else "start", victim)
        at_ms += chance.uniform(pause_min_ms, 2_500)


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


def rebalancing(scene: Scene, operations: int) -> None:
    """A node was away, and masters are spread anew while consumers hold much and give back. Some nodes hear late of
    what is committed, links break, and one of those concerned may end."""
    chance = scene.chance
    scene.change(queues=chance.choice((2, 3, 4)), consumers=2, hold_percent=30, requeue_percent=20)
    scene.traffic(0, scene.length_ms, operations * 2)
    at_ms = 600.0
    while at_ms < scene.length_ms:
        away = scene.any_node()
        scene.at(at_ms, chance.choice(("stop", "kill")), away)
        scene.at(at_ms + 300, "start", away)
        at_ms += chance.uniform(900, 1_800)
        one, other = scene.shuffled()[:2]
        if chance.random() < 0.4:
            scene.at(at_ms - 10, "slow_link", one, other, chance.choice((20, 100)))
            scene.at(at_ms + 500, "slow_link_end", one, other)
        for publish_ms in (-20, 5, 40):
            scene.publish(at_ms + publish_ms)
        scene.at(at_ms, "rebalance", scene.any_node(away))
        if chance.random() < 0.3:
            scene.at(at_ms + chance.uniform(0, 30), "reset", one, other, "both", 0)
        if chance.random() < 0.5:
            ended = scene.any_node()
            scene.at(at_ms + chance.uniform(0, 60), chance.choice(("kill", "power", "stop")), ended)
            scene.at(at_ms + chance.uniform(400, 900), "start", ended)
        at_ms += chance.uniform(900, 1_500)


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


def lost_answers(scene: Scene, operations: int) -> None:
    """A short queue refuses some of what comes and takes what comes later, and says so slowly to a node whose link
    breaks meanwhile: that sends all of it again when there is room."""
    chance = scene.chance
    master, other, entry = scene.shuffled()[:3]
    scene.change(queues=1, publishers=3, consumers=2, requeue_percent=0, hold_percent=0, prefetch=1)
    scene.change(overflow="reject-publish", length_max=chance.choice((1, 2, 3)), slow_chunks_percent=0)
    scene.change(policy={"ha-mode": "nodes", "ha-params": chance.choice(([master], [master, other]))})
    scene.traffic(0, 400, operations // 6)
    at_ms = 800.0
    while at_ms < scene.length_ms:
        scene.at(at_ms, "slow_link", master, entry, 300)
        for _ in range(max(2, operations // 6)):
            scene.publish(at_ms + chance.uniform(0, 60), 0, burst=chance.randint(1, 8))
        at_ms += chance.uniform(60, 90)
        scene.at(at_ms, "reset", master, entry, "both", chance.choice((0, 0, 50)))
        scene.at(at_ms, "slow_link_end", master, entry)
        at_ms += chance.uniform(300, 600)


def small_frames(scene: Scene, operations: int) -> None:
    """What a master did in a turn leaves in many frames, slowly, and its power goes before the last of them arrives.
    Some consumers acknowledge nothing, so that messages are given away that were never stored."""
    chance = scene.chance
    one, near, far = scene.shuffled()[:3]
    scene.change(queues=1, consumers=2, hold_percent=100, frame_bytes_max=120, prefetch=3, publishers=3)
    scene.change(policy={"ha-mode": "nodes", "ha-params": [one]}, persistent_percent=100, slow_chunks_percent=0)
    scene.at(400, "policy", automatic_on((one, near, far)))
    for _ in range(operations // 10):
        scene.publish(chance.uniform(0, 1_000), 0)
    scene.at(1_000, "consume", 0, 0)
    scene.at(1_000, "take_all", 1, 0)
    at_ms = 1_800.0
    for other in (near, far):
        scene.at(at_ms, "slow_link", one, other, 100)
        scene.at(at_ms + 2_000, "slow_link_end", one, other)
    scene.at(at_ms - 5, "restart_consumer", 0, 0)
    for _ in range(3):
        scene.publish(at_ms + chance.uniform(150, 250), 0, burst=12)
    scene.at(at_ms + chance.uniform(160, 600), "power", one)
    scene.at(at_ms + 3_000, "start", one)


def hostile_commands(scene: Scene, operations: int) -> None:
    """Commands come into the log that no release would propose, while nodes restart."""
    chance = scene.chance
    scene.traffic(0, scene.length_ms, operations)
    for number in range(1, 5):
        scene.at(chance.uniform(500, scene.length_ms), "hostile", number, chance.choice(list(HOSTILE)))
    victim = scene.any_node()
    at_ms = chance.uniform(600, scene.length_ms)
    scene.at(at_ms, "kill", victim)
    scene.at(at_ms + chance.uniform(100, 1_500), "start", victim)


def full_links(scene: Scene, operations: int) -> None:
    """Links of which little may wait are slow while clients publish much, and while consumers come to what was
    published; some break. Each consumer has no more on its way than its window, or one large message; where there are
    many, those of one node together have more than may wait for its link."""
    chance = scene.chance
    link_bytes = chance.choice(LINK_BYTES)
    scene.change(link_bytes=link_bytes, body_bytes_max=9_000, queues=chance.choice((2, 3)), publishers=3)
    scene.change(consumers=3, prefetch=100, hold_percent=0)
    if chance.random() < 0.5:
        scene.change(consumers=MANY_CONSUMERS, body_bytes_max=LARGE_IN_LINK_BYTES * link_bytes)
    for one in scene.nodes:
        for other in scene.nodes:
            if one != other and chance.random() < 0.7:
                scene.at(chance.uniform(0, 1_500), "slow_link", one, other, chance.choice((10, 100)))
                scene.at(chance.uniform(3_000, 5_000), "slow_link_end", one, other)
    for _ in range(operations):
        scene.publish(chance.uniform(0, 2_500), burst=chance.randint(4, 12))
    for consumer in range(scene.personality.consumers):
        for _ in range(3):
            scene.at(chance.uniform(1_000, 3_000), "consume", consumer, scene.any_queue())
    for _ in range(chance.choice((0, 0, 2))):
        one = scene.any_node()
        scene.at(chance.uniform(500, 4_000), "reset", one, scene.any_node(one), "both", chance.randrange(100))

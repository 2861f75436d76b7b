"""Steps of a seed that came to be drawn later than its other ones, and leave all of these as they were.

Each kind has generators of its own, and most seeds have none of it:

- *troubles* of disks that the faults of a personality do not have: hanging, unreadable, no room for one kind of files,
  no descriptors; or a fault that outlasts every timeout, where there is the time;
- *settings*: policies that change the version, the mode and the limits of queues;
- *fan-outs*: messages that go to several queues at once;
- *work* of clients that do much on one channel;
- *keeping* of auto-delete queues, while masters change;
- *visits* of guests whose queues are not durable and have messages on the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from chaos.sim.schedule import Personality, Step, node_name
from chaos.sim.settings import draw_setting

#: How many of the seeds have them.
TROUBLES_SHARE = 0.2
SETTINGS_SHARE = 0.12
FAN_OUTS_SHARE = 0.2
#: Of those in which guests come.
VISITS_SHARE = 0.4
WORK_SHARE = 0.15
KEEPING_SHARE = 0.3
#: What workers are told to do, and how often; those about a queue first.
ERRANDS = ("consume", "cancel", "get", "get", "reopen", "settle_all", "settle_all", "drop")
QUEUE_ERRANDS = frozenset({"consume", "cancel", "get"})
#: How long each trouble lasts (ms, shortest and longest).
TROUBLES: Mapping[str, tuple[int, int]] = {
    "hang_disk": (500, 14_000),
    "fail_reads": (200, 5_000),
    "full_kind": (300, 5_000),
    "short_of_files": (300, 6_000),
}
#: What may last so long, and how long that is; in seeds that are that long.
LONG_FAULTS = ("pause", "full_disk", "hang_disk", "memory_alarm")
LONG_MS = (12_000, 25_000)
LONG_SEED_MIN_MS = 15_000
#: Parts of paths: of indexes, of messages beside them, of the shared stores, of the log of the metadata, of some of
#: these; and of what can be unreadable without a node being unable to start for good.
KINDS_OF_FILES = (".qi", ".qs", "/queues/", "msg_store_persistent", "msg_store_transient", "/msg_store", "/raft/")
READ_PLACES = (".qi", ".qs", "/queues/", "/msg_store", "/vhosts/")
#: Steps after which a queue may have been away for a while, and what is published to several may miss it.
UNBINDING = frozenset({"delete", "delete_if", "wipe", "forget"})


def draw_troubles(chance: Random, nodes: int, end_ms: int, share: float) -> list[Step]:
    """Of one seed; ``share``: how much of the longest time it has."""
    if chance.random() >= TROUBLES_SHARE:
        return []
    steps: list[Step] = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        at_ms, node = chance.uniform(0.05, 0.9) * end_ms, node_name(chance.randint(1, nodes))
        kind = chance.choice(list(TROUBLES))
        shortest, longest = TROUBLES[kind]
        lasts_ms = shortest * (max(longest * share, shortest) / shortest) ** chance.random()
        steps.append(Step(int(at_ms), kind, (node, *_arguments(chance, kind))))
        steps.append(Step(int(at_ms + lasts_ms), f"{kind}_end", (node,)))
        if chance.random() < 0.3:
            steps.append(Step(int(at_ms + chance.uniform(10, lasts_ms)), chance.choice(("kill", "stop")), (node,)))
        # What could not start without it does now.
        steps.append(Step(int(at_ms + lasts_ms + 20), "start", (node,)))
    if end_ms >= LONG_SEED_MIN_MS and chance.random() < 0.5:
        at_ms, node, kind = chance.uniform(500, 5_000), node_name(chance.randint(1, nodes)), chance.choice(LONG_FAULTS)
        steps += [
            Step(int(at_ms), kind, (node,)),
            Step(int(at_ms + chance.uniform(*LONG_MS)), f"{kind}_end", (node,)),
        ]
    return steps


def _arguments(chance: Random, kind: str) -> tuple[str | int, ...]:
    """Besides the node."""
    if kind == "full_kind":
        return (chance.choice(KINDS_OF_FILES),)
    if kind == "fail_reads":
        return (chance.choice(READ_PLACES),)
    return (chance.choice((0, 0, 1, 3, 8)),) if kind == "short_of_files" else ()


def draw_settings(chance: Random, personality: Personality, end_ms: int) -> list[Step]:
    """Of one seed: the policy that it has, with something added. Not where a limit is to be kept in one way."""
    if chance.random() >= SETTINGS_SHARE or personality.overflow:
        return []
    return [
        Step(int(chance.uniform(0, end_ms)), "policy", ({**personality.policy, **draw_setting(chance)},))
        for _ in range(chance.choice((2, 4, 8)))
    ]


def draw_fan_outs(chance: Random, personality: Personality, end_ms: int, others: Sequence[Step]) -> list[Step]:
    """Of one seed with these steps besides: none if a queue can be away, or refuse what another has taken."""
    p = personality
    is_unfit = p.queues < 2 or p.overflow or not UNBINDING.isdisjoint(step.kind for step in others)
    if chance.random() >= FAN_OUTS_SHARE or is_unfit:
        return []
    steps = []
    for _ in range(chance.choice((5, 15))):
        queues = sorted(chance.sample(range(p.queues), chance.randint(2, p.queues)))
        # What a mirror is filled with at so many bytes a second must not outlast the run.
        large = p.body_bytes_max if p.sync_throughput_bytes else 9_000
        burst, size = chance.randint(1, 4), chance.choice((p.body_bytes_max, large))
        is_persistent = int(chance.randrange(100) < p.persistent_percent)
        arguments = (chance.randrange(p.publishers), queues, burst, chance.randint(0, size), is_persistent)
        steps.append(Step(int(chance.uniform(0, end_ms)), "fan_out", arguments))
    return steps


def draw_visits(chance: Random, personality: Personality, end_ms: int) -> list[Step]:
    """Of one seed with guests."""
    if chance.random() >= VISITS_SHARE or not personality.guests:
        return []
    return [
        Step(int(chance.uniform(0, end_ms)), "guest", (chance.randrange(personality.guests), "paged"))
        for _ in range(chance.choice((1, 2, 4)))
    ]


def draw_workers(chance: Random) -> int:
    """How many one seed has."""
    return chance.choice((1, 2)) if chance.random() < WORK_SHARE else 0


def draw_work(chance: Random, personality: Personality, length_ms: float, errands: int) -> list[Step]:
    """What each worker of a seed does: so many errands, and most of them at a time when it consumes."""
    steps = []
    for worker in range(personality.workers):
        queues = sorted(chance.sample(range(personality.queues), chance.randint(1, personality.queues)))
        steps.append(Step(int(chance.uniform(0, length_ms / 6)), "work", (worker, queues)))
        for _ in range(errands):
            what = chance.choice(ERRANDS)
            about = (chance.randrange(personality.queues),) if what in QUEUE_ERRANDS else ()
            steps.append(Step(int(chance.uniform(300, length_ms)), "worker_does", (worker, what, *about)))
    return steps


def draw_keeping(chance: Random, personality: Personality, end_ms: int, others: Sequence[Step]) -> list[Step]:
    """Of one seed with these steps besides: none where a node may lose the only copy for good."""
    if chance.random() >= KEEPING_SHARE or not {"wipe", "forget"}.isdisjoint(step.kind for step in others):
        return []
    steps = []
    for number in range(chance.choice((1, 2, 3))):
        lasts_ms, passing_ms = chance.choice((1_000, 2_500, 4_000)), chance.choice((0, 300, 1_500))
        entries = [chance.randrange(personality.nodes) for _ in range(2)]
        steps.append(Step(int(chance.uniform(0, end_ms)), "keep", (number, lasts_ms, passing_ms, *entries)))
    return steps

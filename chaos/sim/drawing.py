"""How a seed becomes a schedule: what its world is like, what its clients do, and which faults meet them.

Everything that is drawn has a generator of its own, named after the seed and what it is for (`drawn_for`): one for the
personality, one for each operation of the workload, one for each fault. So a kind of fault more, or one draw more in an
operation, changes that one and leaves the others as they were.

The operations of a seed are always as many; the time that they are spread over is drawn, too (`LENGTH_SHARES`). Most
seeds do in a few seconds what a few do in the whole time: an idle second costs a cluster as much as some operations and
finds nothing. In a short seed faults follow each other faster and last shorter; what takes many seconds (a peer that
says nothing until its link is cut, a client that is given up, a machine that is replaced) is for the long ones. Short
is what takes little of `LONGEST_MS`, because it was drawn so or asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from chaos.sim.schedule import EXCLUSIVE, FIRST, TOLD, WIRING_KINDS, Personality, Schedule, Step, node_name
from chaos.sim.thresholds import draw_thresholds
from chaos.sim.troubles import (
    draw_fan_outs,
    draw_keeping,
    draw_settings,
    draw_troubles,
    draw_visits,
    draw_work,
    draw_workers,
)

#: Messages of one publish step at most.
BURST_MAX = 12
#: Faults that one seed may choose from, and how long each lasts (ms, shortest and longest).
FAULTS: Mapping[str, tuple[int, int]] = {
    "kill": (50, 8_000),
    "power": (50, 8_000),
    "power_all": (200, 3_000),
    "crash": (50, 8_000),
    "stop": (200, 6_000),
    "pause": (20, 9_000),
    "cut": (20, 9_000),
    "cut_one_way": (20, 9_000),
    "isolate": (20, 9_000),
    "swizzle": (500, 6_000),
    "reset": (0, 0),
    "refuse": (100, 4_000),
    "slow_link": (100, 6_000),
    "slow_disk": (100, 6_000),
    "full_disk": (300, 5_000),
    "fail_sync": (200, 5_000),
    "fail_writes": (200, 5_000),
    "clock_jump": (0, 0),
    "memory_alarm": (200, 5_000),
    "client_cut": (200, 20_000),
    "client_cut_one_way": (200, 20_000),
    "client_reset": (0, 0),
    "client_slow": (100, 6_000),
    "ambush": (500, 8_000),
    "wipe": (50, 12_000),
}
#: How many of the seeds have a fault, and where it is another share.
FAULT_SHARE = 0.25
FAULT_SHARES: Mapping[str, float] = {"ambush": 0.5}
#: Under these a living node may be one that nobody waits for, and serve what it knew for a moment, as
#: `cluster.runtime.standing` admits (*Whom the wait leaves out*): one that stands still while others are refused by its
#: address, or that loses its links one after the other.
LEAVING_OUT = frozenset({"refuse", "cut", "cut_one_way", "isolate", "swizzle"})
#: How many of the seeds begin with nodes of the release before.
EARLIER_SHARE = 0.25
#: How many have consumers that ask for more than messages, and for what.
PRIVILEGES_SHARE = 0.25
CONSUMER_KINDS = ((EXCLUSIVE,), (EXCLUSIVE, ""), (FIRST, ""), (TOLD, ""), (TOLD, FIRST, ""))
#: In how many of them the prefetch is the limit of a channel.
LIMITS_SHARE = 0.25
#: How many seeds have links that a burst of publishes, or what a consumer lacks, is too much for, and what is.
SMALL_LINKS_SHARE = 0.2
LINK_BYTES = (2_000, 8_000, 32_000)
#: How a node ends within an operation of its disk: killed, or with the power in one of the styles of a crash.
CRASH_ENDS = ("kill", "drop", "subset", "tear")
#: How much of the longest time a seed takes, but not less than `SHORTEST_MS`.
LENGTH_SHARES = (0.2, 0.2, 0.3, 0.5, 1.0)
SHORTEST_MS = 3_000
LONGEST_MS = 20_000
#: Machines are replaced in seeds that may be so long: it takes a dozen seconds.
REPLACEMENT_LENGTH_MIN_MS = 10_000
#: Faults do not follow each other faster than this because the seed is short.
FAULT_PAUSE_MIN_MS = 400
#: Which files a disk refuses to write, by a part of their paths.
WRITTEN_PLACES = ("/queues/", "/msg_store", "/")
SYNCED_PLACES = ("/queues/", "/msg_store", "/raft/")


def drawn_for(seed: int, *name: object) -> Random:
    """The generator of one thing."""
    return Random(" ".join(map(str, (seed, *name))))


def draw_personality(chance: Random, nodes: int) -> Personality:
    """See `Personality`."""
    slowness = chance.choice((1, 1, 1, 3, 10))
    faults = [fault for fault in FAULTS if chance.random() < FAULT_SHARES.get(fault, FAULT_SHARE)]
    faults = faults or [chance.choice(list(FAULTS))]
    overflow = chance.choice(("", "", "", "drop-head", "reject-publish"))
    return Personality(
        nodes=nodes,
        queues=chance.choice((1, 1, 2, 3)),
        publishers=chance.choice((1, 2, 3)),
        consumers=chance.choice((0, 1, 2, 3)),
        policy=draw_policy(chance, nodes),
        queue_version=chance.choice((1, 2, 2)),
        is_lazy=chance.random() < 0.2,
        is_flush=chance.random() < 0.1,
        segment_entries=chance.choice((8, 16, 64)),
        embed_below_bytes=chance.choice((0, 100, 4096)),
        file_size_limit_bytes=chance.choice((4_000, 40_000, 1_000_000)),
        compaction=chance.choice(("holes", "merge")),
        link_delay_ms=(0.05 * slowness, 0.5 * slowness * chance.choice((1, 1, 4))),
        slow_chunks_percent=chance.choice((0, 0, 1, 5)),
        sync_ms=(0.1, chance.choice((0.5, 3, 20))),
        turn_cost_ms=(0.02, chance.choice((0.05, 0.3, 2.0))),
        prefetch=chance.choice((1, 3, 10, 100)),
        persistent_percent=chance.choice((100, 100, 50, 0)),
        body_bytes_max=chance.choice((50, 50, 500, 9_000)),
        requeue_percent=chance.choice((0, 0, 10, 40)),
        hold_percent=chance.choice((0, 10, 50)),
        faults=tuple(faults),
        fault_every_ms=chance.choice((400, 1_500, 4_000)),
        overflow=overflow,
        length_max=chance.choice((5, 20, 60)) if overflow else 0,
        log_entries_kept=chance.choice((0, 0, 5, 20)),
        credit=chance.choice(((0, 0), (0, 0), (20, 10), (4, 2))),
        transactors=chance.choice((0, 0, 1, 2)),
        mandatory_percent=chance.choice((0, 0, 20, 100)),
        guests=chance.choice((0, 0, 1)),
        sync_throughput_bytes=chance.choice((0, 0, 1_000)),
        slice_pieces=chance.choice((0, 1, 1, 2, 5)),
    )


def draw_odd_ways(chance: Random, personality: Personality) -> Personality:
    """What some clients and operators do besides, drawn apart so that every other draw stays as it was."""
    return replace(
        personality,
        odd_percent=chance.choice((0, 5, 15)),
        has_conditional_deletes=chance.random() < 0.5,
        replacements=chance.choice((0, 0, 0, 0, 1, 2)),
        digest_segment_entries=chance.choice((0, 0, 4, 32)),
        # Two thirds of what an idle cluster says: often as configured by default, more often as seldom as may be.
        raft_heartbeat_ms=chance.choice((100, 300, 300)),
    )


def draw_policy(chance: Random, nodes: int) -> dict[str, Any]:
    """A mirroring policy, and rarely none."""
    mode = chance.choice(("all", "all", "exactly", "nodes", None))
    if mode is None:
        return {}
    policy: dict[str, Any] = {"ha-mode": mode}
    if mode == "exactly":
        policy["ha-params"] = chance.randint(2, nodes)
    if mode == "nodes":
        policy["ha-params"] = [node_name(n) for n in chance.sample(range(1, nodes + 1), chance.randint(1, nodes))]
    if chance.random() < 0.6:
        policy["ha-sync-mode"] = chance.choice(("automatic", "automatic", "manual"))
    if chance.random() < 0.3:
        policy["ha-sync-batch-size"] = chance.choice((1, 3))
    if chance.random() < 0.6:
        policy["ha-promote-on-failure"] = chance.choice(("when-synced", "when-synced", "always"))
    if chance.random() < 0.3:
        policy["ha-promote-on-shutdown"] = chance.choice(("when-synced", "always"))
    return policy


def draw_earlier_releases(chance: Random, nodes: int) -> tuple[str, ...]:
    """Nodes that begin with the release before: in most seeds none, else all or some."""
    if chance.random() >= EARLIER_SHARE:
        return ()
    count = nodes if chance.random() < 0.6 else chance.randint(1, nodes)
    return tuple(node_name(number) for number in sorted(chance.sample(range(1, nodes + 1), count)))


def draw_privileges(chance: Random, personality: Personality) -> Personality:
    """What consumers ask for besides messages: in most seeds nothing."""
    if chance.random() >= PRIVILEGES_SHARE:
        return personality
    kinds = chance.choice(CONSUMER_KINDS)
    has_single_active = EXCLUSIVE not in kinds and chance.random() < 0.4
    return replace(personality, consumer_kinds=kinds, has_single_active=has_single_active)


def draw_requests(chance: Random, personality: Personality) -> Personality:
    """What clients ask for besides, of brokers and of exchanges. What is wired is in one queue that must not be lost:
    not where machines are replaced, of which one may have had the only copy that is complete. And through whatever node
    it must be routed by what was told last: not under faults of `LEAVING_OUT`."""
    wirings = chance.choice((0, 1, 1, 2))
    is_certain = not personality.replacements and LEAVING_OUT.isdisjoint(personality.faults)
    return replace(
        personality,
        reject_percent=chance.choice((0, 0, 0, 20, 60)),
        wirings=wirings if is_certain else 0,
        has_flow=chance.random() < 0.2,
    )


def draw_links(chance: Random, personality: Personality) -> Personality:
    """How much may wait for a link: in most seeds more than there ever is."""
    if chance.random() >= SMALL_LINKS_SHARE:
        return personality
    return replace(personality, link_bytes=chance.choice(LINK_BYTES))


@dataclass
class _Drawing:
    """The steps of one seed as they are drawn; ``chance`` is the generator of what is drawn just now."""

    seed: int
    personality: Personality
    end_ms: int
    #: Of the longest time that was asked for.
    share: float
    chance: Random
    steps: list[Step] = field(default_factory=list)

    def at(self, at_ms: float, kind: str, *args: Any) -> None:
        self.steps.append(Step(int(at_ms), kind, args))

    def any_node(self) -> str:
        return node_name(self.chance.randint(1, self.personality.nodes))

    def all_nodes(self) -> list[str]:
        return [node_name(number) for number in range(1, self.personality.nodes + 1)]

    def two_nodes(self) -> tuple[str, str]:
        one, other = self.chance.sample(self.all_nodes(), 2)
        return one, other

    def any_client(self) -> str:
        p = self.personality
        kinds = ("p", p.publishers), ("c", p.consumers), ("w", p.workers)
        return self.chance.choice([f"{kind}{number}" for kind, count in kinds for number in range(count)])

    # --- what clients and operators do ---

    def workload(self, operations: int) -> None:
        """Publishes most of all, and what else clients and operators do."""
        p = self.personality
        for consumer in range(p.consumers):
            self.chance = drawn_for(self.seed, "consumer", consumer)
            self.at(self.chance.uniform(0, self.end_ms / 2), "consume", consumer, self.chance.randrange(p.queues))
        done = number = 0
        while done < operations:
            number += 1
            self.chance = drawn_for(self.seed, "operation", number)
            done += self._operation()

    def _operation(self) -> int:
        """One step, or none; how much of the workload it is."""
        chance, p = self.chance, self.personality
        at_ms = chance.uniform(0, self.end_ms)
        queue = chance.randrange(p.queues)
        kind = chance.choices(("publish", "get", "transaction", "rest"), (74, 8, 6, 12))[0]
        burst = chance.randint(1, BURST_MAX)
        size = chance.randint(0, p.body_bytes_max)
        is_persistent = int(chance.randrange(100) < p.persistent_percent)
        if kind == "transaction" and p.transactors:
            number, is_committed = chance.randrange(p.transactors), int(chance.random() < 0.7)
            self.at(at_ms, "transaction", number, queue, burst, size, is_persistent, is_committed)
            return burst
        if kind in ("publish", "transaction"):
            is_mandatory = int(chance.randrange(100) < p.mandatory_percent)
            publisher = chance.randrange(p.publishers)
            self.at(at_ms, "publish", publisher, queue, burst, size, is_persistent, is_mandatory)
            return burst
        if kind == "get":
            self.at(at_ms, "get", queue)
        else:
            self._rare(at_ms, queue)
        return 1

    def _rare(self, at_ms: float, queue: int) -> None:
        chance, p = self.chance, self.personality
        kind = chance.choice(_RARE)
        if kind in ("consume", "cancel", "recover", "restart_consumer"):
            if p.consumers:
                self.at(at_ms, kind, chance.randrange(p.consumers), queue)
        elif kind in ("reconnect", "nowhere"):
            self.at(at_ms, kind, chance.randrange(p.publishers))
        elif kind == "guest":
            if p.guests:
                self.at(at_ms, kind, chance.randrange(p.guests), chance.choice(("exclusive", "auto_delete")))
        elif kind == "delete_if":
            return  # drawn with the odd operations
        elif kind in ("purge", "delete") and chance.random() < (0.3 if kind == "purge" else 0.7):
            return  # they take everything away that could be lost
        elif kind == "policy":
            self.at(at_ms, kind, draw_policy(chance, p.nodes))
        elif kind == "cancel_sync":
            # Of something that has begun: new mirrors of what is there, which nobody fills before it is asked for.
            self.at(at_ms - 1_500, "policy", {"ha-mode": "nodes", "ha-params": [node_name(1)]})
            self.at(at_ms - 400, "policy", {"ha-mode": "all", "ha-sync-mode": "manual", "ha-sync-batch-size": 1})
            self.at(at_ms - 200, "sync", queue)
            self.at(at_ms, kind, queue)
        else:
            self.at(at_ms, kind, queue)

    def odd_operations(self, operations: int) -> None:
        """Besides the workload, so that it stays as it is: what is got without an acknowledgement or in a transaction,
        given back at once, or deleted on a condition (which holds most often soon after a purge)."""
        p = self.personality
        for number in range(operations * p.odd_percent // 100):
            chance = self.chance = drawn_for(self.seed, "odd operation", number)
            at_ms, queue = chance.uniform(0, self.end_ms), chance.randrange(p.queues)
            kind = chance.choice(("get_no_ack", "get_in_transaction", "give_back", "delete_if"))
            if kind == "get_no_ack":
                self.at(at_ms, kind, queue)
            elif kind == "get_in_transaction":
                self.at(at_ms, kind, queue, int(chance.random() < 0.6))
            elif kind == "give_back":
                if p.consumers:
                    self.at(at_ms, kind, chance.randrange(p.consumers), queue)
            elif p.has_conditional_deletes and chance.random() < 0.5:
                if chance.random() < 0.3:
                    self.at(at_ms - 100, "purge", queue)
                self.at(at_ms, kind, queue, chance.choice(("unused", "empty", "empty")))

    def wirings(self) -> None:
        """Exchanges and bindings that come and go besides the workload."""
        for number in range(self.personality.wirings):
            chance = self.chance = drawn_for(self.seed, "wiring", number)
            for _ in range(chance.choice((1, 2))):
                kind, lasts_ms = chance.choice(WIRING_KINDS), chance.choice((300, 800, 1_500))
                self.at(chance.uniform(0, 0.8) * self.end_ms, "wiring", number, lasts_ms, kind)

    def flows(self) -> None:
        """Some consumers want the broker to stop, which it refuses, or to go on, which it does."""
        p = self.personality
        for consumer in range(p.consumers if p.has_flow else 0):
            chance = self.chance = drawn_for(self.seed, "flow", consumer)
            self.at(chance.uniform(0.1, 0.9) * self.end_ms, "flow", consumer, int(chance.random() < 0.3))

    # --- faults ---

    def faults(self) -> None:
        """Faults of the kinds that this seed has chosen, one after the other or at once."""
        p = self.personality
        number = 0
        at_ms = drawn_for(self.seed, "first fault").uniform(500, 4_000) * self.share
        pause_ms_mean = max(p.fault_every_ms * self.share, FAULT_PAUSE_MIN_MS)
        while at_ms < self.end_ms:
            number += 1
            chance = self.chance = drawn_for(self.seed, "fault", number)
            kind = chance.choice(p.faults)
            shortest = FAULTS[kind][0]
            longest = max(FAULTS[kind][1] * self.share, shortest)
            lasts_ms = shortest * (longest / shortest) ** chance.random() if shortest else 0
            pause_ms = chance.expovariate(1 / pause_ms_mean)
            getattr(self, f"_{kind}", self._plain)(kind, at_ms, at_ms + lasts_ms)
            at_ms += pause_ms

    def _plain(self, kind: str, at_ms: float, end_ms: float) -> None:
        """A fault of one node that lasts for a time."""
        node = self.any_node()
        self.at(at_ms, kind, node)
        if end_ms > at_ms:
            self.at(end_ms, {"kill": "start", "power": "start", "stop": "start"}.get(kind, f"{kind}_end"), node)

    def _power_all(self, _kind: str, at_ms: float, end_ms: float) -> None:
        """Everything at once; the nodes come back in some order, some perhaps not before the end."""
        nodes = self.all_nodes()
        self.at(at_ms, "power", *nodes)
        for node in self.chance.sample(nodes, len(nodes)):
            if self.chance.random() < 0.8:
                self.at(end_ms, "start", node)
            end_ms += self.chance.choice((0, 10, 800, 3_000))

    def _crash(self, kind: str, at_ms: float, end_ms: float) -> None:
        """In the middle of a turn: in one of the next operations of its disk."""
        node = self.any_node()
        self.at(at_ms, kind, node, self.chance.randint(1, 40), self.chance.choice(CRASH_ENDS))
        self.at(end_ms, "start", node)

    def _cut(self, _kind: str, at_ms: float, end_ms: float) -> None:
        one, other = self.two_nodes()
        self._cut_both(one, other, at_ms, end_ms)

    def _cut_both(self, one: str, other: str, at_ms: float, end_ms: float) -> None:
        for a, b in ((one, other), (other, one)):
            self.at(at_ms, "cut", a, b)
            self.at(end_ms, "cut_end", a, b)

    def _cut_one_way(self, _kind: str, at_ms: float, end_ms: float) -> None:
        one, other = self.two_nodes()
        self.at(at_ms, "cut", one, other)
        self.at(end_ms, "cut_end", one, other)

    def _isolate(self, _kind: str, at_ms: float, end_ms: float) -> None:
        """One group of nodes against the rest."""
        nodes = self.all_nodes()
        group = self.chance.sample(nodes, self.chance.randint(1, len(nodes) - 1))
        for one in group:
            for other in nodes:
                if other not in group:
                    self._cut_both(one, other, at_ms, end_ms)

    def _swizzle(self, _kind: str, at_ms: float, end_ms: float) -> None:
        """Links cut one by one, and healed in another order: it finds what no clean partition does."""
        nodes = self.all_nodes()
        links = [(one, other) for one in nodes for other in nodes if one != other]
        chosen = self.chance.sample(links, self.chance.randint(2, len(links)))
        middle_ms = (at_ms + end_ms) / 2
        for link in chosen:
            self.at(self.chance.uniform(at_ms, middle_ms), "cut", *link)
            self.at(self.chance.uniform(middle_ms, end_ms), "cut_end", *link)

    def _reset(self, _kind: str, at_ms: float, _end_ms: float) -> None:
        self._reset_between(*self.two_nodes(), at_ms)

    def _reset_between(self, one: str, other: str, at_ms: float) -> None:
        told = self.chance.choice(("both", "both", "one", "other"))
        self.at(at_ms, "reset", one, other, told, self.chance.randrange(100))

    def _refuse(self, kind: str, at_ms: float, end_ms: float) -> None:
        one, other = self.two_nodes()
        self.at(at_ms, kind, one, other)
        self.at(end_ms, "refuse_end", one, other)
        if self.chance.random() < 0.5:
            self.at(at_ms + 1, "reset", one, other, "both", 0)

    def _slow_link(self, kind: str, at_ms: float, end_ms: float) -> None:
        one, other = self.two_nodes()
        self.at(at_ms, kind, one, other, self.chance.choice((10, 100, 1000)))
        self.at(end_ms, "slow_link_end", one, other)

    def _slow_disk(self, kind: str, at_ms: float, end_ms: float) -> None:
        node = self.any_node()
        self.at(at_ms, kind, node, self.chance.choice((10, 100, 1000)))
        self.at(end_ms, "slow_disk_end", node)

    def _full_disk(self, kind: str, at_ms: float, end_ms: float) -> None:
        """Now and then its node restarts while there is no room, or is to get a copy that it has no room for."""
        node = self.any_node()
        self.at(at_ms, kind, node, self.chance.choice((0, 300, 1_000, 3_000)))
        if self.chance.random() < 0.3:
            others = [other for other in self.all_nodes() if other != node]
            self.at(at_ms - 400, "policy", {"ha-mode": "nodes", "ha-params": others})
            self.at(at_ms + 10, "policy", {"ha-mode": "all", "ha-sync-mode": "automatic"})
        self.at(end_ms, "full_disk_end", node)
        if self.chance.random() < 0.4:
            self.at(at_ms + 10, "kill", node)
            self.at((at_ms + end_ms) / 2, "start", node)

    def _fail_sync(self, kind: str, at_ms: float, end_ms: float) -> None:
        """The node ends at the first one, and starts again on a disk that syncs. Half of them are the only one in some
        place."""
        node = self.any_node()
        self.at(at_ms, kind, node, *self.chance.choice(((), (), (), *((place,) for place in SYNCED_PLACES))))
        self.at(end_ms, "fail_sync_end", node)
        self.at(end_ms, "start", node)

    def _fail_writes(self, kind: str, at_ms: float, end_ms: float) -> None:
        node = self.any_node()
        self.at(at_ms, kind, node, self.chance.choice(WRITTEN_PLACES))
        self.at(end_ms, "fail_writes_end", node)

    def _clock_jump(self, kind: str, at_ms: float, _end_ms: float) -> None:
        self.at(at_ms, kind, self.any_node(), self.chance.choice((-20_000, 100, 2_000, 20_000, 3_600_000)))

    def _ambush(self, kind: str, at_ms: float, end_ms: float) -> None:
        """With something to wait for."""
        chance, p = self.chance, self.personality
        queue = chance.randrange(p.queues)
        moment = chance.choice(("confirm", "confirm", "deliver"))
        end, slowness = chance.choice(("power", "power", "kill", "pause")), chance.choice((1, 1000))
        self.at(at_ms, kind, queue, moment, end, slowness)
        for _ in range(2):
            self.at(at_ms + chance.uniform(0, 20), "publish", chance.randrange(p.publishers), queue, 6, 50, 1, 0)
        self.at(end_ms, f"{kind}_end", queue)

    # --- releases ---

    def upgrades(self) -> None:
        """One node after the other, or some of them, in any order; now and then one is taken back for a while."""
        for node in self.personality.earlier:
            chance = self.chance = drawn_for(self.seed, "upgrade", node)
            at_ms = chance.uniform(0.05, 0.9) * self.end_ms
            if chance.random() < 0.85:
                self.at(at_ms, "upgrade", node)
            if chance.random() < 0.2:
                self.at(at_ms + chance.uniform(500, 5_000), "downgrade", node)
                self.at(at_ms + chance.uniform(5_000, 9_000), "upgrade", node)

    # --- machines ---

    def replacements(self) -> None:
        """A machine loses its disk for good: its node is forgotten, and an empty one joins in its name. Besides the
        faults, so that these stay as they are."""
        for number in range(self.personality.replacements):
            chance = self.chance = drawn_for(self.seed, "replacement", number)
            at_ms, node = chance.uniform(0.05, 0.8) * self.end_ms, self.any_node()
            self.at(at_ms, "wipe", node)
            # Others know it to be down some seconds later; sometimes they are asked too early.
            self.at(at_ms + chance.choice((500, 4_000, 7_000)), "forget", node)
            self.at(at_ms + chance.uniform(9_000, 12_000), "wipe_end", node)

    # --- what came to be drawn later ---

    def later_kinds(self) -> None:
        """See `chaos.sim.troubles`."""
        p, end_ms = self.personality, self.end_ms
        self.steps += draw_troubles(drawn_for(self.seed, "troubles"), p.nodes, end_ms, self.share)
        self.steps += draw_settings(drawn_for(self.seed, "settings"), p, end_ms)
        self.steps += draw_fan_outs(drawn_for(self.seed, "fan-outs"), p, end_ms, self.steps)
        self.steps += draw_visits(drawn_for(self.seed, "visits"), p, end_ms)
        self.steps += draw_work(drawn_for(self.seed, "work"), p, end_ms, errands=15)
        self.steps += draw_keeping(drawn_for(self.seed, "keeping"), p, end_ms, self.steps)

    # --- faults between a client and a node ---

    def _client_cut(self, _kind: str, at_ms: float, end_ms: float) -> None:
        """From every node, or from one."""
        client = self.any_client()
        nodes = self.all_nodes() if self.chance.random() < 0.3 else [self.any_node()]
        for node in nodes:
            self._cut_both(client, node, at_ms, end_ms)

    def _client_cut_one_way(self, _kind: str, at_ms: float, end_ms: float) -> None:
        """Half open: one of the two hears the other."""
        ends = [self.any_client(), self.any_node()]
        self.chance.shuffle(ends)
        self.at(at_ms, "cut", *ends)
        self.at(end_ms, "cut_end", *ends)

    def _client_reset(self, _kind: str, at_ms: float, _end_ms: float) -> None:
        self._reset_between(self.any_client(), self.any_node(), at_ms)

    def _client_slow(self, _kind: str, at_ms: float, end_ms: float) -> None:
        ends = [self.any_client(), self.any_node()]
        self.chance.shuffle(ends)
        self.at(at_ms, "slow_link", *ends, self.chance.choice((10, 100, 1000)))
        self.at(end_ms, "slow_link_end", *ends)


#: Operations that are not publishes or gets, alike often.
_RARE = (
    "reconnect",
    "recover",
    "consume",
    "cancel",
    "sync",
    "cancel_sync",
    "purge",
    "policy",
    "delete",
    "delete_if",
    "restart_consumer",
    "nowhere",
    "guest",
)


def draw_schedule(seed: int, nodes: int = 3, operations: int = 200, length_ms: int = 20_000) -> Schedule:
    """The schedule of a seed: so many operations in ``length_ms`` or less. The same for ever, as long as this module
    stays as it is."""
    personality = draw_odd_ways(drawn_for(seed, "odd ways"), draw_personality(drawn_for(seed, "personality"), nodes))
    if length_ms < REPLACEMENT_LENGTH_MIN_MS:
        personality = replace(personality, replacements=0)
    drawn_ms = int(length_ms * drawn_for(seed, "length").choice(LENGTH_SHARES))
    length_ms = max(drawn_ms, min(length_ms, SHORTEST_MS))
    share = min(max(length_ms / LONGEST_MS, min(LENGTH_SHARES)), 1.0)
    personality = replace(personality, earlier=draw_earlier_releases(drawn_for(seed, "releases"), nodes))
    personality = draw_privileges(drawn_for(seed, "privileges"), personality)
    personality = draw_requests(drawn_for(seed, "requests"), personality)
    has_limits = drawn_for(seed, "limits").random() < LIMITS_SHARE
    personality = replace(personality, has_channel_limits=has_limits)
    personality = draw_links(drawn_for(seed, "links"), personality)
    personality = replace(personality, workers=draw_workers(drawn_for(seed, "workers")))
    personality = replace(personality, thresholds=draw_thresholds(drawn_for(seed, "thresholds")))
    drawing = _Drawing(seed, personality, length_ms, share, drawn_for(seed))
    drawing.workload(operations)
    drawing.odd_operations(operations)
    drawing.wirings()
    drawing.flows()
    drawing.faults()
    drawing.upgrades()
    drawing.replacements()
    drawing.later_kinds()
    # Python's sort keeps the order in which steps of one time were drawn.
    steps = tuple(sorted(drawing.steps, key=lambda step: step.at_ms))
    return Schedule(seed, personality, steps, max([length_ms, *(step.at_ms for step in steps)]) + 1)

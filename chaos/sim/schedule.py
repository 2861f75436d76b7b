"""What one seed does, as data: a personality, and a list of steps that any part can be taken out of.

**Personality.** Every seed has its own kind of world: how large, how fast, under which policy, with which faults at
all. A fault that is possible everywhere at a low rate meets nothing; one that a seed has chosen comes thick and fast
(FoundationDB's "buggify", TigerBeetle's swarm).

**Steps.** Everything that is done to the cluster, by its clients, its operator and the faults, is data: a time, a kind
and arguments. A schedule is therefore printed, kept in a file, replayed and *shrunk*: a failing one is run again with
parts of it left out, and what is left explains itself. For that each step carries all it needs, and what is still drawn
while it runs (delays, the time that turns and syncs take, what a loss of power leaves) comes from generators of their
own, one for each link, disk, life of a node and step, named after what they are for: leaving out a step leaves the
draws of all others as they were.

A fault that lasts (a cut, a pause) is a pair of steps, *begin* and *end*; taking the end away leaves it until the
*heal* at the end of the run. Steps that make no sense where they come (a kill of a dead node) do nothing.

The run has three parts: steps until `Schedule.steps_end_ms`; then everything is healed and started, and the cluster has
`Schedule.quiet_ms` to converge; then it must serve again, and is judged (`chaos.sim.ending`).

How a schedule is drawn from a seed: `chaos.sim.drawing`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

#: Of the file format.
FILE_VERSION = 1
#: What a consumer wants: the queue for itself, to be served before others, to be cancelled when the master changes.
EXCLUSIVE, FIRST, TOLD = "exclusive", "first", "told"
#: How messages find their way through the exchanges of a wiring (`chaos.sim.wiring`): by a binding of one of three
#: types of exchange, or by the alternate exchange that an argument or a policy names.
DIRECT, TOPIC, HEADERS, ARGUED, BY_POLICY = "direct", "topic", "headers", "argued", "policy"
WIRING_KINDS = (DIRECT, TOPIC, HEADERS, ARGUED, BY_POLICY)

#: What is deleted under a client that is connected (`chaos.sim.lodgers`): its user, its vhost, or both.
OF_USER, OF_VHOST, OF_BOTH = "user", "vhost", "both"
LODGINGS = (OF_USER, OF_VHOST, OF_BOTH)


class Step(NamedTuple):
    """Something that is done at a time; ``args`` are numbers, strings and lists of them."""

    at_ms: int
    kind: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:8.3f} {self.kind} {' '.join(map(str, self.args))}".rstrip()


@dataclass(frozen=True)
class Personality:
    """What a seed's world is like. Times in milliseconds."""

    nodes: int
    queues: int
    publishers: int
    consumers: int
    policy: Mapping[str, Any]
    queue_version: int
    is_lazy: bool
    is_flush: bool
    segment_entries: int
    embed_below_bytes: int
    file_size_limit_bytes: int
    compaction: str
    link_delay_ms: tuple[float, float]
    #: Of a hundred chunks, so many take ten times as long.
    slow_chunks_percent: int
    sync_ms: tuple[float, float]
    turn_cost_ms: tuple[float, float]
    prefetch: int
    persistent_percent: int
    body_bytes_max: int
    #: Of a hundred deliveries, so many are given back instead of acked, and so many held until the channel ends.
    requeue_percent: int
    hold_percent: int
    faults: tuple[str, ...]
    #: Pause between two faults, on average.
    fault_every_ms: int
    #: ``x-overflow`` and ``x-max-length`` of every queue; empty: no limit.
    overflow: str = ""
    length_max: int = 0
    #: Entries of the metadata log that are kept behind a snapshot, which is taken after twice as many; 0: as ever.
    log_entries_kept: int = 0
    #: Messages that every hop lends its sender, and after how many more; 0: as configured by default.
    credit: tuple[int, int] = (0, 0)
    #: Bytes a second that a mirror is filled with at most; 0: no limit.
    sync_throughput_bytes: int = 0
    #: Clients that publish in transactions.
    transactors: int = 0
    #: Of a hundred publishes, so many are mandatory.
    mandatory_percent: int = 0
    #: Clients that declare exclusive and auto-delete queues of their own.
    guests: int = 0
    #: Pieces of committed changes that a node carries out in one turn of its loop; 0: as many as there are.
    slice_pieces: int = 0
    #: Deletions that ask for an empty or an unused queue.
    has_conditional_deletes: bool = False
    #: Nodes that begin with the release before.
    earlier: tuple[str, ...] = ()
    #: Of a hundred operations, so many are rare ways to take messages: see `chaos.sim.drawing`.
    odd_percent: int = 0
    #: Nodes that lose their disks for good, are forgotten and join anew.
    replacements: int = 0
    #: Of what a master says to its mirrors, and each frame on its own; 0: as ever.
    frame_bytes_max: int = 0
    #: Nothing is cut, refused or killed: what was declared is known wherever clients are served.
    has_whole_links: bool = False
    #: How far ahead a master promises its mirrors what it will deliver; 0: as ever.
    horizon_step: int = 0
    #: Positions of which mirrors and masters compare one digest; 0: as ever.
    digest_segment_entries: int = 0
    #: `EXCLUSIVE` and others: what consumers ask for besides messages, by their numbers and again; empty: nothing.
    consumer_kinds: tuple[str, ...] = ()
    #: ``x-single-active-consumer`` of every queue.
    has_single_active: bool = False
    #: How often the leader of the metadata reports.
    raft_heartbeat_ms: int = 100
    #: ``prefetch`` is the limit of a channel, not of a consumer.
    has_channel_limits: bool = False
    #: Of a hundred messages, so many are settled, or given back, by a rejection.
    reject_percent: int = 0
    #: Clients whose exchanges and bindings come and go.
    wirings: int = 0
    #: Consumers ask for what the broker does not do, and for what it need not do.
    has_flow: bool = False
    #: Bytes that may wait for a link before whoever can wait does; whatever else is measured by it is smaller alike. 0:
    #: as ever, which no seed reaches.
    link_bytes: int = 0
    #: Clients that consume from several queues on one channel (`chaos.sim.workers`).
    workers: int = 0
    #: Numbers of the product that are small (`chaos.sim.thresholds`).
    thresholds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    """Everything about one run."""

    seed: int
    personality: Personality
    steps: tuple[Step, ...]
    steps_end_ms: int
    quiet_ms: int = 40_000
    #: Of `chaos.sim.scenarios`, if it was drawn for one.
    scenario: str = ""

    def without(self, gone: frozenset[int]) -> Schedule:
        """The same without the steps at these positions."""
        kept = tuple(step for position, step in enumerate(self.steps) if position not in gone)
        return replace(self, steps=kept)


def node_name(number: int) -> str:
    """Nodes count from 1."""
    return f"n{number}"


def write_schedule(schedule: Schedule, path: Path, found: str) -> None:
    """Keep a schedule in a file; ``found`` says which defect it has found."""
    document = {
        "version": FILE_VERSION,
        "found": found,
        "seed": schedule.seed,
        "steps_end_ms": schedule.steps_end_ms,
        "quiet_ms": schedule.quiet_ms,
        "scenario": schedule.scenario,
        "personality": asdict(schedule.personality),
        "steps": [[step.at_ms, step.kind, *step.args] for step in schedule.steps],
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items() if key != "steps"]
    steps = ",\n  ".join(json.dumps(step) for step in document["steps"])  # type: ignore[attr-defined]
    path.write_text("{\n" + ",\n".join([*lines, f' "steps": [\n  {steps}\n ]' if steps else ' "steps": []']) + "\n}\n")


def read_schedule(path: Path) -> Schedule:
    """A schedule that was kept. Fields of the personality that it does not know have their defaults."""
    document = json.loads(path.read_text())
    assert document["version"] == FILE_VERSION, f"{path}: version {document['version']} is not known"
    known = {field.name for field in fields(Personality)}
    kept: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in document["personality"].items()
        if key in known
    }
    steps = tuple(Step(at_ms, kind, tuple(args)) for at_ms, kind, *args in document["steps"])
    return Schedule(
        document["seed"],
        Personality(**kept),
        steps,
        document["steps_end_ms"],
        document["quiet_ms"],
        document.get("scenario", ""),
    )

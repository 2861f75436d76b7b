"""Numbers of the product that a small world never reaches: how many at once, how much in a turn, how many wait.

What is done in slices has an order only between slices, and whoever waits for a place only when all are taken. With a
few dozen messages nothing ever takes a second slice, and what lies between two of them is never seen. So in a share of
the seeds some of these numbers are small, down to one; which, is drawn for each seed (FoundationDB's *buggify*: a
personality of the whole run, not noise in single calls).

All of them are about *how* something is done, never about what is promised: what a small one breaks is a defect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from random import Random
from types import ModuleType
from typing import NamedTuple

from chaos.sim.ablation.safeguard import Replacing

#: Of the seeds, so many have small thresholds.
SHARE = 1 / 3
#: How many of them are small in one seed, of all.
SMALL_SHARES = (0.05, 0.25, 0.25, 0.6)
#: In all of these seeds: positions that a crash leaves out are gone through often where little is kept in memory.
_RESERVED = "node.store.index.terms.RESERVE_STEP"


class Threshold(NamedTuple):
    """A constant of a module that is looked at when it is needed."""

    module: str
    name: str
    #: What it may be instead.
    small: tuple[float, ...]
    #: Modules that have taken it over by name.
    users: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What a schedule calls it."""
        return f"{self.module}.{self.name}"


THRESHOLDS = (
    Threshold("node.queues.length_limits", "DROP_AT_ONCE", (1, 3), users=("node.queues.queue_process",)),
    Threshold("node.queues.length_limits", "DROP_MAX", (2, 7), users=("node.queues.queue_process",)),
    Threshold("node.queues.stages", "READ_AHEAD_MESSAGES", (1, 3, 10)),
    Threshold("node.queues.stages", "READ_AHEAD_BYTES", (500, 5000)),
    Threshold("node.queues.stages", "LOAD_MESSAGES", (1, 3, 10)),
    Threshold("node.queues.stages", "PAGE_OUT_MESSAGES", (1, 5), users=("node.queues.paging",)),
    Threshold("node.queues.stages", "MERGE_READ_BYTES", (500, 5000)),
    Threshold("node.queues.returns", "RETURN_MAX", (1, 2, 5)),
    Threshold("node.queues.content", "LEFT_MAX", (1, 4)),
    Threshold("node.queues.writes", "WRITE_BUFFER_BYTES", (100, 2000)),
    Threshold("node.queues.queue_process", "DISPATCH_MAX", (1, 2, 5)),
    Threshold("node.queues.queue_process", "LET_IN_MAX", (1, 2, 5)),
    Threshold("node.queues.vhost_store", "MAINTENANCE_MESSAGES", (1, 10)),
    Threshold("node.queues.vhost_store", "LOOKED_AT_MAX", (1, 10)),
    Threshold("node.queues.vhost_store", "WARMED_ENTRIES", (1, 10)),
    Threshold("node.queues.local_replica", "PREPARED_ENTRIES", (10, 100)),
    Threshold("node.queues.vhost_store", "QUEUES_PER_STEP", (1,)),
    Threshold("node.queues.vhost_store", "QUEUES_COUNTED_PER_STEP", (1,)),
    Threshold("node.queues.paging", "OPERATIONS_PER_LOOK", (1, 10)),
    Threshold("node.queues.sub_queue", "TOMBSTONES_MAX", (1, 4), users=("node.queues.unacked",)),
    Threshold("node.queues.events", "DELIVERY_WINDOW_MESSAGES", (2, 10)),
    Threshold("cluster.mirroring.sync", "SYNC_READ_MESSAGES", (1, 3)),
    Threshold("cluster.mirroring.sync", "SYNC_BATCHES_IN_FLIGHT", (1,), users=("cluster.mirroring.conversations",)),
    Threshold("cluster.mirroring.description", "PIECE_SEGMENTS", (1, 2)),
    Threshold("cluster.mirroring.progress", "UNDURABLE_FRAMES_MAX", (1, 3)),
    Threshold("cluster.mirroring.published", "_PASSED_TURNS_MAX", (1, 3)),
    Threshold("cluster.mirroring.conversations", "WINDOW_FRAMES", (2, 10)),
    Threshold("cluster.sessions.routes", "UNTRACKED_AT_ONCE", (1, 3)),
    Threshold("cluster.sessions.host", "TURN_S", (5e-6, 0.0001)),
    Threshold("cluster.sessions.gateway", "OPEN_S", (0.0,)),
    Threshold("cluster.runtime.drain_turns", "TURN_S", (5e-6, 0.0001)),
    Threshold("cluster.runtime.queue_ticks", "TURN_S", (5e-6, 0.0001)),
    Threshold("cluster.runtime.link_news", "TURN_S", (5e-6, 0.0001)),
    Threshold("cluster.runtime.link_line", "TURN_S", (5e-6, 0.0001)),
    Threshold("cluster.runtime.recoveries", "SLICE_S", (0.0, 0.0001)),
    Threshold("cluster.runtime.recoveries", "BEGUN_MAX", (1, 2)),
    Threshold("cluster.runtime.roles", "TAKE_UP_SLICE_S", (0.0,)),
    Threshold("cluster.runtime.node_runtime", "CLOSE_SLICE_S", (0.0,)),
    Threshold("node.amqp.server.turns", "TURN_S", (5e-6, 0.0001)),
    Threshold("cluster.runtime.admin_copies", "PROMOTIONS_AT_ONCE", (1,)),
    Threshold("cluster.runtime.queue_files", "STEPS_PER_OTHER", (1,)),
    Threshold("cluster.runtime.queue_files", "DELETED_PER_STEP", (1,)),
    Threshold("cluster.runtime.queue_files", "DELETED_AGAIN_MAX", (1,)),
    Threshold("cluster.runtime.queue_proposals", "OFFERS_PER_TURN", (1,)),
    Threshold("cluster.runtime.service_requests", "QUEUES_PER_REQUEST", (1,)),
    Threshold("cluster.runtime.rebalancing", "MOVES_AT_ONCE", (1,)),
    Threshold(
        "cluster.transport.turns",
        "ROWS_PER_TURN",
        (1,),
        users=(
            "cluster.runtime.admin",
            "cluster.runtime.admin_copies",
            "cluster.runtime.admin_rows",
            "cluster.transport.admin_codec",
        ),
    ),
    Threshold("cluster.raft.leadership", "MAX_APPEND_BYTES", (500, 3000)),
    Threshold("cluster.raft.progress", "MAX_IN_FLIGHT_REQUESTS", (1, 2)),
    Threshold("cluster.metadata.codec", "PIECE_BYTES", (64, 500)),
    Threshold("cluster.metadata.codec", "DECODED_PIECE_BYTES", (64, 500)),
    Threshold("cluster.metadata.masterships", "RECORDS_PER_PIECE", (1,)),
    Threshold("cluster.metadata.requests", "MAX_OUTSTANDING_REQUESTS", (1, 4), users=("cluster.runtime.raft_driver",)),
    Threshold("node.store.shared.compaction.compaction", "RUNNING_MAX", (1,)),
    Threshold("node.store.shared.compaction.compaction", "MERGES_RUNNING_MAX", (1,)),
    Threshold("node.store.shared.compaction.compaction", "TURN_S", (0.0,), users=("cluster.runtime.reclaimer",)),
    Threshold("node.store.shared.compaction.hole_filling", "HOLES_TRIED_MAX", (1, 4)),
    Threshold("node.store.shared.compaction.hole_filling", "CUT_BYTES", (1000,)),
    Threshold(
        "node.store.shared.compaction.relocation",
        "STEP_RECORDS",
        (1, 3),
        users=(
            "node.store.shared.compaction.hole_filling",
            "node.store.shared.compaction.merging",
        ),
    ),
    Threshold(
        "node.store.shared.compaction.relocation",
        "STEP_BYTES",
        (100, 5000),
        users=(
            "node.store.shared.compaction.hole_filling",
            "node.store.shared.compaction.merging",
        ),
    ),
    Threshold("node.store.shared.recovery", "RECORDS_PER_STEP", (1, 5)),
    Threshold("node.store.shared.recovery", "BYTES_PER_STEP", (100,)),
    Threshold("node.store.shared.recovery", "COMPARED_PER_STEP", (1,)),
    Threshold("node.store.shared.msg_store", "READ_BYTES_MAX", (100, 5000)),
    Threshold("node.store.shared.port", "REFERENCES_PER_STEP", (1, 5)),
    Threshold("node.store.shared.store_files", "OPEN_FILES_MAX", (1, 3)),
    Threshold("node.store.shared.store_file", "STEPS_AHEAD", (1,)),
    Threshold("node.store.disk.guarded", "COMPARED_PER_STEP", (1,)),
    Threshold("node.store.disk.guarded", "FORGOTTEN_PER_TICK", (1,)),
    Threshold("node.store.disk.length_file", "NOTES_PER_WRITE", (1,)),
    Threshold("node.store.disk.length_file", "SLOTS_PER_PIECE", (1,)),
    Threshold("node.store.deletions", "FILES_PER_STEP", (1,)),
    # Ten times a second for deleted queues: much less would take longer than anybody waits.
    Threshold("node.store.steps", "READ_BYTES_MAX", (1000,)),
    Threshold("node.store.index.v1.segment_files", "PARSED_SEGMENTS_MAX", (1,)),
    Threshold("node.store.index.v1.recovery", "APPENDED_PER_STEP", (1, 10)),
    Threshold("node.store.index.v1.index", "DELETIONS_MAX", (1,)),
    Threshold("node.store.index.v2.index", "DELETIONS_MAX", (1,)),
    Threshold("node.store.index.v2.index", "ACK_SEGMENTS_MAX", (1,)),
    Threshold("node.store.index.v2.recovery", "SYNCED_SEGMENTS", (1,)),
    Threshold("node.store.index.v2.segment_files", "OPEN_SEGMENTS_MAX", (1,)),
    Threshold("node.store.index.v2.segment_files", "ACK_RUNS_MAX", (1,)),
    Threshold("node.store.index.conversion", "PIECES_MAX", (1,)),
    Threshold("node.store.index.owed_references", "OWED_PER_FLUSH", (1,)),
    Threshold(
        "node.store.index.index",
        "ENTRIES_PER_PIECE",
        (1, 5),
        users=(
            "node.store.index.v1.scan",
            "node.store.index.v2.scan",
        ),
    ),
    Threshold(
        "node.store.index.index",
        "ENTRIES_PER_STEP",
        (1, 5),
        users=(
            "node.store.index.v1.recovery",
            "node.store.index.v1.scan",
            "node.store.index.v2.recovery",
        ),
    ),
    Threshold("node.store.queue_storage", "CONVERSION_STEP_ENTRIES", (1, 5)),
    Threshold("node.broker.channel", "COPIES_AT_ONCE", (1, 3)),
    Threshold("node.broker.channel", "LOOKED_AT_ONCE", (1, 3)),
    Threshold("node.broker.deletion", "DELETED_AT_ONCE", (1, 3)),
    Threshold("node.amqp.server.connection", "WRITE_HIGH_WATER_BYTES", (1000,)),
    Threshold("node.store.index.terms", "RESERVE_STEP", (4096,)),
    # How long somebody waits before it is tried again, or done without.
    Threshold("cluster.runtime.queue_deletions", "RETRY_S", (0.02,)),
    Threshold("cluster.runtime.queue_files", "DELETE_AGAIN_EVERY_MS", (100, 1000)),
    Threshold("cluster.runtime.out_of_service", "FAILURE_REPEAT_MS", (200, 2000)),
    Threshold("cluster.runtime.housekeeping", "LOOK_FOR_ROOM_EVERY_TICKS", (1,)),
    Threshold("cluster.runtime.housekeeping", "READMIT_EVERY_TICKS", (2,)),
    Threshold("cluster.runtime.housekeeping", "REPROPOSE_EVERY_TICKS", (1,)),
    Threshold("cluster.mirroring.service", "REPORT_REPEAT_MS", (20, 200), users=("cluster.mirroring.conversations",)),
    Threshold("cluster.mirroring.conversations", "ATTACH_RETRY_MS", (5, 50)),
    Threshold("cluster.mirroring.succession", "END_TIMEOUT_MS", (1, 50)),
    Threshold("cluster.runtime.handing_over", "HEIR_TIMEOUT_S", (0.01,)),
    Threshold("cluster.runtime.handing_over", "HEIRS_MAX", (1,)),
    Threshold("cluster.runtime.snapshot_taker", "SNAPSHOT_RETRY_ENTRIES", (1, 20)),
    Threshold("cluster.runtime.snapshot_taker", "SNAPSHOT_WANTED_RETRY_S", (0.1, 2.0)),
    Threshold("cluster.sessions.entry", "REOPEN_DELAY_S", (0.001,)),
    Threshold("cluster.sessions.entry", "REOPEN_DELAY_MAX_S", (0.05,)),
    Threshold("cluster.sessions.gateway", "GET_RETRY_S", (0.0001,)),
    Threshold("cluster.sessions.gateway", "DELETE_RETRY_S", (0.001,)),
    Threshold("cluster.runtime.sync_thread", "FLUSH_AGAIN_S", (0.0005,)),
    Threshold("cluster.runtime.protocol_watch", "RETRY_PAUSE_S", (0.05,)),
    Threshold("cluster.runtime.client_service", "SWEEP_EVERY_S", (0.1, 1.0)),
    Threshold("cluster.runtime.membership", "GOODBYE_TIMEOUT_S", (0.05, 0.5)),
    Threshold("cluster.runtime.membership", "GOODBYE_HEARD_S", (0.05,)),
    Threshold("cluster.runtime.node_runtime", "HANDED_OVER_S", (0.05,)),
    Threshold("cluster.runtime.node_runtime", "END_KNOWN_S", (0.02,)),
    Threshold("node.store.deletions", "STEPS_TO_NEXT_TRY", (1, 10)),
    Threshold("node.store.shared.compaction.compaction", "PAUSE_TICKS", (1, 10)),
    Threshold("node.store.shared.compaction.compaction", "COMPACTION_FILES_MIN", (1, 2)),
    Threshold("node.store.disk.guarded", "WRITE_EVERY_MS", (20, 200)),
    Threshold("node.broker.definitions", "EXCLUSIVE_QUEUES_UNLOOKED", (1,)),
    Threshold("node.queues.rates", "TICK_MS", (10, 100)),
)
_BY_KEY: Mapping[str, Threshold] = {threshold.key: threshold for threshold in THRESHOLDS}


def draw_thresholds(chance: Random) -> dict[str, float]:
    """Which are small in a seed, and how small; in most seeds none."""
    if chance.random() >= SHARE:
        return {}
    share = chance.choice(SMALL_SHARES)
    chosen = {threshold.key: chance.choice(threshold.small) for threshold in THRESHOLDS if chance.random() < share}
    return chosen | {_RESERVED: _BY_KEY[_RESERVED].small[0]}


@contextmanager
def in_force(sizes: Iterable[tuple[ModuleType, str, float]]) -> Iterator[None]:
    """As long as this lasts, constants of modules are what these say."""
    with ExitStack() as stack:
        replacing = Replacing(stack)
        for module, name, size in sizes:
            replacing.setattr(module, name, size)
        yield


@contextmanager
def thresholds_of(chosen: Mapping[str, float]) -> Iterator[None]:
    """As long as this lasts. What a kept schedule chose and is no threshold any more is as ever."""
    known = ((_BY_KEY[key], size) for key, size in chosen.items() if key in _BY_KEY)
    with in_force(
        (import_module(module), threshold.name, size)
        for threshold, size in known
        for module in (threshold.module, *threshold.users)
    ):
        yield

"""The conversations of one master with its mirrors: who is attached, what each lacks, has in flight and answered.

A conversation begins with an attach, which describes the queue; the mirror answers what it has otherwise, and from the
attach on hears of every operation. What it lacks is read from the local queue and sent in batches between the frames
(`cluster.mirroring.sync`), if somebody wants it filled. The states are those of `cluster.mirroring.progress`.

The owner (`cluster.mirroring.master`) cuts the turns and says what is promised; here is kept what came of it, mirror
by mirror: `frontier` is what all of them have reached together. What the metadata group should know of a mirror is
reported, and repeated until the record shows it.

Bounds. What is in flight to a mirror and not applied is limited by `WINDOW_BYTES` and `WINDOW_FRAMES`, whatever it
consists of. If a mirror falls behind the whole window nothing more is sent to it, and nothing is kept for it either:
when it has applied what was sent, a new attach finds the difference by content and fills it, reading from the local
queue. So a slow mirror costs a comparison, never memory.

That bounds one conversation. All queues share the link to a node, and what waits for that is bounded as well, by its
end (`cluster.transport.outbox`). So batches wait as long as the link is congested; the passing of time looks again. A
mirror that confirms wait for is not left without: it has one batch on its way all the same, a small one, because a
link that was broken for a moment leaves as many such mirrors as there are queues (`CONGESTED_PARTS`). A mirror that has
no space on its disk gets no batch before it has: what it applies and cannot write stays in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import UnionType
from typing import NamedTuple

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.difference import compare
from cluster.mirroring.messages import (
    Attach,
    AttachReply,
    EndOp,
    MirrorMessage,
    MirrorOp,
    Ops,
    OpsAck,
    SettleOp,
    SyncBatchOp,
)
from cluster.mirroring.progress import RECEIVING, MirrorInput, MirrorProgress, MirrorState
from cluster.mirroring.reports import (
    MirroringReport,
    MirrorReport,
    ReportFollows,
    ReportMirrorStalled,
    ReportSynchronised,
)
from cluster.mirroring.service import REPORT_REPEAT_MS
from cluster.mirroring.settings import MirroringSettings
from cluster.mirroring.sync import (
    CONGESTED_PARTS,
    SYNC_BATCH_BYTES,
    SYNC_BATCHES_IN_FLIGHT,
    SyncProgress,
    SyncThrottle,
    cut_batch,
)
from node.ids import NodeName, OriginId, SeqId
from node.queues.replica import ReplicaQueue, SeqRange
from node.store.steps import Steps

#: As `WINDOW_BYTES` (`cluster.mirroring.settings`), in frames.
WINDOW_FRAMES = 4096
#: An attach that arrives before its node knows that it is a mirror is lost: attach again after this time without an
#: answer, then after longer and longer, up to the stall time, so that a mirror that is busy otherwise is left in peace.
ATTACH_RETRY_MS = 500

#: The delivery limit if no mirror relies on anything.
NO_LIMIT = SeqId(2**63)
#: States in which the next turn may have something to send, though nothing happened to the queue.
_WORKING = frozenset({MirrorState.PROBING, MirrorState.FILLING})


#: Asked of the link to a node.
LinkTest = Callable[[NodeName], bool]


def never(_node: NodeName) -> bool:
    """A `LinkTest` that no link meets."""
    return False


class Frontier(NamedTuple):
    """What the least advanced mirrors allow."""

    #: True if some mirror of the record holds back confirms.
    is_held: bool
    #: Turns that every such mirror has applied, and has durably. Endless if there is none.
    applied_turn: float
    durable_turn: float
    #: Lowest horizon that a mirror may rely on: nothing may be delivered for the first time at or above it.
    delivery_limit: SeqId


class Conversations:
    """Of one master, in one epoch or several that follow each other."""

    def __init__(
        self,
        local: ReplicaQueue,
        record: MastershipRecord,
        settings: MirroringSettings,
        attach_id_base: int,
        resumed: Collection[NodeName] | None = None,
    ) -> None:
        """Attach ids begin above ``attach_id_base``. Call `adopt` before anything else.

        ``resumed``: this node has spoken to the mirrors in this epoch before. What it promised them is not known; these
        were required, which may have been reported and is yet to be decided.
        """
        self._local = local
        self._record = record
        self._settings = settings
        #: Progress of every mirror of the record, oldest first. Always this object, so the owner may keep it.
        self.mirrors: dict[NodeName, MirrorProgress] = {}
        self._reachable: set[NodeName] = set()
        #: Horizons that nodes which left the record, or began anew, may still rely on, in this epoch.
        self._left_horizons: dict[NodeName, SeqId] = {}
        #: Mirrors to which an attach may have been sent in this epoch of which nothing is known here, and whether they
        #: were required then.
        self._spoken_to = {} if resumed is None else {node: node in resumed for node in record.mirrors}
        self._outbox: list[tuple[NodeName, MirrorMessage]] = []
        self._reports: list[MirroringReport] = []
        self._reported_ms: dict[NodeName, int] = {}
        self._last_attach_id = attach_id_base
        #: So mirrors must not take what is below the counters of its origins for known.
        self._may_have_refused = settings.refuses_publishes
        self._throttle = SyncThrottle(settings.sync_throughput_bytes)
        #: Of the attaches that are due, while it lasts.
        self._preparation: Steps[None] | None = None

    # --- the record and the links -------------------------------------------------------------------------------------

    def adopt(self, record: MastershipRecord) -> bool:
        """The record says who the mirrors are. True if one of them is new here and holds back confirms at once."""
        if record.epoch > self._record.epoch:
            self.mirrors.clear()
            self._reports.clear()
            self._left_horizons.clear()
        # A copy that counts no longer, of a node that is a mirror still, was the memory of a life that is over.
        was_complete, self._record = self._record.complete, record
        lost = set(was_complete) - set(record.complete)
        for node in [node for node in self.mirrors if node not in record.mirrors or node in lost]:
            horizon = self.mirrors.pop(node).known_horizon
            self._forget_reports(node)
            if horizon is not None:
                self._left_horizons[node] = horizon
        is_held_anew = False
        for node in record.mirrors:
            is_required = node in record.complete or node in record.synchronised
            progress = self.mirrors.get(node)
            if progress is None:
                horizon = self._left_horizons.pop(node, None)
                progress = MirrorProgress(node, is_required, self._settings.sync_automatically, horizon)
                self.mirrors[node] = progress
                was_required = self._spoken_to.pop(node, None)
                if was_required is not None:
                    progress.was_spoken_to(is_required=was_required)
                is_held_anew = is_held_anew or is_required
                if node in self._reachable:
                    self._preparation = None  # see `link_up`
                    progress.step(MirrorInput.LINK_UP)
            elif is_required and not progress.is_required:
                progress.require()
            if progress.state is MirrorState.STREAMING and progress.is_required:
                progress.step(MirrorInput.FILL_WANTED)
        return is_held_anew

    def _forget_reports(self, node: NodeName, kinds: type | UnionType = MirrorReport) -> None:
        """Said of a copy, or a life, that may be over; the proposal would be stamped as if it were said now."""
        self._reported_ms.pop(node, None)
        self._reports = [report for report in self._reports if not _is_about(report, node, kinds)]

    def link_up(self, node: NodeName) -> None:
        """The links to and from ``node`` work, anew: what was in flight is lost."""
        self._reachable.add(node)
        self._preparation = None  # what it has looked at may have changed while nobody waited
        self._forget_reports(node)
        progress = self.mirrors.get(node)
        if progress is not None:
            progress.is_sync_wanted |= self._settings.sync_automatically  # what was cancelled was of the link before
            progress.step(MirrorInput.LINK_UP)

    def link_down(self, node: NodeName) -> None:
        """A link to or from ``node`` broke."""
        self._reachable.discard(node)
        self._forget_reports(node, ReportSynchronised | ReportFollows)
        progress = self.mirrors.get(node)
        if progress is not None:
            progress.step(MirrorInput.LINK_DOWN)

    # --- facts --------------------------------------------------------------------------------------------------------

    @property
    def is_heard(self) -> bool:
        """True if some mirror is attached, so that the turn must be noted."""
        return any(progress.is_attached for progress in self.mirrors.values())

    @property
    def is_gap_open(self) -> bool:
        """True if a mirror for which confirms wait hears what is published, and may lack something from before."""
        return any(each.is_required and each.is_attached and not each.is_complete for each in self.mirrors.values())

    def is_reachable(self, node: NodeName) -> bool:
        """True if there are links to and from the node."""
        return node in self._reachable

    @property
    def probing(self) -> list[MirrorProgress]:
        """Mirrors to which an attach is due."""
        return [progress for progress in self.mirrors.values() if progress.state is MirrorState.PROBING]

    def prepare_attaches(self) -> bool:
        """Compute some of what an attach describes. False while more of it is left for the turns to come: a queue may
        have millions of messages that nobody has compared yet. Raises `StorageError`."""
        if self._preparation is None:
            self._preparation = self._local.prepare_digests()
        if next(self._preparation, self) is None:
            for progress in self.probing:
                progress.last_progress_ms = None  # it is the master that is at work
            return False
        self._preparation = None
        return True

    @property
    def is_preparation_awaited(self) -> bool:
        """True if some of it is left, and confirms wait for one of the mirrors."""
        return self._preparation is not None and any(progress.holds_confirms for progress in self.probing)

    @property
    def wants_turn(self) -> bool:
        """True if the passing of time may have given something to send or to report."""
        return bool(self._reports) or any(progress.state in _WORKING for progress in self.mirrors.values())

    def frontier(self) -> Frontier:
        applied = durable = float("inf")
        limit = NO_LIMIT
        is_held = False
        for progress in self.mirrors.values():
            if progress.holds_confirms:
                is_held = True
                applied = min(applied, progress.applied_turn)
                durable = min(durable, progress.durable_turn)
            if progress.known_horizon is not None:
                limit = min(limit, progress.known_horizon)
        return Frontier(is_held, applied, durable, limit)

    # --- answers ------------------------------------------------------------------------------------------------------

    def receive(self, node: NodeName, message: MirrorMessage) -> None:
        """Take an answer of a mirror: the frontier may move."""
        progress = self.mirrors.get(node)
        if progress is None or message.epoch != self._record.epoch:
            return
        if not isinstance(message, AttachReply | OpsAck) or message.attach_id != progress.attach_id:
            return
        if progress.state is MirrorState.UNREACHABLE:
            return
        if isinstance(message, AttachReply):
            self._difference(progress, message)
        else:
            self._acknowledged(progress, message)

    def _difference(self, progress: MirrorProgress, reply: AttachReply) -> None:
        """Part of what the mirror has otherwise than the master."""
        if progress.state is MirrorState.ATTACHING:
            lacking, extras = compare(self._local, progress.attach_next_seq_id, reply.mismatched)
            for lacked in lacking:
                progress.lacking.append(lacked)
            progress.extras.extend(extras)
            progress.last_progress_ms = None  # it is at work

    def _acknowledged(self, progress: MirrorProgress, ack: OpsAck) -> None:
        progress.is_disk_full = ack.is_disk_full
        is_new = progress.acknowledged(ack.applied_index, ack.durable_index)
        is_attach_answered = ack.applied_index >= progress.attach_index and not ack.is_describing
        if progress.state is MirrorState.ATTACHING and is_attach_answered:
            is_wanted = progress.is_required or progress.is_sync_wanted or not progress.lacking
            progress.step(MirrorInput.FILL_WANTED if is_wanted else MirrorInput.FILL_NOT_WANTED)
            if progress.lacking:  # otherwise it is about to be synchronised
                self._report_state(progress)
        if not is_new:
            return
        progress.last_progress_ms = None
        if progress.state is MirrorState.LAGGING and progress.applied_index == progress.sent_index:
            progress.step(MirrorInput.CAUGHT_UP)
        if progress.state is MirrorState.FILLING and progress.is_filled:
            progress.require()
            progress.complete()
            self._report_state(progress)

    def _report_state(self, progress: MirrorProgress) -> None:
        """Say what the record does not know of the mirror."""
        if not self._is_known(progress):
            report = ReportSynchronised if progress.is_complete else ReportFollows
            self._reports.append(report(progress.node))

    def _is_known(self, progress: MirrorProgress) -> bool:
        """True if the record shows how far the mirror is."""
        return progress.node in (self._record.synchronised if progress.is_complete else self._record.following)

    def report(self, report: MirroringReport) -> None:
        """Something that the owner has to say goes with the rest."""
        self._reports.append(report)

    def take_reports(self) -> list[MirroringReport]:
        reports = self._reports
        self._reports = []
        return reports

    # --- sending ------------------------------------------------------------------------------------------------------

    def say(self, node: NodeName, message: MirrorMessage) -> None:
        """Something that the owner has to say goes with the rest."""
        self._outbox.append((node, message))

    def take_outbox(self) -> list[tuple[NodeName, MirrorMessage]]:
        outbox = self._outbox
        self._outbox = []
        return outbox

    def stream(
        self, turn: int, frames: Sequence[tuple[tuple[MirrorOp, ...], int]], settled: Sequence[SeqRange], horizon: SeqId
    ) -> None:
        """Send the frames of ``turn`` to all that are attached.

        ``settled``: positions that it settled, which nobody lacks any more. ``horizon``: the promise in it, 0 if none.
        """
        attached = [progress for progress in self.mirrors.values() if progress.is_attached]
        for progress in attached:
            if not frames:
                progress.pass_turn(turn)
            for settled_range in settled:
                progress.lacking.subtract(settled_range)
            if not progress.lacking and progress.state is MirrorState.STREAMING:
                progress.step(MirrorInput.FILL_WANTED)
        last = len(frames) - 1
        for position, (ops, size_bytes) in enumerate(frames):
            turn_reached = turn if position == last else turn - 1
            for progress in attached:
                if progress.is_attached:
                    self._send(progress, ops, size_bytes, turn=turn_reached, horizon=horizon)

    def _send(
        self,
        progress: MirrorProgress,
        ops: tuple[MirrorOp, ...],
        size_bytes: int,
        *,
        turn: int,
        horizon: SeqId = SeqId(0),  # noqa: B008 - a number, immutable
        is_sync: bool = False,
    ) -> None:
        in_flight = progress.in_flight_bytes
        if in_flight and (
            in_flight + size_bytes > self._settings.window_bytes or progress.in_flight_frames >= WINDOW_FRAMES
        ):
            progress.step(MirrorInput.WINDOW_EXCEEDED)
            return
        first_index = progress.sent(len(ops), turn, size_bytes, horizon, is_sync)
        record = self._record
        self._outbox.append(
            (
                progress.node,
                Ops(record.queue_id, record.epoch, progress.attach_id, first_index, ops, self._may_have_refused),
            )
        )

    def send_differences(self, turn: int, is_full: LinkTest) -> None:
        """What only one mirror needs; it follows the frames of ``turn``, which it presumes. Over a link that is
        congested no more goes than somebody waits for."""
        for progress in self.mirrors.values():
            if progress.extras and progress.state in RECEIVING:
                extras = SettleOp(tuple(progress.extras))
                progress.extras = []
                self._send(progress, (extras,), 16 * len(extras.ranges), turn=turn)
            if progress.state is MirrorState.FILLING:
                self._fill(progress, turn, bool(progress.lacking) and is_full(progress.node))

    def _fill(self, progress: MirrorProgress, turn: int, is_link_full: bool) -> None:
        while progress.state is MirrorState.FILLING and progress.lacking:
            if progress.is_disk_full:
                return  # it would keep in memory what it cannot write, which may be all of the queue
            is_busy = progress.in_flight_bytes > self._settings.window_bytes // 2
            if is_busy or progress.in_flight_sync_batches >= SYNC_BATCHES_IN_FLIGHT:
                return
            # Confirms wait for a required one: it has one batch on its way, whatever the others do, but a small one.
            if is_link_full and (progress.in_flight_sync_batches or not progress.is_required):
                return
            if not progress.is_required and not self._throttle.may_send:
                return
            bytes_max = SYNC_BATCH_BYTES // CONGESTED_PARTS if is_link_full else SYNC_BATCH_BYTES
            batch = cut_batch(self._local, progress.lacking, self._settings.sync_batch_messages, bytes_max)
            if batch is None:
                break
            op, size_bytes = batch
            progress.synced += len(op.seq_ids)
            if not progress.is_required:
                self._throttle.spend(size_bytes)
            self._send(progress, (op,), size_bytes, turn=turn, is_sync=True)
        if progress.state is MirrorState.FILLING and progress.end_of_fill_index is None and not progress.lacking:
            self._send(progress, (SyncBatchOp((), b""),), 16, turn=turn)
            progress.end_of_fill_index = progress.sent_index

    def say_end(self, turn: int, delivered_below: SeqId) -> None:
        """After the frames of ``turn``, to all that are attached: nothing is delivered any more."""
        for progress in self.mirrors.values():
            if progress.is_attached:
                self._send(progress, (EndOp(delivered_below),), 16, turn=turn)

    @property
    def is_all_applied(self) -> bool:
        """True if whoever is attached has applied everything that was said."""
        return all(
            progress.applied_index == progress.sent_index
            for progress in self.mirrors.values()
            if progress.is_attached or progress.state is MirrorState.LAGGING
        )

    def begin_attaches(
        self,
        probing: Sequence[MirrorProgress],
        turn: int,
        horizon: SeqId,
        origins: Mapping[OriginId, int],
        as_of_index: int,
    ) -> None:
        """Describe the queue after ``turn`` to those that are to be attached.

        ``origins``: counters that the master vouches for, but for what it has refused. ``as_of_index``: how far the
        metadata log is applied here.
        """
        local, record = self._local, self._record
        digests = tuple(local.digests())
        counters = dict(origins)
        for progress in probing:
            self._last_attach_id += 1
            progress.begin_attach(self._last_attach_id, turn, local.next_seq_id, horizon)
            attach = Attach(
                record.queue_id,
                record.epoch,
                progress.attach_id,
                progress.attach_index,
                local.next_seq_id,
                horizon,
                counters,
                digests,
                as_of_index,
                hears_between=True,
                may_lack_refused=self._may_have_refused,
            )
            self._outbox.append((progress.node, attach))

    # --- synchronisation ----------------------------------------------------------------------------------------------

    def start_sync(self, nodes: Sequence[NodeName] | None = None) -> None:
        """Fill these mirrors, or all (`sync_queue`). One that is not attached yet is filled when it is."""
        for progress in self.mirrors.values():
            if nodes is None or progress.node in nodes:
                progress.is_sync_wanted = True
                if progress.state is MirrorState.STREAMING:
                    progress.step(MirrorInput.FILL_WANTED)

    @property
    def is_sync_wanted(self) -> bool:
        """True while a mirror is to be filled that the record does not call synchronised yet."""
        return any(
            progress.is_sync_wanted and progress.node not in self._record.synchronised
            for progress in self.mirrors.values()
        )

    def cancel_sync(self) -> None:
        """Stop filling (`cancel_sync_queue`). What has arrived is kept; a required mirror is filled all the same.

        Where the policy fills mirrors, it fills those that are not being filled yet, and those that come back.
        """
        for progress in self.mirrors.values():
            is_running = progress.state is MirrorState.FILLING and not progress.is_required and progress.lacking
            if is_running or not self._settings.sync_automatically:
                progress.is_sync_wanted = False
            if is_running:
                progress.step(MirrorInput.FILL_NOT_WANTED)

    def sync_progress(self) -> SyncProgress | None:
        """Of the running synchronisation, ``None`` if there is none."""
        running = [
            SyncProgress(progress.synced, progress.synced + progress.lacking.count)
            for progress in self.mirrors.values()
            if progress.state is MirrorState.FILLING and progress.lacking
        ]
        return min(running, key=lambda progress: progress.synced) if running else None

    def set_settings(self, settings: MirroringSettings) -> None:
        if settings.sync_throughput_bytes != self._settings.sync_throughput_bytes:
            self._throttle = SyncThrottle(settings.sync_throughput_bytes)
        self._settings = settings
        self._may_have_refused |= settings.refuses_publishes
        if settings.sync_automatically:
            self.start_sync()

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, may_attach: bool) -> None:
        """Time passes: throttle, repeated reports, silent mirrors. Unless they ``may_attach`` nobody was spoken to."""
        self._throttle.tick(now_ms)
        for progress in self.mirrors.values():
            if progress.state in RECEIVING:
                self._repeat_state(progress, now_ms)
            if may_attach and not progress.is_idle:
                self._watch(progress, now_ms)

    def _watch(self, progress: MirrorProgress, now_ms: int) -> None:
        """The mirror owes an answer."""
        if progress.last_progress_ms is None:
            progress.last_progress_ms = now_ms
            progress.attach_retry_ms = ATTACH_RETRY_MS
        silent_ms = now_ms - progress.last_progress_ms
        is_stalled = silent_ms >= self._settings.stall_ms or self._is_cut_off(progress, now_ms)
        if is_stalled:
            self._reports.append(ReportMirrorStalled(progress.node))
            progress.last_progress_ms = now_ms
            progress.unreachable_since_ms = None
        is_attach_lost = progress.state is MirrorState.ATTACHING and silent_ms >= progress.attach_retry_ms
        if progress.state is not MirrorState.UNREACHABLE and (is_stalled or is_attach_lost):
            progress.attach_retry_ms = min(2 * progress.attach_retry_ms + silent_ms, self._settings.stall_ms)
            progress.step(MirrorInput.LINK_UP)

    def _is_cut_off(self, progress: MirrorProgress, now_ms: int) -> bool:
        """It has had no link for too long. The cluster believes it alive: others can speak to it."""
        if progress.state is not MirrorState.UNREACHABLE:
            return False
        if progress.unreachable_since_ms is None:
            progress.unreachable_since_ms = now_ms
        return now_ms - progress.unreachable_since_ms >= self._settings.unreachable_ms

    def _repeat_state(self, progress: MirrorProgress, now_ms: int) -> None:
        if self._is_known(progress):
            self._reported_ms.pop(progress.node, None)
            return
        if now_ms - self._reported_ms.setdefault(progress.node, now_ms) >= REPORT_REPEAT_MS:
            self._reported_ms[progress.node] = now_ms
            self._report_state(progress)

    def check_invariants(self) -> None:
        for node, progress in self.mirrors.items():
            progress.check_invariants()
            assert progress.node == node, "progress is kept under its node"
        assert set(self.mirrors) == set(self._record.mirrors), (
            "every mirror of the record, and no other, holds confirms"
        )


def _is_about(report: MirroringReport, node: NodeName, kinds: type | UnionType) -> bool:
    return isinstance(report, MirrorReport) and isinstance(report, kinds) and report.node == node

"""The mirrored queue: a `BackingQueue` that keeps copies of itself on other nodes.

It wraps the local engine and stays the object of the queue while it has no mirror (then it only passes through). The
protocol is described in `cluster.mirroring.messages`, the argument why nothing confirmed is lost in
`cluster.mirroring.promotion`, the states of a mirror in `cluster.mirroring.progress`. This module is the flow:

- An operation is done on the local queue at once and noted in the `Turn`, if a mirror is attached to hear of it.
- `take_messages`, called by the shell once per turn of its loop, cuts the turn into frames that all attached mirrors
  share, adds to each mirror what only it needs (discards, batches of the difference), and begins due attaches. The
  order matters: an attach describes the queue after the turn, so its stream begins with the next one; a batch of the
  difference is read after the turn, so it holds nothing that the frame before it settles.
- Answers advance `MirrorProgress`; the least advanced holding mirror releases confirms (`ConfirmLedger`) and its
  horizon limits deliveries.
- `Service` says what the record lets this master do at all: before it is in service it attaches to nobody.

Bounds. `mirrors_in_flight` says what each mirror that holds confirms has still to do; publishers are slowed by credit
(`node.flow.credit`) before the window is full. What is in flight to a mirror and not applied is limited by
`WINDOW_BYTES` and `WINDOW_FRAMES`, whatever it consists of. If a mirror falls behind the whole window nothing more is
sent to it, and nothing is kept for it either: when it has applied what was sent, a new attach finds the difference by
content and fills it, reading from the local queue. So a slow mirror costs a comparison, never memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.confirms import ConfirmLedger
from cluster.mirroring.difference import compare
from cluster.mirroring.messages import (
    Attach,
    AttachRefused,
    AttachReply,
    MirrorMessage,
    MirrorOp,
    Ops,
    OpsAck,
    SettleOp,
    SyncBatchOp,
)
from cluster.mirroring.progress import RECEIVING, MirrorInput, MirrorProgress, MirrorState
from cluster.mirroring.promotion import UntrustedOrigins, undelivered_start
from cluster.mirroring.published import PublishedTurns
from cluster.mirroring.ranges import gaps_between
from cluster.mirroring.reports import (
    MirroringReport,
    MirrorReport,
    ReportFenced,
    ReportFollows,
    ReportMirrorStalled,
    ReportSynchronised,
    ReportTakesService,
)
from cluster.mirroring.service import REPORT_REPEAT_MS, Service
from cluster.mirroring.sync import (
    SYNC_BATCH_BYTES,
    SYNC_BATCH_MESSAGES,
    SYNC_BATCHES_IN_FLIGHT,
    SyncProgress,
    SyncThrottle,
    cut_batch,
)
from cluster.mirroring.turn import Turn
from node.ids import MsgId, NodeName, OriginId, SeqId
from node.queues.backing_queue import BackingQueueStatus, Delivery, MirrorInFlight, Publication
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, ReplicaQueue

#: In flight to one mirror and not applied there: some hundred ms of full speed on a local network, and small
#: enough that every queue of a node may have it at once during a burst.
WINDOW_BYTES = 32 * 1024 * 1024
WINDOW_FRAMES = 4096
#: The horizon moves this far ahead of deliveries at first; the step doubles when a delivery had to wait for a mirror's
#: answer. What lies between is flagged redelivered after a failover without need, so a quiet queue steps small.
HORIZON_STEP_MIN = 256
HORIZON_STEP_MAX = 4096
#: A mirror that owes an answer this long is reported: longer than any pause that an fsync or a collection explains.
MIRROR_STALL_MS = 30_000
#: An attach that arrives before its node knows that it is a mirror is lost: attach again after this, then after longer
#: and longer, up to the stall time, so that a mirror that needs long to compare is left in peace.
ATTACH_RETRY_MS = 500

_NO_LIMIT = SeqId(2**63)
#: States in which the next turn may have something to send, though nothing happened to the queue.
_WORKING = frozenset({MirrorState.PROBING, MirrorState.FILLING})


@dataclass(frozen=True, slots=True)
class MirroringSettings:
    """Policy and configuration of one queue, as far as mirroring cares."""

    #: False for a non-durable queue: its persistent messages need only be applied.
    is_durable: bool = True
    #: ``ha-sync-mode = automatic``: fill every mirror without being asked.
    sync_automatically: bool = False
    sync_batch_messages: int = SYNC_BATCH_MESSAGES
    #: ``mirroring_sync_max_throughput`` in bytes per second, 0 = no limit.
    sync_throughput_bytes: int = 0
    stall_ms: int = MIRROR_STALL_MS
    window_bytes: int = WINDOW_BYTES


class MirroredQueue:
    """Master of one queue in one epoch (or several, if a commit names this node again)."""

    def __init__(
        self,
        node: NodeName,
        local: ReplicaQueue,
        record: MastershipRecord,
        settings: MirroringSettings | None = None,
        *,
        delivered_below: SeqId = SeqId(0),  # noqa: B008 - a number, immutable
        trusted_origins: Mapping[OriginId, int] | None = None,
        has_old_tokens: bool = False,
        attach_id_base: int = 0,
    ) -> None:
        """Become master.

        ``delivered_below``: nothing at or above it was ever delivered (0 for a new queue). ``trusted_origins``: what a
        promoted replica can vouch for, see `cluster.mirroring.promotion`; empty for a queue recovered from disk,
        ``None`` if storage itself can be trusted. ``has_old_tokens``: the local queue may still return tokens of an
        earlier life.
        ``attach_id_base``: attach ids begin above it; a node that may master the same epoch again after a restart
        passes something that grows with its incarnation.
        """
        self.node = node
        self.local = local
        self.settings = settings or MirroringSettings()
        self.record = record
        self._service = Service(record)
        #: True once a higher epoch was heard of: nothing is delivered or confirmed any more.
        self.is_fenced = False
        self._fencing_epoch = record.epoch
        self._mirrors: dict[NodeName, MirrorProgress] = {}
        self._reachable: set[NodeName] = set()
        #: Horizons that nodes which left the record may still rely on, in this epoch.
        self._left_horizons: dict[NodeName, SeqId] = {}
        self._ledger = ConfirmLedger(self.settings.is_durable)
        self._published = PublishedTurns()
        #: Tokens of an earlier life may come back, so it must know its own.
        self._wraps_always = has_old_tokens
        self._untrusted = UntrustedOrigins(local, trusted_origins) if trusted_origins is not None else None
        self._turn = Turn()
        #: Number of the last turn that was cut, and whether something was published since.
        self._cut_turn = 0
        self._has_published = False
        #: True if some mirror of the record holds back confirms.
        self._is_held = False
        self._outbox: list[tuple[NodeName, MirrorMessage]] = []
        self._reports: list[MirroringReport] = []
        self._reported_ms: dict[NodeName, int] = {}
        self._last_attach_id = attach_id_base
        self._throttle = SyncThrottle(self.settings.sync_throughput_bytes)
        #: 1 + the highest position that may have been delivered.
        self._delivered_end = undelivered_start(local, delivered_below)
        #: Every live position from here on is ready and was never delivered, without holes.
        self._dense_start = self._delivered_end
        #: The promise made to mirrors: nothing at or above it was delivered.
        self._horizon = self._delivered_end
        self._horizon_step = HORIZON_STEP_MIN
        #: Lowest horizon that the mirrors may rely on.
        self._delivery_limit = _NO_LIMIT
        assert record.master == node, "only the node that the record names is the master"
        self._adopt_mirrors()

    # --- the record and the links -------------------------------------------------------------------------------------

    def set_record(self, record: MastershipRecord) -> None:
        """A commit changed the record; it still names this node as master (otherwise: `demote`)."""
        assert record.master == self.node, "a node that is no longer the master must be demoted"
        assert record.epoch >= self.record.epoch, "records arrive in commit order"
        if record.epoch > self.record.epoch:
            self._mirrors.clear()
            self._reports.clear()
            self._left_horizons.clear()
            self.is_fenced = record.epoch < self._fencing_epoch
        self.record = record
        self._service.follow(record)
        self._adopt_mirrors()

    def _adopt_mirrors(self) -> None:
        record = self.record
        for node in [node for node in self._mirrors if node not in record.mirrors]:
            horizon = self._mirrors.pop(node).known_horizon
            self._forget_reports(node)
            if horizon is not None:
                self._left_horizons[node] = horizon
        for node in record.mirrors:
            is_required = node in record.complete or node in record.synchronised
            progress = self._mirrors.get(node)
            if progress is None:
                progress = MirrorProgress(node, is_required, self._left_horizons.pop(node, None))
                progress.is_sync_wanted = self.settings.sync_automatically
                self._mirrors[node] = progress
                if is_required:
                    self._ledger.hold_unwrapped(self._cut_turn + 1)
                    self._has_published = True
                if node in self._reachable:
                    progress.step(MirrorInput.LINK_UP)
            elif is_required and not progress.is_required:
                progress.require()
            if progress.state is MirrorState.STREAMING and progress.is_required:
                progress.step(MirrorInput.FILL_WANTED)
        self._forget_unheard()
        self._answers_changed()

    def _forget_reports(self, node: NodeName) -> None:
        """Said of a copy, or a life, that may be over; the proposal would be stamped as if it were said now."""
        self._reported_ms.pop(node, None)
        self._reports = [report for report in self._reports if not _is_about(report, node)]

    def mirror_link_up(self, node: NodeName) -> None:
        """The links to and from ``node`` work, anew: what was in flight is lost."""
        self._reachable.add(node)
        self._forget_reports(node)
        progress = self._mirrors.get(node)
        if progress is not None:
            progress.step(MirrorInput.LINK_UP)
            self._forget_unheard()

    def mirror_link_down(self, node: NodeName) -> None:
        """A link to or from ``node`` broke."""
        self._reachable.discard(node)
        progress = self._mirrors.get(node)
        if progress is not None:
            progress.step(MirrorInput.LINK_DOWN)
            self._forget_unheard()

    def _forget_unheard(self) -> None:
        """Whoever attaches next is told the whole state; what nobody listens to need not be kept."""
        if not self._is_heard:
            self._turn = Turn()

    def receive(self, node: NodeName, message: MirrorMessage) -> None:
        """Take an answer of a mirror, or what an older or newer master of this queue sends."""
        if isinstance(message, Attach):
            self._other_master(node, message)
            return
        if isinstance(message, AttachRefused):
            if message.epoch == self.record.epoch:
                self._fence(message)
            return
        progress = self._mirrors.get(node)
        if isinstance(message, Ops) or progress is None or message.epoch != self.record.epoch:
            return
        if message.attach_id != progress.attach_id or progress.state is MirrorState.UNREACHABLE:
            return
        if isinstance(message, AttachReply):
            self._difference(progress, message)
        else:
            self._acknowledged(progress, message)

    def _other_master(self, node: NodeName, attach: Attach) -> None:
        if attach.epoch < self.record.epoch:
            self._outbox.append((node, AttachRefused(attach.queue_id, attach.epoch, self.record.epoch)))
        elif attach.epoch > self.record.epoch:
            self._fence(AttachRefused(attach.queue_id, self.record.epoch, attach.epoch))

    def _fence(self, refusal: AttachRefused) -> None:
        if refusal.known_epoch > self.record.epoch and not self.is_fenced:
            self.is_fenced = True
            self._fencing_epoch = refusal.known_epoch
            self._reports.append(ReportFenced(refusal.known_epoch))

    # --- answers ------------------------------------------------------------------------------------------------------

    def _difference(self, progress: MirrorProgress, reply: AttachReply) -> None:
        """Part of what the mirror has otherwise than the master."""
        if progress.state is MirrorState.ATTACHING:
            lacking, extras = compare(self.local, progress.attach_next_seq_id, reply.mismatched)
            for lacked in lacking:
                progress.lacking.append(lacked)
            progress.extras.extend(extras)

    def _acknowledged(self, progress: MirrorProgress, ack: OpsAck) -> None:
        progress.is_disk_full = ack.is_disk_full
        is_new = progress.acknowledged(ack.applied_index, ack.durable_index)
        if progress.state is MirrorState.ATTACHING and ack.applied_index >= progress.attach_index:
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
        self._answers_changed()

    def _report_state(self, progress: MirrorProgress) -> None:
        """Say what the record does not know of the mirror."""
        if not self._is_known(progress):
            report = ReportSynchronised if progress.is_complete else ReportFollows
            self._reports.append(report(progress.node))

    def _is_known(self, progress: MirrorProgress) -> bool:
        """True if the record shows how far the mirror is."""
        return progress.node in (self.record.synchronised if progress.is_complete else self.record.following)

    def _answers_changed(self) -> None:
        """Release what the least advanced mirrors allow."""
        applied = durable = float("inf")
        limit = _NO_LIMIT
        self._is_held = False
        for progress in self._mirrors.values():
            if progress.holds_confirms:
                self._is_held = True
                applied = min(applied, progress.applied_turn)
                durable = min(durable, progress.durable_turn)
            if progress.known_horizon is not None:
                limit = min(limit, progress.known_horizon)
        self._delivery_limit = limit
        self._published.forget(int(min(durable, self._cut_turn)))
        if self._service.may_confirm:
            # Not before: a complete copy that is no mirror at the moment may be one again, and lacks it then.
            self._ledger.release(applied, durable)

    # --- sending ------------------------------------------------------------------------------------------------------

    def take_messages(self, as_of_index: int = 0) -> list[tuple[NodeName, MirrorMessage]]:
        """Cut the turn: everything to send now, in order. Call once per turn of the loop; cheap if nothing happened.

        ``as_of_index``: how far this node has applied the metadata log.
        """
        if self._mirrors:
            probing = [progress for progress in self._mirrors.values() if progress.state is MirrorState.PROBING]
            self._extend_horizon(self._horizon_step if probing else self._horizon_step // 2)
            if self._turn or self._has_published:
                self._cut()
            for progress in self._mirrors.values():
                if progress.is_attached:
                    self._send_difference(progress)
            if probing and self._service.may_deliver and not self.is_fenced:
                self._begin_attaches(probing, as_of_index)
        outbox = self._outbox
        self._outbox = []
        return outbox

    def _cut(self) -> None:
        self._cut_turn += 1
        self._has_published = False
        horizon = self._turn.horizon or SeqId(0)
        frames, settled = self._turn.cut()
        attached = [progress for progress in self._mirrors.values() if progress.is_attached]
        for progress in attached:
            if not frames:
                progress.pass_turn(self._cut_turn)
            for settled_range in settled:
                progress.lacking.subtract(settled_range)
            if not progress.lacking and progress.state is MirrorState.STREAMING:
                progress.step(MirrorInput.FILL_WANTED)
        last = len(frames) - 1
        for position, (ops, size_bytes) in enumerate(frames):
            turn = self._cut_turn if position == last else self._cut_turn - 1
            for progress in attached:
                if progress.is_attached:
                    self._send(progress, ops, size_bytes, turn=turn, horizon=horizon)
        if not frames or not attached:
            self._answers_changed()

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
            in_flight + size_bytes > self.settings.window_bytes or progress.in_flight_frames >= WINDOW_FRAMES
        ):
            progress.step(MirrorInput.WINDOW_EXCEEDED)
            return
        first_index = progress.sent(len(ops), turn, size_bytes, horizon, is_sync)
        record = self.record
        self._outbox.append(
            (progress.node, Ops(record.queue_id, record.epoch, progress.attach_id, first_index, ops)),
        )

    def _send_difference(self, progress: MirrorProgress) -> None:
        """What only this mirror needs; it follows the turn's frame, which it presumes."""
        if progress.extras and progress.state is not MirrorState.ATTACHING:
            extras = SettleOp(tuple(progress.extras))
            progress.extras = []
            self._send(progress, (extras,), 16 * len(extras.ranges), turn=self._cut_turn)
            progress.end_of_fill_index = progress.sent_index
        while progress.state is MirrorState.FILLING and progress.lacking:
            is_busy = progress.in_flight_bytes > self.settings.window_bytes // 2
            if is_busy or progress.in_flight_sync_batches >= SYNC_BATCHES_IN_FLIGHT:
                return
            if not progress.is_required and not self._throttle.may_send:
                return
            batch = cut_batch(self.local, progress.lacking, self.settings.sync_batch_messages, SYNC_BATCH_BYTES)
            if batch is None:
                break
            op, size_bytes = batch
            progress.synced += len(op.seq_ids)
            if not progress.is_required:
                self._throttle.spend(size_bytes)
            self._send(progress, (op,), size_bytes, turn=self._cut_turn, is_sync=True)
        if progress.state is MirrorState.FILLING and not progress.has_end_of_fill and not progress.lacking:
            self._send(progress, (SyncBatchOp((), b""),), 16, turn=self._cut_turn)
            progress.has_end_of_fill = True
            progress.end_of_fill_index = progress.sent_index

    def _begin_attaches(self, probing: Sequence[MirrorProgress], as_of_index: int) -> None:
        local, record = self.local, self.record
        digests = tuple(local.digests())
        origins = dict(self._vouched_origins())
        for progress in probing:
            self._last_attach_id += 1
            progress.begin_attach(self._last_attach_id, self._cut_turn, local.next_seq_id, self._horizon)
            attach = Attach(
                record.queue_id,
                record.epoch,
                progress.attach_id,
                progress.attach_index,
                local.next_seq_id,
                self._horizon,
                origins,
                digests,
                as_of_index,
            )
            self._outbox.append((progress.node, attach))
        self._answers_changed()

    def _vouched_origins(self) -> Mapping[OriginId, int]:
        origins = self.local.origins()
        return self._untrusted.vouched(origins) if self._untrusted else origins

    def _extend_horizon(self, ahead: int) -> None:
        """Promise a step more if the promise is less than ``ahead`` messages ahead of deliveries."""
        if self._delivered_end + ahead > self._horizon:
            self._horizon = SeqId(self._delivered_end + self._horizon_step)
            if self._is_heard:
                self._turn.horizon = self._horizon

    @property
    def _is_plain(self) -> bool:
        """True if there is no mirror to wait for and every token is its publisher's: the local queue does it all."""
        return not self._mirrors and not self._wraps_always

    @property
    def _is_heard(self) -> bool:
        """True if some mirror is attached, so that the turn must be noted."""
        return any(progress.is_attached for progress in self._mirrors.values())

    # --- synchronisation, reports, time -------------------------------------------------------------------------------

    def start_sync(self, nodes: Sequence[NodeName] | None = None) -> None:
        """Fill these mirrors, or all (`sync_queue`). One that is not attached yet is filled when it is."""
        for progress in self._mirrors.values():
            if nodes is None or progress.node in nodes:
                progress.is_sync_wanted = True
                if progress.state is MirrorState.STREAMING:
                    progress.step(MirrorInput.FILL_WANTED)

    @property
    def is_sync_wanted(self) -> bool:
        """True while a mirror is to be filled that the record does not call synchronised yet."""
        return any(
            progress.is_sync_wanted and progress.node not in self.record.synchronised
            for progress in self._mirrors.values()
        )

    def cancel_sync(self) -> None:
        """Stop filling (`cancel_sync_queue`). What has arrived is kept; a required mirror is filled all the same."""
        for progress in self._mirrors.values():
            progress.is_sync_wanted = False
            if progress.state is MirrorState.FILLING and not progress.is_required and progress.lacking:
                progress.step(MirrorInput.FILL_NOT_WANTED)

    def sync_progress(self) -> SyncProgress | None:
        """Of the running synchronisation, ``None`` if there is none."""
        running = [
            SyncProgress(progress.synced, progress.synced + progress.lacking.count)
            for progress in self._mirrors.values()
            if progress.state is MirrorState.FILLING and progress.lacking
        ]
        return min(running, key=lambda progress: progress.synced) if running else None

    def set_settings(self, settings: MirroringSettings) -> None:
        """The policy changed. ``is_durable`` is a property of the queue and cannot change."""
        assert settings.is_durable == self.settings.is_durable, "a queue is declared durable or not"
        if settings.sync_throughput_bytes != self.settings.sync_throughput_bytes:
            self._throttle = SyncThrottle(settings.sync_throughput_bytes)
        self.settings = settings
        if settings.sync_automatically:
            self.start_sync()

    def take_reports(self) -> list[MirroringReport]:
        """What the node should propose to the metadata group now."""
        reports = self._reports
        self._reports = []
        if not self.is_fenced and self._service.take_request():
            reports.append(ReportTakesService())
        return reports

    def tick(self, now_ms: int) -> None:
        """Time passes: throttle, repeated reports, silent mirrors. Some times a second is right."""
        self._throttle.tick(now_ms)
        self._service.tick(now_ms)
        for progress in self._mirrors.values():
            if progress.state in RECEIVING:
                self._repeat_state(progress, now_ms)
            if progress.is_idle or not self._service.may_deliver:  # owes nothing, or was never spoken to
                progress.last_progress_ms = None
                continue
            if progress.last_progress_ms is None:
                progress.last_progress_ms = now_ms
                progress.attach_retry_ms = ATTACH_RETRY_MS
            silent_ms = now_ms - progress.last_progress_ms
            is_stalled = silent_ms >= self.settings.stall_ms
            if is_stalled:
                self._reports.append(ReportMirrorStalled(progress.node))
                progress.last_progress_ms = now_ms
            is_attach_lost = progress.state is MirrorState.ATTACHING and silent_ms >= progress.attach_retry_ms
            if progress.state is not MirrorState.UNREACHABLE and (is_stalled or is_attach_lost):
                progress.attach_retry_ms = min(2 * progress.attach_retry_ms + silent_ms, self.settings.stall_ms)
                progress.step(MirrorInput.LINK_UP)
                self._forget_unheard()

    @property
    def wants_turn(self) -> bool:
        """True if the passing of time may have given something to send or to report: `take_messages` should be called.

        A queue whose mirrors have all heard everything sleeps until it is used.
        """
        return (
            bool(self._reports)
            or self._service.wants_turn
            or any(progress.state in _WORKING for progress in self._mirrors.values())
        )

    @property
    def wants_tick(self) -> bool:
        """True if the passing of time matters: there are mirrors, or service to be asked for."""
        return bool(self._mirrors) or not self._service.may_confirm

    def _repeat_state(self, progress: MirrorProgress, now_ms: int) -> None:
        if self._is_known(progress):
            self._reported_ms.pop(progress.node, None)
            return
        if now_ms - self._reported_ms.setdefault(progress.node, now_ms) >= REPORT_REPEAT_MS:
            self._reported_ms[progress.node] = now_ms
            self._report_state(progress)

    @property
    def in_flight_messages(self) -> int:
        return self.local.in_flight_messages

    def mirrors_in_flight(self) -> Sequence[MirrorInFlight]:
        published = self._published
        return [
            MirrorInFlight(
                progress.node,
                published.after(progress.applied_turn),
                published.persistent_between(progress.durable_turn, progress.applied_turn),
                progress.in_flight_bytes,
            )
            for progress in self._mirrors.values()
            if progress.holds_confirms
        ]

    def streaming_mirrors(self) -> list[NodeName]:
        """Mirrors that receive every operation, oldest first: what is confirmed from here on is on them too, and the
        cluster knows it."""
        states = self.mirror_states()
        return [node for node in self.record.following if states[node] in RECEIVING]

    def disk_full_mirrors(self) -> list[NodeName]:
        """Mirrors that wait for space on their disks, oldest first: confirms wait with them."""
        return [node for node in self.record.mirrors if self._mirrors[node].is_disk_full]

    def mirror_states(self) -> dict[NodeName, MirrorState]:
        """For the listing commands and logs."""
        return {node: progress.state for node, progress in self._mirrors.items()}

    # --- BackingQueue -------------------------------------------------------------------------------------------------

    def publish(self, publications: Sequence[Publication]) -> None:
        if self._untrusted:
            publications = self._without_duplicates(publications)
        if self._is_plain:
            self.local.publish(publications)
            self._vouch(publications)
            return
        first_seq_id = self.local.next_seq_id
        self.local.publish(self._ledger.hold(publications, self._cut_turn + 1))
        self._note_published(first_seq_id, publications)

    def publish_delivered(self, publications: Sequence[Publication]) -> list[Delivery]:
        if self._untrusted:
            publications = self._without_duplicates(publications)
        if not publications:
            return []
        assert self.local.ready == 0, "only an empty queue may be bypassed"
        first_seq_id = self.local.next_seq_id
        is_plain = self._is_plain
        held = publications if is_plain else self._ledger.hold(publications, self._cut_turn + 1)
        deliveries = self.local.publish_delivered(held)
        end = SeqId(first_seq_id + len(publications))
        self._gone_below(end)
        if is_plain:
            self._vouch(publications)
        else:
            self._note_published(first_seq_id, publications)
            # The promise travels before the messages, so whoever has them has it.
            self._extend_horizon(0)
        return deliveries

    def discard(self, publications: Sequence[Publication]) -> None:
        if self._is_plain:
            self.local.discard(publications)
            self._vouch(publications)
            return
        self.local.discard(self._ledger.hold(publications, self._cut_turn + 1, is_stored=False))
        self._has_published = True
        self._published.publish(self._cut_turn + 1, len(publications), 0)
        if self._is_heard:
            self._turn.discard(publication.message for publication in publications)
        self._vouch(publications)

    def _note_published(self, first_seq_id: SeqId, publications: Sequence[Publication]) -> None:
        self._has_published = True
        persistent = sum([publication[0].persistent for publication in publications]) if self.settings.is_durable else 0
        self._published.publish(self._cut_turn + 1, len(publications), persistent)
        if self._is_heard:
            self._turn.publish(first_seq_id, [publication.message for publication in publications])
        self._vouch(publications)

    def _vouch(self, publications: Sequence[Publication]) -> None:
        if self._untrusted:
            self._untrusted.published(publication.message for publication in publications)

    def _without_duplicates(self, publications: Sequence[Publication]) -> Sequence[Publication]:
        """Look at each message: here, unlike elsewhere, a duplicate may follow a new message of the same origin."""
        fresh: list[Publication] = []
        for publication in publications:
            msg_id = publication.message.msg_id
            if not self.is_duplicate(msg_id):
                fresh.append(publication)
            elif publication.token is not None:
                self.confirm_when_safe(msg_id, publication.token)
        return fresh

    def fetch(self, count_max: int, ack_required: bool) -> list[Delivery]:
        if self.is_fenced or not self._service.may_deliver:
            return []
        if self._delivery_limit != _NO_LIMIT:
            count_max = min(count_max, self._deliverable())
            if count_max <= 0:
                return []
        deliveries = self.local.fetch(count_max, ack_required)
        if deliveries:
            self._delivered_end = max(self._delivered_end, SeqId(deliveries[-1].seq_id + 1))
            assert deliveries[-1].seq_id < max(self._delivery_limit, self._dense_start), (
                "delivered above the horizon: a failover would hand it out again without the flag"
            )
            if not ack_required:
                self._note_settled([delivery.seq_id for delivery in deliveries])
        return deliveries

    def _deliverable(self) -> int:
        """Ready messages that may be delivered: those below the lowest horizon, or delivered before."""
        local = self.local
        ready = local.ready
        undelivered = local.next_seq_id - max(self._delivery_limit, self._dense_start)
        if undelivered <= 0:
            return ready
        allowed = ready - undelivered
        if allowed <= 0:
            self._horizon_step = min(2 * self._horizon_step, HORIZON_STEP_MAX)
        return allowed

    def ack(self, seq_ids: Sequence[SeqId]) -> int:
        if not self._is_heard:
            return self.local.ack(seq_ids)
        known = self.local.ack(seq_ids)
        if known == len(seq_ids):
            self._note_settled(seq_ids)
        else:
            self._note_settled(self._not_live(seq_ids))
        return known

    def _not_live(self, seq_ids: Sequence[SeqId]) -> list[SeqId]:
        """Those that are settled by now. Some of ``seq_ids`` were refused: they may name ready messages."""
        segments = {seq_id // DIGEST_SEGMENT_ENTRIES for seq_id in seq_ids}
        live = {seq_id for segment in segments for seq_id in self.local.live_positions(segment)}
        end = self.local.next_seq_id
        return [seq_id for seq_id in seq_ids if 0 <= seq_id < end and seq_id not in live]

    def _note_settled(self, seq_ids: Sequence[SeqId]) -> None:
        if self._is_heard:
            self._turn.settle(seq_ids)

    def requeue(self, seq_ids: Sequence[SeqId]) -> int:
        return self.local.requeue(seq_ids)

    def requeue_all(self) -> int:
        return self.local.requeue_all()

    def _gone_below(self, seq_id: SeqId) -> None:
        """Whatever is live below ``seq_id`` was delivered before: nothing else was left there."""
        self._delivered_end = max(self._delivered_end, seq_id)
        self._dense_start = max(self._dense_start, seq_id)

    def drop(self, count: int) -> list[Delivery]:
        dropped = self.local.drop(count)
        if dropped:
            self._gone_below(SeqId(dropped[-1].seq_id + 1))
            self._note_settled([delivery.seq_id for delivery in dropped])
        return dropped

    def flag_redelivered(self) -> None:
        """The horizon goes with it: whoever is promoted next flags the same messages."""
        self.local.flag_redelivered()
        self._delivered_end = max(self._delivered_end, self.local.next_seq_id)
        self._extend_horizon(0)

    def purge(self) -> int:
        first = self.local.first_live_seq_id
        count = self.local.purge()
        end = self.local.next_seq_id
        self._gone_below(end)
        if count and self._is_heard:
            unacked = [at for segment, _ in self.local.live_counts() for at in self.local.live_positions(segment)]
            self._turn.settle_ranges(gaps_between(first, end, unacked))
        return count

    def is_duplicate(self, msg_id: MsgId) -> bool:
        if self._untrusted:
            return self._untrusted.is_duplicate(msg_id)
        return self.local.is_duplicate(msg_id)

    def confirm_when_safe(self, msg_id: MsgId, token: Hashable) -> None:
        if self._is_plain:
            self.local.confirm_when_safe(msg_id, token)
            return
        # The earlier copy is of this very turn at the latest.
        turn = self._cut_turn + self._has_published
        self.local.confirm_when_safe(msg_id, self._ledger.hold_token(token, turn))
        self._answers_changed()

    def drain_confirmed(self) -> list[Hashable]:
        if self.is_fenced or not self._service.may_confirm:
            return []
        if self._has_published and not self._is_held and not self._turn:
            # Nobody to hear of the turn or to wait for: cut it here, so that its confirms need only this node.
            self._cut_turn += 1
            self._has_published = False
            self._answers_changed()
        return self._ledger.take(self.local.drain_confirmed())

    @property
    def ready(self) -> int:
        return self.local.ready

    @property
    def unacked(self) -> int:
        return self.local.unacked

    def status(self) -> BackingQueueStatus:
        return self.local.status()

    def terminate(self) -> None:
        self.local.terminate()

    def delete(self) -> None:
        self.local.delete()

    def check_invariants(self) -> None:
        self.local.check_invariants()
        self._ledger.check_invariants()
        self._published.check_invariants()
        for node, progress in self._mirrors.items():
            progress.check_invariants()
            assert progress.node == node, "progress is kept under its node"
            known = progress.known_horizon
            assert known is None or known <= self._horizon, "a mirror cannot rely on what was not promised"
        assert set(self._mirrors) == set(self.record.mirrors), (
            "every mirror of the record, and no other, holds confirms"
        )
        assert self._is_heard or not self._turn, "a turn that nobody hears would grow for ever"
        assert self._dense_start <= max(self._delivered_end, self.local.next_seq_id), "what is gone was there"


def _is_about(report: MirroringReport, node: NodeName) -> bool:
    return isinstance(report, MirrorReport) and report.node == node

"""The shell around `RaftCore`: clock, network, disk and those who wait for their proposals.

Inputs (messages, proposals, the clock) go into the core at once; what comes of them is carried out at the end of the
same turn of the loop, so that whatever arrived together is written, synced and sent together. A `Ready` goes:

    messages_now -> network     entries, hard state -> storage (write)     committed -> state machine (`Applier`)
                                        |
                                        v   a worker syncs, one round at a time, all that was written before
                                messages_after_append -> network, core.appended

**Proposals** may be made on any node; the core forwards them to the leader. A proposal may get lost on the way or
with a leader, so it is repeated under the same request id until it is *applied on this node*; the state machine
carries out each request id once. So whoever has its answer also reads its own write here. A copy that comes late is
dropped (`cluster.raft.forwarding`). A proposal is not started while one that is `MAX_OUTSTANDING_REQUESTS` older still
waits: that is how far back the state machine remembers.

**Standing.** Whether this node is current enough to serve clients, for want of a quorum, of a disk that takes the log,
or of anything else, is watched on every tick (`cluster.runtime.standing`). An ordinary election is no reason to pause.
Nor does a node lead whose disk hangs (`cluster.runtime.sync_watch`).

**Ticks.** The timer is set for what is due next: a heartbeat, an election, a proposal that is to be tried again, the
time at which this node would be too old to serve. A follower that hears its leader wakes up about once a second. While
something waits that no deadline tells of (a full disk, the end of a pause) it is every `TICK_EVERY_MS`. A deadline that
has come nearer sets the timer anew (`_hasten`); one that has gone further away does not: the timer finds nothing to do
and is set again.

**Crash.** Everything answered was synced by a majority. An error of the disk stops the driver for good: a node that
does not know what it has on disk must not vote.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Protocol

from cluster.metadata.requests import MAX_OUTSTANDING_REQUESTS
from cluster.raft.core import ProposalRefusedError, RaftConfig, RaftCore, RestoredState
from cluster.raft.messages import (
    AppendResponse,
    AppliedUpTo,
    HeartbeatResponse,
    Message,
    PreVoteResponse,
    Ready,
    Voter,
    VoteResponse,
)
from cluster.raft.storage import RaftStorage
from cluster.runtime.applied_reports import AppliedReports
from cluster.runtime.applied_watch import AppliedWatch
from cluster.runtime.applier import SLICE_PIECES, Applied, Applier, StateMachine
from cluster.runtime.driver_config import DriverConfig
from cluster.runtime.handing_over import hand_over
from cluster.runtime.outside import Worker
from cluster.runtime.pause_notice import PauseNotice
from cluster.runtime.snapshot_taker import SnapshotTaker
from cluster.runtime.standing import VISIBILITY_MARGIN_MS, Pause, StandingWatch
from cluster.runtime.sync_watch import SyncWatch
from cluster.runtime.waiting_proposal import WaitingProposal
from node.errors import ConfigError, ShortageError, StorageError
from node.ids import NodeName

log = logging.getLogger(__name__)

#: Proposals of this node that wait at the same time: every connection of a large node declaring at once, and an end.
MAX_WAITING_PROPOSALS = 20_000
#: The clock is looked at this often while something waits that has no deadline.
TICK_EVERY_MS = 50
NEVER_MS = float("inf")

#: What is counted towards a majority.
_ANSWERS = (AppendResponse, HeartbeatResponse, PreVoteResponse, VoteResponse)


class RaftListener(Protocol):
    """Who wants to know. Called on the loop."""

    def on_applied(self, index: int) -> None:
        """Every command up to ``index`` has been applied; once per slice (`cluster.runtime.applier`)."""

    def on_leader_change(self, leader: NodeName | None) -> None: ...

    def on_pause(self, pause: Pause | None) -> None:
        """This node is no longer current enough to serve clients; ``None``: it is again."""

    def on_storage_failed(self, error: StorageError | ConfigError) -> None:
        """The driver has stopped for good: its disk failed, or what is committed cannot be carried out, or not by this
        release."""


class RaftDriver:
    """Runs one node of the metadata group. Everything on the loop's thread."""

    def __init__(
        self,
        config: RaftConfig,
        storage: RaftStorage,
        restored: RestoredState,
        state: StateMachine,
        *,
        listener: RaftListener,
        send: Callable[[NodeName, Sequence[Message]], None],
        worker: Worker,
        seed: int,
        clock: Callable[[], float],
        slice_pieces: int = SLICE_PIECES,
        driver_config: DriverConfig | None = None,
        may_answer: Callable[[NodeName], bool] = lambda _peer: True,
    ) -> None:
        """``storage`` and ``restored`` come from `RaftStorage.open`; the driver closes the storage in `stop`. ``send``
        is `Mesh.send_consensus`. ``worker`` syncs the log; it is closed, too. ``seed`` should differ between nodes, it
        spreads their elections. ``clock`` (seconds, going on within a turn of the loop) and ``slice_pieces`` are for
        `Applier`. ``may_answer``: whether who speaks for a peer now is whom the log means by its name."""
        self._config = driver_config or DriverConfig()
        self._loop = asyncio.get_running_loop()
        self._storage = storage
        self._state = state
        self._listener = listener
        self._send = send
        self._may_answer = may_answer
        self.core = RaftCore(config, restored, Random(seed), self._now_ms())
        if restored.snapshot.index:
            state.restore(restored.snapshot.data)
        self._applier = self._make_applier(clock, slice_pieces, restored.snapshot.index)
        #: Applied since the last snapshot was thought of.
        self._unsaved_entries = 0
        #: By request id, oldest first.
        self._waiting: dict[Hashable, WaitingProposal] = {}
        pause_after_ms = self._config.quorum_grace_ms + config.election_timeout_min_ms
        self._reports, self._standing = self._make_watches(pause_after_ms)
        self._last_proposal = 0
        #: When the first of them is to be tried again, or before.
        self._next_try_ms: float = NEVER_MS
        self._worker = worker
        self._snapshots = SnapshotTaker(
            self.core,
            storage,
            state,
            worker,
            entries=self._config.snapshot_entries,
            log_bytes=self._config.snapshot_log_bytes,
            on_failed=self._fail,
        )
        #: Written, not yet known to be durable; oldest first.
        self._unsynced: deque[Ready] = deque()
        self._sync: asyncio.Future[None] | None = None
        self._sync_watch = SyncWatch(self.core, self._config.hanging_sync_ms)
        self._is_pump_scheduled = False
        self._is_retry_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        #: When the timer was set, and for when.
        self._timer_set_ms = self._timer_due_ms = 0
        self._is_stopped = False
        self._failure: StorageError | ConfigError | None = None
        #: What the disk did not take, for want of space or of a descriptor.
        self._stalled: Ready | None = None
        self._refused: ShortageError | None = None
        self._reported_leader: NodeName | None = None
        #: To which leader, and in which of its terms, what waits has been proposed.
        self._proposed_to: tuple[NodeName, int] | None = None

    def _make_watches(self, pause_after_ms: int) -> tuple[AppliedReports, StandingWatch]:
        notice = PauseNotice(self._config.silence_timeout_ms + VISIBILITY_MARGIN_MS)
        watch = AppliedWatch((pause_after_ms + VISIBILITY_MARGIN_MS) / 1000, self._loop.time())
        reports = AppliedReports(self.core.node, watch, notice, self._send, lambda: self.applied_index)
        given = notice if self._config.pauses_clients else None
        standing = StandingWatch(self.core, pause_after_ms, self._now_ms(), given, lambda: self._state.is_declared_down)
        return reports, standing

    def _make_applier(self, clock: Callable[[], float], slice_pieces: int, applied_index: int) -> Applier:
        return Applier(
            self._state,
            applied_index,
            call_soon=self._loop.call_soon,
            clock=clock,
            slice_pieces=slice_pieces,
            on_applied=self._resolve,
            on_slice=self._slice_applied,
            on_failed=self._apply_failed,
        )

    # --- what others ask ---

    @property
    def applied_index(self) -> int:
        """Index of the last entry applied here."""
        return self._applier.applied_index

    @property
    def leader(self) -> NodeName | None:
        """The leader as far as this node knows."""
        return self.core.leader

    @property
    def voters(self) -> tuple[NodeName, ...]:
        """Who decides, as far as this node knows."""
        return self.core.voters

    @property
    def has_quorum(self) -> bool:
        """False while this node pauses: what it would propose, nobody would decide, or it would not hear of it."""
        return self._standing.pause is None

    @property
    def pause(self) -> Pause | None:
        """Why this node may not serve clients; ``None`` if it may."""
        return self._standing.pause

    def may_read_clients(self) -> bool:
        """False if this node is not current enough and has not said so yet: it stood still, and the tick that would say
        it comes later in this turn of the loop. To be asked in every turn that reads what clients have sent."""
        return self._standing.pause is not None or not self._standing.is_stale(self._now_ms(), self.applied_index)

    def start(self) -> None:
        """Apply what is known to be committed, and begin to take part."""
        self._schedule_pump()
        self._arm_timer()

    async def stop(self) -> None:
        """Leave the group as a crash would, only with everything written synced; whoever waits is refused."""
        self._is_stopped = True
        self._applier.stop()
        if self._timer is not None:
            self._timer.cancel()
        for proposal in self._waiting.values():
            if not proposal.future.done():
                proposal.future.set_exception(ProposalRefusedError(f"{self.core.node} is stopping"))
        await self._snapshots.stop()
        if self._sync is not None:
            await asyncio.wait([self._sync])
        self._worker.close()
        if self._failure is None:
            with suppress(StorageError):  # nothing that was promised depends on it
                self._storage.sync()
        self._storage.close()

    async def propose(self, payload: bytes, request_id: Hashable, timeout_ms: int | None = None) -> Any:
        """Have a command committed and applied here; returns the state machine's outcome or raises its error.

        ``request_id`` must be what the state machine finds in ``payload``, and its counter that of the last call not
        refused, plus one. Raises `TimeoutError` (the command may still be applied later, if a leader has it in its log
        by then), `ProposalRefusedError` if too many wait, `StorageError` if the disk failed, `ConfigError` if this
        release does not know what is committed.
        """
        if self._failure is not None:
            raise self._failure
        if self._is_stopped:
            raise ProposalRefusedError(f"{self.core.node} is stopping")
        if len(self._waiting) >= MAX_WAITING_PROPOSALS:
            raise ProposalRefusedError(f"{len(self._waiting)} proposals of this node wait already")
        assert request_id not in self._waiting, "a request id is used for one proposal"
        timeout_ms = self._config.proposal_timeout_ms if timeout_ms is None else timeout_ms
        self._last_proposal += 1
        last_try_ms = self._now_ms() + max(timeout_ms // 2, timeout_ms - self.core.config.proposal_age_max_ms)
        proposal = WaitingProposal(
            self._last_proposal, payload, self._loop.create_future(), self.core.log.commit, last_try_ms
        )
        self._waiting[request_id] = proposal
        try:
            if proposal.number < next(iter(self._waiting.values())).number + MAX_OUTSTANDING_REQUESTS:
                self._try_proposal(proposal, self._now_ms())
                self._next_try_ms = min(self._next_try_ms, proposal.next_try_ms)
                self._hasten()
            async with asyncio.timeout(timeout_ms / 1000):
                return await proposal.future
        except TimeoutError:
            raise TimeoutError(f"no decision within {timeout_ms} ms: {self._describe()}") from None
        finally:
            is_oldest = next(iter(self._waiting)) == request_id
            del self._waiting[request_id]
            if is_oldest and self._last_proposal >= proposal.number + MAX_OUTSTANDING_REQUESTS:
                self._schedule_retry()  # some may be waiting for their first try

    async def wait_visible(self, index: int, peers: Callable[[], Collection[NodeName]]) -> bool:
        """Until all of ``peers()`` have applied the entry at ``index``; bounded, see `AppliedWatch`."""
        return await self._reports.wait(index, peers)

    def link_up(self, peer: NodeName) -> None:
        """A link that was down has lost what was said."""
        self._standing.peer_heard(peer)
        self._reports.link_up(peer)

    def link_down(self, peer: NodeName) -> None:
        """The link is gone."""
        self._reports.link_down(peer, self._now_ms())

    def peers_changed(self) -> None:
        """A peer was declared up or down."""
        self._reports.peers_changed()

    def peer_begins_anew(self, peer: NodeName) -> None:
        """A peer has started again, and has yet to be linked with: its process is not gone, and pauses no more."""
        self._standing.peer_heard(peer)
        self._reports.peer_begins_anew(peer, self._now_ms())

    # --- inputs ---

    def receive(self, messages: Sequence[Message]) -> None:
        """Messages of peers (`MeshHandler.on_consensus`)."""
        if not self._is_running:
            return
        now_ms = self._now_ms()
        for message in messages:
            self._standing.peer_heard(message.sender)
            if isinstance(message, AppliedUpTo):
                self._reports.receive(message)
            elif not isinstance(message, _ANSWERS) or self._may_answer(message.sender):
                self.core.step(now_ms, message)
        if self.core.next_deadline_ms < self._timer_due_ms:
            self._arm_timer()
        if self.core.has_work or self.core.leader != self._reported_leader or self._stalled is not None:
            self._schedule_pump()  # what most answers to heartbeats change is only remembered

    def found(self, voters: Sequence[Voter]) -> None:
        """Begin the log of a new group (`RaftCore.found`)."""
        self.core.found(self._now_ms(), voters)
        self._schedule_pump()
        self._arm_timer()

    def add_voter(self, voter: Voter) -> None:
        """Let a node vote, or note its identity; at the leader. Raises `ProposalRefusedError`."""
        self.core.propose_add_voter(self._now_ms(), voter.name, voter.identity)
        self._schedule_pump()

    def remove_voter(self, node: NodeName) -> None:
        """Let a node vote no more; at the leader. Raises `ProposalRefusedError`."""
        self.core.propose_remove_voter(self._now_ms(), node)
        self._schedule_pump()

    def set_learners(self, learners: Collection[Voter]) -> None:
        """Send the log to these, too; at the leader. Raises `ProposalRefusedError`."""
        self.core.set_learners(self._now_ms(), learners)
        self._schedule_pump()

    def transfer(self, target: NodeName) -> None:
        """Ask another voter to lead; at the leader. Raises `ProposalRefusedError`."""
        self.core.transfer_leadership(self._now_ms(), target)
        self._schedule_pump()

    async def hand_over(self, may_lead: Callable[[NodeName], bool]) -> NodeName | None:
        """Before this node leaves: see `cluster.runtime.handing_over`."""
        return await hand_over(self, self._now_ms, may_lead) if self._is_running else None

    def peer_down(self, peer: NodeName) -> None:
        """The process of ``peer`` is known to be gone (`MeshHandler.on_peer_refused`)."""
        self._standing.peer_gone(peer)
        if self._is_running:
            self.core.peer_down(self._now_ms(), peer)
            self._schedule_pump()
            self._arm_timer()

    # --- clock ---

    @property
    def _is_running(self) -> bool:
        return not self._is_stopped and self._failure is None

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _next_tick_ms(self, now_ms: int) -> int:
        """When the clock is to be looked at; see the top of this module."""
        due_ms = now_ms + TICK_EVERY_MS
        if self._stalled is None:
            due_ms = max(due_ms, self._standing.next_look_ms(self.applied_index))
        return int(max(now_ms + 1, min(due_ms, self.core.next_deadline_ms, self._next_try_ms)))

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_set_ms = now_ms = self._now_ms()
        self._timer_due_ms = self._next_tick_ms(now_ms)
        self._timer = self._loop.call_later((self._timer_due_ms - now_ms) / 1000, self._tick)

    def _hasten(self) -> None:
        """Something may be due earlier than it was."""
        if self._timer is not None and self._next_tick_ms(self._now_ms()) < self._timer_due_ms:
            self._arm_timer()

    def _tick(self) -> None:
        if not self._is_running:
            return
        now_ms = self._now_ms()
        hanging = self._sync_watch.look(now_ms, self._snapshots.writing_since_ms)
        self.core.tick(now_ms)
        self._retry_proposals(now_ms)
        self._pump()
        if self._standing.look(now_ms, self.applied_index, self._refused or hanging):
            self._listener.on_pause(self._standing.pause)
        self._reports.tell_standing()
        if self._is_running:
            self._arm_timer()
            if not self._applier.is_amid:
                self._snapshots.look(self.applied_index)

    # --- proposals ---

    def _try_proposal(self, proposal: WaitingProposal, now_ms: int) -> None:
        proposal.next_try_ms = now_ms + self._config.retry_interval_ms
        core = self.core
        if not self._is_running or self._stalled is not None:
            return
        if proposal.tried_term == core.term if core.is_leader else proposal.last_try_ms < now_ms:
            return
        try:
            core.propose(now_ms, [proposal.payload])
        except ProposalRefusedError:
            return  # no leader yet: tried again when there is one
        if core.is_leader:
            proposal.tried_term = core.term
        self._schedule_pump()

    def _schedule_retry(self) -> None:
        if not self._is_retry_scheduled:
            self._is_retry_scheduled = True
            self._loop.call_soon(self._scheduled_retry)

    def _scheduled_retry(self) -> None:
        self._is_retry_scheduled = False
        self._retry_proposals(self._now_ms())

    def _retry_proposals(self, now_ms: int, is_leader_new: bool = False) -> None:
        """Propose again what is due; everything, under a new leader."""
        end: int | None = None
        next_try_ms = NEVER_MS
        for proposal in self._waiting.values():
            if end is None:
                end = proposal.number + MAX_OUTSTANDING_REQUESTS
            if proposal.number >= end:
                break
            if is_leader_new or proposal.next_try_ms <= now_ms:
                self._try_proposal(proposal, now_ms)
            next_try_ms = min(next_try_ms, proposal.next_try_ms)
        self._next_try_ms = next_try_ms

    # --- carrying out ---

    def _schedule_pump(self) -> None:
        if not self._is_pump_scheduled:
            self._is_pump_scheduled = True
            self._loop.call_soon(self._scheduled_pump)

    def _scheduled_pump(self) -> None:
        self._is_pump_scheduled = False
        self._pump()

    def _pump(self) -> None:
        """Carry out everything that the core wants done."""
        try:
            if self._stalled is not None:
                self._append(self._stalled)
                self.core.forget_messages()
            while self._is_running and self._stalled is None and self.core.has_work:
                ready = self.core.take_ready()
                self._send_all(ready.messages_now)
                self._append(ready)
            if self._is_running:
                self._finish_unsynced()
                self._report_leader()
                if self.core.next_deadline_ms < self._timer_due_ms:
                    self._arm_timer()
        except Exception as error:
            self._apply_failed(error)

    def _append(self, ready: Ready) -> None:
        """Write it, and go on with it. For want of space, or of a descriptor, everything waits, and every tick tries
        again: to the other nodes this one is silent meanwhile, which Raft is made for."""
        try:
            self._storage.append(ready)
        except ShortageError as error:
            if self._stalled is None:
                text = "the log of the metadata cannot be written: this node takes no part in changes until it can (%s)"
                log.error(text, error)
            self._stalled, self._refused = ready, error
            self._hasten()
            return
        if self._stalled is not None:
            log.info("the log of the metadata can be written again: this node takes part in changes")
            self._stalled = self._refused = None
        self._unsynced.append(ready)
        if ready.snapshot is not None:
            self._applier.install(ready.snapshot)
        if ready.committed:
            self._applier.add(ready.committed)

    def _finish_unsynced(self) -> None:
        """Confirm what needs no sync, and begin a sync for the rest unless one runs."""
        if self._sync is not None:
            return
        while self._unsynced and not self._unsynced[0].needs_sync:
            self._confirm(self._unsynced.popleft())
        if self._unsynced:
            count = len(self._unsynced)
            self._sync_watch.began(self._now_ms())
            self._sync = self._worker.run(self._storage.sync)
            self._sync.add_done_callback(lambda future: self._synced(count, future))

    def _synced(self, count: int, future: asyncio.Future[None]) -> None:
        self._sync = None
        self._sync_watch.ended()
        error = future.exception()
        if not self._is_running:
            return
        if error is not None:
            self._fail(error if isinstance(error, StorageError) else StorageError(f"a sync failed: {error!r}"))
            return
        for _ in range(count):
            self._confirm(self._unsynced.popleft())
        self._pump()

    def _confirm(self, ready: Ready) -> None:
        self._send_all(ready.messages_after_append)
        self.core.appended(ready)
        if self.core.has_work:
            self._schedule_pump()

    def _send_all(self, messages: Sequence[Message]) -> None:
        by_receiver: dict[NodeName, list[Message]] = {}
        for message in messages:
            by_receiver.setdefault(message.receiver, []).append(message)
        for receiver, its_messages in by_receiver.items():
            self._send(receiver, its_messages)

    def _slice_applied(self, count: int, has_restored: bool) -> None:
        if not self._is_running:
            return
        if has_restored:
            self._unsaved_entries = 0
            self._snapshots.installed()
        self._listener.on_applied(self.applied_index)
        self._unsaved_entries += count
        if not self._applier.is_amid:
            self._snapshots.applied(self._unsaved_entries, self.applied_index)
            self._unsaved_entries = 0
        self._reports.tell([peer for peer in self.core.voters if peer != self.core.node])

    def _apply_failed(self, error: Exception) -> None:
        """A mistake of ours, perhaps in the middle of an entry, or what this release does not know: going on would skip
        it, or apply it twice."""
        if not isinstance(error, StorageError | ConfigError):
            log.error("carrying out what was committed failed", exc_info=error)
            error = StorageError(f"what is committed cannot be carried out: {error!r}")
        self._fail(error)

    def _resolve(self, applied: Applied) -> None:
        proposal = self._waiting.get(applied.request_id)
        if proposal is None or proposal.future.done() or self.applied_index <= proposal.after_index:
            return
        if applied.error is not None:
            proposal.future.set_exception(applied.error)
        else:
            proposal.future.set_result(applied.outcome)

    def _report_leader(self) -> None:
        if self.core.leader != self._reported_leader:
            self._reported_leader = self.core.leader
            self._listener.on_leader_change(self.core.leader)
        if self.core.proposes_to != self._proposed_to:
            self._proposed_to = self.core.proposes_to
            if self._proposed_to is not None:
                self._retry_proposals(self._now_ms(), is_leader_new=True)

    def _fail(self, error: StorageError | ConfigError) -> None:
        self._failure = error
        self._applier.stop()
        for proposal in self._waiting.values():
            if not proposal.future.done():
                proposal.future.set_exception(error)
        self._listener.on_storage_failed(error)

    def _describe(self) -> str:
        core = self.core
        return (
            f"{core.node} is {core.role.value} in term {core.term}, leader {core.leader}, applied {self.applied_index}"
        )

    def check_invariants(self) -> None:
        self.core.check_invariants()
        self._standing.check_invariants()
        self._reports.check_invariants()
        self._applier.check_invariants()
        assert (self._stalled is None) == (self._refused is None), "what the disk did not take, it refused"
        assert len(self._waiting) <= MAX_WAITING_PROPOSALS, "what waits is bounded"
        if self._timer is not None and self._is_running:
            due_ms = max(min(self.core.next_deadline_ms, self._next_try_ms), self._timer_set_ms + 1)
            assert self._timer_due_ms <= due_ms, "the timer comes when the core waits for it, or a proposal"
        tried_ms = [proposal.next_try_ms for proposal in self._waiting.values() if proposal.next_try_ms]
        assert self._next_try_ms <= min(tried_ms, default=NEVER_MS), "what was tried is tried again"
        if self._sync is None and self._is_running and not self._is_pump_scheduled:
            assert not self._unsynced, "what is written is being synced or confirmed"

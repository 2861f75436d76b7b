"""What the leader of one term knows of its followers and does for them: the *Leaders* part of the paper's figure 2.

**Commit.** An entry is committed when a majority holds it durably and it is of the leader's own term; the no-op that
begins each term carries the earlier ones along. The leader counts its own copy only when it is durable, too.

**Membership** changes one voter at a time. A configuration counts from the moment its entry is in the log (committed
or not; it goes if the entry is cut off), any two majorities of successive configurations overlap, and a leader
refuses a change while the one before is uncommitted or it has committed nothing in its own term. A leader that
removes itself leads until the removal is committed, then asks the best follower to take over. Who is removed stands for
election until it knows that this is committed (`RaftLog.may_lead`): perhaps nobody else has the entry, and without its
vote nobody is elected who has less (Ongaro's thesis, section 4.2.2). A *learner* is sent everything and counts for
nothing: who is to vote learns first, so that no majority waits for it to catch up for longer than for an election
(`cluster.raft.progress.Rounds`). What it has learned is known of one directory: another one under its name begins with
nothing.

An object of this class lives as long as its node leads the term; whatever ends that is `cluster.raft.core`'s business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cluster.raft.config import ProposalRefusedError, RaftConfig
from cluster.raft.currency import NEVER_MS
from cluster.raft.log import RaftLog
from cluster.raft.messages import (
    AppendRequest,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    TimeoutNow,
    Voter,
)
from cluster.raft.progress import Progress, ProgressState, Rounds
from node.ids import NodeName

#: Payload bytes per append request: a burst of declares in one round trip, and well below gRPC's limit of 4 MB.
MAX_APPEND_BYTES = 1024 * 1024
#: Payload bytes proposed and not yet committed. A leader without followers must not fill its memory.
MAX_UNCOMMITTED_BYTES = 64 * 1024 * 1024


class Leadership:
    """One term of one leader. What it has to say goes to ``messages``."""

    def __init__(self, config: RaftConfig, log: RaftLog, term: int, now_ms: int, messages: list[Message]) -> None:
        """Begins with a no-op and a heartbeat."""
        self.node = config.node
        self.term = term
        self._config = config
        self._log = log
        self._messages = messages
        #: When the next heartbeat is due.
        self.heartbeat_deadline_ms = 0
        #: True once its node is no voter any more, and that is committed.
        self.is_over = False
        self._uncommitted_bytes = 0
        self._transfer_target: NodeName | None = None
        self._transfer_deadline_ms = 0
        self._term_start_index = log.last_index + 1
        #: What is known of every other voter, and of a removed one until its removal is committed.
        self._progress = {peer: Progress(self._term_start_index, now_ms) for peer in log.voters if peer != self.node}
        #: Those of `_progress` that do not vote, and are not on their way out; and their identities.
        self._learners: dict[NodeName, str] = {}
        self._rounds: dict[NodeName, Rounds] = {}
        log.append([Entry(self._term_start_index, term, EntryKind.NOOP)])
        self._broadcast_heartbeat(now_ms)

    # ------------------------------------------------------------------ time and peers

    def is_heard(self, since_ms: int) -> bool:
        """True if a majority of the voters, the leader included, was heard since then."""
        heard = sum(
            voter == self.node or ((seen := self._progress[voter].last_heard_ms) is not None and seen >= since_ms)
            for voter in self._log.voters
        )
        return heard >= self._log.quorum

    def current_as_of_ms(self, now_ms: int) -> int:
        """When a majority, the leader included, last took this node for its leader, or `NEVER_MS`."""
        if self._log.commit < self._term_start_index:
            return NEVER_MS
        stamps = [now_ms + 1 if voter == self.node else self._progress[voter].echo_ms for voter in self._log.voters]
        return sorted(stamps, reverse=True)[self._log.quorum - 1] - 1

    def tick(self, now_ms: int) -> None:
        """Heartbeats, and an overdue transfer is given up."""
        if self._transfer_target is not None and now_ms >= self._transfer_deadline_ms:
            self._transfer_target = None
        if now_ms >= self.heartbeat_deadline_ms:
            self._broadcast_heartbeat(now_ms)

    def peer_down(self, peer: NodeName) -> None:
        """It is gone for certain: it is not counted any longer, and what was in flight is lost."""
        progress = self._progress.get(peer)
        if progress is not None:
            progress.last_heard_ms = None
            progress.forget_stamps()
            progress.become_probe()

    def _broadcast_heartbeat(self, now_ms: int) -> None:
        self.heartbeat_deadline_ms = now_ms + self._config.heartbeat_interval_ms
        committed = self._log.commit if self._log.commit >= self._term_start_index else 0
        leading_until_ms = self.current_as_of_ms(now_ms)
        for peer, progress in self._progress.items():
            progress.note_leading(leading_until_ms)
            commit = min(self._log.commit, progress.match)
            self._messages.append(
                Heartbeat(self.node, peer, self.term, commit, committed, now_ms + 1, progress.stamp_ms)
            )

    # ------------------------------------------------------------------ proposals

    def append(self, contents: Sequence[tuple[EntryKind, bytes]]) -> None:
        """New entries of this term. Raises `ProposalRefusedError`."""
        if self._transfer_target is not None:
            raise ProposalRefusedError(f"leadership is on its way to {self._transfer_target}")
        size = sum(len(payload) for _, payload in contents)
        if self._uncommitted_bytes and self._uncommitted_bytes + size > MAX_UNCOMMITTED_BYTES:
            raise ProposalRefusedError(f"{self._uncommitted_bytes} bytes wait for a majority already")
        self._uncommitted_bytes += size
        first = self._log.last_index + 1
        self._log.append([Entry(first + i, self.term, kind, payload) for i, (kind, payload) in enumerate(contents)])

    def change_voters(self, now_ms: int, kind: EntryKind, voter: bytes) -> None:
        """Add or remove one voter (packed). Raises `ProposalRefusedError`."""
        if self._log.commit < max(self._term_start_index, self._log.configuration_index):
            raise ProposalRefusedError("the change before is not committed yet")
        self.append([(kind, voter)])
        self._match_progress_to_voters(now_ms)

    def set_learners(self, now_ms: int, learners: Collection[Voter]) -> None:
        """Teach these from now on, and no others; those who vote are voters."""
        before, rounds = self._learners, self._rounds
        self._learners = {name: identity for name, identity in learners if name not in self._log.voters}
        self._rounds = {name: rounds[name] for name in self._learners if name in rounds}
        for name, identity in self._learners.items():
            if before.get(name) != identity:
                self._progress.pop(name, None)  # of another directory, or of a voter that was removed
                self._rounds[name] = Rounds(self._log.last_index, now_ms, self._config.election_timeout_min_ms)
        self._match_progress_to_voters(now_ms)

    def has_learned(self, now_ms: int, learner: NodeName) -> bool:
        """It keeps pace with the log, and was heard within the election timeout."""
        if learner not in self._learners:
            return False
        heard_ms = self._progress[learner].last_heard_ms
        is_heard = heard_ms is not None and heard_ms >= now_ms - self._config.election_timeout_min_ms
        return is_heard and self._rounds[learner].keeps_pace(now_ms)

    def _note_round(self, now_ms: int, peer: NodeName, progress: Progress) -> None:
        if peer in self._rounds:
            self._rounds[peer].note(now_ms, progress.match, self._log.last_index)

    def heirs(self, since_ms: int) -> list[NodeName]:
        """Other voters heard since then, those with most of the log first."""
        heard = [
            peer
            for peer in self._log.voters
            if peer != self.node and (at_ms := self._progress[peer].last_heard_ms) is not None and at_ms >= since_ms
        ]
        return sorted(heard, key=lambda peer: -self._progress[peer].match)

    def transfer(self, now_ms: int, target: NodeName) -> None:
        """See `RaftCore.transfer_leadership`."""
        if target not in self._progress or target not in self._log.voters:
            raise ProposalRefusedError(f"{target} is no other voter of this group")
        self._transfer_target = target
        self._transfer_deadline_ms = now_ms + self._config.election_timeout_min_ms
        self._send_timeout_now_if_complete(target)

    def leave(self, since_ms: int) -> bool:
        """Ask the best heir to take over at once, if a majority of the voters was heard without this node; true then.

        Who lacks something of the log is not asked: the others elect somebody when they miss their leader.
        """
        heirs = self.heirs(since_ms)
        if len(heirs) < self._log.quorum:
            return False
        self._send_timeout_now_if_complete(heirs[0])
        return True

    def _send_timeout_now_if_complete(self, target: NodeName) -> None:
        if self._progress[target].match == self._log.last_index:
            self._messages.append(TimeoutNow(self.node, target, self.term))

    def _match_progress_to_voters(self, now_ms: int) -> None:
        for peer in (*self._log.voters, *self._learners):
            if peer != self.node and peer not in self._progress:
                self._progress[peer] = Progress(self._log.last_index, now_ms)
        known = (*self._log.voters, *self._learners)
        for peer in [peer for peer in self._progress if peer not in known]:
            # The removed node should learn why nobody talks to it any more; it is told until its removal is committed.
            if self._log.commit >= self._log.configuration_index:
                del self._progress[peer]

    # ------------------------------------------------------------------ replication

    @property
    def wants_to_send(self) -> bool:
        for progress in self._progress.values():  # noqa: SIM110 - asked several times for each message
            if self._wants_append(progress):
                return True
        return False

    def send_appends(self, now_ms: int) -> None:
        """To every follower what it lacks and may be sent now."""
        for peer in self._progress:
            self._send_appends(now_ms, peer)

    def _wants_append(self, progress: Progress) -> bool:
        log = self._log
        is_behind = progress.next <= log.last_index or progress.commit_sent < min(log.commit, progress.match)
        return is_behind and not progress.is_paused

    def _send_appends(self, now_ms: int, peer: NodeName) -> None:
        progress = self._progress[peer]
        while self._wants_append(progress):
            previous_index = progress.next - 1
            previous_term = self._log.term_at(previous_index)
            if previous_term is None:
                progress.become_snapshot(now_ms)
                self._messages.append(InstallSnapshot(self.node, peer, self.term, self._log.snapshot))
                return
            self._send_append(peer, progress, previous_index, previous_term)

    def _send_append(self, peer: NodeName, progress: Progress, previous_index: int, previous_term: int) -> None:
        log = self._log
        entries = log.slice(progress.next, log.last_index + 1, MAX_APPEND_BYTES)
        request = AppendRequest(self.node, peer, self.term, previous_index, previous_term, entries, log.commit)
        self._messages.append(request)
        progress.commit_sent = max(progress.commit_sent, min(log.commit, previous_index + len(entries)))
        if entries or progress.state is ProgressState.PROBE:
            progress.note_sent(previous_index + len(entries))

    def on_append_response(self, now_ms: int, response: AppendResponse) -> None:
        progress = self._progress.get(response.sender)
        if progress is None:
            return
        progress.last_heard_ms = now_ms
        if not response.accepted:
            self._fall_back(progress, response)
            return
        is_news = progress.note_accepted(response.index)
        self._note_round(now_ms, response.sender, progress)
        is_snapshot_done = progress.state is ProgressState.SNAPSHOT and progress.match >= self._log.base_index
        if is_snapshot_done or progress.state is ProgressState.PROBE:
            progress.become_replicate()
        if is_news:
            self.advance_commit(now_ms)
            if not self.is_over and self._transfer_target == response.sender:
                self._send_timeout_now_if_complete(response.sender)

    def _fall_back(self, progress: Progress, response: AppendResponse) -> None:
        """The follower's log does not fit: find a point below where both may agree."""
        if progress.state is ProgressState.SNAPSHOT or response.index <= progress.match:
            return
        if progress.state is ProgressState.PROBE and response.index != progress.next - 1:
            return
        agreed = self._log.possible_agreement(response.index, response.conflict_index, response.conflict_term)
        progress.become_probe(agreed + 1)

    def on_heartbeat_response(self, now_ms: int, response: HeartbeatResponse) -> None:
        progress = self._progress.get(response.sender)
        if progress is None:
            return
        progress.last_heard_ms = now_ms
        progress.note_stamps(now_ms, response.stamp_ms, response.echo_ms)
        self._note_round(now_ms, response.sender, progress)
        if progress.match >= self._log.last_index:
            return
        # Something is not acknowledged, perhaps lost: ask again. While streaming an empty request will do, because its
        # refusal shows what is missing.
        if progress.state is ProgressState.PROBE:
            progress.is_probe_sent = False
        elif progress.state is ProgressState.REPLICATE:
            previous_term = self._log.term_at(progress.next - 1)
            if previous_term is None:
                progress.become_probe()
            elif progress.in_flight:
                request = AppendRequest(
                    self.node, response.sender, self.term, progress.next - 1, previous_term, (), self._log.commit
                )
                self._messages.append(request)
        else:
            echo_ms = response.echo_ms if response.stamp_ms else None
            if progress.is_snapshot_lost(now_ms, echo_ms, self._config.election_timeout_min_ms):
                progress.become_probe()

    # ------------------------------------------------------------------ commit

    def advance_commit(self, now_ms: int) -> None:
        """More may be durable, here or at a follower."""
        matches = sorted(
            (self._log.stable if peer == self.node else self._progress[peer].match for peer in self._log.voters),
            reverse=True,
        )
        index = matches[self._log.quorum - 1]
        if index <= self._log.commit or self._log.term_at(index) != self.term:
            return
        first = self._log.commit + 1
        committed = self._log.slice(first, index + 1, MAX_UNCOMMITTED_BYTES * 2)
        self._uncommitted_bytes = max(0, self._uncommitted_bytes - sum(len(entry.payload) for entry in committed))
        self._log.commit = index
        if first <= self._log.configuration_index <= index:
            self._configuration_committed(now_ms)

    def _configuration_committed(self, now_ms: int) -> None:
        for peer in [peer for peer in self._progress if peer not in self._log.voters]:
            self._send_appends(now_ms, peer)
        self._match_progress_to_voters(now_ms)
        if self.node not in self._log.voters:
            heir = max(self._log.voters, key=lambda peer: self._progress[peer].match)
            self.send_appends(now_ms)
            self._messages.append(TimeoutNow(self.node, heir, self.term))
            self.is_over = True

    def check_invariants(self) -> None:
        assert set(self._log.voters) - {self.node} <= set(self._progress), "a leader tracks every voter"
        assert self._learners.keys() <= self._progress.keys(), "and every learner"
        assert self._learners.keys() == self._rounds.keys(), "by rounds"
        for learner, rounds in self._rounds.items():
            rounds.check_invariants(self._progress[learner].match, self._log.last_index)
        for progress in self._progress.values():
            progress.check_invariants()

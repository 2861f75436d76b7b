"""Raft as a pure machine: messages, ticks and proposals go in, a `Ready` with everything to do comes out.

The shell loops: feed `step`, `tick`, `propose`; then `take_ready`, carry it out in the order its docstring gives,
and call `appended` when its writes are durable. Several `Ready` objects may be on their way to the disk at once;
their confirmations come in order. Nothing in here reads a clock, draws from a global random source or waits.

**What waits for the disk.** Granted votes and a candidate's vote requests (the vote for itself must survive a crash
before anybody can answer it: a restarted candidate with a shorter log could otherwise win with votes that were given to
the longer one), and append responses. The leader counts its own copy of an entry only when `appended` says
so. Append requests and heartbeats do not wait: the leader's disk and the followers' work at the same time.

**Elections.** A node whose election timer runs out asks for pre-votes first; only a majority of "I would" makes it
raise its term, so a node that was cut off cannot disturb a stable leader when it returns. Nodes that heard
from a leader within the election timeout refuse (pre-)votes; a leader that has not heard from a majority for that long
steps down (CheckQuorum). `peer_down` lifts both waits: who is told that the leader's process is gone stands
almost at once. A node whose disk hangs stands back (`stand_back`): it hands over, and does not stand.

**Leading**, with commit and the change of voters, is `cluster.raft.leadership`: an object that is there while this node
leads. The founding voters are ordinary entries at the start of the log, which one node of a new group writes (`found`),
so that all others learn them like the rest. Until then their logs are empty: they vote, but never stand.

**Names and identities.** A configuration names each voter with the identity of its data directory. Messages carry
names; it is for the shell to see that what answers a request comes from the identity that the log names
(`cluster.runtime.admission`), or a node with an empty disk could vote again in the place of the one before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from random import Random

from cluster.raft.config import (
    ProposalRefusedError,
    RaftConfig,
    RestoredState,
    Role,
    founding_entries,
    founding_state,
)
from cluster.raft.currency import Currency
from cluster.raft.forwarding import Forwarding, is_too_old
from cluster.raft.leadership import Leadership
from cluster.raft.log import RETAINED_ENTRIES, RaftLog
from cluster.raft.messages import (
    AppendRequest,
    AppendResponse,
    EntryKind,
    ForwardedProposal,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    Ready,
    Snapshot,
    TimeoutNow,
    Voter,
    VoteRequest,
    VoteResponse,
)
from node.ids import NodeName

__all__ = ["ProposalRefusedError", "RaftConfig", "RaftCore", "RestoredState", "Role", "founding_state"]


class RaftCore:
    """One node of a Raft group. See the module's essay."""

    def __init__(self, config: RaftConfig, restored: RestoredState, rng: Random, now_ms: int) -> None:
        self.config = config
        self.node = config.node
        self.log = RaftLog(restored.snapshot, restored.entries, restored.hard_state.commit)
        self.term = restored.hard_state.term
        #: Whom this node voted for in `term`.
        self.voted_for = restored.hard_state.voted_for
        self.role = Role.FOLLOWER
        #: Leader of `term` as far as known.
        self.leader: NodeName | None = None
        #: As of when this node has whatever is committed.
        self.currency = Currency()
        self._forwarding = Forwarding(config, now_ms)
        #: While this node leads, what that takes.
        self._leadership: Leadership | None = None
        self._rng = rng
        self._now_ms = now_ms
        self._written_hard_state = self._hard_state
        self._next_ready = 1
        self._messages_now: list[Message] = []
        self._messages_after_append: list[Message] = []
        self._installed_snapshot: Snapshot | None = None
        #: Candidate: the `Ready` that makes its vote for itself durable.
        self._self_vote_ready = 0
        #: While it stands: who has answered what.
        self._votes: dict[NodeName, bool] = {}
        #: When the leader was last heard; meaningful while `leader` is set.
        self._leader_heard_ms = now_ms
        #: When this node last followed a leader that it heard, or led; ``None``: not since its process began.
        self.last_led_ms: int | None = None
        #: Without a leader this node does not stand before.
        self._stands_from_ms = 0
        #: True after `peer_down` of the leader until another one is known: elections are retried quickly.
        self._is_leader_gone = False
        self._stands_back = False
        self._election_deadline_ms: int
        self._reset_election_timer()

    # ------------------------------------------------------------------ what the shell may ask

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def voters(self) -> tuple[NodeName, ...]:
        return self.log.voters

    @property
    def proposes_to(self) -> tuple[NodeName, int] | None:
        """The leader and its term, if `propose` would not be refused for want of one."""
        return (self.node, self.term) if self.is_leader else self._forwarding.goes_to(self.leader, self.term)

    @property
    def next_deadline_ms(self) -> int:
        """`tick` has something to do at this time at the latest."""
        return self._election_deadline_ms if self._leadership is None else self._leadership.heartbeat_deadline_ms

    def has_quorum(self, now_ms: int) -> bool:
        """True if this node is, as far as it can know, on the side of a majority.

        Leader: a majority (itself included) was heard within the election timeout. Follower: a leader was. False
        during an election too, so whoever pauses a node on it should allow for the length of one.
        """
        limit = now_ms - self.config.election_timeout_min_ms
        if self._leadership is not None:
            return self._leadership.is_heard(limit)
        return self.leader is not None and self._leader_heard_ms >= limit

    @property
    def has_work(self) -> bool:
        """True if `take_ready` would give the shell something to do."""
        return bool(
            self._messages_now
            or self._messages_after_append
            or self._installed_snapshot
            or self.log.handed_out < self.log.last_index
            or self._is_hard_state_new
            or min(self.log.commit, self.log.stable) > self.log.applied
            or (self._leadership is not None and self._leadership.wants_to_send)
        )

    # ------------------------------------------------------------------ inputs

    def tick(self, now_ms: int) -> None:
        """Time has come to ``now_ms``: heartbeats, election timeouts, CheckQuorum, an overdue transfer."""
        self._now_ms = max(self._now_ms, now_ms)
        if self._leadership is not None:
            if self.has_quorum(self._now_ms):
                self._leadership.tick(self._now_ms)
                self._note_currency_of_leader()
            else:
                self._become_follower(self.term, None)
        elif self._now_ms >= self._election_deadline_ms:
            self._reset_election_timer()
            if self._may_stand:
                self._ask_pre_votes()

    def step(self, now_ms: int, message: Message) -> None:
        """A message from a peer."""
        assert message.receiver == self.node, "the transport delivers to the receiver"
        self._now_ms = max(self._now_ms, now_ms)
        if message.term == 0:
            self._step_outside_of_terms(message)
            return
        if message.term > self.term:
            if not self._adopt_term(message):
                return
        elif message.term < self.term:
            self._answer_stale(message)
            return
        match message:
            case AppendRequest():
                self._on_append_request(message)
            case AppendResponse():
                if self._leadership is not None:
                    self._leadership.on_append_response(self._now_ms, message)
                    self._end_leadership_if_over()
            case Heartbeat():
                self._on_heartbeat(message)
            case HeartbeatResponse():
                if self._leadership is not None:
                    self._leadership.on_heartbeat_response(self._now_ms, message)
                    self._note_currency_of_leader()
            case InstallSnapshot():
                self._on_install_snapshot(message)
            case _:
                self._step_election(message)

    def propose(self, now_ms: int, payloads: Sequence[bytes]) -> None:
        """Ask for commands to be committed; a follower forwards them to its leader.

        Success shows when they come back in `Ready.committed`; they may also get lost. Raises `ProposalRefusedError`.
        """
        self._now_ms = max(self._now_ms, now_ms)
        if self._leadership is not None:
            self._leadership.append([(EntryKind.COMMAND, payload) for payload in payloads])
        elif self.leader is not None:
            as_of_ms = self._forwarding.as_of_ms(self.leader, self.term)
            self._messages_now.append(ForwardedProposal(self.node, self.leader, tuple(payloads), as_of_ms))
        else:
            raise ProposalRefusedError(f"{self.node} knows no leader in term {self.term}")

    def found(self, now_ms: int, voters: Sequence[Voter]) -> None:
        """Begin the log of a new group with these voters. On one node only, while all their logs are empty."""
        assert self.log.last_index == 0, "a group is founded once"
        assert self.node in (voter.name for voter in voters), "who founds a group is of it"
        self._now_ms = max(self._now_ms, now_ms)
        self.term = max(self.term, 1)
        self.log.append(founding_entries(voters))
        self.log.commit = self.log.last_index
        self._election_deadline_ms = self._now_ms  # nobody else has anything to stand with

    def propose_add_voter(self, now_ms: int, node: NodeName, identity: str = "") -> None:
        """Let ``node`` vote, under this identity only. Only at the leader. Raises `ProposalRefusedError`.

        An existing voter is no change, but one without an identity gets it.
        """
        self._now_ms = max(self._now_ms, now_ms)
        known = self.log.identity_of(node)
        if known and identity and known != identity:
            raise ProposalRefusedError(f"{node} votes under another identity: it is to be removed first")
        if known is None or (identity and not known):
            change = Voter(node, identity).pack()
            self._require_leadership().change_voters(self._now_ms, EntryKind.ADD_VOTER, change)

    def propose_remove_voter(self, now_ms: int, node: NodeName) -> None:
        """Take the vote from ``node``, which may be the leader itself. Only at the leader."""
        self._now_ms = max(self._now_ms, now_ms)
        if node in self.voters:
            if len(self.voters) == 1:
                raise ProposalRefusedError(f"{node} is the last voter: a group without voters could decide nothing")
            self._require_leadership().change_voters(self._now_ms, EntryKind.REMOVE_VOTER, node.encode())

    def set_learners(self, now_ms: int, learners: Collection[Voter]) -> None:
        """Send the log to these, who do not vote, as long as this node leads. Only at the leader."""
        self._now_ms = max(self._now_ms, now_ms)
        self._require_leadership().set_learners(self._now_ms, learners)

    def has_learned(self, learner: NodeName) -> bool:
        """At the leader: a learner was heard just now, and lacks no more of the log than what is on its way."""
        return self._leadership is not None and self._leadership.has_learned(self._now_ms, learner)

    def heirs(self, now_ms: int) -> list[NodeName]:
        """At the leader: who could take over now, the most caught-up first. Nobody at any other node."""
        return [] if self._leadership is None else self._leadership.heirs(now_ms - self.config.election_timeout_min_ms)

    def transfer_leadership(self, now_ms: int, target: NodeName) -> None:
        """Hand over to ``target`` as soon as it has the whole log; until then proposals are refused.

        Given up after an election timeout. Only at the leader. Raises `ProposalRefusedError`.
        """
        self._now_ms = max(self._now_ms, now_ms)
        self._require_leadership().transfer(self._now_ms, target)

    def stand_back(self, now_ms: int) -> None:
        """This node's disk hangs: it does not stand until `stand_again`. If it leads, and others can without it, it
        asks the best of them to take over, and follows; if not, it leads on, and is to be asked now and then."""
        self._now_ms = max(self._now_ms, now_ms)
        self._stands_back = True
        since_ms = self._now_ms - self.config.election_timeout_min_ms
        if self._leadership is not None and self._leadership.leave(since_ms):
            self._become_follower(self.term, None)

    def stand_again(self) -> None:
        """This node's disk hangs no more."""
        self._stands_back = False

    def wait_for_leader(self, until_ms: int) -> None:
        """Do not stand before then, unless a leader is heard meanwhile: the shell has reason to doubt the group."""
        self._stands_from_ms = until_ms

    def peer_down(self, now_ms: int, peer: NodeName) -> None:
        """The failure detector is sure that the process of ``peer`` is gone (reset, and reconnect refused).

        Its followers stand for election without waiting for the timeout; a leader stops counting it at once.
        """
        self._now_ms = max(self._now_ms, now_ms)
        if self._leadership is not None:
            self._leadership.peer_down(peer)
        elif peer == self.leader:
            self.leader = None
            self._is_leader_gone = True
            delay = self._rng.randint(0, self.config.peer_down_delay_max_ms)
            self._election_deadline_ms = self._now_ms + delay

    def snapshot_of(self, index: int, data: bytes, *, says_configuration: bool = True) -> Snapshot:
        """The state machine's state after the applied entry ``index``, newer than the last snapshot, is ``data``.

        The shell writes it, and says `compact` then; its loss in a crash costs nothing but replaying.
        ``says_configuration``: see `RaftLog.snapshot_of`.
        """
        return self.log.snapshot_of(index, data, says_configuration=says_configuration)

    def compact(self, snapshot: Snapshot, retained_entries: int = RETAINED_ENTRIES) -> None:
        """``snapshot`` is written: forget the entries before its end."""
        self.log.compact(snapshot, retained_entries)

    def forget_messages(self) -> None:
        """What is to be sent is lost: for who cannot write is silent, and nobody is to hear of it later."""
        self._messages_now.clear()
        self._messages_after_append.clear()

    # ------------------------------------------------------------------ outputs

    def take_ready(self) -> Ready:
        """Everything to do since the last call. See `Ready` for the order."""
        if self._leadership is not None:
            self._leadership.send_appends(self._now_ms)
        entries = self.log.take_unwritten()
        committed = self.log.take_committed()
        hard_state = self._hard_state
        written = self._written_hard_state
        is_vote_changed = (hard_state.term, hard_state.voted_for) != (written.term, written.voted_for)
        ready = Ready(
            number=self._next_ready,
            messages_now=tuple(self._messages_now),
            snapshot=self._installed_snapshot,
            entries_to_append=entries,
            hard_state=hard_state if hard_state != written else None,
            needs_sync=bool(entries) or is_vote_changed or self._installed_snapshot is not None,
            messages_after_append=tuple(self._messages_after_append),
            committed=committed,
        )
        self._next_ready += 1
        self._written_hard_state = hard_state
        self._messages_now.clear()
        self._messages_after_append.clear()
        self._installed_snapshot = None
        return ready

    def appended(self, ready: Ready) -> None:
        """The writes of ``ready`` and of all before it are durable."""
        if ready.entries_to_append:
            self.log.note_stable(ready.entries_to_append[-1].index, ready.number)
        if self.role is Role.CANDIDATE and ready.number >= self._self_vote_ready and self.node not in self._votes:
            self._count_vote(self.node, True)
        elif self._leadership is not None:
            self._leadership.advance_commit(self._now_ms)

    # ------------------------------------------------------------------ terms and roles

    @property
    def _hard_state(self) -> HardState:
        # A commit index above what is durable here could, after a crash, bless an entry that was about to be cut off.
        return HardState(self.term, self.voted_for, min(self.log.commit, self.log.stable))

    @property
    def _is_hard_state_new(self) -> bool:
        """It is not what was written; asked often, so without making one."""
        written, log = self._written_hard_state, self.log
        if written.term != self.term or written.voted_for != self.voted_for:
            return True
        return written.commit != (log.commit if log.commit < log.stable else log.stable)

    @property
    def _may_stand(self) -> bool:
        return self.log.may_lead(self.node) and not self._stands_back and self._now_ms >= self._stands_from_ms

    @property
    def _is_lease_in_force(self) -> bool:
        """True if a leader was heard so recently that nobody else may be elected."""
        if self.role is Role.LEADER:
            return True
        return self.leader is not None and self._now_ms - self._leader_heard_ms < self.config.election_timeout_min_ms

    def _reset_election_timer(self) -> None:
        if self._is_leader_gone:
            shortest, longest = self.config.heartbeat_interval_ms, 3 * self.config.heartbeat_interval_ms
        else:
            shortest, longest = self.config.election_timeout_min_ms, self.config.election_timeout_max_ms
        self._election_deadline_ms = self._now_ms + self._rng.randint(shortest, longest)

    def _adopt_term(self, message: Message) -> bool:
        """A message of a higher term. False if it must be ignored."""
        match message:
            case PreVoteRequest() | PreVoteResponse(granted=True):
                return True
            case VoteRequest(is_transfer=False) if self._is_lease_in_force:
                return False
            case AppendRequest() | Heartbeat() | InstallSnapshot():
                self._become_follower(message.term, message.sender)
            case _:
                self._become_follower(message.term, None)
        return True

    def _answer_stale(self, message: Message) -> None:
        """A message of a lower term: tell a leader or candidate that time has moved on, so that it catches up."""
        match message:
            case AppendRequest() | Heartbeat() | InstallSnapshot():
                refusal = AppendResponse(self.node, message.sender, self.term, False, 0)
                self._messages_after_append.append(refusal)
            case PreVoteRequest():
                self._messages_now.append(PreVoteResponse(self.node, message.sender, self.term, False))
            case _:
                pass

    def _become_follower(self, term: int, leader: NodeName | None) -> None:
        assert term >= self.term, "terms never fall"
        if term > self.term:
            self.term = term
            self.voted_for = None
        if leader is not None or self.role is Role.LEADER:
            self.last_led_ms = self._now_ms
            self._stands_from_ms = 0
        self.role = Role.FOLLOWER
        self._leadership = None
        self.leader = leader
        if leader is not None:
            self._is_leader_gone = False
            self._leader_heard_ms = self._now_ms
        self._reset_election_timer()

    def _ask_pre_votes(self) -> None:
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self._votes = {}
        log = self.log
        for peer in self.voters:
            if peer != self.node:
                request = PreVoteRequest(self.node, peer, self.term + 1, log.last_index, log.last_term)
                self._messages_now.append(request)
        self._count_vote(self.node, True)

    def _campaign(self, is_transfer: bool = False) -> None:
        self.term += 1
        self.voted_for = self.node
        self.role = Role.CANDIDATE
        self.leader = None
        self._votes = {}
        self._self_vote_ready = self._next_ready
        self._reset_election_timer()
        log = self.log
        for peer in self.voters:
            if peer != self.node:
                request = VoteRequest(self.node, peer, self.term, log.last_index, log.last_term, is_transfer)
                self._messages_after_append.append(request)

    def _count_vote(self, voter: NodeName, is_granted: bool) -> None:
        self._votes.setdefault(voter, is_granted)
        granted = sum(self._votes.get(peer, False) for peer in self.voters)
        refused = sum(not self._votes.get(peer, True) for peer in self.voters)
        if granted >= self.log.quorum:
            if self.role is Role.PRE_CANDIDATE:
                self._campaign()
            else:
                self._become_leader()
        elif refused >= self.log.quorum:
            self._become_follower(self.term, None)

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.node
        self._is_leader_gone = False
        self._leadership = Leadership(self.config, self.log, self.term, self._now_ms, self._messages_now)

    def _require_leadership(self) -> Leadership:
        if self._leadership is None:
            raise ProposalRefusedError(f"{self.node} is not the leader; {self.leader or 'nobody'} is")
        return self._leadership

    def _end_leadership_if_over(self) -> None:
        if self._leadership is not None and self._leadership.is_over:
            self._become_follower(self.term, None)

    # ------------------------------------------------------------------ elections

    def _step_election(self, message: Message) -> None:
        match message:
            case PreVoteRequest():
                self._on_pre_vote_request(message)
            case PreVoteResponse():
                self._on_pre_vote_response(message)
            case VoteRequest():
                self._on_vote_request(message)
            case VoteResponse():
                self._on_vote_response(message)
            case TimeoutNow():
                if self.role is not Role.LEADER and self._may_stand:
                    self._campaign(is_transfer=True)
            case _:
                raise AssertionError(f"{type(message).__name__} carries no term")

    def _on_pre_vote_request(self, request: PreVoteRequest) -> None:
        is_granted = (
            request.term > self.term
            and not self._is_lease_in_force
            and self.log.is_up_to_date(request.last_index, request.last_term)
        )
        term = request.term if is_granted else self.term
        self._messages_now.append(PreVoteResponse(self.node, request.sender, term, is_granted))

    def _on_pre_vote_response(self, response: PreVoteResponse) -> None:
        if self.role is not Role.PRE_CANDIDATE:
            return
        if not response.granted or response.term == self.term + 1:
            self._count_vote(response.sender, response.granted)

    def _on_vote_request(self, request: VoteRequest) -> None:
        is_free = self.voted_for == request.sender or (self.voted_for is None and self.leader is None)
        is_granted = is_free and self.log.is_up_to_date(request.last_index, request.last_term)
        if is_granted:
            self.voted_for = request.sender
            self._reset_election_timer()
        self._messages_after_append.append(VoteResponse(self.node, request.sender, self.term, is_granted))

    def _on_vote_response(self, response: VoteResponse) -> None:
        if self.role is Role.CANDIDATE:
            self._count_vote(response.sender, response.granted)

    # ------------------------------------------------------------------ following

    def _follow(self, leader: NodeName) -> None:
        assert self.role is not Role.LEADER, f"two leaders in term {self.term}: {self.node} and {leader}"
        self._become_follower(self.term, leader)

    def _on_append_request(self, request: AppendRequest) -> None:
        self._follow(request.sender)
        log = self.log
        entries = request.entries
        previous_index = request.previous_index
        if previous_index < log.base_index:
            # A repeated old request: what is compacted here is committed, so it agrees; look at the rest only.
            entries = entries[log.base_index - previous_index :]
            previous_index = log.base_index
        elif not log.matches(previous_index, request.previous_term):
            self._refuse(request)
            return
        log.merge(entries, self._next_ready)
        self._accept(request.sender, previous_index + len(entries), request.commit)

    def _accept(self, leader: NodeName, index: int, commit: int) -> None:
        self.log.commit = max(self.log.commit, min(commit, index))
        self._messages_after_append.append(AppendResponse(self.node, leader, self.term, True, index))

    def _refuse(self, request: AppendRequest) -> None:
        index = request.previous_index
        response = AppendResponse(self.node, request.sender, self.term, False, index, *self.log.conflict_at(index))
        self._messages_after_append.append(response)

    def _note_currency_of_leader(self) -> None:
        if self._leadership is not None:
            self.currency.note(self._leadership.current_as_of_ms(self._now_ms), self.log.commit)

    def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        self._follow(heartbeat.sender)
        before_ms = self.currency.heard_as_of_ms
        if heartbeat.stamp_ms == 0:
            self.currency.note(self._now_ms, heartbeat.commit)  # a leader of a release without stamps
        elif heartbeat.committed and 0 < heartbeat.echo_ms <= self._now_ms + 1:
            self.currency.note(heartbeat.echo_ms - 1, heartbeat.committed)
        self._forwarding.heard(heartbeat, self._now_ms, before_ms, self.currency.heard_as_of_ms)
        self.log.commit = max(self.log.commit, min(heartbeat.commit, self.log.last_index))
        response = HeartbeatResponse(self.node, heartbeat.sender, self.term, self._now_ms + 1, heartbeat.stamp_ms)
        self._messages_now.append(response)

    def _on_install_snapshot(self, request: InstallSnapshot) -> None:
        self._follow(request.sender)
        snapshot = request.snapshot
        log = self.log
        if snapshot.index > log.commit:
            if log.matches(snapshot.index, snapshot.term):
                log.commit = snapshot.index
            else:
                log.reset_to(snapshot, self._next_ready)
                self._installed_snapshot = snapshot
        response = AppendResponse(self.node, request.sender, self.term, True, min(log.commit, log.last_index))
        self._messages_after_append.append(response)

    # ------------------------------------------------------------------ requests outside of terms

    def _step_outside_of_terms(self, message: Message) -> None:
        if self.role is not Role.LEADER or not isinstance(message, ForwardedProposal):
            return
        if not is_too_old(message, self._now_ms, self.config):
            with suppress(ProposalRefusedError):  # as if lost on the way: the proposer repeats
                self.propose(self._now_ms, message.payloads)

    def check_invariants(self) -> None:
        self.log.check_invariants()
        self.currency.check_invariants()
        assert self.term >= self.log.last_term, "an entry's term is known before the entry is"
        assert (self.role is Role.LEADER) == (self.leader == self.node), "a leader knows that it leads"
        assert (self.role is Role.LEADER) == (self._leadership is not None), "who leads keeps track of the followers"
        if self.role in (Role.CANDIDATE, Role.LEADER):
            assert self.voted_for == self.node, "a candidate votes for itself"
        if self._leadership is not None:
            assert self._leadership.term == self.term, "a leader of another term is none"
            self._leadership.check_invariants()

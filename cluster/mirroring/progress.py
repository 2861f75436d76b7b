"""What the master knows of one mirror: the state of the conversation, what is in flight, what confirms may count on.

States (`TRANSITIONS` is the whole truth; an input that is not in the table is a mistake of ours)::

    unreachable --link up--> probing --attach sent--> attaching --difference known--> filling <--> streaming
                                ^                                                        |
                     caught up  |                                                        v
                             lagging <----- window exceeded (from any attached state)  synchronised

Positions. `applied_turn` and `durable_turn` are what the confirm rule uses; turns are the master's (all that a queue
did between two sends). They stand still while the mirror lacks something that must hold back confirms: a *required*
mirror (one the record calls synchronised, or that this master has reported as such) advances only while it is
*complete*. Other mirrors hold back what was published after their first attach, so each attach sets them to its own
turn: the first one at once, the others when the mirror has answered. It may be the master by now, elected while there
was no link, and what is confirmed until it says so would be lost.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from cluster.mirroring.ranges import SeqRangeSet
from node.ids import NodeName, SeqId
from node.queues.replica import SeqRange


class MirrorState(Enum):
    """Where the conversation stands."""

    UNREACHABLE = "unreachable"
    PROBING = "probing"
    ATTACHING = "attaching"
    #: The difference is being sent, or is sent and not yet durable there.
    FILLING = "filling"
    #: The mirror lacks messages and nobody asked to fill it; live operations flow.
    STREAMING = "streaming"
    SYNCHRONISED = "synchronised"
    #: Too much in flight: nothing more is sent until all of that is applied; then comes a new attach.
    LAGGING = "lagging"

    #: Of the member itself: states are looked up for each message, and Enum hashes the name, in Python.
    __hash__ = object.__hash__


class MirrorInput(Enum):
    """What moves it."""

    LINK_UP = "link up"
    LINK_DOWN = "link down"
    ATTACH_SENT = "attach sent"
    FILL_WANTED = "fill wanted"
    FILL_NOT_WANTED = "fill not wanted"
    FILLED = "filled"
    WINDOW_EXCEEDED = "window exceeded"
    CAUGHT_UP = "caught up"


#: Frames remembered until the mirror's disk has them. Beyond that (a disk that hangs while memory keeps up) the newest
#: takes the place of the one before: acknowledgements are cumulative, confirms merely come in bigger groups.
UNDURABLE_FRAMES_MAX = 1024

_S, _I = MirrorState, MirrorInput
_ATTACHED = frozenset({_S.ATTACHING, _S.FILLING, _S.STREAMING, _S.SYNCHRONISED})
_UNANSWERED = frozenset({_S.UNREACHABLE, _S.PROBING, _S.ATTACHING})

#: The mirror has answered its attach and hears of every operation.
RECEIVING = frozenset({_S.FILLING, _S.STREAMING, _S.SYNCHRONISED})

TRANSITIONS: dict[tuple[MirrorState, MirrorInput], MirrorState] = {
    (_S.UNREACHABLE, _I.LINK_UP): _S.PROBING,
    (_S.PROBING, _I.ATTACH_SENT): _S.ATTACHING,
    (_S.ATTACHING, _I.FILL_WANTED): _S.FILLING,
    (_S.ATTACHING, _I.FILL_NOT_WANTED): _S.STREAMING,
    (_S.STREAMING, _I.FILL_WANTED): _S.FILLING,
    (_S.FILLING, _I.FILL_NOT_WANTED): _S.STREAMING,
    (_S.FILLING, _I.FILLED): _S.SYNCHRONISED,
    (_S.LAGGING, _I.CAUGHT_UP): _S.PROBING,
    **{(state, _I.WINDOW_EXCEEDED): _S.LAGGING for state in _ATTACHED},
    # A link that comes up again without having been seen going down has lost what was in flight as well; a mirror that
    # is silent for too long is treated as if its link had done that.
    **{(state, _I.LINK_UP): _S.PROBING for state in _S if state is not _S.UNREACHABLE},
    **{(state, _I.LINK_DOWN): _S.UNREACHABLE for state in _S},
}


class SentFrame:
    """One `Ops` frame on its way."""

    __slots__ = ("end_index", "horizon", "is_sync", "size_bytes", "turn")

    def __init__(self, end_index: int, turn: int, size_bytes: int, horizon: int, is_sync: bool) -> None:
        #: Index of the frame's last op.
        self.end_index = end_index
        #: With this frame the mirror has everything of the master's turns up to this one.
        self.turn = turn
        self.size_bytes = size_bytes
        #: Promise carried by the frame, 0 if none.
        self.horizon = horizon
        #: True for a batch of the difference.
        self.is_sync = is_sync


class MirrorProgress:
    """Progress of one mirror within one epoch of its master, and one life of the mirror if its copy ends with that."""

    __slots__ = (
        "_attach_horizon",
        "_is_answered",
        "_raw_applied_turn",
        "_raw_durable_turn",
        "_unapplied",
        "_undurable",
        "applied_index",
        "applied_turn",
        "attach_id",
        "attach_index",
        "attach_next_seq_id",
        "attach_retry_ms",
        "durable_index",
        "durable_turn",
        "end_of_fill_index",
        "extras",
        "in_flight_bytes",
        "in_flight_sync_batches",
        "is_complete",
        "is_disk_full",
        "is_required",
        "is_sync_wanted",
        "known_horizon",
        "lacking",
        "last_progress_ms",
        "node",
        "sent_index",
        "state",
        "synced",
        "unreachable_since_ms",
        "was_attached",
    )

    def __init__(self, node: NodeName, is_required: bool, is_sync_wanted: bool, known_horizon: SeqId | None) -> None:
        self.node = node
        self.state = MirrorState.UNREACHABLE
        #: True if confirms wait until the mirror lacks nothing. Never becomes False in an epoch and a life.
        self.is_required = is_required
        #: True once an attach was sent in this epoch; from then on the mirror holds back confirms.
        self.was_attached = False
        #: Its disk refuses writes, as far as it has said in this conversation.
        self.is_disk_full = False
        #: An operator or the policy asked to fill it.
        self.is_sync_wanted = is_sync_wanted
        #: Turns that confirms may count on, -1 = none (see the essay above).
        self.applied_turn = -1
        self.durable_turn = -1
        #: Lowest horizon that the mirror may be relying on; ``None`` if no attach of this epoch was ever sent to it.
        self.known_horizon = known_horizon

        self.attach_id = 0
        self.attach_index = 0
        self.attach_next_seq_id = SeqId(0)
        self._attach_horizon = SeqId(0)
        #: Conversation indexes: last sent, last acknowledged as applied and as durable.
        self.sent_index = 0
        self.applied_index = 0
        self.durable_index = 0
        self._raw_applied_turn = -1
        self._raw_durable_turn = -1
        #: The mirror has answered this attach, or it is the first one.
        self._is_answered = False
        #: When the mirror last acknowledged something new, or had nothing to acknowledge.
        self.last_progress_ms: int | None = None
        #: Since when it has been found without a link; ``None``: it has one.
        self.unreachable_since_ms: int | None = None
        #: Silence after which an unanswered attach is sent again.
        self.attach_retry_ms = 0
        self._begin()

    def _begin(self) -> None:
        """Nothing has been said in this conversation yet."""
        self._unapplied: deque[SentFrame] = deque()
        self._undurable: deque[SentFrame] = deque()
        #: Size of what is sent and not acknowledged as applied.
        self.in_flight_bytes = 0
        self.in_flight_sync_batches = 0
        #: Positions whose message the mirror lacks and was not yet sent. A superset: some may be settled.
        self.lacking = SeqRangeSet()
        #: What the mirror has and the master has not, to be discarded with the next frame.
        self.extras: list[SeqRange] = []
        #: Messages sent in batches of the difference.
        self.synced = 0
        #: With this index the difference was sent whole, ``None``: it was not yet.
        self.end_of_fill_index: int | None = None
        #: True while the mirror has, durably up to `durable_turn`, everything that the master has.
        self.is_complete = False

    def step(self, change: MirrorInput) -> None:
        """Change the state as the table says."""
        after = TRANSITIONS.get((self.state, change))
        assert after is not None, f"mirror {self.node}: {change.value} in state {self.state.value}"
        self.state = after
        self.is_disk_full = self.is_disk_full and after not in _UNANSWERED
        if after is not MirrorState.UNREACHABLE:
            self.unreachable_since_ms = None

    @property
    def is_attached(self) -> bool:
        """True if live operations flow."""
        return self.state in _ATTACHED

    @property
    def holds_confirms(self) -> bool:
        return self.is_required or self.was_attached

    @property
    def in_flight_frames(self) -> int:
        return len(self._unapplied)

    @property
    def is_idle(self) -> bool:
        """True if the mirror owes no answer."""
        return self.state not in _UNANSWERED and not self._undurable

    def was_spoken_to(self, *, is_required: bool) -> None:
        """An attach may have been sent in this epoch by a master that nothing is left of: until the mirror has answered
        one of this master it may rely on any horizon."""
        self.was_attached = True
        self.known_horizon = SeqId(0)
        self.is_required |= is_required

    def begin_attach(self, attach_id: int, turn: int, next_seq_id: SeqId, horizon: SeqId) -> None:
        """An attach goes out that describes the queue after ``turn``."""
        self.step(MirrorInput.ATTACH_SENT)
        self.attach_id = attach_id
        self.sent_index += 1
        self.attach_index = self.sent_index
        self.attach_next_seq_id = next_seq_id
        self._attach_horizon = horizon
        if self.known_horizon is None:
            self.known_horizon = horizon
        self._is_answered = not self.was_attached
        self.was_attached = True
        self._begin()
        self._raw_applied_turn = self._raw_durable_turn = turn
        self._publish_turns()

    def sent(self, op_count: int, turn: int, size_bytes: int, horizon: int, is_sync: bool) -> int:
        """Account for a frame of ``op_count`` ops; returns its first index."""
        first_index = self.sent_index + 1
        self.sent_index += op_count
        frame = SentFrame(self.sent_index, turn, size_bytes, horizon, is_sync)
        self._unapplied.append(frame)
        if len(self._undurable) < UNDURABLE_FRAMES_MAX:
            self._undurable.append(frame)
        else:
            self._undurable[-1] = frame
        self.in_flight_bytes += size_bytes
        self.in_flight_sync_batches += is_sync
        return first_index

    def pass_turn(self, turn: int) -> None:
        """The turn had nothing for the mirrors, of which this is one: who has the turn before has this one."""
        if not self._unapplied:
            self._raw_applied_turn = turn
        if self._undurable:  # what is not applied is not durable, so the last frame is the last of both
            self._undurable[-1].turn = turn
        else:
            self._raw_durable_turn = turn
        self._publish_turns()

    def acknowledged(self, applied_index: int, durable_index: int) -> bool:
        """A cumulative answer. Returns True if it says anything new."""
        if applied_index <= self.applied_index and durable_index <= self.durable_index:
            return False
        if not durable_index <= applied_index <= self.sent_index:
            return False  # nobody can have what was not sent: never let a broken peer release confirms
        self.applied_index = max(self.applied_index, applied_index)
        self.durable_index = max(self.durable_index, durable_index)
        assert self.known_horizon is not None, "who answers was attached"
        if self.applied_index >= self.attach_index:
            self.known_horizon = max(self.known_horizon, self._attach_horizon)
            self._is_answered = True
        while self._unapplied and self._unapplied[0].end_index <= self.applied_index:
            frame = self._unapplied.popleft()
            self._raw_applied_turn = max(self._raw_applied_turn, frame.turn)
            self.in_flight_bytes -= frame.size_bytes
            self.in_flight_sync_batches -= frame.is_sync
            self.known_horizon = max(self.known_horizon, SeqId(frame.horizon))
        while self._undurable and self._undurable[0].end_index <= self.durable_index:
            self._raw_durable_turn = max(self._raw_durable_turn, self._undurable.popleft().turn)
        self._publish_turns()
        return True

    def require(self) -> None:
        """From now on confirms wait until the mirror lacks nothing."""
        self.is_required = True

    @property
    def is_filled(self) -> bool:
        """True if the difference was sent whole and is durable there."""
        return self.end_of_fill_index is not None and self.durable_index >= self.end_of_fill_index

    def complete(self) -> None:
        """The mirror lacks nothing."""
        self.step(MirrorInput.FILLED)
        self.is_complete = True
        self._publish_turns()

    def _publish_turns(self) -> None:
        if self.is_complete or (self._is_answered and not self.is_required):
            self.applied_turn = max(self.applied_turn, self._raw_applied_turn)
            self.durable_turn = max(self.durable_turn, self._raw_durable_turn)

    def check_invariants(self) -> None:
        self.lacking.check_invariants()
        assert self.durable_index <= self.applied_index <= self.sent_index, "nobody has what was not sent"
        assert self.durable_turn <= self.applied_turn, "what is durable is applied"
        assert self.in_flight_bytes == sum(frame.size_bytes for frame in self._unapplied), (
            "the window counts what is out"
        )
        assert self.in_flight_sync_batches == sum(frame.is_sync for frame in self._unapplied), "as above, for batches"
        assert self.state is not MirrorState.SYNCHRONISED or self.is_complete, "the state says it lacks nothing"
        assert not self.is_complete or not self.lacking, "a complete mirror lacks nothing"
        assert len(self._undurable) <= UNDURABLE_FRAMES_MAX, "what waits for a disk that hangs is bounded"
        assert not (self.was_attached and self.known_horizon is None), "an attach always carries a promise"

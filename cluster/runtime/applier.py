"""Carries out what the metadata group has committed, in the order of the log, some pieces per turn of the loop.

One entry may be news of ten thousand queues (a node is up or down, a policy), one batch may have a hundred thousand
entries (a start, a node that was cut off), and a snapshot of the leader's is the whole state. Each is work that can be
done in pieces (`StateMachine`). A slice of it is done at once, when it comes; what is left has a slice of every further
turn. An entry is begun when the one before it is carried out to its end.

The slice ends by time, or after a number of pieces: the one bounds what the others wait, the other lets a simulator cut
anywhere. Nothing here outlives the process: a start begins with the snapshot and the log.

A snapshot takes the place of the entries that wait, which are in it. The entry that was begun is carried out before it:
who follows the state sees each entry as a whole or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from cluster.raft.messages import Entry, EntryKind, Snapshot
from node.pieces import Pieces

#: What is carried out has so much of a turn of the loop.
SLICE_S = 0.005
#: And so many pieces: by default it is the time that ends a slice.
SLICE_PIECES = 100_000


class Applied(NamedTuple):
    """What the state machine made of one command: ``outcome``, or ``error`` if it refused the command."""

    request_id: Hashable
    outcome: Any = None
    error: Exception | None = None


class StateMachine(Protocol):
    """What the log is about. Deterministic; called on the loop, in log order, on every node alike.

    What was begun is gone on with until it ends, and nothing else is begun meanwhile.
    """

    def apply_in_pieces(self, index: int, payload: bytes) -> Pieces[Applied]:
        """Carry out a committed command. A request id seen before is not carried out again, which is an error: who has
        not heard the outcome of the first time cannot learn it any more."""

    def restore_in_pieces(self, data: bytes) -> Pieces[None]:
        """Become the state that `snapshot_pieces` gave."""

    def restore(self, data: bytes) -> None:
        """The same at once, at a start."""

    @property
    def protocol(self) -> int:
        """Which releases carry it out, as of the last entry applied: those that speak this or more."""

    def snapshot_pieces(self) -> Iterator[bytes]:
        """The whole state as of the last entry applied, in pieces; what is applied later does not change them."""

    @property
    def is_declared_down(self) -> bool:
        """By it this node is down, as of the last entry applied."""

    @property
    def wants_snapshot(self) -> bool:
        """See `SnapshotSource`."""

    def snapshot_taken(self, index: int, data: bytes) -> None:
        """The snapshot as of the entry at ``index`` is in force: what led there need not be remembered."""


class _Work(NamedTuple):
    """An entry or a snapshot that was begun."""

    end_index: int
    pieces: Pieces[Applied] | Pieces[None]
    is_snapshot: bool


class Applier:
    """See the top of this module. Does not raise: ``on_failed`` hears of what a piece raised, which is the end."""

    def __init__(
        self,
        state: StateMachine,
        applied_index: int,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        slice_pieces: int,
        on_applied: Callable[[Applied], None],
        on_slice: Callable[[int, bool], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """``call_soon`` as of a loop; ``clock`` (seconds) goes on within a turn of it.

        ``on_slice``: a slice has carried out so many entries, and a snapshot or not.
        """
        self._state = state
        #: Of the last entry that is carried out.
        self.applied_index = applied_index
        self._call_soon = call_soon
        self._clock = clock
        self._slice_pieces = slice_pieces
        self._on_applied = on_applied
        self._on_slice = on_slice
        self._on_failed = on_failed
        self._waiting: deque[Entry | Snapshot] = deque()
        self._work: _Work | None = None
        self._is_scheduled = False
        self._is_stopped = False
        #: Of this slice.
        self._entries = 0
        self._has_restored = False

    @property
    def is_amid(self) -> bool:
        """Something was begun and is not done: the state is no state of the log."""
        return self._work is not None

    def add(self, entries: Sequence[Entry]) -> None:
        """These are committed."""
        self._waiting.extend(entries)
        self._go_on()

    def install(self, snapshot: Snapshot) -> None:
        """The leader has sent this in place of entries that this node will never see."""
        self._waiting.clear()
        self._waiting.append(snapshot)
        self._go_on()

    def stop(self) -> None:
        """Do nothing any more."""
        self._is_stopped = True
        self._waiting.clear()

    def _go_on(self) -> None:
        if not self._is_scheduled and not self._is_stopped:
            self._slice()

    def _turn(self) -> None:
        self._is_scheduled = False
        self._go_on()

    def _slice(self) -> None:
        self._entries, self._has_restored = 0, False
        try:
            self._do_slice()
        except Exception as error:
            self.stop()
            self._on_failed(error)
            return
        if not self._is_stopped and (self._work is not None or self._waiting):
            self._is_scheduled = True
            self._call_soon(self._turn)
        if self._entries or self._has_restored:
            self._on_slice(self._entries, self._has_restored)

    def _do_slice(self) -> None:
        end_s = self._clock() + SLICE_S
        pieces_left = self._slice_pieces
        while (self._work is not None or self._waiting) and not self._is_stopped:
            work = self._work or self._begin()
            if work is not None:
                self._go_on_with(work)
            pieces_left -= 1
            if not pieces_left or self._clock() >= end_s:
                return

    def _begin(self) -> _Work | None:
        """The next one; ``None`` if it was nothing to the state."""
        what = self._waiting.popleft()
        if isinstance(what, Snapshot):
            self._work = _Work(what.index, self._state.restore_in_pieces(what.data), is_snapshot=True)
            return self._work
        assert what.index == self.applied_index + 1, "every entry is applied once, in order"
        if what.kind is not EntryKind.COMMAND:
            self.applied_index = what.index
            self._entries += 1
            return None
        self._work = _Work(what.index, self._state.apply_in_pieces(what.index, what.payload), is_snapshot=False)
        return self._work

    def _go_on_with(self, work: _Work) -> None:
        try:
            next(work.pieces)
        except StopIteration as end:
            self._work = None
            self.applied_index = work.end_index
            if work.is_snapshot:
                self._has_restored = True
            else:
                self._entries += 1
                self._on_applied(end.value)

    def check_invariants(self) -> None:
        is_busy = self._work is not None or bool(self._waiting)
        assert not is_busy or self._is_scheduled or self._is_stopped, "what waits has a turn coming"
        next_index = (self.applied_index if self._work is None else self._work.end_index) + 1
        if self._waiting and isinstance(self._waiting[0], Entry):
            assert self._waiting[0].index == next_index, "no entry is left out"

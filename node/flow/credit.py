"""Credit flow: how the slowest part of a node slows its publishers down, hop by hop (mission F4, Q9).

A message goes connection -> channel -> queue -> store, and to the mirrors if there are any. Each arrow is a *hop* with
a *balance*: what the sender may still send. The queue is where the hops fork::

    connection --> channel --> queue --+--> store
                                       +--> mirror n2 --> store of n2
                                       +--> mirror n3 --> store of n3

The rules, for a hop with credit {initial, more_after}:

- The balance begins at ``initial``. Sending n messages costs n. A batch is never cut, so the balance may fall below
  zero by one batch; while it is zero or less the sender is *blocked*.
- The receiver counts what it has processed, and for every ``more_after`` messages grants the sender as many more.
- A receiver that is blocked itself withholds its grants until it is free again. So slowness travels upwards, from hop
  to hop, until the connection is blocked and its socket is not read. Nobody throws away or holds up what was sent.

What "processed" means: for a channel, handed to the queues; for a queue, taken by its master, on this node or another;
for a store, written and (``durability = fsync``) synced by the group commit; for a mirror, applied there; for a
mirror's store, durable there. Messages that need no disk owe the stores nothing.

Batches. The bookkeeping is per batch: a publisher's whole socket read is one subtraction and one addition per hop. A
hop inside this process is settled when the call returns, so a batch that is larger than the credit blocks nobody as
long as its receiver is free. Only what waits for a disk or the network is really counted down, and those hops have
credits to match: a group commit or a round trip of work.

Two halves. The sender keeps a `Hop` (the balance), the receiver a `Tally` (processed and not granted). They lie on
two nodes when a queue is mastered elsewhere; the grants then travel as messages of the session. Where sender and
receiver are asked and not told, as with the store, which only says how much is still in flight, both halves are one
`MeasuredHop`.

Invariant of every hop: balance + in flight + pending = initial, where in flight is what was sent and not processed,
and pending is what was processed and not granted. ``more_after`` is at most ``initial``, so a hop with nothing in
flight always has a positive balance unless its receiver withholds: nobody waits for a grant that does not come.

Bounds. Beyond the credit of a blocked hop each hop above it lets its own credit through and at most one batch more.
Large messages are bounded in bytes at three places: what a connection has unconfirmed (`node.broker`), what waits to be
sent over the link to another node (`cluster.sessions.credits`), and what a mirror has to apply (`MIRROR_BYTES`).

What can be seen. Every hop knows its balance and since when it is blocked; `Stage` collects the hops of one sender, so
the path of blocked hops from a connection downwards ends at the slowest one.
"""

from __future__ import annotations

from typing import NamedTuple

from node.ids import QueueId


class Credit(NamedTuple):
    """What a hop lends its sender: ``initial`` at first, and ``more_after`` for every so many that were processed."""

    initial: int
    more_after: int

    def check(self) -> None:
        assert 1 <= self.more_after <= self.initial, (
            "a sender that has used up its credit must be owed a grant, or it would wait for ever"
        )


#: Hops inside one process (the reference's ``credit_flow_default_credit`` of mission F4).
IN_PROCESS = Credit(200, 50)
#: Queue to store: some fsyncs' worth (the reference's ``msg_store_credit_disc_bound``).
STORE = Credit(4000, 800)
#: Between nodes: channel to a queue mastered elsewhere, queue to mirror. At full speed some round trips' worth.
BETWEEN_NODES = Credit(4000, 800)
#: Bytes that a mirror may have to apply before publishers are slowed: three quarters of the window after which nothing
#: more is streamed to it (`cluster.mirroring.master`), of which a running synchronisation may take a half.
MIRROR_BYTES = Credit(24 * 1024 * 1024, 4 * 1024 * 1024)


class FlowControl:
    """What all hops of one node share: their credits, and the present time, which the shell moves on (`advance`).

    The time is as coarse as the shell's ticks; it only serves what listings show.
    """

    __slots__ = ("between_nodes", "in_process", "now_ms", "store")

    def __init__(
        self, in_process: Credit = IN_PROCESS, store: Credit = STORE, between_nodes: Credit = BETWEEN_NODES
    ) -> None:
        for credit in (in_process, store, between_nodes):
            credit.check()
        self.in_process = in_process
        self.store = store
        self.between_nodes = between_nodes
        self.now_ms = 0

    def advance(self, now_ms: int) -> None:
        """Time passes; ``now_ms`` is of any clock that never goes back."""
        self.now_ms = max(self.now_ms, now_ms)


class Hop:
    """The sender's half of a hop."""

    __slots__ = ("balance", "blocked_since_ms", "credit", "freed_ms", "receiver")

    def __init__(self, receiver: str | QueueId, credit: Credit) -> None:
        #: Who processes: a text for people, or the identity of a queue.
        self.receiver = receiver
        self.credit = credit
        self.balance = credit.initial
        #: When it was last blocked, and last freed; kept by the `Stage` of the sender. ``None``: never.
        self.blocked_since_ms: int | None = None
        self.freed_ms: int | None = None

    @property
    def is_blocked(self) -> bool:
        """The sender must wait."""
        return self.balance <= 0

    def change(self, messages: int) -> bool:
        """Add to the balance: grants, less what was sent. True if that blocked or freed the sender."""
        before = self.balance
        after = self.balance = before + messages
        return (before <= 0) is not (after <= 0)

    def reset(self, credit: Credit | None = None) -> bool:
        """Begin anew, with another receiver perhaps: nothing is in flight. True if that freed the sender."""
        if credit is not None:
            self.credit = credit
        return self.change(self.credit.initial - self.balance)


class Tally:
    """The receiver's half of a hop: what it has processed and not granted."""

    __slots__ = ("more_after", "pending")

    def __init__(self, more_after: int) -> None:
        self.more_after = more_after
        self.pending = 0

    @property
    def is_due(self) -> bool:
        """At least one grant is owed."""
        return self.pending >= self.more_after

    def take(self) -> int:
        """The grants that are owed, for a receiver that is not blocked to give: a multiple of ``more_after``."""
        pending = self.pending
        if pending < self.more_after:
            return 0
        self.pending = pending % self.more_after
        return pending - self.pending


class MeasuredHop(Hop):
    """Both halves of a hop whose receiver says how much is in flight, whenever it is asked, and never withholds."""

    __slots__ = ("_tally", "in_flight")

    def __init__(self, receiver: str, credit: Credit) -> None:
        super().__init__(receiver, credit)
        self._tally = Tally(credit.more_after)
        #: Sent and not processed, when it was last measured.
        self.in_flight = 0

    def measure(self, in_flight: int) -> bool:
        """So much is in flight now. True if that blocked or freed the sender."""
        change = in_flight - self.in_flight
        if not change:
            return False
        self.in_flight = in_flight
        if change > 0:
            return self.change(-change)
        self._tally.pending -= change
        return self.change(self._tally.take())

    def check_invariants(self) -> None:
        assert self.balance + self.in_flight + self._tally.pending == self.credit.initial, "credit is conserved"
        assert self.in_flight >= 0, "nobody processes what was not sent"
        assert 0 <= self._tally.pending < self.credit.more_after, "grants are given as soon as they are due"

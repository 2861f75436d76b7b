"""The seam between a queue and its index: what both generations (`v1.index` and `v2.index` beside this file) do.

An index knows, for every position (seq id) of one queue that was written, where its message is and whether it is still
live. It is cut into segments of a fixed number of entries; per segment it keeps in memory how many entries are live and
one bit for each (nothing but a shared constant while all are), so ten million messages on disk cost about a megabyte.

**Collecting and writing.** `publish` and `settle` only collect. `flush`, once per turn of the loop, writes everything
collected; a message that is settled before it is forgotten and never touches the disk. *Pending* = published and not
flushed; *written* = flushed and live.

**What is synced.** Written publishes of persistent messages mark their files for the group commit. Acks and transient
messages do not: AMQP promises nothing about an ack that is followed by a crash but redelivery.

**Bodies.** A message smaller than `StoreConfig.embed_below_bytes` (properties and body) lives in a file of the queue
itself; any other in a shared store of the vhost (one for persistent, one for transient messages), of which the index
holds one reference per live entry.

What both keep in memory, and count, is one core: `node.store.index.live_entries`. Formats and files are their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from node.ids import MsgId, OriginId
from node.message import Message
from node.store.index.held_references import HeldReferences
from node.store.shared.port import Releases

#: `PagedMessage.place`: in a shared store, under its msg_id.
IN_SHARED_STORE = -1
#: `PagedMessage.place`: look it up in the index.
UNKNOWN_PLACE = -2
#: Entries that are read from the files of a closed queue at a time: two or three milliseconds.
ENTRIES_PER_PIECE = 1024
#: Entries that a step of a recovery looks at: three to five milliseconds.
ENTRIES_PER_STEP = 512


class PagedMessage(NamedTuple):
    """A live message whose body is on disk only (beta, gamma)."""

    msg_id: MsgId
    body_bytes: int
    persistent: bool
    #: Where the index says the envelope is: a number that only the index understands, `IN_SHARED_STORE` or
    #: `UNKNOWN_PLACE`.
    place: int = UNKNOWN_PLACE


class Range(NamedTuple):
    """What `QueueIndex.settle_range` settled."""

    messages: int
    body_bytes: int
    #: Of these, the persistent ones.
    persistent: int
    persistent_body_bytes: int


def count_into(total: list[int], is_persistent: bool, body_bytes: int) -> None:
    """Add one message to the fields of a `Range`."""
    total[0] += 1
    total[1] += body_bytes
    if is_persistent:
        total[2] += 1
        total[3] += body_bytes


#: Problems described in a report; beyond it they are only counted.
PROBLEMS_MAX = 20


@dataclass(slots=True)
class RecoveryReport:
    """What opening an existing queue found; for the log."""

    #: True after a clean stop: nothing was scanned.
    clean: bool
    #: Live messages.
    messages: int = 0
    #: Their bodies.
    body_bytes: int = 0
    #: Transient messages that were on disk: gone, as promised.
    transient: int = 0
    #: Publishes that were never wholly written, so never confirmed: dropped.
    torn: int = 0
    #: Acks of which only a part was written: they count as acks.
    torn_acks: int = 0
    #: Damaged entries and messages: quarantined.
    corrupt: int = 0
    #: Messages whose next delivery is flagged.
    redelivered: int = 0
    #: Given by the caller, who has a clock.
    seconds: float = 0.0
    #: Files that lost durable bytes at their end: what is unfinished there was whole once.
    short_files: set[str] = field(default_factory=set)
    #: Descriptions of the first `PROBLEMS_MAX` damaged things.
    problems: list[str] = field(default_factory=list)

    def damaged(self, problem: str) -> None:
        """Count and describe one damaged thing."""
        self.corrupt += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


#: Told (segments done, segments altogether) while files are scanned.
Progress = Callable[[int, int], None]


class RecoveredIndex(NamedTuple):
    """What the owner learns of a recovered index, beside the report."""

    #: First position behind the last segment that had anything.
    end_seq_id: int
    #: Highest id of each origin among the live messages; empty if nothing was scanned.
    origins: Mapping[OriginId, MsgId]


class QueueIndex(Protocol):
    """See the module text. What touches files raises `StorageError`; the owner then takes the queue out of service."""

    @property
    def version(self) -> int:
        """1 or 2."""

    # -- collecting

    def publish(self, messages: Mapping[int, Message], envelopes: Mapping[int, bytes] | None = None) -> None:
        """Collect messages by seq id; a seq id is free or settled. ``envelopes``: their encoded form, if at hand."""

    def settle(self, seq_ids: Sequence[int], messages: Sequence[Message | PagedMessage]) -> None:
        """Collect acks of live entries; ``messages[i]`` is what is known of ``seq_ids[i]`` (its msg_id counts).

        For entries in a shared store this gives the reference back.
        """

    def settle_range(self, first: int, end: int, keep: Collection[int] = (), *, is_sized: bool = True) -> Range:
        """Settle everything live in [first, end), pending or written, except the positions in ``keep``.

        Reads entries to learn their msg_ids and sizes, if ``is_sized``. Otherwise the body bytes it returns mean
        nothing, nothing is read, and later flushes give back the references to shared stores, some with each
        (`has_unflushed` is true until then).
        """

    @property
    def has_unflushed(self) -> bool:
        """True if `flush` would write something."""

    @property
    def has_unflushed_publishes(self) -> bool:
        """True if a message waits for `flush`."""

    def is_unflushed(self, seq_id: int) -> bool:
        """True if this message is pending."""

    # -- writing

    def flush(self, next_seq_id: int) -> int:
        """Write what was collected; ``next_seq_id`` tells which segments are past, so that finished ones are deleted.

        Returns how many persistent messages were written.
        """

    # -- what is live

    def is_live(self, seq_id: int) -> bool:
        """True if pending or written."""

    def count_live(self, first: int, end: int) -> int:
        """Live entries in [first, end), pending ones included. Memory only."""

    def live(self, first: int, end: int) -> Iterator[int]:
        """Positions of live entries in [first, end), ascending, pending ones included. Memory only."""

    def segment_end(self, seq_id: int) -> int:
        """First position of the segment after that of ``seq_id``."""

    # -- reading

    def msg_ids(self, first: int, end: int) -> bytes:
        """`MSG_ID_BYTES` for each position of [first, end): the msg_id of a live entry, zeros where nothing is live.

        For comparing, and made in bulk: what was written is *not* checked entry by entry. A damaged entry either still
        has its msg_id, then what is said here is true and the damage is found when the message is read, like damage to
        its body; or it gives other bytes than the replicas have, and who finds the difference asks `entries`, which
        checks. (Where nobody compares, nothing is concluded from the bytes.) What is live is known in memory, so
        damage never adds an entry or hides one. Raises `StorageError` if a file is missing or cut off.
        """

    def entries(self, first: int, end: int, count_max: int) -> list[tuple[int, PagedMessage]]:
        """The first ``count_max`` live entries of [first, end), ascending; the places of written ones are known."""

    def read(self, entries: Sequence[tuple[int, PagedMessage]]) -> list[bytes]:
        """Envelopes of live entries, in the given order. Raises `StorageError` if one is damaged."""

    # -- end

    def drop_transient(self) -> None:
        """Settle every transient entry: it must not outlive a clean stop."""

    def close(self, next_seq_id: int) -> None:
        """Write and sync everything, on this thread."""

    def terms(self) -> bytes:
        """After `close`: what the next start needs instead of a scan."""

    def delete(self, directory: str) -> Releases:
        """Forget everything at once, but for the references, which are given back piece by piece: one per item.

        The owner has moved the files to ``directory`` and removes them when the iterator is at its end. What cannot be
        read keeps its reference until the shared store counts anew. See `node.store.deletions`.
        """

    def give_up(self, held: HeldReferences) -> Releases:
        """Give up the files as they are. ``held`` is given the references of entries that the next opening of the queue
        may find; those of all others, for which the files are read, are given back piece by piece: one per item, before
        the next opening. What cannot be read keeps its reference until the shared store counts anew, or ends.
        """

    def moved_to(self, directory: str) -> None:
        """What `give_up` has not read yet is there from now on."""

    def abandon(self) -> None:
        """Give up the files as they are, with every reference."""

    @property
    def memory_bytes(self) -> int:
        """Estimate of what this index holds in memory."""

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""

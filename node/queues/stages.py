"""The ready messages of one queue in their five stages: Q4, Q3, delta, Q2, Q1 from front to back (mission Q3-Q6).

States of a message::

    alpha   body and position in memory (it may be on disk as well: a persistent one is from its first flush on)
    beta    body on disk, position in memory; transient, so the slot on disk means nothing after a restart
    gamma   body on disk, position in memory and in the index on disk; persistent
    delta   on disk only; what is in memory is the range of positions and how many messages it holds

Alphas live in Q4 and Q1, betas and gammas in Q3 and Q2 (as `PagedMessage`), deltas in `Delta`. The usual path::

    publish -> Q1 -> Q2 -> delta -> Q3 -> Q4 -> consumer       or, while the queue is short,      publish -> Q4

Downwards (`page_out`), when fewer alphas may be in memory than there are: the newest ones lose their bodies first,
Q1 from its front, then Q4 from its back; then, if there are more positions in memory than the target justifies, Q2
from its front and Q3 from its back go to delta. What was never written (transient messages) is written now, body and
slot together.

Upwards: `take` empties Q4, then reads the bodies at the head of Q3 ahead into Q4. When Q3 is empty, a batch of entries
is loaded from delta; when that was all of delta, Q2 joins it; when nothing is below Q1 any more, Q1 becomes Q4.

**Rules** (`check_invariants`): a stage nearer to the tail is used only if the next one to the head is; so Q3 and Q4
empty means that the queue is empty, and the head of the queue is always found without a search. Positions ascend
from Q4 to Q1.

**Lazy** (mission Q8): messages are on disk before they are ready. They go to delta, or to Q3 while that holds all there
is; Q4 holds only what was read ahead. A queue that is switched to lazy pages out the rest in pieces.

**Old positions.** A requeued message goes back to where it was, and a mirror's sync batch fills positions anywhere; so
messages are merged by position: before Q3 as alpha (its body is read if need be), among Q3 as beta or gamma, within
delta to disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from node.message import Message, decode_envelope
from node.queues.backing_queue import NO_LIMIT_BYTES
from node.queues.sub_queue import Entry, SubQueue
from node.queues.unacked import body_bytes
from node.store.index.index import UNKNOWN_PLACE, PagedMessage, QueueIndex, Range
from node.store.shared.config import StoreConfig

#: Limits of one read-ahead (mission S12): messages, their bytes, and the body size that is not worth it.
READ_AHEAD_MESSAGES = 2048
READ_AHEAD_BYTES = 1024 * 1024
READ_AHEAD_BODY_BYTES_MAX = 12 * 1024
#: Bytes of requeued bodies that are read at once, because they come before everything else.
MERGE_READ_BYTES = 4 * 1024 * 1024
#: Entries loaded from delta at a time (RabbitMQ 3.10; a whole segment before).
LOAD_MESSAGES = 2048
#: Messages that one `page_out` moves at most: as the reference's store credit. Each costs one or two microseconds.
PAGE_OUT_MESSAGES = 4000


class Delta:
    """A range of positions whose messages are on disk only. Not all positions in it need be messages of it."""

    __slots__ = ("count", "end", "start")

    def __init__(self) -> None:
        self.count = 0
        self.start = 0
        self.end = 0

    def extend(self, first: int, end: int, count: int) -> None:
        """``count`` messages at positions in [first, end) join."""
        if not self.count:
            self.start, self.end = first, end
        else:
            self.start, self.end = min(self.start, first), max(self.end, end)
        self.count += count

    def covers(self, seq_id: int) -> bool:
        """True if the position lies in the range."""
        return bool(self.count) and self.start <= seq_id < self.end


class StageCounts(NamedTuple):
    """Messages per stage, for listings."""

    q1: int
    q2: int
    delta: int
    q3: int
    q4: int


class Stages:
    """See the module text. Raises `StorageError` where it reads, or writes what is paged out."""

    __slots__ = (
        "_config",
        "_is_durable",
        "_purged",
        "_unacked",
        "delta",
        "index",
        "is_lazy",
        "moved",
        "q1",
        "q2",
        "q3",
        "q4",
        "ram_bytes",
    )

    def __init__(self, index: QueueIndex, config: StoreConfig, unacked: Collection[int], *, is_durable: bool) -> None:
        """``unacked``: positions that are live in the index but not ready (looked at when delta is loaded).

        ``is_durable``: of the queue; in one that is not, every message is transient.
        """
        self.index = index
        self._config = config
        self._unacked = unacked
        self._is_durable = is_durable
        self.is_lazy = False
        self.q1 = SubQueue()
        self.q2 = SubQueue()
        self.delta = Delta()
        self.q3 = SubQueue()
        self.q4 = SubQueue()
        #: Messages that page-outs have moved so far.
        self.moved = 0
        #: Messages of a purge. Python frees four million a second: what is many waits here to be freed in steps.
        self._purged: list[dict[int, Entry]] = []
        #: Body bytes of the alphas.
        self.ram_bytes = 0

    def __len__(self) -> int:
        # Asked for each batch: without a call per stage.
        in_memory = len(self.q1.messages) + len(self.q2.messages) + len(self.q3.messages) + len(self.q4.messages)
        return in_memory + self.delta.count

    @property
    def ram_count(self) -> int:
        """Alphas."""
        return len(self.q1) + len(self.q4)

    @property
    def position_count(self) -> int:
        """Messages whose position is in memory, body or not."""
        return len(self) - self.delta.count

    @property
    def counts(self) -> StageCounts:
        """Messages per stage."""
        return StageCounts(len(self.q1), len(self.q2), self.delta.count, len(self.q3), len(self.q4))

    @property
    def first(self) -> int | None:
        """Lowest ready position."""
        if self.q4:
            return self.q4.first
        return self.q3.first if self.q3 else None

    def recover(self, first: int, end: int, count: int) -> None:
        """Everything is on disk: ``count`` messages in [first, end)."""
        if count:
            self.delta.extend(first, end, count)
            self._restore()

    # -- at the tail

    def append(self, seq_ids: Sequence[int], messages: Sequence[Message], size: int) -> None:
        """Alphas of ``size`` body bytes at ascending positions above all others."""
        place = self.q1 if self.q3 else self.q4
        place.append(seq_ids, messages)
        self.ram_bytes += size

    def append_on_disk(self, seq_ids: Sequence[int], messages: Sequence[Message]) -> None:
        """Messages that the index has collected already, for a lazy queue."""
        if self.q1 or self.q2:
            # It was switched to lazy and is not through with its alphas: these follow them.
            self.q1.append(seq_ids, messages)
            self.ram_bytes += sum([len(message.body) for message in messages])
        elif self.delta.count or (self.q3 and len(self.q3) + len(messages) > LOAD_MESSAGES):
            self.delta.extend(seq_ids[0], seq_ids[-1] + 1, len(messages))
        else:
            self.q3.append(seq_ids, [self._paged(message) for message in messages])

    # -- at the head

    def take(
        self, count_max: int, read_ahead: int, bytes_max: int = NO_LIMIT_BYTES
    ) -> tuple[list[int], list[Message], int]:
        """Remove up to ``count_max`` messages from the head, and none behind the one that makes it ``bytes_max`` bytes
        of
        bodies. Returns their positions, the messages, and these bytes. ``read_ahead``: how many more may be wanted
        soon."""
        seq_ids: list[int]
        messages: list[Message]
        seq_ids, messages = self.q4.take(count_max)  # type: ignore[assignment]  # Q4 holds alphas
        size = sum([len(message.body) for message in messages])
        while len(seq_ids) < count_max and size < bytes_max:
            if not self.q4 and not self._read_ahead(count_max - len(seq_ids), read_ahead):
                break
            more: list[Message]
            more_seq_ids, more = self.q4.take(count_max - len(seq_ids))  # type: ignore[assignment]
            seq_ids += more_seq_ids
            messages += more
            size += sum([len(message.body) for message in more])
        if size > bytes_max:
            size = self._put_back_behind(seq_ids, messages, bytes_max)
        self._restore()
        self.ram_bytes -= size
        return seq_ids, messages, size

    def _put_back_behind(self, seq_ids: list[int], messages: list[Message], bytes_max: int) -> int:
        """Leave those that make it ``bytes_max`` bytes; the others return to Q4, from whose front they came. Returns
        the
        bytes of what is left."""
        kept = size = 0
        while size < bytes_max:
            size += len(messages[kept].body)
            kept += 1
        if kept < len(seq_ids):
            self.q4.prepend(seq_ids[kept:], messages[kept:])
            del seq_ids[kept:], messages[kept:]
        return size

    def drop(self, count_max: int, bytes_wanted: int) -> tuple[list[int], list[Entry], int]:
        """As `take`, for messages that nobody needs: no body is read, and of delta no more than a batch of entries at a
        time."""
        seq_ids: list[int] = []
        entries: list[Entry] = []
        size = 0
        while (left := count_max - len(seq_ids)) > 0 and size < bytes_wanted:
            place = self.q4 or self.q3
            if not place:
                break
            chosen, chosen_bytes = _count_until(place, left, bytes_wanted - size)
            more_seq_ids, more = place.take(chosen)
            seq_ids += more_seq_ids
            entries += more
            size += chosen_bytes
            if place is self.q4:
                self.ram_bytes -= chosen_bytes
            self._restore()
        return seq_ids, entries, size

    def _read_ahead(self, wanted: int, ahead: int) -> bool:
        """Turn the head of Q3 into alphas. False if there is nothing."""
        if not self.q3:
            return False
        limit = max(wanted, min(ahead, READ_AHEAD_MESSAGES))
        chosen = total = 0
        for _, entry in self.q3.peek(limit):
            assert isinstance(entry, PagedMessage), "Q3 holds betas and gammas"
            total += entry.body_bytes
            is_too_big = entry.body_bytes > READ_AHEAD_BODY_BYTES_MAX and chosen >= wanted
            if chosen and (total > READ_AHEAD_BYTES or is_too_big):
                break
            chosen += 1
        seq_ids, entries = self.q3.take(chosen)
        try:
            messages = self._read(seq_ids, entries)
        except BaseException:
            self.q3.prepend(seq_ids, entries)
            raise
        self.q4.append(seq_ids, messages)
        self._restore()
        return True

    def _read(self, seq_ids: Sequence[int], entries: Sequence[Entry]) -> list[Message]:
        """Paged messages become alphas."""
        wanted = [(seq_id, entry) for seq_id, entry in zip(seq_ids, entries, strict=True) if not _is_alpha(entry)]
        messages: list[Message] = []
        for envelope in self.index.read(wanted):  # type: ignore[arg-type]  # paged ones only
            message, _ = decode_envelope(envelope)
            self.ram_bytes += len(message.body)
            messages.append(message)
        return messages

    def _restore(self) -> None:
        """Make the rules true again if Q3 ran empty."""
        while not self.q3:
            if self.delta.count:
                self._load()
            elif self.q1:
                self.q4.absorb(self.q1)
                return
            else:
                return

    def _load(self) -> None:
        """A batch of entries from delta to Q3; with the last of them, Q2 as well."""
        delta = self.delta
        entries = self.index.entries(delta.start, delta.end, LOAD_MESSAGES)
        assert entries, f"delta counts {delta.count} messages where the index knows none"
        unacked = self._unacked
        found = [entry for entry in entries if entry[0] not in unacked]
        delta.start = entries[-1][0] + 1
        delta.count -= len(found)
        self.q3.append([seq_id for seq_id, _ in found], [entry for _, entry in found])
        if not delta.count:
            self.q3.absorb(self.q2)

    # -- in the middle

    def merge(self, items: Mapping[int, Entry], *, more_follow: bool = False) -> None:
        """Put messages to their positions, which are free. Persistent ones are known to the index.

        ``more_follow``: this is a piece of much, not worth reading what would have to be read for it.
        """
        fronts: dict[int, Entry] = {}
        middle: dict[int, Entry] = {}
        below: dict[int, Entry] = {}
        behind: dict[int, Entry] = {}
        tail: dict[int, Entry] = {}
        delta = self.delta
        q3_first = self.q3.first if self.q3 else None
        q1_first = self.q1.first if self.q1 else None
        delta_start, delta_end = (delta.start, delta.end) if delta.count else (None, 0)
        for seq_id, entry in items.items():
            if q3_first is None or seq_id < q3_first:
                fronts[seq_id] = entry
            elif delta_start is not None and delta_start <= seq_id < delta_end:
                below[seq_id] = entry
            elif q1_first is not None and seq_id > q1_first:
                tail[seq_id] = entry
            elif delta_start is not None and seq_id >= delta_end:
                behind[seq_id] = entry
            else:
                middle[seq_id] = entry
        if below:
            self._write_transient(below)
            delta.count += len(below)
        if tail:
            self._merge_alphas(self.q1, tail)
        if behind:
            self.q2.merge(self._as_paged(behind))
        if more_follow or len(fronts) > READ_AHEAD_MESSAGES or _paged_bytes(fronts) > MERGE_READ_BYTES:
            fronts = self._postpone(fronts, middle)
        if fronts:
            self._merge_alphas(self.q4, fronts)
        if middle:
            self.q3.merge(self._as_paged(middle))

    def _postpone(self, fronts: dict[int, Entry], middle: dict[int, Entry]) -> dict[int, Entry]:
        """Too many paged messages come before Q3 to read them all: from the first of them on, all goes to Q3.

        Returns what still comes to Q4.
        """
        first = min((seq_id for seq_id, entry in fronts.items() if not _is_alpha(entry)), default=None)
        if first is None:
            return fronts
        if self.q4 and self.q4.last > first:
            seq_ids, messages = self.q4.take_last(sum([seq_id > first for seq_id in self.q4.messages]))
            self.ram_bytes -= sum(map(body_bytes, messages))
            middle.update(zip(seq_ids, messages, strict=True))
        middle.update({seq_id: entry for seq_id, entry in fronts.items() if seq_id >= first})
        return {seq_id: entry for seq_id, entry in fronts.items() if seq_id < first}

    def _merge_alphas(self, place: SubQueue, items: dict[int, Entry]) -> None:
        paged = sorted(seq_id for seq_id, entry in items.items() if not _is_alpha(entry))
        self.ram_bytes += sum([len(entry.body) for entry in items.values() if isinstance(entry, Message)])
        if paged:
            items.update(zip(paged, self._read(paged, [items[seq_id] for seq_id in paged]), strict=True))
        place.merge(items)

    def _as_paged(self, items: Mapping[int, Entry]) -> dict[int, Entry]:
        """Give up the bodies (nothing of ``items`` is counted in `ram_bytes`)."""
        self._write_transient(items)
        return {seq_id: self._paged(entry) if isinstance(entry, Message) else entry for seq_id, entry in items.items()}

    def _write_transient(self, items: Mapping[int, Entry]) -> None:
        """Alphas that the index does not know are collected by it."""
        is_live = self.index.is_live
        unwritten = {
            seq_id: entry for seq_id, entry in items.items() if isinstance(entry, Message) and not is_live(seq_id)
        }
        if unwritten:
            self.index.publish(unwritten)

    def remove(self, first: int, end: int) -> tuple[list[int], list[Entry], Range]:
        """Remove what is ready in [first, end): what was in memory (the index still knows it), and what was only on
        disk (settled there, after a look at its sizes)."""
        seq_ids: list[int] = []
        messages: list[Entry] = []
        for place in (self.q4, self.q3, self.q2, self.q1):
            known = place.messages
            if not known:
                continue
            span: Sequence[int] = range(first, end)
            if end - first > len(known):
                span = [seq_id for seq_id in known if first <= seq_id < end]
            gone = [seq_id for seq_id in span if seq_id in known]
            if gone:
                entries = [known.pop(seq_id) for seq_id in gone]
                seq_ids += gone
                messages += entries
                if place is self.q4 or place is self.q1:
                    self.ram_bytes -= sum([body_bytes(entry) for entry in entries])
                place.trim()
        delta = self.delta
        low, high = max(first, delta.start), min(end, delta.end)
        settled = Range(0, 0, 0, 0)
        if delta.count and low < high:
            settled = self.index.settle_range(low, high, self._unacked)
            delta.count -= settled.messages
            if not delta.count:
                self.q3.absorb(self.q2)
        self._restore()
        return seq_ids, messages, settled

    def purge(self, end: int, keep: Collection[int] = ()) -> None:
        """Remove everything but the few positions in ``keep``, and settle in the index what it knows below ``end``: by
        range, however much it is, without a look at what goes."""
        first = self.first
        if first is None:
            return
        self.index.settle_range(first, end, {*self._unacked, *keep} if keep else self._unacked, is_sized=False)
        delta = self.delta
        if delta.count:
            left = [seq_id for seq_id in keep if delta.covers(seq_id) and seq_id not in self._unacked]
            delta.count = sum(map(self.index.is_live, left))
        self.ram_bytes = 0
        for place in (self.q4, self.q3, self.q2, self.q1):
            kept = {seq_id: place.messages[seq_id] for seq_id in keep if seq_id in place.messages}
            messages = place.clear()
            if len(messages) > PAGE_OUT_MESSAGES:
                self._purged.append(messages)
            place.merge(kept)
            self.ram_bytes += sum([len(entry.body) for entry in kept.values() if isinstance(entry, Message)])
        if not delta.count:
            self.q3.absorb(self.q2)
        self._restore()

    def entries(self) -> list[Entry]:
        """Everything ready, in no particular order, after a purge that left little; reads what is in delta."""
        found = [entry for place in (self.q4, self.q3, self.q2, self.q1) for entry in place.messages.values()]
        delta, unacked = self.delta, self._unacked
        if delta.count:
            on_disk = self.index.entries(delta.start, delta.end, delta.count + len(unacked))
            found += [entry for seq_id, entry in on_disk if seq_id not in unacked]
        return found

    @property
    def has_purged(self) -> bool:
        """True if `page_out` still has purged messages to free."""
        return bool(self._purged)

    def _free_purged(self) -> None:
        purged = self._purged
        if purged:
            messages = purged[-1]
            count = min(len(messages), PAGE_OUT_MESSAGES)
            for _ in range(count):
                messages.popitem()
            self.moved += count
            if not messages:
                purged.pop()

    # -- paging

    def page_out(self, target_ram_count: int | None) -> bool:
        """Move up to `PAGE_OUT_MESSAGES` messages towards the disk until ``target_ram_count`` alphas are left.

        Frees as many purged ones. True if there is more to do.
        """
        self._free_purged()
        if self.is_lazy:
            # Of Q4 what was read ahead may stay; nothing may follow Q3 in memory.
            excess = len(self.q1) + max(0, len(self.q4) - READ_AHEAD_MESSAGES)
            permitted = LOAD_MESSAGES
        elif target_ram_count is None:
            return self.has_purged
        else:
            excess = self.ram_count - target_ram_count
            permitted = self._permitted_positions(target_ram_count)
        if excess > 0:
            self._give_up_bodies(min(excess, PAGE_OUT_MESSAGES))
        surplus = len(self.q2) + len(self.q3) - permitted
        if surplus >= min(self._config.io_batch_messages, permitted) or (self.is_lazy and self.q2):
            self._give_up_positions(min(max(surplus, len(self.q2)), PAGE_OUT_MESSAGES))
        return excess > PAGE_OUT_MESSAGES or self.has_purged

    def _permitted_positions(self, target: int) -> int:
        """How many betas and gammas a target justifies: one segment at least, the more the larger the target is
        against what could be in Q2 and Q3 (RabbitMQ's formula)."""
        behind = len(self) - self.ram_count
        scaled = behind - behind * behind // (behind + target) if behind + target else 0
        return max(self._config.v2_segment_entries, scaled)

    def _give_up_bodies(self, count: int) -> None:
        """Alphas to Q2 or Q3: the front of Q1 first, then the back of Q4."""
        for is_q1 in (True, False):
            place = self.q1 if is_q1 else self.q4
            seq_ids, messages = place.take(count) if is_q1 else place.take_last(count)
            count -= len(seq_ids)
            self.moved += len(seq_ids)
            self.ram_bytes -= sum([body_bytes(message) for message in messages])
            paged = self._as_paged(dict(zip(seq_ids, messages, strict=True)))
            entries = list(paged.values())
            if not is_q1:
                self.q3.prepend(seq_ids, entries)
            elif self.delta.count:
                self.q2.append(seq_ids, entries)
            else:
                self.q3.append(seq_ids, entries)

    def _give_up_positions(self, count: int) -> None:
        """Betas and gammas to delta: the front of Q2 first, then the back of Q3, of which a batch stays."""
        seq_ids, _ = self.q2.take(count)
        self.moved += len(seq_ids)
        if seq_ids:
            self.delta.extend(seq_ids[0], seq_ids[-1] + 1, len(seq_ids))
        keep = min(self._config.v2_segment_entries, LOAD_MESSAGES)
        seq_ids, _ = self.q3.take_last(min(count - len(seq_ids), max(0, len(self.q3) - keep)))
        self.moved += len(seq_ids)
        if seq_ids:
            self.delta.extend(seq_ids[0], seq_ids[-1] + 1, len(seq_ids))

    def _paged(self, message: Message) -> PagedMessage:
        is_persistent = message.persistent and self._is_durable
        return PagedMessage(message.msg_id, len(message.body), is_persistent, UNKNOWN_PLACE)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if a rule of the five stages is broken."""
        q1, q2, q3, q4, delta = self.q1, self.q2, self.q3, self.q4, self.delta
        for place in (q1, q2, q3, q4):
            place.check_invariants()
        assert not q1 or q3, "Q1 is used only behind Q3: otherwise its messages belong into Q4"
        assert not q2 or delta.count, "Q2 is used only behind delta: otherwise its messages belong into Q3"
        assert not delta.count or q3, "delta is used only behind Q3: so an empty Q3 and Q4 mean an empty queue"
        for place in (q1, q4):
            assert all(map(_is_alpha, place.messages.values())), "Q1 and Q4 hold alphas"
        for place in (q2, q3):
            assert not any(map(_is_alpha, place.messages.values())), "Q2 and Q3 hold betas and gammas"
        bounds = [(place.first, place.last) for place in (q4, q3) if place]
        if delta.count:
            bounds.append((delta.start, delta.end - 1))
        bounds += [(place.first, place.last) for place in (q2, q1) if place]
        for (_, last), (first, _) in pairwise(bounds):
            assert last < first, "positions ascend from Q4 over Q3, delta and Q2 to Q1"
        unacked = sum(delta.start <= s < delta.end and self.index.is_live(s) for s in self._unacked)
        on_disk = self.index.count_live(delta.start, delta.end) - unacked if delta.count else 0
        assert delta.count == on_disk, "delta counts what the index has in its range, without the unacked"
        alphas = [*q1.messages.values(), *q4.messages.values()]
        assert self.ram_bytes == sum(map(body_bytes, alphas)), "bytes in memory are those of alphas"


def _paged_bytes(items: Mapping[int, Entry]) -> int:
    return sum([entry.body_bytes for entry in items.values() if isinstance(entry, PagedMessage)])


def _count_until(place: SubQueue, count_max: int, bytes_wanted: int) -> tuple[int, int]:
    """How many messages from the front make it ``bytes_wanted`` bytes, or ``count_max``, and their bytes."""
    count = size = 0
    for _, entry in place.peek(count_max):
        size += body_bytes(entry)
        count += 1
        if size >= bytes_wanted:
            break
    return count, size


def _is_alpha(entry: Entry) -> bool:
    return isinstance(entry, Message)

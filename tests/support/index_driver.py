"""An index of either version on a simulated disk, beside a model that is a few dictionaries.

`IndexDriver` does the same to both and knows after a crash what must be there, what may be there and what must not.
`IndexKind` is what the versions do differently: making one, recovering one, and naming the file that has an ack.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from node.errors import DiskFullError
from node.ids import MsgId
from node.message import Message
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import CrashStyle, SimulatedCrashError, SimulatedDisk
from node.store.index.index import PagedMessage, QueueIndex, RecoveryReport
from node.store.index.v1.index import QueueIndexV1
from node.store.index.v1.recovery import recover_v1
from node.store.index.v1.scan import references_in_pieces_v1
from node.store.index.v2.index import QueueIndexV2
from node.store.index.v2.recovery import recover_v2
from node.store.index.v2.scan import references_in_pieces_v2
from node.store.shared.config import StoreConfig
from node.store.steps import run_through
from tests.support.messages import make_message

DIRECTORY = "/queue"
QUEUE_ID = 7
#: Small enough that a few messages fill a segment and a journal.
SMALL = StoreConfig(embed_below_bytes=60, v1_segment_entries=8, v1_journal_entries_max=12, v2_segment_entries=8)
#: Bodies that make an embedded message and one for the shared store.
SMALL_BODY, BIG_BODY = 10, 90


class CountedDisk(SimulatedDisk):
    """Knows the numbers of the operations that were syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.sync_numbers: list[int] = []

    def before_sync(self, path: str, lose: Callable[[], None]) -> None:
        self.sync_numbers.append(self.operations + 1)
        super().before_sync(path, lose)


class FaultyDisk(CountedDisk):
    """Knows which files were synced, too, and fails the sync that is operation number ``fail_sync_at``."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_sync_at = -1
        self.has_failed = False
        self.synced: list[str] = []

    def before_sync(self, path: str, lose: Callable[[], None]) -> None:
        if self.operations + 1 == self.fail_sync_at:
            self.fail_syncs = path
            self.has_failed = True
        super().before_sync(path, lose)
        self.synced.append(path)


class MemorySharedStore:
    """`SharedStore` that keeps what it is given in memory and loses in a crash what the group commit has not synced."""

    def __init__(self, group_commit: GroupCommit) -> None:
        self._group_commit = group_commit
        self.messages: dict[MsgId, bytes] = {}
        self.references: Counter[MsgId] = Counter()
        #: What a crash leaves; released messages stay as garbage.
        self._durable: dict[MsgId, bytes] = {}
        self._unsynced: dict[MsgId, bytes] = {}
        self.is_to_be_counted = False

    def write_batch(self, items: Sequence[tuple[MsgId, bytes]]) -> None:
        for msg_id, envelope in items:
            self.references[msg_id] += 1
            if msg_id not in self.messages:
                self.messages[msg_id] = self._unsynced[msg_id] = envelope
                self._group_commit.mark_dirty(self)

    def sync(self) -> None:
        self._durable.update(self._unsynced)
        self._unsynced.clear()

    def release(self, msg_id: MsgId) -> None:
        assert self.references[msg_id] > 0, "a reference is given back once"
        self.references[msg_id] -= 1
        if not self.references[msg_id]:
            del self.references[msg_id], self.messages[msg_id]

    def release_many(self, msg_ids: Sequence[MsgId]) -> None:
        for msg_id in msg_ids:
            self.release(msg_id)

    def read(self, msg_id: MsgId) -> bytes:
        return self.messages[msg_id]

    def read_many(self, msg_ids: Sequence[MsgId]) -> list[bytes]:
        return [self.messages[msg_id] for msg_id in msg_ids]

    def contains(self, msg_id: MsgId) -> bool:
        return msg_id in self.messages

    def retain(self, msg_id: MsgId) -> bool:
        if msg_id not in self.messages:
            return False
        self.references[msg_id] += 1
        return True

    def count_anew(self) -> None:
        self.is_to_be_counted = True

    def restarted(self, group_commit: GroupCommit, references: Counter[MsgId]) -> MemorySharedStore:
        """This store after a start: only what is durable and named."""
        store = MemorySharedStore(group_commit)
        store._durable = dict(self._durable)
        store.messages = {msg_id: store._durable[msg_id] for msg_id in references if msg_id in store._durable}
        store.references = Counter({msg_id: references[msg_id] for msg_id in store.messages})
        return store


@dataclass(frozen=True)
class IndexKind:
    """One version of the index."""

    name: str
    make: Callable[[Disk, GroupCommit, MemorySharedStore, MemorySharedStore, StoreConfig], QueueIndex]
    recover: Callable[[QueueIndex, RecoveryReport, bytes | None], None]
    count_references: Callable[[Disk, str], Counter[MsgId]]
    #: Path of the file that got the acks of the last flush.
    ack_path: Callable[[QueueIndex, int], str]
    #: True if it overwrites. Then a torn write over something else looks like damage: when a position is used again,
    #: and when a recovery that mends something is interrupted. What was promised is there all the same.
    overwrites: bool


def _make_v1(
    disk: Disk,
    group_commit: GroupCommit,
    persistent: MemorySharedStore,
    transient: MemorySharedStore,
    config: StoreConfig,
) -> QueueIndex:
    index = QueueIndexV1(
        disk,
        DIRECTORY,
        QUEUE_ID,
        is_durable=True,
        group_commit=group_commit,
        persistent_store=persistent,
        transient_store=transient,
        config=config,
    )
    # Two or three records at once.
    index.files.parse_bytes = 200
    return index


def _recover_v1(index: QueueIndex, report: RecoveryReport, terms: bytes | None) -> None:
    assert isinstance(index, QueueIndexV1)
    run_through(recover_v1(index, report, terms, store_is_damaged=False))


def _ack_path_v1(index: QueueIndex, seq_id: int) -> str:
    assert isinstance(index, QueueIndexV1)
    return f"{DIRECTORY}/{index.journals.next_number - 1}.jif"


def _make_v2(
    disk: Disk,
    group_commit: GroupCommit,
    persistent: MemorySharedStore,
    transient: MemorySharedStore,
    config: StoreConfig,
) -> QueueIndex:
    return QueueIndexV2(
        disk,
        DIRECTORY,
        QUEUE_ID,
        is_durable=True,
        group_commit=group_commit,
        persistent_store=persistent,
        transient_store=transient,
        config=config,
    )


def _recover_v2(index: QueueIndex, report: RecoveryReport, terms: bytes | None) -> None:
    assert isinstance(index, QueueIndexV2)
    run_through(recover_v2(index, report, terms, store_is_damaged=False))
    if terms is None:
        index.files.disk.sync_directory(DIRECTORY)


def _count_references_v2(disk: Disk, directory: str) -> Counter[MsgId]:
    named = chain.from_iterable(references_in_pieces_v2(disk, directory, SMALL.v2_segment_entries))
    return Counter(msg_id for _, msg_id in named)


def count_references_v1(disk: Disk, directory: str) -> Counter[MsgId]:
    """References of the files of version 1, by message."""
    named = chain.from_iterable(references_in_pieces_v1(disk, directory))
    return Counter(msg_id for _, msg_id in named)


def _ack_path_v2(index: QueueIndex, seq_id: int) -> str:
    return f"{DIRECTORY}/{seq_id // SMALL.v2_segment_entries}.qi"


V2 = IndexKind("v2", _make_v2, _recover_v2, _count_references_v2, _ack_path_v2, True)
V1 = IndexKind("v1", _make_v1, _recover_v1, count_references_v1, _ack_path_v1, False)


def message_of(counter: int, *, big: bool = False, persistent: bool = True) -> Message:
    """The ``counter``-th message, embedded or for a shared store."""
    body = counter.to_bytes(4, "big") + bytes([counter & 255]) * (BIG_BODY if big else SMALL_BODY)
    return make_message(counter, body=body, persistent=persistent)


class IndexDriver:
    """See the module text."""

    def __init__(self, kind: IndexKind, config: StoreConfig = SMALL) -> None:
        self.kind = kind
        self.config = config
        self.disk = FaultyDisk()
        self.disk.mkdir(DIRECTORY)
        self.group_commit = GroupCommit()
        self.persistent_store = MemorySharedStore(self.group_commit)
        self.transient_store = MemorySharedStore(self.group_commit)
        self.index = self._make()
        self.next_seq_id = 0
        self.counter = 0
        self.report = RecoveryReport(clean=True)
        #: What is published and not settled.
        self.live: dict[int, Message] = {}
        #: Of the live ones: persistent and synced.
        self.durable: dict[int, Message] = {}
        #: Every persistent message ever published at a position.
        self.ever: dict[int, list[Message]] = {}
        #: Every position that was ever published.
        self.used: set[int] = set()
        #: Settled positions whose ack was synced.
        self.gone: set[int] = set()
        #: Settled positions by the file that has the ack.
        self._acks: dict[str, set[int]] = {}
        self._unflushed_acks: set[int] = set()
        #: Settled positions whose ack a flush has written: nothing but a loss of power brings them back.
        self.acked: set[int] = set()

    @property
    def overwrites(self) -> bool:
        """See `IndexKind.overwrites`."""
        return self.kind.overwrites

    def _make(self) -> QueueIndex:
        return self.kind.make(self.disk, self.group_commit, self.persistent_store, self.transient_store, self.config)

    # -- what a queue does

    def message(self, *, big: bool = False, persistent: bool = True) -> Message:
        self.counter += 1
        return message_of(self.counter, big=big, persistent=persistent)

    def publish(self, count: int, *, big: bool = False, persistent: bool = True) -> list[int]:
        """New messages at the end; returns their positions."""
        seq_ids = list(range(self.next_seq_id, self.next_seq_id + count))
        self.next_seq_id += count
        self.publish_at({seq_id: self.message(big=big, persistent=persistent) for seq_id in seq_ids})
        return seq_ids

    def publish_at(self, messages: dict[int, Message]) -> None:
        """Messages at given positions."""
        half = dict(list(messages.items())[::2])
        self.index.publish(messages, {seq_id: message.envelope() for seq_id, message in half.items()})
        self.live.update(messages)
        self.used.update(messages)
        for seq_id, message in messages.items():
            self._unflushed_acks.discard(seq_id)
            self.gone.discard(seq_id)
            self.acked.discard(seq_id)
            for acked in self._acks.values():
                acked.discard(seq_id)
            if message.persistent:
                self.ever.setdefault(seq_id, []).append(message)

    def _settled(self, seq_id: int) -> None:
        self._unflushed_acks.add(seq_id)
        del self.live[seq_id]
        self.durable.pop(seq_id, None)

    def settle(self, seq_ids: Sequence[int]) -> None:
        """Some known as messages, some as what the index says of them."""
        known: list[Message | PagedMessage] = []
        for seq_id in seq_ids:
            message = self.live[seq_id]
            if seq_id % 3 or self.index.is_unflushed(seq_id):
                known.append(message)
            else:
                known.append(PagedMessage(message.msg_id, len(message.body), message.persistent))
        self.index.settle(seq_ids, known)
        for seq_id in seq_ids:
            self._settled(seq_id)

    def settle_range(self, first: int, end: int, keep: Collection[int] = ()) -> None:
        chosen = [seq_id for seq_id in self.live if first <= seq_id < end and seq_id not in keep]
        is_sized = first % 2 == 0
        settled = self.index.settle_range(first, end, keep, is_sized=is_sized)
        sizes = [len(self.live[seq_id].body) for seq_id in chosen]
        persistent = [len(self.live[seq_id].body) for seq_id in chosen if self.live[seq_id].persistent]
        assert (settled.messages, settled.persistent) == (len(sizes), len(persistent))
        if is_sized:
            assert (settled.body_bytes, settled.persistent_body_bytes) == (sum(sizes), sum(persistent))
        for seq_id in chosen:
            self._settled(seq_id)

    def flush(self) -> None:
        waiting = [self.live[seq_id] for seq_id in self.live if self.index.is_unflushed(seq_id)]
        persistent = sum(message.persistent for message in waiting)
        assert self.index.has_unflushed_publishes == bool(waiting)
        assert self.index.flush(self.next_seq_id) == persistent
        while self.index.has_unflushed:
            # More finished segments than one flush deletes.
            assert self.index.flush(self.next_seq_id) == 0
        self.acked |= self._unflushed_acks
        for seq_id in self._unflushed_acks:
            path = self.ack_path(seq_id)
            # Acks of a segment that is deleted are not written.
            if self.disk.exists(path):
                self._acks.setdefault(path, set()).add(seq_id)
        self._unflushed_acks.clear()

    def flush_without_room(self, room_bytes: int, prefix_of: Callable[[int], int]) -> bool:
        """The same on a disk that has so much room; false if that did not do. `SimulatedDisk` explains a prefix."""
        disk = self.disk
        capacity_bytes, disk.capacity_bytes = disk.capacity_bytes, disk.used_bytes + room_bytes
        disk.prefix_of, usual = prefix_of, disk.prefix_of
        try:
            self.flush()
        except DiskFullError:
            self.index.check_invariants()
            return False
        finally:
            disk.capacity_bytes, disk.prefix_of = capacity_bytes, usual
        return True

    def ack_path(self, seq_id: int) -> str:
        """The file that got the ack of the last flush."""
        return self.kind.ack_path(self.index, seq_id)

    def sync(self) -> None:
        """Flush, then one round of the group commit. Raises `StorageError` if an fsync does."""
        self.flush()
        sync_round = self.group_commit.begin()
        if sync_round is None:
            return
        self.disk.synced.clear()
        try:
            sync_round.run()
        except BaseException:
            self._note_synced_acks()
            raise
        self.group_commit.complete(sync_round)
        self._note_synced_acks()
        self.durable = {seq_id: message for seq_id, message in self.live.items() if message.persistent}

    def _note_synced_acks(self) -> None:
        for path in self.disk.synced:
            self.gone |= self._acks.pop(path, set())

    # -- starting again

    def crash(self, style: CrashStyle, seed: int) -> None:
        """Lose power, recover, and compare."""
        self.disk.fail_sync_at = -1
        self.disk.crash(style, random.Random(seed))
        self.recover(None)
        assert self.report.corrupt == 0, self.report.problems

    def die(self) -> None:
        """The process dies, the machine does not: everything written is there. Recover, and compare."""
        self.disk.crash_after = None
        # The store makes durable what it finds.
        self.persistent_store.sync()
        self.recover(None)
        assert self.report.corrupt == 0, self.report.problems
        back = self.acked & self.read_all().keys()
        assert not back, f"the acks of {sorted(back)} were written"

    def crash_twice(self, style: CrashStyle, seed: int, operations: int) -> None:
        """Lose power, lose it again in an early operation of the recovery, recover, and compare."""
        self.disk.fail_sync_at = -1
        self.disk.crash(style, random.Random(seed))
        self.disk.crash_after = operations
        with suppress(SimulatedCrashError):
            self.recover(None)
        self.crash(style, seed + 1)

    def recover(self, terms: bytes | None) -> None:
        """A new process on the same disk."""
        self.group_commit = GroupCommit()
        references = self.count_references()
        self.persistent_store = self.persistent_store.restarted(self.group_commit, references)
        self.transient_store = MemorySharedStore(self.group_commit)
        self.report = RecoveryReport(clean=terms is not None)
        self.open(terms)

    def open(self, terms: bytes | None) -> None:
        """Make the index and let it recover."""
        self.index = self._make()
        self.kind.recover(self.index, self.report, terms)

    def count_references(self) -> Counter[MsgId]:
        return self.kind.count_references(self.disk, DIRECTORY)

    def restart(self) -> None:
        """Clean stop and start: everything persistent is there."""
        self.index.drop_transient()
        self.index.close(self.next_seq_id)
        terms = self.index.terms()
        self.persistent_store.sync()
        self.live = {seq_id: message for seq_id, message in self.live.items() if message.persistent}
        self.recover(terms)
        assert self.report.clean
        self.after_recovery(self.check())
        assert self.report.messages == len(self.live)

    def after_recovery(self, found: dict[int, bytes]) -> None:
        """What was found is what there is from now on."""
        by_envelope = {m.envelope(): m for messages in self.ever.values() for m in messages}
        self.live = {seq_id: by_envelope[envelope] for seq_id, envelope in found.items()}
        self.durable = dict(self.live)
        self._acks.clear()
        self._unflushed_acks.clear()
        self.acked.clear()
        self.next_seq_id = max(self.next_seq_id, max(self.live, default=-1) + 1)

    # -- comparing

    def read_all(self) -> dict[int, bytes]:
        """Envelopes of everything."""
        entries = self.index.entries(0, 1 << 40, 1 << 20)
        return dict(zip([seq_id for seq_id, _ in entries], self.index.read(entries), strict=True))

    def verify_crash(self) -> dict[int, bytes]:
        """What the promises say of a recovered index; returns what is in it."""
        self.index.check_invariants()
        found = self.read_all()
        for seq_id, message in self.durable.items():
            assert found.get(seq_id) == message.envelope(), f"{seq_id} was durable and not settled"
        for seq_id, envelope in found.items():
            assert any(envelope == m.envelope() for m in self.ever.get(seq_id, [])), f"{seq_id} was never published"
            assert seq_id not in self.gone, f"the ack of {seq_id} was synced"
        self.check_references(found)
        assert self.report.messages == len(found)
        return found

    def check_references(self, found: dict[int, bytes]) -> None:
        """The store has a reference for each entry that is in it."""
        counts: Counter[bytes] = Counter()
        for seq_id, envelope in found.items():
            if len(envelope) > BIG_BODY:
                counts[envelope] += self.references_of(seq_id)
        references = {
            self.persistent_store.messages[msg_id]: n for msg_id, n in self.persistent_store.references.items()
        }
        assert references == counts

    def references_of(self, seq_id: int) -> int:
        """References that a live entry has in a shared store."""
        return 1

    def msg_ids(self, first: int, end: int) -> bytes:
        """What `QueueIndex.msg_ids` shall say, by the model."""
        return b"".join(self.live[seq_id].msg_id if seq_id in self.live else bytes(16) for seq_id in range(first, end))

    def check(self) -> dict[int, bytes]:
        """The index says what the model says."""
        index, live = self.index, self.live
        index.check_invariants()
        end = self.next_seq_id + 1
        assert list(index.live(0, end)) == sorted(live)
        assert index.count_live(0, end) == len(live)
        for first in range(0, end, 5):
            expected = [seq_id for seq_id in sorted(live) if first <= seq_id < first + 7]
            assert list(index.live(first, first + 7)) == expected
            assert index.count_live(first, first + 7) == len(expected)
            assert index.is_live(first) == (first in live)
            following = [seq_id for seq_id in sorted(live) if seq_id >= first]
            assert [seq_id for seq_id, _ in index.entries(first, end, 3)] == following[:3]
            assert index.msg_ids(first, first + 7) == self.msg_ids(first, first + 7)
        assert index.msg_ids(0, end) == self.msg_ids(0, end)
        for seq_id, paged in index.entries(0, end, end):
            message = live[seq_id]
            assert paged[:3] == (message.msg_id, len(message.body), message.persistent)
        found = self.read_all()
        assert found == {seq_id: message.envelope() for seq_id, message in live.items()}
        return found


def random_steps(driver: IndexDriver, rng: random.Random, steps: int) -> None:
    """A workload that does everything, the same for the same ``rng``."""
    for _ in range(steps):
        choice = rng.random()
        written = sorted(driver.live)
        if choice < 0.4:
            driver.publish(rng.randint(1, 5), big=rng.random() < 0.3, persistent=rng.random() < 0.85)
        elif choice < 0.65 and written:
            driver.settle(sorted(rng.sample(written, rng.randint(1, min(6, len(written))))))
        elif choice < 0.72 and written:
            driver.settle(written[: rng.randint(1, 9)])
        elif choice < 0.75:
            first = rng.randint(0, driver.next_seq_id)
            driver.settle_range(first, first + rng.randint(0, 12), keep=written[::4])
        elif choice < 0.79 and written and written[-1] == driver.next_seq_id - 1 and not driver.overwrites:
            # A mirror whose tail is replaced: positions are used again.
            driver.settle(written[-1:])
            driver.publish_at({written[-1]: driver.message(big=rng.random() < 0.3)})
        elif choice < 0.88:
            driver.flush()
        else:
            driver.sync()


class V1Driver(IndexDriver):
    """A driver of version 1, for tests that look into the index."""

    index: QueueIndexV1

    def __init__(self, config: StoreConfig = SMALL) -> None:
        super().__init__(V1, config)

    def _make(self) -> QueueIndexV1:
        index = super()._make()
        assert isinstance(index, QueueIndexV1)
        return index

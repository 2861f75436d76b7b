"""All storage of one vhost on this node: its queues' directories and its shared message store.

Layout below the node's data directory::

    vhosts/<directory of the vhost>/vhost.json                  the vhost's name, and what must not change in its life
                                   /durable.lengths             node.store.disk.length_file
                                   /msg_store_persistent/N.rdq  node.store.shared.msg_store
                                   /msg_store_transient/N.rdq   the same, emptied at start
                                   /queues/<queue id>/          node.store.queue_storage
                                       queue.json  N.qi  N.qs  seq.bounds  clean.terms
                                   /deleting/<queue id>.N/      deleted queues on their way out: node.store.deletions

A vhost's directory is named by a hash of the vhost's name, since a name may hold any character. The number of entries
of a segment is decided when the vhost is made and kept: the files of a queue would mean something else otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice

from node.errors import StorageError
from node.ids import MsgId, QueueId, QueueName
from node.queues.local_replica import LocalReplica
from node.queues.variable_queue import VariableQueue
from node.store.deletions import QUEUES_NAME, Deletions
from node.store.disk.disk import Disk, read_whole, write_durably
from node.store.disk.group_commit import GroupCommit
from node.store.disk.guarded import GuardedDisk
from node.store.index.held_references import HeldReferences, Named
from node.store.index.index import Progress
from node.store.index.v1.scan import references_in_pieces_v1
from node.store.index.v2.scan import references_in_pieces_v2
from node.store.queue_storage import TERMS_NAME, GivenUp, QueueStorage, SharedStores, Stub, read_stub
from node.store.shared.clean_tables import TABLES_NAME
from node.store.shared.compaction.compaction import Reclaimed
from node.store.shared.config import StoreConfig
from node.store.shared.msg_store import MessageStore, MessageStoreStatus
from node.store.shared.port import Releases, each_piece, release_in_pieces
from node.store.shared.recovery import StoreRecovery
from node.store.steps import Steps, run_through

#: Characters of the hash in a directory's name: 96 bits, no two vhosts of one node will ever share them.
_HASH_CHARACTERS = 24
#: Messages that one call of `VhostStore.maintain` pages out, over all queues (and one step of the last more): each is
#: one or two microseconds of work.
MAINTENANCE_MESSAGES = 4000
#: Queues that one call of `VhostStore.maintain` looks at, at some microseconds each, the others with the next: ten
#: thousand have their turn in a second, as often as rates are brought up to date.
LOOKED_AT_MAX = 1000
#: Entries of which one call of `VhostStore.maintain` computes digests, over all queues: about half a millisecond. Ten
#: million take a minute. (One segment of a queue with version 1 of the index: `V1_ENTRY_COST`.)
WARMED_ENTRIES = 16384
#: One call of `VhostStore.flush_writes` looks at so many queues for each that may write: most that collected something
#: have it written, but what was settled in the meantime needs no write.
LOOKED_AT_PER_WRITE = 8
#: Of which one step of the opening looks whether they were closed.
QUEUES_PER_STEP = 64
#: Of which one step reads the files, if they name nothing: half a millisecond each.
QUEUES_COUNTED_PER_STEP = 8
#: As many as there are.
ALL_QUEUES = 1 << 40
#: Generation of everything below a vhost's directory.
FORMAT = 2
#: Settings that a vhost keeps for its life.
_KEPT_SETTINGS = ("v1_segment_entries", "v2_segment_entries")


VHOSTS_NAME = "vhosts"
VHOST_FILE_NAME = "vhost.json"


def vhost_directory(data_directory: str, vhost: str) -> str:
    """Where a vhost lives."""
    digest = hashlib.sha256(vhost.encode()).hexdigest()
    return f"{data_directory}/{VHOSTS_NAME}/{digest[:_HASH_CHARACTERS]}"


class VhostStore:
    """See the module text. Opening it scans the shared store; raises `StorageError` if the disk refuses.

    One `GroupCommit` serves all vhosts of a node; its `begin` calls `flush_writes`.
    """

    def __init__(
        self,
        disk: Disk,
        data_directory: str,
        vhost: str,
        group_commit: GroupCommit,
        config: StoreConfig,
        on_queue_changed: Callable[[QueueId], None] = lambda _queue_id: None,
        on_progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
        *,
        opens_at_once: bool = True,
    ) -> None:
        """Unless it ``opens_at_once``, the steps of ``opening`` do, and no queue may be opened or deleted before.

        ``on_queue_changed`` hears of a queue whose writes failed, found the disk full, or were possible again on it:
        nobody was calling it just then, and it has an error, its state or confirms to tell.

        ``on_progress`` hears during scans (after a crash) what is scanned, and how much of how much is done.
        """
        self._vhost = vhost
        self._group_commit = group_commit
        self._on_queue_changed = on_queue_changed
        self._on_progress = on_progress
        #: Directory of this vhost.
        self.directory = vhost_directory(data_directory, vhost)
        self._queues_directory = f"{self.directory}/{QUEUES_NAME}"
        disk.mkdir(self._queues_directory)
        self._disk = disk = GuardedDisk(disk, self.directory, group_commit, compares_at_once=False)
        #: Open queues.
        self._open: dict[QueueId, LocalReplica] = {}
        #: Open queues that called for a flush.
        self._unflushed: dict[QueueId, None] = {}
        #: Of queues that were given up: what their files still hold of the persistent shared store.
        self._held: dict[QueueId, HeldReferences] = {}
        #: Of the same: gives back all other references they had, piece by piece.
        self._given_up: dict[QueueId, GivenUp] = {}
        #: Queues of which the files are as they were when references were counted.
        self._counted: set[QueueId] = set()
        #: There was no ``vhost.json`` yet, or no more: what it keeps is as configured now.
        self.has_begun = False
        self._persistent_directory = f"{self.directory}/msg_store_persistent"
        self._transient_directory = f"{self.directory}/msg_store_transient"
        try:
            disk.mkdir(self._persistent_directory)
            self._deletions = Deletions(disk, self.directory, group_commit)
            self._config = self._agree(data_directory, config)
        except BaseException:
            self._disk.abandon()
            raise
        #: Made by the steps of the opening.
        self._stores: SharedStores
        #: To be gone through by whoever did not want the store to open at once.
        self.opening: Steps[None] = self._opening_steps(self._persistent_directory)
        #: Queues may be opened.
        self.is_open = False
        if opens_at_once:
            run_through(self.opening)

    def _opening_steps(self, store_directory: str) -> Steps[None]:
        yield from self._disk.comparison
        persistent = MessageStore(
            self._disk,
            store_directory,
            self._group_commit,
            self._config,
            self._count_references,
            opens_at_once=False,
            may_open_clean=(yield from self._have_queues_stopped_cleanly()),
            short_files=self._disk.short_files_in(store_directory),
            on_loss=self._remove_terms,
            on_progress=lambda done, total: self._on_progress(
                f"shared store of vhost {self._vhost}, bytes", done, total
            ),
        )
        transient = MessageStore(
            self._disk, self._transient_directory, self._group_commit, self._config, {}, is_transient=True
        )
        self._stores = SharedStores(persistent, transient)
        self._deletions.on_unreleased = persistent.count_anew
        try:
            yield from persistent.opening
            if self.store_recovery.corrupt:
                yield from self._remove_terms()
            self._disk.acknowledge(store_directory)
        except BaseException:
            persistent.abandon()
            raise
        self._group_commit.add_buffer(self)
        self.is_open = True

    def _have_queues_stopped_cleanly(self) -> Steps[bool]:
        """Otherwise some queue may recover entries of which the shared store has given up the messages, or may have
        lost entries (in a file that is too short) of which the store would keep the messages for ever."""
        if self._disk.short_files_below(self._queues_directory):
            return False
        for number, queue_id in enumerate(self._queue_ids(), 1):
            if not self._disk.exists(f"{self._queue_directory(queue_id)}/{TERMS_NAME}"):
                return False
            if number % QUEUES_PER_STEP == 0:
                yield None
        return True

    def _remove_terms(self) -> Steps[None]:
        """The shared store has lost something, so what terms say of the queues may be wrong: they are scanned, in this
        life or a later one."""
        for queue_id in self._queue_ids():
            directory = self._queue_directory(queue_id)
            if self._disk.exists(f"{directory}/{TERMS_NAME}"):
                self._disk.unlink(f"{directory}/{TERMS_NAME}")
                self._disk.sync_directory(directory)
                yield None

    def _count_references(self) -> Steps[Mapping[MsgId, int]]:
        references: Counter[MsgId] = Counter()
        self._counted.update(self._queue_ids())
        for number, queue_id in enumerate(sorted(self._counted), 1):
            for _, named in self._named_in(self._queue_directory(queue_id), lambda: None):
                references.update([msg_id for _, msg_id in named])
                yield None
            # Of one that names nothing the files were read, too.
            if number % QUEUES_COUNTED_PER_STEP == 0:
                yield None
        return references

    def _named_in(self, directory: str, on_damage: Callable[[], None]) -> Iterator[tuple[int, list[Named]]]:
        """What one queue's files name of the persistent shared store, a bounded piece at a time with the version of the
        index; an entry in both versions has a reference for each. ``on_damage`` hears of it before anything of the
        damaged file comes."""
        for in_v2 in references_in_pieces_v2(self._disk, directory, self._config.v2_segment_entries):
            yield 2, in_v2
        for in_v1 in references_in_pieces_v1(self._disk, directory, on_damage):
            yield 1, in_v1

    def _agree(self, data_directory: str, config: StoreConfig) -> StoreConfig:
        """The configuration as this vhost's files allow it. Raises `StorageError` if another Warren wrote them, or if
        what they say of it is damaged."""
        disk = self._disk
        path = f"{self.directory}/{VHOST_FILE_NAME}"
        if disk.exists(path):
            return self._as_kept(path, config)
        self.has_begun = True
        kept = {key: getattr(config, key) for key in _KEPT_SETTINGS}
        content = json.dumps({"vhost": self._vhost, "format": FORMAT} | kept, indent=2).encode() + b"\n"
        # The names of the directories above, up to the node's own: where the file is they are durable.
        for above in (data_directory, f"{data_directory}/{VHOSTS_NAME}"):
            disk.sync_directory(above)
        write_durably(disk, path, content)
        return config

    def _as_kept(self, path: str, config: StoreConfig) -> StoreConfig:
        content = read_whole(self._disk, path)
        try:
            kept = json.loads(content)
            if kept.get("format") != FORMAT:
                raise StorageError(
                    f"{self.directory} has format {kept.get('format', 1)}, this Warren reads {FORMAT}: start the "
                    "version that wrote it and drain its queues, or move the directory away to begin with empty queues"
                )
            if kept["vhost"] != self._vhost:
                raise ValueError(f"it is of vhost {kept['vhost']!r}")
            return replace(config, **{key: kept[key] for key in _KEPT_SETTINGS})
        except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise StorageError(
                f"{path} is damaged ({error!r}): restore it (that of another vhost of this node says the same but for "
                f"the name, if the segments had as many entries when that was made), or move {self.directory} away to "
                "begin with empty queues"
            ) from error

    @property
    def unreadable_lengths(self) -> int:
        """Notes of durable lengths that could not be read at the opening: torn by a crash, or damaged."""
        return self._disk.unreadable_notes

    @property
    def store_recovery(self) -> StoreRecovery:
        """What the scan of the shared store found."""
        return self._stores.persistent.recovery

    def _queue_directory(self, queue_id: QueueId) -> str:
        return f"{self._queues_directory}/{queue_id}"

    def _queue_ids(self) -> list[QueueId]:
        return sorted(QueueId(int(name)) for name in self._disk.list(self._queues_directory) if name.isdigit())

    def open_queue(
        self, queue_id: QueueId, queue_name: QueueName, durable: bool, version: int | None = None
    ) -> LocalReplica:
        """Create the queue's storage, or recover it (`LocalReplica.recovery_report` says what was found).

        ``version`` of the index, ``None``: as configured. Raises `StorageError`; the files stay as they are then.
        """
        return run_through(self.queue_opening(queue_id, queue_name, durable, version))

    def queue_opening(
        self,
        queue_id: QueueId,
        queue_name: QueueName,
        durable: bool,
        version: int | None = None,
        on_progress: Progress = lambda _done, _total: None,
        *,
        is_compared: bool = False,
    ) -> Steps[LocalReplica]:
        """The same in steps. Whoever does not finish them closes them: the files are recovered another time.

        ``on_progress`` hears how many segments of how many were scanned. ``is_compared``: it is mirrored; the digests
        that an attach asks for are computed, too.
        """
        assert self.is_open, "the shared store comes first"
        assert queue_name.vhost == self._vhost, f"{queue_name} belongs to another vhost than {self._vhost}"
        assert queue_id not in self._open, f"queue {queue_id} is open already"
        directory = self._queue_directory(queue_id)
        for _ in self._give_back(queue_id):
            yield None

        def progress(done: int, total: int) -> None:
            on_progress(done, total)
            self._on_progress(f"index of {queue_name}, segments", done, total)

        storage = QueueStorage(
            self._disk,
            directory,
            Stub(queue_id, queue_name, durable),
            group_commit=self._group_commit,
            stores=self._stores,
            deletions=self._deletions,
            config=self._config,
            on_unflushed=lambda: self._called_for_flush(queue_id),
            on_closed=lambda: self._closed(queue_id),
            version=version,
            short_files=self._disk.short_files_in(directory),
            on_given_up=lambda held, given_up: self._was_given_up(queue_id, held, given_up),
            held=self._held.get(queue_id),
            unfound=self._unfound_by(queue_id),
            progress=progress,
        )
        yield from storage.opening()
        self._held.pop(queue_id, None)
        self._counted.discard(queue_id)
        try:
            queue = LocalReplica(storage, self._group_commit, self._config)
            self._disk.acknowledge(directory)
        except BaseException:
            # What was read of it may be open.
            storage.abandon()
            raise
        self._open[queue_id] = queue
        if is_compared:
            try:
                yield from queue.warm_all()
            except BaseException:
                with suppress(StorageError):
                    queue.terminate()
                raise
        return queue

    def _unfound_by(self, queue_id: QueueId) -> Collection[MsgId]:
        """Messages that a queue may name without a reference: they were not there when these were counted, but may be
        now, of another queue."""
        return self.store_recovery.unfound if queue_id in self._counted else ()

    def _was_given_up(self, queue_id: QueueId, held: HeldReferences | None, given_up: GivenUp) -> None:
        if held is None:
            self._held.pop(queue_id, None)
        else:
            self._held[queue_id] = held
        self._given_up[queue_id] = given_up

    def _give_back(self, queue_id: QueueId) -> Iterator[None]:
        """What is left to be given back of a queue that was given up: its files are about to change. Raises
        `StorageError`: then it is not done yet."""
        given_up = self._given_up.get(queue_id)
        for wanting in given_up.pieces if given_up is not None else ():
            if wanting is not None:
                raise wanting
            yield
        self._given_up.pop(queue_id, None)

    def _called_for_flush(self, queue_id: QueueId) -> None:
        # Behind the others, also if it called before: it has written that unasked, since it was much.
        self._unflushed.pop(queue_id, None)
        self._unflushed[queue_id] = None

    def _closed(self, queue_id: QueueId) -> None:
        self._open.pop(queue_id, None)
        self._unflushed.pop(queue_id, None)

    def queue_file_count(self, queue_id: QueueId) -> int:
        """Files in a queue's directory."""
        return len(self._disk.list(self._queue_directory(queue_id)))

    def queues_on_disk(self) -> list[tuple[QueueId, QueueName]]:
        """Every queue that has a directory. Its name is empty if the crash came before the stub was durable."""
        return list(self.unknown_queues(()))

    def unknown_queues(self, known: Container[QueueId]) -> Iterator[tuple[QueueId, QueueName]]:
        """Those that have a directory now and are not ``known`` now, each read when it is asked for. Raises
        `StorageError` if it cannot be told which there are."""
        for queue_id in [queue_id for queue_id in self._queue_ids() if queue_id not in known]:
            stub = None
            with suppress(StorageError):  # it says the name only
                stub = read_stub(self._disk, self._queue_directory(queue_id))
            yield queue_id, stub.queue_name if stub else QueueName(self._vhost, "")

    def delete_queue_directory(self, queue_id: QueueId) -> None:
        """Remove, in steps, what a queue left that no longer exists (and is not open). Raises `StorageError`."""
        assert queue_id not in self._open, f"queue {queue_id} is open: delete it through its object"
        directory = self._queue_directory(queue_id)
        if not self._disk.exists(directory):
            self._held.pop(queue_id, None)
            self._counted.discard(queue_id)
            return
        held = self._held.get(queue_id)
        if held is not None:
            # Of what cannot be read, and of writes that failed half way, nobody knows.
            self._stores.persistent.count_anew()
        self._deletions.take(directory, partial(self._release_all, queue_id, held), is_durable=True)
        self._held.pop(queue_id, None)
        self._given_up.pop(queue_id, None)
        self._counted.discard(queue_id)

    def _release_all(self, queue_id: QueueId, held: HeldReferences | None, directory: str) -> Releases:
        """Give back what a closed queue has, of which the files were moved to this directory."""
        named = self._release(held, self._unfound_by(queue_id), directory)
        given_up = self._given_up.get(queue_id)
        if given_up is None:
            return named
        given_up.moved_to(directory)
        return chain(given_up.pieces, named)

    def _release(self, held: HeldReferences | None, unfound: Collection[MsgId], directory: str) -> Releases:
        """Give back what the files of a closed queue refer to, as far as it is ``held``, a bounded piece at a time.
        ``held`` ``None``: all but what was ``unfound``."""
        store = self._stores.persistent

        def release(msg_ids: Sequence[MsgId]) -> None:
            for msg_id in msg_ids:
                if store.contains(msg_id):
                    store.release(msg_id)

        on_damage = held.distrust if held is not None else lambda: None
        for piece in each_piece(lambda: self._named_in(directory, on_damage)):
            if not isinstance(piece, tuple):
                yield piece
                continue
            version, named = piece
            if held is not None:
                msg_ids = held.take(version, named)
            else:
                msg_ids = [msg_id for _, msg_id in named if msg_id not in unfound]
            yield from release_in_pieces(msg_ids, release, store.count_anew)
            if not msg_ids:
                # Reading was a step, too.
                yield None
        if held is not None:
            yield from release_in_pieces(held.loose, release, store.count_anew)

    @property
    def has_unflushed(self) -> bool:
        """True if a queue collected something since the last `flush_writes`."""
        return bool(self._unflushed)

    @property
    def unflushed_since(self) -> int:
        """Generation in which the first of them collected it: they are flushed in the order in which they called. (One
        that tries again what a full disk has refused stands behind younger ones.)"""
        return self._open[next(iter(self._unflushed))].engine.writes.collected_generation

    def flush_writes(self, at_most: int = ALL_QUEUES) -> int:
        """Push what so many queues collected into their files, with few writes; returns how many have written.

        Never raises: a failure takes the queue concerned out of service, which shows in its next operation; its owner
        is told that there should be one. So it is of a queue that collected in a generation that has closed since:
        whoever waits for that waits for this one.
        """
        written = 0
        for queue_id in list(islice(self._unflushed, at_most * LOOKED_AT_PER_WRITE)):
            del self._unflushed[queue_id]
            engine = self._open[queue_id].engine
            was_full, is_late = engine.is_disk_full, engine.is_flush_late
            written += engine.flush_writes()
            self._tell_owner(queue_id, engine, was_full=was_full, is_late=is_late)
            if written >= at_most:
                break
        return written

    def _tell_owner(self, queue_id: QueueId, engine: VariableQueue, *, was_full: bool, is_late: bool) -> None:
        """The queue may have written, though nobody called it: see `flush_writes`."""
        if engine.has_failed or was_full != engine.is_disk_full or (is_late and not engine.is_disk_full):
            self._on_queue_changed(queue_id)

    def maintain(self, now_ms: int) -> None:
        """Some times a second: page out, try again what a full disk refused, remove what was deleted; bounded steps."""
        budget = MAINTENANCE_MESSAGES
        looked_at = list(islice(self._open.items(), LOOKED_AT_MAX))
        if len(looked_at) < len(self._open):
            for queue_id, queue in looked_at:
                del self._open[queue_id]
                self._open[queue_id] = queue
        for queue_id, queue in looked_at:
            engine = queue.engine
            engine.rates.tick(now_ms)
            if budget > 0 and engine.wants_maintenance:
                before = engine.paging.moved
                was_full, was_late = engine.is_disk_full, engine.is_flush_late
                engine.maintain()
                budget -= engine.paging.moved - before
                if engine.paging.moved != before:
                    # The others come first next time.
                    self._open[queue_id] = self._open.pop(queue_id)
                # A conversion writes before it goes on.
                is_late = was_late and not engine.is_flush_late
                self._tell_owner(queue_id, engine, was_full=was_full, is_late=is_late)
        for store in self._stores:
            store.tick()
        self._deletions.step()
        for queue_id, given_up in list(islice(self._given_up.items(), 1)):
            if next(given_up.pieces, self) is self:
                del self._given_up[queue_id]
        self._warm_digests(looked_at)
        self._disk.write_notes(now_ms)

    def _warm_digests(self, looked_at: Sequence[tuple[QueueId, LocalReplica]]) -> None:
        """A bounded step of what the next attach of a mirror will ask for."""
        budget = WARMED_ENTRIES
        for queue_id, queue in looked_at:
            if not queue.wants_warming:
                continue
            budget -= queue.warm(budget)
            if queue.engine.has_failed:
                self._on_queue_changed(queue_id)
            if budget <= 0:
                # The others come first next time.
                self._open[queue_id] = self._open.pop(queue_id)
                break

    def reclaim(self) -> Reclaimed:
        """Take a small step of reclaiming garbage in each of the shared stores."""
        has_worked = is_urgent = False
        for store in self._stores:
            came_of_it = store.maintain()
            has_worked |= came_of_it.has_worked
            is_urgent |= came_of_it.is_urgent
        return Reclaimed(has_worked, is_urgent)

    def shared_status(self) -> MessageStoreStatus:
        """Figures of the shared store of persistent messages."""
        return self._stores.persistent.status()

    def has_leftovers(self) -> bool:
        """True if there is something to be reclaimed, or may be, once it is open: of deleted queues, or in the shared
        stores. Raises `StorageError`."""
        names = (self._disk.list(self._persistent_directory), self._disk.list(self._transient_directory))
        return bool(self._deletions) or any(name != TABLES_NAME for name in chain(*names))

    @property
    def is_idle(self) -> bool:
        """It is open, and nothing is left of its queues."""
        return self.is_open and not self._open and not self._given_up and not self._deletions

    def abandon(self) -> None:
        """Close the files as they are: the vhost no longer exists, and nothing is left of its queues."""
        assert self.is_idle, "nobody uses what is given up"
        self._group_commit.remove_buffer(self)
        for store in self._stores:
            store.abandon()
        self._disk.abandon()

    def give_up_opening(self) -> None:
        """Close what an opening that came to nothing has left open; the files stay as they are."""
        assert not self.is_open, "what is open is closed"
        self.opening.close()
        self._disk.abandon()

    def close(self) -> None:
        """Clean stop of the queues that are still open, then of the shared store. Raises `StorageError`: then, as after
        a mistake, what was left open is closed as it is, and the next start scans."""
        if not self.is_open:
            # The next start begins anew.
            self.give_up_opening()
            return
        try:
            for queue in list(self._open.values()):
                queue.terminate()
            self._group_commit.remove_buffer(self)
            for given_up in self._given_up.values():
                for _ in given_up.pieces:
                    pass
            self._deletions.close()
            for store in self._stores:
                store.close()
            self._disk.close()
        except BaseException:
            for store in self._stores:
                store.abandon()
            self._disk.abandon()
            raise

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the stores contradict each other."""
        self._disk.check_invariants()
        for store in self._stores:
            store.check_invariants()
        self._deletions.check_invariants()
        for queue in self._open.values():
            queue.check_invariants()

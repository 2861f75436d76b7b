"""Everything one queue has on disk: its directory, index, terms and bounds, opened and recovered together.

A durable queue has its directory from the beginning. One that is not durable gets it when messages are first paged out,
and loses it when it is closed: what is found of it at start is removed. Removing is the business of
`node.store.deletions`.

The index is of version 1 or 2. If another version is wanted than the files have, a `ConvertingIndex` stands in front
of both until everything is converted (`convert`); a crash or a stop in between changes nothing about that. A
conversion that was begun is finished before one back begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from node.errors import StorageError
from node.ids import MsgId, OriginId, QueueId, QueueName
from node.store.deletions import Deletions, no_references
from node.store.disk.disk import Disk, DiskFile, read_whole
from node.store.disk.group_commit import GroupCommit
from node.store.disk.length_file import ShortFile
from node.store.index.conversion import (
    ConvertingIndex,
    conversion_source,
    remove_cursor,
    split_terms,
    versions_on_disk,
)
from node.store.index.held_references import HeldReferences
from node.store.index.index import Progress, QueueIndex, RecoveryReport
from node.store.index.terms import SeqBounds, Terms, read_terms
from node.store.index.v1.index import QueueIndexV1
from node.store.index.v1.recovery import recover_v1
from node.store.index.v2.index import QueueIndexV2
from node.store.index.v2.recovery import recover_v2
from node.store.shared.config import StoreConfig
from node.store.shared.msg_store import MessageStore
from node.store.shared.port import Releases
from node.store.steps import Steps, run_through, sync_job

#: Entries that one step of a conversion copies: some milliseconds, a few megabytes at most.
CONVERSION_STEP_ENTRIES = 512
STUB_NAME = "queue.json"
TERMS_NAME = "clean.terms"
_BOUNDS_NAME = "seq.bounds"
_COUNT_BATCH = 1024


class Stub(NamedTuple):
    """What the readable file in a queue's directory says."""

    queue_id: QueueId
    queue_name: QueueName
    durable: bool


def read_stub(disk: Disk, directory: str) -> Stub | None:
    """The stub of a queue's directory; ``None`` if it was never wholly written."""
    path = f"{directory}/{STUB_NAME}"
    if not disk.exists(path):
        return None
    try:
        fields = json.loads(read_whole(disk, path))
        name = QueueName(str(fields["vhost"]), str(fields["queue"]))
        return Stub(QueueId(int(fields["queue_id"])), name, bool(fields["durable"]))
    except (ValueError, KeyError, TypeError):
        return None


class SharedStores(NamedTuple):
    """The two shared stores of a vhost."""

    persistent: MessageStore
    transient: MessageStore


class GivenUp(NamedTuple):
    """References that a copy that was not closed cleanly had beside those that its files still hold."""

    #: To be given back piece by piece before the files are opened again.
    pieces: Releases
    indexes: Sequence[QueueIndex]

    def moved_to(self, directory: str) -> None:
        """The files are there from now on."""
        for index in self.indexes:
            index.moved_to(directory)


#: Hears what a copy that was not closed cleanly leaves: which references its files still hold (``None``: all), and the
#: others.
OnGivenUp = Callable[[HeldReferences | None, GivenUp], None]


class QueueStorage:
    """Storage of one queue. Nothing may be asked of it before `opening` is at its end."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        stub: Stub,
        *,
        group_commit: GroupCommit,
        stores: SharedStores,
        deletions: Deletions,
        config: StoreConfig,
        on_unflushed: Callable[[], None],
        on_closed: Callable[[], None],
        on_given_up: OnGivenUp,
        version: int | None = None,
        short_files: Sequence[ShortFile] = (),
        held: HeldReferences | None = None,
        unfound: Collection[MsgId] = (),
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        """``version`` of the index; ``None``: as configured. ``short_files`` of this queue have lost durable bytes.
        ``held``: references that a copy that was given up in this life left; ``None``: every entry in the files has its
        own, but for those of messages ``unfound`` when they were counted.
        """
        self._disk = disk
        self._directory = directory
        self._stub = stub
        self.is_durable = stub.durable
        self.group_commit = group_commit
        self.config = config
        #: Called when the first write of a turn is collected.
        self.on_unflushed = on_unflushed
        #: Called when nothing will be written any more.
        self._on_closed = on_closed
        self._on_given_up = on_given_up
        self._is_given_up = False
        self._progress = progress
        self._stores = stores
        self._deletions = deletions
        #: Version of the index that is wanted.
        self._wanted_version = version or config.queue_version
        self.index: QueueIndex = self._make_index(self._wanted_version)
        #: What a clean stop left; ``None`` for a new queue and after a crash.
        self.terms: Terms | None = None
        #: ``None`` for a new queue.
        self.report: RecoveryReport | None = None
        #: Highest id of each origin among what was recovered.
        self.origins: Mapping[OriginId, MsgId] = {}
        #: No position at or above it was ever used.
        self.first_free_seq_id = 0
        self._bounds: SeqBounds | None = None
        self._has_directory = False
        #: Generation of the group commit with which the directory's name and the stub become durable.
        self._named_generation = 0
        self._short_files = short_files
        self._held = held
        self._unfound = unfound
        #: Of the indexes in the files, those that were recovered.
        self._recovered: list[QueueIndex] = []
        #: References of what the files name may have been given back.
        self._has_given_back = False
        #: Generation of the group commit with which all that the opening found is durable.
        self.found_generation = 0

    def opening(self) -> Steps[None]:
        """Create what is needed, or recover what is there. Raises `StorageError` if the disk refuses. If it comes to
        nothing everything is closed, and ``on_given_up`` hears of it."""
        try:
            yield from self._opening()
        except BaseException:
            self._give_up(self._recovered if self._has_given_back else [])
            if not self._has_given_back:
                for index in self._recovered:
                    index.abandon()
            raise
        if self._held is not None:
            # All that was found has its own reference now.
            self._stores.persistent.release_many(self._held.loose)
            self._held = None
        self._recovered.clear()

    def was_adopted(self) -> None:
        """Whoever uses this has what it needs of `terms` and `origins`, which may be as many as there are messages."""
        self.terms, self.origins = None, {}

    def _opening(self) -> Steps[None]:
        is_new = not self._disk.exists(self._directory)
        if not self.is_durable:
            if not is_new:
                self._deletions.take(self._directory, no_references, is_durable=False)
            return
        self._make_directory()
        bounds = SeqBounds(self._disk, f"{self._directory}/{_BOUNDS_NAME}", self._stub.queue_id, self.group_commit)
        if not is_new:
            yield from self._recover(bounds, self._short_files)
        self._bounds = bounds

    def _make_directory(self) -> None:
        self._disk.mkdir(self._directory)
        if read_stub(self._disk, self._directory) is None:
            self._write_stub()
        self._has_directory = True

    def _write_stub(self) -> None:
        fields = {
            "vhost": self._stub.queue_name.vhost,
            "queue": self._stub.queue_name.name,
            "durable": self._stub.durable,
            "queue_id": self._stub.queue_id,
        }
        file = self._disk.create(f"{self._directory}/{STUB_NAME}")
        try:
            file.pwrite(json.dumps(fields, indent=2).encode() + b"\n", 0)
        except StorageError:
            file.abandon()
            with suppress(StorageError):
                self._disk.unlink(file.path)
            raise
        if not self.is_durable:
            # Nobody syncs it, and the descriptor would wait for that.
            file.abandon()
            return
        parent, _, _ = self._directory.rpartition("/")
        self._named_generation = self.group_commit.open_generation
        for dirty in (file, self._disk.directory(self._directory), self._disk.directory(parent)):
            self.group_commit.mark_dirty(dirty)
        file.close()

    def _make_index(self, version: int) -> QueueIndexV1 | QueueIndexV2:
        kind = QueueIndexV1 if version == 1 else QueueIndexV2
        return kind(
            self._disk,
            self._directory,
            self._stub.queue_id,
            is_durable=self.is_durable,
            group_commit=self.group_commit,
            persistent_store=self._stores.persistent,
            transient_store=self._stores.transient,
            config=self.config,
        )

    def _recover(self, bounds: SeqBounds, short_files: Sequence[ShortFile]) -> Steps[None]:
        terms_path = f"{self._directory}/{TERMS_NAME}"
        # The terms speak of everything that was there: if something is known to be lost, what is left is scanned.
        is_damaged = bool(short_files or self._stores.persistent.recovery.corrupt)
        terms = None if is_damaged else read_terms(self._disk, terms_path, self._stub.queue_id)
        if self._disk.exists(terms_path):
            # Erased for good before anything changes: a later crash must not look like a clean stop.
            self._disk.unlink(terms_path)
            self._disk.sync_directory(self._directory)
        report = self.report = RecoveryReport(clean=terms is not None)
        for short in short_files:
            report.damaged(str(short))
            report.short_files.add(short.path)
        end_seq_id = yield from self._recover_index(report, terms, bounds)
        if report.clean and terms is not None:
            self.terms = terms
            report.body_bytes = terms.body_bytes
            self.origins = terms.origins
            self.first_free_seq_id = terms.next_seq_id
        else:
            # An earlier process may have died before its group commit: what we now call recovered must be safe.
            yield from self._sync_names()
            self.first_free_seq_id = max(bounds.reserved, end_seq_id)
            self._note_found()

    def _note_found(self) -> None:
        """What the shared store has of this life may be in a generation that is open, or under way. (Of an earlier one
        it was synced when the store was opened, and so were the files here just now.)"""
        commit = self.group_commit
        self.found_generation = commit.open_generation if commit.has_written else commit.open_generation - 1

    def _sync_names(self) -> Steps[None]:
        """Make durable the small files and the names in the queue's directory, and its own."""
        parent, _, _ = self._directory.rpartition("/")
        paths = [f"{self._directory}/{name}" for name in (STUB_NAME, _BOUNDS_NAME)]
        files: list[DiskFile] = []
        try:
            files += map(self._disk.open, filter(self._disk.exists, paths))
            yield sync_job([*files, self._disk.directory(parent), self._disk.directory(self._directory)])
        finally:
            for file in files:
                file.close()

    def _recover_index(self, report: RecoveryReport, terms: Terms | None, bounds: SeqBounds) -> Steps[int]:
        """Open what the files hold, of one version or of both. Returns the end of the positions that were seen."""
        found = versions_on_disk(self._disk, self._directory)
        old_terms, new_terms = split_terms(terms.index_terms) if terms is not None else (None, None)
        if len(found) < 2:
            remove_cursor(self._disk, self._directory)
            version = min(found, default=terms.index_version if terms is not None else self._wanted_version)
            if old_terms is not None and terms is not None and version != terms.index_version:
                new_terms = old_terms
            self.index = index = self._make_index(version)
            return (yield from self._recover_version(index, report, new_terms))
        source = conversion_source(self._disk, self._directory) or 3 - self._wanted_version
        old, new = self._make_index(source), self._make_index(3 - source)
        if terms is not None and terms.index_version == source:
            # Nothing was copied yet, and now the other way is wanted.
            old_terms, new_terms = new_terms, old_terms
        end = yield from self._recover_version(old, report, old_terms)
        end = max(end, (yield from self._recover_version(new, report, new_terms)))
        next_seq_id = max(end, bounds.reserved, terms.next_seq_id if terms is not None else 0)
        converting = self._begin_conversion(old, new, next_seq_id)
        # What is in both was counted twice.
        report.messages = converting.count_live(0, next_seq_id)
        if not report.clean:
            report.body_bytes = yield from self._body_bytes(converting, next_seq_id)
        return end

    def _body_bytes(self, index: QueueIndex, end: int) -> Steps[int]:
        """Sum over all entries, a batch at a time; only for what a crash left of a conversion."""
        total, first = 0, 0
        while entries := index.entries(first, end, _COUNT_BATCH):
            total += sum([entry.body_bytes for _, entry in entries])
            first = entries[-1][0] + 1
            yield None
        return total

    def _recover_version(
        self, index: QueueIndexV1 | QueueIndexV2, report: RecoveryReport, terms: bytes | None
    ) -> Steps[int]:
        is_damaged = bool(self._stores.persistent.recovery.corrupt)
        if isinstance(index, QueueIndexV1):
            recovered = yield from recover_v1(
                index,
                report,
                terms,
                store_is_damaged=is_damaged,
                held=self._held,
                unfound=self._unfound,
                progress=self._progress,
            )
        else:
            recovered = yield from recover_v2(
                index,
                report,
                terms,
                store_is_damaged=is_damaged,
                held=self._held,
                unfound=self._unfound,
                progress=self._progress,
            )
        self._recovered.append(index)
        if self._held is not None and not report.clean:
            # Of what could not be read, and of writes that failed half way, nobody knows.
            self._stores.persistent.count_anew()
        merged = dict(self.origins)
        for origin, msg_id in recovered.origins.items():
            merged[origin] = max(msg_id, merged.get(origin, msg_id))
        self.origins = merged
        return recovered.end_seq_id

    # -- conversion

    def want_version(self, version: int | None) -> None:
        """The index should be of this version (``None``: as configured); `convert` does it, step by step."""
        self._wanted_version = version or self.config.queue_version

    @property
    def wants_conversion(self) -> bool:
        """True if `convert` has something to do."""
        index = self.index
        is_under_way = isinstance(index, ConvertingIndex) and not index.is_finished
        return is_under_way or index.version != self._wanted_version

    def convert(self, next_seq_id: int) -> None:
        """One bounded step, when nothing is collected; `index` may be replaced by it. Raises `StorageError`."""
        index = self.index
        if isinstance(index, ConvertingIndex) and not index.is_finished:
            index.step(CONVERSION_STEP_ENTRIES)
        elif index.version != self._wanted_version:
            new = self._make_index(self._wanted_version)
            if self._has_directory:
                self._begin_conversion(index, new, next_seq_id)
            else:
                # Not durable, and nothing was ever paged out.
                self.index = new

    def _begin_conversion(self, old: QueueIndex, new: QueueIndex, next_seq_id: int) -> ConvertingIndex:
        self._has_given_back = True
        converting = ConvertingIndex(
            old,
            new,
            disk=self._disk,
            directory=self._directory,
            queue_id=self._stub.queue_id,
            group_commit=self.group_commit,
            next_seq_id=next_seq_id,
        )
        self.index = converting
        return converting

    # -- writing

    def has_unflushed(self, next_seq_id: int) -> bool:
        """True if `flush` would write something."""
        return self.index.has_unflushed or next_seq_id >= self.renew_at

    def flush(self, next_seq_id: int) -> int:
        """Write what the index collected. Returns how many persistent messages were written. Raises `StorageError`."""
        if self._bounds is not None:
            if next_seq_id >= self._bounds.renew_at:
                self._bounds.renew(next_seq_id)
        elif not self._has_directory and self.index.has_unflushed:
            self._make_directory()
        return self.index.flush(next_seq_id)

    @property
    def renew_at(self) -> int | float:
        """When the next position reaches this, `flush` is due even if nothing is collected."""
        return self._bounds.renew_at if self._bounds is not None else float("inf")

    def terminate(
        self,
        next_seq_id: int,
        next_deliver_seq_id: int,
        persistent_body_bytes: int,
        origins: Mapping[OriginId, MsgId],
        delivered_epoch: int,
    ) -> None:
        """Write, sync and close everything, and leave the terms for the next start. Raises `StorageError`."""
        if self._bounds is None:
            self.delete()
            return
        self._on_closed()
        # The next start takes the bound for durable, and the group commit may never come to it.
        if next_seq_id >= self._bounds.renew_at:
            self._bounds.renew(next_seq_id)
        self._bounds.sync()
        if self._named_generation > self.group_commit.durable_generation:
            # Nor does a start that believes the terms sync the names that they stand below.
            run_through(self._sync_names())
        index = self.index
        index.drop_transient()
        index.close(next_seq_id)
        # The terms will be believed although the shared store may not come to its own clean end: whatever they call
        # live must be there.
        self._stores.persistent.sync()
        failure = self.group_commit.failure
        if failure is not None:
            # Of a round that ran meanwhile, perhaps in a file that was synced here after it.
            raise StorageError(f"{self._directory} cannot be closed cleanly: {failure}")
        terms = Terms(
            next_seq_id,
            next_deliver_seq_id,
            persistent_body_bytes,
            origins,
            index.version,
            index.terms(),
            delivered_epoch,
        )
        terms.write(self._disk, f"{self._directory}/{TERMS_NAME}", self._stub.queue_id)

    def abandon(self) -> None:
        """Close after a failure: the next opening recovers what is on disk."""
        self._on_closed()
        if self._is_given_up:
            return
        if self.is_durable:
            self._give_up([self.index])
            return
        # Nobody recovers it.
        with suppress(StorageError):
            self.delete()

    def _give_up(self, indexes: Sequence[QueueIndex]) -> None:
        """Nothing is asked of these indexes any more; without one, no reference was given back that the files name."""
        if self._is_given_up:
            return
        self._is_given_up = True
        held = self._held
        pieces: list[Releases] = []
        if indexes:
            entries = {1: self.config.v1_segment_entries, 2: self.config.v2_segment_entries}
            held = HeldReferences(entries)
            held.loose += self._held.loose if self._held is not None else ()
            pieces = [index.give_up(held) for index in indexes]
        self._on_given_up(held, GivenUp(chain(*pieces), indexes))

    def delete(self) -> None:
        """Have everything removed and all references given back, in steps (`node.store.deletions`).

        Raises `StorageError`: then the files stay as they are.
        """
        self._on_closed()
        if not self._has_directory:
            self.index.abandon()
            return
        try:
            self._deletions.take(self._directory, self.index.delete, is_durable=self.is_durable)
        except StorageError:
            self._give_up([self.index])
            raise
        self._is_given_up = True

"""A disk in memory that behaves as badly as real ones do, reproducibly.

The model. A file has *durable* bytes (what survives) and *pending* operations (writes and truncations since the last
sync); the owner sees both, the platter only the first. A directory likewise has durable names and pending name
changes. `SimulatedFile.sync` moves a file's pending operations into its durable bytes; `sync_directory` does it for
names. A file whose name is not durable is lost with everything in it, synced or not.

A renamed directory takes everything below it along. The new name is durable when both parents were synced since; until
then a crash may bring back the old one, with all that was below.

A crash (`crash`) throws the pending operations away, in one of three styles:

- ``DROP``: none of them survives;
- ``SUBSET``: each pending write survives or not, independently (the kernel writes pages back in any order); of name
  changes a prefix survives per directory, of renamed directories one over all (journaling file systems keep their
  order);
- ``TEAR``: as ``SUBSET``, and the last surviving write of every file is cut at a random byte.

Every handle from before the crash is dead afterwards. A failed fsync keeps what real kernels keep: the owner still
reads the bytes, until the file is reread, but they will never reach the platter.

A full disk. Space is taken byte by byte, where something is written for the first time: what is written over costs
nothing, and a file that was extended has a hole there that costs when it is filled. A write for which there is no room
puts down a prefix and raises: as long a one as there is room for, or what `prefix_of` makes of it. By how much the file
has grown is cut off again, as in `node.store.disk.disk`.

Descriptors (`node.store.disk.simulated_descriptors`) are counted as the system does: there can be a limit, and a file
that is dropped without being closed is found out.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from node.errors import DiskFullError, StorageError
from node.store.disk.disk import DirectorySync, DiskFile
from node.store.disk.simulated_descriptors import Descriptors
from node.store.disk.simulated_inode import Inode, apply
from node.store.disk.simulated_names import Directory, Move, apply_names, at_or_below, split_path


class CrashStyle(enum.Enum):
    """What happens to unsynced operations in a crash; see the module text."""

    DROP = "drop"
    SUBSET = "subset"
    TEAR = "tear"


class SimulatedCrashError(Exception):
    """The machine died in the middle of an operation (`SimulatedDisk.crash_after`). Not a `StorageError`: nobody may
    catch it but the test."""


def _all(size: int) -> int:
    return size


class SimulatedCut:
    """`Cut` that happens at once, the earliest moment, or when it is finished, the latest."""

    __slots__ = ("_error", "_file", "_has_happened", "_size")

    def __init__(self, file: SimulatedFile, size: int, *, is_early: bool) -> None:
        self._file = file
        self._size = size
        self._has_happened = False
        self._error: StorageError | None = None
        if is_early:
            self._happen()

    def _happen(self) -> None:
        self._has_happened = True
        try:
            self._file.cut(self._size)
        except StorageError as error:
            self._error = error

    @property
    def is_done(self) -> bool:
        return True

    def finish(self) -> None:
        if not self._has_happened:
            self._happen()
        if self._error is not None:
            raise self._error


class SimulatedFile:
    """`DiskFile` of a `SimulatedDisk`."""

    __slots__ = (
        "_closed",
        "_descriptor",
        "_disk",
        "_inode",
        "_is_abandoned",
        "_is_unsynced",
        "_life",
        "_path",
        "_size",
    )

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode, *, is_new: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.life
        self._closed = self._is_abandoned = False
        #: As far as this handle knows. Without, a closed one has given its descriptor up, like that of the system.
        self._is_unsynced = is_new
        self._size = len(inode.content)
        self._descriptor = disk.descriptors.take(path, inode)

    def __del__(self) -> None:
        self._disk.descriptors.dropped_one(self._descriptor)

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    @property
    def has_unsynced(self) -> bool:
        return self._is_unsynced

    def append(self, data: bytes | bytearray | memoryview) -> int:
        offset = self.size
        self.pwrite(data, offset)
        return offset

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._require_open()
        data = bytes(data)
        try:
            self._disk.before_write(self._path, self._inode.cost(offset, len(data)))
        except SimulatedCrashError:
            # The write was on its way: whether it happened is for the crash to decide.
            self._record(offset, data)
            raise
        except DiskFullError:
            self._record_refused(offset, data)
            raise
        self._record(offset, data)
        self._size = max(self._size, offset + len(data))

    def _record_refused(self, offset: int, data: bytes) -> None:
        """What is left of a write for which there is no room: nothing of what the file had grown by."""
        room = self._inode.prefix(offset, len(data), max(0, self._disk.free_bytes(self._path)))
        written = self._disk.prefix_of(min(room, len(data) - 1))
        prefix = data[: max(0, min(written, self._size - offset))]
        if prefix:
            self._record(offset, prefix)
            self._inode.take_block(offset + len(prefix))

    def _record(self, offset: int, data: bytes | None) -> None:
        self._is_unsynced = True
        self._inode.pending.append((offset, data))
        self._inode.apply((offset, data))

    def pread(self, size: int, offset: int) -> bytes:
        self._require_open()
        self._disk.before_read(self._path)
        return bytes(self._inode.content[offset : offset + size])

    def will_read(self, size: int, offset: int) -> None:
        """Everything is in memory."""

    def truncate(self, size: int) -> None:
        self._require_open()
        self.cut(size)

    def begin_cut(self, size: int) -> SimulatedCut:
        self._require_open()
        self._disk.cuts += 1
        every = self._disk.early_cut_every
        return SimulatedCut(self, size, is_early=every > 0 and self._disk.cuts % every == 0)

    def cut(self, size: int) -> None:
        """The handle may have been closed since it was asked for: then it owes nothing for this."""
        is_unsynced = self._is_unsynced or not self._closed
        self._disk.before_write(self._path, 0)
        self._record(size, None)
        self._is_unsynced = is_unsynced
        self._size = size

    def sync(self) -> None:
        if self._life != self._disk.life or self._is_abandoned or (self._closed and not self._is_unsynced):
            return
        # As with the system: while the sync is under way the handle owes nothing, and nothing is durable yet.
        self._is_unsynced = False
        try:
            self._disk.before_sync(self._path, self._inode.pending.clear)
        except StorageError as error:
            self._is_unsynced = self._disk.has_lost_writes = True
            self._disk.on_sync_failed(error)
            raise
        for operation in self._inode.pending:
            apply(self._inode.durable, operation)
        self._inode.pending.clear()
        if self._closed:
            self._disk.descriptors.give_back(self._descriptor)

    def close(self) -> None:
        self._closed = True
        if not self._is_unsynced:
            self._disk.descriptors.give_back(self._descriptor)

    def abandon(self) -> None:
        self._closed = self._is_abandoned = True
        self._disk.descriptors.give_back(self._descriptor)

    def _require_open(self) -> None:
        assert not self._closed, f"{self._path} is closed"
        assert self._life == self._disk.life, f"{self._path} was opened before the crash"


@dataclass(frozen=True, slots=True)
class _SimulatedDirectorySync:
    disk: SimulatedDisk
    path: str

    def sync(self) -> None:
        self.disk.sync_directory(self.path)


class SimulatedDisk:
    """`Disk` in memory. Directories themselves (`mkdir`) are durable at once; the names in them are not.

    Faults: `fail_writes`, `fail_syncs` and `fail_reads` take a substring of the paths that shall fail (``None``: none
    does); `capacity_bytes` bounds the space that all files take, and `full_for` refuses it to some; `open_limit` bounds
    the descriptors; `crash_after` counts down operations that change something and raises `SimulatedCrashError` in the
    one that reaches zero.
    """

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        #: There is no more room in files with this in their paths.
        self.full_for: str | None = None
        #: What a refused write puts down, of the longest prefix it could; a test may choose less.
        self.prefix_of: Callable[[int], int] = _all
        #: Operations so far that changed something (writes, syncs, names).
        self.operations = 0
        #: Reads so far.
        self.reads = 0
        #: Number of crashes; handles of an earlier life are dead.
        self.life = 0
        #: Of files of this life that are neither abandoned nor closed with all synced.
        self.descriptors = Descriptors()
        #: Begun so far; every one of so many happens early (0: none).
        self.cuts = 0
        self.early_cut_every = 2
        self.fail_writes: str | None = None
        self.fail_syncs: str | None = None
        #: The next sync that fails by that is the last one.
        self.fails_one_sync = False
        self.fail_reads: str | None = None
        self.crash_after: int | None = None
        #: Every fsync fails from this number of operations on.
        self.fail_sync_after: int | None = None
        #: A sync has failed, and what it should have made durable is still shown to whoever reads.
        self.has_lost_writes = False
        #: See `node.store.disk.distrust.OwnDisk`.
        self.on_sync_failed: Callable[[StorageError], None] = lambda _error: None
        #: Called before each operation that changes something: a test may look at what a crash would leave just then.
        self.on_operation: Callable[[], None] | None = None
        self._directories: dict[str, Directory] = {}
        #: Renamed directories whose new names are not durable, in order.
        self._moves: list[Move] = []
        #: Directories whose names are not durable since they were made, those above before those below.
        self._new: dict[str, None] = {}

    # -- what the files ask before they act

    def before_write(self, path: str, growth_bytes: int) -> None:
        """Raise the fault that is due, if one is."""
        self._count()
        if self.fail_writes is not None and self.fail_writes in path:
            raise StorageError(f"write of {path} failed: injected error (errno 5)")
        if not growth_bytes:
            return
        if growth_bytes > self.free_bytes(path) or (self.full_for is not None and self.full_for in path):
            raise DiskFullError(f"write of {path} failed: No space left on device (errno 28)")

    def before_read(self, path: str) -> None:
        """Raise the fault that is due, if one is."""
        self.reads += 1
        if self.fail_reads is not None and self.fail_reads in path:
            raise StorageError(f"read of {path} failed: injected error (errno 5)")

    def before_sync(self, path: str, lose: Callable[[], None]) -> None:
        """Raise the fault that is due, if one is; ``lose`` forgets the unsynced operations."""
        self._count()
        is_late = self.fail_sync_after is not None and self.operations >= self.fail_sync_after
        if is_late or (self.fail_syncs is not None and self.fail_syncs in path):
            if self.fails_one_sync:
                self.fail_syncs, self.fails_one_sync = None, False
            lose()
            raise StorageError(f"fsync of {path} failed: injected error (errno 5)")

    @property
    def fails_syncs(self) -> bool:
        """Some sync is to fail."""
        return self.fail_syncs is not None or self.fail_sync_after is not None

    def _count(self) -> None:
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation()
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after <= 0:
                raise SimulatedCrashError(f"crash in operation {self.operations}")

    # -- descriptors

    @property
    def open_handles(self) -> int:
        """How many descriptors are taken."""
        return len(self.descriptors)

    @property
    def open_limit(self) -> int | None:
        """So many descriptors there may be; ``None``: as many as anybody wants. Outlives crashes, as a setting does."""
        return self.descriptors.limit

    @open_limit.setter
    def open_limit(self, limit: int | None) -> None:
        self.descriptors.limit = limit

    def open_files(self) -> list[tuple[str, str | None]]:
        """Of each descriptor, the path that was opened and where the file is now; ``None``: it has no name any more."""
        paths = {
            id(inode): f"{path}/{name}"
            for path, directory in self._directories.items()
            for name, inode in directory.names.items()
        }
        return [(path, paths.get(id(inode))) for path, inode in self.descriptors.taken()]

    # -- Disk

    def open(self, path: str) -> DiskFile:
        self.descriptors.require_one("open", path)
        inode = self._inode(path)
        if inode is None:
            raise StorageError(f"open of {path} failed: No such file or directory (errno 2)")
        return SimulatedFile(self, path, inode, is_new=False)

    def reread(self, path: str) -> None:
        inode = self._inode(path)
        if inode is not None:
            self.descriptors.require_one("reading again", path)
            inode.reread()
        for name in self.list(path):
            self.reread(f"{path}/{name}")

    def create(self, path: str) -> DiskFile:
        directory, name = split_path(path)
        if directory not in self._directories:
            raise StorageError(f"open of {path} failed: No such file or directory (errno 2)")
        self.descriptors.require_one("open", path)
        self.before_write(path, 0)
        inode = self._inode(path)
        if inode is None:
            inode = Inode()
            self._directories[directory].change({name: inode})
        else:
            inode.apply((0, None))
            inode.pending.append((0, None))
        return SimulatedFile(self, path, inode, is_new=True)

    def rename(self, old_path: str, new_path: str) -> None:
        old_directory, old_name = split_path(old_path)
        new_directory, new_name = split_path(new_path)
        if old_path in self._directories:
            self._count()
            assert not self.list(new_path), "a directory is moved to where nothing is"
            self._move(old_path, new_path)
            self._moves.append(Move(old_path, new_path, {old_directory, new_directory}))
            return
        assert old_directory == new_directory, "files are renamed inside their directory only"
        inode = self._inode(old_path)
        if inode is None:
            raise StorageError(f"rename of {old_path} failed: No such file or directory (errno 2)")
        self._count()
        self._directories[old_directory].change({old_name: None, new_name: inode})

    def _move(self, old_path: str, new_path: str) -> None:
        for path in at_or_below(self._directories, old_path):
            self._directories[new_path + path[len(old_path) :]] = self._directories.pop(path)
        for path in at_or_below(self._new, old_path):
            del self._new[path]
            self._new[new_path + path[len(old_path) :]] = None

    def unlink(self, path: str) -> None:
        directory, name = split_path(path)
        if path in self._directories:
            raise StorageError(f"unlink of {path} failed: Is a directory (errno 21)")
        if self._inode(path) is not None:
            self._count()
            self._directories[directory].change({name: None})

    def remove_directory(self, path: str) -> None:
        if path in self._directories:
            self.descriptors.require_one("removal", path)
        for directory in at_or_below(self._directories, path):
            for name in list(self._directories[directory].names):
                self.unlink(f"{directory}/{name}")
            self._directories[directory].sync()
            del self._directories[directory]
            self._new.pop(directory, None)
        self._moves = [move for move in self._moves if move.new_path != path]

    def list(self, path: str) -> list[str]:
        if path in self._directories:
            self.descriptors.require_one("listing", path)
        below = {name[len(path) + 1 :].split("/")[0] for name in self._directories if name.startswith(path + "/")}
        directory = self._directories.get(path)
        return sorted(below | set(directory.names if directory else ()))

    def exists(self, path: str) -> bool:
        return path in self._directories or self._inode(path) is not None

    def mkdir(self, path: str) -> None:
        self._count()
        made: list[str] = []
        while path and path not in self._directories:
            self._directories[path] = Directory()
            made.append(path)
            path, _ = split_path(path)
        # Whoever uses the disk has seen to what is at the top of it.
        self._new |= dict.fromkeys(path for path in reversed(made) if split_path(path)[0])

    def sync_directory(self, path: str) -> None:
        directory = self._directories.get(path)
        if directory is not None:
            self.descriptors.require_one("open", path)
            try:
                self.before_sync(path, lambda: None)
            except StorageError as error:
                self.on_sync_failed(error)
                raise
            directory.sync()
            for child in [child for child in self._new if split_path(child)[0] == path]:
                del self._new[child]
            for move in self._moves:
                move.unsynced.discard(path)
            self._moves = [move for move in self._moves if move.unsynced]

    def directory(self, path: str) -> DirectorySync:
        return _SimulatedDirectorySync(self, path)

    def announce_cut(self, path: str, size: int) -> None:
        """See `Disk.announce_cut`: nothing is kept here."""

    def free_bytes(self, path: str) -> int:
        return self.capacity_bytes - self.used_bytes

    @property
    def used_bytes(self) -> int:
        """What all files that have a name take."""
        return sum(
            [inode.taken_bytes for directory in self._directories.values() for inode in directory.names.values()]
        )

    # -- the test's side

    def crash(self, style: CrashStyle, rng: random.Random) -> None:
        """Lose power: keep what is durable, and of the rest what ``style`` leaves. Clears every injected fault."""
        self._begin_life()
        self.fail_writes = self.fail_syncs = self.fail_reads = self.crash_after = self.fail_sync_after = None
        self.full_for = None
        self.has_lost_writes = False
        self._undo_moves(0 if style is CrashStyle.DROP else rng.randint(0, len(self._moves)))
        self._lose_new_directories(style, rng)
        for directory in self._directories.values():
            if style is not CrashStyle.DROP:
                del directory.pending[rng.randint(0, len(directory.pending)) :]
                directory.sync()
            directory.pending.clear()
            directory.names = dict(directory.durable)
            for inode in directory.names.values():
                _lose(inode, style, rng)

    def mkdir_durably(self, path: str) -> None:
        """A directory that was there before the story begins."""
        known = set(self._new)
        self.mkdir(path)
        for new in self._new.keys() - known:
            del self._new[new]

    def lose_handles(self) -> None:
        """The process has died and the machine lives on: its handles are dead, and the system keeps what was written,
        which the next crash may still take away."""
        self._begin_life()
        self.crash_after = None

    def _begin_life(self) -> None:
        self.life += 1
        self.descriptors.lose_all()

    def _undo_moves(self, kept: int) -> None:
        """All but the first ``kept`` never happened."""
        for move in reversed(self._moves[kept:]):
            # What was made in the old place afterwards was not durable either.
            for path in at_or_below(self._directories, move.old_path):
                del self._directories[path]
                self._new.pop(path, None)
            self._move(move.new_path, move.old_path)
        self._moves.clear()

    def _lose_new_directories(self, style: CrashStyle, rng: random.Random) -> None:
        """With everything in them, synced or not: it has no name any more."""
        for path in self._new:
            if path in self._directories and (style is CrashStyle.DROP or rng.random() < 0.5):
                for lost in at_or_below(self._directories, path):
                    del self._directories[lost]
        self._new.clear()

    def twin(self) -> SimulatedDisk:
        """A disk of its own in the same state, without faults: a test tries several ends of one story."""
        other = SimulatedDisk(self.capacity_bytes)
        other.operations, other.life, other.cuts = self.operations, self.life, self.cuts
        other.early_cut_every = self.early_cut_every
        inodes: dict[int, Inode] = {}

        def twins(names: Mapping[str, Inode | None]) -> dict[str, Inode | None]:
            for inode in names.values():
                if inode is not None and id(inode) not in inodes:
                    inodes[id(inode)] = Inode(
                        inode.content[:], inode.durable[:], inode.pending[:], inode.taken[:], inode.taken_bytes
                    )
            return {name: inode and inodes[id(inode)] for name, inode in names.items()}

        for path, directory in self._directories.items():
            made = other._directories[path] = Directory()
            apply_names(made.names, twins(directory.names))
            apply_names(made.durable, twins(directory.durable))
            made.pending = [twins(step) for step in directory.pending]
        other._new = dict(self._new)
        other._moves = [Move(move.old_path, move.new_path, set(move.unsynced)) for move in self._moves]
        return other

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Damage one durable bit (0 to 7) of a byte, as a bad sector does."""
        inode = self._inode(path)
        assert inode is not None, f"there is no {path}"
        inode.content[offset] ^= 1 << bit
        if offset < len(inode.durable):
            inode.durable[offset] ^= 1 << bit

    def snapshot(self) -> dict[str, bytes]:
        """Content of every file, by path."""
        return {
            f"{path}/{name}": bytes(inode.content)
            for path, directory in self._directories.items()
            for name, inode in directory.names.items()
        }

    def durable_snapshot(self) -> dict[str, bytes]:
        """What is left of every file in a crash of style ``DROP``, by path. (Of a moved directory, where it is now.)"""
        return {
            f"{path}/{name}": bytes(inode.durable)
            for path, directory in self._directories.items()
            for name, inode in directory.durable.items()
        }

    def unsynced(self, path: str) -> Sequence[tuple[int, bytes]]:
        """Writes into a file, as (offset, bytes), of which each survives the next crash or not."""
        inode = self._inode(path)
        return [(offset, data) for offset, data in inode.pending if data is not None] if inode is not None else []

    def _inode(self, path: str) -> Inode | None:
        directory, name = split_path(path)
        entry = self._directories.get(directory)
        return entry.names.get(name) if entry else None


def _lose(inode: Inode, style: CrashStyle, rng: random.Random) -> None:
    survivors: list[tuple[int, bytes | None]] = []
    if style is not CrashStyle.DROP:
        survivors = [operation for operation in inode.pending if rng.random() < 0.5]
    if style is CrashStyle.TEAR and survivors and survivors[-1][1]:
        offset, data = survivors[-1]
        assert data is not None, "only writes are torn"
        survivors[-1] = (offset, data[: rng.randint(0, len(data))])
    for operation in survivors:
        apply(inode.durable, operation)
    inode.forget_unsynced()

"""Directories of deleted queues on their way out: moved aside at once, removed in steps.

A queue of ten million messages has five thousand files, and unlinking them at once would stop the loop for a second.
So `take` only renames: ``queues/7`` becomes ``deleting/7.1``, which is atomic and costs no more than listing the names
(`node.store.disk.guarded` forgets them later). The rest is done by `step`, some times a second:

1. wait until the new name is durable (the group commit syncs both parents);
2. give back the references to the shared stores, piece by piece: each piece reads the msg_ids of some entries;
3. unlink the files, some at a time, and each directory behind what was in it.

The second number of a name makes it unique: ids of queues are never used for another queue, but a mirror that leaves
and comes back, or a queue that is not durable and pages out again after a start, has a directory ``queues/7`` anew.

**Crash.** Nothing below ``deleting/`` refers to anything: a start counts the references of ``queues/`` only. So it does
not matter what was given back before the crash, and the directories that are found are removed in steps like others. If
the new name was not durable, the queue is back, whole, as if it had never been deleted: that is what step 1 is for. Its
owner deletes it again.

**Clean stop.** The tables that the shared store leaves count what nobody has given back. So `close` gives back all that
is left, and makes the new names durable first: a queue that came back would miss what it had given back. The files stay
for the next start.

**Errors.** A directory that cannot be removed is tried again every ten seconds, and by the next start; an entry that
cannot be read keeps its reference until the store counts anew. Want of descriptors is waited for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from node.errors import OpenFilesError, StorageError
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.shared.port import Releases

log = logging.getLogger(__name__)

#: Names of the directories of a vhost where its queues are, and where the deleted ones are.
QUEUES_NAME = "queues"
DELETING_NAME = "deleting"
#: Of the directory of a vhost that is deleted as a whole (`node.queues.vhost_removals`).
DELETING_SUFFIX = ".deleting"
#: Files that one step unlinks, over all directories: one of some megabytes takes up to a quarter of a millisecond. With
#: ten steps a second, a queue of ten million messages is gone after half a minute.
FILES_PER_STEP = 16
#: Steps after which what could not be removed is tried again: about ten seconds.
STEPS_TO_NEXT_TRY = 100

#: Gives back the references of the files in a directory (its argument), `node.store.shared.port.REFERENCES_PER_STEP`
#: per item at most.
Release = Callable[[str], Releases]


def no_references(_directory: str) -> Releases:
    """The `Release` of a directory whose references nobody counts."""
    return iter(())


@dataclass(slots=True)
class _Deletion:
    """One directory."""

    directory: str
    #: Of the group commit: when it is durable, the directory's name is.
    generation: int
    references: Releases
    #: Removes one thing at a time; ``None`` until all references were given back.
    removal: Iterator[None] | None = None
    #: The log has it that it could not be removed.
    is_told: bool = False


class Removals:
    """Directories that were moved aside, and are removed when their new names are durable. See the module text."""

    def __init__(self, disk: Disk, group_commit: GroupCommit, parents: Sequence[str], owner: str) -> None:
        """``parents``: directories that must be synced to make a move durable. ``owner``: what was deleted, for the
        log."""
        self._disk = disk
        self._group_commit = group_commit
        self._parents = parents
        self._owner = owner
        #: In the order in which they were deleted.
        self._waiting: deque[_Deletion] = deque()
        #: Those that could not be removed, and how many steps there are until they wait again.
        self._refused: list[_Deletion] = []
        self._steps_to_next_try = 0
        #: References of what is deleted could not be read, and are not given back.
        self.on_unreleased: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        """Directories that are not gone yet, but for those that could not be removed."""
        return len(self._waiting)

    def _add(self, place: str, release: Release, *, is_durable: bool) -> None:
        generation = 0
        if is_durable:
            generation = self._group_commit.open_generation
            for parent in self._parents:
                self._group_commit.mark_dirty(self._disk.directory(parent))
        self._waiting.append(_Deletion(place, generation, release(place)))

    def step(self) -> None:
        """One bounded step. Never raises, never waits."""
        budget = FILES_PER_STEP
        waiting = self._waiting
        self._steps_to_next_try -= 1
        if self._refused and self._steps_to_next_try <= 0:
            waiting += self._refused
            self._refused.clear()
        while budget > 0 and waiting and self._is_durable(waiting[0]):
            deletion = waiting[0]
            try:
                budget -= self._advance(deletion)
            except OpenFilesError:
                # A listing finds no descriptor: it is begun again with the next step.
                deletion.removal = None
                return
            except StorageError as error:
                self._refuse(waiting.popleft(), error)
                budget -= 1

    def _refuse(self, deletion: _Deletion, error: StorageError) -> None:
        if not self._refused:
            self._steps_to_next_try = STEPS_TO_NEXT_TRY
        deletion.removal = None
        self._refused.append(deletion)
        if not deletion.is_told:
            deletion.is_told = True
            text = "%s of a deleted %s cannot be removed, which is tried again every ten seconds: %s"
            log.warning(text, deletion.directory, self._owner, error)

    @property
    def _directories(self) -> list[str]:
        """All that are not gone yet."""
        return [deletion.directory for deletion in (*self._waiting, *self._refused)]

    def _is_durable(self, deletion: _Deletion) -> bool:
        return deletion.generation <= self._group_commit.durable_generation

    def _advance(self, deletion: _Deletion) -> int:
        """Do the next thing. Returns what it cost, in files."""
        if deletion.removal is None:
            try:
                for _ in deletion.references:
                    return FILES_PER_STEP
            except Exception as error:
                # Nor after a mistake: what gave them back is at its end.
                self._unreleased(deletion, error)
            deletion.removal = remove_below(self._disk, deletion.directory)
        for _ in deletion.removal:
            return 1
        self._disk.remove_directory(deletion.directory)
        self._waiting.popleft()
        return 1

    def _unreleased(self, deletion: _Deletion, error: Exception) -> None:
        mistake = None if isinstance(error, StorageError) else error
        text = "%s of a deleted queue: some references are not given back: %s"
        log.warning(text, deletion.directory, repr(error) if mistake else error, exc_info=mistake)
        self.on_unreleased()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        directories = self._directories
        assert len(set(directories)) == len(directories), "a directory is deleted once"
        for directory in directories:
            assert self._disk.exists(directory), f"{directory} is there until it was removed"


class Deletions(Removals):
    """Those of the queues of one vhost."""

    def __init__(self, disk: Disk, vhost_directory: str, group_commit: GroupCommit) -> None:
        """What earlier lives left is removed as well. Raises `StorageError`."""
        self._directory = f"{vhost_directory}/{DELETING_NAME}"
        super().__init__(disk, group_commit, (f"{vhost_directory}/{QUEUES_NAME}", self._directory), "queue")
        disk.mkdir(self._directory)
        names = disk.list(self._directory)
        numbers = [name.rpartition(".")[2] for name in names]
        #: Second number of the next name.
        self._next_number = 1 + max([int(number) for number in numbers if number.isdigit()], default=0)
        for name in names:
            # The process that moved it may have died before the name was durable.
            self._add(f"{self._directory}/{name}", no_references, is_durable=True)

    def take(self, directory: str, release: Release, *, is_durable: bool) -> None:
        """Delete a queue's directory. ``release`` is called at once, with the place where the files are then.

        ``is_durable``: of the queue; nobody misses one that is not after a crash, so nothing waits for its name. Raises
        `StorageError`: then nothing has happened.
        """
        place = f"{self._directory}/{directory.rpartition('/')[2]}.{self._next_number}"
        self._disk.rename(directory, place)
        self._next_number += 1
        self._add(place, release, is_durable=is_durable)

    def close(self) -> None:
        """Give back all references that are left; the directories stay. Raises `StorageError`."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._refused.clear()
        if self._group_commit.failure is not None:
            # The stores leave no tables then.
            return
        if any(not self._is_durable(deletion) for deletion in waiting):
            for parent in self._parents:
                self._disk.sync_directory(parent)
        for deletion in waiting:
            # What was never durable refers to the transient store only, which leaves no tables.
            try:
                for _ in deletion.references if deletion.generation else ():
                    pass
            except Exception as error:
                self._unreleased(deletion, error)


def files_below(disk: Disk, directory: str) -> list[str]:
    """Paths of all files."""
    found: list[str] = []
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        found += files_below(disk, path) if _is_of_directory(name) else [path]
    return found


def remove_below(disk: Disk, directory: str) -> Iterator[None]:
    """Remove what is below a directory: a file, or a directory that is empty by then, with each step. No step asks for
    the names of more than one directory. Raises `StorageError`."""
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if _is_of_directory(name):
            yield from remove_below(disk, path)
            disk.remove_directory(path)
        else:
            disk.unlink(path)
        yield


def _is_of_directory(name: str) -> bool:
    """The names of Warren's files have a suffix with letters; those of directories have none, or a number."""
    suffix = name.rpartition(".")[2]
    return suffix == name or suffix.isdigit()

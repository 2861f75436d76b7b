"""Directories of vhosts that no longer exist, on their way out: moved aside at once, removed in steps.

A vhost may hold thousands of files when a node learns that it was deleted: it was away, and its queues are still there.
So `take` only renames its directory, to ``vhosts/<hash>.N.deleting``: a vhost of the same name may be made anew at
once. `step` waits until the new name is durable, and unlinks some files at a time.

**Crash.** A directory that is found under such a name is removed by the next `take_unknown`; one whose new name was
not durable is unknown still.

**Errors.** What cannot be removed stays until the next start.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from node.errors import StorageError
from node.queues.vhost_store import VHOST_FILE_NAME, VHOSTS_NAME, vhost_directory
from node.store.deletions import DELETING_SUFFIX, FILES_PER_STEP, files_below
from node.store.disk.disk import Disk, read_whole
from node.store.disk.group_commit import GroupCommit

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Removal:
    """One directory."""

    directory: str
    #: Of the group commit: when it is durable, the directory's name is.
    generation: int
    #: What is left to be unlinked; ``None`` until somebody has looked.
    files: deque[str] | None = None


class VhostRemovals:
    """See the module text."""

    def __init__(self, disk: Disk, data_directory: str, group_commit: GroupCommit) -> None:
        self._disk = disk
        self._data_directory = data_directory
        self._directory = f"{data_directory}/{VHOSTS_NAME}"
        self._group_commit = group_commit
        self._waiting: deque[_Removal] = deque()
        self._next_number = 1

    def __len__(self) -> int:
        """Directories that are not gone yet."""
        return len(self._waiting)

    def take_unknown(self, vhosts: Collection[str], in_use: Collection[str]) -> None:
        """Remove what belongs to none of these ``vhosts``, which are all there are; but for the directories that are
        ``in_use``. Raises `StorageError`."""
        kept = {vhost_directory(self._data_directory, vhost) for vhost in vhosts} | set(in_use)
        kept |= {removal.directory for removal in self._waiting}
        for name in self._disk.list(self._directory):
            directory = f"{self._directory}/{name}"
            if directory in kept:
                continue
            if name.endswith(DELETING_SUFFIX):  # an earlier life has moved it
                self._add(directory)
            else:
                self.take(directory)

    def take(self, directory: str) -> None:
        """Remove the directory of a vhost, of which nothing is open. Raises `StorageError`: then nothing happened."""
        log.info("vhost %s no longer exists in the cluster: its files are deleted", self._name_of(directory))
        place = f"{directory}.{self._next_number}{DELETING_SUFFIX}"
        while self._disk.exists(place):
            self._next_number += 1
            place = f"{directory}.{self._next_number}{DELETING_SUFFIX}"
        self._disk.rename(directory, place)
        self._next_number += 1
        self._add(place)

    def _add(self, place: str) -> None:
        self._group_commit.mark_dirty(self._disk.directory(self._directory))
        self._waiting.append(_Removal(place, self._group_commit.open_generation))

    def _name_of(self, directory: str) -> str:
        with suppress(StorageError, ValueError, KeyError, TypeError):
            return str(json.loads(read_whole(self._disk, f"{directory}/{VHOST_FILE_NAME}"))["vhost"])
        return f"in {directory}"

    def step(self) -> None:
        """One bounded step. Never raises, never waits."""
        if not self._waiting or self._waiting[0].generation > self._group_commit.durable_generation:
            return
        removal = self._waiting[0]
        try:
            if removal.files is None:
                removal.files = deque(files_below(self._disk, removal.directory))
                return
            for _ in range(min(FILES_PER_STEP, len(removal.files))):
                self._disk.unlink(removal.files.popleft())
            if removal.files:
                return
            self._disk.remove_directory(removal.directory)
        except StorageError as error:
            log.warning("%s of a deleted vhost stays until the next start: %s", removal.directory, error)
        self._waiting.popleft()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        directories = [removal.directory for removal in self._waiting]
        assert len(set(directories)) == len(directories), "a directory is removed once"
        for removal in self._waiting:
            assert removal.directory.endswith(DELETING_SUFFIX), "what is removed was moved aside"
            assert removal.generation <= self._group_commit.open_generation, "its new name is being made durable"

"""Directories of vhosts that no longer exist, on their way out: moved aside at once, removed in steps.

A vhost may hold thousands of files when a node learns that it was deleted: it was away, and its queues are still there.
So `take` only renames its directory, to ``vhosts/<hash>.N.deleting``: a vhost of the same name may be made anew at
once. The rest goes as with deleted queues (`node.store.deletions`), but for references, which nobody counts any more.

**Crash.** A directory that is found under such a name is removed by the next `take_unknown`; one whose new name was
not durable is unknown still.

**Errors.** What cannot be removed is tried again every ten seconds, and by the next start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from contextlib import suppress

from node.errors import ShortageError, StorageError
from node.queues.vhost_store import VHOST_FILE_NAME, VHOSTS_NAME, vhost_directory
from node.store.deletions import DELETING_SUFFIX, Removals, no_references
from node.store.disk.disk import Disk, read_whole
from node.store.disk.group_commit import GroupCommit

log = logging.getLogger(__name__)


class VhostRemovals(Removals):
    """See the module text."""

    def __init__(self, disk: Disk, data_directory: str, group_commit: GroupCommit) -> None:
        self._data_directory = data_directory
        self._directory = f"{data_directory}/{VHOSTS_NAME}"
        super().__init__(disk, group_commit, (self._directory,), "vhost")
        self._next_number = 1

    def take_unknown(self, vhosts: Collection[str], in_use: Collection[str]) -> None:
        """Remove what belongs to none of these ``vhosts``, which are all there are; but for the directories that are
        ``in_use``. Raises `StorageError` if not all could be looked for or moved, `ShortageError` if it is worth trying
        again."""
        kept = {vhost_directory(self._data_directory, vhost) for vhost in vhosts} | set(in_use)
        kept.update(self._directories)
        refused: StorageError | None = None
        for name in self._disk.list(self._directory):
            directory = f"{self._directory}/{name}"
            if directory in kept:
                continue
            if name.endswith(DELETING_SUFFIX):  # an earlier life has moved it
                self._add(directory, no_references, is_durable=True)
                continue
            try:
                self.take(directory)
            except StorageError as error:
                if not isinstance(refused, ShortageError):
                    refused = error  # it keeps no other
        if refused is not None:
            raise refused

    def take(self, directory: str) -> None:
        """Remove the directory of a vhost, of which nothing is open. Raises `StorageError`: then nothing happened."""
        log.info("vhost %s no longer exists in the cluster: its files are deleted", self._name_of(directory))
        place = f"{directory}.{self._next_number}{DELETING_SUFFIX}"
        while self._disk.exists(place):
            self._next_number += 1
            place = f"{directory}.{self._next_number}{DELETING_SUFFIX}"
        self._disk.rename(directory, place)
        self._next_number += 1
        self._add(place, no_references, is_durable=True)

    def _name_of(self, directory: str) -> str:
        with suppress(StorageError, ValueError, KeyError, TypeError):
            return str(json.loads(read_whole(self._disk, f"{directory}/{VHOST_FILE_NAME}"))["vhost"])
        return f"in {directory}"

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        super().check_invariants()
        for removal in self._waiting:
            assert removal.directory.endswith(DELETING_SUFFIX), "what is removed was moved aside"
            assert removal.generation <= self._group_commit.open_generation, "its new name is being made durable"

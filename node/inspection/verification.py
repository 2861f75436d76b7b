"""Verification of everything below a directory, offline: is each byte what was written, and do the files agree?

Per vhost the queues are read first, one segment in memory at a time; what they refer to in the shared store is kept in
a table of 40 bytes a message (`node.inspection.references`), against which the store's files are then read, by pieces.
Nothing is written anywhere. On the directory of a running node the files change while they are read, and what is found
then means little.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from node.errors import StorageError
from node.inspection.findings import Findings, Kind, Problem
from node.inspection.places import (
    VHOST_FILE_NAME,
    Place,
    Scope,
    VhostFile,
    VhostPlace,
    locate,
    open_queue,
)
from node.inspection.references import References, count_queue
from node.inspection.steps import Progress, Steps
from node.inspection.verify_queue import QueueCheck
from node.inspection.verify_store import BeforeTheStore, verify_store
from node.queues.vhost_store import FORMAT, vhost_directory
from node.store.deletions import QUEUES_NAME
from node.store.disk.disk import Disk, ReadOnlyDisk
from node.store.disk.length_file import LENGTHS_NAME, Lengths, ShortFile, read_lengths, short_files


@dataclass(slots=True)
class Verification:
    """What was looked at, and what was found."""

    place: Place
    findings: Findings
    queues: int = 0
    stores: int = 0
    #: There is no queue of the name that was asked for.
    unknown_queue: bool = False
    #: Messages in the shared store of a queue whose directory was pointed at alone, without a store beside it.
    unchecked_references: int = 0

    @property
    def has_damage(self) -> bool:
        return bool(self.findings.counts[Kind.DAMAGE])


def verify(
    directory: str,
    *,
    queue_name: str | None = None,
    on_problem: Callable[[Problem], None] = lambda _problem: None,
    on_progress: Progress = lambda _what, _done, _total: None,
) -> Verification:
    """Check what is below ``directory``; ``queue_name`` limits it to the queues of this name and what they refer to.

    Raises `NotStorageError` for another directory, `StorageError` if it cannot be listed.
    """
    disk = ReadOnlyDisk()
    place = locate(disk, directory)
    result = Verification(place, Findings(on_problem))
    total = sum(len(vhost.queues) + 1 for vhost in place.vhosts)
    steps = Steps(total, on_progress)
    for vhost in place.vhosts:
        _VhostCheck(disk, vhost, place.scope, queue_name, result, steps).run()
    result.unknown_queue = queue_name is not None and not result.queues
    return result


class _VhostCheck:
    """One vhost, or a part of it."""

    def __init__(
        self,
        disk: Disk,
        vhost: VhostPlace,
        scope: Scope,
        queue_name: str | None,
        result: Verification,
        steps: Steps,
    ) -> None:
        self._disk = disk
        self._vhost = vhost
        self._scope = scope
        self._queue_name = queue_name
        self._result = result
        self._steps = steps
        self._references = References()
        #: Directories of the queues that were looked at themselves.
        self._checked: set[str] = set()
        #: Every queue left the file that says so.
        self._stopped_cleanly = True
        #: Directories of queues with terms that can be read, and no file that is too short.
        self._with_terms: set[str] = set()
        self._noted: Lengths
        #: Files that are shorter than noted, wherever in the vhost.
        self._short_files: Collection[ShortFile] = ()

    def run(self) -> None:
        vhost, findings = self._vhost, self._result.findings
        self._noted = read_lengths(self._disk, vhost.directory)
        self._short_files = tuple(short_files(self._disk, self._noted.lengths))
        if self._scope in (Scope.NODE, Scope.VHOST):
            _check_vhost_file(self._disk, vhost, self._scope, findings)
        for directory in vhost.queues:
            self._steps.begin(directory)
            try:
                self._queue(directory)
            except StorageError as error:
                if vhost.shows_queues:
                    findings.damage(directory, None, str(error), "the queue does not start")
        self._lengths()
        self._store()

    def _store(self) -> None:
        vhost, findings = self._vhost, self._result.findings
        self._steps.begin(vhost.persistent)
        is_all = self._scope is not Scope.QUEUE and self._queue_name is None
        if self._disk.exists(vhost.persistent):
            if is_all or len(self._references):
                if self._scope is Scope.QUEUE:
                    self._stopped_cleanly = self._have_all_stopped()
                verify_store(
                    self._disk,
                    vhost.persistent,
                    self._references,
                    self._before_the_store(),
                    findings,
                    knows_all_references=is_all,
                )
                self._result.stores += 1
        elif self._scope is Scope.QUEUE:
            self._result.unchecked_references = len(self._references)
        elif len(self._references):
            what = f"is missing: {len(self._references)} messages should be there"
            consequence = "dropped at the next start; a queue that stopped cleanly fails when it comes to one"
            findings.damage(vhost.persistent, None, what, consequence)

    def _before_the_store(self) -> BeforeTheStore:
        """What the next start knows by then: see `node.queues.vhost_store`."""
        queues = f"{self._vhost.directory}/{QUEUES_NAME}/"
        has_short_queue = any(short.path.startswith(queues) for short in self._short_files)
        return BeforeTheStore(
            reads_tables=self._stopped_cleanly and not has_short_queue,
            with_terms=self._with_terms,
            noted_bytes=self._noted.lengths,
            short_files={short.path for short in self._short_files},
        )

    def _lengths(self) -> None:
        """Files, in the directories that were asked for, that lost durable bytes at their end."""
        asked = self._checked | ({self._vhost.persistent} if self._vhost.shows_stores else set())
        findings, directory = self._result.findings, self._vhost.directory
        if self._scope in (Scope.NODE, Scope.VHOST):
            path, consequence = f"{directory}/{LENGTHS_NAME}", "a file that was cut may not be recognised"
            for offset, problem in self._noted.problems:
                findings.unfinished(self._stopped_cleanly, path, offset, problem, consequence)
        for short in self._short_files:
            if short.path.rpartition("/")[0] not in asked:
                continue
            consequence = "what stood there is lost; the next start reports it and scans the rest"
            findings.damage(short.path, short.found_bytes, short.problem, consequence)

    def _queue(self, directory: str) -> None:
        file = self._vhost.file
        queue = open_queue(self._disk, directory, file)
        self._stopped_cleanly &= queue.has_terms_file
        is_short = any(short.path.startswith(directory + "/") for short in self._short_files)
        if queue.terms is not None and not is_short:
            self._with_terms.add(directory)
        name = queue.name
        if self._queue_name is not None and (name is None or name.name != self._queue_name):
            return
        if self._vhost.shows_queues:
            self._result.queues += 1
            self._checked.add(directory)
            QueueCheck(queue, file, self._references, self._result.findings).run()
        else:
            count_queue(queue, self._references)

    def _have_all_stopped(self) -> bool:
        """Of a single queue: whether its neighbours stopped cleanly, too."""
        siblings = self._vhost.queues[0].rpartition("/")[0]
        names = [name for name in self._disk.list(siblings) if name.isdigit()]
        return all(open_queue(self._disk, f"{siblings}/{name}", self._vhost.file).has_terms_file for name in names)


def _entries_found(disk: Disk, vhost: VhostPlace) -> int | None:
    """Entries of a segment of version 2, as its files show; ``None`` if there are none. Raises `StorageError`."""
    queues = (open_queue(disk, directory, vhost.file) for directory in vhost.queues)
    return next((queue.v2_segment_entries for queue in queues if queue.v2_numbers), None)


def _check_vhost_file(disk: Disk, vhost: VhostPlace, scope: Scope, findings: Findings) -> None:
    path = f"{vhost.directory}/{VHOST_FILE_NAME}"
    file: VhostFile = vhost.file
    if file.is_missing:
        entries = _entries_found(disk, vhost)
        found = f" ({entries} in version 2, by the length of a file)" if entries else ""
        consequence = (
            "made anew at the next start, with the entries of a segment as configured then; if these are not those of "
            f"before{found}, what the queues hold is taken for damaged, and dropped"
        )
        # A vhost that has just come has its directory, and no queue.
        findings.unfinished(bool(vhost.queues), path, None, file.problem, consequence)
    elif file.problem:
        findings.damage(path, None, file.problem, "the vhost does not start")
    elif file.format != FORMAT:
        what = f"says format {file.format}, this Warren reads {FORMAT}"
        findings.damage(path, None, what, "the vhost does not start")
    elif scope is Scope.NODE and file.name is not None:
        own_name = vhost.directory.rpartition("/")[2]
        if vhost_directory("", file.name).rpartition("/")[2] != own_name:
            what = f"names vhost {file.name!r}, whose directory has another name"
            findings.damage(path, None, what, "the vhost begins empty in its own directory")

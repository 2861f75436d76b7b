"""The local storage of all vhosts of one node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from contextlib import suppress
from itertools import islice

from node.errors import ShortageError, StorageError
from node.ids import QueueId
from node.pieces import Pieces
from node.queues.local_replica import LocalReplica
from node.queues.stored_copies import stored_reach
from node.queues.vhost_removals import VhostRemovals
from node.queues.vhost_store import VHOST_FILE_NAME, VhostStore, vhost_directory
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.disk.length_file import LENGTHS_NAME
from node.store.index.index import PROBLEMS_MAX, RecoveryReport
from node.store.shared.compaction.compaction import Reclaimed
from node.store.shared.config import StoreConfig
from node.store.shared.recovery import StoreRecovery
from node.store.steps import Steps
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: A recovery that takes longer than this says how far it is, as often.
PROGRESS_EVERY_S = 2.0
#: While garbage piles up in some vhosts, every so many steps are for whichever is next, so that none is forgotten.
STEPS_PER_OTHER = 8
_UNCLOSED = "vhost %s could not be closed in order, the next start scans its files: %s"
_UNDELETED = "the files of queue %d could not be deleted yet, which is tried again: %s"
#: A deletion that the disk refused is tried again as often.
DELETE_AGAIN_EVERY_MS = 10_000
#: Of them at once.
DELETED_AGAIN_MAX = 16
#: Queues that are deleted in one step of the opening of their vhost: some milliseconds.
DELETED_PER_STEP = 16
#: Vhosts with nothing to do that are looked at per step.
VHOSTS_TRIED_MAX = 16


class NodeQueueFiles:
    """One `VhostStore` per vhost, opened on first use and closed with the node. ``clock`` (seconds): for recoveries.

    Opening is done in steps (`node.store.steps`); who takes them is `cluster.runtime.recoveries`.
    """

    def __init__(
        self, disk: Disk, data_dir: str, group_commit: GroupCommit, config: StoreConfig, clock: Callable[[], float]
    ) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._group_commit = group_commit
        self._config = config
        self._clock = clock
        #: Told of a queue that should be looked at, though nobody called it (set by whoever owns the queues).
        self.on_queue_changed: Callable[[QueueId], None] = lambda _queue_id: None
        #: Told of a vhost that must be opened, though nobody opens a queue of it (set like the other).
        self.on_vhost_wanted: Callable[[str], None] = lambda _vhost: None
        #: Whether a vhost, or a queue of it, is being opened (set like the others): it is not given up meanwhile.
        self.is_vhost_awaited: Callable[[str], bool] = lambda _vhost: False
        #: Told now and then that `delete_unknown` is to look again (set like the others).
        self.on_unseen: Callable[[], None] = lambda: None
        self._vhosts: dict[str, VhostStore] = {}
        #: Queues to be deleted when their vhost is open; none, if it is opened for what else is left in it.
        self._to_delete: dict[str, dict[QueueId, None]] = {}
        #: Queues that the disk refused to delete, with their vhosts, and when that is tried again.
        self._undeleted: dict[QueueId, str] = {}
        self._delete_again_at_ms = 0
        #: For want of room or descriptors something of what is deleted could not be seen, or a vhost be moved away.
        self._has_unseen = False
        #: Those in which garbage piled up when they had their last step of reclaiming it.
        self._urgent: dict[str, None] = {}
        #: Vhosts that no longer exist, until nothing is left of their queues.
        self._gone: dict[str, None] = {}
        self._removals = VhostRemovals(disk, data_dir, group_commit)
        self._reclaims = 0
        self._next_progress_s = 0.0

    # --- opening ---

    def vhost_opening(self, vhost: str) -> Steps[None] | None:
        """What must be gone through before queues of this vhost can be opened; ``None`` if nothing. Ask once, and again
        after `vhost_failed`. Raises `StorageError`."""
        self._gone.pop(vhost, None)
        store = self._vhosts.get(vhost)
        if store is not None and store.is_open:
            return None
        return self._vhost_opening(vhost, store or self._make_vhost(vhost))

    def _make_vhost(self, vhost: str) -> VhostStore:
        store = self._vhosts[vhost] = VhostStore(
            self._disk,
            self._data_dir,
            vhost,
            self._group_commit,
            self._config,
            self.on_queue_changed,
            self._progressed,
            opens_at_once=False,
        )
        return store

    def _vhost_opening(self, vhost: str, store: VhostStore) -> Steps[None]:
        started_s = self._clock()
        self._next_progress_s = started_s + PROGRESS_EVERY_S
        _warn_of_lost_file(vhost, store)
        yield from store.opening
        if store.unreadable_lengths:
            text = "vhost %s: %d lengths in %s cannot be read (torn in a crash, or damaged): noted anew"
            log.warning(text, vhost, store.unreadable_lengths, LENGTHS_NAME)
        found = store.store_recovery
        if found.messages or found.torn or found.corrupt:
            text = _store_recovery_text(found, self._clock() - started_s)
            log.info("shared store of vhost %s: %s", vhost, text)
        _log_damage(f"shared store of vhost {vhost}", len(found.corrupt), found.corrupt)
        for number, queue_id in enumerate(self._to_delete.pop(vhost, ()), 1):
            self._delete(store, vhost, queue_id)
            if number % DELETED_PER_STEP == 0:
                yield None

    def vhost_failed(self, vhost: str) -> None:
        """Going through its opening came to nothing: the next attempt begins anew."""
        is_gone = vhost in self._gone
        store = self._vhosts.pop(vhost, None)
        self._urgent.pop(vhost, None)
        self._gone.pop(vhost, None)
        if store is not None and not store.is_open:
            store.give_up_opening()
            if is_gone:
                self._remove(vhost, store)

    def vhost_exists(self, vhost: str) -> None:
        """Queues of this vhost are to be opened while it is on its way: it was made anew, if it was deleted before."""
        self._gone.pop(vhost, None)

    def queue_opening(
        self,
        queue: QueueRecord,
        index_version: int | None,
        on_progress: Callable[[int, int], None],
        *,
        is_compared: bool = False,
    ) -> Steps[LocalReplica]:
        """Open what the disk holds of this queue, or create it; its vhost is open.

        ``index_version``: ``None`` = as configured. ``on_progress`` hears how many segments of how many were read.
        """
        started_s = self._clock()
        self._undeleted.pop(queue.queue_id, None)
        store = self._vhosts[queue.vhost]
        local = yield from store.queue_opening(
            queue.queue_id, queue.queue_name, queue.durable, index_version, on_progress, is_compared=is_compared
        )
        report = local.recovery_report
        if report is not None:
            report.seconds = round(self._clock() - started_s, 3)
            if report.messages or report.torn or report.corrupt:
                log.info("%s: %s", queue.queue_name, recovery_text(report))
            _log_damage(str(queue.queue_name), report.corrupt, report.problems)
        return local

    def queue_file_count(self, queue: QueueRecord) -> int:
        """Files of a queue that is not open: how much there is to read."""
        return self._vhosts[queue.vhost].queue_file_count(queue.queue_id)

    def stored_reach(self, queue: QueueRecord) -> int | None:
        """What the disk has of this queue (`node.queues.stored_copies`), open or not. Raises `StorageError`."""
        return stored_reach(self._disk, self._data_dir, queue.vhost, queue.queue_id)

    def _progressed(self, what: str, done: int, total: int) -> None:
        """A scan goes on: say so now and then."""
        if self._clock() >= self._next_progress_s:
            self._next_progress_s = self._clock() + PROGRESS_EVERY_S
            log.info("recovery: %s: %d of %d", what, done, total)

    # --- deleting ---

    def delete_queue(self, queue: QueueRecord) -> None:
        """Delete the files of a queue that is not open."""
        if self._disk.exists(vhost_directory(self._data_dir, queue.vhost)):
            self._delete_when_open(queue.vhost, [queue.queue_id])

    def vhosts_are(self, vhosts: Collection[str]) -> None:
        """There are no others: what this node has of any is deleted, once nothing is left of its queues."""
        self._gone = dict.fromkeys(vhost for vhost in self._vhosts if vhost not in vhosts)
        for vhost in [vhost for vhost in self._to_delete if vhost not in vhosts and vhost not in self._vhosts]:
            del self._to_delete[vhost]  # its directory goes as a whole
        try:
            self._removals.take_unknown(vhosts, [store.directory for store in self._vhosts.values()])
        except StorageError as error:
            self._has_unseen |= isinstance(error, ShortageError)
            log.error("files of vhosts that no longer exist stay on the disk: %s", error)

    def _give_up_gone(self) -> None:
        for vhost in list(self._gone):
            store = self._vhosts[vhost]
            if store.is_open != store.is_idle or self.is_vhost_awaited(vhost):
                continue
            del self._gone[vhost], self._vhosts[vhost]
            self._urgent.pop(vhost, None)
            if store.is_open:
                store.abandon()
            else:
                store.give_up_opening()
            self._remove(vhost, store)

    def _remove(self, vhost: str, store: VhostStore) -> None:
        """The files of a vhost that no longer exists, and of which nothing is open."""
        self._to_delete.pop(vhost, None)
        self._undeleted = {queue_id: of for queue_id, of in self._undeleted.items() if of != vhost}
        try:
            self._removals.take(store.directory)
        except StorageError as error:
            self._has_unseen |= isinstance(error, ShortageError)
            log.error("the files of vhost %s, which no longer exists, stay on the disk: %s", vhost, error)

    def delete_unknown(self, vhosts: Collection[str], known: Container[QueueId]) -> Pieces[None]:
        """Queues of these vhosts, and other vhosts, that were deleted while this node was away. What cannot be deleted
        is tried again. Without descriptors nothing can be seen: then ``on_unseen`` has this called again."""
        self._has_unseen = False
        self.vhosts_are(vhosts)
        for vhost in list(vhosts):
            try:
                yield from self._delete_unknown_of(vhost, known)
            except StorageError as error:
                self._has_unseen |= isinstance(error, ShortageError)
                log.error("vhost %s: files of queues that no longer exist stay on the disk: %s", vhost, error)

    def _delete_unknown_of(self, vhost: str, known: Container[QueueId]) -> Pieces[None]:
        if not self._disk.exists(vhost_directory(self._data_dir, vhost)):
            return
        store = self._vhosts.get(vhost) or self._make_vhost(vhost)
        for queue_id, name in store.unknown_queues(known):
            log.info("%s no longer exists in the cluster: its files are deleted", name)
            try:
                self._delete_when_open(vhost, [queue_id])
            except StorageError as error:
                log.error(_UNDELETED, queue_id, error)
            yield
        if not store.is_open and store.has_leftovers():
            # Perhaps no queue of it ever comes here: then nobody else would reclaim that.
            self._to_delete.setdefault(vhost, {})
            self.on_vhost_wanted(vhost)
            yield

    def _delete_when_open(self, vhost: str, queue_ids: Sequence[QueueId]) -> None:
        """References of a queue are given back to the shared store, so that must have counted them. (After a crash in
        between this node finds the queues and does not know them.)"""
        store = self._vhosts.get(vhost)
        if store is not None and store.is_open:
            for queue_id in queue_ids:
                self._delete_now(store, vhost, queue_id)
        elif queue_ids:
            self._to_delete.setdefault(vhost, {}).update(dict.fromkeys(queue_ids))
            if vhost not in self._gone:
                self.on_vhost_wanted(vhost)

    def _delete_now(self, store: VhostStore, vhost: str, queue_id: QueueId) -> None:
        try:
            store.delete_queue_directory(queue_id)
        except StorageError:
            self._undeleted[queue_id] = vhost
            raise

    def _delete_again(self, now_ms: int) -> None:
        """Now and then, what the disk has refused; or refused to open, so that it could not be deleted there."""
        if now_ms < self._delete_again_at_ms:
            return
        self._delete_again_at_ms = now_ms + DELETE_AGAIN_EVERY_MS
        if self._has_unseen:
            self.on_unseen()
        for vhost in [vhost for vhost in self._to_delete if vhost not in self._vhosts]:
            self.on_vhost_wanted(vhost)
        for queue_id, vhost in list(islice(self._undeleted.items(), DELETED_AGAIN_MAX)):
            store = self._vhosts.get(vhost)
            del self._undeleted[queue_id]
            if store is None or not store.is_open:
                self._undeleted[queue_id] = vhost  # behind the others
                continue
            with suppress(StorageError):  # the log has it
                self._delete_now(store, vhost, queue_id)

    def _delete(self, store: VhostStore, vhost: str, queue_id: QueueId) -> None:
        try:
            self._delete_now(store, vhost, queue_id)
        except StorageError as error:
            log.error(_UNDELETED, queue_id, error)
        except Exception:
            # The vhost is open: nothing may pass for its opening having failed, or it would be opened a second time.
            log.exception("the files of queue %d could not be deleted and stay on the disk", queue_id)

    # --- care ---

    def maintain(self, now_ms: int) -> bool:
        """Some times a second: storage work that does not ride on traffic. True if something waits for a sync."""
        for store in self._vhosts.values():
            if store.is_open:
                store.maintain(now_ms)
        self._delete_again(now_ms)
        self._give_up_gone()
        self._removals.step()
        return self.has_unsynced

    def reclaim(self) -> Reclaimed:
        """Take a small step of reclaiming garbage in one vhost, another each time; mostly one where it piles up if
        there is any. It is urgent if there is. Where there is nothing to do the next has its turn."""
        self._reclaims += 1
        is_turn_of_all = not self._urgent or self._reclaims % STEPS_PER_OTHER == 0
        came_of_it = Reclaimed(has_worked=False, is_urgent=False)
        for vhost in list(islice(self._vhosts if is_turn_of_all else self._urgent, VHOSTS_TRIED_MAX)):
            self._urgent.pop(vhost, None)
            # The others come first next time.
            store = self._vhosts[vhost] = self._vhosts.pop(vhost)
            if not store.is_open:
                continue
            came_of_it = store.reclaim()
            if came_of_it.is_urgent:
                self._urgent[vhost] = None
            if came_of_it.has_worked:
                break
        return Reclaimed(came_of_it.has_worked, bool(self._urgent))

    @property
    def has_unsynced(self) -> bool:
        """True if something waits for a sync."""
        return self._group_commit.has_dirty

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself. (`VhostStore.check_invariants` reads files.)"""
        self._removals.check_invariants()
        assert self._gone.keys() <= self._vhosts.keys(), "what is given up is open, or on its way"
        assert self._urgent.keys() <= self._vhosts.keys(), "garbage piles up in vhosts that are there"

    def close(self) -> None:
        """After every queue was closed. What cannot be closed in order, on a full disk or by a mistake of ours, is
        recovered by a scan of the next start, and keeps nothing else from its end."""
        for vhost, store in self._vhosts.items():
            try:
                store.close()
            except StorageError as error:
                log.error(_UNCLOSED, vhost, error)
            except Exception as error:
                log.error(_UNCLOSED, vhost, repr(error), exc_info=error)
        self._vhosts.clear()
        self._urgent.clear()
        self._gone.clear()


def _warn_of_lost_file(vhost: str, store: VhostStore) -> None:
    """``vhost.json`` is durable before the first queue comes: if there are queues, somebody or something took it."""
    with suppress(StorageError):
        if store.has_begun and next(store.unknown_queues(()), None) is not None:
            log.warning(
                "vhost %s: %s/%s is missing, though there are queues: it is made anew with the numbers of entries of a "
                "segment that are configured now. If they were others when it was made, what the queues hold is taken "
                "for damaged, and dropped",
                vhost,
                store.directory,
                VHOST_FILE_NAME,
            )


def recovery_text(report: RecoveryReport) -> str:
    """What opening a queue found, as a sentence for the log."""
    how = "after a clean stop" if report.clean else "after a crash"
    text = f"recovered {how} in {report.seconds:.3f} s with {_counted(report.messages, 'message')}"
    text += f" ({report.body_bytes} bytes)"
    if report.redelivered:
        text += f", {report.redelivered} of which may have been delivered before"
    dropped = (
        (report.transient, "transient"),
        (report.torn, "that were not wholly written"),
        (report.corrupt, "damaged"),
    )
    text += _dropped_text(dropped)
    if report.torn_acks:
        text += f"; counted {_counted(report.torn_acks, 'unfinished ack')}"
    return text


def _store_recovery_text(found: StoreRecovery, seconds: float) -> str:
    how = "after a clean stop" if found.clean else f"by a scan ({found.dirty_because})"
    text = f"recovered {how} in {seconds:.3f} s with {_counted(found.messages, 'message')}"
    return text + _dropped_text(((found.torn, "that were not wholly written"), (len(found.corrupt), "damaged")))


def _dropped_text(parts: Iterable[tuple[int, str]]) -> str:
    words = ", ".join(f"{count} {what}" for count, what in parts if count)
    return f"; dropped: {words}" if words else ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _log_damage(where: str, count: int, problems: Sequence[str]) -> None:
    """Damage is nothing that a start may mention in passing."""
    for problem in problems[:PROBLEMS_MAX]:
        log.error("%s: damage: %s", where, problem)
    if count:
        log.error("%s: %d damaged or missing pieces; what is left of them is kept in quarantine/", where, count)

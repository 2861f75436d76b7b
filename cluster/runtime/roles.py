"""Following the committed records: which roles this node takes up, changes and gives up, in the order of the log.

A change of mastership is carried out in one order: first this node takes up its own role (`QueueSet.follow`), then the
routes of its channels are told, so a route that finds its master here finds the queue process too.

This node takes part in nothing before its own `NodeUp` is applied (`Roles.take_up_all`): what the log says about an
earlier life must not start roles. Then it takes up what the records give it, in slices, while commits go on.

A mistake of ours about one queue is contained: that queue is out of service here, since the same would happen at the
next start. If anything else of a commit cannot be followed the node stops: whoever half follows the records is worse
than nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from functools import partial
from typing import Protocol, cast

from cluster.metadata.events import (
    AccessEnded,
    Event,
    MastershipChanged,
    MemberChanged,
    PolicyChanged,
    QueueCreated,
    QueueDeleted,
)
from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import MetadataState
from cluster.runtime.mastership_log import log_change
from cluster.runtime.queue_set import QueueSet
from cluster.runtime.records import Records
from node.ids import Epoch, NodeName, QueueId
from node.pieces import Pieces, at_once
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: Taking up roles opens files; after so long the loop may do something else.
TAKE_UP_SLICE_S = 0.01
_DONE = object()


class Routes(Protocol):
    """How the channels of this node reach the queues (`cluster.sessions.gateway.ClusterGateway`)."""

    def mastership_changed(self, record: MastershipRecord) -> None: ...

    def queue_deleted(self, queue_id: QueueId) -> None: ...

    def routed_queues(self) -> Collection[QueueId]: ...


class Hosted(Protocol):
    """What channels of other nodes want of queues here (`cluster.sessions.host.SessionHost`)."""

    def awaited_queues(self) -> Collection[QueueId]: ...

    def queue_elsewhere(self, queue_id: QueueId, epoch: Epoch) -> None: ...

    def queue_deleted(self, queue_id: QueueId) -> None: ...


class _Used:
    """Queues that exist, and those of which this node has yet to follow that they do not: it may have them open."""

    def __init__(self, state: MetadataState, queues: QueueSet) -> None:
        self._state = state
        self._queues = queues

    def __contains__(self, queue_id: object) -> bool:
        return queue_id in self._state.masterships or self._is_held(cast(QueueId, queue_id))

    def _is_held(self, queue_id: QueueId) -> bool:
        """One of `QueueSet.held_queues`, of which there may be ten thousand."""
        queues = self._queues
        is_opening = queues.recovered_percent(queue_id) is not None
        return is_opening or queue_id in queues.roles or queues.is_failed(queue_id)


class Leftovers(Protocol):
    """What the disk holds of queues."""

    def vhosts_are(self, vhosts: Collection[str]) -> None:
        """There are no others: what the disk holds of any is deleted."""

    def delete_unknown(self, vhosts: Collection[str], known: Container[QueueId]) -> Pieces[None]:
        """Delete other vhosts than these, and queues of these that are not ``known`` at the beginning of one. What
        cannot be deleted stays, or is tried again."""


class MemberWatcher(Protocol):
    """Who is up."""

    def member_changed(self, event: MemberChanged) -> None: ...

    def members_restored(self) -> None:
        """The records of members are others: how they came to be so was not told."""

    def queue_changed(self, queue_id: QueueId) -> None: ...


class Roles:
    """See the top of this module. Implements `cluster.runtime.metadata_group.MetadataListener`."""

    def __init__(
        self,
        node: NodeName,
        state: MetadataState,
        records: Records,
        queues: QueueSet,
        *,
        routes: Routes,
        hosted: Hosted,
        files: Leftovers,
        membership: MemberWatcher,
        clock: Callable[[], float],
        on_fatal: Callable[[str], None],
    ) -> None:
        """``clock``: seconds, going on within a turn of the loop. ``on_fatal``: the node must stop, for this reason."""
        self._node = node
        self._state = state
        self._records = records
        self._queues = queues
        self._routes = routes
        self._hosted = hosted
        self._files = files
        self._membership = membership
        self._clock = clock
        self._on_fatal = on_fatal
        #: This node takes part.
        self._is_active = False
        #: A user or a vhost may be gone (their connections are closed).
        self.on_access_ended: Callable[[], None] = lambda: None

    # --- taking part ---

    async def take_up_all(self) -> None:
        """Begin to take part, with the roles that the present records give this node; its `NodeUp` is applied."""
        self._is_active = True
        slice_end_s = self._clock() + TAKE_UP_SLICE_S
        pieces = self._taking_up()
        while True:
            while self._state.is_changing:  # noqa: ASYNC110 - for some turns, and it must not change again before
                await asyncio.sleep(0)
            if next(pieces, _DONE) is _DONE:
                return
            if self._clock() >= slice_end_s:
                await asyncio.sleep(0)
                slice_end_s = self._clock() + TAKE_UP_SLICE_S

    def _taking_up(self) -> Iterator[None]:
        yield from self._forget_deleted_queues()
        for queue_id in list(self._state.masterships):
            self.take_up(queue_id)
            yield

    def take_up(self, queue_id: QueueId) -> None:
        """The role that the present record gives this node, if the queue still exists.

        Unless a change of that record is about to be followed: then what it says before that is not to be begun.
        """
        record = self._records.mastership(queue_id)
        if record is None or self._records.is_behind(queue_id):
            return
        self._take_up_record(queue_id)

    def _take_up_record(self, queue_id: QueueId) -> None:
        if not self._is_active:
            return  # this node stops, in the middle of it
        record = self._state.masterships[queue_id]
        queue = self._records.queue(queue_id)
        try:
            self._take_part(queue, record)
        except Exception as error:
            self._queues.fail(queue, record, error)
        self._membership.queue_changed(queue_id)

    def give_up_all(self) -> Pieces[None]:
        """Orderly stop: take part in nothing any more, and close every queue."""
        self._is_active = False
        yield from self._queues.closing()

    def _forget_deleted_queues(self) -> Pieces[None]:
        known = self._state.masterships
        for queue in self._queues.held_queues():
            if queue.queue_id not in known:
                _forget(queue.queue_id, partial(self._queues.queue_deleted, queue))
                yield
        for queue_id in (*self._routes.routed_queues(), *self._hosted.awaited_queues()):
            if queue_id not in known:
                _forget(queue_id, partial(self._nobody_uses, queue_id))
                yield
        yield from self._delete_leftovers()

    def look_for_leftovers(self) -> None:
        """Descriptors were wanting when this node looked for what it has of what was deleted: look again."""
        if not self._is_active or self._records.is_changing:
            return  # the next time, then
        at_once(self._delete_leftovers())

    def _delete_leftovers(self) -> Pieces[None]:
        try:
            yield from self._files.delete_unknown(self._state.topology.vhosts(), _Used(self._state, self._queues))
        except Exception:
            log.exception("files of queues that no longer exist stay on the disk")

    # --- committed changes ---

    def on_restored(self) -> Iterator[QueueId | None]:
        """The whole state was replaced by a snapshot."""
        self._membership.members_restored()
        if not self._is_active:
            return
        self.on_access_ended()
        yield None
        yield from self._forget_deleted_queues()
        yield from self._queues.policy_changed()
        yield None
        for queue_id in list(self._state.masterships):
            self._queues.records_skipped(queue_id)
            self._take_up_record(queue_id)
            yield queue_id

    def on_committed(self, events: Sequence[Event]) -> Pieces[None]:
        for event in events:
            try:
                yield from self._follow(event)
            except Exception as error:
                if not self._is_contained(event, error):
                    # The log goes on, this node does not.
                    log.exception("this node cannot follow %s", type(event).__name__)
                    self._on_fatal(f"a committed change could not be followed: {error!r}")
                    return

    def _is_contained(self, event: Event, error: Exception) -> bool:
        """Whether following ``event`` failed for one queue only, which is out of service here now."""
        try:
            if isinstance(event, QueueCreated):
                self._queues.fail(event.queue, event.mastership, error)
            elif isinstance(event, MastershipChanged):
                self._queues.fail(self._records.queue(event.queue_id), event.new, error)
            elif isinstance(event, QueueDeleted):
                name = event.queue.queue_name
                log.error("%s was deleted, and something of it stays here: %r", name, error, exc_info=error)
                self._nobody_uses(event.queue.queue_id)
            else:
                return False
        except Exception:
            log.exception("queue %s could not be taken out of service", event)
            return False
        return True

    def _follow(self, event: Event) -> Pieces[None]:
        if isinstance(event, MemberChanged):
            self._membership.member_changed(event)
        elif not self._is_active:
            return
        elif isinstance(event, QueueCreated):
            self._queues.follow(event.queue, event.mastership)
        elif isinstance(event, MastershipChanged):
            self._mastership_changed(event)
        elif isinstance(event, QueueDeleted):
            self._queues.queue_deleted(event.queue)
            self._nobody_uses(event.queue.queue_id)
        elif isinstance(event, AccessEnded):
            self.on_access_ended()
            self._files.vhosts_are(self._state.topology.vhosts())
        elif isinstance(event, PolicyChanged):
            yield from self._queues.policy_changed()

    def _mastership_changed(self, event: MastershipChanged) -> None:
        queue = self._records.queue(event.queue_id)
        log_change(queue, event)
        self._take_part(queue, event.new, is_discarded=self._node in event.discarded)
        self._membership.queue_changed(event.queue_id)

    def _take_part(self, queue: QueueRecord, record: MastershipRecord, *, is_discarded: bool = False) -> None:
        """Whatever becomes of the part of this node, its channels learn who serves the queue."""
        try:
            self._queues.follow(queue, record, is_discarded=is_discarded)
        finally:
            if record.master != self._node:
                self._hosted.queue_elsewhere(record.queue_id, record.epoch)
            self._routes.mastership_changed(record)

    def _nobody_uses(self, queue_id: QueueId) -> None:
        """It was deleted."""
        self._hosted.queue_deleted(queue_id)
        self._routes.queue_deleted(queue_id)


def _forget(queue_id: QueueId, deleted: Callable[[], None]) -> None:
    """A queue was deleted while this node was away, or in what a snapshot skips; nobody else is to suffer for it."""
    try:
        deleted()
    except Exception as error:
        log.error("queue %d was deleted, and something of it stays here: %r", queue_id, error, exc_info=error)

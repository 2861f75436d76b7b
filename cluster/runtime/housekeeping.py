"""What a node does because time passes: ten times a second, everything that nobody asks for.

Order of a tick: who is up, then queues and alarms, then the storage (garbage, notes of lengths, room on the disk).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from cluster.runtime.membership import Membership
from cluster.runtime.queue_proposals import QueueProposals
from cluster.runtime.queue_set import QueueSet
from cluster.runtime.reclaimer import Reclaimer
from cluster.runtime.records import Records
from cluster.runtime.resource_alarms import ResourceAlarms
from cluster.runtime.roles import Roles
from node.flow.credit import FlowControl
from node.ids import NodeName, QueueId
from node.pieces import InTurns

log = logging.getLogger(__name__)

#: Throttles, stalls and silences are measured in seconds; a tenth of one is fine enough.
TICK_S = 0.1
#: A tick that comes so much too late means that this node was frozen, or its loop was busy: it heard nobody meanwhile.
PAUSE_MS = 500
#: A peer that is dead may still be up for the cluster (its `NodeUp` was on the way when it died, or the proposal of its
#: `NodeDown` got lost): looked at this often.
REPROPOSE_EVERY_TICKS = 10
#: A mirror that is to have its place again, and has not yet, is offered it this often.
READMIT_EVERY_TICKS = 50
#: Copies of queues that are out of service because the disk was full, or no file could be opened, wait for room, which
#: is looked for this often.
LOOK_FOR_ROOM_EVERY_TICKS = 10
#: Room that makes opening them worth while, whatever the limit of the alarm: with less they would soon fail again.
ROOM_MIN_BYTES = 16 * 1024 * 1024
#: And files that may be opened then: a queue in use holds two to six.
FILES_MIN = 64
#: Opening a queue is a millisecond of work; after so long the loop may do something else.
OPENING_TURN_S = 0.005


class Maintained(Protocol):
    """Storage that needs looking after."""

    def maintain(self, now_ms: int) -> bool:
        """Work that does not ride on traffic. True if something waits for a sync."""


class RoomWatch:
    """Opens what a full disk, or want of descriptors, has put out of service, if there is room again.

    A copy that others can replace waits until they have: opened, it lacks what was in memory only, and as long as the
    record calls it synchronised nobody would know.

    There may be thousands, so some are opened in each turn of the loop. ``call_soon`` as of a loop; ``clock`` (seconds)
    goes on within a turn of it. A turn opens ``per_turn`` at most.
    """

    def __init__(
        self,
        node: NodeName,
        records: Records,
        queues: QueueSet,
        alarms: ResourceAlarms,
        roles: Roles,
        membership: Membership,
        proposals: QueueProposals,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        per_turn: int,
    ) -> None:
        self._node = node
        self._records = records
        self._queues = queues
        self._alarms = alarms
        self._roles = roles
        self._membership = membership
        self._proposals = proposals
        #: What is to be opened, by the last look.
        self._due: deque[QueueId] = deque()
        self._turns = InTurns(self._open_next, OPENING_TURN_S, call_soon, clock, per_turn)

    def look(self, now_ms: int) -> None:
        """Now and then."""
        starved = [] if self._due or self._records.is_changing else self._queues.starved()
        if starved and self._alarms.has_room(ROOM_MIN_BYTES, FILES_MIN, now_ms):
            self._due.extend(starved)
            self._turns.go_on()

    def stop(self) -> None:
        """Open nothing any more."""
        self._due.clear()

    def _open_next(self) -> bool:
        if self._records.is_changing:
            self._due.clear()  # the next look is at what becomes of them
        if not self._due:
            return False
        self._open(self._due.popleft())
        return True

    def _open(self, queue_id: QueueId) -> None:
        record = self._records.mastership(queue_id)
        if record is None:
            return
        if record.is_down:
            self._queues.forgive(queue_id)
            self._membership.queue_changed(queue_id)
        elif record.master == self._node and not record.synchronised:
            log.info("%s: there is room again, the queue goes on", self._records.describe(queue_id))
            self._proposals.goes_on(queue_id)
            self._queues.forgive(queue_id)
            self._roles.take_up(queue_id)
        elif self._node not in (record.master, *record.mirrors):
            self._queues.forgive(queue_id)
            self._proposals.ask_for_place(record)


class Housekeeping:
    """The one timer of a node's runtime. ``now_ms``: the clock that all deadlines of the runtime go by."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        *,
        flow: FlowControl,
        membership: Membership,
        queues: QueueSet,
        alarms: ResourceAlarms,
        files: Maintained,
        reclaimer: Reclaimer,
        proposals: QueueProposals,
        room: RoomWatch,
        request_sync: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._flow = flow
        self._membership = membership
        self._queues = queues
        self._alarms = alarms
        self._files = files
        self._reclaimer = reclaimer
        self._proposals = proposals
        self._room = room
        self._request_sync = request_sync
        self._ticks = 0
        self._ticked_ms = now_ms()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The first tick is now."""
        self._timer = self._loop.call_later(TICK_S, self.start)
        self.tick()

    def stop(self) -> None:
        """No tick after this one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reclaimer.stop()
        self._room.stop()

    def tick(self) -> None:
        """A tenth of a second has passed, or more."""
        self._ticks += 1
        now_ms = self._now_ms()
        pause_ms = now_ms - self._ticked_ms - int(TICK_S * 1000)
        self._ticked_ms = now_ms
        self._flow.advance(now_ms)
        if pause_ms >= PAUSE_MS:
            log.warning("this node stood still for %d ms", pause_ms)
        self._membership.tick(now_ms, pause_ms if pause_ms >= PAUSE_MS else 0)
        if self._ticks % REPROPOSE_EVERY_TICKS == 0:
            self._membership.repeat()
        self._queues.tick(now_ms)
        self._alarms.tick(now_ms)
        if self._files.maintain(now_ms):
            self._request_sync()
        self._reclaimer.tick()
        if self._ticks % READMIT_EVERY_TICKS == 0:
            self._proposals.readmit()
        if self._ticks % LOOK_FOR_ROOM_EVERY_TICKS == 0:
            self._room.look(now_ms)

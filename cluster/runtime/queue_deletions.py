"""Deletions that the master of a queue brings to an end: of auto-delete queues, and those whose asker is gone.

A deletion is decided by the metadata group, and a command whose answer did not come may be carried out at any time
later. So a queue that is sealed for one stays sealed until its fate is known, and the way to know it is to ask again:
for the deletion of this life of the queue in this epoch. If any of the commands was carried out the queue is gone. If
one is refused because the epoch is over, so are all, now and later. Nothing was published to the queue meanwhile and
nobody began to consume, so whenever it comes about, the deletion is what was asked for.

*Auto-delete.* A queue goes when its last consumer is cancelled, or the channel or node of that consumer is gone. It is
sealed within the call that took the consumer away, so nobody sees it without. A consumer whose node is merely cut off
will be attached again; so will those of all nodes after a change of masters. Then the queue is looked at again when
every node that counts as up could have done so, since it has said that it knows the master, has been heard over one
link to it for a while, and has named its consumers if it said that it had some, also one that came before the queue was
open here and has yet to hear that it is. If there still is none the queue is deleted. Until then it is not deleted
either because those that are there are cancelled: who cancels the last of them is answered before the queue goes. That
there ever was one is committed when the master has taken the first one (`note_consumer`): those who had it may all be
gone with one machine, and a master that knows nothing of it would keep the queue for ever, like one that nobody has
consumed yet. So it does if that machine is lost before the commit, of which the consumer hears nothing: the other
order would have a queue deleted with all it has because somebody was refused, and to let the consumer wait for the
commit would have to take back what was delivered to it if there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from cluster.metadata.commands import ChangeTopology
from cluster.metadata.errors import RefusedChangeError
from cluster.metadata.kinds import protocol_of
from cluster.runtime.background import Background
from cluster.runtime.metadata_group import MetadataGroup
from node.errors import WarrenError
from node.ids import Epoch, NodeName, QueueId
from node.queues.queue_process import QueueProcess
from node.topology.commands import DeleteQueue, NoteConsumer
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: Pause before a deletion that was not decided is asked for again; the attempt itself has waited for long.
RETRY_S = 1.0
#: A node attaches its consumers as soon as it knows the master and is linked with it: a matter of some round trips. It
#: is longer than a node may be silent and count as at work: whoever does when this has passed was heard meanwhile, and
#: if it was silent at first there was time left when it was heard again.
REATTACH_S = 1.2
#: After so many looks nobody is waited for who has yet to say which consumers he has: an older release may never say.
ATTACHING_LOOKS_MAX = 60


class SealedQueues(Protocol):
    """The queues mastered on this node (`cluster.runtime.queue_set.QueueSet`)."""

    def process(self, queue_id: QueueId) -> QueueProcess | None: ...

    def serving_epoch(self, queue_id: QueueId) -> Epoch | None: ...

    def touch(self, queue_id: QueueId) -> None: ...

    def out_of_service(self, queue_id: QueueId, error: Exception) -> None: ...


class QueueDeletions:
    """See the top of this module. ``arrivals``: how many links have come up so far, nodes were declared up or heard
    again, and how often this one stood still; ``None`` while a node that counts as up cannot be spoken to, or stands
    still. ``is_attaching``: a node has said that it had consumers of the queue, and has yet to say which."""

    def __init__(
        self,
        node: NodeName,
        metadata: MetadataGroup,
        queues: SealedQueues,
        background: Background,
        arrivals: Callable[[], int | None],
        is_attaching: Callable[[QueueId], bool],
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._queues = queues
        self._background = background
        self._arrivals = arrivals
        self._is_attaching = is_attaching
        #: Deletions that are being decided.
        self._deciding: dict[QueueId, Epoch] = {}
        #: Auto-delete queues of which it is being noted that they had a consumer.
        self._noting: dict[QueueId, None] = {}
        #: Auto-delete queues that are to be looked at again, for some of their consumers may return, and how often that
        #: was said since.
        self._watched: dict[QueueId, int] = {}

    # --- auto-delete ---

    def note_consumer(self, queue: QueueRecord) -> None:
        """An auto-delete queue has a consumer: every later master is to know. Costs a commit once in the life of a
        queue; none of an exclusive one, which goes with its connection.

        While a member does not know the command only this node and the queue's master know, as before it was there;
        when all know it, it is said again (`ClusterGateway.note_consumers`)."""
        is_known = protocol_of(_note_of(queue)) <= self._metadata.state.protocol
        if queue.was_consumed or queue.exclusive_owner is not None or not is_known or queue.queue_id in self._noting:
            return
        self._noting[queue.queue_id] = None
        self._background.spawn(self._note(queue), f"consumers of {queue.queue_name}")

    async def _note(self, queue: QueueRecord) -> None:
        try:
            while self._is_to_be_noted(queue):
                try:
                    await self._metadata.change(ChangeTopology(_note_of(queue), self._node))
                except RefusedChangeError as error:
                    log.info("%s: that it had a consumer is not noted: %s", queue.queue_name, error)
                    return
                except WarrenError:
                    await asyncio.sleep(RETRY_S)
        finally:
            del self._noting[queue.queue_id]

    def _is_to_be_noted(self, queue: QueueRecord) -> bool:
        found = self._metadata.topology.queue(queue.vhost, queue.name)
        return found is not None and found.queue_id == queue.queue_id and not found.was_consumed

    def unused(self, queue: QueueRecord, may_return: bool) -> None:
        """An auto-delete queue has lost its last consumer; or one that ``may_return``. Another may be on its way though
        nobody has looked yet: the queue was opened again before it was committed that it was ever consumed."""
        if queue.queue_id in self._watched:
            self._watched[queue.queue_id] += may_return
        elif may_return or self._is_attaching(queue.queue_id) or not self._delete_if_unused(queue):
            self._watched[queue.queue_id] = 0
            self._background.spawn(self._look_again(queue), f"auto-delete of {queue.queue_name}")

    def _delete_if_unused(self, queue: QueueRecord) -> bool:
        """False if that cannot be said yet."""
        process = self._queues.process(queue.queue_id)
        if process is None or not process.is_unused:
            return True
        if self._queues.serving_epoch(queue.queue_id) is None:
            return False
        process.seal_for_delete(if_unused=True, if_empty=False)
        self.settle(queue)
        return True

    async def _look_again(self, queue: QueueRecord) -> None:
        """Until who may return could have done so, or another node is the master (which looks by itself)."""
        queue_id = queue.queue_id
        was_reached = watched = None
        index = looks = 0
        try:
            while (process := self._queues.process(queue_id)) is not None:
                if process is not watched:
                    # Whoever has applied so much knows of this mastership.
                    watched, index = process, self._metadata.state.applied_index
                await asyncio.sleep(REATTACH_S)
                # The same nodes were linked through a whole pause and heard at both its ends, in one mastership, which
                # all knew when it began, and nobody came to say more: in between everybody could say what he has.
                arrivals = self._arrivals() if await self._metadata.is_visible(index) else None
                looks += 1
                is_awaited = looks < ATTACHING_LOOKS_MAX and self._is_attaching(queue_id)
                reached = None if arrivals is None or is_awaited else (process, arrivals, self._watched[queue_id])
                is_same = process is self._queues.process(queue_id)
                if is_same and reached is not None and reached == was_reached and self._delete_if_unused(queue):
                    return
                was_reached = reached
        finally:
            del self._watched[queue_id]

    # --- the end of a deletion ---

    def settle(self, queue: QueueRecord) -> None:
        """Bring the deletion of a sealed queue to an end."""
        queue_id = queue.queue_id
        epoch = self._queues.serving_epoch(queue_id)
        if epoch is not None and self._deciding.get(queue_id) != epoch:
            self._deciding[queue_id] = epoch
            self._background.spawn(self._decide(queue, epoch), f"deletion of {queue.queue_name}")

    async def _decide(self, queue: QueueRecord, epoch: Epoch) -> None:
        command = ChangeTopology(DeleteQueue(queue.vhost, queue.name, queue.queue_id, epoch), self._node)
        try:
            while self._sealed_process(queue.queue_id, epoch) is not None:
                try:
                    await self._metadata.change(command)
                except RefusedChangeError as error:
                    log.info("%s is not deleted: %s", queue.queue_name, error)
                    self._unseal(queue.queue_id, epoch)
                except WarrenError as error:
                    log.warning("%s: its deletion is not decided yet: %s", queue.queue_name, error)
                    await asyncio.sleep(RETRY_S)
        finally:
            if self._deciding.get(queue.queue_id) == epoch:
                del self._deciding[queue.queue_id]

    def _sealed_process(self, queue_id: QueueId, epoch: Epoch) -> QueueProcess | None:
        """The process of this mastership, if it is sealed."""
        process = self._queues.process(queue_id)
        is_current = process is not None and process.is_sealed and self._queues.serving_epoch(queue_id) == epoch
        return process if is_current else None

    def _unseal(self, queue_id: QueueId, epoch: Epoch) -> None:
        process = self._sealed_process(queue_id, epoch)
        if process is None:
            return
        try:
            process.unseal()
        except Exception as error:  # what was held back did not get in: behind that gap nothing is to be taken
            self._queues.out_of_service(queue_id, error)
        self._queues.touch(queue_id)


def _note_of(queue: QueueRecord) -> NoteConsumer:
    return NoteConsumer(queue.vhost, queue.name, queue.queue_id)

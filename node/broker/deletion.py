"""Deleting a queue whose contents or consumers matter: checked at its master, decided by the cluster.

The master checks and seals the queue, so that what it answers stays true: nothing is published to it, nobody begins to
consume. Then the deletion is committed. If a condition was asked for, the command names the epoch of that mastership,
and is refused if another has begun, whose master has sealed nothing: then that one is asked.

A queue that nobody serves (its node is down, its only copy is out of service) is deleted unseen if there is no
condition, as RabbitMQ does: nobody can say what was in it. Under a condition that is refused, for nobody can check it.

Whatever else comes in between, the master is told that the fate of the command is unknown (`delete_abandoned`), and has
it decided before the queue is used again. It must not simply be unsealed: a command that nobody waits for any more may
still be carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from node.errors import AmqpError, ChannelError, QueueMovedError
from node.ids import Epoch, QueueId
from node.topology.arguments import describe_queue
from node.topology.catalogue import Catalogue
from node.topology.commands import DeleteQueue
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: Masterships in which the conditions are checked, one after the other, before the client is told to try again.
CHECKS_MAX = 5
#: Queues that are deleted side by side.
DELETED_AT_ONCE = 256


class DeletableQueues(Protocol):
    """See `node.queues.gateway.QueueGateway`."""

    async def delete_if(self, queue_id: QueueId, if_unused: bool, if_empty: bool) -> tuple[int, Epoch]: ...

    async def delete_abandoned(self, queue_id: QueueId) -> None: ...


async def delete_queue(
    queues: DeletableQueues,
    submit: Callable[[DeleteQueue], Awaitable[object]],
    queue: QueueRecord,
    *,
    if_unused: bool,
    if_empty: bool,
) -> int:
    """Delete ``queue``; the number of messages that were ready, 0 if nobody can say.

    Raises `ChannelError` 406 if a condition fails, 404 if there is one and no master can be asked or it moves on and
    on, and what ``submit`` raises; then the queue may be deleted all the same, later, if the conditions hold.
    """
    is_conditional = if_unused or if_empty
    for _ in range(CHECKS_MAX):
        try:
            ready, epoch = await _ask_master(queues, queue, if_unused=if_unused, if_empty=if_empty)
            await submit(DeleteQueue(queue.vhost, queue.name, queue.queue_id, epoch if is_conditional else None))
        except QueueMovedError:
            continue
        except ChannelError as error:
            if error.reply_code != 406:
                await _abandon(queues, queue)
            raise
        except BaseException:  # this task may have been cancelled
            await _abandon(queues, queue)
            raise
        return ready
    what = describe_queue(queue.vhost, queue.name)
    raise ChannelError(404, f"{what} changes its master again and again: try again")


async def delete_unconditionally(catalogue: Catalogue, queues: Sequence[QueueRecord]) -> AmqpError | None:
    """Delete the queues side by side, many at a time, most of them by one commit, without asking their masters. Ends
    with the first refusal, which is returned."""
    for start in range(0, len(queues), DELETED_AT_ONCE):
        some = queues[start : start + DELETED_AT_ONCE]
        refusals = await catalogue.submit_all([DeleteQueue(each.vhost, each.name, each.queue_id) for each in some])
        if first := next(filter(None, refusals), None):
            return first
    return None


async def _ask_master(
    queues: DeletableQueues, queue: QueueRecord, *, if_unused: bool, if_empty: bool
) -> tuple[int, Epoch | None]:
    """What its master says; without a condition the queue may have none."""
    try:
        return await queues.delete_if(queue.queue_id, if_unused, if_empty)
    except ChannelError as error:
        if if_unused or if_empty or error.reply_code != 404:
            raise
        log.warning("%s is deleted although nobody can say what is in it: %s", queue.queue_name, error)
        return 0, None


async def _abandon(queues: DeletableQueues, queue: QueueRecord) -> None:
    with suppress(AmqpError):
        await queues.delete_abandoned(queue.queue_id)

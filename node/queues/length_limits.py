"""The length limits of a queue (``max-length``, ``max-length-bytes``): what must go, or what may not come.

They count ready messages only. Whoever calls has delivered before what can be delivered.

Overflow ``drop-head`` keeps the limits by dropping the oldest, whatever raised the queue above them: a publish, a
requeue, a dead channel, a new policy. Overflow ``reject-publish`` keeps them by refusing what comes, and only so: what
the queue has accepted it keeps, even above its limits (a requeue, a lower limit), and until there is room again it
refuses every publish. ``reject-publish-dlx`` is the same here, since nothing is dead-lettered.

The excess may be millions of messages on disk, so it goes in steps; whoever drops is told how many at most, and whether
that was enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.queues.backing_queue import BackingQueue, Publication
from node.queues.options import QueueOptions

#: Messages that one call (a publish, a requeue, a new policy) drops at most, or twice as many as it brings; the rest
#: goes with the drains, so many in each. From memory that costs two microseconds each, from disk three.
DROP_AT_ONCE = 256
DROP_MAX = 1024
#: Publications that fit, and those that are refused.
Split = tuple[list[Publication], list[Publication]]


def would_exceed(publications: Sequence[Publication], options: QueueOptions, backing_queue: BackingQueue) -> bool:
    """Whether there is less room than these need."""
    max_length, max_bytes = options.max_length, options.max_length_bytes
    if max_length is not None and backing_queue.ready + len(publications) > max_length:
        return True
    if max_bytes is None:
        return False
    size = sum([len(publication[0].body) for publication in publications])
    return backing_queue.status().ready_bytes + size > max_bytes


def split_oversized(publications: list[Publication], options: QueueOptions) -> Split:
    """What can never fit is refused even if a consumer waits, as message by message in the reference."""
    max_bytes = options.max_length_bytes
    if max_bytes is None:
        return publications, []
    fitting = [each for each in publications if len(each.message.body) <= max_bytes]
    return fitting, [each for each in publications if len(each.message.body) > max_bytes]


def split_excess(publications: list[Publication], options: QueueOptions, backing_queue: BackingQueue) -> Split:
    """Overflow ``reject-publish``: what fits behind what is ready, and what does not."""
    max_length, max_bytes = options.max_length, options.max_length_bytes
    room = len(publications) if max_length is None else max(0, max_length - backing_queue.ready)
    if max_bytes is None:
        return publications[:room], publications[room:]
    room_bytes = max_bytes - backing_queue.status().ready_bytes
    fitting: list[Publication] = []
    refused: list[Publication] = []
    for publication in publications:
        size = len(publication.message.body)
        if len(fitting) < room and size <= room_bytes:
            room_bytes -= size
            fitting.append(publication)
        else:
            refused.append(publication)
    return fitting, refused


def drop_excess(options: QueueOptions, backing_queue: BackingQueue, count_max: int) -> bool:
    """Overflow ``drop-head``: drop from the head what exceeds the limits, so many messages at most. True if there is
    still more."""
    if options.rejects_overflow:
        return False
    max_length, max_bytes = options.max_length, options.max_length_bytes
    if max_length is not None and (excess := backing_queue.ready - max_length) > 0:
        count_max -= len(backing_queue.drop(min(excess, count_max)))
        if backing_queue.ready > max_length:
            return True
    if max_bytes is None or (excess := backing_queue.status().ready_bytes - max_bytes) <= 0:
        return False
    backing_queue.drop(count_max, excess)
    return backing_queue.status().ready_bytes > max_bytes

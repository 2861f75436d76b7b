"""The length limits of a queue (``max-length``, ``max-length-bytes``): what must go, or what may not come.

They count ready messages only. Whoever calls has delivered before what can be delivered.
"""

from __future__ import annotations

from node.queues.backing_queue import BackingQueue, Publication
from node.queues.options import QueueOptions

#: Publications that fit, and those that are refused.
Split = tuple[list[Publication], list[Publication]]


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
    refused: list[Publication] = []
    if max_length is not None:
        room = max(0, max_length - backing_queue.ready)
        refused += publications[room:]
        publications = publications[:room]
    if max_bytes is None:
        return publications, refused
    room = max_bytes - backing_queue.status().ready_bytes
    fitting: list[Publication] = []
    for publication in publications:
        size = len(publication.message.body)
        if size <= room:
            room -= size
            fitting.append(publication)
        else:
            refused.append(publication)
    return fitting, refused


def drop_excess(options: QueueOptions, backing_queue: BackingQueue) -> None:
    """Overflow ``drop-head``: drop from the head what exceeds the limits."""
    max_length, max_bytes = options.max_length, options.max_length_bytes
    if max_length is not None and backing_queue.ready > max_length:
        backing_queue.drop(backing_queue.ready - max_length)
    if max_bytes is not None:
        excess = backing_queue.status().ready_bytes - max_bytes
        while excess > 0 and (dropped := backing_queue.drop(1)):
            excess -= len(dropped[0].message.body)

"""What operators read in a node's log when the record of a queue changes."""

from __future__ import annotations

import logging

from cluster.metadata.events import MastershipChanged
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)


def log_change(queue: QueueRecord, event: MastershipChanged) -> None:
    """Losses and queues that nobody serves are warnings; mirrors that come and go are not worth a line."""
    old, new = event.old, event.new
    if new.is_down:
        if event.reason == "forced" and new.complete != old.complete:
            log.info("%s waits for %s only from now on", queue.queue_name, " or ".join(new.complete))
        if not old.is_down:
            log.warning(
                "%s: nobody can serve it without losing messages; it waits for %s "
                "(`warrenctl force_promote` has another node serve it with what that one has)",
                queue.queue_name,
                " or ".join(new.complete),
            )
    elif new.lossy_promotions > old.lossy_promotions:
        log.warning(
            "%s: %s serves it without having everything that was confirmed: what it lacked is lost (loss %d)",
            queue.queue_name,
            new.master,
            new.lossy_promotions,
        )
    elif (new.epoch, new.in_service) != (old.epoch, old.in_service):
        log.info(
            "%s: %s, master %s -> %s, epoch %d, mirrors %s, synchronised %s, complete %s",
            queue.queue_name,
            event.reason,
            old.master,
            new.master,
            new.epoch,
            list(new.mirrors),
            list(new.synchronised),
            list(new.complete),
        )

"""The files of a queue when a role over them ends, as far as the disk lets us: what cannot be done is logged."""

from __future__ import annotations

import logging

from cluster.runtime.queue_ports import QueueFiles
from node.errors import StorageError
from node.queues.local_replica import LocalReplica
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)


def close_files(queue: QueueRecord, local: LocalReplica, *, delete: bool) -> None:
    """End the hold on the files, which are kept unless ``delete``."""
    try:
        if delete:
            local.delete()
        else:
            local.terminate()
    except StorageError as error:
        log.warning("%s: its files could not be closed cleanly: %s", queue.queue_name, error)
    except Exception:
        log.exception("%s: its files could not be closed cleanly", queue.queue_name)


def delete_files(files: QueueFiles, queue: QueueRecord) -> None:
    """Of a queue that is not open."""
    try:
        files.delete_queue(queue)
    except StorageError as error:
        log.error("%s: its files could not be deleted and stay on the disk: %s", queue.queue_name, error)
    except Exception:
        log.exception("%s: its files could not be deleted and stay on the disk", queue.queue_name)

"""What a data directory has of a queue, whoever runs on it: read only, without opening anything.

An operator who gives up the copies of other nodes is to keep what is here. That a queue has storage says nothing of how
much is in it; how far it is, only an orderly stop of the copy has written down.
"""

from __future__ import annotations

from node.ids import QueueId
from node.queues.vhost_store import vhost_directory
from node.store.deletions import QUEUES_NAME
from node.store.disk.disk import Disk
from node.store.index.terms import read_terms
from node.store.queue_storage import TERMS_NAME, read_stub

#: How far a copy is that was not closed in order, or is open.
UNKNOWN_REACH = 0


def stored_reach(disk: Disk, data_directory: str, vhost: str, queue_id: QueueId) -> int | None:
    """Position below which the storage of a queue has, or had, everything that it ever had; `UNKNOWN_REACH` if nobody
    wrote that down. ``None``: there is no storage of it. Raises `StorageError`."""
    directory = f"{vhost_directory(data_directory, vhost)}/{QUEUES_NAME}/{queue_id}"
    if read_stub(disk, directory) is None:
        return None  # begun, perhaps: a crash came before anything of it was durable
    terms = read_terms(disk, f"{directory}/{TERMS_NAME}", queue_id)
    return UNKNOWN_REACH if terms is None else terms.next_seq_id

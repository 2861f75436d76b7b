"""What a node still has of what nobody owns any more, when everything is healed, taken out and still.

- A shared store has as many references to a message as live entries of the node's queues name it, and no file in which
  nothing lives but the one that is written to.
- Nothing is left of what was deleted, nor of queues that do not exist.
- A file that is open has a name, is open once, and belongs to something that is open. Nobody has dropped one without
  closing it (`SimulatedDisk.descriptors`).

Of all this there may be something while a cluster works, for a moment: deletions and compactions go on in steps. So the
end of a run waits for it (`chaos.sim.ending`).

**What is left out**, as it is meant to stay: what a node has of a queue that it has no part in by the record, for an
operator may come to want it (`cluster.runtime.admin_copies`), and the persistent messages that it names. And what is
meant to last until the next start: files of a shared store that are frozen, which are evidence of damage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from chaos.sim.cluster import SimulatedCluster
from chaos.sim.insides import contents, vhost_stores
from chaos.sim.machine import DATA_DIR
from cluster.composition import Node
from node.ids import MSG_ID_BYTES, MsgId, QueueId
from node.queues.vhost_store import VHOSTS_NAME, VhostStore
from node.store.deletions import DELETING_NAME, QUEUES_NAME
from node.store.disk.simulated import SimulatedDisk
from node.store.shared.msg_store import MessageStore

#: Of one kind, so many are told.
TOLD_MAX = 3


def why_not_given_back(cluster: SimulatedCluster) -> str:
    """What is left of what nobody owns; empty if nothing is."""
    return next(what_is_left(cluster), "")


def what_is_left(cluster: SimulatedCluster) -> Iterator[str]:
    """All of it, in lines that begin with the node."""
    for name, node in cluster.nodes.items():
        disk = cluster.machines[name].disk
        owned = owned_messages(node)
        stores = {store.directory: store for store in vhost_stores(node)}
        for vhost in disk.list(f"{DATA_DIR}/{VHOSTS_NAME}"):
            directory = f"{DATA_DIR}/{VHOSTS_NAME}/{vhost}"
            store = stores.get(directory)
            kept = _kept_queues(node, disk, directory)
            for reason in _left_of_queues(disk, directory, {*kept, *(_open_queues(store) if store else ())}):
                yield f"{name}: {reason}"
            for reason in _left_in_stores(store, owned, kept) if store else ():
                yield f"{name}: {reason}"
        for reason in _left_open(disk, node):
            yield f"{name}: {reason}"


def owned_messages(node: Node) -> Counter[MsgId]:
    """How many live entries of the node's queues name each message."""
    roles = node.runtime.queues.roles
    return Counter(MsgId(envelope[:MSG_ID_BYTES]) for role in roles.values() for _, envelope in contents(role))


def _kept_queues(node: Node, disk: SimulatedDisk, directory: str) -> list[str]:
    """Names of the directories, in that of a vhost, of queues that there are, and that this node has no part in."""
    records, here = node.runtime.metadata.state.masterships, node.runtime.node
    kept = []
    for name in disk.list(f"{directory}/{QUEUES_NAME}"):
        record = records.get(QueueId(int(name)))
        if record is not None and here not in (record.master, *record.mirrors):
            kept.append(name)
    return kept


def _left_of_queues(disk: SimulatedDisk, directory: str, known: Collection[str]) -> Iterator[str]:
    """In the directory of a vhost, whether the node has opened that or has nothing of its queues."""
    deleted = disk.list(f"{directory}/{DELETING_NAME}")
    if deleted:
        yield f"of deleted queues there is still {_some(deleted)}"
    unknown = [name for name in disk.list(f"{directory}/{QUEUES_NAME}") if name not in known]
    if unknown:
        yield f"there are directories of queues that are not open: {_some(unknown)}"


def _open_queues(store: VhostStore) -> set[str]:
    return {str(queue_id) for queue_id in store._open}


def _left_in_stores(store: VhostStore, owned: Counter[MsgId], kept: list[str]) -> Iterator[str]:
    persistent, transient = store._stores
    if any(_unowned(persistent, owned)):
        for name in kept:
            for _, named in store._named_in(f"{store.directory}/{QUEUES_NAME}/{name}", lambda: None):
                owned = owned + Counter(msg_id for _, msg_id in named)
    yield from _left_in_store("persistent", persistent, owned)
    yield from _left_in_store("transient", transient, owned)


def _unowned(store: MessageStore, owned: Counter[MsgId]) -> Iterator[str]:
    for msg_id, location in store._table.items():
        if location.references > owned[msg_id]:
            yield f"{msg_id.hex()} ({location.references} references, {owned[msg_id]} of them owned)"


def _left_in_store(kind: str, store: MessageStore, owned: Counter[MsgId]) -> Iterator[str]:
    if unowned := list(_unowned(store, owned)):
        counts = ", which the next start is to count" if store._is_to_be_counted else ""
        yield f"in the store of {kind} messages nobody owns {_some(unowned)}{counts}"
    files = store._files
    dead = [
        files.path(number)
        for number, summary in files.summaries.items()
        if not summary.valid_bytes and not summary.is_frozen and number != files.current
    ]
    if dead:
        yield f"files of {kind} messages in which nothing lives: {_some(dead)}"


def _left_open(disk: SimulatedDisk, node: Node) -> Iterator[str]:
    if disk.descriptors.dropped:
        yield f"files were dropped without being closed: {_some(disk.descriptors.dropped)}"
    opened = disk.open_files()
    nameless = [path for path, now in opened if now is None]
    if nameless:
        yield f"files are open that have no name any more: {_some(nameless)}"
    often = [path for path, count in Counter(now for _, now in opened if now is not None).items() if count > 1]
    if often:
        yield f"files are open more than once: {_some(often)}"
    stores = {store.directory: store for store in node.runtime._files._vhosts.values()}
    stray = [now for _, now in opened if now is not None and _is_stray(now, stores)]
    if stray:
        yield f"files are open whose owners are closed: {_some(stray)}"


def _is_stray(path: str, stores: dict[str, VhostStore]) -> bool:
    """It is of a vhost, and of nothing that is open there."""
    directory = next((directory for directory in stores if path.startswith(f"{directory}/")), None)
    if directory is None:
        return "/vhosts/" in path
    part, _, rest = path.removeprefix(f"{directory}/").partition("/")
    if part == DELETING_NAME:
        return True
    return part == QUEUES_NAME and rest.partition("/")[0] not in _open_queues(stores[directory])


def _some(names: list[str]) -> str:
    """Not more than anybody wants to read."""
    more = f" and {len(names) - TOLD_MAX} more" if len(names) > TOLD_MAX else ""
    return ", ".join(names[:TOLD_MAX]) + more

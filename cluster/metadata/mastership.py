"""The rules of mastership: what each event does to the record of one queue. Pure functions, a record in, a record out.

Definitions. A *live* replica is on a node that is up. A *synchronised* one holds everything that was ever confirmed
and is not settled. The record names one master; while ``is_down`` it is a dead one and nobody serves the queue.

Why this never promotes over a better copy. A master confirms a publish only when every replica in the record has it,
and leaves a replica out only by a committed change of the record that names its own epoch. So, at any point of the log,
the synchronised mirrors in the record and the master hold everything confirmed; promoting any of them loses nothing. A
node that leaves the record while others go on serving may miss what they confirm from then on: it is forgotten at
once. Only the replicas in the record at the moment when service stops stay complete, because nobody can confirm
anything after; those are ``recoverable``.

Every change of master, and every return to service, raises the epoch; whoever acts under a lower one is refused.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.metadata.records import MastershipRecord
from cluster.policy.suggestion import CurrentPlacement, Suggestion
from node.ids import Epoch, NodeName, QueueId

FIRST_EPOCH = Epoch(1)


def new_record(queue_id: QueueId, placement: Suggestion) -> MastershipRecord:
    """A new queue is empty: every mirror holds all of it."""
    return MastershipRecord(queue_id, FIRST_EPOCH, placement.master, placement.mirrors, placement.mirrors)


def placement_of(record: MastershipRecord) -> CurrentPlacement:
    return CurrentPlacement(record.master, record.mirrors, record.synchronised)


def _without(nodes: tuple[NodeName, ...], gone: NodeName) -> tuple[NodeName, ...]:
    return tuple(node for node in nodes if node != gone)


def drop_mirror(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """Service goes on without ``node``."""
    return replace(record, mirrors=_without(record.mirrors, node), synchronised=_without(record.synchronised, node))


def add_mirror(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """A new youngest mirror, which lacks everything so far."""
    assert node not in (record.master, *record.mirrors), f"{node} holds queue {record.queue_id} already"
    return replace(record, mirrors=(*record.mirrors, node))


def mark_synchronised(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """A mirror has caught up. The order of ``synchronised`` is that of ``mirrors``."""
    if node not in record.mirrors:
        return record
    synchronised = tuple(mirror for mirror in record.mirrors if mirror == node or mirror in record.synchronised)
    return replace(record, synchronised=synchronised)


def mark_unsynchronised(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    return replace(record, synchronised=_without(record.synchronised, node))


def promote(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """Make a mirror the master; the old master leaves the record."""
    assert node in record.mirrors, f"{node} is no mirror of queue {record.queue_id}"
    is_lossy = node not in record.synchronised
    return replace(
        record,
        epoch=Epoch(record.epoch + 1),
        master=node,
        mirrors=_without(record.mirrors, node),
        # After a lossy promotion nobody holds what was lost; the others are compared with the new master anew.
        synchronised=() if is_lossy else _without(record.synchronised, node),
        recoverable=(),
        is_down=False,
        lossy_promotions=record.lossy_promotions + is_lossy,
    )


def move_master(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """Make a synchronised mirror the master; the old one, which holds everything too, becomes the youngest mirror."""
    assert node in record.synchronised, "a planned move never loses anything"
    moved = promote(record, node)
    return replace(moved, mirrors=(*moved.mirrors, record.master), synchronised=(*moved.synchronised, record.master))


def node_down(
    record: MastershipRecord, node: NodeName, promotes_unsynchronised: bool, is_durable: bool
) -> MastershipRecord | None:
    """``node`` is gone. ``None``: nothing of the queue is left, it is to be deleted."""
    if node != record.master:
        return drop_mirror(record, node)
    if record.is_down:
        return record
    if record.synchronised:
        return promote(record, record.synchronised[0])
    if record.mirrors and promotes_unsynchronised:
        return promote(record, record.mirrors[0])
    if record.mirrors or is_durable:
        return replace(record, is_down=True, recoverable=(node,))
    return None


def node_up(record: MastershipRecord, node: NodeName, is_content_lost: bool) -> MastershipRecord:
    """``node`` is back. If the queue waited for it, it is the master again.

    ``is_content_lost``: its copy lived in memory only and the process is another one.
    """
    if not record.is_down or (node != record.master and node not in record.recoverable):
        return record
    return replace(
        drop_mirror(record, node),
        epoch=Epoch(record.epoch + 1),
        master=node,
        recoverable=(),
        is_down=False,
        lossy_promotions=record.lossy_promotions + is_content_lost,
    )


def master_restarted(record: MastershipRecord) -> MastershipRecord:
    """The master's process was replaced by another one on the same disk before anybody noticed."""
    return replace(record, epoch=Epoch(record.epoch + 1))


def place(record: MastershipRecord, wanted: Suggestion) -> MastershipRecord:
    """Bring the record to where the policy wants it: move the master, drop the surplus, add what is missing."""
    assert not record.is_down, "nobody serves the queue, so nobody can fill a new mirror"
    if wanted.master != record.master:
        record = move_master(record, wanted.master)
    for node in record.mirrors:
        if node not in wanted.mirrors:
            record = drop_mirror(record, node)
    for node in wanted.mirrors:
        if node not in record.mirrors:
            record = add_mirror(record, node)
    return record


def check_record(record: MastershipRecord) -> None:
    """The relations that hold between the fields of every record."""
    assert record.epoch >= FIRST_EPOCH, "epochs begin with 1"
    assert record.master not in record.mirrors, "one node holds a queue once"
    assert len(set(record.mirrors)) == len(record.mirrors), "one node holds a queue once"
    in_order = tuple(mirror for mirror in record.mirrors if mirror in record.synchronised)
    assert record.synchronised == in_order, "synchronised mirrors are mirrors, in the same order"
    assert record.is_down == bool(record.recoverable), "a queue that is down waits for somebody"
    if record.is_down:
        assert not record.synchronised, "a synchronised mirror that is up would have been promoted"
        assert not set(record.recoverable) & set(record.mirrors), "who is up need not be waited for"

"""The rules of mastership: what each event does to the record of one queue. Pure functions, a record in, a record out.

Definitions. A copy is *complete* if it holds everything that was ever confirmed, is not settled and survives a restart
(of a durable queue: the persistent messages; a copy of another queue is in memory only, and ends with its process or
with its part in the record). A mirror is *synchronised* if it holds the transient messages too. It is *following* if it
hears of every operation of the master in service, whatever it lacks from before. The record remembers all three, of
nodes that are up; of those that are down it remembers who is complete.

What the cluster knows of life and death is always old: a node counts as up until its `NodeDown` or the `NodeUp` of its
next life is committed, and after a loss of power every node counts as up although none is. So an election proves
nothing. It names somebody who may serve; whoever is named *takes service* by a commit of its own, which only a node
that lives and has opened its copy can propose. The rules:

1. **Only the master in service makes copies incomplete.** It confirms nothing as long as a complete copy is not among
   its mirrors, and of those that are it waits for each. To go on without one it takes service once more; that commit
   is what ends the completeness of the copy. So at any point of the log every copy called complete is, however
   stale the news that led to the elections before; and it stays so through any number of restarts of its node.
2. **Before it takes service a master touches nothing**: it attaches to no mirror, so no copy is trimmed to one that
   was merely named, and it neither delivers nor confirms.
3. **Who is elected** when the master is gone: the oldest synchronised mirror; else the oldest complete one; else, if
   the policy says ``always``, a node that is up and has a complete copy on its disk (it was dropped just before), else
   the oldest following mirror, which may lack something (`lossy_promotions` counts it when it takes service). Else
   nobody: the queue is down until a complete copy comes back, and the first that does is elected. (A node that is up
   says so by itself, if its copy can be opened: `cluster.runtime.presence`.)
   A copy that only restarted is not following, so that it came back first gives it no claim. An incomplete master that
   has not taken service yet gives way to a complete copy that returns.
4. **Placement waits for service.** No mirror is added or discarded by policy while the queue waits: a newcomer
   could only be filled from nothing, and what would be discarded may be the only complete copy.
   A mirror that leaves by itself is replaced under ``exactly``, by a node that has not left the queue itself since it
   is up; what it holds counts as before.
5. **An operator may give up waiting** (`force_promote`, `forget_node`); what is lost by it is counted like any other.
   Of copies that are neither complete nor mirrors the record knows nothing: who carries out such a command looks for
   them first, and promotes them (`cluster.runtime.admin_copies`, `cluster.runtime.offline_forgetting`).

The cost is one commit more per failover, batched over the queues of a node (`TakeService`). Kafka remembers replicas
that are down and may lead for the same reason (KIP-966, *eligible leader replicas*); there an unclean shutdown ends
that, since what was acknowledged may not have been flushed, whereas here what was confirmed was synced.

Every change of master, and every return to service after a restart, raises the epoch; whoever acts under a lower one
is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from cluster.metadata.records import MastershipRecord
from cluster.policy.placement import CurrentPlacement, Suggestion
from node.ids import Epoch, NodeName, QueueId

#: Versions of these rules, by what they began with. A log begins under version 1 (promotion is service) and goes on
#: under version 2 from the first `NodeUp` that announces it: masters of before never took service, and copies that they
#: had left behind must not pass for complete.
TAKING_SERVICE = 2
#: Later ones come with the protocol of that number (`cluster.metadata.protocol`): all members have to know them.
#: ``ha-promote-on-failure: when-synced`` holds for stops as well, whatever ``ha-promote-on-shutdown`` says.
FAILURE_DECIDES_STOPS = 3
#: Under ``exactly`` a mirror that left by itself is replaced.
REPLACING_MIRRORS = 3
#: As long as there is a synchronised mirror no other is handed over to, though it be complete (it restarted): what the
#: master knew when it asked may be old when that is committed.
HANDING_TO_HEIRS = 3
#: Who was dropped and is complete still goes before a mirror that may lack something.
ELECTING_DROPPED = 3
LATEST_VERSION = 3

FIRST_EPOCH = Epoch(1)
#: What ``ha-promote-on-failure`` and ``ha-promote-on-shutdown`` are if the policy does not say (as in RabbitMQ).
DEFAULT_PROMOTE = {"failure": "always", "shutdown": "when-synced"}


def version_with(protocol: int) -> int:
    """The rules that hold when all members speak this."""
    return min(protocol, LATEST_VERSION)


def new_record(queue_id: QueueId, placement: Suggestion) -> MastershipRecord:
    """A new queue is empty: every copy holds all of it, and nobody has to be asked."""
    mirrors = placement.mirrors
    return MastershipRecord(
        queue_id,
        FIRST_EPOCH,
        placement.master,
        mirrors,
        synchronised=mirrors,
        complete=(placement.master, *mirrors),
        following=mirrors,
        served_epoch=Epoch(0),
    )


def placement_of(record: MastershipRecord) -> CurrentPlacement:
    return CurrentPlacement(record.master, record.mirrors, record.synchronised, record.complete)


def is_settled(record: MastershipRecord) -> bool:
    """The master is in service, and every complete copy is its own or one of its mirrors': it may confirm."""
    return record.in_service and all(node == record.master or node in record.mirrors for node in record.complete)


def _without(nodes: tuple[NodeName, ...], gone: NodeName) -> tuple[NodeName, ...]:
    return tuple(node for node in nodes if node != gone)


# --- mirrors


def drop_mirror(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """``node`` is no mirror any more. It stays complete, if it was, until the master takes service without it."""
    return replace(
        record,
        mirrors=_without(record.mirrors, node),
        synchronised=_without(record.synchronised, node),
        following=_without(record.following, node),
    )


def discard_mirror(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """The policy does not want a copy on ``node``, which deletes it; the master, in service, has everything."""
    assert record.in_service, "a copy is discarded only beside one that serves"
    return replace(drop_mirror(record, node), complete=_without(record.complete, node))


def add_mirror(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """A new youngest mirror. Nothing is known of what it has, unless it is complete."""
    assert node not in (record.master, *record.mirrors), f"{node} holds queue {record.queue_id} already"
    return replace(record, mirrors=(*record.mirrors, node))


def mark_following(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """From now on a mirror hears of everything. The order of ``following`` is that of ``mirrors``."""
    following = tuple(mirror for mirror in record.mirrors if mirror == node or mirror in record.following)
    return replace(record, following=following)


def mark_synchronised(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """A mirror has caught up. The order of ``synchronised`` is that of ``mirrors``.

    The news may come when the master that sent it is dead and the queue is down: then the mirror is elected, for that
    master has confirmed nothing without it since.
    """
    synchronised = tuple(mirror for mirror in record.mirrors if mirror == node or mirror in record.synchronised)
    complete = record.complete if node in record.complete else (*record.complete, node)
    marked = mark_following(replace(record, synchronised=synchronised, complete=complete), node)
    return _elect(marked, node) if record.is_down else marked


def mark_unsynchronised(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    return replace(record, synchronised=_without(record.synchronised, node), complete=_without(record.complete, node))


# --- service


def take_service(record: MastershipRecord) -> MastershipRecord:
    """The master lives, has opened its copy, and goes on with the mirrors that it has now."""
    assert not record.is_down, "nobody is there to serve"
    is_lossy = record.master not in record.complete
    complete = () if is_lossy else tuple(mirror for mirror in record.mirrors if mirror in record.complete)
    return replace(
        record,
        complete=(record.master, *complete),
        lossy_promotions=record.lossy_promotions + is_lossy,
        # Who followed an earlier master has yet to hear of this one.
        following=record.following if record.in_service else record.synchronised,
        in_service=True,
    )


def _served_epoch(record: MastershipRecord) -> Epoch | None:
    """The last epoch in which a master was in service, this one included."""
    return record.epoch if record.in_service else record.served_epoch


def last_served_epoch(record: MastershipRecord) -> Epoch:
    """The last epoch, before that of ``record``, whose master may have delivered anything."""
    return Epoch(record.epoch - 1) if record.served_epoch is None else record.served_epoch


def _elect(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """Name ``node`` the master of a new epoch; the old master leaves the record."""
    elected = replace(
        drop_mirror(record, node),
        epoch=Epoch(record.epoch + 1),
        master=node,
        is_down=False,
        in_service=False,
        served_epoch=_served_epoch(record),
    )
    # What an incomplete master lacks is lost, and the others are compared with it anew.
    return elected if node in record.complete else replace(elected, synchronised=())


def _elect_any(record: MastershipRecord, is_loss_allowed: bool, up: Collection[NodeName] = ()) -> MastershipRecord:
    """The master is gone: name the best of the mirrors, or wait for a complete copy (rule 3).

    ``up`` as in `node_down`.
    """
    if complete := heirs(record):
        return _elect(record, complete[0])
    if is_loss_allowed and record.following:
        dropped = (node for node in record.complete if node in up)
        return _elect(record, next(dropped, record.following[0]))
    if not record.complete:
        return _elect_incomplete(record)
    awaited = record.master if record.master in record.complete else record.complete[0]
    return replace(record, master=awaited, is_down=True, in_service=False, served_epoch=_served_epoch(record))


def _elect_incomplete(record: MastershipRecord) -> MastershipRecord:
    """Nobody has the content, and nobody ever will: name the best of what is left, or begin with an empty queue."""
    return _elect(record, (*record.following, *record.mirrors, record.master)[0])


def _restart_epoch(record: MastershipRecord) -> MastershipRecord:
    """The master is the same node in another life; by announcing that it has said that it lives."""
    served_epoch = _served_epoch(record)
    restarted = replace(
        record, epoch=Epoch(record.epoch + 1), is_down=False, in_service=False, served_epoch=served_epoch
    )
    return take_service(restarted) if record.complete == (record.master,) else restarted


def heirs(record: MastershipRecord) -> tuple[NodeName, ...]:
    """Mirrors to one of which a master that lost its copy can hand over, the best first."""
    return record.synchronised or tuple(mirror for mirror in record.mirrors if mirror in record.complete)


def may_move_to(record: MastershipRecord, node: NodeName, rules_version: int) -> bool:
    """One of the `heirs`, if these rules say so; any mirror that has what survives a restart, before."""
    if rules_version >= HANDING_TO_HEIRS:
        return node in heirs(record)
    return node in record.mirrors and node in record.complete


def move_master(record: MastershipRecord, node: NodeName, is_old_lost: bool = False) -> MastershipRecord:
    """Make a mirror that `may_move_to` names the master; the old one becomes the youngest mirror.

    It holds everything, too, unless ``is_old_lost``: its disk has failed.
    """
    assert node in record.mirrors, "a planned move is to a node that has a copy"
    assert node in record.complete, "a planned move never loses anything"
    old = record.master
    moved = add_mirror(_elect(record, node), old)
    if is_old_lost:
        return replace(moved, complete=_without(moved.complete, old))
    if node not in record.synchronised or not record.in_service:
        return moved  # they may differ in transient messages
    return replace(moved, synchronised=(*moved.synchronised, old), following=(*moved.following, old))


# --- members


def is_loss_allowed(policy: Mapping[str, Any], reason: Literal["failure", "shutdown"], rules_version: int) -> bool:
    """Whether a mirror that lacks something may take over from a master that went for this reason.

    Who does not want that after a failure does not want it after a stop (RabbitMQ).
    """
    asked = (reason, "failure") if rules_version >= FAILURE_DECIDES_STOPS else (reason,)
    return all(policy.get(f"ha-promote-on-{each}", DEFAULT_PROMOTE[each]) == "always" for each in asked)


def node_down(
    record: MastershipRecord, node: NodeName, is_loss_allowed: bool, is_durable: bool, up: Collection[NodeName] = ()
) -> MastershipRecord | None:
    """``node`` is gone. ``is_loss_allowed``: a following mirror may take over (``always``). ``up``: nodes that are up,
    if what they have of the queue survives that they leave the record.

    ``None``: nothing of the queue is left, it is to be deleted.
    """
    if node != record.master or record.is_down:
        return drop_mirror(record, node)
    if not record.mirrors and not is_durable:
        return None
    return _elect_any(record, is_loss_allowed, up)


def node_up(record: MastershipRecord, node: NodeName, is_copy_lost: bool) -> MastershipRecord:
    """``node`` is up, in whatever life. ``is_copy_lost``: its copy lived in memory only and the process is another."""
    if is_copy_lost:
        record = replace(record, complete=_without(record.complete, node))
    if record.is_down:
        if node in record.complete:
            return _return_to(record, node)
        if not record.complete:
            return _elect_incomplete(replace(record, master=node))
        return record if record.master in record.complete else replace(record, master=record.complete[0])
    is_stranger = node not in (record.master, *record.mirrors)
    if record.in_service or node not in record.complete or not is_stranger:
        return record
    if record.master not in record.complete:
        return add_mirror(_elect(record, node), record.master)
    return add_mirror(record, node)


def _return_to(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """The first complete copy of a queue that is down is back."""
    return _restart_epoch(replace(drop_mirror(record, node), master=node))


def node_restarted(
    record: MastershipRecord, node: NodeName, is_loss_allowed: bool, is_durable: bool
) -> MastershipRecord | None:
    """``node`` runs in a new life although nobody saw the one before end: what lived in its memory is gone.

    ``None`` as in `node_down`.
    """
    if not is_durable:
        record = replace(record, complete=_without(record.complete, node))
    if node in record.mirrors:
        # The youngest now: others have followed for longer.
        record = add_mirror(drop_mirror(record, node), node)
    elif node == record.master and not record.is_down:
        if record.synchronised:
            # Transient messages were in its memory only; the oldest synchronised mirror has them still.
            record = _elect(record, record.synchronised[0])
        elif node in record.complete:
            return _restart_epoch(record)
        elif not record.mirrors and not is_durable:
            return None
        else:
            record = _elect_any(record, is_loss_allowed)
    return node_up(record, node, is_copy_lost=not is_durable)


# --- operators and policies


def force_promote(record: MastershipRecord, node: NodeName) -> MastershipRecord:
    """``node``, which is up, is to serve a queue that nobody serves, with what it has."""
    assert not record.in_service, "what is served needs no force"
    elected = _elect(record, node)
    is_old_up = not record.is_down and record.master != node
    return add_mirror(elected, record.master) if is_old_up else elected


def forget_node(record: MastershipRecord, node: NodeName) -> MastershipRecord | None:
    """``node`` is down and never comes back. ``None``: nobody else has anything of the queue, it is to be deleted."""
    if node not in record.complete:
        return record
    left = replace(record, complete=_without(record.complete, node))
    if left.complete:
        return replace(left, master=left.complete[0]) if record.is_down else left
    if record.is_down and not record.mirrors:
        return None
    given_up = _elect_incomplete(left) if record.is_down else left
    # From now on it is the elected master's copy that is waited for, should that one go before it takes service.
    return replace(
        given_up,
        complete=(given_up.master,),
        synchronised=(),
        lossy_promotions=given_up.lossy_promotions + 1,
    )


def place(record: MastershipRecord, wanted: Suggestion, is_durable: bool) -> MastershipRecord:
    """Bring the record to where the policy wants it: move the master, discard the surplus, add what is missing.

    After a move the rest has to wait until the new master is in service.
    """
    assert record.in_service, "nobody serves the queue, so nobody can fill a new mirror"
    if wanted.master != record.master:
        return move_master(record, wanted.master)
    for node in record.mirrors:
        if node not in wanted.mirrors:
            record = discard_mirror(record, node)
    for node in wanted.mirrors:
        if node not in record.mirrors:
            record = take_mirror(record, node, is_durable)
    return record


def take_mirror(record: MastershipRecord, node: NodeName, is_durable: bool) -> MastershipRecord:
    """Add a mirror on a node that was in no part of the record: what it had in memory only has ended since."""
    added = add_mirror(record, node)
    return added if is_durable else mark_unsynchronised(added, node)


def place_copies(
    record: MastershipRecord, wanted: Suggestion, is_durable: bool
) -> tuple[MastershipRecord, tuple[NodeName, ...]]:
    """As `place`; and the mirrors that are discarded."""
    placed = place(record, wanted, is_durable)
    if placed.master != record.master:
        return placed, ()
    return placed, tuple(node for node in record.mirrors if node not in placed.mirrors)


# --- the first version of these rules, and what always holds


def as_in_version_1(record: MastershipRecord) -> MastershipRecord:
    """A record as the rules before `TakeService` meant it: a promotion was the service, and made the rest incomplete.

    For logs and snapshots of that time (`cluster.metadata.state`). Any mirror could be promoted under ``always`` then.
    """
    if record.is_down:
        return replace(record, complete=record.complete or (record.master,), following=(), in_service=False)
    is_lossy = not record.in_service and record.master not in record.complete
    return replace(
        record,
        complete=(record.master, *record.synchronised),
        lossy_promotions=record.lossy_promotions + is_lossy,
        following=record.mirrors,
        in_service=True,
    )


def check_record(record: MastershipRecord) -> None:
    """The relations that hold between the fields of every record."""
    assert record.epoch >= FIRST_EPOCH, "epochs begin with 1"
    assert record.master not in record.mirrors, "one node holds a queue once"
    for nodes in (record.mirrors, record.complete):
        assert len(set(nodes)) == len(nodes), "one node holds a queue once"
    for some in (record.synchronised, record.following):
        assert some == tuple(mirror for mirror in record.mirrors if mirror in some), "mirrors, in the same order"
    assert set(record.synchronised) <= set(record.complete), "who is synchronised is complete"
    assert set(record.synchronised) <= set(record.following), "who is synchronised is following"
    if record.served_epoch is not None:
        assert record.served_epoch < record.epoch + record.is_down, "service in this epoch is told by ``in_service``"
    if record.in_service:
        assert not record.is_down, "nobody serves a queue that is down"
        assert record.master in record.complete, "who serves holds everything that it confirms"
    if record.is_down:
        assert record.master in record.complete, "a queue that is down waits for somebody"
        assert not set(record.complete) & set(record.mirrors), "a complete mirror that is up would have been elected"

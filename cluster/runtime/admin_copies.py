"""Which nodes have something of a queue that nobody serves, and what an operator's command does with that.

The record of a queue names the complete copies, and of the others only those of mirrors that are up. What else lies on
the disks of the members is known to these alone: a copy whose node has restarted since, or that a master went on
without. So before an operator gives up the copies of a node, or has a queue served by another one, those that are up
are asked, over their admin services.

**Forgetting.** The rules of the record (`mastership.forget_node`) leave a queue to the mirrors that it names, and
delete it if there are none. Queues that waited for the forgotten node only, and of which no mirror followed the
master, are given before that to a node that has something: a promotion by force for each, then the commit that
forgets. In between lies what lies between two commands of an operator: if the node comes back in that moment it is not
forgotten, and what it alone had may be given up all the same, as he had ordered. And if an heir goes in that moment,
what it was to serve is not deleted: the commit says which queues may be (`commands.ForgetNode`), and is refused.

Of several nodes with something, a mirror of the record comes first, then the copy that is known to reach farthest
(`node.queues.stored_copies`). Who wants another one says so by `force_promote`, before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.metadata.commands import Command, ForcePromote, ForgetNode
from cluster.metadata.errors import ASK_OR_CONFIRM, RefusedChangeError, some_of
from cluster.metadata.mastership import last_served_epoch
from cluster.metadata.records import MastershipRecord
from cluster.runtime.admin_peers import AdminPeers
from cluster.runtime.node_runtime import NodeRuntime
from cluster.transport.admin_port import AdminRefused, ExitCode
from cluster.transport.turns import ROWS_PER_TURN, in_turns
from node.ids import Epoch, NodeName, QueueId
from node.pieces import make_each
from node.topology.records import QueueRecord

#: Promotions that are proposed together.
PROMOTIONS_AT_ONCE = 64


@dataclass(slots=True)
class Inheritance:
    """What is left of the queues that wait for one node only."""

    #: All of them, by their ids; those included that an incomplete copy is about to serve.
    queues: dict[QueueId, QueueRecord]
    #: Those that a node gets which the rules would pass over.
    heirs: dict[QueueId, NodeName] = field(default_factory=dict)
    #: What their promotions say of when that was found.
    served_epochs: dict[QueueId, Epoch | None] = field(default_factory=dict)
    #: Durable ones that would be deleted, as far as is known; those included of which only mirrors are left that did
    #: not answer: who is silent may be about to go.
    lost: list[QueueRecord] = field(default_factory=list)
    #: Members that did not say what they have.
    unheard: list[NodeName] = field(default_factory=list)


class AdminCopies:
    """See the top of this module."""

    def __init__(self, runtime: NodeRuntime, peers: AdminPeers) -> None:
        self._runtime = runtime
        self._state = runtime.metadata.state
        self._peers = peers

    async def held_here(self, queue_ids: Sequence[QueueId]) -> Mapping[QueueId, int]:
        """`AdminPort.held_copies`. Raises `StorageError`."""
        queues = (self._state.topology.queue_by_id(queue_id) for queue_id in queue_ids)
        known = [queue for queue in queues if queue is not None]
        reaches = await in_turns(make_each(self._runtime.copy_reach, known, ROWS_PER_TURN))
        return {queue.queue_id: reach for queue, reach in zip(known, reaches, strict=True) if reach is not None}

    async def _held(
        self, nodes: Sequence[NodeName], queue_ids: Sequence[QueueId]
    ) -> dict[NodeName, Mapping[QueueId, int]]:
        """Of those of the nodes that answer."""
        here = self._runtime.node
        found = await self._peers.held_copies([node for node in nodes if node != here], queue_ids)
        if here in nodes:
            found[here] = await self.held_here(queue_ids)
        return found

    async def _all_changed(self) -> None:
        """That a node is down its record says first, and those of thousands of queues some turns later."""
        while self._state.is_changing:  # noqa: ASYNC110 - for some turns
            await asyncio.sleep(0)

    def _reachable(self) -> list[NodeName]:
        return sorted([self._runtime.node, *self._runtime.links.linked_nodes()])

    # --- promotions ---

    async def served_epoch(self, queue: QueueRecord) -> Epoch | None:
        """What a promotion that is decided on now may say of when it is."""
        await self._all_changed()
        record = self._state.masterships.get(queue.queue_id)
        return None if record is None else self._said(record)

    def _said(self, record: MastershipRecord) -> Epoch | None:
        return last_served_epoch(record) if self._state.has_times else None

    async def require_something(self, queue: QueueRecord, node: NodeName) -> None:
        """Raise `AdminRefused` if ``node`` has nothing of a queue that it could be made to serve, or does not say."""
        await self._all_changed()
        if queue.queue_id not in self._state.masterships:
            return
        record, member = self._state.masterships[queue.queue_id], self._state.members.get(node)
        if record.in_service or member is None or not member.is_up or node in record.complete:
            return  # the promotion needs no copy, or is refused for a better reason
        held = await self._held(self._reachable(), [queue.queue_id])
        if node not in held:
            text = f"{node} did not say whether it has anything of queue '{queue.name}': ask again"
            raise AdminRefused(ExitCode.TEMPORARY, f"{text}, or give --empty to have it serve whatever it has")
        if queue.queue_id not in held[node]:
            holders = [name for name, copies in held.items() if queue.queue_id in copies]
            raise AdminRefused(ExitCode.SOFTWARE, _nothing_there(queue, record, node, holders))

    # --- forgetting ---

    async def inheritance(self, node: NodeName) -> Inheritance:
        """Of a node that is to be forgotten."""
        await self._all_changed()
        waiting = {
            queue_id: record
            for queue_id, record in self._state.masterships.items()
            if not record.in_service and record.complete == (node,)
        }
        queues = {queue_id: self._state.topology.queue_by_id(queue_id) for queue_id in waiting}
        found = Inheritance({queue_id: queue for queue_id, queue in queues.items() if queue is not None})
        down = [each for each in found.queues if waiting[each].is_down]
        if not down:
            return found
        held = await self._held(self._reachable(), down)
        others = sorted(member for member in self._state.members if member != node)
        found.unheard = [member for member in others if member not in held]
        for queue_id in down:
            queue, record = found.queues[queue_id], waiting[queue_id]
            copies = {name: copies[queue_id] for name, copies in held.items() if queue_id in copies}
            heir = None if record.following else _best(record, copies)
            if heir is not None:
                found.heirs[queue_id], found.served_epochs[queue_id] = heir, self._said(record)
            elif queue.durable and not any(mirror in held for mirror in record.mirrors):
                found.lost.append(queue)
        return found

    @staticmethod
    def require_confirmation(found: Inheritance) -> None:
        """Raise `AdminRefused` if something might be deleted of which a member that is left has a part."""
        if not found.lost or not found.unheard:
            return
        queues = some_of([str(queue.queue_name) for queue in found.lost])
        raise AdminRefused(
            ExitCode.SOFTWARE,
            f"{queues} would be deleted, and {', '.join(found.unheard)} did not say whether anything of it is there: "
            f"{ASK_OR_CONFIRM}",
        )

    def forgetting(self, command: ForgetNode, found: Inheritance) -> ForgetNode:
        """``command`` without a confirmation: no queue is deleted by it but those of which nobody had anything.

        While a member may not know of that it stays as it is.
        """
        if not self._state.has_times:
            return command
        return replace(command, is_confirmed=False, lost_queues=tuple(sorted(queue.queue_id for queue in found.lost)))

    async def hand_over(self, found: Inheritance, change: Callable[[Command], Coroutine[Any, Any, Any]]) -> None:
        """Have the heirs serve. ``change`` commits a command; raises `WarrenError`."""
        promotions = [
            ForcePromote(queue_id, heir, found.served_epochs[queue_id]) for queue_id, heir in found.heirs.items()
        ]
        for begin in range(0, len(promotions), PROMOTIONS_AT_ONCE):
            some = promotions[begin : begin + PROMOTIONS_AT_ONCE]
            outcomes = await asyncio.gather(*(change(promotion) for promotion in some), return_exceptions=True)
            for outcome in outcomes:
                # Refused: the queue is or was served, or is gone, or its heir is down by now. What forgetting means
                # then the rules decide by what is committed; if that is a deletion nobody has agreed to it, and it is
                # refused, too.
                if isinstance(outcome, BaseException) and not isinstance(outcome, RefusedChangeError):
                    raise outcome

    def served_by(self, found: Inheritance) -> dict[str, NodeName]:
        """Those of the queues that are still there, by their names, and whose copy is to serve."""
        records = self._state.masterships
        return {
            str(queue.queue_name): records[queue_id].master
            for queue_id, queue in found.queues.items()
            if queue_id in records
        }


def _best(record: MastershipRecord, reaches: Mapping[NodeName, int]) -> NodeName | None:
    """Of nodes that have something of a queue."""
    if not reaches:
        return None
    return min(reaches, key=lambda node: (node not in record.mirrors, -reaches[node], node))


def _nothing_there(queue: QueueRecord, record: MastershipRecord, node: NodeName, holders: Sequence[NodeName]) -> str:
    complete = f"a complete copy was on {', '.join(record.complete)}" if record.complete else "nobody has all of it"
    others = f"{' and '.join(holders)} {'has' if len(holders) == 1 else 'have'} something of it"
    return (
        f"{node} has nothing of queue '{queue.name}', which would begin empty there and stay without what was in it; "
        f"{complete}, and of the nodes that are up {others if holders else 'nobody has anything of it'}. "
        "If an empty queue is meant: --empty"
    )

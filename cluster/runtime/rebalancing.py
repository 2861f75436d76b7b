"""Moving masters so that the nodes serve nearly as many queues each: plans by `cluster.policy.rebalancing`, carried out
some at a time, each as an operator could follow it.

A move is a commit (`MoveMaster`) under the epoch that the queue has just before, to a mirror that is synchronised just
before; then the new master takes service, which is waited for before the next queue moves. So at most `MOVES_AT_ONCE`
queues pause at a time. What was planned may not be possible any more when its turn comes; that is said, and the rest
goes on. Nothing needs to be undone if whoever asked goes away: every move is whole.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from cluster.metadata.commands import Command, MoveMaster
from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import MetadataState
from cluster.policy.placement import preferred_master_nodes
from cluster.policy.rebalancing import MovableQueue, Move, RebalancePlan
from node.errors import WarrenError
from node.ids import NodeName, QueueId
from node.patterns import is_found
from node.topology.records import QueueRecord

MOVES_AT_ONCE = 4
#: A new master takes service within milliseconds; one that has to open its copy first may take longer.
SERVICE_TIMEOUT_S = 30.0
_LOOK_S = 0.02

Report = Mapping[str, Any]


class Rebalancing:
    """One run over the queues of ``state`` that both patterns find."""

    def __init__(
        self,
        state: MetadataState,
        change: Callable[[Command], Coroutine[Any, Any, Any]],
        vhost_pattern: str,
        queue_pattern: str,
    ) -> None:
        """``change`` commits a command; raises `WarrenError`."""
        self._state = state
        self._change = change
        self._vhost_pattern = vhost_pattern
        self._queue_pattern = queue_pattern
        #: (vhost, name) of what was planned for, which may be deleted meanwhile.
        self._names: dict[QueueId, tuple[str, str]] = {}

    async def run(self, *, is_dry_run: bool) -> AsyncIterator[Report]:
        """One report for each move, in the order in which they end, and a last one with ``masters`` of each node."""
        plan = await self._plan()
        moves = plan.moves()
        if is_dry_run:
            for move in moves:
                yield self._report(move, "planned")
            yield {"is_finished": True, "moves": len(moves), "masters": dict(plan.master_count)}
            return
        done = 0
        async for report in self._carry_out(moves):
            done += report["state"] == "moved"
            yield report
        yield {"is_finished": True, "moves": done, "masters": self._master_count()}

    # --- what is there

    def _chosen(self) -> list[QueueRecord]:
        return [
            queue
            for queue in sorted(self._state.topology.all_queues(), key=lambda queue: queue.queue_id)
            if queue.exclusive_owner is None
            and is_found(self._vhost_pattern, queue.vhost)
            and is_found(self._queue_pattern, queue.name)
        ]

    def _running(self) -> list[NodeName]:
        return sorted(member.node for member in self._state.members.values() if member.is_up)

    def _master_count(self) -> dict[NodeName, int]:
        records = [self._state.masterships[queue.queue_id] for queue in self._chosen()]
        count = Counter(record.master for record in records if not record.is_down)
        return {node: count[node] for node in self._running()}

    def _heirs(self, queue: QueueRecord, record: MastershipRecord) -> tuple[NodeName, ...]:
        """Who may serve the queue at once, and would be left to do so by its policy."""
        if not record.in_service:
            return ()
        policy = self._state.policy_of_queue(queue)
        wanted = preferred_master_nodes({} if policy is None else policy.definition, self._running())
        return tuple(node for node in record.synchronised if node in wanted)

    async def _plan(self) -> RebalancePlan:
        queues = []
        for queue in self._chosen():
            self._names[queue.queue_id] = queue.vhost, queue.name
            record = self._state.masterships[queue.queue_id]
            if not record.is_down:
                queues.append(MovableQueue(queue.queue_id, record.master, self._heirs(queue, record)))
        plan = RebalancePlan(self._running(), queues)
        while plan.advance():  # noqa: ASYNC110 - a long plan is made in many turns of the loop
            await asyncio.sleep(0)
        return plan

    # --- carrying it out

    async def _carry_out(self, moves: list[Move]) -> AsyncIterator[Report]:
        waiting = iter(moves)
        running: dict[asyncio.Task[Report], None] = {}
        try:
            while True:
                for move in waiting:
                    running[asyncio.ensure_future(self._move(move))] = None
                    if len(running) == MOVES_AT_ONCE:
                        break
                if not running:
                    return
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task.done()]:
                    del running[task]
                    yield task.result()
        finally:
            for task in running:
                task.cancel()

    async def _move(self, move: Move) -> Report:
        queue = self._state.topology.queue_by_id(move.queue_id)
        record = self._state.masterships.get(move.queue_id)
        if queue is None or record is None:
            return self._report(move, "refused", "the queue was deleted")
        if reason := self._why_not(move, queue, record):
            return self._report(move, "refused", reason)
        try:
            await self._change(MoveMaster(move.queue_id, record.epoch, move.target))
        except WarrenError as error:
            return self._report(move, "refused", str(error))
        return await self._served(move)

    def _why_not(self, move: Move, queue: QueueRecord, record: MastershipRecord) -> str:
        """Why what was planned is not possible any more; empty if it is."""
        if record.is_down or record.master != move.source:
            return f"its master is not {move.source} any more"
        if not record.in_service:
            return f"{move.source} does not serve it yet"
        if move.target not in self._heirs(queue, record):
            return f"{move.target} is not synchronised any more, or not up"
        return ""

    async def _served(self, move: Move) -> Report:
        """Wait until the new master serves the queue."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + SERVICE_TIMEOUT_S
        while loop.time() < deadline_s:
            record = self._state.masterships.get(move.queue_id)
            if record is None:
                return self._report(move, "refused", "the queue was deleted")
            if record.master != move.target:
                return self._report(move, "refused", f"{record.master} has become its master since")
            if record.in_service:
                return self._report(move, "moved")
            await asyncio.sleep(_LOOK_S)
        return self._report(move, "moved", f"{move.target} is its master, and does not serve it yet")

    def _report(self, move: Move, state: str, reason: str = "") -> Report:
        vhost, name = self._names[move.queue_id]
        return {
            "vhost": vhost,
            "queue": name,
            "from": move.source,
            "to": move.target,
            "state": state,
            "reason": reason,
        }

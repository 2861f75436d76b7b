"""Which masters to move so that every node serves nearly as many queues as any other. Pure: places in, moves out.

A queue can be moved to its synchronised mirrors only: nothing is copied, and nothing lost. So not every balance is
possible. What is sought is the best one, the most even numbers of masters, and of all ways to it one with the fewest
moves. This is a flow of least cost, in a graph so small that it can be found in the plain way:

- The nodes are joined by arcs: from the present master of a queue to every node that may serve it. An arc costs one
  move if the queue leaves its home (where its master is now), nothing if it is away from home anyhow, and it gives one
  back if it leads home.
- A path from a node with at least two masters more than its end makes the numbers more even: along it each node hands
  one queue to the next. A path between nodes that differ by one only swaps their numbers, and is worth while if it
  gives moves back.
- Always the cheapest path of its two ends is taken. Then no circle ever gives moves back, and when no such path is left
  no other plan is better: neither more even, nor as even with fewer moves.

Every step makes the sum of the squares smaller, or keeps it and makes the number of moves smaller: so there is an end.

Sources: Harvey, Ladner, Lovasz, Tamir, Semi-matchings for bipartite graphs and load balancing (2006), for the optimum;
Ahuja, Magnanti, Orlin, Network flows, chapter 9, for the cheapest paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from node.ids import NodeName, QueueId

#: Costs of an arc, the cheapest first.
_COSTS = (-1, 0, 1)


class MovableQueue(NamedTuple):
    """A queue that is served. ``heirs``: other nodes that may serve it at once."""

    queue_id: QueueId
    master: NodeName
    heirs: tuple[NodeName, ...]


class Move(NamedTuple):
    queue_id: QueueId
    source: NodeName
    target: NodeName


class RebalancePlan:
    """A plan that is being made: call `advance` until it says that it is done."""

    def __init__(self, nodes: Iterable[NodeName], queues: Sequence[MovableQueue]) -> None:
        """``nodes``: those among which masters are to be spread; queues of other masters are left alone."""
        self._nodes = tuple(dict.fromkeys(nodes))
        self._queues = {queue.queue_id: queue for queue in queues if queue.master in self._nodes}
        self._at = {queue_id: queue.master for queue_id, queue in self._queues.items()}
        self._count = dict.fromkeys(self._nodes, 0)
        #: (from, to) -> for each of the costs the queues that may go this way; dicts for their order.
        self._arcs: dict[tuple[NodeName, NodeName], tuple[dict[QueueId, None], ...]] = {
            (one, other): tuple({} for _ in _COSTS) for one in self._nodes for other in self._nodes if one != other
        }
        for queue_id, node in self._at.items():
            self._count[node] += 1
            self._put(queue_id, node)

    @property
    def master_count(self) -> Mapping[NodeName, int]:
        """Masters of each node, if the moves so far are carried out."""
        return self._count

    def moves(self) -> list[Move]:
        """In the order of the queues given."""
        return [
            Move(queue_id, queue.master, self._at[queue_id])
            for queue_id, queue in self._queues.items()
            if self._at[queue_id] != queue.master
        ]

    def advance(self) -> bool:
        """Make the plan better by one step; false if there is no better one."""
        by_count = sorted(self._nodes, key=lambda node: -self._count[node])
        for least_difference in (2, 1):
            for source in by_count:
                cost, before = self._cheapest_ways(source)
                ends = [
                    node
                    for node in cost
                    if self._count[source] - self._count[node] >= least_difference
                    and (least_difference > 1 or cost[node] < 0)
                ]
                if ends:
                    end = min(ends, key=lambda node: (self._count[node], cost[node]))
                    self._shift_along(source, end, before)
                    return True
        return False

    # --- arcs

    def _cost(self, queue: MovableQueue, source: NodeName, target: NodeName) -> int:
        if target == queue.master:
            return -1
        return 1 if source == queue.master else 0

    def _ways(self, queue_id: QueueId, source: NodeName) -> Iterable[dict[QueueId, None]]:
        """Where a queue that is at ``source`` is filed."""
        queue = self._queues[queue_id]
        for target in dict.fromkeys((queue.master, *queue.heirs)):
            if target != source and target in self._count:
                yield self._arcs[source, target][_COSTS.index(self._cost(queue, source, target))]

    def _put(self, queue_id: QueueId, node: NodeName) -> None:
        for way in self._ways(queue_id, node):
            way[queue_id] = None

    def _cheapest_ways(self, source: NodeName) -> tuple[dict[NodeName, int], dict[NodeName, NodeName]]:
        """What it costs to shift one queue from ``source`` to each node that can be reached, and by way of which."""
        cost: dict[NodeName, int] = {source: 0}
        before: dict[NodeName, NodeName] = {}
        is_changed = True
        while is_changed:  # Bellman and Ford; there is no circle of negative cost
            is_changed = False
            for (one, other), ways in self._arcs.items():
                if one not in cost or other == source:
                    continue
                price = next((price for price, way in zip(_COSTS, ways, strict=True) if way), None)
                if price is not None and cost[one] + price < cost.get(other, len(self._queues) + 1):
                    cost[other] = cost[one] + price
                    before[other] = one
                    is_changed = True
        del cost[source]
        return cost, before

    def _shift_along(self, source: NodeName, end: NodeName, before: Mapping[NodeName, NodeName]) -> None:
        """Each node of the path hands one queue to the next."""
        shifts = []
        target = end
        while target != source:
            one = before[target]
            queue_id = next(next(iter(way)) for way in self._arcs[one, target] if way)
            shifts.append((queue_id, one, target))
            target = one
        for queue_id, one, target in shifts:
            for way in self._ways(queue_id, one):
                del way[queue_id]
            self._at[queue_id] = target
            self._put(queue_id, target)
        self._count[source] -= 1
        self._count[end] += 1

    def check_invariants(self) -> None:
        for queue_id, node in self._at.items():
            queue = self._queues[queue_id]
            assert node in (queue.master, *queue.heirs), "a queue goes only where it may be served at once"
            assert all(queue_id in way for way in self._ways(queue_id, node)), "it is filed where it is"
        assert sum(self._count.values()) == len(self._at), "every queue has one master"

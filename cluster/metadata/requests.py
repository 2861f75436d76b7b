"""Which requests were applied already: a proposal that is repeated because its answer got lost counts once.

A proposer numbers its requests from 1 in each incarnation. Per node this keeps the newest incarnation seen, the counter
up to which every request was applied, and the ones applied out of order above it. A proposer has at most
`MAX_OUTSTANDING_REQUESTS` requests without an answer, so nothing further apart than that can still come for the first
time.
"""

from __future__ import annotations

from typing import Any

from cluster.metadata.commands import RequestId
from node.ids import NodeName

#: A proposer must not start request ``n + MAX_OUTSTANDING_REQUESTS`` before request ``n`` is applied. Far more than the
#: declares one node can have on their way; bounds the memory per node to some ten kilobytes.
MAX_OUTSTANDING_REQUESTS = 1024


class _Proposer:
    __slots__ = ("applied_above", "floor", "incarnation")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        #: Every counter up to here is applied, or can never come.
        self.floor = 0
        #: Counters above `floor` that are applied.
        self.applied_above: set[int] = set()


class AppliedRequests:
    """Remembers applied request ids in bounded memory."""

    def __init__(self) -> None:
        self._proposers: dict[NodeName, _Proposer] = {}

    def is_of_earlier_life(self, request_id: RequestId) -> bool:
        """Its node has asked for something in a later life."""
        proposer = self._proposers.get(request_id.node)
        return proposer is not None and request_id.incarnation < proposer.incarnation

    def admit(self, request_id: RequestId) -> bool:
        """True if the request is to be applied: neither applied before nor from an earlier life of its node."""
        proposer = self._proposers.get(request_id.node)
        if proposer is None or proposer.incarnation < request_id.incarnation:
            proposer = self._proposers[request_id.node] = _Proposer(request_id.incarnation)
        counter = request_id.counter
        if proposer.incarnation > request_id.incarnation or counter <= proposer.floor:
            return False
        if counter in proposer.applied_above:
            return False
        above = proposer.applied_above
        above.add(counter)
        lowest = counter - MAX_OUTSTANDING_REQUESTS
        if lowest > proposer.floor:
            proposer.floor = lowest
            proposer.applied_above = above = {each for each in above if each > lowest}
        while proposer.floor + 1 in above:
            proposer.floor += 1
            above.discard(proposer.floor)
        return True

    def end_lives(self, node: NodeName, incarnation: int) -> None:
        """Nothing that the node asks for in lives up to this one is to be applied any more."""
        proposer = self._proposers.get(node)
        if proposer is None or proposer.incarnation <= incarnation:
            self._proposers[node] = _Proposer(incarnation + 1)

    def snapshot(self) -> list[Any]:
        return [
            [node, proposer.incarnation, proposer.floor, sorted(proposer.applied_above)]
            for node, proposer in sorted(self._proposers.items())
        ]

    def restore(self, data: list[Any]) -> None:
        self._proposers = {}
        for node, incarnation, floor, applied_above in data:
            proposer = self._proposers[node] = _Proposer(incarnation)
            proposer.floor = floor
            proposer.applied_above = set(applied_above)

    def check_invariants(self) -> None:
        for node, proposer in self._proposers.items():
            assert len(proposer.applied_above) <= MAX_OUTSTANDING_REQUESTS, f"memory for {node} is bounded"
            assert proposer.floor + 1 not in proposer.applied_above, "the floor is as high as it can be"
            assert all(counter > proposer.floor for counter in proposer.applied_above), "nothing is kept twice"

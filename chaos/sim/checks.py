"""When the invariants of the nodes are checked, and of how much.

A node is checked after every so many turns of nodes: closely in some seeds, seldom in most, so that a campaign has both
many seeds and close looks (`CHECKS_EVERY`). A queue that nobody has called since its last check is as it was then, so a
check covers the queues that were drained meanwhile, and the metadata if the node has applied something; what is small
is always covered. One in `CHECKS_PER_DEEP_CHECK` covers everything, called or not, with stores, broker and protocol
machines; so do the one when the faults are over, and the one at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from chaos.sim.cluster import SimulatedCluster
from chaos.sim.insides import check_deep_invariants
from chaos.sim.taps import tapped
from chaos.sim.wipes import check_wiped
from cluster.composition import Node
from cluster.runtime.queue_set import QueueSet
from node.ids import QueueId

#: Turns of nodes between two checks of the one whose turn it was. Each is a multiple of the one before, and so are the
#: moments: who looks more closely sees what others see.
CHECKS_EVERY = (20, 80, 320)
#: How many seeds of six look so closely.
CHECKS_WEIGHTS = (1, 2, 3)
CHECKS_PER_DEEP_CHECK = 8


class Checks:
    """See the module text. ``failed`` is told what does not hold; ``every``: drawn from the seed if 0."""

    def __init__(
        self, cluster: SimulatedCluster, seed: int, failed: Callable[[AssertionError], None], *, every: int = 0
    ) -> None:
        self._cluster = cluster
        self._failed = failed
        self._every = every or Random(f"{seed} checks").choices(CHECKS_EVERY, CHECKS_WEIGHTS)[0]
        self._turns_left = self._every
        self._checks_to_deep_check = CHECKS_PER_DEEP_CHECK
        #: Queues that were drained since they were checked, by who has them.
        self._touched: dict[QueueSet, dict[QueueId, None]] = {}
        #: How much of the log the metadata had applied when they were checked.
        self._checked_indexes: dict[Node, int] = {}

    @contextmanager
    def laid(self) -> Iterator[None]:
        """As long as this lasts, drains are noted."""
        with tapped(QueueSet, "_drain", self._drained):
            yield

    def _drained(self, queues: QueueSet, _result: None, queue_id: QueueId) -> None:
        self._touched.setdefault(queues, {})[queue_id] = None

    def turn_over(self, node: Node) -> None:
        """A turn of this node is over."""
        self._turns_left -= 1
        if self._turns_left > 0:
            return
        self._turns_left = self._every
        self._checks_to_deep_check -= 1
        if self._checks_to_deep_check <= 0:
            self._checks_to_deep_check = CHECKS_PER_DEEP_CHECK
            self._guard(self._check_whole, node)
        else:
            self._guard(self._check_touched, node)

    def everything(self) -> None:
        """Of all nodes."""
        for node in self._cluster.nodes.values():
            self._guard(self._check_whole, node)

    def _guard(self, check: Callable[[Node], None], node: Node) -> None:
        try:
            check(node)
        except AssertionError as error:
            self._failed(error)

    def _check_touched(self, node: Node) -> None:
        node.check_invariants(self._touched.pop(node.runtime.queues, ()))
        metadata = node.runtime.metadata.state
        if self._checked_indexes.get(node) != metadata.applied_index:
            self._checked_indexes[node] = metadata.applied_index
            metadata.check_invariants()

    def _check_whole(self, node: Node) -> None:
        self._touched.pop(node.runtime.queues, None)
        node.check_invariants()
        check_deep_invariants(node)
        self._cluster.network.check_invariants()
        check_wiped(self._cluster)

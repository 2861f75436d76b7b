"""Watches from outside who masters a queue and who mirrors it, and writes down every change.

It asks one live node after the other for ``list_queues``, some tens of times a second. A change happened between the
last sample without it and the first sample with it: that interval is the event's [t_lo_us, t_hi_us].

The rule that a promotion is judged by: the new master must be the oldest of the mirrors that were synchronised in the
last sample of the old master and whose node was running. If there was none, any promotion is one of an unsynchronised
mirror; whether that is allowed is the scenario's business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from chaos.cluster_under_test.protocol import AdminUnavailable, ClusterAdmin, ClusterUnderTest, QueueSample
from chaos.history import Kind, ProcessLog

#: Seconds between two samples: short beside a failover of some hundred milliseconds, cheap beside the traffic.
SAMPLE_INTERVAL_S = 0.03


@dataclass(frozen=True, slots=True)
class Promotion:
    """One change of master as it was seen."""

    epoch: int
    old_master: str
    new_master: str
    #: Mirrors before the fault, oldest first, and those of them that were synchronised.
    mirrors_before: tuple[str, ...]
    synchronised_before: tuple[str, ...]
    #: Who should have won; None when no synchronised mirror was running.
    expected_master: str | None

    @property
    def is_oldest_synchronised(self) -> bool:
        return self.new_master == self.expected_master


def expected_master(before: QueueSample, is_running: Callable[[str], bool]) -> str | None:
    """The oldest synchronised mirror whose node runs; None when there is none."""
    return next((node for node in before.synchronised if is_running(node)), None)


@dataclass(slots=True)
class MasterView:
    """What samples of one queue tell, in order. Pure: `take` returns the events to record."""

    nodes: Sequence[str]
    queue_id: int
    is_running: Callable[[str], bool]
    #: Counted from 1 for the first master seen; each promotion adds one.
    epoch: int = 0
    last: QueueSample | None = None
    promotions: list[Promotion] = field(default_factory=list)

    def take(self, sample: QueueSample) -> list[tuple[Kind, dict[str, object]]]:
        """Compare a sample with the last one that named a live master.

        A sample whose master is None or dead changes nothing: between the fault and the promotion nobody leads, and a
        node that has not yet heard of the promotion still names the dead one.
        """
        if sample.master is None or not self.is_running(sample.master):
            return []
        before, self.last = self.last, sample
        events: list[tuple[Kind, dict[str, object]]] = []
        if before is None or before.master is None:
            self.epoch = 1
            previous_mirrors: tuple[str, ...] = ()
            previous_synchronised: tuple[str, ...] = ()
        else:
            previous_mirrors, previous_synchronised = before.mirrors, before.synchronised
            if before.master != sample.master:
                events.append(self._promote(before, sample.master))
        joined = [node for node in sample.mirrors if node not in previous_mirrors]
        events += [self._event(Kind.JOIN, node) for node in joined]
        events += [self._event(Kind.SYNC_BEGIN, node) for node in joined if node not in sample.synchronised]
        events += [
            self._event(Kind.SYNC_END, node) for node in sample.synchronised if node not in previous_synchronised
        ]
        events += [
            self._event(Kind.LEAVE, node)
            for node in previous_mirrors
            if node not in sample.mirrors and node != sample.master
        ]
        return events

    def _promote(self, before: QueueSample, new_master: str) -> tuple[Kind, dict[str, object]]:
        self.epoch += 1
        assert before.master is not None, "a promotion follows a master"
        promotion = Promotion(
            self.epoch,
            before.master,
            new_master,
            before.mirrors,
            before.synchronised,
            expected_master(before, self.is_running),
        )
        self.promotions.append(promotion)
        kind, fields = self._event(Kind.PROMOTE, new_master)
        fields["result"] = int(promotion.is_oldest_synchronised)
        fields["detail"] = json.dumps(
            {
                "old_master": promotion.old_master,
                "new_master": promotion.new_master,
                "mirrors_before": promotion.mirrors_before,
                "synchronised_before": promotion.synchronised_before,
                "expected_master": promotion.expected_master,
            }
        )
        return kind, fields

    def _event(self, kind: Kind, node: str) -> tuple[Kind, dict[str, object]]:
        node_id = self.nodes.index(node) if node in self.nodes else None
        return kind, {"queue_id": self.queue_id, "node_id": node_id, "epoch": self.epoch}


class Observer:
    """Keeps `view` up to date and the history written. Run it as a task; cancel it to end."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        open_admin: Callable[[ClusterUnderTest, str], ClusterAdmin],
        log: ProcessLog,
        queue: str,
        queue_id: int,
    ) -> None:
        self._cluster = cluster
        self._open_admin = open_admin
        self._log = log
        self._queue = queue
        self._admins: dict[str, ClusterAdmin] = {}
        self.view = MasterView(cluster.nodes, queue_id, cluster.is_running)
        self._last_sample_us = 0
        self._sampled = asyncio.Condition()

    def admin(self, node: str) -> ClusterAdmin:
        """A client of one node's admin service, opened once."""
        if node not in self._admins:
            self._admins[node] = self._open_admin(self._cluster, node)
        return self._admins[node]

    async def live_admins(self) -> list[ClusterAdmin]:
        """Clients of every running node."""
        return [self.admin(node) for node in self._cluster.nodes if self._cluster.is_running(node)]

    async def run(self) -> None:
        """Sample until cancelled, going on to the next running node whenever one does not answer."""
        turn = 0
        try:
            while True:
                running = [node for node in self._cluster.nodes if self._cluster.is_running(node)]
                if running:
                    try:
                        await self._sample(running[turn % len(running)])
                    except AdminUnavailable:
                        turn += 1
                await asyncio.sleep(SAMPLE_INTERVAL_S)
        finally:
            self._log.end()

    async def _sample(self, node: str) -> None:
        asked_us = self._log.now_us()
        samples = await self.admin(node).list_queues()
        for sample in samples:
            if sample.queue != self._queue:
                continue
            for kind, fields in self.view.take(sample):
                self._log.record(kind, t_lo_us=self._last_sample_us or asked_us, **fields)  # type: ignore[arg-type]
        self._last_sample_us = asked_us
        async with self._sampled:
            self._sampled.notify_all()

    async def close(self) -> None:
        """Close every admin client."""
        for admin in self._admins.values():
            with suppress(AdminUnavailable):
                await admin.close()
        self._admins.clear()

    # --- waits: each raises TimeoutError with what was seen last ---

    async def wait_promotion(self, count: int, timeout_s: float) -> Promotion:
        """Wait until ``count`` promotions have been seen in this run; returns the last of them."""
        await self._wait(lambda _: len(self.view.promotions) >= count, f"promotion {count}", timeout_s)
        return self.view.promotions[count - 1]

    async def wait_synchronised(self, mirrors: int, timeout_s: float) -> QueueSample:
        """Wait until the queue has this many mirrors, all synchronised."""
        return await self._wait(
            lambda sample: len(sample.mirrors) >= mirrors and set(sample.mirrors) == set(sample.synchronised),
            f"{mirrors} synchronised mirrors",
            timeout_s,
        )

    async def wait_mirrors(self, mirrors: set[str], timeout_s: float) -> QueueSample:
        """Wait until exactly these nodes are mirrors, synchronised or not."""
        return await self._wait(lambda sample: set(sample.mirrors) == mirrors, f"mirrors {sorted(mirrors)}", timeout_s)

    async def wait_streaming(self, mirrors: set[str], timeout_s: float) -> QueueSample:
        """Wait until these nodes receive what is published: from then on a confirm means that they have the message.

        A mirror is listed as soon as the cluster knows its node; the master reaches it a moment later.
        """
        return await self._wait(
            lambda sample: mirrors <= set(sample.streaming), f"streaming to {sorted(mirrors)}", timeout_s
        )

    async def _wait(self, condition: Callable[[QueueSample], bool], what: str, timeout_s: float) -> QueueSample:
        try:
            async with asyncio.timeout(timeout_s):
                async with self._sampled:
                    await self._sampled.wait_for(lambda: self.view.last is not None and condition(self.view.last))
        except TimeoutError:
            raise TimeoutError(f"{what} not seen within {timeout_s:.0f} s; last seen: {self.view.last}") from None
        assert self.view.last is not None, "the wait above ended on a sample"
        return self.view.last

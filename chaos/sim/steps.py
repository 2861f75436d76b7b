"""What the steps of a schedule do: those of clients and operators here, those of the cluster by its own methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.sim.client import NOT_FOUND, PRECONDITION_FAILED, Channel, ClosedError
from chaos.sim.declaring import Declarer
from chaos.sim.hostile import propose_hostile
from chaos.sim.keepers import Keeper
from chaos.sim.lodgers import Lodger
from chaos.sim.machine import sync_queue
from chaos.sim.schedule import DIRECT, Step
from chaos.sim.stage import NOWHERE, OPERATOR_PAUSE_S, VHOST, Stage, policy_record, queue_name
from chaos.sim.tenants import Tenant
from chaos.sim.wiring import Wiring
from chaos.sim.workload import TROUBLE
from cluster.transport.admin_port import AdminPort

#: What was asked for will not be done: no such queue, it is another connection's, or a condition does not hold.
REFUSALS = frozenset({NOT_FOUND, 405, PRECONDITION_FAILED})
#: Of what has not come to an end.
ENDLESS_US = 2**62


@dataclass
class Ambush:
    """Somebody waits for a moment in which the master of a queue is to end."""

    queue: int
    moment: str
    end: str
    #: Links that were made slow for it.
    slowed: list[tuple[str, str]]
    victim: str | None = None


class Steps:
    """The steps on one stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._ambushes: list[Ambush] = []
        self._tenants: dict[int, Tenant] = {}
        self._wirings: dict[int, Wiring] = {}
        self._keepers: dict[int, Keeper] = {}
        self._lodgers: dict[int, Lodger] = {}
        stage.world.on_moment = self._moment_has_come

    def do(self, step: Step) -> None:
        """Begin it; what it leads to goes on by itself."""
        self._stage.tell(str(step)[9:], "step")
        handler = getattr(self, f"_{step.kind}", None)
        if handler is None:
            handler = getattr(self._stage.cluster, step.kind)
        handler(*step.args)

    # --- clients ---

    def _publish(
        self, publisher: int, queue: int, burst: int, body_bytes: int, is_persistent: int, is_mandatory: int = 0
    ) -> None:
        client = self._stage.publishers[publisher]
        client.tell(queue, burst, body_bytes, bool(is_persistent), bool(is_mandatory))

    def _fan_out(self, publisher: int, queues: Sequence[int], burst: int, body_bytes: int, is_persistent: int) -> None:
        """Each message to all of these queues, through an exchange."""
        client = self._stage.publishers[publisher]
        client.tell(queues[0], burst, body_bytes, bool(is_persistent), fan=tuple(queues))

    def _nowhere(self, publisher: int) -> None:
        """Mandatory, to a queue that does not exist."""
        self._stage.publishers[publisher].tell(NOWHERE, 1, 0, True, True)

    def _transaction(
        self, transactor: int, queue: int, burst: int, body_bytes: int, is_persistent: int, is_committed: int
    ) -> None:
        client = self._stage.transactors[transactor]
        client.tell(queue, burst, body_bytes, bool(is_persistent), bool(is_committed))

    def _guest(self, guest: int, kind: str) -> None:
        self._stage.guests[guest].visit(kind)

    def _consume(self, consumer: int, queue: int) -> None:
        self._stage.consumers[consumer].consume(queue)

    def _take_all(self, consumer: int, queue: int) -> None:
        """Consume without acknowledgements."""
        self._stage.consumers[consumer].consume(queue, takes_all=True)

    def _restart_consumer(self, consumer: int, _queue: int) -> None:
        self._stage.consumers[consumer].drop()

    def _cancel(self, consumer: int, _queue: int) -> None:
        self._stage.consumers[consumer].cancel()

    def _recover(self, consumer: int, _queue: int) -> None:
        self._stage.consumers[consumer].recover()

    def _reconnect(self, publisher: int) -> None:
        self._stage.publishers[publisher].drop()

    def _get(self, queue: int) -> None:
        self._ask(lambda channel: self._stage.visitor.get_one(channel, queue))

    def _get_no_ack(self, queue: int) -> None:
        self._ask(lambda channel: self._stage.visitor.get_no_ack(channel, queue))

    def _get_in_transaction(self, queue: int, is_committed: int) -> None:
        self._ask(lambda channel: self._stage.visitor.get_in_transaction(channel, queue, bool(is_committed)))

    def _flow(self, consumer: int, is_active: int) -> None:
        self._stage.consumers[consumer].flow(bool(is_active))

    def _give_back(self, consumer: int, _queue: int) -> None:
        self._stage.consumers[consumer].give_back()

    def _work(self, worker: int, queues: Sequence[int]) -> None:
        self._stage.workers[worker].work(list(queues))

    def _worker_does(self, worker: int, what: str, *queue: int) -> None:
        """Consume, cancel or get of a queue; reopen its channel, settle everything at once, or drop its connection."""
        getattr(self._stage.workers[worker], what)(*queue)

    def _purge(self, queue: int) -> None:
        self._remove(queue, lambda channel: channel.purge(queue_name(queue)))

    def _delete(self, queue: int) -> None:
        self._remove(queue, lambda channel: channel.delete(queue_name(queue)))

    def _delete_if(self, queue: int, condition: str) -> None:
        is_empty = condition == "empty"

        async def delete(channel: Channel) -> None:
            try:
                await channel.delete(queue_name(queue), if_empty=is_empty, if_unused=not is_empty)
            except ClosedError as error:
                if error.code == PRECONDITION_FAILED:
                    self._stage.sightings.note("a conditional deletion was refused")
                raise

        self._remove(queue, delete)

    def _ask(self, ask: Callable[[Channel], Coroutine[Any, Any, Any]]) -> None:
        """Once, whatever comes of it."""
        stage = self._stage

        async def try_it() -> None:
            try:
                await stage.visitor.request(ask)
            except TROUBLE as error:
                stage.tell(f"refused: {error}")

        stage.visitor.process.create_task(try_it())

    def _remove(self, queue: int, ask: Callable[[Channel], Coroutine[Any, Any, Any]]) -> None:
        """Take messages away, and have the queue again. What was taken is seen where it happens.

        A request without an answer may be carried out at any later time, also after the queue was declared again."""
        stage = self._stage

        requests = stage.requests.setdefault(queue, [])
        number, asked_us = len(requests), stage.visitor.log.now_us()
        requests.append((asked_us, ENDLESS_US))
        is_open = False

        async def ask_and_hear(channel: Channel) -> None:
            nonlocal is_open
            is_open = True
            try:
                await ask(channel)
            except ClosedError as error:
                is_open = error.code not in REFUSALS
                raise
            is_open = False

        async def remove() -> None:
            try:
                await stage.visitor.request(ask_and_hear)
            except TROUBLE as error:
                stage.tell(f"refused: {error}")
            await stage.declare(queue)
            if not is_open:
                requests[number] = (asked_us, stage.visitor.log.now_us())

        stage.removals.append(stage.visitor.process.create_task(remove()))

    # --- ambushes ---

    def _ambush(self, queue: int, moment: str, end: str, slowness: int) -> None:
        """The master of a queue ends when the next client hears of a confirm, or gets a delivery; until then what it
        says to the other nodes takes so many times longer."""
        stage = self._stage
        master = stage.master_of(queue)
        if master is None:
            return
        slowed = [(master, other) for other in stage.cluster.machines if other != master and slowness > 1]
        for link in slowed:
            stage.cluster.slow_link(*link, slowness)
        self._ambushes.append(Ambush(queue, moment, end, slowed))

    def _moment_has_come(self, moment: str, queue: int) -> None:
        for ambush in self._ambushes:
            if ambush.victim is None and (ambush.moment, ambush.queue) == (moment, queue):
                ambush.victim = self._stage.master_of(queue)
                if ambush.victim is not None:
                    self._stage.sightings.note("a master ended as a client heard of it")
                    getattr(self._stage.cluster, ambush.end)(ambush.victim)

    def _ambush_end(self, queue: int) -> None:
        """Whoever fell into one comes back, and nobody waits any more."""
        cluster = self._stage.cluster
        for ambush in [ambush for ambush in self._ambushes if ambush.queue == queue]:
            self._ambushes.remove(ambush)
            for link in ambush.slowed:
                cluster.slow_link_end(*link)
            if ambush.victim is not None:
                if ambush.end == "isolate":
                    cluster.isolate_end(ambush.victim)
                cluster.pause_end(ambush.victim)
                cluster.start(ambush.victim)

    def _lie_in_wait(self, moment: str, end: str) -> None:
        """The next node of which this can be said (`chaos.sim.taps`, *Moments*) ends in this way: a method of the
        cluster, ``isolate`` at once, or both, as ``isolate_kill``; or ``power_and_part``, for ever cut off from whom it
        is about."""
        self._stage.node_moments[moment] = end

    # --- operators ---

    def _sync(self, queue: int) -> None:
        self._operate(lambda admin: sync_queue(admin, VHOST, queue_name(queue)))

    def _cancel_sync(self, queue: int) -> None:
        self._operate(lambda admin: admin.cancel_sync_queue(VHOST, queue_name(queue)))

    def _policy(self, definition: dict[str, Any]) -> None:
        self._operate(lambda admin: admin.set_policy(policy_record(definition)))

    def _forget(self, node: str) -> None:
        """What only that node had is gone, and so may queues be; they are declared again."""
        stage = self._stage

        async def forget() -> None:
            await stage.operated(lambda admin: admin.forget_cluster_node(node))
            stage.cluster.start(node)
            await stage.declare_all()

        stage.removals.append(stage.visitor.process.create_task(forget()))

    def _lose_for_good(self, count: int) -> None:
        """As with `_forget`: queues may be gone, and are declared again."""
        stage = self._stage
        stage.cluster.lose_for_good(count)
        stage.removals.append(stage.visitor.process.create_task(stage.declare_all()))

    def _come(self, name: str, existing: str) -> None:
        """A machine that no configuration names; its operator has it join until it is let in."""
        stage, cluster = self._stage, self._stage.cluster
        cluster.come(name)
        address = str(cluster.machines[existing].config.cluster_advertised_address)

        async def join() -> bool:
            while cluster.is_alone(name):
                await asyncio.sleep(OPERATOR_PAUSE_S)
                await stage.operated(lambda admin: admin.join_cluster(address), at=name)
            return True

        stage.operations.append(stage.visitor.process.create_task(join()))

    def _tenancy(self, number: int, lasts_ms: int) -> None:
        """A vhost is made, used, and deleted after a while."""
        stage = self._stage
        tenant = self._tenants.setdefault(number, Tenant(stage, number))
        stage.operations.append(stage.visitor.process.create_task(tenant.stay(lasts_ms)))

    def _lodging(self, number: int, lasts_ms: int, what: str, entry: int) -> None:
        """A user or a vhost is made, or both, and deleted after a while under a client that is connected."""
        stage = self._stage
        lodger = self._lodgers.setdefault(number, Lodger(stage, number))
        stage.operations.append(stage.visitor.process.create_task(lodger.lodge(lasts_ms, what, entry)))

    def _declaring(self, number: int, lasts_ms: int) -> None:
        """Exchanges are declared, looked for on every node, and deleted, for so long."""
        stage = self._stage
        stage.operations.append(stage.visitor.process.create_task(Declarer(stage, number).go_on(lasts_ms)))

    def _wiring(self, number: int, lasts_ms: int, kind: str = DIRECT) -> None:
        """Exchanges and a queue are made, bound, used, and taken away after a while."""
        stage = self._stage
        wiring = self._wirings.setdefault(number, Wiring(stage, number))
        stage.operations.append(stage.visitor.process.create_task(wiring.stay(lasts_ms, kind)))

    def _force_promote(self, queue: int, node: str) -> None:
        self._operate(lambda admin: admin.force_promote(VHOST, queue_name(queue), node))

    def _keep(self, number: int, lasts_ms: int, passing_ms: int, home: int, entry: int) -> None:
        """An auto-delete queue is made, filled, and kept by its consumer for so long."""
        stage = self._stage
        keeper = self._keepers.setdefault(number, Keeper(stage, number))
        stage.operations.append(stage.visitor.process.create_task(keeper.keep(lasts_ms, passing_ms, home, entry)))

    def _hostile(self, number: int, kind: str) -> None:
        """A command that no release would propose comes into the log."""
        for name, node in self._stage.cluster.nodes.items():
            process = self._stage.cluster.machines[name].process
            if process is not None and node.raft.core.is_leader:
                process.call_soon(propose_hostile, node, number, kind)

    def _operate(self, ask: Callable[[AdminPort], Coroutine[Any, Any, Any]]) -> None:
        """Once, whatever comes of it."""
        stage = self._stage
        stage.operations.append(stage.visitor.process.create_task(stage.operated(ask)))

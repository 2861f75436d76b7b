"""How a run ends: everything is healed, the cluster must converge, hold still, give up what it has, and serve again.

1. *Convergence.* Within `Schedule.quiet_ms` every client must have its answers, no message may lie where a consumer
   would take it, and `chaos.sim.convergence` must have nothing to complain of, without a break and without a change of
   any master for `STEADY_S`, and not before `HEARD_S` have passed since the heal.
2. *Drain.* The clients of the workload leave; what is left in the queues is taken out.
3. *Liveness.* Through every node, on every queue: declare, consume, publish with a confirm, be delivered, acknowledge.
   A node's queues are tried side by side, on channels of one connection.
4. *Stillness.* The copies must be equal again, to the byte, and no master may have changed since the heal was over.
5. *Nothing is left* of what nobody owns any more on any disk (`chaos.sim.leaks`), nor in the memory of any node of
   clients that are gone (`chaos.sim.remains`).

Only then the history is judged.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from chaos.history import Kind
from chaos.sim.client import Channel, ClosedError, Delivered
from chaos.sim.consumers import Settling
from chaos.sim.convergence import (
    different_bytes,
    different_metadata,
    filled_mirrors,
    masters,
    ready_in,
    unfilled_queues,
    why_not_converged,
)
from chaos.sim.insides import route_to
from chaos.sim.leaks import what_is_left, why_not_given_back
from chaos.sim.machine import sync_queue
from chaos.sim.remains import what_remains
from chaos.sim.stage import Stage, queue_name, queue_number
from chaos.workload.message_id import MIN_BODY_BYTES, MessageId, encode_body
from node.topology.records import QueueRecord

LOOK_S = 0.5
#: So long a healed cluster must stay as it is.
STEADY_S = 1.0
#: What was cut off just before the heal shows when a silent link asks, after a third of its silence timeout; what a
#: slow link still carries arrives seconds later, and a node pauses in between.
HEARD_S, HEARD_SLOWLY_S = 3.5, 7.0
#: Clients that are stopped hang up meanwhile.
PARTING_S = 0.5
DRAIN_LIMIT_S = 60.0
#: For one message through every queue and one node.
SERVICE_LIMIT_S = 10.0
#: For copies to be equal after the last acknowledgement.
SETTLING_LIMIT_S = 10.0
#: For what nobody owns to be given back: a compaction that has failed is tried again after ten seconds.
GIVING_BACK_LIMIT_S = 20.0
#: Publisher number of what is published in the end.
PROBER = 1000


class Ending:
    """The end of one run. A violation ends it early."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._probes = 0

    def run(self) -> bool:
        """Whether everything was as it must be, up to what the judge has to say."""
        stage = self._stage
        stage.tell("heal everything", "phase")
        stage.world.on_moment = lambda _what, _queue: None
        stage.node_moments.clear()
        stage.cluster.heal()
        if not self._converge():
            return False
        before = masters(stage.cluster)
        for client in stage.clients():
            client.stop()
        stage.loop.run_until(stage.loop.now_s + PARTING_S)
        stage.world.answers.is_calm = True  # not before: rivals of who consumes alone try again and again
        is_served = stage.finish(self._drain(), DRAIN_LIMIT_S, "the drain") and self._serve()
        return is_served and self._hold_still(before) and self._give_back()

    # --- convergence ---

    def _converge(self) -> bool:
        stage = self._stage
        busy_until_s = max(machine.busy_until_s for machine in stage.cluster.machines.values())
        quiet_s = stage.schedule.quiet_ms / 1000
        end_s, filled = max(stage.loop.now_s, busy_until_s) + quiet_s, 0
        heard_s = max(stage.loop.now_s + HEARD_S, stage.cluster.slow_until_s + HEARD_SLOWLY_S)
        since_s, known = stage.loop.now_s, masters(stage.cluster) if stage.cluster.nodes else {}
        reason = "it was not looked at"
        while stage.loop.now_s < end_s and not stage.violations:
            stage.loop.run_until(stage.loop.now_s + LOOK_S)
            stage.cluster.upgrade_newcomers()
            if stage.personality.sync_throughput_bytes and (count := filled_mirrors(stage.cluster)) > filled:
                # They are filled one after the other, as fast as that may go.
                end_s, filled = max(end_s, stage.loop.now_s + quiet_s), count
            reason = self._why_not_done()
            if reason and stage.cancelled_syncs and stage.cluster.nodes:
                self._resume_cancelled()
            now = {} if reason else masters(stage.cluster)
            if reason or now != known:
                since_s, known = stage.loop.now_s, now
            elif stage.loop.now_s >= max(since_s + STEADY_S, heard_s):
                if different := different_bytes(stage.cluster):
                    stage.violate("replicas", different)
                return not stage.violations
        if not stage.violations:
            reason = different_metadata(stage.cluster) or reason
            stage.violate("stuck", reason or f"masters change again and again: {known}")
        return False

    def _resume_cancelled(self) -> None:
        """Whoever has cancelled what the policy wants has it go on: a cluster does not while its links are up."""
        stage = self._stage
        for queue in unfilled_queues(stage.cluster):
            if queue.queue_id in stage.cancelled_syncs:
                stage.cancelled_syncs.discard(queue.queue_id)
                stage.operations.append(stage.visitor.process.create_task(self._resume(queue)))

    async def _resume(self, queue: QueueRecord) -> bool:
        is_done = await self._stage.operated(lambda admin: sync_queue(admin, queue.vhost, queue.name))
        if not is_done:
            self._stage.cancelled_syncs.add(queue.queue_id)
        return is_done

    def _why_not_done(self) -> str:
        stage = self._stage
        reason = why_not_converged(stage.cluster, stage.is_of_workload)
        waiting = [client.name for client in stage.publishers if not client.is_idle]
        waiting += [client.name for client in stage.transactors if not client.is_idle]
        if not reason and not all(task.done() for task in stage.removals):
            reason = "a queue that was deleted has not been declared again"
        if not reason and not all(task.done() for task in stage.operations):
            reason = "an operator waits for an answer"  # and may be asking for another policy
        if not reason and not all(guest.is_gone for guest in stage.guests):
            reason = "a guest has not gone"
        if not reason and waiting:
            reason = f"publishers without all their confirms: {', '.join(waiting)}"
        blocked = [client.name for client in stage.clients() if client.is_blocked]
        if not reason and blocked:
            reason = f"clients that were not told that an alarm is over: {', '.join(blocked)}"
        asking = [client.name for client in stage.clients() if client.is_asking]
        if not reason and asking:
            reason = f"clients without an answer: {', '.join(asking)}"
        return reason or self._why_not_consumed()

    def _why_not_consumed(self) -> str:
        """Consumers that are something else to their clients than to the nodes that these are connected to."""
        stage = self._stage
        untold = [client.name for client in stage.consumers if client.should_have_been_told]
        if untold:
            return f"consumers that were not told of a new master: {', '.join(untold)}"
        believed = Counter(client.place for client in stage.consumers if client.place is not None)
        believed.update(place for worker in stage.workers for place in worker.places)
        known: Counter[tuple[int, int]] = Counter()
        for entry, (name, _port) in enumerate(stage.world.nodes):
            node = stage.cluster.nodes[name]
            for record in node.runtime.metadata.state.topology.all_queues():
                queue, route = queue_number(record.name), route_to(node, record.queue_id)
                if queue is not None and route is not None:
                    known[queue, entry] += len(route.consumers)
        # Counters are equal if only zeros tell them apart.
        if believed != known:
            return f"consumers (queue, node): clients know {believed}, nodes {known}"
        return next((why for queue in range(stage.personality.queues) if (why := self._why_not_delivered(queue))), "")

    def _why_not_delivered(self, queue: int) -> str:
        """Messages that lie in a queue though somebody there would take one."""
        stage = self._stage
        consumers = [client for client in stage.consumers if client.place is not None and client.place[0] == queue]
        waiting = [client.name for client in consumers if client.is_waiting]
        waiting += [worker.name for worker in stage.workers if worker.is_waiting_for(queue)]
        count = len(consumers) + sum(place[0] == queue for worker in stage.workers for place in worker.places)
        if not waiting or (stage.personality.has_single_active and len(waiting) < count):
            return ""  # of those that consume one after the other, nobody here knows whose turn it is
        ready = ready_in(stage.cluster, queue_name(queue))
        return f"{ready} messages in {queue_name(queue)}, and {', '.join(waiting)} would take some" if ready else ""

    # --- drain ---

    async def _drain(self) -> None:
        for queue in range(self._stage.personality.queues):
            await self._stage.declare(queue)
            await self._stage.visitor.drain(queue)

    # --- liveness ---

    def _serve(self) -> bool:
        stage = self._stage
        for entry, (name, _port) in enumerate(stage.world.nodes):
            what = f"a message through every queue and {name}"
            if not stage.finish(self._probe(entry), SERVICE_LIMIT_S + 1, what):
                return False
        return True

    async def _probe(self, entry: int) -> None:
        """Through one node, on a channel for each queue."""
        unserved = {queue_name(queue): None for queue in range(self._stage.personality.queues)}

        async def probe(channel: Channel, queue: int) -> None:
            self._probes += 1
            await self._pass_through(channel, queue, MessageId(PROBER, self._probes, 1))
            del unserved[queue_name(queue)]

        async def probe_all(first: Channel) -> None:
            channels = [first]
            while len(channels) < len(unserved):
                channel = await first.connection.channel()
                channel.label, channel.entry = next(self._stage.world.channel_ids), entry
                channels.append(channel)
            await asyncio.gather(*(probe(channel, queue) for queue, channel in enumerate(channels)))

        try:
            await self._stage.visitor.request(probe_all, SERVICE_LIMIT_S, entry=entry)
        except (ClosedError, OSError, TimeoutError) as error:
            where = f"{self._stage.world.nodes[entry][0]} does not serve {', '.join(unserved)}"
            self._stage.violate("not served", f"{where}: {error!r}")

    async def _pass_through(self, channel: Channel, queue: int, probe: MessageId) -> None:
        """One message, all the way. Returns when its acknowledgement is proven."""
        world, visitor = self._stage.world, self._stage.visitor
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        delivered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        settling = Settling(visitor.log, world, channel.entry, queue)

        def take(delivery: Delivered) -> None:
            if visitor.accept(channel, queue, delivery, settling) == probe and not delivered.done():
                delivered.set_result(None)

        def answer(_sequence: int, _multiple: bool, is_ack: bool) -> None:
            self._record(Kind.CONFIRM if is_ack else Kind.NACK, channel, queue, probe)
            if not confirmed.done():
                confirmed.set_result(is_ack)

        channel.on_deliver, channel.on_confirm = take, answer
        await channel.declare(queue_name(queue), arguments=self._stage.queue_arguments())
        await channel.confirm_select()
        await channel.consume(queue_name(queue), "probe")
        self._record(Kind.PUB_INVOKE, channel, queue, probe)
        channel.publish(queue_name(queue), encode_body(world.run_tag, probe, MIN_BODY_BYTES), mandatory=True)
        if not await confirmed:
            raise ClosedError(0, "the publish was refused")
        await delivered
        asked = settling.ask()
        await channel.declare(queue_name(queue), passive=True)
        settling.answered(asked)

    def _record(self, kind: Kind, channel: Channel, queue: int, probe: MessageId) -> None:
        self._stage.visitor.log.record(
            kind,
            queue_id=queue,
            pub_id=probe.pub_id,
            seq=probe.seq,
            attempt=probe.attempt,
            channel_id=channel.label,
            body_bytes=MIN_BODY_BYTES,
        )

    # --- stillness ---

    def _hold_still(self, before: dict[int, tuple[str, int]]) -> bool:
        stage = self._stage
        end_s = stage.loop.now_s + SETTLING_LIMIT_S
        reason = "it was not looked at"
        while reason and stage.loop.now_s < end_s and not stage.violations:
            stage.loop.run_until(stage.loop.now_s + LOOK_S)
            reason = why_not_converged(stage.cluster, stage.is_of_workload)
        if reason and not stage.violations:
            stage.violate("stuck", f"after everything was taken out: {different_metadata(stage.cluster) or reason}")
        if not stage.violations and (different := different_bytes(stage.cluster)):
            stage.violate("replicas", different)
        after = masters(stage.cluster)
        changed = {queue for queue, master in before.items() if after.get(queue) != master}
        if changed:
            stage.violate("unsteady", f"without any fault, {before} has become {after}")
        return not stage.violations

    # --- nothing is left ---

    def _give_back(self) -> bool:
        stage = self._stage
        end_s = stage.loop.now_s + GIVING_BACK_LIMIT_S
        while stage.loop.now_s < end_s and not stage.violations:
            if not why_not_given_back(stage.cluster) and not any(what_remains(stage.cluster)):
                return True
            stage.loop.run_until(stage.loop.now_s + LOOK_S)
        if not stage.violations:
            for left in (*what_is_left(stage.cluster), *what_remains(stage.cluster)):
                stage.violate("leak", left)
        return not stage.violations

"""One run of one schedule: set up, do the steps, heal, let it converge, drain, judge.

Everything that the run needs is in the schedule, so a run is a function: the same schedule on the same code has the
same outcome and the same fingerprint, in any process and under any hash seed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from warnings import catch_warnings, simplefilter

from chaos.history import Event, Kind, ProcKind
from chaos.sim.client import Channel, ProtocolError
from chaos.sim.cluster import SimulatedCluster
from chaos.sim.convergence import why_not_converged
from chaos.sim.judge import Circumstances, Violation, judge
from chaos.sim.loop import Process, SimulatedLoop, simulated_loop
from chaos.sim.machine import sync_queue
from chaos.sim.record_watch import RecordWatch
from chaos.sim.schedule import Schedule, Step
from chaos.sim.wipes import check_wiped
from chaos.sim.workload import RECONNECT_PAUSE_S, TROUBLE, Consumer, Publisher, Surroundings, Visitor
from cluster.metadata.records import PolicyRecord
from cluster.transport.admin_port import AdminPort
from node.errors import StorageError, WarrenError

SETUP_LIMIT_S = 120.0
DRAIN_LIMIT_S = 120.0
CONVERGENCE_LOOK_S = 0.5
#: An operator gives a node so long.
OPERATOR_TIMEOUT_S = 5.0
VHOST = "/"
#: Of a run that fails early, the first violations say it all.
VIOLATIONS_MAX = 20


def queue_name(queue: int) -> str:
    return f"q{queue}"


def queue_number(name: str) -> int | None:
    """The other way round; ``None`` if it is none of the workload's."""
    return int(name[1:]) if name[:1] == "q" and name[1:].isdigit() else None


@dataclass
class Outcome:
    """What came of a run."""

    seed: int
    violations: list[Violation]
    fingerprint: int
    #: Virtual seconds, and turns of all processes.
    length_s: float
    turns: int
    events: list[Event] = field(repr=False)
    #: What happened, a line per event, with the time.
    story: list[str] = field(repr=False)

    @property
    def is_failed(self) -> bool:
        return bool(self.violations)


class Run:
    """The world of one schedule."""

    def __init__(
        self, schedule: Schedule, *, checks_every: int = 50, on_line: Callable[[str], None] | None = None
    ) -> None:
        """``checks_every``: so many turns of nodes between two checks of all invariants."""
        self.schedule = schedule
        personality = schedule.personality
        self.loop: SimulatedLoop = simulated_loop()
        self.loop.set_exception_handler(self._exception)
        self.loop.after_turn = self._after_turn
        self.cluster = SimulatedCluster(self.loop, personality, schedule.seed)
        self.cluster.on_event = self.tell
        self.cluster.on_failure = self._node_failed
        self.cluster.on_crash = lambda node, error: self.violate("crash", f"{node}: {error!r}{_place(error)}")
        self.world = Surroundings(self.loop, self.cluster.network, self.cluster.addresses, schedule.seed)
        self.publishers = [Publisher(number, self.world, queue_name) for number in range(personality.publishers)]
        self.consumers = [
            Consumer(
                number,
                self.world,
                queue_name,
                prefetch=personality.prefetch,
                requeue_percent=personality.requeue_percent,
                hold_percent=personality.hold_percent,
            )
            for number in range(personality.consumers)
        ]
        self.visitor = Visitor("v", self.world, queue_name)
        self.violations: list[Violation] = []
        self.story: list[str] = []
        self._on_line = on_line
        self._checks_every = checks_every
        self._turns_to_check = checks_every
        self.world.holders_of = self._holders_of
        self._policies: list[int] = []
        #: Purges and deletions that were asked for.
        self._removals: list[asyncio.Task[None]] = []
        #: Queues for which one of them was not answered.
        self._may_be_removed: set[int] = set()
        self.records = RecordWatch(self.world.history.process(ProcKind.OBSERVER), queue_number, self.violate)

    # --- what happens ---

    def tell(self, text: str) -> None:
        line = f"{self.loop.now_s:10.4f} {text}"
        self.story.append(line)
        if self._on_line is not None:
            self._on_line(line)

    def violate(self, kind: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(kind, text))
        self.tell(f"VIOLATION {kind}: {text}")

    def _exception(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        process = self.loop.current
        where = process.name if process is not None else "harness"
        kind = "protocol" if isinstance(error, ProtocolError) else "exception"
        self.violate(kind, f"{where}: {context.get('message')}: {error!r}{_place(error)}")

    def _node_failed(self, node: str, reason: str) -> None:
        has_bad_disk = {"fail_sync", "full_disk"} & set(self.schedule.personality.faults)
        if not has_bad_disk:
            self.violate("failed node", f"{node}: {reason}")

    def _after_turn(self, process: Process) -> None:
        machine = self.cluster.machines.get(process.name)
        if machine is not None and machine.process is process and machine.name in self.cluster.nodes:
            self.records.look(process.name, process.number, self.cluster.nodes[machine.name])
        self._turns_to_check -= 1
        if self._turns_to_check <= 0:
            self._turns_to_check = self._checks_every
            self.check_invariants()

    def check_invariants(self) -> None:
        try:
            self.cluster.check_invariants()
            check_wiped(self.cluster)
        except AssertionError as error:
            self.violate("invariant", f"{error}{_place(error)}")

    # --- the run ---

    def run(self) -> Outcome:
        """All of it."""
        with _quiet(self):
            self._set_up()
            begin_s = self.loop.now_s
            for step in self.schedule.steps:
                self.loop.run_until(begin_s + step.at_ms / 1000)
                if self.violations:
                    break
                self._do(step)
            self.loop.run_until(begin_s + self.schedule.steps_end_ms / 1000)
            if not self.violations:
                self._end()
            self.loop.close()
        return Outcome(
            self.schedule.seed,
            self.violations,
            self.loop.fingerprint,
            self.loop.now_s,
            self.loop.turns,
            self.world.history.events,
            self.story,
        )

    def _finish(self, coroutine: Coroutine[Any, Any, Any], limit_s: float, what: str) -> bool:
        """Run until this is done; a violation if it takes too long."""
        task = self.visitor.process.create_task(coroutine)
        end_s = self.loop.now_s + limit_s
        while not task.done() and self.loop.now_s < end_s and not self.violations:
            self.loop.run_until(self.loop.now_s + 0.05)
        if not task.done():
            self.violate("stuck", f"{what} has not come to an end in {limit_s:g} s")
            return False
        task.result()
        return True

    def _set_up(self) -> None:
        for name in self.cluster.machines:
            self.cluster.start(name)
        self._finish(self._declare_everything(), SETUP_LIMIT_S, "the set-up")
        for publisher in self.publishers:
            publisher.start()

    async def _declare_everything(self) -> None:
        policy = self.schedule.personality.policy
        if policy:
            while not await self._operated(  # noqa: ASYNC110 - a node is asked, which tells nobody when to ask again
                lambda admin: admin.set_policy(policy_record(policy))
            ):
                await asyncio.sleep(RECONNECT_PAUSE_S)
        for queue in range(self.schedule.personality.queues):
            await self._declare(queue)

    async def _declare(self, queue: int) -> None:
        arguments = {"x-queue-mode": "lazy"} if self.schedule.personality.is_lazy else {}

        async def ask(channel: Channel) -> None:
            await channel.declare(queue_name(queue), arguments=arguments)

        await self.visitor.insist(ask)

    async def _operated(self, ask: Callable[[AdminPort], Coroutine[Any, Any, Any]]) -> bool:
        """Have an operator ask the nodes one after the other; whether one did it."""
        for door in list(self.cluster.admin_doors.values()):
            try:
                async with asyncio.timeout(OPERATOR_TIMEOUT_S):
                    await door.ask(ask)
            except (WarrenError, TimeoutError) as error:
                self.tell(f"refused: {error}")
            else:
                return True
        return False

    def _end(self) -> None:
        self.tell("heal everything")
        self.cluster.heal()
        end_s = self.loop.now_s + self.schedule.quiet_ms / 1000
        reason = "it was not looked at"
        while reason and self.loop.now_s < end_s and not self.violations:
            self.loop.run_until(self.loop.now_s + CONVERGENCE_LOOK_S)
            reason = self._why_not_done()
        if reason and not self.violations:
            self.violate("stuck", reason)
        self.check_invariants()
        for process, error in self.loop.failed_tasks():
            if not isinstance(error, (WarrenError, *TROUBLE)):
                self.violate("failed task", f"{process.name}: {error!r}{_place(error)}")
        if self.violations:
            return
        for client in (*self.publishers, *self.consumers):
            client.stop()
        self.loop.run_until(self.loop.now_s + 1)
        if self._finish(self._drain(), DRAIN_LIMIT_S, "the drain"):
            for log in self.world.history.logs:
                log.end()
            self.violations += judge(self.world.history.events, self._circumstances())[:VIOLATIONS_MAX]

    def _why_not_done(self) -> str:
        reason = why_not_converged(self.cluster)
        waiting = [publisher.name for publisher in self.publishers if not publisher.is_idle]
        if not reason and not all(task.done() for task in self._removals):
            reason = "a queue that was deleted has not been declared again"
        if not reason and waiting:
            reason = f"publishers without all their confirms: {', '.join(waiting)}"
        return reason

    async def _drain(self) -> None:
        for queue in range(self.schedule.personality.queues):
            await self._declare(queue)
            await self.visitor.drain(queue)
            if queue in self._may_be_removed:
                self._excuse(queue)

    def _circumstances(self) -> Circumstances:
        return Circumstances(
            self.records.lossy, self.world.holders, self.cluster.deaths, self._policies, self.records.interruptions
        )

    def _holders_of(self, queue: int) -> frozenset[str]:
        """By the newest record that any node knows."""
        names = {
            known.queue_id
            for node in self.cluster.nodes.values()
            for known in node.runtime.metadata.topology.queues(VHOST)
            if known.name == queue_name(queue)
        }
        records = [record for queue_id, record in self.records.newest.items() if queue_id in names]
        newest = max(records, key=lambda record: record.queue_id, default=None)
        return frozenset() if newest is None else frozenset((newest.master, *newest.synchronised))

    # --- steps ---

    def _do(self, step: Step) -> None:
        self.tell(str(step)[9:])
        handler = getattr(self, f"_step_{step.kind}", None)
        if handler is None:
            handler = getattr(self.cluster, step.kind)
        handler(*step.args)

    def _step_publish(self, publisher: int, queue: int, burst: int, body_bytes: int, is_persistent: int) -> None:
        self.publishers[publisher].tell(queue, burst, body_bytes, bool(is_persistent))

    def _step_consume(self, consumer: int, queue: int) -> None:
        self.consumers[consumer].consume(queue)

    def _step_restart_consumer(self, consumer: int, _queue: int) -> None:
        self.consumers[consumer].drop()

    def _step_cancel(self, consumer: int, _queue: int) -> None:
        self.consumers[consumer].cancel()

    def _step_recover(self, consumer: int, _queue: int) -> None:
        self.consumers[consumer].give_back()

    def _step_reconnect(self, publisher: int) -> None:
        self.publishers[publisher].drop()

    def _step_get(self, queue: int) -> None:
        self._ask(lambda channel: self.visitor.get_one(channel, queue))

    def _step_purge(self, queue: int) -> None:
        self._remove(queue, lambda channel: channel.purge(queue_name(queue)))

    def _step_delete(self, queue: int) -> None:
        self._remove(queue, lambda channel: channel.delete(queue_name(queue)))

    def _step_sync(self, queue: int) -> None:
        self._operate(lambda admin: sync_queue(admin, VHOST, queue_name(queue)))

    def _step_cancel_sync(self, queue: int) -> None:
        self._operate(lambda admin: admin.cancel_sync_queue(VHOST, queue_name(queue)))

    def _step_policy(self, definition: dict[str, Any]) -> None:
        # It may be applied at any time until the request has been given up.
        self._policies += [int((self.loop.now_s + later_s) * 1e6) for later_s in range(30)]
        self._operate(lambda admin: admin.set_policy(policy_record(definition)))

    def _ask(self, ask: Callable[[Channel], Coroutine[Any, Any, Any]]) -> None:
        """Once, whatever comes of it."""

        async def try_it() -> None:
            try:
                await self.visitor.request(ask)
            except TROUBLE as error:
                self.tell(f"refused: {error}")

        self.visitor.process.create_task(try_it())

    def _remove(self, queue: int, ask: Callable[[Channel], Coroutine[Any, Any, Any]]) -> None:
        """Everything that is published until the queue is known to be there again may be gone; and what is published
        later, too, if there was no answer: then it may still happen."""

        async def remove() -> None:
            try:
                await self.visitor.request(ask)
            except TROUBLE as error:
                self.tell(f"refused: {error}")
                self._may_be_removed.add(queue)
            await self._declare(queue)
            self._excuse(queue)

        self._removals.append(self.visitor.process.create_task(remove()))

    def _excuse(self, queue: int) -> None:
        for event in list(self.world.history.events):
            if event.kind == Kind.PUB_INVOKE and event.queue_id == queue:
                self.visitor.log.record(
                    Kind.PURGE, queue_id=queue, pub_id=event.pub_id, seq=event.seq, attempt=event.attempt
                )

    def _operate(self, ask: Callable[[AdminPort], Coroutine[Any, Any, Any]]) -> None:
        """Once, whatever comes of it."""
        self.visitor.process.create_task(self._operated(ask))


def policy_record(definition: Mapping[str, Any]) -> PolicyRecord:
    """Of all queues."""
    return PolicyRecord(VHOST, "all", "^q", definition, 0, "queues")


def run_schedule(schedule: Schedule, **options: Any) -> Outcome:
    """See the module text. The collector rests meanwhile: what it collects when is not the same in every process."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return Run(schedule, **options).run()
    finally:
        if was_enabled:
            gc.enable()


class _Mistakes(logging.Handler):
    """What nodes log of mistakes that they contain: in a simulation each is a violation."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        run = self._run
        if run.loop.is_closed():
            return  # what is dropped at the end has no say
        process = run.loop.current
        where = process.name if process is not None else "harness"
        run.tell(f"{where} {record.levelname.lower()}: {record.getMessage()}")
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and error is not None and not isinstance(error, StorageError):
            run.violate("contained mistake", f"{where}: {record.getMessage()}: {error!r}{_place(error)}")


@contextmanager
def _quiet(run: Run) -> Iterator[None]:
    """The nodes' log goes into the story."""
    root = logging.getLogger()
    handler = _Mistakes(run)
    before, level, propagate = root.handlers[:], root.level, sys.unraisablehook
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    sys.unraisablehook = lambda _unraisable: None
    try:
        with catch_warnings():
            # Coroutines of killed nodes are never awaited, which is no mistake.
            simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        sys.unraisablehook = propagate


def _place(error: object) -> str:
    """Where it was raised."""
    trace = error.__traceback__ if isinstance(error, BaseException) else None
    if trace is None:
        return ""
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f" ({' > '.join(places[-6:])})"

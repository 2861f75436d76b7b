"""One run of one schedule: set up, do the steps, heal, let it converge, drain, serve, judge.

Everything that the run needs is in the schedule, so a run is a function: the same schedule on the same code has the
same outcome and the same fingerprint, in any process and under any hash seed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from warnings import catch_warnings, simplefilter

from chaos.analysis.reference import AttemptKey
from chaos.history import Event, Kind, ProcKind
from chaos.sim.answers import Answers
from chaos.sim.checks import Checks
from chaos.sim.client import ProtocolError
from chaos.sim.cluster import SimulatedCluster
from chaos.sim.ending import Ending
from chaos.sim.happenings import Happening
from chaos.sim.insides import route_to
from chaos.sim.judge import Circumstances, HandOut, Violation, entries_of, judge
from chaos.sim.link_sizes import sizes_of_links
from chaos.sim.loop import Process, SimulatedLoop, simulated_loop
from chaos.sim.orderly import flagged_for_nothing, is_orderly
from chaos.sim.raft_watch import RaftWatch
from chaos.sim.record_watch import RecordWatch
from chaos.sim.schedule import Personality, Schedule
from chaos.sim.sometimes import seen_in_log
from chaos.sim.stage import VIOLATIONS_MAX, Stage, place, policy_record, queue_number
from chaos.sim.steps import Steps
from chaos.sim.taps import Listener
from chaos.sim.thresholds import in_force, thresholds_of
from chaos.sim.workload import FAN_KEY, RECONNECT_PAUSE_S, TROUBLE, SessionMark, Surroundings
from chaos.workload.message_id import decode_body
from cluster.composition import Node
from cluster.metadata.errors import MalformedCommandError
from cluster.mirroring import master, mirror, promotion, turn
from cluster.sessions.routes import RouteState
from cluster.transport import outbox
from node.errors import StorageError, WarrenError
from node.ids import QueueId, QueueName
from node.message import Message
from node.queues import digests, local_replica
from node.queues.backing_queue import Delivery
from node.store.disk.simulated import SimulatedCrashError

SETUP_LIMIT_S = 120.0
#: Errors that a node may log though its disk is sound: what they begin with, before anything is filled in.
EXPECTED_ERRORS = (
    "this node pauses (pause_minority)",
    "%s has no other complete copy that is up",
)
#: What it says when it gives up its copy of a queue, with what that had in memory.
GIVEN_UP = ("%s: this node's copy is out of service: ", "%s: its files could not be closed cleanly: ")


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
    #: What of `chaos.sim.sometimes.CATALOGUE` was reached.
    sightings: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_failed(self) -> bool:
        return bool(self.violations)


class Run:
    """The world of one schedule."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        checks_every: int = 0,
        on_line: Callable[[str], None] | None = None,
        on_happening: Callable[[Happening], None] | None = None,
    ) -> None:
        """``checks_every``: so many turns of nodes between two checks of the one whose turn it was; drawn if 0.

        ``on_line`` hears the log line by line, what clients do included; ``on_happening`` of what the lines are about.
        """
        self.schedule = schedule
        self.loop: SimulatedLoop = simulated_loop()
        self.loop.set_exception_handler(self._exception)
        self.loop.after_turn = self._after_turn
        cluster = SimulatedCluster(self.loop, schedule.personality, schedule.seed)
        answers = Answers(schedule.personality, self._violate)
        world = Surroundings(self.loop, cluster.network, cluster.addresses, schedule.seed, answers)
        self.stage = stage = Stage(schedule, self.loop, cluster, world, on_line, on_happening)
        self.cluster, self.world = cluster, world
        note = stage.sightings.note
        cluster.on_happening = lambda text, lane, begins, ends: stage.tell(
            text, "fault", lane, begins=begins, ends=ends
        )
        cluster.on_failure = lambda node, reason: stage.violate("failed node", f"{node}: {reason}")
        cluster.on_crash = lambda node, error: stage.violate("crash", f"{node}: {error!r}{place(error)}")
        cluster.note = world.note = note
        world.session_of = self._session_of
        self.records = RecordWatch(world.history.process(ProcKind.OBSERVER), queue_number, stage.violate, note)
        self.records.told = lambda text, master: stage.tell(text, "record", master)
        stage.master_of, stage.was_down = self.records.master_of, self.records.was_down
        self.records.on_forgotten, self.records.on_joined = cluster.forgotten, cluster.joined
        self.records.is_alone, self.records.on_let_in = cluster.is_alone, cluster.let_in
        self._limits = world.history.process(ProcKind.OBSERVER, "limits")
        #: When, by the master of which epoch, what, of which queue.
        self._handed_out: list[tuple[int, int, Sequence[Delivery], QueueId]] = []
        self._listener = Listener(
            self.records,
            note,
            loop=self.loop,
            dropped=self._dropped,
            handed_out=self._hand_out,
            look=self._look,
            is_something_wrong=cluster.is_something_wrong,
            votes=RaftWatch(stage.violate),
            moment=stage.node_moment,
            cancelled=stage.cancelled_syncs.add,
        )
        self._is_hostile = any(step.kind == "hostile" for step in schedule.steps)
        self._checks = Checks(cluster, schedule.seed, self._invariant_broken, every=checks_every)

    # --- what happens ---

    def _violate(self, kind: str, text: str) -> None:
        self.stage.violate(kind, text)

    def _exception(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        process = self.loop.current
        where = process.name if process is not None else "harness"
        kind = "protocol" if isinstance(error, ProtocolError) else "exception"
        self.stage.violate(kind, f"{where}: {context.get('message')}: {error!r}{place(error)}")

    def logged(self, record: logging.LogRecord) -> None:
        """Somebody has logged a line: a mistake that a node contains is a violation here, and so is an error that no
        fault of its disk explains."""
        process = self.loop.current
        if process is not None and not process.is_alive:
            return  # it was killed in the midst of its turn
        where = process.name if process is not None else "harness"
        text = record.getMessage()
        kind = {logging.INFO: "log", logging.WARNING: "warning"}.get(record.levelno, "error")
        self.stage.tell(
            f"{where} {record.levelname.lower()}: {text}", kind, where if where in self.cluster.machines else ""
        )
        name = seen_in_log(record.msg)
        if name is not None:
            self.stage.sightings.note(name)
        if "that were not wholly written" in text:
            self.stage.sightings.note("a torn record was found")
        if "does not read them" in text:
            self.stage.violate("overflow", f"{where}: {text}")
        if record.msg.startswith(GIVEN_UP) and isinstance(record.args, tuple) and isinstance(record.args[0], QueueName):
            self._note_given_up(where, record.args[0])
        if record.levelno < logging.ERROR or record.msg.startswith(EXPECTED_ERRORS):
            return
        error = record.exc_info[1] if record.exc_info else None
        if self._is_hostile and any(isinstance(said, MalformedCommandError) for said in (error, *(record.args or ()))):
            return  # which is what it should say
        machine = self.cluster.machines.get(where)
        is_mistake = error is not None and not isinstance(error, StorageError)
        if is_mistake or machine is None or not machine.is_disk_suspect:
            kind = "contained mistake" if is_mistake else "error"
            self.stage.violate(kind, f"{where}: {text}: {error!r}{place(error)}")

    def _note_given_up(self, node: str, name: QueueName) -> None:
        self.stage.given_up.setdefault(name.name, []).append((self._limits.now_us(), node))

    def _dropped(self, kind: Kind, dropped: Sequence[Message], queue_id: QueueId) -> None:
        """These have left this queue legally."""
        if kind == Kind.DROP and self.schedule.personality.overflow == "reject-publish":
            self.stage.violate("dropped", f"{len(dropped)} messages of a queue that only refuses what is new")
        for queue, pub_id, seq, attempt in self._attempts(dropped, queue_id):
            self._limits.record(kind, queue_id=queue, pub_id=pub_id, seq=seq, attempt=attempt)

    def _hand_out(self, epoch: int, deliveries: Sequence[Delivery], queue_id: QueueId) -> None:
        """By the master of this epoch."""
        self._handed_out.append((self._limits.now_us(), epoch, deliveries, queue_id))

    def _hand_outs(self) -> dict[AttemptKey, list[HandOut]]:
        hand_outs: dict[AttemptKey, list[HandOut]] = {}
        position = 0
        for at_us, epoch, deliveries, queue_id in self._handed_out:
            for each in deliveries:
                position += 1
                for key in self._attempts([each.message], queue_id):
                    hand_outs.setdefault(key, []).append(HandOut(at_us, epoch, each.redelivered, position, queue_id))
        return hand_outs

    def _attempts(self, messages: Sequence[Message], queue_id: QueueId) -> Iterator[AttemptKey]:
        """Which these of a queue are, of those that are of the workload."""
        for each in messages:
            message, _ = decode_body(self.world.run_tag, each.body)
            is_fanned_out = each.routing_key == FAN_KEY
            queue = self.records.numbers.get(queue_id) if is_fanned_out else queue_number(each.routing_key)
            if message is not None and queue is not None:
                yield queue, message.pub_id, message.seq, message.attempt

    def _session_of(self, entry: int, queue: int) -> SessionMark | None:
        """Identity of the session between a node that clients ask and the master in service of a queue."""
        name = self.world.nodes[entry][0]
        node, process = self.cluster.nodes.get(name), self.cluster.machines[name].process
        queue_id = self.records.ids.get(queue)
        if node is None or process is None or queue_id is None:
            return None
        route = route_to(node, queue_id)
        if route is None or route.state is not RouteState.OPEN or route.epoch != self.records.epochs.get(queue_id):
            return None
        began_s = self._listener.sessions.get((process.number, queue_id, route.session))
        if began_s is None:
            return None
        return SessionMark(process.number, queue_id, route.epoch, route.session, began_s)

    def wall_time_s(self) -> float:
        """For whoever's turn it is."""
        return (self.loop.current or self.loop.harness).wall_time_s()

    def _after_turn(self, process: Process) -> None:
        node = process.subject
        if isinstance(node, Node) and process.is_alive:
            self.records.look(process.name, process.number, node)
            self._checks.turn_over(node)

    def _look(self, process: Process) -> None:
        """At what a node knows; nothing if the process is none any more."""
        node = process.subject
        if isinstance(node, Node) and process.is_alive:
            self.records.look(process.name, process.number, node)

    def _invariant_broken(self, error: AssertionError) -> None:
        self.stage.violate("invariant", f"{error}{place(error)}")

    def check_invariants(self) -> None:
        """Of everything."""
        self._checks.everything()

    # --- the run ---

    def run(self) -> Outcome:
        """All of it."""
        stage, loop = self.stage, self.loop
        with _quiet(self), self._listener.laid(), self._checks.laid(), _sized(self.schedule.personality):
            self._set_up()
            begin_s = loop.now_s
            steps = Steps(stage)
            for step in self.schedule.steps:
                loop.run_until(begin_s + step.at_ms / 1000)
                if stage.violations:
                    break
                steps.do(step)
            loop.run_until(begin_s + self.schedule.steps_end_ms / 1000)
            self.check_invariants()
            if not stage.violations and Ending(stage).run():
                self._judge()
            loop.close()
        return Outcome(
            self.schedule.seed,
            stage.violations,
            loop.fingerprint,
            loop.now_s,
            loop.turns,
            self.world.history.events,
            stage.story,
            tuple(stage.sightings.seen),
        )

    def _set_up(self) -> None:
        for name in self.cluster.machines:
            self.cluster.start(name)
        self.stage.finish(self._declare_everything(), SETUP_LIMIT_S, "the set-up")
        for client in (*self.stage.publishers, *self.stage.transactors):
            client.start()

    async def _declare_everything(self) -> None:
        policy = self.schedule.personality.policy
        if policy:
            while not await self.stage.operated(  # noqa: ASYNC110 - a node is asked, which tells nobody when to ask again
                lambda admin: admin.set_policy(policy_record(policy))
            ):
                await asyncio.sleep(RECONNECT_PAUSE_S)
        await self.stage.declare_all()

    def _judge(self) -> None:
        self.check_invariants()
        for process, error in self.loop.failed_tasks():
            if not isinstance(error, (WarrenError, SimulatedCrashError, *TROUBLE)):
                self.stage.violate("failed task", f"{process.name}: {error!r}{place(error)}")
        history = self.world.history
        for log in history.logs:
            log.end()
        if any(event.kind == Kind.DELIVER and event.redelivered for event in history.events):
            self.stage.sightings.note("a message came again")
        if self.world.settled:
            self.stage.sightings.note("an acknowledgement was proven")
        self.records.finish()
        circumstances = self._circumstances()
        found = judge(history.events, circumstances)
        if is_orderly(self.schedule):
            hand_outs, orders = circumstances.hand_outs, self.cluster.orders
            found += flagged_for_nothing(history.events, hand_outs, self.records.services, orders)
        for violation in found[:VIOLATIONS_MAX]:
            self.stage.found(violation)
        entries = entries_of(history.events, circumstances.nodes)
        self.world.answers.judge(history.events, entries, self.records.ignorance)

    def _circumstances(self) -> Circumstances:
        return Circumstances(
            lossy=self.records.lossy,
            holders=self.records.holders,
            removals=self.records.removals,
            empty_removals=self.records.empty_removals,
            ignorance=self.records.ignorance,
            nodes=[name for name, _ in self.world.nodes],
            conditional=self.records.conditional,
            requests=self.stage.requests if self.schedule.personality.has_whole_links else {},
            transient=self.world.transient,
            joint=self.world.joint,
            settled=self.world.settled,
            hand_outs=self._hand_outs(),
            deaths=self.cluster.deaths,
            powers=self.cluster.powers,
            given_up={
                number: ends for name, ends in self.stage.given_up.items() if (number := queue_number(name)) is not None
            },
            syncs={name: machine.syncs for name, machine in self.cluster.machines.items()},
            is_flush=self.schedule.personality.is_flush,
        )


def run_schedule(schedule: Schedule, **options: Any) -> Outcome:
    """See the module text. The collector rests meanwhile: what it collects when is not the same in every process."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return Run(schedule, **options).run()
    finally:
        if was_enabled:
            gc.enable()


#: What `logging` finds out for every line unless it is told not to (its manual, "Optimization"), and nobody reads here.
FACTS_OF_LINES = ("_srcfile", "logThreads", "logMultiprocessing", "logProcesses")


class _Log(logging.Handler):
    """The nodes' log goes into the story."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        if not self._run.loop.is_closed():  # what is dropped at the end has no say
            self._run.logged(record)


#: Modules that count positions in segments of digests.
WITH_DIGEST_SEGMENTS = (master, mirror, promotion, digests, local_replica)


@contextmanager
def _sized(personality: Personality) -> Iterator[None]:
    """Sizes that few messages reach otherwise are those of the personality, if it has any."""
    wanted = [(master, "HORIZON_STEP_MIN", personality.horizon_step)]
    if personality.frame_bytes_max:
        wanted += [(turn, "FRAME_BYTES_MAX", personality.frame_bytes_max), (outbox, "MAX_FRAME_ITEMS", 1)]
    wanted += [
        (module, "DIGEST_SEGMENT_ENTRIES", personality.digest_segment_entries) for module in WITH_DIGEST_SEGMENTS
    ]
    wanted += sizes_of_links(personality.link_bytes)
    with in_force(each for each in wanted if each[2]), thresholds_of(personality.thresholds):
        yield


@contextmanager
def _quiet(run: Run) -> Iterator[None]:
    """Nothing gets out, and the wall clock is that of whose turn it is."""
    root = logging.getLogger()
    before, level, unraisable, wall_time = root.handlers[:], root.level, sys.unraisablehook, time.time
    root.handlers[:] = [_Log(run)]
    root.setLevel(logging.INFO)
    sys.unraisablehook = lambda _unraisable: None
    time.time = run.wall_time_s
    facts = {name: getattr(logging, name) for name in FACTS_OF_LINES}
    for name in facts:
        setattr(logging, name, None)
    try:
        with catch_warnings():
            # Coroutines of killed nodes are never awaited, which is no mistake.
            simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        for name, value in facts.items():
            setattr(logging, name, value)
        time.time = wall_time
        root.handlers[:] = before
        root.setLevel(level)
        sys.unraisablehook = unraisable

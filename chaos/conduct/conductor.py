"""The phases of a run, in their order. See the package's text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pika.exceptions

from chaos.clients.fleet import Fleet, FleetError
from chaos.clients.options import Endpoint, Orders, Role
from chaos.clients.process import Command
from chaos.conduct.casting import Stage, cast
from chaos.conduct.channel import opened_channel
from chaos.conduct.crew import Crew
from chaos.conduct.draining import await_answers, await_empty
from chaos.conduct.faults import Faults
from chaos.conduct.looking import CannotLook, look
from chaos.conduct.sheet import QueueEntry, RosterEntry, Sheet, State
from chaos.conduct.slack import slack_us
from chaos.conduct.steps import NotReached, Steps
from chaos.conduct.watch import Watch
from chaos.plan.model import QueuePlan, Scenario
from chaos.plan.words import Quantity
from chaos.record.kinds import Kind
from chaos.record.process_record import ProcessRecord, RunClock
from chaos.record.schema import EventClass
from chaos.targets.target import Target, TargetError

#: The number of whoever conducts in the roster.
CONDUCTOR = 1
#: For the mirrors of queues that were just declared.
MIRRORED_S = 60.0


class Conductor:
    """Of one run, in a directory of its own."""

    def __init__(
        self,
        scenario: Scenario,
        target: Target,
        run_directory: Path,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
        replay: str = "",
    ) -> None:
        """``run_directory``: there is no run in it. Its name is the run's."""
        self._scenario = scenario
        self._target = target
        self._directory = run_directory
        self._say = say
        self._crew: Crew | None = None
        self._watch: Watch | None = None
        self._clock = RunClock()
        #: What is drawn by the scenario, and by clients, each for itself.
        self._chance = Random(f"{seed} steps")
        self._seed = seed
        expectation = scenario.expectation
        self.sheet = Sheet(
            run=run_directory.name,
            scenario=scenario.id,
            title=scenario.title,
            holds=scenario.holds,
            target=target.kind,
            seed=seed,
            began_at=datetime.now(UTC).isoformat(timespec="seconds"),
            queues=[QueueEntry(queue.name, queue.may_remove) for queue in scenario.queues],
            roster=[RosterEntry(CONDUCTOR, "conductor")],
            wanted_at_risk=dict(expectation.at_risk),
            loss_permitted=expectation.loss_permitted,
            publish_gap_us_max=_us(expectation.publish_gap_max_s),
            consume_gap_us_max=_us(expectation.consume_gap_max_s),
            replay=replay,
        )

    async def run(self) -> Sheet:
        """From the beginning to the end. What went wrong is in the sheet; only an interruption is raised."""
        self._write()
        record = ProcessRecord(self._directory, self.sheet.run, CONDUCTOR, EventClass.CONTROL, self._clock)
        try:
            with record:
                await self._conduct(record)
            self.sheet.state = State.FINISHED
        except (TargetError, FleetError, TimeoutError, pika.exceptions.AMQPError, OSError) as error:
            self.sheet.state = State.BROKEN
            self.sheet.problem = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            self.sheet.state = State.INTERRUPTED
            self.sheet.problem = "interrupted"
            raise
        except BaseException as error:
            self.sheet.state = State.BROKEN
            self.sheet.problem = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.sheet.slack_us = slack_us(self._directory, self._longest_hold_us)
            self._write()
        return self.sheet

    _longest_hold_us = 0

    def _write(self) -> None:
        self.sheet.write(self._directory)

    def _enrol(self, orders: Orders) -> None:
        publishers = [orders.publisher.publisher] if orders.publisher is not None else []
        self.sheet.roster.append(RosterEntry(orders.process, str(orders.role), publishers))
        self._write()

    @asynccontextmanager
    async def _phase(self, name: str, record: ProcessRecord) -> AsyncIterator[None]:
        began_s = time.monotonic()
        record.note(Kind.PHASE, detail=name)
        self._say(name)
        yield
        self.sheet.took_s[name] = round(time.monotonic() - began_s, 3)
        self._write()

    async def _conduct(self, record: ProcessRecord) -> None:
        scenario, target = self._scenario, self._target
        async with self._phase("prepare", record):
            await target.start(scenario.cluster, scenario.needs())
            self.sheet.nodes = [asdict(facts) | {"log": _within(self._directory, facts.log)} for facts in target.nodes]
            self._write()
            await target.wait_ready()
        names = [queue.name for queue in scenario.queues]
        if target.guest is not None:
            target.guest.claim(names)
        async with (
            Fleet(self._enrol, first_process=CONDUCTOR + 1) as fleet,
            Watch(target, names, record, self._clock) as watch,
        ):
            crew = Crew(fleet, lambda want: record.note(Kind.CONSUMING, number=int(want)))
            faults = Faults(target, record, self._clock, self._chance, len(names), lambda: _at_risk(crew, watch))
            steps = Steps(scenario, target, watch, crew, faults, record, self._clock, self._chance, self._say)
            self._crew, self._watch = crew, watch
            try:
                await self._warm(record, crew, steps, watch)
                async with self._phase("steps", record):
                    try:
                        await steps.take_all()
                    except NotReached as missed:
                        self._missed(str(missed))
                await self._end(record, crew, steps, faults, watch)
            finally:
                await faults.close()
                self._longest_hold_us = faults.longest_hold_us
                self.sheet.at_risk = self._risked(crew, faults, watch)
        await self._clear()

    def progress(self) -> Mapping[str, int]:
        """How far it is, as clients and nodes said last; empty before there are any."""
        if self._crew is None or self._watch is None:
            return {}
        quantities = {str(name): number for name, number in self._crew.quantities().items()}
        return {**quantities, "failovers": self._watch.failovers()}

    def _missed(self, what: str) -> None:
        self._say(what)
        self.sheet.not_reached.append(what)

    def _risked(self, crew: Crew, faults: Faults, watch: Watch) -> dict[str, int]:
        quantities = crew.quantities()
        return {
            **faults.risked,
            "faults": faults.landed,
            "failovers": watch.failovers(),
            "confirmed": quantities[Quantity.CONFIRMED],
            "redelivered": quantities[Quantity.REDELIVERED],
        }

    async def _clear(self) -> None:
        """What is left on a cluster that others use is told of; the run has come to its end all the same."""
        if self._target.guest is None:
            return
        try:
            await self._target.guest.clear()
        except TargetError as error:
            self.sheet.notes.append(str(error))

    # --- the beginning

    async def _warm(self, record: ProcessRecord, crew: Crew, steps: Steps, watch: Watch) -> None:
        scenario = self._scenario
        if scenario.cluster.policy:
            await steps.set_policy(scenario.cluster.policy)
        for queue in scenario.queues:
            await asyncio.to_thread(_declare, self._url(queue.declared_at), queue)
        await self._await_mirrors(watch)
        endpoints = [Endpoint(each.node, self._name(each.node), each.url) for each in self._target.endpoints]
        stage = Stage(self.sheet.run, self._directory, self._clock.offset_us, endpoints, self._seed)
        await crew.begin(cast(scenario, stage))
        async with self._phase("warm", record):
            await crew.command(Command.START, Role.CONSUMER)
            await crew.command(Command.START, Role.PUBLISHER)
            await asyncio.sleep(scenario.load.warm_s)

    def _url(self, node: int) -> str:
        return next(each.url for each in self._target.endpoints if each.node == node)

    def _name(self, node: int) -> str:
        return next(facts.name for facts in self._target.nodes if facts.number == node)

    async def _await_mirrors(self, watch: Watch) -> None:
        wanted = _mirrors_wanted(self._scenario.cluster.policy, self._scenario.cluster.nodes)
        async with asyncio.timeout(MIRRORED_S):
            while not all(
                queue in views and views[queue].is_served and len(views[queue].synchronised) >= wanted
                for views in [watch.views()]
                for queue in watch.masters
            ):
                await watch.next_look()

    # --- the end

    async def _end(self, record: ProcessRecord, crew: Crew, steps: Steps, faults: Faults, watch: Watch) -> None:
        async with self._phase("calm", record):
            await steps.resume_consumers()
            await faults.heal()
            nodes = [facts.number for facts in self._target.nodes]
            await faults.start(nodes)
            await self._target.wait_ready(nodes)
            await crew.command(Command.RELEASE, Role.CONSUMER)
            await crew.command(Command.START, Role.CONSUMER)
            await crew.command(Command.START, Role.PUBLISHER)
            await asyncio.sleep(self._scenario.load.calm_s)
        async with self._phase("drain", record):
            await crew.command(Command.DRAIN, Role.PUBLISHER)
            self.sheet.notes += await await_answers(crew, watch)
            drained, notes = await await_empty(crew, watch)
            self.sheet.notes += notes
            for entry in self.sheet.queues:
                entry.is_drained = entry.name in drained
        async with self._phase("look", record):
            await crew.refresh()
            await crew.stop()
            for index, entry in enumerate(self.sheet.queues, 1):
                await self._look(record, index, entry, watch)

    async def _look(self, record: ProcessRecord, index: int, entry: QueueEntry, watch: Watch) -> None:
        view = watch.views().get(entry.name)
        node = view.master if view is not None and view.master is not None else 1
        try:
            keys = await look(self._url(node), self.sheet.run, entry.name)
        except CannotLook as error:
            self.sheet.notes.append(str(error))
            return
        for key in keys:
            record.note(Kind.LEFT, message=key, queue=0 if key else index)
        entry.is_known = True


def _at_risk(crew: Crew, watch: Watch) -> Mapping[str, int]:
    """What would be lost now, if all went wrong."""
    quantities = crew.quantities()
    views = watch.views().values()
    return {
        "stored": sum((view.ready or 0) + (view.unacked or 0) for view in views),
        "held": quantities[Quantity.HELD],
        "outstanding": quantities[Quantity.OUTSTANDING],
        "unsynchronised": sum(len(set(view.mirrors) - set(view.synchronised)) for view in views),
        "unserved": len(watch.masters) - sum(view.is_served for view in views),
    }


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def _within(directory: Path, log: str) -> str:
    """A log of the run's own is found again wherever its directory is moved."""
    path, own = Path(log), directory.absolute()
    return str(path.relative_to(own)) if log and path.is_relative_to(own) else log


def _mirrors_wanted(policy: Mapping[str, Any], nodes: int) -> int:
    """Mirrors that a queue just declared gets, all of them with everything."""
    mode, told = policy.get("ha-mode"), policy.get("ha-params")
    if mode == "all":
        return nodes - 1
    if mode == "exactly" and isinstance(told, int):
        return min(told, nodes) - 1
    # The master may be another one than those that are named.
    return 0


def _declare(url: str, queue: QueuePlan) -> None:
    with opened_channel(url) as channel:
        channel.queue_declare(queue.name, durable=queue.is_durable, arguments=dict(queue.arguments))

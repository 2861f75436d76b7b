"""Taking the steps of a scenario, one after the other.

A step's condition is looked at again and again, each time with fresh counts of all clients and what the nodes said
last. What does not come to pass in its time is a result (`NotReached`), not an error.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any

from chaos.clients.options import Role as ClientRole
from chaos.clients.ports import Recorder
from chaos.clients.process import Command
from chaos.conduct.crew import Crew
from chaos.conduct.faults import PAUSE_CONSUMERS, Fault, Faults, summary
from chaos.conduct.loop_time import now_s
from chaos.conduct.selecting import NobodyMeant, Scene, select_lines, select_nodes
from chaos.conduct.swarm import draws
from chaos.conduct.watch import Watch
from chaos.harm.lines import Line
from chaos.plan.model import Round, Scenario, Step
from chaos.plan.words import Condition, Quantity
from chaos.record.kinds import Kind
from chaos.record.process_record import RunClock
from chaos.targets.target import NotNow, Operator, Target

#: Of the policy that a scenario sets.
POLICY_NAME = "chaos"
#: For an order that no node can take now.
ORDER_S = 60.0
_PAUSE_S = 0.05
_SINCE_ROUND_BEGAN = frozenset(
    {Quantity.CONFIRMED, Quantity.DELIVERED, Quantity.REDELIVERED, Quantity.REFUSED, Quantity.FAILOVERS}
)


class NotReached(Exception):
    """What a step waited for did not come to pass; the text says what."""


def pattern_of(queues: Sequence[str]) -> str:
    """Of a policy that is for these queues."""
    return f"^(?:{'|'.join(re.escape(queue) for queue in queues)})$"


class Steps:
    """Takes those of one run."""

    def __init__(
        self,
        scenario: Scenario,
        target: Target,
        watch: Watch,
        crew: Crew,
        faults: Faults,
        record: Recorder,
        clock: RunClock,
        chance: Random,
        say: Callable[[str], None],
    ) -> None:
        """``say``: tell whoever watches."""
        self._scenario = scenario
        self._target = target
        self._watch = watch
        self._crew = crew
        self._faults = faults
        self._record = record
        self._clock = clock
        self._chance = chance
        self._say = say
        self._queues = {queue.name: index for index, queue in enumerate(scenario.queues, 1)}
        #: Of what is counted since a round began, by quantity and queue.
        self._before: dict[tuple[Quantity, str | None], int] = {}
        self._policy = POLICY_NAME if target.guest is None else target.guest.policy
        self._paused: Fault | None = None
        self._last_s = 0.0

    def doers(self) -> Mapping[str, Callable[[Step], Awaitable[None]]]:
        """Of every action that is no fault."""
        crew, faults = self._crew, self._faults
        return {
            "heal": lambda step: faults.heal(step.arguments.get("what")),
            "start": lambda step: self._with_nodes(step, faults.start),
            "wait": _nothing,
            "rolling restart": lambda step: self._with_nodes(step, self._rolling_restart),
            "wipe": lambda step: self._with_nodes(step, self._wipe),
            "stop publishers": lambda _: crew.command(Command.DRAIN, ClientRole.PUBLISHER),
            "start publishers": lambda _: crew.command(Command.START, ClientRole.PUBLISHER),
            "stop consumers": lambda _: crew.command(Command.CEASE, ClientRole.CONSUMER),
            "start consumers": lambda _: crew.command(Command.START, ClientRole.CONSUMER),
            "hold": lambda _: crew.command(Command.HOLD, ClientRole.CONSUMER),
            "release": lambda _: crew.command(Command.RELEASE, ClientRole.CONSUMER),
            "pause consumers": lambda _: self._pause_consumers(),
            "resume consumers": lambda _: self.resume_consumers(),
            "purge": self._purge,
            "set policy": lambda step: self.set_policy(step.arguments["policy"]),
            "clear policy": lambda _: self.order(lambda operator: operator.clear_policy(self._policy)),
            "sync": lambda step: self.order(lambda operator: operator.sync(str(step.queue))),
            "cancel sync": lambda step: self.order(lambda operator: operator.cancel_sync(str(step.queue))),
            "any of": self._swarm,
        }

    # --- rounds

    async def take_all(self) -> None:
        """All rounds. Raises `NotReached`."""
        for each in self._scenario.rounds:
            for number in range(each.times):
                self._say(f"round {number + 1} of {each.times}")
                await self._take_round(each)

    async def _take_round(self, each: Round) -> None:
        await self._crew.refresh()
        self._before = {key: self._total(*key) or 0 for key in self._counted()}
        self._last_s = now_s()
        for step in each.steps:
            await self.take(step)

    def _counted(self) -> list[tuple[Quantity, str | None]]:
        of_queues = [(Quantity.FAILOVERS, queue) for queue in self._queues]
        return [*of_queues, *((each, None) for each in _SINCE_ROUND_BEGAN if each is not Quantity.FAILOVERS)]

    async def take(self, step: Step) -> None:
        """One step. Raises `NotReached`, `TargetError`."""
        if step.when is not None:
            await self._await(step.when, step.within_s)
        await asyncio.sleep(max(self._last_s + step.after_s - now_s(), 0.0))
        if step.action.is_fault:
            await self._begin_fault(step)
        else:
            if step.action.name != "wait":
                self._say(_in_words(step))
            await self.doers()[step.action.name](step)
        self._last_s = now_s()

    # --- conditions

    async def _await(self, condition: Condition, within_s: float) -> None:
        deadline_s = now_s() + within_s
        while True:
            await self._crew.refresh()
            self._check()
            value = self.value(condition.quantity, condition.queue)
            if value is not None and condition.holds(value):
                return
            if now_s() > deadline_s:
                raise NotReached(f"{condition} did not come to pass within {within_s:g} s: it is {value}")
            await asyncio.sleep(_PAUSE_S)

    def value(self, quantity: Quantity, queue: str | None) -> int | None:
        """Now, or since the round began. None if nobody can tell."""
        total = self._total(quantity, queue)
        return None if total is None else total - self._before.get((quantity, queue), 0)

    def _total(self, quantity: Quantity, queue: str | None) -> int | None:
        counted = self._crew.quantities()
        if quantity in counted:
            return counted[quantity]
        if quantity is Quantity.RUNNING:
            return len(self._scene().running)
        if quantity is Quantity.FAILOVERS:
            return self._watch.failovers(queue)
        view = self._watch.views().get(queue or "")
        if view is None:
            return None
        return {
            Quantity.READY: view.ready,
            Quantity.UNACKED: view.unacked,
            Quantity.MIRRORS: len(view.mirrors),
            Quantity.SYNCHRONISED: len(view.synchronised),
        }[quantity]

    def _check(self) -> None:
        self._watch.check()
        self._faults.check()

    # --- who is meant

    def _scene(self) -> Scene:
        nodes = [facts.number for facts in self._target.nodes]
        running = frozenset(node for node in nodes if self._target.is_running(node))
        return Scene(nodes, running, self._watch.views())

    async def _select(self, step: Step) -> tuple[Sequence[int], Sequence[Line]]:
        """Who is meant; waits until there is somebody. Raises `NotReached`."""
        deadline_s = now_s() + step.within_s
        while True:
            try:
                return self._select_now(step)
            except NobodyMeant as error:
                if now_s() > deadline_s:
                    raise NotReached(str(error)) from None
            self._check()
            await asyncio.sleep(_PAUSE_S)

    def _select_now(self, step: Step) -> tuple[Sequence[int], Sequence[Line]]:
        scene = self._scene()
        if step.lines is not None:
            return (), select_lines(step.lines, scene, self._chance)
        return (select_nodes(step.nodes, scene, self._chance), ()) if step.nodes is not None else ((), ())

    async def _with_nodes(self, step: Step, do: Callable[[Sequence[int]], Awaitable[None]]) -> None:
        nodes, _ = await self._select(step)
        await do(nodes)

    # --- faults

    async def _begin_fault(self, step: Step) -> None:
        nodes, lines = await self._select(step)
        await self._crew.refresh()
        fault = await self._faults.begin(step, nodes, lines)
        self._say(summary(fault) if fault is not None else f"{step.action.name}: it landed nowhere")

    async def _swarm(self, step: Step) -> None:
        began_s = now_s()
        for draw in draws(step.arguments, self._chance):
            await asyncio.sleep(max(began_s + draw.at_s - now_s(), 0.0))
            self._check()
            if draw.step is None:
                self._say("a quiet time")
                continue
            try:
                nodes, lines = self._select_now(draw.step)
            except NobodyMeant as error:
                self._say(str(error))
                continue
            fault = await self._faults.begin(draw.step, nodes, lines)
            self._say(summary(fault) if fault is not None else f"{draw.step.action.name}: it landed nowhere")

    async def _rolling_restart(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            await self._faults.during("rolling restart", [node], self._restart(node))

    async def _restart(self, node: int) -> None:
        if self._target.is_running(node):
            await self._target.stop(node)
        await self._target.start_node(node)
        await self._target.wait_ready([node])

    async def _wipe(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            await self._faults.during("wipe", [node], self._target.wipe(node))

    # --- clients

    async def _pause_consumers(self) -> None:
        if self._paused is None:
            await self._crew.refresh()
            self._paused = self._faults.note_begin(PAUSE_CONSUMERS)
            self._crew.pause_consumers()

    async def resume_consumers(self) -> None:
        """Also if they are not paused."""
        self._crew.resume_consumers()
        if self._paused is not None:
            self._faults.note_end(self._paused)
            self._paused = None

    # --- orders

    async def set_policy(self, definition: Mapping[str, Any]) -> None:
        """For the queues of the scenario."""
        pattern = pattern_of(list(self._queues))
        await self.order(lambda operator: operator.set_policy(self._policy, pattern, definition))

    async def _purge(self, step: Step) -> None:
        queue = str(step.queue)
        since_us = self._clock.now_us()
        await self.order(lambda operator: operator.purge(queue))
        self._record.note(Kind.EMPTIED, self._clock.now_us(), since_us, queue=self._queues[queue], detail="purge")

    async def order(self, order: Callable[[Operator], Awaitable[None]]) -> None:
        """Give it to a node that can take it. Raises `NotReached` if none can in time, `TargetError` if refused."""
        deadline_s = now_s() + ORDER_S
        reason = "no node runs"
        while now_s() < deadline_s:
            for node in sorted(self._scene().running):
                try:
                    await order(self._target.operator(node))
                except NotNow as error:
                    reason = str(error)
                else:
                    return
            self._check()
            await asyncio.sleep(_PAUSE_S)
        raise NotReached(f"no node takes an order: {reason}")


async def _nothing(_step: Step) -> None:
    """What is waited for is in the step's condition."""


def _in_words(step: Step) -> str:
    whom = step.nodes or step.lines or step.queue
    return f"{step.action.name}: {whom}" if whom is not None else step.action.name

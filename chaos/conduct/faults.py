"""Faults that hold, and their ends.

A fault *lands* on those nodes to which it can be done at the moment: a node that is down cannot be killed. One that
lands nowhere is none: it is not recorded, and not counted.

What was done is recorded from before the order to after it has taken effect, `FAULT_BEGIN` and `FAULT_END` alike.

**Disturbances.** A cluster that stays up may still lose what was under way between its nodes: a node that stood still,
or a line that broke and came back, makes masters take back what they had handed out over it, and loses acknowledgements
that were on it, without any promotion and without that a client's channel ends. So for each fault of a line, and each
node that stood still, `DISTURBED` says of every queue that this may have happened, from the beginning of the fault to
`REACTION_S` behind its end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from chaos.clients.ports import Recorder
from chaos.harm.lines import OF_CONNECTIONS, Line, of_connections, swizzled
from chaos.plan.actions import Subject
from chaos.plan.model import Step
from chaos.record.kinds import Kind
from chaos.record.process_record import RunClock
from chaos.targets.target import NotNow, Target

#: For links to be made anew, and for masters to take back what they gave.
REACTION_S = 10.0
#: Between two tries to end a fault of a node that does not listen now.
_RETRY_S = 0.5
#: Nodes that were down are started again.
_ENDED_BY_START = frozenset({"kill", "stop"})
#: A fault of clients.
PAUSE_CONSUMERS = "pause consumers"
_DISTURBING_NODES = frozenset({"pause", "disconnect"})


@dataclass(slots=True, eq=False)
class Fault:
    """One that holds."""

    number: int
    #: Of the action.
    action: str
    #: By which a step ``heal`` knows it.
    name: str
    nodes: tuple[int, ...] = ()
    lines: tuple[Line, ...] = ()
    told: Mapping[str, Any] = field(default_factory=dict)
    began_us: int = 0
    #: Numbers of what was laid on lines.
    laid: list[int] = field(default_factory=list)

    @property
    def is_disturbing(self) -> bool:
        """See the module."""
        return bool(self.lines) or self.action in _DISTURBING_NODES

    @property
    def is_holding_up(self) -> bool:
        """What was sent may be read as late as it ends."""
        return self.is_disturbing or self.action == PAUSE_CONSUMERS


class Faults:
    """Of one run."""

    def __init__(
        self,
        target: Target,
        record: Recorder,
        clock: RunClock,
        chance: Random,
        queues: int,
        at_risk: Callable[[], Mapping[str, int]],
    ) -> None:
        """``queues``: how many the run has. ``at_risk``: what would be lost now, if all went wrong."""
        self._target = target
        self._record = record
        self._clock = clock
        self._chance = chance
        self._queues = range(1, queues + 1)
        self._at_risk = at_risk
        self._laid = 0
        self._timers: dict[Fault, asyncio.Task[None]] = {}
        self._failure: Exception | None = None
        self._one_at_a_time = asyncio.Lock()
        self.holding: list[Fault] = []
        #: So many have landed.
        self.landed = 0
        #: What was at risk when each began, summed.
        self.risked: dict[str, int] = {}
        #: The longest that something may have been held up by a fault, microseconds.
        self.longest_hold_us = 0

    # --- beginning

    async def begin(self, step: Step, nodes: Sequence[int], lines: Sequence[Line]) -> Fault | None:
        """Do what a step says, to these. None if it landed nowhere. Raises `TargetError`."""
        async with self._one_at_a_time:
            began_us, risk = self._clock.now_us(), dict(self._at_risk())
            fault = Fault(self.landed + 1, step.action.name, step.name, told=step.arguments, began_us=began_us)
            if step.action.subject is Subject.LINES:
                fault.lines = tuple(of_connections(lines) if fault.action in OF_CONNECTIONS else lines)
                await self._lay(fault)
            else:
                fault.nodes = await self._hurt(fault, nodes)
                if not fault.nodes:
                    return None
            self._note_begin(fault, risk)
            self.holding.append(fault)
            if step.for_s is not None:
                self._timers[fault] = asyncio.create_task(self._end_later(fault, step.for_s))
            return fault

    async def during(self, action: str, nodes: Sequence[int], work: Coroutine[Any, Any, None]) -> None:
        """Something that ends when it is done, and is a fault meanwhile."""
        fault = self.note_begin(action, nodes)
        await work
        self.note_end(fault)

    def note_begin(self, action: str, nodes: Sequence[int] = ()) -> Fault:
        """Somebody else begins it now."""
        fault = Fault(self.landed + 1, action, "", tuple(nodes), began_us=self._clock.now_us())
        self._note_begin(fault, dict(self._at_risk()))
        return fault

    def note_end(self, fault: Fault) -> None:
        """Somebody else has ended it."""
        self._note_end(fault, self._clock.now_us())

    def _note_begin(self, fault: Fault, risk: Mapping[str, int]) -> None:
        self.landed += 1
        for name, count in risk.items():
            self.risked[name] = self.risked.get(name, 0) + count
        detail = {
            "type": fault.action,
            "nodes": list(fault.nodes),
            "lines": [[line.source, line.destination] for line in fault.lines],
            "told": dict(fault.told),
            "at_risk": dict(risk),
        }
        node = fault.nodes[0] if len(fault.nodes) == 1 else 0
        self._record.note(
            Kind.FAULT_BEGIN,
            self._clock.now_us(),
            fault.began_us,
            fault=fault.number,
            node=node,
            detail=json.dumps(detail, sort_keys=True),
        )

    async def _hurt(self, fault: Fault, nodes: Iterable[int]) -> tuple[int, ...]:
        """Where it landed."""
        target, running = self._target, [node for node in nodes if self._target.is_running(node)]
        match fault.action:
            case "kill":
                if running:
                    await target.kill(running)
            case "stop":
                await asyncio.gather(*(target.stop(node) for node in running))
            case "pause":
                for node in running:
                    await target.pause(node)
            case _:
                landed = []
                for node in running:
                    try:
                        await target.hurt(fault.action, node, fault.told)
                    except NotNow:
                        continue
                    landed.append(node)
                running = landed
        return tuple(running)

    async def _lay(self, fault: Fault) -> None:
        if fault.action != "swizzle":
            await self._lay_on(fault, fault.lines)
            return
        moved_s = 0.0
        for at_s, line in swizzled(fault.lines, self._chance, fault.told["over"]):
            await asyncio.sleep(at_s - moved_s)
            moved_s = at_s
            await self._lay_on(fault, [line])

    async def _lay_on(self, fault: Fault, lines: Iterable[Line]) -> None:
        proxies = self._target.lines
        assert proxies is not None, "a target that can have lines hurt has proxies on them"
        self._laid += 1
        fault.laid.append(self._laid)
        await proxies.lay(self._laid, fault.action, lines, fault.told)

    # --- ending

    async def heal(self, name: str | None = None) -> None:
        """End all, or those with that name, the latest first."""
        for fault in list(reversed(self.holding)):
            if name in (None, fault.name):
                await self.end(fault)

    async def end(self, fault: Fault) -> None:
        """May be told of one that has ended."""
        async with self._one_at_a_time:
            if fault not in self.holding:
                return
            self.holding.remove(fault)
            timer = self._timers.pop(fault, None)
            if timer is not None and timer is not asyncio.current_task():
                timer.cancel()
                await asyncio.wait([timer])
            since_us = self._clock.now_us()
            await self._lift(fault)
            self._note_end(fault, since_us)

    def _note_end(self, fault: Fault, since_us: int) -> None:
        now_us = self._clock.now_us()
        self._record.note(Kind.FAULT_END, now_us, since_us, fault=fault.number)
        if fault.is_holding_up:
            self.longest_hold_us = max(self.longest_hold_us, now_us - fault.began_us)
        if fault.is_disturbing:
            for queue in self._queues:
                until_us = now_us + round(REACTION_S * 1e6)
                self._record.note(Kind.DISTURBED, until_us, fault.began_us, queue=queue, fault=fault.number)

    async def _lift(self, fault: Fault) -> None:
        target = self._target
        if fault.lines:
            await self._lift_lines(fault)
        elif fault.action in _ENDED_BY_START:
            await self.start(fault.nodes)
        elif fault.action == "pause":
            for node in fault.nodes:
                await target.resume(node)
        else:
            for node in fault.nodes:
                await self._unhurt(fault.action, node)

    async def start(self, nodes: Sequence[int]) -> None:
        """Begin those that are down."""
        paused = {node for fault in self.holding if fault.action == "pause" for node in fault.nodes}
        down = [node for node in nodes if node not in paused and not self._target.is_running(node)]
        await asyncio.gather(*(self._target.start_node(node) for node in down))

    async def _unhurt(self, action: str, node: int) -> None:
        while True:
            try:
                await self._target.unhurt(action, node)
            except NotNow:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _lift_lines(self, fault: Fault) -> None:
        proxies = self._target.lines
        assert proxies is not None, "they were hurt"
        over_s = fault.told["over"] if fault.action == "swizzle" else 0.0
        laid = list(fault.laid)
        self._chance.shuffle(laid)
        for number in laid:
            await proxies.lift(number)
            await asyncio.sleep(over_s / len(laid))

    async def _end_later(self, fault: Fault, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            await self.end(fault)
        except Exception as error:
            self._failure = error

    def check(self) -> None:
        """Raise what the end of a fault, by its time, has met."""
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Faults that hold go on holding: nothing ends by its time any more."""
        timers, self._timers = list(self._timers.values()), {}
        for timer in timers:
            timer.cancel()
        await asyncio.gather(*timers, return_exceptions=True)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        assert self._timers.keys() <= set(self.holding), "only what holds has an end to come"
        assert len(self.holding) <= self.landed, "what holds has landed"
        assert all(fault.nodes or fault.lines for fault in self.holding), "what holds has landed somewhere"


def summary(fault: Fault) -> str:
    """In words, for whoever watches."""
    where = ", ".join(f"n{node}" for node in fault.nodes) or ", ".join(line.proxy for line in fault.lines)
    return f"{fault.action}: {where}"

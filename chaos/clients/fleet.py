"""The client processes of a run: begun, watched, stopped. None ends without somebody hearing of it.

A process gets its number, and is entered in the roster (``enrol``), before it is begun: one that dies at once is
missed. Processes are in sessions of their own, so that an interrupt at the terminal reaches the conductor only; if the
conductor dies their standard input ends, and they stop.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import chaos
from chaos.clients.client import Counts
from chaos.clients.options import Orders
from chaos.clients.process import LINE_BYTES_MAX, Answer, Command

#: For interpreter and imports, on a machine that has other things to do.
READY_S = 60.0
#: Of what a process wrote on standard error, in a report.
REASON_CHARS = 2_000
_COUNTS = {each.name for each in fields(Counts)}


@dataclass(frozen=True, slots=True)
class Failure:
    """A process that has not ended as it should."""

    process: int
    reason: str


class FleetError(Exception):
    """Some processes have failed."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__("; ".join(f"process {each.process}: {each.reason}" for each in failures))
        self.failures = tuple(failures)


@dataclass(eq=False)
class Member:
    """One process, as seen from here."""

    orders: Orders
    child: asyncio.subprocess.Process
    log: Path
    #: What it said last. Until then nobody may take it for drained.
    counts: Counts = field(default_factory=lambda: Counts(is_drained=False))
    #: `Answer.ENDED` came: its record is whole.
    has_ended: bool = False
    #: In its own words.
    reason: str = ""
    is_told_to_stop: bool = False
    is_killed: bool = False
    #: `Answer.READY` came, or nothing will come any more.
    is_known: asyncio.Event = field(default_factory=asyncio.Event)
    #: It said something, or it is over.
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    #: It has ended, and what was to be said of that is said.
    is_over: bool = False

    @property
    def process(self) -> int:
        """Its number in the roster."""
        return self.orders.process

    @property
    def is_running(self) -> bool:
        return self.child.returncode is None

    def failure(self) -> Failure | None:
        """What is wrong with how it ended."""
        if self.has_ended and self.child.returncode == 0 and self.is_told_to_stop:
            return None
        if self.is_killed:
            reason = "did not stop in time, and was killed"
        elif self.has_ended and self.child.returncode == 0:
            reason = "has ended, and nobody had told it to"
        else:
            reason = f"ended with {self.child.returncode} {self.reason}".rstrip()
        with suppress(OSError):
            said = self.log.read_text(encoding="utf-8", errors="replace")[-REASON_CHARS:].strip()
            reason += f": {said}" if said else ""
        return Failure(self.process, self.orders.scrub(reason))


class Fleet:
    """Begins processes and knows how they stand. To be used on one loop; leaving its context stops all."""

    def __init__(
        self,
        enrol: Callable[[Orders], None],
        first_process: int = 1,
        stop_timeout_s: float = 30.0,
        on_failure: Callable[[Failure], None] | None = None,
    ) -> None:
        """``enrol`` enters a process in the roster for good; ``on_failure`` hears of each failure when it is seen."""
        self._enrol = enrol
        self._next_process = first_process
        self._stop_timeout_s = stop_timeout_s
        self._on_failure = on_failure
        self._watchers: dict[Member, asyncio.Task[None]] = {}
        self.members: list[Member] = []
        self.failures: list[Failure] = []

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        await self.stop_all()
        if kind is None:
            self.check()

    async def begin(self, orders: Orders) -> Member:
        """Begin a process, whatever number its orders have. Raises `FleetError` if it is not ready in time."""
        orders = replace(orders, process=self._next_process)
        orders.check()
        self._next_process += 1
        self._enrol(orders)
        log = orders.run_directory / "clients" / f"{orders.process:06d}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        member = await _spawn(orders, log)
        self.members.append(member)
        self._watchers[member] = asyncio.create_task(self._watch(member))
        await self._say(member, orders.to_json())
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                await member.is_known.wait()
        if not member.is_known.is_set():
            await self.kill(member)
        if not member.is_running or member.reason:
            await self._watchers[member]
            raise FleetError([each for each in self.failures if each.process == member.process])
        return member

    async def command(self, command: Command, *members: Member) -> None:
        """Tell these, or all. Who has ended is not told."""
        for member in members or self.members:
            if command is Command.STOP:
                member.is_told_to_stop = True
            await self._say(member, json.dumps({"command": command}))

    async def wait_counts(self, member: Member, condition: Callable[[Counts], bool]) -> Counts:
        """The first counts that fulfil the condition. Raises `FleetError` if the process ends before."""
        while not condition(member.counts):
            if member.is_over:
                raise FleetError([Failure(member.process, "has ended before it came to what was waited for")])
            member.heard.clear()
            await member.heard.wait()
        return member.counts

    def total(self) -> Counts:
        """How all stand together, by what they said last."""
        total = Counts()
        for member in self.members:
            total.add(member.counts)
        return total

    async def stop(self, *members: Member) -> None:
        """Let these, or all, come to an orderly end; kill who does not in time. Failures are in `failures`."""
        chosen = members or tuple(self.members)
        await self.command(Command.STOP, *chosen)
        watchers = {self._watchers[member]: member for member in chosen}
        if not watchers:
            return
        _, late = await asyncio.wait(watchers, timeout=self._stop_timeout_s)
        for watcher in late:
            await self.kill(watchers[watcher])
        await asyncio.gather(*watchers)

    async def stop_all(self) -> None:
        """See `stop`."""
        await self.stop()

    async def kill(self, member: Member) -> None:
        """At once; it counts as a failure."""
        if member.is_running:
            member.is_killed = True
            with suppress(ProcessLookupError):
                member.child.kill()
        await self._watchers[member]

    def check(self) -> None:
        """Raise `FleetError` if a process has failed."""
        if self.failures:
            raise FleetError(self.failures)

    async def _say(self, member: Member, line: str) -> None:
        assert member.child.stdin is not None, "it was begun with pipes"
        if not member.is_running:
            return
        # If it is gone its watcher has more to tell.
        with suppress(ConnectionError):
            member.child.stdin.write(line.encode() + b"\n")
            await member.child.stdin.drain()

    async def _watch(self, member: Member) -> None:
        """Read its answers to the end."""
        assert member.child.stdout is not None, "it was begun with pipes"
        try:
            while line := await member.child.stdout.readline():
                self._hear(member, line)
                member.heard.set()
        except Exception as error:
            # Nobody hears it any more; so it cannot stay.
            member.reason = f"cannot be understood: {type(error).__name__}: {error}"
            with suppress(ProcessLookupError):
                member.child.kill()
        await member.child.wait()
        failure = member.failure()
        if failure is not None:
            self.failures.append(failure)
            if self._on_failure is not None:
                self._on_failure(failure)
        member.is_over = True
        member.is_known.set()
        member.heard.set()

    @staticmethod
    def _hear(member: Member, line: bytes) -> None:
        values: dict[str, Any] = json.loads(line)
        answer = Answer(values.pop("answer"))
        if answer is Answer.READY:
            member.is_known.set()
        elif answer is Answer.COUNTS:
            member.counts = Counts(**{name: value for name, value in values.items() if name in _COUNTS})
        elif answer is Answer.ENDED:
            member.has_ended = True
        else:
            member.reason = str(values.get("reason", answer))


async def _spawn(orders: Orders, log: Path) -> Member:
    root = Path(chaos.__file__).parent.parent
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
    with log.open("ab") as errors:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "chaos.clients.process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=LINE_BYTES_MAX,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    return Member(orders, child, log)

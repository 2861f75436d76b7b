"""A console on a cluster of RabbitMQ: one process of Erlang that puts our questions to its nodes.

Measured on an idle three-node cluster: an answer takes some milliseconds, where ``rabbitmqctl`` needs a second, most of
it of the processor's time. `rabbitmq_console.escript` says how it is talked to.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.targets.target import NotNow, QueueView, TargetError

SCRIPT = Path(__file__).with_suffix(".escript")
#: Longer than the console waits for a node; what it does not answer by then, it will not.
ANSWER_TIMEOUT_S = 5.0
#: A listing of many queues is one line.
_LINE_BYTES_MAX = 16 << 20


def view_of(said: Mapping[str, Any], numbers: Mapping[str, int]) -> QueueView:
    """What the console says of a queue; ``numbers`` of the nodes by their full names."""
    mirrors = tuple(numbers[name] for name in said["mirrors"])
    synchronised = {numbers[name] for name in said["synchronised"]}
    return QueueView(
        queue=said["queue"],
        master=None if said["master"] is None else numbers[said["master"]],
        mirrors=mirrors,
        synchronised=tuple(number for number in mirrors if number in synchronised),
        ready=said["ready"],
        unacked=said["unacked"],
        incarnation="" if said["master"] is None else said["incarnation"],
    )


class RabbitMqConsole:
    """Use `open`."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self._process = process
        self._log_path = log_path
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> RabbitMqConsole:
        """``command`` runs the script."""
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LINE_BYTES_MAX,
                env=dict(environment),
                start_new_session=True,
            )
        return cls(process, log_path)

    async def ask(self, node: str, what: str, timeout_s: float = ANSWER_TIMEOUT_S, **told: Any) -> Any:
        """The answer of a node. Raises `NotNow`, `TargetError`."""
        number = next(self._numbers)
        question = {"id": number, "node": node, "ask": what, "with": told}
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if self._reader.done():
                raise TargetError(f"the console has ended; see {self._log_path}")
            await self._say(json.dumps(question))
            async with asyncio.timeout(timeout_s):
                said = await self._waiting[number]
        except TimeoutError:
            raise NotNow(f"{node} does not answer in time") from None
        finally:
            del self._waiting[number]
        if "not_now" in said:
            raise NotNow(f"{node}: {said['not_now']}")
        if "refused" in said:
            raise TargetError(f"{node} refused: {said['refused']}")
        return said["answer"]

    async def _say(self, line: str) -> None:
        assert self._process.stdin is not None, "it was begun with pipes"
        # If it is gone its reader says so.
        with suppress(ConnectionError):
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()

    async def _read(self) -> None:
        assert self._process.stdout is not None, "it was begun with pipes"
        try:
            while line := await self._process.stdout.readline():
                said = json.loads(line)
                if said["id"] in self._waiting and not self._waiting[said["id"]].done():
                    self._waiting[said["id"]].set_result(said)
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(TargetError(f"the console has ended; see {self._log_path}"))

    async def close(self) -> None:
        """It ends. May be called twice."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await asyncio.wait([self._reader])


class RabbitMqOperator:
    """`chaos.targets.target.Operator` of one node."""

    def __init__(self, console: RabbitMqConsole, node: str, numbers: Mapping[str, int]) -> None:
        self._console = console
        self._node = node
        self._numbers = numbers

    async def queues(self) -> list[QueueView]:
        return [view_of(each, self._numbers) for each in await self._console.ask(self._node, "queues")]

    async def running(self) -> list[int]:
        return sorted(self._numbers[name] for name in await self._console.ask(self._node, "running"))

    async def set_policy(self, name: str, pattern: str, definition: Mapping[str, Any]) -> None:
        await self._console.ask(self._node, "set_policy", name=name, pattern=pattern, definition=dict(definition))

    async def clear_policy(self, name: str) -> None:
        await self._console.ask(self._node, "clear_policy", name=name)

    async def sync(self, queue: str) -> None:
        await self._console.ask(self._node, "sync", queue=queue)

    async def cancel_sync(self, queue: str) -> None:
        await self._console.ask(self._node, "cancel_sync", queue=queue)

    async def purge(self, queue: str) -> None:
        await self._console.ask(self._node, "purge", queue=queue)

    async def close(self) -> None: ...

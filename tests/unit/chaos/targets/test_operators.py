"""What becomes of a question to a node: an answer, not now, or a refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from chaos.targets import warren_operator
from chaos.targets.rabbitmq_console import RabbitMqConsole
from chaos.targets.target import NotNow, TargetError
from chaos.targets.warren_operator import WarrenOperator
from cluster.transport.admin_client import AdminError
from cluster.transport.admin_port import ExitCode


class FakeClient:
    """Of a node that is not there."""

    def __init__(self, *_: object, **__: object) -> None:
        self.error: Exception | None = None
        self.reports = 0
        self.is_closed = False

    def purge_queue(self, _vhost: str, _queue: str) -> int:
        if self.error is not None:
            raise self.error
        return 7

    def sync_queue(self, *_: object, **__: object) -> Iterator[int]:
        for self.reports in (1, 2, 3):
            yield self.reports

    def cluster_status(self) -> dict[str, list[str]]:
        return {"running_nodes": ["n3", "n1"]}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr(warren_operator, "AdminClient", lambda *_, **__: client)
    return client


@pytest_asyncio.fixture
async def operator(client: FakeClient) -> AsyncIterator[WarrenOperator]:
    operator = WarrenOperator("host:1", "cookie", {"n1": 1, "n2": 2, "n3": 3})
    yield operator
    await operator.close()
    assert client.is_closed


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        (ExitCode.UNAVAILABLE, NotNow),
        (ExitCode.TEMPORARY, NotNow),
        (ExitCode.SOFTWARE, TargetError),
        (ExitCode.DATA, TargetError),
    ],
)
async def test_a_refusal_of_warren_is_told_from_no_answer(
    code: ExitCode, becomes: type[Exception], client: FakeClient, operator: WarrenOperator
) -> None:
    client.error = AdminError(code, "no")
    with pytest.raises(becomes, match="no"):
        await operator.purge("orders")


async def test_a_closed_operator_is_asked_in_vain(operator: WarrenOperator) -> None:
    await operator.close()
    with pytest.raises(NotNow):
        await operator.purge("orders")


async def test_a_sync_is_begun_and_not_waited_for(client: FakeClient, operator: WarrenOperator) -> None:
    await operator.sync("orders")
    assert client.reports == 1


async def test_nodes_are_told_by_their_numbers(operator: WarrenOperator) -> None:
    assert await operator.running() == [1, 3]


class FakeProcess:
    """A console whose answers the test gives."""

    def __init__(self) -> None:
        self.stdout = asyncio.StreamReader()
        self.stdin = self
        self.asked: list[dict[str, Any]] = []
        self.heard = asyncio.Event()

    def write(self, line: bytes) -> None:
        self.asked.append(json.loads(line))
        self.heard.set()

    async def drain(self) -> None: ...

    def say(self, **told: object) -> None:
        self.stdout.feed_data(json.dumps(told).encode() + b"\n")

    def kill(self) -> None:
        self.stdout.feed_eof()

    async def wait(self) -> None: ...


@pytest_asyncio.fixture
async def process() -> FakeProcess:
    return FakeProcess()


@pytest_asyncio.fixture
async def console(process: FakeProcess) -> AsyncIterator[RabbitMqConsole]:
    console = RabbitMqConsole(cast(asyncio.subprocess.Process, process), Path("console.log"))
    yield console
    await console.close()


async def ask(console: RabbitMqConsole, process: FakeProcess, what: str) -> asyncio.Task[Any]:
    """A question that is on its way."""
    process.heard.clear()
    question = asyncio.create_task(console.ask("n1@localhost", what, queue="orders"))
    await process.heard.wait()
    return question


async def test_answers_reach_who_asked_in_whatever_order(console: RabbitMqConsole, process: FakeProcess) -> None:
    questions = [await ask(console, process, what) for what in ("purge", "sync")]
    assert [(each["node"], each["ask"], each["with"]) for each in process.asked] == [
        ("n1@localhost", "purge", {"queue": "orders"}),
        ("n1@localhost", "sync", {"queue": "orders"}),
    ]
    first, second = (each["id"] for each in process.asked)
    process.say(id=second, answer="of sync")
    process.say(id=first, answer="of purge")
    assert await asyncio.gather(*questions) == ["of purge", "of sync"]


@pytest.mark.parametrize(("said", "becomes"), [("not_now", NotNow), ("refused", TargetError)])
async def test_a_refusal_of_rabbitmq_is_told_from_no_answer(
    said: str, becomes: type[Exception], console: RabbitMqConsole, process: FakeProcess
) -> None:
    question = await ask(console, process, "purge")
    process.say(id=process.asked[0]["id"], **{said: "nodedown"})
    with pytest.raises(becomes, match=r"n1@localhost.*nodedown"):
        await question


async def test_an_answer_that_comes_too_late_is_nobodys(console: RabbitMqConsole, process: FakeProcess) -> None:
    with pytest.raises(NotNow, match="in time"):
        await console.ask("n1@localhost", "purge", 0.0)
    process.say(id=process.asked[0]["id"], answer="late")
    question = await ask(console, process, "sync")
    process.say(id=process.asked[1]["id"], answer="in time")
    assert await question == "in time"


async def test_when_the_console_ends_everybody_hears_of_it(console: RabbitMqConsole, process: FakeProcess) -> None:
    question = await ask(console, process, "purge")
    process.kill()
    for waiting in (question, console.ask("n1@localhost", "sync")):
        with pytest.raises(TargetError, match=r"the console has ended; see console\.log"):
            await waiting

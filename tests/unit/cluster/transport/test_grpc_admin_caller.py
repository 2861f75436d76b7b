"""The channels of the caller of admin services: kept for the next question, and bounded whatever is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from cluster.transport import grpc_admin_caller
from cluster.transport.admin_port import AdminRefused, ExitCode
from cluster.transport.grpc_admin_caller import GrpcAdminCaller

MAX = 3


class FakeChannel:
    """To an address where nobody listens; some say nothing at all until the test lets them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_closed = False
        self.close_takes = 0
        self.may_answer = asyncio.Event()
        if "silent" not in address:
            self.may_answer.set()

    def unary_unary(self, *_args: object, **_options: object) -> Callable[..., Any]:
        async def refuse(*_args: object, **_options: object) -> None:
            assert not self.is_closed, "nobody is asked through a channel that is closed"
            await self.may_answer.wait()
            nothing = grpc.aio.Metadata()
            details = "Internal error from Core" if "stopping" in self.address else "connection refused"
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details, "")

        return refuse

    unary_stream = unary_unary

    async def close(self, _grace: float | None) -> None:
        self.is_closed = True
        for _ in range(self.close_takes):
            await asyncio.sleep(0)


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> list[FakeChannel]:
    """All that were made."""
    made: list[FakeChannel] = []

    def make(address: str, _options: object) -> FakeChannel:
        made.append(FakeChannel(address))
        return made[-1]

    monkeypatch.setattr(grpc.aio, "insecure_channel", make)
    monkeypatch.setattr(grpc_admin_caller, "CHANNELS_MAX", MAX)
    return made


async def ask(caller: GrpcAdminCaller, address: str) -> None:
    with pytest.raises(AdminRefused):
        await caller.status(address, timeout_s=60)


async def test_of_nodes_that_come_at_ever_new_addresses_the_last_channels_are_kept(channels: list[FakeChannel]) -> None:
    caller = GrpcAdminCaller("secret")
    for number in range(2 * MAX):
        await ask(caller, f"n1:{number}")
    await ask(caller, f"n1:{2 * MAX - 1}")
    assert len(channels) == 2 * MAX, "one that is there is used again"
    assert [channel.is_closed for channel in channels] == MAX * [True] + MAX * [False]
    await caller.close()
    assert all(channel.is_closed for channel in channels)


async def test_who_waits_for_an_answer_keeps_the_channel(channels: list[FakeChannel]) -> None:
    caller = GrpcAdminCaller("secret")
    waiting = asyncio.create_task(ask(caller, "silent"))
    await asyncio.sleep(0)
    for number in range(2 * MAX):
        await ask(caller, f"n1:{number}")
    assert [channel.address for channel in channels if not channel.is_closed] == ["silent", "n1:4", "n1:5"]
    channels[0].may_answer.set()
    await waiting
    await ask(caller, "n1:6")
    await ask(caller, "n1:7")
    assert [channel.address for channel in channels if not channel.is_closed] == ["n1:5", "n1:6", "n1:7"]


async def test_who_asks_while_all_is_closed_leaves_no_channel_open(channels: list[FakeChannel]) -> None:
    caller = GrpcAdminCaller("secret")
    for number in range(2):
        await ask(caller, f"n1:{number}")
        channels[number].close_takes = 3
    await asyncio.gather(caller.close(), ask(caller, "n2:0"))
    assert len(channels) == 3
    assert all(channel.is_closed for channel in channels)


async def test_that_the_node_stops_is_said_in_words_of_ours(channels: list[FakeChannel]) -> None:
    """It is what an operator reads who has this node synchronise a queue that the other one masters."""
    caller = GrpcAdminCaller("cookie")
    with pytest.raises(AdminRefused, match="it stopped, or began again, before it had answered") as refused:
        await caller.status("stopping:1", timeout_s=1)
    assert refused.value.exit_code is ExitCode.UNAVAILABLE
    await caller.close()

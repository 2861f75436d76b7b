"""Which state proxies are given, by faults and by who runs."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from chaos.harm.lines import CLIENTS, Line, ProxyState
from chaos.harm.toxiproxy import Toxiproxy, ToxiproxyError
from chaos.targets.machine import together
from chaos.targets.proxied_lines import ProxiedLines
from chaos.targets.target import TargetError

ADDRESSES = {Line(1, 2): "a:1", Line(2, 1): "a:2", Line(CLIENTS, 1): "a:3", Line(CLIENTS, 2): "a:4"}


class Recorder:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.states = dict.fromkeys(ADDRESSES, ProxyState())
        self.told: list[Line] = []
        self.is_broken = False

    def set(self, line: Line, state: ProxyState) -> None:
        if self.is_broken:
            raise ToxiproxyError("it is broken")
        self.states[line] = state
        self.told.append(line)

    @property
    def closed(self) -> frozenset[Line]:
        return frozenset(line for line, state in self.states.items() if not state.is_enabled)


@pytest.fixture
def server() -> Recorder:
    return Recorder()


@pytest.fixture
def lines(server: Recorder) -> ProxiedLines:
    return ProxiedLines(cast(Toxiproxy, server), ADDRESSES)


async def test_lines_to_a_node_that_does_not_run_are_closed(server: Recorder, lines: ProxiedLines) -> None:
    await lines.set_down([1])
    assert server.closed == {Line(2, 1), Line(CLIENTS, 1)}
    await lines.set_down([2])
    assert server.closed == {Line(1, 2), Line(CLIENTS, 2)}
    await lines.set_down([])
    assert server.closed == set()


async def test_only_what_changes_is_told(server: Recorder, lines: ProxiedLines) -> None:
    await lines.set_down([1])
    server.told.clear()
    await lines.set_down([1])
    await lines.lay(1, "cut", [Line(1, 2)], {})
    assert server.told == [Line(1, 2)]


async def test_a_node_that_comes_back_finds_the_faults_that_were_laid_meanwhile(
    server: Recorder, lines: ProxiedLines
) -> None:
    await lines.lay(1, "cut", [Line(CLIENTS, 1)], {})
    await lines.set_down([1])
    await lines.lay(2, "delay", [Line(2, 1)], {"latency": 0.1})
    await lines.lift(1)
    assert server.closed == {Line(2, 1), Line(CLIENTS, 1)}, "whatever is lifted, nobody listens there"
    await lines.lay(3, "cut", [Line(CLIENTS, 1)], {})
    await lines.set_down([])
    assert server.closed == {Line(CLIENTS, 1)}
    assert [toxic.type for toxic in server.states[Line(2, 1)].toxics] == ["latency"]


async def test_what_a_proxy_does_not_do_is_an_error_of_the_target(server: Recorder, lines: ProxiedLines) -> None:
    server.is_broken = True
    with pytest.raises(TargetError, match="it is broken"):
        await lines.lay(1, "cut", [Line(1, 2)], {})


async def test_of_several_waits_the_first_failure_counts_and_ends_the_others() -> None:
    ended: list[str] = []

    async def fail() -> None:
        raise TargetError("n1 has ended")

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("n2")

    with pytest.raises(TargetError, match="n1 has ended"):
        await together([wait_for_ever(), fail()])
    assert ended == ["n2"]

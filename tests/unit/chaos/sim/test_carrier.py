"""The simulator's carrier and its caller of admin services keep what the seams promise, on its own loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from chaos.sim.carrier import SimulatedCarrier
from chaos.sim.loop import SimulatedLoop, simulated_loop
from chaos.sim.machine import AdminDoor, MemoryAdminCaller
from chaos.sim.network import Link, Network
from cluster.transport.admin_port import AdminRefused, ExitCode
from cluster.transport.carrier import AdminEndpoint
from node.errors import ChannelError
from tests.support.admin_caller_contract import COOKIE, AdminCallerContract, Office
from tests.support.carrier_contract import CarrierContract, House
from tests.support.recording_port import RecordingPort


def promises_of(contract: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(contract, inspect.isfunction) if name.startswith("test_")]


class Hosts:
    """Two of them, some time apart."""

    def __init__(self, delay_s: float) -> None:
        self.loop: SimulatedLoop = simulated_loop()
        self.network = Network(self.loop, lambda _source, _target: Link(lambda: delay_s))
        self.host, self.guest = self.loop.start_process("host"), self.loop.start_process("guest")
        self.doors: dict[str, AdminDoor] = {}

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(coroutine)


@pytest.fixture(params=[0.0, 0.05])
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    hosts = Hosts(request.param)
    yield hosts
    hosts.loop.close()


@pytest.mark.parametrize("promise", promises_of(CarrierContract))
def test_the_carrier(hosts: Hosts, promise: str) -> None:
    async def keep() -> None:
        host = SimulatedCarrier(hosts.network, hosts.host, "host", lambda _admin: None)
        guest = SimulatedCarrier(hosts.network, hosts.guest, "guest", lambda _admin: None)
        house = House((host, "host:1", guest))
        test: Callable[[CarrierContract, House], Coroutine[Any, Any, None]] = getattr(CarrierContract, promise)
        await test(CarrierContract(), house)
        for connection in house.connections:
            await connection.close()
        await house.host.stop()

    hosts.run(keep())


REFUSALS = [
    (AdminRefused(ExitCode.SOFTWARE, "not_mirrored"), ExitCode.SOFTWARE, "not_mirrored"),
    (ChannelError(404, "no queue 'q'"), ExitCode.DATA, "NOT_FOUND - no queue 'q'"),
]


@pytest.mark.parametrize("promise", promises_of(AdminCallerContract))
def test_the_caller_of_admin_services(hosts: Hosts, promise: str) -> None:
    async def keep() -> None:
        port = RecordingPort()
        carrier = SimulatedCarrier(hosts.network, hosts.host, "host", opened)
        await carrier.serve("host:1", _no_streams, silence_timeout_ms=1000, admin=AdminEndpoint(port, COOKIE))

        async def close() -> None:
            hosts.doors.clear()
            await carrier.stop()

        office = Office(port, "host:1", caller(COOKIE), caller("guess"), close)
        test = getattr(AdminCallerContract, promise)
        if "exit_code" in inspect.signature(test).parameters:
            for refusal in REFUSALS:
                await test(AdminCallerContract(), office, *refusal)
        else:
            await test(AdminCallerContract(), office)

    def opened(admin: AdminEndpoint) -> None:
        hosts.doors["host"] = AdminDoor(hosts.host, admin.port, admin.cookie)

    def caller(cookie: str) -> MemoryAdminCaller:
        return MemoryAdminCaller(hosts.loop, hosts.network, "guest", hosts.doors, cookie)

    hosts.run(keep())


async def _no_streams(_kind: object, _stream: object) -> None:
    """Nobody opens one here."""

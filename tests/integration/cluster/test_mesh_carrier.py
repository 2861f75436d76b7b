"""gRPC keeps the promises of a carrier."""

from __future__ import annotations

import asyncio
import errno
import socket

import grpc
import pytest

from cluster.transport import grpc_carrier
from cluster.transport.carrier import ProbeResult
from cluster.transport.grpc_carrier import GrpcCarrier
from cluster.transport.probe import bind_failure, probe
from tests.support.carrier_contract import CarrierContract, Place
from tests.support.ports import free_port

pytestmark = pytest.mark.integration


class TestGrpcCarrier(CarrierContract):
    @pytest.fixture
    def place(self) -> Place:
        return GrpcCarrier(), f"127.0.0.1:{free_port()}", GrpcCarrier()


@pytest.mark.parametrize(
    ("hosts", "number"),
    [(["127.0.0.1"], None), (["192.0.2.1", "127.0.0.1"], None), (["192.0.2.1"], errno.EADDRNOTAVAIL)],
    ids=["ours", "one of two is ours", "none is ours"],
)
async def test_a_name_can_be_listened_on_if_one_of_its_addresses_is_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], number: int | None
) -> None:
    """As ``localhost`` in a container without IPv6."""

    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 0)) for host in hosts]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    failure = await bind_failure("name:1")
    assert (failure and failure.errno) == number


@pytest.mark.parametrize(
    "address",
    ["n2..example.com:1", f"{'n' * 64}.example.com:1", "n2", "127.0.0.1:99999", "127.0.0.1:9999999999999999999999"],
)
async def test_where_nobody_can_be_nobody_answers_and_nobody_can_listen(address: str) -> None:
    """A peer may announce whatever it likes: who looks after it goes on, and takes silence for no proof of its end."""
    assert await probe(address, 1.0) is ProbeResult.SILENT
    failure = await bind_failure(address)
    assert failure is not None
    assert address in str(failure)


@pytest.mark.parametrize("details", ["Internal error from Core", "Cancelling all calls"])
def test_that_a_peer_stops_is_said_in_words_of_operators(details: str) -> None:
    """gRPC speaks of itself then."""
    error = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata(), details, "")
    assert str(grpc_carrier._broken(error)) == "the peer stops, or begins again"

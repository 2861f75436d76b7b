"""gRPC keeps the promises of a carrier."""

from __future__ import annotations

import pytest

from cluster.transport.grpc_carrier import GrpcCarrier
from tests.support.carrier_contract import CarrierContract, Place
from tests.support.ports import free_port

pytestmark = pytest.mark.integration


class TestGrpcCarrier(CarrierContract):
    @pytest.fixture
    def place(self) -> Place:
        return GrpcCarrier(), f"127.0.0.1:{free_port()}", GrpcCarrier()

"""The network in memory keeps the promises of a carrier, and breaks what a network may break."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.carrier_contract import CarrierContract, Place
from tests.support.memory_carrier import MemoryNetwork


class TestMemoryCarrier(CarrierContract):
    @pytest.fixture(params=range(4))
    def place(self, request: pytest.FixtureRequest) -> Place:
        network = MemoryNetwork(Random(request.param))
        if request.param:
            for path in (network.path("host", "guest"), network.path("guest", "host")):
                path.delay_max_s = 0.05
        return network.carrier("host"), "host:1", network.carrier("guest")

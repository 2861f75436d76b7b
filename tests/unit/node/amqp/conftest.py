"""A client of a server with a broker that writes down what it is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.observed_broker import ObservedBroker
from tests.support.server_client import Client, server_of


@pytest.fixture
async def broker() -> ObservedBroker:
    return ObservedBroker()


@pytest.fixture
async def client(broker: ObservedBroker) -> AsyncIterator[Client]:
    client = await Client(await server_of(broker)).open()
    yield client
    client.transport.close()
    await client.settle()

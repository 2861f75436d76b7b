"""Here time is virtual: an hour of silence takes no time. And two nodes that several files of tests need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from chaos.sim.loop import SimulatedLoop, simulated_loop
from tests.support.mesh_nodes import N1, N2, MeshNodes


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], SimulatedLoop]]:
    return {"simulated": simulated_loop}


@pytest.fixture
async def pair() -> AsyncIterator[MeshNodes]:
    """Nodes ``n1`` and ``n2``, not started."""
    pair = MeshNodes(N1, N2)
    yield pair
    await pair.stop_all()

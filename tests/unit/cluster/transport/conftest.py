"""Here time is virtual: an hour of silence takes no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.support.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], VirtualTimeLoop]]:
    return {"virtual": VirtualTimeLoop}

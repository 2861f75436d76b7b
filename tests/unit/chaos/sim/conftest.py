"""Loops and clusters on them, for tests that look at whole nodes from outside and not at what these log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from chaos.sim.loop import SimulatedLoop, simulated_loop
from tests.support.sim_lab import Lab


@pytest.fixture
def quiet_loop() -> Iterator[SimulatedLoop]:
    loop = simulated_loop()
    logging.disable()
    try:
        yield loop
    finally:
        logging.disable(logging.NOTSET)
        loop.close()


@pytest.fixture
def lab(quiet_loop: SimulatedLoop) -> Lab:
    """Nothing of it was started yet."""
    return Lab(quiet_loop)


@pytest.fixture
def founded_lab(lab: Lab) -> Lab:
    """All nodes are up."""
    lab.found()
    return lab

"""Loops and clusters on them, for tests that look at whole nodes from outside and not at what these log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from chaos.sim import machine
from chaos.sim.link_sizes import link_limits
from chaos.sim.loop import SimulatedLoop, simulated_loop
from cluster.transport.link import Link
from cluster.transport.outbox import OutboxLimits
from tests.support.sim_lab import Lab

#: What may wait for a link is so much less than it is, where tests want it so.
SMALLER = 64


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


@pytest.fixture
def resets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why links were cut by a node at their ends, from now on. What may wait for them is so much less (`SMALLER`)."""
    small = link_limits(OutboxLimits().congested_bytes // SMALLER)
    monkeypatch.setattr(machine, "link_limits", lambda _bytes: small)
    resets: list[str] = []
    close = Link.close

    def note_reset(link: Link, reason: str) -> None:
        if reason.startswith("reset"):
            resets.append(reason)
        close(link, reason)

    monkeypatch.setattr(Link, "close", note_reset)
    return resets

"""What lives long is not looked at while messages come and go."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from cluster.real_world.collector import tune_collector


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)  # what was set aside stays so, as all tests are: tests/conftest.py


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


async def test_a_million_messages_cause_no_full_collection(thresholds: tuple[int, int, int]) -> None:
    tune_collector(asyncio.get_running_loop())
    before = full_collections()
    messages = [[number] for number in range(1_000_000)]
    assert full_collections() == before
    assert len(messages) == 1_000_000


async def test_no_collection_looks_at_more_than_some_thousand_objects(thresholds: tuple[int, int, int]) -> None:
    tune_collector(asyncio.get_running_loop())
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations = range(info["generation"] + 1)
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in generations))

    gc.callbacks.append(note)
    try:
        messages = [[number] for number in range(200_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(messages) == 200_000
    assert 5_000 < max(looked_at) < 20_000


async def test_young_cycles_are_still_collected(thresholds: tuple[int, int, int]) -> None:
    tune_collector(asyncio.get_running_loop())
    for _ in range(100_000):
        cycle: list[object] = []
        cycle.append(cycle)
    assert gc.get_count()[0] < 2_500

"""The entry of sessions on n1, with a queue on n2."""

from __future__ import annotations

import pytest

from tests.support.entry_bench import EntryBench


@pytest.fixture
def bench() -> EntryBench:
    return EntryBench("n2", "n2", "n3")


@pytest.fixture
def opened(bench: EntryBench) -> EntryBench:
    """Session 1 with n2 stands, opened by the publish of 1, which is confirmed."""
    bench.publishes(1)
    bench.accepts(1)
    bench.confirms(1, 1)
    bench.sink.confirmed.clear()
    bench.sent()
    return bench

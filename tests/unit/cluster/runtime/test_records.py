"""What arguments and policy ask of a queue, as its parts on this node hear it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.metadata.commands import DropMirror, SetPolicy
from cluster.metadata.records import PolicyRecord
from node.ids import QueueId
from tests.support.runtime_bench import N1, N2, RuntimeBench


@pytest.fixture
async def bench() -> AsyncIterator[RuntimeBench]:
    bench = RuntimeBench()
    await bench.active()
    yield bench
    await bench.close()


@pytest.mark.parametrize(
    ("definition", "refuses"),
    [
        ({"max-length": 5, "overflow": "reject-publish"}, True),
        ({"max-length": 5}, False),
        ({"ha-mode": "all", "overflow": "reject-publish"}, False),
    ],
)
async def test_mirroring_knows_whether_a_queue_may_have_refused_something(
    bench: RuntimeBench, definition: dict[str, Any], refuses: bool
) -> None:
    queue = bench.runtime.records.queue(bench.declare("q"))
    bench.log.commit(SetPolicy(PolicyRecord("/", "limits", "^q$", definition, 9, "queues")))
    assert bench.runtime.records.mirroring_settings(queue).refuses_publishes == refuses


async def test_a_node_is_a_mirror_as_long_as_the_record_names_it(bench: RuntimeBench) -> None:
    records = bench.runtime.records
    queue_id = bench.declare("q", N2)
    assert records.is_mirror(queue_id)
    bench.log.commit(DropMirror(queue_id, bench.record(queue_id).epoch, N1))
    assert not records.is_mirror(queue_id)
    assert not records.is_mirror(bench.declare("other", N1)), "it is the master"
    assert not records.is_mirror(QueueId(999)), "there is none"

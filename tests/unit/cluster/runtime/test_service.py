"""What the runtime of one node does so that its queues are served: it asks, offers its copy, hands over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cluster.metadata.commands import DropMirror, MirrorFollows, MoveMaster, NodeDown, NodeUp, TakeService
from cluster.metadata.mastership import is_settled
from cluster.mirroring.reports import ReportFollows
from cluster.mirroring.service import REPORT_REPEAT_MS
from cluster.runtime import service_requests
from node.errors import DiskFullError, StorageError
from node.ids import Epoch, Incarnation, QueueId
from tests.support.runtime_bench import N1, N2, N3, RuntimeBench, lose


@pytest.fixture
async def bench() -> AsyncIterator[RuntimeBench]:
    bench = RuntimeBench()
    await bench.active()
    yield bench
    await bench.close()


def services(bench: RuntimeBench) -> list[tuple[tuple[QueueId, Epoch], ...]]:
    return [command.queues for command in bench.log.proposed if isinstance(command, TakeService)]


async def test_masters_that_are_elected_together_take_service_together(bench: RuntimeBench) -> None:
    queue_ids = [bench.declare(f"q{number}", N2) for number in range(5)]
    lose(bench, N2)
    await bench.settle()
    assert services(bench) == [tuple((queue_id, Epoch(2)) for queue_id in queue_ids)]
    assert all(is_settled(bench.record(queue_id)) for queue_id in queue_ids)


async def test_many_queues_take_several_requests(bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_requests, "QUEUES_PER_REQUEST", 2)
    for number in range(5):
        bench.declare(f"q{number}", N2)
    lose(bench, N2)
    await bench.settle()
    await bench.settle()
    assert [len(queues) for queues in services(bench)] == [2, 2, 1]


async def test_a_request_that_found_no_quorum_is_made_again(bench: RuntimeBench) -> None:
    queue_id = bench.declare("q", N2)
    bench.log.commit(NodeDown(N2, Incarnation(1)))
    bench.log.has_quorum = False
    await bench.settle()
    assert len(services(bench)) == 1
    assert not bench.record(queue_id).in_service
    bench.log.has_quorum = True
    await bench.pass_time(2 * REPORT_REPEAT_MS, heard=[N3])
    await bench.settle()
    assert is_settled(bench.record(queue_id))


async def test_a_master_takes_service_again_without_a_mirror_that_died(bench: RuntimeBench) -> None:
    queue_id = bench.declare("q", N1)
    lose(bench, N3)
    await bench.settle()
    assert bench.record(queue_id).complete == (N1, N2)


async def test_a_complete_copy_that_was_dropped_is_offered_when_nobody_serves(bench: RuntimeBench) -> None:
    queue_id = bench.declare("q", N2)
    for node in (N1, N3):
        bench.log.commit(DropMirror(queue_id, Epoch(1), node))
    lose(bench, N2)
    await bench.settle()
    assert [command for command in bench.log.proposed if isinstance(command, NodeUp)][1:], "it has said that it is up"
    record = bench.record(queue_id)
    assert (record.master, record.lossy_promotions) == (N1, 0)
    assert record.in_service


async def test_a_copy_out_of_service_is_not_offered(bench: RuntimeBench) -> None:
    queue_id = bench.declare("q", N2)
    bench.runtime.queues.out_of_service(queue_id, StorageError("input/output error"))
    await bench.settle()
    bench.log.commit(DropMirror(queue_id, Epoch(1), N3))
    lose(bench, N2)
    await bench.settle()
    assert bench.record(queue_id).is_down


async def test_a_copy_that_has_room_again_is_offered_if_nobody_serves(bench: RuntimeBench) -> None:
    queue_id = bench.declare("q", N2)
    bench.runtime.queues.out_of_service(queue_id, DiskFullError("no space left on device"))
    await bench.settle()
    bench.log.commit(DropMirror(queue_id, Epoch(1), N3))
    lose(bench, N2)
    await bench.settle()
    assert bench.record(queue_id).is_down
    await bench.pass_time(2000, heard=[N3])
    assert bench.record(queue_id).master == N1


async def test_an_elected_master_that_cannot_open_its_copy_hands_over_to_another_complete_one(
    bench: RuntimeBench,
) -> None:
    """As after a loss of power: nobody is synchronised, and the first that was elected has a broken disk."""
    queue_id = bench.declare("q", N2)
    bench.log.commit(NodeUp(N3, Incarnation(2), "n3:1", "n3:2"))
    bench.disk.fail_reads = f"/queues/{queue_id}/"
    bench.runtime.queues.out_of_service(queue_id, StorageError("input/output error"))
    bench.log.proposed.clear()
    bench.log.commit(NodeUp(N2, Incarnation(2), "n2:1", "n2:2"))
    await bench.settle()
    assert [command for command in bench.log.proposed if isinstance(command, MoveMaster)] == [
        MoveMaster(queue_id, Epoch(2), N3, is_old_lost=True)
    ]
    assert bench.record(queue_id).master == N3
    assert N1 not in bench.record(queue_id).complete


async def test_a_mirror_that_is_not_filled_is_known_to_follow(bench: RuntimeBench) -> None:
    queue_id = bench.declare("q", N1)
    assert not [command for command in bench.log.proposed if isinstance(command, MirrorFollows)]
    record = bench.record(queue_id)
    bench.runtime.proposals.report(record, ReportFollows(N2))
    await bench.settle()
    (said,) = [command for command in bench.log.proposed if isinstance(command, MirrorFollows)]
    assert said == MirrorFollows(queue_id, Epoch(1), N2, bench.log.index - 1)

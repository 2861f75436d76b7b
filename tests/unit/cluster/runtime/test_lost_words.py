"""What a node has to say is said until it is heard: through lost proposals, skipped commits and a start in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cluster.metadata.commands import (
    DropMirror,
    MirrorFollows,
    MirrorSynchronised,
    NodeDown,
    NodeUp,
    RequestId,
    TakeService,
)
from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import MetadataState
from cluster.mirroring.messages import Attach, OpsAck
from cluster.mirroring.reports import ReportMirrorStalled
from cluster.runtime.housekeeping import READMIT_EVERY_TICKS
from cluster.runtime.queue_role import MasterRole
from node.errors import StorageError
from node.ids import Incarnation, NodeName, QueueId
from node.topology.records import QueueRecord
from tests.support.runtime_bench import N1, N2, N3, RuntimeBench

FAILURE = StorageError("input/output error")
#: Longer than any proposal waits.
LONG_MS = 60_000


@pytest.fixture
async def bench() -> AsyncIterator[RuntimeBench]:
    bench = RuntimeBench()
    await bench.active()
    yield bench
    await bench.close()


def announcements(bench: RuntimeBench) -> int:
    return sum(isinstance(command, NodeUp) and command.node == N1 for command in bench.log.proposed)


def dropped_when_its_master_dies(bench: RuntimeBench, *names: str) -> list[QueueId]:
    """n1 and n2 have everything; n2, the master, drops n1 and dies before it goes on without it; n3 has nothing."""
    queue_ids = []
    for name in names:
        queue_id = bench.declare(name, N2)
        bench.log.commit(DropMirror(queue_id, bench.record(queue_id).epoch, N3))
        bench.log.commit(DropMirror(queue_id, bench.record(queue_id).epoch, N1))
        queue_ids.append(queue_id)
    bench.log.commit(NodeDown(N2, Incarnation(1)))
    return queue_ids


def is_served_here(bench: RuntimeBench, queue_id: QueueId) -> bool:
    record = bench.record(queue_id)
    return record.master == N1 and record.in_service and isinstance(bench.runtime.queues.roles[queue_id], MasterRole)


# --- complete copies that are up


async def test_many_copies_are_offered_by_one_commit(bench: RuntimeBench) -> None:
    """A `NodeUp` looks at every queue: one for each of ten thousand would be a hundred million looks on every node."""
    before = announcements(bench)
    queue_ids = dropped_when_its_master_dies(bench, "a", "b", "c", "d")
    await bench.settle()
    assert all(bench.record(queue_id).master == N1 for queue_id in queue_ids)
    assert announcements(bench) == before + 1


async def test_a_copy_is_offered_again_if_nobody_heard_it(bench: RuntimeBench) -> None:
    (queue_id,) = dropped_when_its_master_dies(bench, "q")
    bench.log.has_quorum = False
    await bench.settle()
    assert bench.record(queue_id).is_down
    bench.log.has_quorum = True
    await bench.pass_time(LONG_MS)
    assert is_served_here(bench, queue_id)


async def test_a_copy_is_offered_whose_master_died_while_this_node_was_about_to_take_up_its_roles(
    bench: RuntimeBench,
) -> None:
    """Its `NodeUp` and the `NodeDown` of the master are applied in one batch, before its roles are taken up."""
    bench.runtime.queues.close()
    bench.stand_aside()
    announce = bench.runtime.membership.announce
    queue_ids: list[QueueId] = []

    async def announce_and_lose_the_master() -> None:
        await announce()
        if not queue_ids:
            queue_ids.extend(dropped_when_its_master_dies(bench, "q"))

    bench.runtime.membership.announce = announce_and_lose_the_master  # type: ignore[method-assign]
    await bench.runtime.activate()
    await bench.pass_time(LONG_MS)
    assert is_served_here(bench, queue_ids[0])


def restore(bench: RuntimeBench, snapshot: bytes) -> None:
    """A snapshot comes in the place of commits that the leader has no longer."""
    bench.runtime.metadata.restore(snapshot)
    bench.log.index = max(bench.log.index, bench.runtime.metadata.state.applied_index)


async def test_a_copy_is_offered_whose_master_died_in_commits_that_a_snapshot_skips(bench: RuntimeBench) -> None:
    ahead = MetadataState()
    bench.declare("first", N2)
    before = bench.runtime.metadata.state.snapshot()
    bench.stand_aside()
    (queue_id,) = dropped_when_its_master_dies(bench, "q")
    ahead.restore(bench.runtime.metadata.state.snapshot())
    bench.runtime.metadata.state.restore(before)
    bench.take_part()
    restore(bench, ahead.snapshot())
    await bench.pass_time(LONG_MS)
    assert is_served_here(bench, queue_id)


async def test_of_what_a_snapshot_skips_each_queue_hears_before_it_follows(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror is promoted by what it follows, and has to flag more if it may have been none for a while."""
    queue_id = bench.declare("q", N2)
    queues, heard = bench.runtime.queues, list[str]()
    skipped, follow = queues.records_skipped, queues.follow

    def record_skipped(of: QueueId) -> None:
        heard.append(f"{of} skipped")
        skipped(of)

    def record_followed(queue: QueueRecord, record: MastershipRecord, *, is_discarded: bool) -> None:
        heard.append(f"{queue.queue_id} followed")
        follow(queue, record, is_discarded=is_discarded)

    monkeypatch.setattr(queues, "records_skipped", record_skipped)
    monkeypatch.setattr(queues, "follow", record_followed)
    restore(bench, bench.runtime.metadata.state.snapshot())
    assert heard == [f"{queue_id} skipped", f"{queue_id} followed"]


async def test_a_node_that_learns_by_a_snapshot_that_it_counts_as_dead_says_that_it_lives(bench: RuntimeBench) -> None:
    """Cut off for so long that the commit which declared it down has left the log."""
    queue_id = bench.declare()
    other = MetadataState()
    other.restore(bench.runtime.metadata.state.snapshot())
    bench.stand_aside()
    bench.log.commit(NodeDown(N1, Incarnation(1)))
    ahead = bench.runtime.metadata.state.snapshot()
    bench.runtime.metadata.state.restore(other.snapshot())
    bench.take_part()
    restore(bench, ahead)
    await bench.pass_time(LONG_MS)
    assert bench.runtime.metadata.state.members[N1].is_up
    assert N1 in bench.record(queue_id).mirrors


async def test_a_node_that_stops_offers_nothing(bench: RuntimeBench) -> None:
    """Its goodbye takes its own unmirrored queues down."""
    queue_id = bench.declare()
    for node in (N2, N3):
        bench.log.commit(DropMirror(queue_id, bench.record(queue_id).epoch, node))
    await bench.settle()
    await bench.runtime.stop()
    await bench.settle()
    assert bench.record(queue_id).is_down
    assert not bench.runtime.metadata.state.members[N1].is_up


async def test_a_node_declared_down_by_mistake_says_that_it_lives_until_it_is_heard(bench: RuntimeBench) -> None:
    bench.log.commit(NodeDown(N1, Incarnation(1)))
    bench.log.has_quorum = False
    await bench.settle()
    bench.log.has_quorum = True
    await bench.pass_time(LONG_MS)
    assert bench.runtime.metadata.state.members[N1].is_up


# --- copies that failed


async def test_a_copy_that_failed_for_good_is_not_talked_of_for_ever(bench: RuntimeBench) -> None:
    queue_id = bench.declare("q", N2)
    bench.runtime.queues.out_of_service(queue_id, FAILURE)
    await bench.settle()
    bench.log.proposed.clear()
    await bench.pass_time(2 * LONG_MS)
    assert not [each for each in bench.log.proposed if not isinstance(each, TakeService)]


@pytest.mark.parametrize("master", [N1, N2])
async def test_the_failure_of_a_copy_is_told_until_somebody_hears_it(bench: RuntimeBench, master: NodeName) -> None:
    queue_id = bench.declare("q", master)
    bench.log.has_quorum = False
    bench.runtime.queues.out_of_service(queue_id, FAILURE)
    await bench.settle()
    bench.log.has_quorum = True
    await bench.pass_time(LONG_MS)
    record = bench.record(queue_id)
    assert record.master == N2
    assert N1 not in record.mirrors


# --- what was heard of an earlier life


async def meet(bench: RuntimeBench, queue_id: QueueId, *, is_filled: bool) -> None:
    """n2, under its first incarnation, answers what the master here says; ``is_filled``: it lacks nothing."""
    bench.runtime.switchboard.on_link_up(N2, Incarnation(1))
    await bench.settle()
    role = bench.runtime.queues.roles[queue_id]
    assert isinstance(role, MasterRole)
    attach = [message for node, message in bench.mesh.sent if isinstance(message, Attach) and node == N2][-1]
    for index in (attach.index, attach.index + 1)[: 1 + is_filled]:
        ack = OpsAck(queue_id, attach.epoch, attach.attach_id, index, index, is_disk_full=False, is_describing=False)
        bench.runtime.switchboard.on_queue_frames(N2, [ack])
        await bench.settle()


async def test_what_was_heard_of_a_mirrors_earlier_life_is_not_said_of_its_next(bench: RuntimeBench) -> None:
    """n2 restarted and reached others, but not this node, whose link to its earlier life has yet to be missed."""
    queue_id = bench.declare()
    await meet(bench, queue_id, is_filled=True)
    assert N2 in bench.record(queue_id).synchronised
    bench.log.proposed.clear()
    bench.log.commit(NodeUp(N2, Incarnation(2), "n2:1", "n2:2"))
    await bench.pass_time(3_000)
    said = [each for each in bench.log.proposed if isinstance(each, MirrorSynchronised | MirrorFollows)]
    assert not said, "its transient messages are gone, and it hears nothing"
    record = bench.record(queue_id)
    assert N2 not in record.synchronised
    assert N2 not in record.following


# --- mirrors that were dropped


async def test_a_mirror_is_offered_its_place_again_however_late_its_drop_is_committed(bench: RuntimeBench) -> None:
    queue_id = bench.declare()
    propose, decided = bench.log.propose, asyncio.Event()

    async def decide_late(payload: bytes, request_id: RequestId) -> object:
        await decided.wait()
        return await propose(payload, request_id)

    bench.log.propose = decide_late  # type: ignore[method-assign]
    bench.runtime.proposals.report(bench.record(queue_id), ReportMirrorStalled(N2))
    await bench.pass_time(100 * READMIT_EVERY_TICKS)
    decided.set()
    await bench.settle()
    assert bench.record(queue_id).mirrors == (N3,)
    await bench.pass_time(100 * READMIT_EVERY_TICKS)
    assert bench.record(queue_id).mirrors == (N3, N2)


async def test_a_mirror_is_offered_its_place_again_when_there_is_a_quorum(bench: RuntimeBench) -> None:
    queue_id = bench.declare()
    bench.runtime.proposals.report(bench.record(queue_id), ReportMirrorStalled(N2))
    await bench.settle()
    bench.log.has_quorum = False
    await bench.pass_time(2 * 100 * READMIT_EVERY_TICKS)
    bench.log.has_quorum = True
    await bench.pass_time(100 * READMIT_EVERY_TICKS)
    assert bench.record(queue_id).mirrors == (N3, N2)

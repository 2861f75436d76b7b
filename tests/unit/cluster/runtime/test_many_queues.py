"""What concerns every queue of a node is done in slices: so many queues in one turn, however many there are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cluster.mirroring.master import MirroredQueue
from cluster.sessions.messages import SessionCall, SessionOpen, SessionOpened
from node.ids import NodeName, QueueId
from node.queues.events import ConsumerSpec
from node.queues.queue_process import QueueProcess
from tests.support.runtime_bench import N2, N3, RuntimeBench

PER_TURN = 3
QUEUES = 10


class SlicedBench(RuntimeBench):
    slice_pieces = PER_TURN


@pytest.fixture
async def bench() -> AsyncIterator[RuntimeBench]:
    bench = await SlicedBench().active()
    yield bench
    await bench.close()


async def declared(bench: RuntimeBench) -> list[QueueId]:
    queue_ids = [bench.declare(f"q{number}") for number in range(QUEUES)]
    for _ in range(QUEUES):
        await bench.settle()
    return queue_ids


async def test_time_that_passes_is_told_to_some_queues_in_each_turn(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declared(bench)
    told: list[int] = []
    tick = MirroredQueue.tick

    def counted(self: MirroredQueue, now_ms: int) -> None:
        told.append(now_ms)
        tick(self, now_ms)

    monkeypatch.setattr(MirroredQueue, "tick", counted)
    queues = bench.runtime.queues
    queues.tick(1000)
    assert len(told) == PER_TURN
    queues.tick(1100)
    queues.check_invariants()
    assert len(told) == PER_TURN, "the others are told first"
    for _ in range(QUEUES):
        await bench.settle()
    assert told == [1000] * QUEUES
    queues.tick(1200)
    assert told[QUEUES:] == [1200] * PER_TURN


async def test_a_queue_that_is_deleted_between_two_slices_hears_nothing(bench: RuntimeBench) -> None:
    queue_ids = await declared(bench)
    bench.runtime.queues.tick(1000)
    for queue_id in queue_ids[1:]:
        bench.runtime.queues.queue_deleted(bench.runtime.records.queue(queue_id))
    bench.runtime.queues.check_invariants()
    await bench.settle()
    assert list(bench.runtime.queues.roles) == queue_ids[:1]


def consumes(bench: RuntimeBench, node: NodeName, queue_id: QueueId, session: int) -> None:
    """A channel of ``node`` has a consumer."""
    epoch = bench.record(queue_id).epoch
    opened = SessionOpen(queue_id, session, epoch, 100, False)
    spec = ConsumerSpec("tag", no_ack=False, exclusive=True)
    for message in (opened, SessionCall(queue_id, session, 1, "consume", 7, spec)):
        bench.runtime.switchboard.on_queue_frames(node, [message])


def ended(bench: RuntimeBench, node: NodeName) -> set[QueueId]:
    """Queues whose sessions ``node`` was told to be over."""
    said = [message for peer, message in bench.mesh.sent if peer == node and isinstance(message, SessionOpened)]
    return {message.queue_id for message in said if message.refused}


async def test_the_queues_of_a_lost_node_are_told_in_slices_and_it_is_not_heard_meanwhile(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_ids = await declared(bench)
    for queue_id in queue_ids:
        consumes(bench, N2, queue_id, 5)
    names = {id(bench.runtime.queues.process(queue_id)): queue_id for queue_id in queue_ids}
    released: list[QueueId] = []
    channel_down = QueueProcess.channel_down

    def counted(self: QueueProcess, channel: object, *, may_return: bool = False) -> None:
        released.append(names[id(self)])
        channel_down(self, channel, may_return=may_return)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueProcess, "channel_down", counted)
    host = bench.runtime.sessions
    host.node_lost(N2, is_linked=False)
    host.check_invariants()
    assert len(released) == PER_TURN
    waiting = [queue_id for queue_id in queue_ids if queue_id not in released]
    # Over a new link it consumes again: the queue is told of the end first, or the consumer would be refused.
    again, stopped, silent = waiting[0], waiting[1], waiting[2]
    consumes(bench, N2, again, 6)
    assert again in released
    # What it said before is not heard any more.
    host.receive(N2, SessionCall(silent, 5, 2, "counts", 7))
    # And a queue that goes takes its session with it.
    bench.runtime.queues.queue_deleted(bench.runtime.records.queue(stopped))
    host.check_invariants()
    for _ in range(QUEUES):
        await bench.settle()
    assert sorted(released) == sorted(set(queue_ids) - {stopped})
    assert ended(bench, N2) == set(queue_ids) - {again}
    process = bench.runtime.queues.process(again)
    assert process is not None
    assert process.consumer_count == 1, "the second session goes on"


async def test_a_stop_closes_queue_by_queue_and_hears_what_is_said_meanwhile(bench: RuntimeBench) -> None:
    queue_ids = await declared(bench)
    consumes(bench, N2, queue_ids[-1], 5)
    pieces = bench.runtime.roles.give_up_all()
    for closed, _ in enumerate(pieces, 1):
        assert len(bench.runtime.queues.roles) == QUEUES - closed
        bench.runtime.check_invariants()
        # The one is closed already and refuses, the other is there as ever.
        consumes(bench, N3, queue_ids[0], closed)
        consumes(bench, N2, queue_ids[-1], 5 + closed)
        bench.declare(f"later{closed}")
        await bench.settle()
    assert not bench.runtime.queues.roles
    assert ended(bench, N3) == {queue_ids[0]}
    assert queue_ids[-1] in ended(bench, N2)

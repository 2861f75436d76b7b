"""Deletions that must hold what was checked: by whom, under which epoch, and what becomes of a queue meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from cluster.metadata.commands import (
    ChangeTopology,
    ClearPolicy,
    Command,
    MoveMaster,
    NodeDown,
    NodeUp,
    RequestId,
    TakeService,
)
from cluster.metadata.errors import ChangeFailedError, StaleDeletionError
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.runtime import queue_deletions
from cluster.runtime.recoveries import SLICE_S
from cluster.sessions.messages import SessionCall, SessionOpen
from cluster.wire.convert import QueueFrameMessage
from node.broker.deletion import delete_queue
from node.errors import ChannelError, ConnectionFailure, StorageError
from node.ids import ChannelKey, Incarnation, NodeName, QueueId
from node.queues.events import ConsumerSpec
from node.queues.local_replica import LocalReplica
from node.queues.queue_process import QueueProcess
from node.store.steps import Steps
from node.topology.commands import DeclareQueue, DeleteQueue, NoteConsumer
from node.topology.records import QueueRecord
from tests.support.messages import make_message
from tests.support.runtime_bench import N1, N2, N3, RuntimeBench
from tests.support.session_network import RecordingSink

CONSUMER = ConsumerSpec("tag", no_ack=False, exclusive=False)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RuntimeBench]:
    monkeypatch.setattr(queue_deletions, "RETRY_S", 0)
    monkeypatch.setattr(queue_deletions, "REATTACH_S", 0)
    bench = RuntimeBench()
    await bench.active()
    bench.raise_protocol()
    yield bench
    await bench.close()


def declare(bench: RuntimeBench, *, auto_delete: bool = False) -> QueueId:
    command = ChangeTopology(DeclareQueue("/", "q", durable=True, auto_delete=auto_delete), N1)
    queue_id: QueueId = bench.log.commit(command).queue_id
    return queue_id


def exists(bench: RuntimeBench, queue_id: QueueId) -> bool:
    return queue_id in bench.runtime.metadata.state.masterships


def process_of(bench: RuntimeBench, queue_id: QueueId) -> QueueProcess:
    process = bench.runtime.queues.process(queue_id)
    assert process is not None
    return process


def move_there_and_back(bench: RuntimeBench, queue_id: QueueId) -> None:
    """Another master has served meanwhile."""
    for node in (N2, N1):
        record = bench.record(queue_id)
        bench.log.commit(MoveMaster(queue_id, record.epoch, node))
        bench.log.commit(TakeService(node, ((queue_id, bench.record(queue_id).epoch),)))


async def delete(bench: RuntimeBench, queue_id: QueueId, *, if_empty: bool = True) -> int:
    queue = bench.runtime.records.queue(queue_id)
    return await delete_queue(
        bench.runtime.gateway, bench.runtime.metadata.submit, queue, if_unused=False, if_empty=if_empty
    )


class Interrupted:
    """Does something when the first deletion is proposed, before it is committed."""

    def __init__(self, bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tries = 0
        original = bench.log.commit

        def commit(command: Command, request_id: RequestId | None = None) -> object:
            is_deletion = isinstance(command, ChangeTopology) and isinstance(command.command, DeleteQueue)
            if is_deletion:
                self.tries += 1
                if self.tries == 1:
                    self.happens()
            return original(command, request_id)

        monkeypatch.setattr(bench.log, "commit", commit)

    def happens(self) -> None:
        raise AssertionError("say what")


# --- who remembers a consumer ---


async def test_an_auto_delete_queue_goes_though_everybody_who_knew_its_consumer_is_gone(bench: RuntimeBench) -> None:
    """Its master and its consumer were on one machine: the next master has only what is committed."""
    queue_id = declare(bench, auto_delete=True)
    bench.log.commit(ChangeTopology(NoteConsumer("/", "q", queue_id), N2))
    move_there_and_back(bench, queue_id)
    await bench.settle()
    assert not exists(bench, queue_id)


async def test_a_master_that_opens_its_copy_hears_what_is_committed_of_consumers_meanwhile(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of a consumer has it noted after the master has died, and is gone itself before that is back."""
    is_read, original = asyncio.Event(), bench.files.queue_opening

    def open_slowly(
        queue: QueueRecord,
        index_version: int | None,
        on_progress: Callable[[int, int], None],
        *,
        is_compared: bool = False,
    ) -> Steps[LocalReplica]:
        while not is_read.is_set():
            yield None
        return (yield from original(queue, index_version, on_progress, is_compared=is_compared))

    monkeypatch.setattr(bench.files, "queue_opening", open_slowly)
    bench.look_s = SLICE_S  # so that a turn has one step
    queue_id = declare(bench, auto_delete=True)
    bench.log.commit(ChangeTopology(NoteConsumer("/", "q", queue_id), N2))
    await bench.settle()
    assert bench.runtime.queues.process(queue_id) is None
    is_read.set()
    bench.look_s = 0
    for _ in range(3):
        await bench.settle()
    assert not exists(bench, queue_id)


async def test_that_there_is_a_consumer_is_committed_once(bench: RuntimeBench) -> None:
    queue_id = declare(bench, auto_delete=True)
    before = len(bench.log.proposed)
    for _ in range(2):
        await bench.runtime.gateway.consume(next_channel(bench), queue_id, CONSUMER)
    await bench.settle()
    assert [each for each in bench.log.proposed[before:] if isinstance(each, ChangeTopology)] == [
        ChangeTopology(NoteConsumer("/", "q", queue_id), N1)
    ]


async def test_that_there_is_a_consumer_is_committed_when_it_can_be(bench: RuntimeBench) -> None:
    queue_id = declare(bench, auto_delete=True)
    bench.log.has_quorum = False
    await bench.runtime.gateway.consume(next_channel(bench), queue_id, CONSUMER)
    await bench.settle()
    queue = bench.runtime.metadata.topology.queue("/", "q")
    assert queue is not None
    assert not queue.was_consumed
    bench.log.has_quorum = True
    await bench.pass_time(3_000)
    queue = bench.runtime.metadata.topology.queue("/", "q")
    assert queue is not None
    assert queue.was_consumed


async def test_while_a_member_may_not_know_that_command_consumers_are_remembered_as_before() -> None:
    earlier = await RuntimeBench().active()
    declare(earlier, auto_delete=True)
    queue = earlier.runtime.metadata.topology.queue("/", "q")
    assert queue is not None
    before = len(earlier.log.proposed)
    await earlier.runtime.gateway.consume(next_channel(earlier), queue.queue_id, CONSUMER)
    assert len(earlier.log.proposed) == before
    earlier.raise_protocol()
    earlier.runtime.gateway.note_consumers()
    await earlier.settle()
    assert earlier.log.proposed[before:] == [ChangeTopology(NoteConsumer("/", "q", queue.queue_id), N1)]
    await earlier.close()


# --- conditions ---


async def test_what_another_master_was_given_meanwhile_is_not_deleted(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_id = declare(bench)
    between = Interrupted(bench, monkeypatch)

    def fail_over_and_publish() -> None:
        move_there_and_back(bench, queue_id)
        process_of(bench, queue_id).publish(next_channel(bench), [make_message(1)], [1])

    between.happens = fail_over_and_publish  # type: ignore[method-assign]
    with pytest.raises(ChannelError, match="PRECONDITION_FAILED - queue 'q' in vhost '/' is not empty"):
        await delete(bench, queue_id)
    assert exists(bench, queue_id)
    assert not process_of(bench, queue_id).is_sealed
    assert between.tries == 1


def next_channel(bench: RuntimeBench) -> ChannelKey:
    return bench.runtime.gateway.open_channel(RecordingSink())


async def test_a_condition_that_still_holds_is_checked_anew_and_the_queue_deleted(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_id = declare(bench)
    between = Interrupted(bench, monkeypatch)
    between.happens = lambda: move_there_and_back(bench, queue_id)  # type: ignore[method-assign]
    assert await delete(bench, queue_id) == 0
    assert not exists(bench, queue_id)
    assert between.tries == 2


async def test_without_conditions_nothing_is_checked_anew(bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    queue_id = declare(bench)
    between = Interrupted(bench, monkeypatch)
    between.happens = lambda: move_there_and_back(bench, queue_id)  # type: ignore[method-assign]
    await delete(bench, queue_id, if_empty=False)
    assert not exists(bench, queue_id)
    assert between.tries == 1


async def test_a_deletion_of_another_epoch_changes_nothing(bench: RuntimeBench) -> None:
    queue_id = declare(bench)
    late = ChangeTopology(DeleteQueue("/", "q", queue_id, bench.record(queue_id).epoch), N1)
    move_there_and_back(bench, queue_id)
    with pytest.raises(StaleDeletionError, match="is in epoch 3, it was looked at in 1"):
        bench.log.commit(late)
    bench.log.commit(ChangeTopology(DeleteQueue("/", "q", queue_id, 3), N1))
    assert not exists(bench, queue_id)
    bench.log.commit(late)  # of a queue that is gone


# --- fates ---


async def test_a_queue_stays_sealed_until_its_fate_is_known(bench: RuntimeBench) -> None:
    queue_id = declare(bench)
    bench.log.has_quorum = False
    with pytest.raises(ConnectionFailure, match="the cluster has not decided"):
        await delete(bench, queue_id, if_empty=False)
    process = process_of(bench, queue_id)
    process.publish(next_channel(bench), [make_message(1)], [1])
    await bench.settle()
    assert (process.is_sealed, process.ready) == (True, 0), "the command may be carried out yet"
    bench.log.has_quorum = True
    await bench.settle()
    assert not exists(bench, queue_id)


async def test_a_refused_deletion_lets_the_queue_go_on(bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    queue_id = declare(bench)

    async def refuse(_payload: bytes, _request_id: RequestId) -> None:
        raise ChangeFailedError("", TypeError("a mistake of ours"))

    monkeypatch.setattr(bench.log, "propose", refuse)
    with pytest.raises(ConnectionFailure, match="a mistake of ours"):
        await delete(bench, queue_id)
    process = process_of(bench, queue_id)
    process.publish(next_channel(bench), [make_message(1)], [1])
    await bench.settle()
    assert (process.is_sealed, process.ready) == (False, 1)


async def test_a_deletion_whose_asker_is_lost_is_decided_by_the_master(bench: RuntimeBench) -> None:
    queue_id = declare(bench)
    receive = bench.runtime.switchboard.on_queue_frames
    receive(N2, [SessionOpen(queue_id, 5, bench.record(queue_id).epoch, 800)])
    receive(N2, [SessionCall(queue_id, 5, 1, "delete_if", 0, if_empty=True)])
    assert process_of(bench, queue_id).is_sealed
    bench.runtime.sessions.node_lost(N2, is_linked=False)
    await bench.settle()
    assert not exists(bench, queue_id)


async def test_a_copy_that_went_out_of_service_sealed_is_sealed_when_it_returns(bench: RuntimeBench) -> None:
    bench.log.commit(ClearPolicy("/", "ha"))  # so there is nobody to hand it over to
    queue_id = declare(bench)
    bench.log.is_silent = True
    deleting = asyncio.create_task(delete(bench, queue_id))
    await bench.settle()
    bench.runtime.queues.out_of_service(queue_id, StorageError("a read failed"))
    bench.runtime.queues.forgive(queue_id)
    bench.runtime.roles.take_up(queue_id)
    assert process_of(bench, queue_id).is_sealed, "the same epoch, so the command may be carried out"
    bench.log.is_silent = False
    deleting.cancel()
    await asyncio.wait([deleting])
    await bench.settle()
    assert not exists(bench, queue_id)


async def test_a_master_that_stops_deletes_nothing_that_it_has_not_sealed_for_it(bench: RuntimeBench) -> None:
    """The client of a deletion under a condition is gone before it hears that the condition fails, so its node does not
    know what became of it. The master holds everything back, but for another reason."""
    queue_id = declare(bench)
    process_of(bench, queue_id).publish(next_channel(bench), [make_message(1)], [1])
    bench.runtime.queues.begin_end()
    receive = bench.runtime.switchboard.on_queue_frames
    receive(N2, [SessionOpen(queue_id, 5, bench.record(queue_id).epoch, 800)])
    receive(N2, [SessionCall(queue_id, 5, 1, "delete_if", 0, if_empty=True), SessionCall(queue_id, 5, 2, "unseal", 0)])
    await bench.settle()
    assert exists(bench, queue_id)
    assert process_of(bench, queue_id).ready == 1


async def test_a_refused_deletion_lets_a_master_that_stops_hold_back_what_comes(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_id = declare(bench)
    refusal = asyncio.Event()

    async def refuse(_payload: bytes, _request_id: RequestId) -> None:
        await refusal.wait()
        raise ChangeFailedError("", TypeError("a mistake of ours"))

    monkeypatch.setattr(bench.log, "propose", refuse)
    process = process_of(bench, queue_id)
    process.consume(next_channel(bench), CONSUMER)
    deleting = asyncio.create_task(delete(bench, queue_id))
    await bench.settle()
    process.publish(next_channel(bench), [make_message(1)], [1])
    bench.runtime.queues.begin_end()
    refusal.set()
    with pytest.raises(ConnectionFailure, match="a mistake of ours"):
        await deleting
    await bench.settle()
    process.publish(next_channel(bench), [make_message(2)], [2])
    assert (process_of(bench, queue_id) is process, process.is_sealed, process.ready) == (True, False, 0)
    assert process.drain() == []


async def test_a_queue_that_cannot_take_what_was_held_back_takes_nothing_behind_it(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came later would make a repetition of it when it is sent again."""
    bench.log.commit(ClearPolicy("/", "ha"))  # so there is nobody to hand it over to
    queue_id = declare(bench)

    async def refuse(_payload: bytes, _request_id: RequestId) -> None:
        raise ChangeFailedError("", TypeError("a mistake of ours"))

    def fail(_publications: object) -> None:
        raise StorageError("no descriptor is left")

    process = process_of(bench, queue_id)
    process.seal_for_delete(if_unused=False, if_empty=True)
    process.publish(next_channel(bench), [make_message(1)], [1])
    monkeypatch.setattr(bench.log, "propose", refuse)
    monkeypatch.setattr(process.backing_queue, "publish", fail)
    bench.runtime.queues.settle_deletion(queue_id)
    await bench.settle()
    assert bench.runtime.queues.is_failed(queue_id)


# --- auto-delete ---


async def test_a_cancel_is_answered_when_the_queue_is_gone(bench: RuntimeBench) -> None:
    queue_id = declare(bench, auto_delete=True)
    gateway = bench.runtime.gateway
    channel = next_channel(bench)
    await gateway.consume(channel, queue_id, CONSUMER)
    await gateway.cancel(channel, queue_id, "tag")
    assert not exists(bench, queue_id)


async def test_auto_delete_is_asked_for_until_it_is_decided(bench: RuntimeBench) -> None:
    queue_id = declare(bench, auto_delete=True)
    gateway = bench.runtime.gateway
    channel, other = next_channel(bench), next_channel(bench)
    await gateway.consume(channel, queue_id, CONSUMER)
    bench.log.has_quorum = False
    gateway.close_channel(channel)
    await bench.settle()
    consuming = asyncio.create_task(gateway.consume(other, queue_id, CONSUMER))
    await bench.settle()
    assert not consuming.done(), "it waits for the fate of the queue"
    bench.log.has_quorum = True
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        await consuming
    assert not exists(bench, queue_id)


def attaching(bench: RuntimeBench, queue_id: QueueId) -> list[QueueFrameMessage]:
    """What a node says that has a consumer of the queue, which now belongs to this one."""
    epoch = bench.record(queue_id).epoch
    return [SessionOpen(queue_id, 5, epoch, 800), SessionCall(queue_id, 5, 1, "consume", 7, CONSUMER)]


async def test_the_consumer_of_a_node_that_is_cut_off_keeps_its_queue(bench: RuntimeBench) -> None:
    queue_id = declare(bench, auto_delete=True)
    attach = attaching(bench, queue_id)
    bench.runtime.switchboard.on_queue_frames(N2, attach)
    bench.mesh.up_peers.remove(N2)
    bench.runtime.sessions.node_lost(N2, is_linked=False)
    await bench.settle()
    assert exists(bench, queue_id), "n2 counts as up, and may attach its consumer again"
    bench.mesh.up_peers.append(N2)
    bench.runtime.switchboard.on_queue_frames(N2, attach)
    await bench.settle()
    assert process_of(bench, queue_id).consumer_count == 1

    bench.mesh.up_peers.remove(N2)
    bench.runtime.sessions.node_lost(N2, is_linked=False)
    bench.log.commit(NodeDown(N2, Incarnation(1)))
    await bench.settle()
    assert not exists(bench, queue_id), "n2 is gone, and its consumer with it"


async def test_the_consumer_of_a_node_that_was_declared_down_and_lives_keeps_its_queue(bench: RuntimeBench) -> None:
    """It hears late that its session is over, or this node does that its life before was declared down."""
    queue_id = declare(bench, auto_delete=True)
    attach = attaching(bench, queue_id)
    bench.runtime.switchboard.on_queue_frames(N2, attach)
    await bench.settle()
    bench.log.commit(NodeDown(N2, Incarnation(1)))
    bench.log.commit(NodeUp(N2, Incarnation(2), "n2:1", "n2:2", NEWEST_PROTOCOL))
    await bench.settle()
    assert exists(bench, queue_id)
    bench.runtime.switchboard.on_queue_frames(N2, attach)
    await bench.settle()
    assert process_of(bench, queue_id).consumer_count == 1


async def test_a_consumer_whose_node_has_yet_to_hear_of_the_new_master_keeps_its_queue(bench: RuntimeBench) -> None:
    """It stands still since before the failover, for less than the cluster needs to notice: its link is up."""
    queue_id = declare(bench, auto_delete=True)
    bench.log.commit(ChangeTopology(NoteConsumer("/", "q", queue_id), N2))
    bench.log.is_visible = False
    move_there_and_back(bench, queue_id)
    await bench.settle()
    assert exists(bench, queue_id)
    attach = attaching(bench, queue_id)
    bench.runtime.switchboard.on_queue_frames(N2, attach)
    bench.log.is_visible = True
    await bench.settle()
    assert process_of(bench, queue_id).consumer_count == 1


async def test_a_consumer_that_is_cut_off_keeps_its_queue_though_the_last_one_that_is_there_is_cancelled(
    bench: RuntimeBench,
) -> None:
    queue_id = declare(bench, auto_delete=True)
    channel = next_channel(bench)
    await bench.runtime.gateway.consume(channel, queue_id, CONSUMER)
    attach = attaching(bench, queue_id)
    bench.runtime.switchboard.on_queue_frames(N2, attach)
    await bench.settle()
    bench.mesh.up_peers.remove(N2)
    bench.runtime.sessions.node_lost(N2, is_linked=False)
    await bench.settle()
    await bench.runtime.gateway.cancel(channel, queue_id, "tag")
    await bench.settle()
    assert exists(bench, queue_id)
    bench.mesh.up_peers.append(N2)
    bench.runtime.switchboard.on_queue_frames(N2, attach)
    await bench.settle()
    assert process_of(bench, queue_id).consumer_count == 1
    bench.runtime.switchboard.on_queue_frames(N2, [SessionCall(queue_id, 5, 2, "cancel", 7, consumer_tag="tag")])
    await bench.settle()
    assert not exists(bench, queue_id)


async def test_a_consumer_keeps_its_queue_as_long_as_its_link_comes_and_goes(bench: RuntimeBench) -> None:
    """It is up whenever that is looked at, and never for long enough."""
    queue_id = declare(bench, auto_delete=True)
    bench.log.commit(ChangeTopology(NoteConsumer("/", "q", queue_id), N2))
    move_there_and_back(bench, queue_id)
    for _ in range(20):
        bench.runtime.switchboard.on_link_down(N2, "reset")
        bench.runtime.switchboard.on_link_up(N2, Incarnation(1))
        await asyncio.sleep(0)
    assert exists(bench, queue_id)
    await bench.settle()
    assert not exists(bench, queue_id)


async def test_a_consumer_keeps_its_queue_while_its_node_stands_still(bench: RuntimeBench) -> None:
    """It has heard of the failover, and asked for a session."""
    queue_id = declare(bench, auto_delete=True)
    bench.log.commit(ChangeTopology(NoteConsumer("/", "q", queue_id), N2))
    move_there_and_back(bench, queue_id)
    await bench.pass_time(1500, heard=[N3])
    assert exists(bench, queue_id)
    await bench.pass_time(100)
    assert not exists(bench, queue_id), "it has been heard since, and has said nothing of a consumer"


async def test_a_node_that_was_declared_up_has_its_time_to_attach_its_consumers(bench: RuntimeBench) -> None:
    queue_id = declare(bench, auto_delete=True)
    bench.log.commit(ChangeTopology(NoteConsumer("/", "q", queue_id), N2))
    bench.log.is_visible = False
    move_there_and_back(bench, queue_id)
    await bench.settle()
    bench.log.is_visible = True
    bench.log.commit(NodeDown(N2, Incarnation(1)))
    await asyncio.sleep(0)
    bench.log.commit(NodeUp(N2, Incarnation(1), "n2:1", "n2:2", NEWEST_PROTOCOL))
    await asyncio.sleep(0)
    assert not process_of(bench, queue_id).is_sealed
    await bench.settle()
    assert not exists(bench, queue_id)


async def looked_at_once(bench: RuntimeBench) -> QueueId:
    """An auto-delete queue that had a consumer and has a new master: a second look like the first would delete it."""
    queue_id = declare(bench, auto_delete=True)
    bench.log.commit(ChangeTopology(NoteConsumer("/", "q", queue_id), N2))
    bench.log.is_visible = False
    move_there_and_back(bench, queue_id)
    await bench.settle()
    bench.log.is_visible = True
    await asyncio.sleep(0)
    return queue_id


@pytest.mark.parametrize("peers_heard", [(), (N2, N3)])
async def test_a_node_that_stood_still_has_its_time(bench: RuntimeBench, peers_heard: tuple[NodeName, ...]) -> None:
    queue_id = await looked_at_once(bench)
    for _ in range(10):
        bench.now_ms += 100
        if peers_heard:  # otherwise no tick has noticed yet
            bench.tick()
    for peer in peers_heard:
        bench.runtime.switchboard.on_consensus(peer, [])
    await asyncio.sleep(0)
    assert not process_of(bench, queue_id).is_sealed
    await bench.pass_time(100)
    assert not exists(bench, queue_id)


@pytest.mark.parametrize("has_some", [True, False])
async def test_who_had_consumers_has_all_the_time_to_say_which_he_has(bench: RuntimeBench, has_some: bool) -> None:
    """A slow link may carry for seconds what he says, and be heard all that time."""
    queue_id = await looked_at_once(bench)
    epoch = bench.record(queue_id).epoch
    bench.runtime.switchboard.on_queue_frames(N2, [SessionOpen(queue_id, 5, epoch, 800, has_consumed=True)])
    await bench.settle()
    assert not process_of(bench, queue_id).is_sealed
    said: list[QueueFrameMessage] = [SessionCall(queue_id, 5, 1, "consume", 7, CONSUMER)] if has_some else []
    said.append(SessionCall(queue_id, 5, 2, "counts", 0))
    bench.runtime.switchboard.on_queue_frames(N2, said)
    await bench.settle()
    assert exists(bench, queue_id) is has_some


async def test_who_never_says_which_consumers_he_has_keeps_a_queue_for_a_while_only(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His release is an older one."""
    monkeypatch.setattr(queue_deletions, "ATTACHING_LOOKS_MAX", 5)
    queue_id = await looked_at_once(bench)
    epoch = bench.record(queue_id).epoch
    bench.runtime.switchboard.on_queue_frames(N2, [SessionOpen(queue_id, 5, epoch, 800, has_consumed=True)])
    await bench.settle()
    assert not exists(bench, queue_id)


async def test_a_master_that_stood_still_hears_first_who_would_have_attached_meanwhile(bench: RuntimeBench) -> None:
    queue_id = await looked_at_once(bench)
    bench.runtime.membership.tick(bench.runtime.now_ms(), 2000)
    await asyncio.sleep(0)
    assert not process_of(bench, queue_id).is_sealed
    await bench.settle()
    assert not exists(bench, queue_id)


async def test_a_new_master_hears_from_the_entry_nodes_that_a_queue_was_consumed(bench: RuntimeBench) -> None:
    queue_id = declare(bench, auto_delete=True)
    move_there_and_back(bench, queue_id)
    await bench.settle()
    assert exists(bench, queue_id), "as far as its master knows it never had a consumer"
    epoch = bench.record(queue_id).epoch
    opened = SessionOpen(queue_id, 5, epoch, 800, has_consumed=True)
    bench.runtime.switchboard.on_queue_frames(N3, [opened, SessionCall(queue_id, 5, 1, "counts", 0)])
    await bench.settle()
    assert not exists(bench, queue_id)


async def test_a_consumer_that_follows_the_mastership_keeps_its_queue(bench: RuntimeBench) -> None:
    queue_id = declare(bench, auto_delete=True)
    gateway = bench.runtime.gateway
    await gateway.consume(next_channel(bench), queue_id, CONSUMER)
    move_there_and_back(bench, queue_id)
    await bench.settle()
    bench.log.commit(NodeUp(N2, Incarnation(1), "n2:1", "n2:2", NEWEST_PROTOCOL))
    await bench.settle()
    assert process_of(bench, queue_id).consumer_count == 1

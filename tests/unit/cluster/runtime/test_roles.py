"""Taking part: not before the cluster knows of this node, and in slices, so that nobody takes it for dead meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from cluster.metadata.codec import encode_request
from cluster.metadata.commands import (
    ChangeTopology,
    ClearPolicy,
    DropMirror,
    MoveMaster,
    NodeDown,
    Request,
    RequestId,
    SetPolicy,
)
from cluster.metadata.records import PolicyRecord
from cluster.runtime.out_of_service import FAILURE_REPEAT_MS
from cluster.runtime.queue_files import DELETE_AGAIN_EVERY_MS
from cluster.runtime.queue_role import MasterRole
from cluster.runtime.roles import TAKE_UP_SLICE_S
from cluster.sessions.messages import SessionCall, SessionOpen
from node.errors import DiskFullError, StorageError
from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.pieces import at_once
from node.queues.events import ConsumerSpec
from node.queues.local_replica import LocalReplica
from node.queues.vhost_store import VHOSTS_NAME
from node.routing.router import Router
from node.store.steps import Steps
from node.topology.commands import Bind, CreateVhost, DeclareExchange, DeclareQueue, DeleteQueue, DeleteVhost
from node.topology.records import QueueRecord
from tests.support.runtime_bench import N1, N2, N3, RuntimeBench
from tests.support.session_network import RecordingSink


@pytest.fixture
async def bench() -> AsyncIterator[RuntimeBench]:
    bench = RuntimeBench()
    await bench.active()
    yield bench
    await bench.close()


async def restarted(bench: RuntimeBench, queue_count: int) -> list[QueueId]:
    """This node was away; it has so many queues, and none of them is open."""
    queue_ids = [bench.declare(f"q{number}") for number in range(queue_count)]
    await bench.settle()
    bench.runtime.queues.close()
    bench.stand_aside()
    return queue_ids


async def opened_per_turn(bench: RuntimeBench) -> list[int]:
    """How many queues each turn of the loop opens while this node takes up its roles."""
    taking = asyncio.create_task(bench.runtime.roles.take_up_all())
    opened = [len(bench.runtime.queues.roles)]
    while not taking.done():
        await asyncio.sleep(0)
        opened.append(len(bench.runtime.queues.roles))
    await taking
    return [after - before for before, after in itertools.pairwise(opened) if after > before]


async def test_roles_are_taken_up_in_slices_of_time(bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the work: the time of a loop need not go on while nobody waits."""
    await restarted(bench, 7)
    original = bench.files.queue_opening

    def open_slowly(
        queue: QueueRecord,
        index_version: int | None,
        on_progress: Callable[[int, int], None],
        *,
        is_compared: bool = False,
    ) -> Steps[LocalReplica]:
        bench.now_s += TAKE_UP_SLICE_S / 2.5
        return original(queue, index_version, on_progress, is_compared=is_compared)

    monkeypatch.setattr(bench.files, "queue_opening", open_slowly)
    assert await opened_per_turn(bench) == [3, 3, 1]


async def test_few_roles_are_taken_up_at_once(bench: RuntimeBench) -> None:
    await restarted(bench, 7)
    assert await opened_per_turn(bench) == [7]


async def test_what_is_committed_between_two_slices_is_followed(bench: RuntimeBench) -> None:
    queue_ids = await restarted(bench, 3)
    bench.look_s = TAKE_UP_SLICE_S
    taking = asyncio.create_task(bench.runtime.roles.take_up_all())
    await asyncio.sleep(0)
    assert list(bench.runtime.queues.roles) == queue_ids[:1]
    later = bench.declare("later")
    for node in (N2, N3):
        bench.log.commit(NodeDown(node, Incarnation(1)))
    await taking
    assert set(bench.runtime.queues.roles) == {*queue_ids, later}
    assert all(isinstance(role, MasterRole) for role in bench.runtime.queues.roles.values())
    assert all(role.record == bench.record(queue_id) for queue_id, role in bench.runtime.queues.roles.items())


async def test_files_of_what_was_deleted_meanwhile_are_looked_for_again_when_there_are_descriptors(
    bench: RuntimeBench,
) -> None:
    """This node was away, and when it took up its roles no directory could be listed."""
    (gone,) = await restarted(bench, 1)
    bench.disk.mkdir(f"/data/{VHOSTS_NAME}/of another")
    bench.log.commit(ChangeTopology(DeleteQueue("/", bench.runtime.records.queue(gone).name, gone), N1))
    bench.disk.open_limit = bench.disk.open_handles
    await bench.runtime.roles.take_up_all()
    bench.disk.open_limit = None
    kept = bench.declare("kept")
    await bench.pass_time(2 * DELETE_AGAIN_EVERY_MS)
    assert not [path for path in bench.disk.snapshot() if f"/queues/{gone}/" in path]
    assert not bench.disk.exists(f"/data/{VHOSTS_NAME}/of another")
    assert kept in bench.runtime.queues.roles, "nothing else goes"


async def test_what_is_deleted_while_files_of_what_was_are_looked_for_is_left_to_who_follows_it(
    bench: RuntimeBench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in no record any more, and open here until its turn has come."""
    gone: list[QueueId] = []
    for vhost in ("/", "other", "third"):
        if vhost != "/":
            bench.log.commit(ChangeTopology(CreateVhost(vhost), N1))
        gone.append(bench.log.commit(ChangeTopology(DeclareQueue(vhost, "gone", durable=True), N1)).queue_id)
    await bench.settle()
    bench.runtime.queues.close()
    bench.stand_aside()
    for vhost, queue_id in zip(("/", "other", "third"), gone, strict=True):
        bench.log.commit(ChangeTopology(DeleteQueue(vhost, "gone", queue_id), N1))
    bench.look_s = TAKE_UP_SLICE_S
    taking = asyncio.create_task(bench.runtime.roles.take_up_all())
    await asyncio.sleep(0)
    for name in "ab":
        bench.log.commit(ChangeTopology(DeclareQueue("other", name, durable=True), N1))
    assert len(bench.runtime.queues.roles) == 2
    bench.log.index += 1
    request_id = RequestId(NodeName("test"), Incarnation(1), bench.log.index)
    payload = encode_request(Request(request_id, ChangeTopology(DeleteVhost("other"), N1)))
    following = bench.runtime.metadata.apply_in_pieces(bench.log.index, payload)
    next(following)
    while bench.runtime.records.is_changing:
        next(following)
    await taking
    assert bench.runtime.queues.roles, "the turn of one is still to come"
    at_once(following)
    await bench.settle()
    assert not bench.runtime.queues.roles
    assert not [path for path in bench.disk.snapshot() if "/queues/" in path], "all of it goes"
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_nothing_is_followed_after_the_end(bench: RuntimeBench) -> None:
    bench.declare("before")
    at_once(bench.runtime.roles.give_up_all())
    bench.declare("after")
    assert not bench.runtime.queues.roles


async def test_policies_that_a_snapshot_brings_hold_at_once(bench: RuntimeBench) -> None:
    """Nobody is told of the commits that it stands for."""
    queue_id = bench.declare()
    group = bench.runtime.metadata
    limited = {"ha-mode": "all", "max-length": 1, "overflow": "reject-publish"}
    bench.log.commit(SetPolicy(PolicyRecord("/", "ha", "^", limited, 0, "all")))
    with_limit = group.state.snapshot()
    bench.log.commit(SetPolicy(PolicyRecord("/", "ha", "^", {"ha-mode": "all"}, 0, "all")))

    def refuses() -> bool:
        process = bench.runtime.queues.process(queue_id)
        assert process is not None
        return process.options.refuses_publishes

    assert not refuses()
    group.restore(with_limit)
    assert refuses()


@pytest.mark.parametrize("error", [StorageError("broken"), DiskFullError("full"), ValueError("a mistake")])
async def test_a_copy_out_of_service_is_forgotten_when_a_snapshot_knows_its_queue_no_more(
    bench: RuntimeBench, error: Exception
) -> None:
    """Nobody is told of the deletion, and nobody is asked for ever to go on without this copy."""
    queue_id = bench.declare()
    queues = bench.runtime.queues
    bench.log.has_quorum = False
    queues.out_of_service(queue_id, error)
    await bench.settle()
    assert queues.is_failed(queue_id)
    bench.stand_aside()
    bench.log.commit(ChangeTopology(DeleteQueue("/", "q"), N1))
    bench.take_part()
    bench.runtime.metadata.restore(bench.runtime.metadata.state.snapshot())
    assert not queues.is_failed(queue_id)
    assert queues.starved() == []
    bench.log.proposed.clear()
    await bench.pass_time(FAILURE_REPEAT_MS)
    assert not [command for command in bench.log.proposed if isinstance(command, MoveMaster | DropMirror)]


@pytest.mark.parametrize("who", ["queues", "gateway"])
async def test_a_mistake_about_a_queue_whose_deletion_a_snapshot_skips_stays_with_it(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    """As of one that is followed: the node goes on, and so does what the snapshot says of other queues."""
    gone = bench.declare("gone")
    channel = bench.runtime.gateway.open_channel(RecordingSink())
    await bench.runtime.gateway.consume(channel, gone, ConsumerSpec("tag", no_ack=False, exclusive=False))
    bench.stand_aside()
    bench.log.commit(ChangeTopology(DeleteQueue("/", "gone"), N1))
    kept = bench.declare("kept")
    bench.take_part()

    def mistaken(_queue: object) -> None:
        raise TypeError("a mistake of ours")

    monkeypatch.setattr(getattr(bench.runtime, who), "queue_deleted", mistaken)
    bench.runtime.metadata.restore(bench.runtime.metadata.state.snapshot())
    assert f"queue {gone} was deleted, and something of it stays here" in caplog.text
    assert isinstance(bench.runtime.queues.roles[kept], MasterRole)


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_nobody_is_expected_at_a_queue_that_is_gone_or_has_another_master(
    bench: RuntimeBench, is_deleted: bool
) -> None:
    queue_id = bench.declare()
    sessions, epoch = bench.runtime.sessions, bench.record(queue_id).epoch
    sessions.receive(N2, SessionOpen(queue_id, 1, epoch, 8, has_consumed=True))
    sessions.receive(N2, SessionCall(queue_id, 1, 1, "counts", 0))
    assert sessions.awaited_queues() == set()
    bench.runtime.queues.out_of_service(queue_id, DiskFullError("full"))
    assert sessions.awaited_queues() == {queue_id}, "this node has room again, perhaps, and opens it"
    if is_deleted:
        bench.log.commit(ChangeTopology(DeleteQueue("/", "q"), N1))
    else:
        bench.log.commit(NodeDown(N1, Incarnation(1)))
        assert bench.record(queue_id).master != N1
    assert sessions.awaited_queues() == set()


async def test_who_knows_of_a_later_master_is_expected_while_this_node_follows_older_records(
    bench: RuntimeBench,
) -> None:
    """The log reaches this node late: it is to be the master soon, and other records of the queue come before that."""
    queue_id = bench.declare(origin=N2)
    before, sessions = bench.record(queue_id), bench.runtime.sessions
    sessions.receive(N3, SessionOpen(queue_id, 1, Epoch(before.epoch + 1), 8, has_consumed=True))
    bench.log.commit(DropMirror(queue_id, before.epoch, N3))
    assert bench.record(queue_id) != before
    assert sessions.awaited_queues() == {queue_id}
    bench.log.commit(MoveMaster(queue_id, before.epoch, N1))
    assert bench.record(queue_id).master == N1
    assert sessions.awaited_queues() == {queue_id}, "it has yet to hear that it is to come again"


async def test_a_queue_waits_for_who_is_expected_though_another_consumer_is_cancelled(bench: RuntimeBench) -> None:
    """It has just been opened again, and that it was consumed is not committed yet."""
    bench.log.commit(ClearPolicy("/", "ha"))  # so there is nobody to hand it over to
    queue_id = bench.log.commit(ChangeTopology(DeclareQueue("/", "q", durable=True, auto_delete=True), N1)).queue_id
    sessions, consumer = bench.runtime.sessions, ConsumerSpec("tag", no_ack=False, exclusive=False)
    sessions.receive(N2, SessionOpen(queue_id, 1, bench.record(queue_id).epoch, 8))
    sessions.receive(N2, SessionCall(queue_id, 1, 1, "consume", 7, consumer))
    bench.runtime.queues.out_of_service(queue_id, DiskFullError("full"))
    bench.runtime.queues.forgive(queue_id)
    bench.runtime.roles.take_up(queue_id)
    process = bench.runtime.queues.process(queue_id)
    assert process is not None
    channel = bench.runtime.gateway.open_channel(RecordingSink())
    process.consume(channel, consumer)
    process.cancel(channel, "tag")
    bench.runtime.queues.run(queue_id)
    assert not process.is_sealed


async def test_nobody_is_expected_at_a_queue_that_a_snapshot_does_not_know(bench: RuntimeBench) -> None:
    queue_id = bench.declare(origin=N2)
    sessions = bench.runtime.sessions
    sessions.receive(N3, SessionOpen(queue_id, 1, bench.record(queue_id).epoch, 8, has_consumed=True))
    assert sessions.awaited_queues() == {queue_id}
    bench.stand_aside()
    bench.log.commit(ChangeTopology(DeleteQueue("/", "q"), N1))
    bench.take_part()
    assert sessions.awaited_queues() == {queue_id}
    bench.runtime.metadata.restore(bench.runtime.metadata.state.snapshot())
    assert sessions.awaited_queues() == set()


async def test_routes_follow_the_policies_that_a_snapshot_brings(bench: RuntimeBench) -> None:
    state = bench.runtime.metadata.state
    router = Router(state.topology, bench.runtime.records.alternate_exchange)
    queue_id = bench.declare("q")
    for command in (
        DeclareExchange("/", "from", "direct"),
        DeclareExchange("/", "other", "fanout"),
        Bind("/", "other", "q", "queue", ""),
    ):
        bench.log.commit(ChangeTopology(command, N1))
    without = state.snapshot()
    other = {"alternate-exchange": "other"}
    bench.log.commit(SetPolicy(PolicyRecord("/", "other", "^from$", other, 1, "exchanges")))
    assert [queue.queue_id for queue in router.route("/", "from", "key", b"\0\0")] == [queue_id]
    assert router.cached("/")
    bench.runtime.metadata.restore(without)
    assert not router.cached("/")
    assert router.route("/", "from", "key", b"\0\0") == ()

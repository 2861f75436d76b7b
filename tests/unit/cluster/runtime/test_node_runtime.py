"""What one node makes of links, silences and commits: a real runtime and metadata state, a fake mesh and a fake log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from cluster.membership.detector import Verdict
from cluster.membership.messages import NodeAlarms
from cluster.metadata.commands import (
    AddMirror,
    ChangeTopology,
    ClearPolicy,
    DropMirror,
    MoveMaster,
    NodeDown,
    NodeUp,
    RequestId,
    TakeService,
)
from cluster.metadata.errors import NoQuorumError
from cluster.mirroring.reports import ReportMirrorStalled
from cluster.raft.config import ProposalRefusedError
from cluster.runtime import membership, node_runtime
from cluster.runtime.housekeeping import FILES_MIN, READMIT_EVERY_TICKS, REPROPOSE_EVERY_TICKS
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.queue_role import MasterRole, MirrorRole
from cluster.sessions.messages import SessionConfirm, SessionCredit, SessionOpen, SessionOpened, SessionReply
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.alarms.registry import Alarm
from node.errors import ConnectionFailure, DiskFullError, OpenFilesError, StorageError
from node.flow.credit import Hop
from node.ids import ChannelKey, Incarnation, NodeName, QueueId
from node.queues.backing_queue import Delivery
from node.queues.events import ConfirmPublished
from node.store.shared.compaction.compaction import Reclaimed
from node.topology.commands import CreateVhost, DeleteQueue
from tests.support.messages import make_message
from tests.support.runtime_bench import N1, N2, N3, RuntimeBench, lose
from tests.support.session_network import RecordingSink

FAILURE = StorageError("no space left on device")


@pytest.fixture
async def bench() -> AsyncIterator[RuntimeBench]:
    bench = RuntimeBench()
    await bench.active()
    yield bench
    await bench.close()


# --- who is down ---


async def test_the_leader_declares_a_dead_peer_down_at_once(bench: RuntimeBench) -> None:
    queue_id = bench.declare("q", N2)
    lose(bench, N2)
    await bench.settle()
    assert bench.downs() == [N2]
    assert bench.record(queue_id).master == N1
    assert isinstance(bench.runtime.queues.roles[queue_id], MasterRole)


async def test_nobody_but_the_leader_declares_anybody_down_until_it_leads(bench: RuntimeBench) -> None:
    bench.log.leader = N3
    lose(bench, N2)
    await bench.pass_time(2000, heard=[N3])
    assert bench.downs() == []
    bench.log.leader = N1
    bench.runtime.membership.leader_changed(N1)
    await bench.settle()
    assert bench.downs() == [N2]


async def test_a_silent_peer_is_declared_down_after_the_timeout(bench: RuntimeBench) -> None:
    timeout_ms = bench.runtime.config.cluster_silence_timeout_ms
    await bench.pass_time(timeout_ms - 100, heard=[N3])
    assert bench.downs() == []
    await bench.pass_time(200, heard=[N3])
    assert bench.downs() == [N2]


async def test_a_peer_that_died_while_its_return_was_being_committed_is_declared_down_again(
    bench: RuntimeBench,
) -> None:
    lose(bench, N2)
    await bench.settle()
    bench.mesh.up_peers.append(N2)
    bench.runtime.switchboard.on_link_up(N2, Incarnation(2))
    lose(bench, N2)
    bench.log.commit(NodeUp(N2, Incarnation(2), "n2:1", "n2:2"))
    await bench.pass_time(100 * REPROPOSE_EVERY_TICKS, heard=[N3])
    assert bench.downs() == [N2, N2]
    assert not bench.runtime.metadata.state.members[N2].is_up


async def test_a_proposal_that_found_no_quorum_is_made_again(bench: RuntimeBench) -> None:
    bench.log.has_quorum = False
    lose(bench, N2)
    await bench.settle()
    assert bench.runtime.metadata.state.members[N2].is_up
    bench.log.has_quorum = True
    await bench.pass_time(100 * REPROPOSE_EVERY_TICKS, heard=[N3])
    assert not bench.runtime.metadata.state.members[N2].is_up


async def test_a_node_that_was_frozen_declares_nobody_down_when_it_wakes(bench: RuntimeBench) -> None:
    await bench.pass_time(500)
    bench.now_ms += 60_000
    bench.tick()
    await bench.pass_time(1000)
    assert bench.downs() == []
    assert bench.runtime.membership.verdict(N2) is Verdict.UP


async def test_a_node_declared_down_while_alive_leaves_its_queues_and_announces_itself(bench: RuntimeBench) -> None:
    mastered, mirrored = bench.declare("mastered", N1), bench.declare("mirrored", N2)
    bench.log.commit(NodeDown(N1, Incarnation(1)))
    assert bench.record(mastered).master == N2
    assert not bench.runtime.queues.roles, "it holds nothing that counts"
    await bench.settle()
    assert bench.runtime.metadata.state.members[N1].is_up
    for queue_id in (mastered, mirrored):
        assert isinstance(bench.runtime.queues.roles[queue_id], MirrorRole)
        assert N1 not in bench.record(queue_id).synchronised


@pytest.fixture
def nobody_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of the bench say nothing of themselves: a stop need not wait for it."""
    monkeypatch.setattr(node_runtime, "END_KNOWN_S", 0.0)
    monkeypatch.setattr(node_runtime, "HANDED_OVER_S", 0.0)


@pytest.mark.usefixtures("nobody_takes_over")
async def test_an_orderly_stop_tells_the_cluster_and_does_not_come_back(bench: RuntimeBench) -> None:
    queue_id = bench.declare()
    await bench.runtime.stop()
    assert bench.record(queue_id).master == N2
    assert not bench.runtime.metadata.state.members[N1].is_up
    assert bench.log.proposed[-1] == NodeDown(N1, Incarnation(1), "shutdown")


@pytest.mark.usefixtures("nobody_takes_over")
async def test_nobody_waits_for_a_link_behind_a_stop(bench: RuntimeBench) -> None:
    """The links end after it, and nobody is told."""
    bench.declare()
    links = bench.runtime.links
    links.deliver(N2, SessionReply(QueueId(1), 1, 1), 1)
    await bench.settle()
    bench.mesh.congested.add(N2)
    gone_on: list[NodeName] = []
    links.when_room(N2, "somebody", lambda: gone_on.append(N2))
    links.check_invariants()
    await bench.runtime.stop()
    bench.mesh.congested.clear()
    links.check_invariants()
    links.room_came(N2)
    await bench.settle()
    assert gone_on == []


async def test_the_last_node_to_stop_waits_for_nobody(bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "GOODBYE_TIMEOUT_S", 1e9)
    bench.log.is_silent = True
    lose(bench, N2)
    stopping = asyncio.create_task(bench.runtime.stop())
    await bench.settle()
    assert not stopping.done(), "n3 may still answer"
    lose(bench, N3)
    await stopping


# --- mirrors and disks ---


async def test_a_stalled_mirror_is_dropped_and_offered_its_place_again(bench: RuntimeBench) -> None:
    queue_id = bench.declare()
    bench.runtime.proposals.report(bench.record(queue_id), ReportMirrorStalled(N2))
    await bench.settle()
    assert bench.record(queue_id).mirrors == (N3,)
    assert any(isinstance(command, DropMirror) for command in bench.log.proposed)
    await bench.pass_time(100 * READMIT_EVERY_TICKS)
    assert bench.record(queue_id).mirrors == (N3, N2)
    assert bench.record(queue_id).synchronised == (N3,)
    assert any(isinstance(command, AddMirror) for command in bench.log.proposed)


async def test_a_master_whose_disk_fails_hands_over_to_its_oldest_mirror_and_leaves(bench: RuntimeBench) -> None:
    queue_id = bench.declare()
    bench.runtime.queues.out_of_service(queue_id, FAILURE)
    await bench.settle()
    record = bench.record(queue_id)
    assert (record.master, record.epoch) == (N2, 2)
    assert N1 not in (record.master, *record.mirrors), "a copy that cannot be written is no mirror"
    kinds = [type(command) for command in bench.log.proposed if not isinstance(command, NodeUp)]
    assert kinds == [MoveMaster, DropMirror]


async def test_a_mirror_whose_disk_fails_leaves_the_record(bench: RuntimeBench) -> None:
    queue_id = bench.declare("q", N2)
    bench.runtime.queues.out_of_service(queue_id, FAILURE)
    await bench.settle()
    assert bench.record(queue_id).mirrors == (N3,)


def mistake(*_arguments: object, **_options: object) -> None:
    raise TypeError("a mistake of ours")


async def test_a_commit_that_cannot_be_followed_stops_the_node(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.runtime.sessions, "node_lost", mistake)
    bench.log.commit(NodeDown(N2, Incarnation(1)))
    assert len(bench.fatal) == 1
    assert "a mistake of ours" in bench.fatal[0]


async def test_clients_hear_of_a_deletion_although_something_of_the_queue_stays(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_id = bench.declare()
    sink = RecordingSink()
    channel = bench.runtime.gateway.open_channel(sink)
    bench.runtime.gateway.publish(channel, queue_id, [make_message(1)], [1])
    monkeypatch.setattr(bench.runtime.queues, "queue_deleted", mistake)
    bench.log.commit(ChangeTopology(DeleteQueue("/", "q", queue_id), N2))
    assert sink.confirmed == [1], "a publish to a deleted queue counts as confirmed"


async def test_channels_hear_of_a_new_master_although_the_copy_here_cannot_follow_it(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_id = bench.declare("q", N2)
    channel = bench.runtime.gateway.open_channel(RecordingSink())
    bench.runtime.gateway.publish(channel, queue_id, [make_message(1)], [1])
    monkeypatch.setattr(bench.runtime.queues, "follow", mistake)
    bench.log.commit(MoveMaster(queue_id, bench.record(queue_id).epoch, N3))
    await bench.settle()
    assert [node for node, message in bench.mesh.sent if isinstance(message, SessionOpen)] == [N2, N3]
    assert bench.fatal == []


@pytest.mark.parametrize("method", ["follow", "queue_deleted"])
async def test_a_mistake_about_one_queue_does_not_stop_the_node(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bench.runtime.queues, method, mistake)
        queue_id = bench.declare()
        bench.log.commit(ChangeTopology(DeleteQueue("/", "q", queue_id), N2))
    assert bench.fatal == []
    assert "queue 'q' in vhost '/'" in caplog.text
    assert "a mistake of ours" in caplog.text
    assert isinstance(bench.runtime.queues.roles[bench.declare("next")], MasterRole)


async def test_a_queue_that_cannot_be_opened_is_handed_over(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bench.runtime.records, "queue_options", mistake)
        queue_id = bench.declare()
    await bench.settle()
    record = bench.record(queue_id)
    assert record.master == N2
    assert N1 not in record.mirrors
    assert bench.fatal == []


async def test_a_route_that_breaks_takes_its_queue_out_of_service_here(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_id = bench.declare()
    with monkeypatch.context() as patch:
        patch.setattr(bench.runtime.gateway, "mastership_changed", mistake)
        bench.log.commit(DropMirror(queue_id, bench.record(queue_id).epoch, N3))
    await bench.settle()
    assert bench.record(queue_id).master == N2
    assert bench.fatal == []


async def test_a_start_gets_past_a_queue_that_cannot_be_opened(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = bench.declare("bad"), bench.declare("good")
    original = bench.runtime.records.queue_options
    bench.runtime.queues.close()
    bench.stand_aside()
    monkeypatch.setattr(
        bench.runtime.records, "queue_options", lambda queue: mistake() if queue.queue_id == bad else original(queue)
    )
    await bench.runtime.activate()
    await bench.settle()
    assert bench.record(bad).master == N2
    assert isinstance(bench.runtime.queues.roles[good], MasterRole)
    assert bench.fatal == []


async def test_a_message_that_cannot_be_sent_to_one_node_resets_that_link_only(bench: RuntimeBench) -> None:
    bench.mesh.broken = {N2}
    for node in (N2, N3):
        bench.runtime.links.send(node, SessionOpen(QueueId(1), 1, bench.record(bench.declare(f"q-{node}")).epoch, 800))
    await bench.settle()
    assert bench.mesh.reset == [N2]
    assert N3 in [node for node, message in bench.mesh.sent if isinstance(message, SessionOpen)]


# --- activation and effects ---


async def test_what_was_deleted_while_the_node_was_away_is_removed_when_it_returns(bench: RuntimeBench) -> None:
    kept, deleted = bench.declare("kept"), bench.declare("deleted")
    bench.runtime.queues.close()
    bench.stand_aside()
    bench.log.commit(ChangeTopology(DeleteQueue("/", "deleted", deleted), N2))
    await bench.runtime.activate()
    assert set(bench.runtime.queues.roles) == {kept}
    assert not any(f"/queues/{deleted}/" in path for path in bench.disk.snapshot())


async def test_effects_go_to_the_channels_of_this_node_and_of_others(bench: RuntimeBench) -> None:
    queue_id = bench.declare()
    queue = bench.runtime.records.queue(queue_id)
    bench.runtime.switchboard.on_queue_frames(N2, [SessionOpen(queue_id, 5, bench.record(queue_id).epoch, 800)])
    here: list[object] = []
    bench.runtime.gateway.local_effects = lambda queue_id, effects: here.extend(effects)
    mine = ConfirmPublished(ChannelKey(N1, 1), [1])
    bench.runtime.effects.dispatch(queue, [mine, ConfirmPublished(ChannelKey(N2, 9), [2, 3])])
    await bench.settle()
    assert here == [mine]
    confirms = [(node, message) for node, message in bench.mesh.sent if isinstance(message, SessionConfirm)]
    assert confirms == [(N2, SessionConfirm(queue_id, 5, 9, [2, 3]))]


async def test_credit_and_congestion_of_another_node_reach_the_channels_here(bench: RuntimeBench) -> None:
    queue_id, sink, gateway = bench.declare("q", N2), RecordingSink(), bench.runtime.gateway
    channel = gateway.open_channel(sink)
    gateway.publish(channel, queue_id, [make_message(1)], [1])
    await bench.settle()
    (opening,) = [message for _, message in bench.mesh.sent if isinstance(message, SessionOpen)]
    assert opening.more_credit_after == bench.runtime.config.cluster_credit.more_after
    bench.runtime.switchboard.on_queue_frames(N2, [SessionOpened(queue_id, opening.session)])
    credit = bench.runtime.config.cluster_credit.initial
    counters = range(2, credit + 1)
    gateway.publish(channel, queue_id, [make_message(each) for each in counters], counters)
    assert sink.waits()
    bench.runtime.switchboard.on_queue_frames(N2, [SessionCredit(queue_id, opening.session, channel.channel_id, 800)])
    assert not sink.waits()
    bench.mesh.congested.add(N2)
    gateway.publish(channel, queue_id, [make_message(credit + 1)], [credit + 1])
    assert sink.waits()
    bench.mesh.congested.discard(N2)
    bench.runtime.switchboard.on_link_uncongested(N2)
    assert not sink.waits()


async def test_the_time_of_the_credit_flow_goes_on(bench: RuntimeBench) -> None:
    await bench.pass_time(300)
    assert bench.runtime.flow.now_ms == bench.now_ms == 300


async def test_a_failed_proposal_is_an_answer_and_not_an_accident(bench: RuntimeBench) -> None:
    bench.log.has_quorum = False
    with pytest.raises(NoQuorumError):
        await bench.runtime.metadata.change(NodeDown(N2, Incarnation(1)))


async def test_a_client_is_told_when_nothing_can_be_proposed(
    bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_payload: bytes, _request_id: RequestId) -> None:
        raise ProposalRefusedError("20000 proposals of this node wait already")

    monkeypatch.setattr(bench.log, "propose", refuse)
    with pytest.raises(ConnectionFailure, match="INTERNAL_ERROR - 20000 proposals"):
        await bench.runtime.metadata.submit(CreateVhost("another"))


# --- alarms ---


def alarms_sent(bench: RuntimeBench) -> list[tuple[NodeName, NodeAlarms]]:
    return [(peer, message) for peer, message in bench.mesh.sent if isinstance(message, NodeAlarms)]


async def test_an_alarm_is_said_to_every_peer_when_it_changes_and_to_each_at_link_up(bench: RuntimeBench) -> None:
    bench.probe.used_bytes = bench.runtime.alarms.memory.limit_bytes + 1
    await bench.pass_time(200)
    raised = NodeAlarms((Alarm.MEMORY,))
    assert alarms_sent(bench) == [(N2, raised), (N3, raised)]
    bench.runtime.switchboard.on_link_up(N3, Incarnation(2))
    await bench.settle()
    assert alarms_sent(bench)[2:] == [(N3, raised)]
    bench.probe.used_bytes = 0
    await bench.pass_time(2000)
    cleared = NodeAlarms(())
    assert alarms_sent(bench)[3:] == [(N2, cleared), (N3, cleared)]
    bench.runtime.switchboard.on_link_up(N2, Incarnation(2))
    await bench.settle()
    assert alarms_sent(bench)[5:] == [(N2, cleared)], "the peer may remember an alarm that is over"


async def test_an_alarm_of_a_peer_blocks_here_until_the_peer_is_declared_down(bench: RuntimeBench) -> None:
    reasons: list[str] = []
    bench.runtime.alarms.on_reason = reasons.append
    bench.runtime.switchboard.on_queue_frames(N2, [NodeAlarms((Alarm.DISK,))])
    assert reasons == ["low on disk"]
    bench.mesh.up_peers.remove(N2)
    bench.runtime.switchboard.on_link_down(N2, "reset")
    await bench.settle()
    assert reasons == ["low on disk"], "nobody knows yet whether it lives"
    bench.runtime.switchboard.on_peer_refused(N2)
    await bench.settle()
    assert reasons == ["low on disk", ""]


async def test_a_peer_that_was_declared_down_by_mistake_blocks_again(bench: RuntimeBench) -> None:
    reasons: list[str] = []
    bench.runtime.alarms.on_reason = reasons.append
    bench.runtime.switchboard.on_queue_frames(N2, [NodeAlarms((Alarm.DISK,))])
    bench.log.commit(NodeDown(N2, Incarnation(1)))
    bench.log.commit(NodeUp(N2, Incarnation(1), "n2:1", "n2:2"))
    assert reasons == ["low on disk", "", "low on disk"]


async def test_limits_set_by_an_operator_hold_at_once(bench: RuntimeBench) -> None:
    bench.runtime.set_memory_watermark(MemoryWatermark(0.0))
    bench.runtime.set_disk_free_limit(DiskFreeLimit(2**60))
    assert bench.runtime.alarms.registry.reason == "low on memory & disk"
    assert bench.runtime.alarms.listing() == [
        {"resource": "memory", "node": "n1"},
        {"resource": "disk", "node": "n1"},
    ]


async def test_a_peers_next_life_begins_without_the_alarms_of_its_last(bench: RuntimeBench) -> None:
    reasons: list[str] = []
    bench.runtime.alarms.on_reason = reasons.append
    bench.runtime.switchboard.on_queue_frames(N2, [NodeAlarms((Alarm.DISK,))])
    lose(bench, N2)
    await bench.settle()
    bench.mesh.up_peers.append(N2)
    bench.runtime.switchboard.on_link_up(N2, Incarnation(2))
    lose(bench, N2)
    bench.log.commit(NodeUp(N2, Incarnation(2), "n2:1", "n2:2"))
    bench.runtime.switchboard.on_queue_frames(N3, [NodeAlarms((Alarm.DISK,))])
    bench.log.commit(NodeDown(N3, Incarnation(1)))
    bench.mesh.up_peers.remove(N3)
    bench.runtime.switchboard.on_link_down(N3, "reset")
    bench.log.commit(NodeUp(N3, Incarnation(2), "n3:1", "n3:2"))
    assert reasons == ["low on disk", "", "low on disk", ""]


# --- a full disk ---

FULL = DiskFullError("no space left on device")


class ConfirmSink:
    """Implements `node.queues.gateway.QueueChannelSink` for a channel that only publishes."""

    def __init__(self) -> None:
        self.confirmed: list[int] = []
        self.has_heard = asyncio.Event()

    def queue_delivered(
        self, queue_id: QueueId, session: int, consumer_tag: str, deliveries: Sequence[Delivery]
    ) -> None: ...

    def queue_confirmed(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None:
        self.confirmed += publish_seqs
        self.has_heard.set()

    def queue_rejected(self, queue_id: QueueId, publish_seqs: Sequence[int]) -> None: ...

    def queue_cancelled_consumer(self, queue_id: QueueId, consumer_tag: str) -> None: ...

    def queue_session_over(self, queue_id: QueueId, session: int) -> None: ...

    def queue_hop_changed(self, hop: Hop) -> None: ...

    async def wait(self) -> list[int]:
        """Every confirm so far, after the next."""
        async with asyncio.timeout(10):
            await self.has_heard.wait()
        self.has_heard.clear()
        return self.confirmed


async def test_what_found_no_room_is_written_and_confirmed_when_there_is_some(bench: RuntimeBench) -> None:
    bench.log.commit(ClearPolicy("/", "ha"))
    queue_id, sink = bench.declare(), ConfirmSink()
    gateway = bench.runtime.gateway
    channel = gateway.open_channel(sink)
    gateway.publish(channel, queue_id, [make_message(1), make_message(2)], [1, 2])
    assert await sink.wait() == [1, 2]

    bench.disk.capacity_bytes = bench.disk.used_bytes
    bench.probe.free_bytes = 0
    gateway.publish(channel, queue_id, [make_message(3), make_message(4)], [3, 4])
    await bench.pass_time(5000)
    role = bench.runtime.queues.roles[queue_id]
    assert role.local.is_disk_full
    assert (sink.confirmed, bench.fatal) == ([1, 2], [])

    bench.disk.capacity_bytes = 1 << 40
    bench.probe.free_bytes = 10**12
    await bench.pass_time(1000)
    assert await sink.wait() == [1, 2, 3, 4]
    assert bench.runtime.queues.roles[queue_id] is role, "it never left its service"


async def test_a_mirror_that_left_for_want_of_room_asks_to_be_taken_back(bench: RuntimeBench) -> None:
    queue_id = bench.declare()
    bench.runtime.set_disk_free_limit(DiskFreeLimit(10**9))
    bench.probe.free_bytes = 10**9 - 1
    bench.runtime.queues.out_of_service(queue_id, FULL)
    await bench.settle()
    moved = bench.record(queue_id)
    assert moved.master == N2
    bench.log.commit(TakeService(N2, ((queue_id, moved.epoch),)))
    await bench.pass_time(2000)
    assert N1 not in bench.record(queue_id).mirrors, "room enough, but not enough for the operator"
    bench.probe.free_bytes = 10**9
    await bench.pass_time(1000)
    assert N1 in bench.record(queue_id).mirrors
    assert isinstance(bench.runtime.queues.roles[queue_id], MirrorRole)


async def test_a_copy_that_counts_as_synchronised_is_not_opened_before_the_cluster_has_dropped_it(
    bench: RuntimeBench,
) -> None:
    queue_id = bench.declare()
    assert bench.record(queue_id).synchronised == (N2, N3)
    bench.log.is_silent = True
    bench.runtime.queues.out_of_service(queue_id, FULL)
    await bench.pass_time(3000)
    assert queue_id not in bench.runtime.queues.roles
    assert bench.runtime.queues.starved() == [queue_id]


async def test_a_queue_that_found_no_descriptor_is_opened_again_when_there_are_some(bench: RuntimeBench) -> None:
    bench.log.commit(ClearPolicy("/", "ha"))
    queue_id = bench.declare()
    bench.probe.free_descriptors = FILES_MIN - 1
    bench.runtime.queues.out_of_service(queue_id, OpenFilesError("Too many open files"))
    await bench.pass_time(5000)
    assert queue_id not in bench.runtime.queues.roles
    bench.probe.free_descriptors = FILES_MIN
    await bench.pass_time(1000)
    assert isinstance(bench.runtime.queues.roles[queue_id], MasterRole)


async def test_a_disk_that_is_broken_is_not_mended_by_room(bench: RuntimeBench) -> None:
    bench.log.commit(ClearPolicy("/", "ha"))
    queue_id = bench.declare()
    bench.runtime.queues.out_of_service(queue_id, FAILURE)
    await bench.pass_time(5000)
    assert queue_id not in bench.runtime.queues.roles


async def test_a_deleted_queue_waits_for_no_room(bench: RuntimeBench) -> None:
    queue_id = bench.declare()
    bench.runtime.queues.out_of_service(queue_id, FULL)
    bench.log.commit(ChangeTopology(DeleteQueue("/", "q", queue_id), N1))
    assert bench.runtime.queues.starved() == []


async def test_every_tick_reclaims_some_garbage(bench: RuntimeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[NodeQueueFiles] = []

    def reclaim(files: NodeQueueFiles) -> Reclaimed:
        steps.append(files)
        return Reclaimed(has_worked=False, is_urgent=False)

    monkeypatch.setattr(NodeQueueFiles, "reclaim", reclaim)
    await bench.pass_time(500)
    assert steps == [bench.files] * 5

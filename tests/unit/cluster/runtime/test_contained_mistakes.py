"""A mistake of ours that concerns one queue takes that queue out of service on this node, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.mirror import MirrorReplica
from cluster.runtime import queue_set
from cluster.runtime.queue_files import NodeQueueFiles
from node.pieces import at_once
from node.queues.digests import SegmentDigests
from node.queues.local_replica import LocalReplica
from node.queues.options import QueueOptions
from node.queues.queue_process import QueueProcess
from node.queues.stages import Stages
from node.queues.vhost_store import VhostStore
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import SimulatedDisk
from node.store.shared.config import StoreConfig
from node.store.steps import run_through
from node.topology.records import QueueRecord
from tests.support.queue_sets import N1, N2, QueueSetNetwork, QueueSetNode, mastership, queue_record
from tests.support.stores import DATA_DIRECTORY, open_at_once, run_sync_round

Q, OTHER = queue_record(7), queue_record(8)


def mistake(*_arguments: object, **_options: object) -> Any:
    raise TypeError("a mistake of ours")


def only_for_q(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a queue's object that is mistaken about queue ``Q`` alone."""

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        record: QueueRecord | None = getattr(self, "record", None)
        if isinstance(record, QueueRecord) and record.queue_id != Q.queue_id:
            return original(self, *arguments, **options)
        return mistake()

    return method


def both() -> QueueSetNode:
    """One node that masters two queues."""
    node = QueueSetNetwork(N1)[N1]
    for queue in (Q, OTHER):
        node.queues.follow(queue, mastership(queue, N1))
    return node


def is_contained(node: QueueSetNode, caplog: pytest.LogCaptureFixture) -> None:
    """``Q`` is out of service, the cluster was told once, the log says which queue and what to do; the other works."""
    assert node.role(Q) == "none"
    assert [record.queue_id for record in node.failed] == [Q.queue_id]
    assert f"{Q.queue_name}: this node's copy is out of service" in caplog.text
    assert "a mistake of ours" in caplog.text
    assert "A restart of this node opens it again" in caplog.text
    node.queues.check_invariants()
    before = node.confirmed()
    node.publish(OTHER, 99)
    node.turn()
    node.sync()
    node.turn()
    assert node.confirmed() == [*before, 99]


def test_a_queue_whose_options_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = QueueSetNetwork(N1)[N1]
    monkeypatch.setattr(node, "queue_options", lambda queue: mistake() if queue is Q else QueueOptions())
    for queue in (Q, OTHER):
        node.queues.follow(queue, mastership(queue, N1))
    is_contained(node, caplog)


@pytest.mark.parametrize("name", ["recovered", "QueueProcess"])
def test_a_queue_that_was_opened_and_plays_no_role_is_closed_again(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = QueueSetNetwork(N1)[N1]
    node.queues.follow(OTHER, mastership(OTHER, N1))
    with monkeypatch.context() as patch:
        patch.setattr(queue_set, name, mistake)
        node.queues.follow(Q, mastership(Q, N1))
    is_contained(node, caplog)
    node.queues.follow(Q, mastership(Q, N2, epoch=2))  # this node is out of the record
    node.queues.follow(Q, mastership(Q, N1, epoch=3))  # and back
    assert node.role(Q) == "master"


def test_a_queue_that_cannot_become_a_mirror(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    network = QueueSetNetwork(N1, N2)
    network[N2].queues.follow(OTHER, mastership(OTHER, N2))
    monkeypatch.setattr(queue_set, "MirrorReplica", mistake)
    network.follow(Q, mastership(Q, N1, N2))
    is_contained(network[N2], caplog)
    assert network[N1].role(Q) == "master"


def test_a_mirror_that_cannot_be_promoted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    network = QueueSetNetwork(N1, N2)
    network.follow(Q, mastership(Q, N1, N2))
    network[N2].queues.follow(OTHER, mastership(OTHER, N2))
    network.pump()
    monkeypatch.setattr(MirrorReplica, "promote", mistake)
    network[N2].queues.follow(Q, mastership(Q, N2, epoch=2))
    is_contained(network[N2], caplog)


def test_a_queue_that_breaks_when_it_is_drained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = both()
    node.publish(Q, 1)
    monkeypatch.setattr(QueueProcess, "drain", only_for_q(QueueProcess.drain))
    node.turn()
    is_contained(node, caplog)


def test_a_queue_that_breaks_at_a_change_of_policy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = both()
    monkeypatch.setattr(node, "queue_options", lambda queue: mistake() if queue is Q else QueueOptions(max_length=5))
    at_once(node.queues.policy_changed())
    is_contained(node, caplog)
    assert node.process(OTHER).options.max_length == 5


def test_a_mirror_that_breaks_at_what_its_master_says(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = QueueSetNetwork(N1, N2)
    network.follow(Q, mastership(Q, N1, N2))
    network[N2].queues.follow(OTHER, mastership(OTHER, N2))
    network.pump()
    monkeypatch.setattr(MirrorReplica, "receive", mistake)
    network[N1].publish(Q, 1)
    network.pump()
    is_contained(network[N2], caplog)


@pytest.mark.parametrize("event", ["up", "down"])
def test_a_queue_that_breaks_when_a_link_comes_or_goes(
    event: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = both()
    broken = node.queues.roles[Q.queue_id]
    original = getattr(MirroredQueue, f"mirror_link_{event}")

    def fail(self: MirroredQueue, peer: Any) -> None:
        if self.local is broken.local:
            mistake()
        original(self, peer)

    monkeypatch.setattr(MirroredQueue, f"mirror_link_{event}", fail)
    getattr(node.queues, f"link_{event}")(N2)
    is_contained(node, caplog)


def test_a_queue_that_cannot_even_be_closed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    node = both()
    with monkeypatch.context() as patch:
        patch.setattr(LocalReplica, "terminate", mistake)
        node.queues.out_of_service(Q.queue_id, TypeError("a mistake of ours"))
    is_contained(node, caplog)
    assert "its files could not be closed cleanly" in caplog.text
    node.queues.queue_deleted(Q)
    assert "its files could not be deleted" in caplog.text


def test_a_mistake_about_a_queue_that_is_not_here_is_said(caplog: pytest.LogCaptureFixture) -> None:
    node = both()
    node.queues.out_of_service(queue_record(9).queue_id, TypeError("a mistake of ours"))
    assert "a mistake of ours" in caplog.text
    assert node.failed == []


def test_a_queue_that_fails_as_time_passes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    network = QueueSetNetwork(N1, N2)
    for queue in (Q, OTHER):
        network.follow(queue, mastership(queue, N1, N2))
    network.pump()
    node = network[N1]
    ticked: list[int] = []
    original = MirroredQueue.tick

    def tick(self: MirroredQueue, now_ms: int) -> None:
        if self.record.queue_id == Q.queue_id:
            mistake()
        ticked.append(self.record.queue_id)
        original(self, now_ms)

    monkeypatch.setattr(MirroredQueue, "tick", tick)
    node.queues.tick(1000)
    node.queues.tick(2000)
    assert ticked == [OTHER.queue_id, OTHER.queue_id]
    assert caplog.text.count("this node's copy is out of service") == 1


def test_a_queue_whose_share_of_memory_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    node = both()
    monkeypatch.setattr(LocalReplica, "ram_duration_s", mistake)
    assert node.queues.paging.ram_durations_s([Q.queue_id, OTHER.queue_id], 1000) == []
    assert not node.queues.roles


def test_a_copy_that_met_a_mistake_is_as_good_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays complete until another master goes on without it, and even then its files stay."""
    network = QueueSetNetwork(N1, N2)
    network.follow(Q, mastership(Q, N1, N2))
    network[N1].publish(Q, 1)
    network.pump()
    with monkeypatch.context() as patch:
        patch.setattr(QueueProcess, "drain", mistake)
        network[N1].publish(Q, 2)
        network[N1].turn()
    assert network[N1].role(Q) == "none"
    assert not network[N1].is_damaged
    network.follow(Q, mastership(Q, N2, N1, epoch=2, synchronised=()))
    network.follow(Q, mastership(Q, N2, epoch=2))
    assert network[N1].has_files(Q)
    assert network[N1].role(Q) == "none"


def test_a_copy_whose_disk_failed_is_deleted_when_nobody_can_need_it() -> None:
    network = QueueSetNetwork(N1, N2)
    network.follow(Q, mastership(Q, N1, N2))
    network[N1].publish(Q, 1)
    network.pump()
    network[N1].disk.fail_writes = f"/queues/{Q.queue_id}/"
    network[N1].publish(Q, 2)
    network.pump()
    assert network[N1].is_damaged
    network[N1].disk.fail_writes = None
    complete = mastership(Q, N2, epoch=2)
    network.follow(Q, replace(complete, complete=(N2, N1)))
    assert network[N1].has_files(Q), "the record still counts on it"
    network.follow(Q, complete)
    assert not network[N1].has_files(Q)


@pytest.mark.parametrize("role", ["master", "mirror"])
def test_a_queue_of_which_nothing_can_be_written(
    role: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody called it who could be told, and the group commit has others to write."""
    network = QueueSetNetwork(N1, N2)
    for queue in (Q, OTHER):
        network.follow(queue, mastership(queue, N1, N2))
    network.pump()
    node = network[N1 if role == "master" else N2]
    monkeypatch.setattr(node.queues.roles[Q.queue_id].local.engine.content.index, "flush", mistake)
    for queue in (Q, OTHER):
        network[N1].publish(queue, 1)
    network.pump()
    assert node.role(Q) == "none"
    assert not node.is_damaged, "what is on the disk is as good as before"
    assert caplog.text.count("this node's copy is out of service") == 1
    assert "a mistake of ours" in caplog.text
    assert [each.queue_id for each in node.failed] == [Q.queue_id]
    assert network[N1].confirmed() == [1], "the other queue has its message on both nodes"


@pytest.mark.parametrize("what", ["page_out", "warm"])
def test_a_queue_that_cannot_be_cared_for(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = both()
    local = node.queues.roles[Q.queue_id].local
    if what == "page_out":
        local.set_lazy(True)
        monkeypatch.setattr(Stages, "page_out", mistake)
    else:
        monkeypatch.setattr(LocalReplica, "wants_warming", property(lambda self: self is local))
        monkeypatch.setattr(SegmentDigests, "warm", mistake)
    node.files.maintain(1000)
    node.files.maintain(2000)
    node.turn()
    is_contained(node, caplog)


def test_a_mistake_about_a_queue_that_waits_to_be_deleted_is_none_of_the_opening_of_its_vhost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk()
    files = NodeQueueFiles(disk, DATA_DIRECTORY, GroupCommit(), StoreConfig(), lambda: 0.0)
    opening = files.vhost_opening(Q.vhost)
    files.delete_queue(Q)
    assert opening is not None
    with monkeypatch.context() as patch:
        patch.setattr(VhostStore, "delete_queue_directory", mistake)
        run_through(opening)
    assert f"the files of queue {Q.queue_id} could not be deleted" in caplog.text
    assert open_at_once(files, Q).ready == 0
    files.close()


def test_a_mistake_in_closing_one_vhost_keeps_no_other_from_a_clean_end(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()

    def start() -> NodeQueueFiles:
        commit = GroupCommit()
        files = NodeQueueFiles(disk, DATA_DIRECTORY, commit, StoreConfig(), lambda: 0.0)
        queues = [open_at_once(files, queue) for queue in (Q, replace(OTHER, vhost="other"))]
        run_sync_round(commit)
        for queue in queues:
            queue.terminate()
        return files

    files = start()
    with monkeypatch.context() as patch:
        patch.setattr(files._vhosts[Q.vhost]._stores.persistent, "close", mistake)
        files.close()
    assert disk.open_handles == 0
    assert [store.store_recovery.clean for store in start()._vhosts.values()] == [False, True]

"""Queues that a crash left come back in slices: what happens meanwhile, in which order, and what a stop or crash in the
middle leaves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.runtime import recoveries
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.recoveries import BEGUN_MAX
from node.errors import StorageError
from node.pieces import at_once
from node.queues.options import QueueOptions
from node.store.disk.simulated import CrashStyle
from node.store.index.index import ENTRIES_PER_STEP
from node.topology.records import QueueRecord
from tests.support.amounts import few_fast, slow
from tests.support.messages import make_message
from tests.support.queue_sets import CLIENT, N1, N2, QueueSetNetwork, QueueSetNode, mastership, pair, queue_record

Q, SMALL, OTHER_VHOST = queue_record(7), queue_record(8), replace(queue_record(9), vhost="other")
COUNT = 3 * ENTRIES_PER_STEP


@pytest.fixture(autouse=True)
def a_step_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recoveries, "SLICE_S", 0)


def crashed_node(count: int = COUNT, *, small: int = 1, version: int = 2) -> QueueSetNode:
    """Its process was killed and runs again; nothing is open yet. `Q` has so many messages, `SMALL` fewer, and one of
    each is in the shared store."""
    node = QueueSetNetwork(N1)[N1]
    node.options = QueueOptions(index_version=version)
    for queue in (Q, SMALL):
        node.queues.follow(queue, mastership(queue, N1))
    node.publish(Q, 1, count - 1)
    node.publish(SMALL, 1, small - 1)
    for queue in (Q, SMALL):
        node.process(queue).publish(CLIENT, [make_message(count + queue.queue_id, body=bytes(5000))], [count])
        node.queues.touch(queue.queue_id)
    node.sync()
    crash(node)
    return node


def crash(node: QueueSetNode, style: CrashStyle = CrashStyle.DROP, seed: int = 0) -> None:
    node.disk.crash(style, random.Random(seed))
    node.start()


def crashed_with(queues: Iterable[QueueRecord], count: int) -> QueueSetNode:
    """So many messages in each; nothing is open yet."""
    node = QueueSetNetwork(N1)[N1]
    for queue in queues:
        node.queues.follow(queue, mastership(queue, N1))
        node.publish(queue, 1, count)
    node.sync()
    crash(node)
    return node


def one_turn(node: QueueSetNode) -> None:
    """What is scheduled now, and not what follows from it."""
    for _ in range(len(node.pending)):
        node.pending.popleft()()
    node.queues.check_invariants()


def turns_until(node: QueueSetNode, is_over: Callable[[], bool]) -> int:
    turns = 0
    while not is_over():
        assert node.pending, "something goes on"
        one_turn(node)
        turns += 1
    return turns


def is_master(node: QueueSetNode) -> bool:
    return node.queues.process(Q.queue_id) is not None


def test_a_queue_comes_back_in_steps_and_the_loop_turns_between_them() -> None:
    node = crashed_node()
    record = mastership(Q, N1)
    node.queues.follow(Q, record)
    assert not is_master(node)
    assert node.queues.recovered_percent(Q.queue_id) == 0
    assert turns_until(node, lambda: is_master(node)) > COUNT // ENTRIES_PER_STEP
    assert node.began == [record], "the channels of this node are told"
    assert node.queues.recovered_percent(Q.queue_id) is None
    assert node.depth(Q) == COUNT
    node.consume(Q)
    node.turn()
    assert node.delivered()


def test_progress_is_told_in_percent_of_what_was_read() -> None:
    node = QueueSetNetwork(N1)[N1]
    node.queues.follow(Q, mastership(Q, N1))
    for first in range(1, 8 * 4096, 4096):
        node.publish(Q, first, 4096)
        node.turn()
        node.sync()
    crash(node)
    node.queues.follow(Q, mastership(Q, N1))
    said: set[int | None] = set()
    while not is_master(node):
        said.add(node.queues.recovered_percent(Q.queue_id))
        one_turn(node)
    assert {0, 12, 50, 87} <= said


def test_what_needs_no_reading_is_open_at_once_while_another_recovers() -> None:
    node = crashed_node()
    node.queues.follow(Q, mastership(Q, N1))
    turns_until(node, lambda: Q.queue_id in node.queues._recoveries._begun)
    new = queue_record(10)
    node.queues.follow(new, mastership(new, N1))
    node.publish(new, 1, 5)
    node.queues.follow(OTHER_VHOST, mastership(OTHER_VHOST, N1))
    assert node.depth(new) == 5
    assert node.role(OTHER_VHOST) == "master"
    assert node.began == []
    assert not is_master(node)


def test_queues_that_waited_for_the_shared_store_are_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [queue_record(number) for number in range(20, 50)]
    node = crashed_with(many, 1)
    looked_at: list[str] = []
    look = NodeQueueFiles.queue_file_count

    def note_and_look(files: NodeQueueFiles, queue: QueueRecord) -> int:
        looked_at.append(queue.name)
        return look(files, queue)

    monkeypatch.setattr(NodeQueueFiles, "queue_file_count", note_and_look)
    for queue in many:
        node.queues.follow(queue, mastership(queue, N1))
    in_a_turn = []
    while node.pending:
        before = len(looked_at)
        one_turn(node)
        in_a_turn.append(len(looked_at) - before)
    assert sum(in_a_turn) == len(many)
    assert max(in_a_turn) == 1
    assert all(node.depth(queue) == 1 for queue in many)


def test_one_that_is_forgotten_and_taken_back_while_it_waits_to_be_looked_at_is_opened_once() -> None:
    node = QueueSetNetwork(N1)[N1]
    many = [queue_record(number) for number in range(20, 24)]
    for queue in many:
        node.queues.follow(queue, mastership(queue, N1))
        node.publish(queue, 1, 1)
    node.sync()
    crash(node)
    for queue in many:
        node.queues.follow(queue, mastership(queue, N1))
    recovery = node.queues._recoveries
    turns_until(node, lambda: bool(recovery._unprepared))
    last = many[-1]
    node.queues._forget_opening(last.queue_id)
    node.queues.follow(last, mastership(last, N1))
    node.queues.check_invariants()
    node.turn()
    assert all(node.depth(queue) == 1 for queue in many)


def test_a_smaller_queue_comes_before_a_big_one_that_has_begun() -> None:
    node = QueueSetNetwork(N1)[N1]
    node.queues.follow(Q, mastership(Q, N1))
    node.publish(Q, 1, 3 * 4096)
    node.queues.follow(SMALL, mastership(SMALL, N1))
    node.publish(SMALL, 1, 5)
    node.sync()
    crash(node)
    node.queues.follow(Q, mastership(Q, N1))
    turns_until(node, lambda: node.queues.recovered_percent(Q.queue_id) not in (0, None))
    node.queues.follow(SMALL, mastership(SMALL, N1))
    turns_until(node, lambda: node.role(SMALL) == "master")
    assert not is_master(node)
    node.turn()
    assert [record.queue_id for record in node.began] == [SMALL.queue_id, Q.queue_id]


def test_a_queue_whose_channels_cannot_be_told_keeps_no_other_from_its_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = crashed_node()
    began = node.role_began

    def tell(record: MastershipRecord) -> None:
        if record.queue_id == Q.queue_id:
            raise TypeError("a mistake of ours")
        began(record)

    monkeypatch.setattr(node, "role_began", tell)
    for queue in (Q, SMALL):
        node.queues.follow(queue, mastership(queue, N1))
    turns_until(node, lambda: node.role(SMALL) == "master" and Q.queue_id not in node.queues._recoveries)
    assert [record.queue_id for record in node.began] == [SMALL.queue_id]
    assert [record.queue_id for record in node.failed] == [Q.queue_id]


def test_few_are_under_way_at_the_same_time() -> None:
    queues = [queue_record(number) for number in range(20, 20 + 3 * BEGUN_MAX)]
    node = crashed_with(queues, 2)
    for queue in queues:
        node.queues.follow(queue, mastership(queue, N1))
    turns_until(node, lambda: len(node.queues.roles) == len(queues))


def test_who_waits_for_a_place_gets_that_of_one_that_is_forgotten() -> None:
    """All that have begun wait for the disk, and nobody waits for them any more."""
    queues = [queue_record(number) for number in range(20, 21 + BEGUN_MAX)]
    node = crashed_with(queues, 2)
    for queue in queues:
        node.queues.follow(queue, mastership(queue, N1))
    opening = node.queues._recoveries
    turns_until(node, lambda: not opening._vhosts)
    node.holds_jobs = True
    node.turn()
    begun = list(opening._begun)
    assert len(begun) == len(node.held) == BEGUN_MAX
    last = next(queue for queue in queues if queue.queue_id not in begun)
    for queue in queues:
        if queue is not last:
            node.queues.queue_deleted(queue)
            opening.check_invariants()
    node.turn()
    assert list(opening._begun) == [last.queue_id]


def test_the_last_record_counts_that_was_followed_meanwhile() -> None:
    network = QueueSetNetwork(N1, N2)
    node = network[N1]
    node.queues.follow(Q, mastership(Q, N1))
    node.publish(Q, 1, COUNT)
    node.sync()
    crash(node)
    node.queues.follow(Q, mastership(Q, N1))
    one_turn(node)
    node.queues.follow(Q, mastership(Q, N2, N1, epoch=2))
    node.queues.follow(Q, mastership(Q, N1, N2, epoch=1))
    node.turn()
    assert node.role(Q) == "mirror"
    assert node.queues.roles[Q.queue_id].record.epoch == 2
    assert node.began == []


def test_a_mirror_that_recovers_answers_the_attach_when_it_is_back() -> None:
    network, record = pair(), mastership(Q, N1, N2)
    master, mirror = network[N1], network[N2]
    master.publish(Q, 1, COUNT)
    network.pump()
    master.queues.link_down(N2)
    crash(mirror)
    mirror.queues.follow(Q, record)
    master.queues.link_up(N2)
    master.publish(Q, COUNT + 1)
    master.turn()
    for wire in network.wires.values():
        while wire:
            mirror.queues.receive(N1, wire.popleft())
    master.sync()
    master.turn()
    assert mirror.role(Q) == "none"
    assert COUNT + 1 not in master.confirmed(), "the copy counts as complete, so its answer is waited for"
    network.pump()
    assert mirror.depth(Q) == COUNT + 1
    assert COUNT + 1 in master.confirmed()


def test_a_queue_deleted_while_it_recovers_leaves_nothing() -> None:
    node = crashed_node()
    for queue in (Q, SMALL):
        node.queues.follow(queue, mastership(queue, N1))
    for _ in range(4):
        one_turn(node)
    node.queues.queue_deleted(Q)
    node.turn()
    assert not node.has_files(Q)
    assert node.role(SMALL) == "master"
    assert Q.queue_id not in node.queues.roles


@pytest.mark.parametrize("is_dropped", [False, True])
def test_whoever_looks_for_deleted_queues_sees_those_that_recover(is_dropped: bool) -> None:
    """A snapshot may skip the deletion."""
    node = crashed_node()
    node.queues.follow(Q, mastership(Q, N2, N1))
    if is_dropped:
        node.queues.follow(Q, mastership(Q, N2))
    assert node.queues.held_queues() == [Q]
    node.queues.queue_deleted(Q)
    node.turn()
    assert node.queues.held_queues() == []
    assert not node.has_files(Q)


def test_a_mirror_dropped_while_it_recovers_goes_on_and_is_quickly_back() -> None:
    """It was dropped because it needs long; to begin anew each time would have no end."""
    node = crashed_node()
    node.queues.follow(Q, mastership(Q, N2, N1))
    one_turn(node)
    node.queues.follow(Q, mastership(Q, N2))
    assert node.role(Q) == "none"
    node.turn()
    assert node.has_files(Q)
    assert node.queues.recovered_percent(Q.queue_id) is None
    node.queues.follow(Q, mastership(Q, N2, N1))
    assert node.role(Q) == "mirror", "it was closed cleanly, so nothing is read"
    assert node.depth(Q) == COUNT


def test_one_that_is_taken_back_before_it_is_done_need_not_begin_anew() -> None:
    node = crashed_node()
    node.queues.follow(Q, mastership(Q, N2, N1))
    turns = turns_until(node, lambda: Q.queue_id in node.queues._recoveries._begun)
    node.queues.follow(Q, mastership(Q, N2))
    node.queues.follow(Q, mastership(Q, N2, N1))
    assert Q.queue_id in node.queues._recoveries._begun
    assert turns
    node.turn()
    assert node.role(Q) == "mirror"


def test_a_sync_that_fails_takes_only_this_queue_out_of_service() -> None:
    node = crashed_node()
    node.queues.follow(Q, mastership(Q, N1))
    turns_until(node, lambda: Q.queue_id in node.queues._recoveries._begun)
    new = queue_record(10)
    node.queues.follow(new, mastership(new, N1))
    node.disk.fail_sync_after = node.disk.operations
    node.turn()
    assert node.queues.is_failed(Q.queue_id)
    assert node.failed == [mastership(Q, N1)]
    assert node.role(new) == "master"


def test_a_vhost_that_cannot_be_opened_takes_its_queues_out_of_service(monkeypatch: pytest.MonkeyPatch) -> None:
    node = crashed_node()

    def refuse(_vhost: str) -> None:
        raise StorageError("no such disk")

    monkeypatch.setattr(node.files, "vhost_opening", refuse)
    for queue in (Q, SMALL):
        node.queues.follow(queue, mastership(queue, N1))
    assert [record.queue_id for record in node.failed] == [Q.queue_id, SMALL.queue_id]
    node.queues.check_invariants()


def outcome_of_an_end_after(turns: int, end: Callable[[QueueSetNode], None], version: int) -> bool:
    """End a life after so many turns of recovery; the next must find everything. True if the recovery was over."""
    node = crashed_node(small=3, version=version)
    for queue in (Q, SMALL):
        node.queues.follow(queue, mastership(queue, N1))
    for _ in range(turns):
        one_turn(node)
    was_over = is_master(node)
    end(node)
    for queue in (Q, SMALL):
        node.queues.follow(queue, mastership(queue, N1))
    node.turn()
    assert (node.depth(Q), node.depth(SMALL)) == (COUNT, 3)
    local = node.queues.roles[Q.queue_id].local
    assert [delivery.seq_id for delivery in local.fetch(COUNT, ack_required=True)] == list(range(COUNT))
    return was_over


def stop(node: QueueSetNode) -> None:
    before = node.disk.operations
    node.restart_cleanly()
    assert node.disk.operations - before < 200, "a stop does not wait for recovery"


@pytest.mark.parametrize(
    ("style", "version", "step"),
    [
        *few_fast(((style, version, 4) for version in (1, 2) for style in (None, *CrashStyle)), 4),
        *(slow((style, version, 1)) for version in (1, 2) for style in (None, *CrashStyle)),
    ],
)
def test_a_stop_or_crash_at_any_step_of_a_recovery_loses_nothing(
    style: CrashStyle | None, version: int, step: int
) -> None:
    turns, was_over = 0, False
    while not was_over:
        end = stop if style is None else partial(crash, style=style, seed=turns)
        was_over = outcome_of_an_end_after(turns, end, version)
        turns += step
    assert turns > 5


def test_an_unknown_queue_is_deleted_when_its_vhost_is_open() -> None:
    """Nobody else opens a queue there."""
    node = crashed_node()
    at_once(node.files.delete_unknown(["/"], [SMALL.queue_id]))
    node.turn()
    node.files.maintain(0)
    assert not node.has_files(Q)
    assert node.has_files(SMALL)


def test_a_deletion_in_a_vhost_that_is_not_open_yet_waits_for_it() -> None:
    node = crashed_node()
    node.queues.follow(SMALL, mastership(SMALL, N1))
    node.queues.queue_deleted(Q)
    node.turn()
    node.sync()
    assert not node.has_files(Q)
    assert node.role(SMALL) == "master"
    assert node.process(SMALL).drain() == []
    assert CLIENT.node == N1


def node_with_garbage() -> QueueSetNode:
    """It runs again after a crash; its queue is deleted, and the shared store still has what that had."""
    node = QueueSetNetwork(N1)[N1]
    node.queues.follow(Q, mastership(Q, N1))
    messages = [make_message(number, body=bytes(5000)) for number in range(100)]
    node.process(Q).publish(CLIENT, messages, list(range(100)))
    node.sync()
    node.queues.queue_deleted(Q)
    for _ in range(20):
        node.files.maintain(0)
        node.sync()
    crash(node)
    return node


@pytest.mark.parametrize("turns", range(8))
def test_a_vhost_that_is_made_anew_while_its_shared_store_is_being_opened_serves_its_queues(turns: int) -> None:
    node = node_with_garbage()
    node.queues.follow(SMALL, mastership(SMALL, N1))
    for _ in range(turns):
        one_turn(node)
    node.queues.queue_deleted(SMALL)
    node.files.vhosts_are([])
    new = queue_record(10)
    node.queues.follow(new, mastership(new, N1))
    for _ in range(20):
        node.files.maintain(0)
        node.sync()
        one_turn(node)
    node.publish(new, 1, 5)
    assert node.depth(new) == 5
    assert node.failed == []
    node.files.check_invariants()


def test_a_vhost_that_is_deleted_while_its_shared_store_is_being_opened_goes() -> None:
    node = node_with_garbage()
    node.queues.follow(SMALL, mastership(SMALL, N1))
    node.queues.queue_deleted(SMALL)
    node.files.vhosts_are([])
    node.turn()
    for _ in range(20):
        node.files.maintain(0)
        node.sync()
    assert list(node.disk.snapshot()) == []


def test_a_mistake_while_a_queue_is_looked_at_takes_only_this_queue_out_of_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = crashed_node()
    look = NodeQueueFiles.queue_file_count

    def mistaken(files: NodeQueueFiles, queue: QueueRecord) -> int:
        if queue == SMALL:
            raise KeyError(queue.vhost)
        return look(files, queue)

    monkeypatch.setattr(NodeQueueFiles, "queue_file_count", mistaken)
    for queue in (SMALL, Q):
        node.queues.follow(queue, mastership(queue, N1))
    node.turn()
    late = queue_record(10)
    node.queues.follow(late, mastership(late, N1))
    assert node.failed == [mastership(SMALL, N1)]
    assert is_master(node)
    assert node.role(late) == "master"

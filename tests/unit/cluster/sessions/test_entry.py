"""The entry of sessions without a loop: publishes and sessions. The entry node is n1, the queue begins on n2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.raft.config import RaftConfig
from cluster.sessions import routes
from cluster.sessions.entry import REOPEN_DELAY_MAX_S, REOPEN_DELAY_S
from cluster.sessions.messages import SessionConfirm, SessionPublish, SessionSettle
from cluster.sessions.ports import ReopenLater
from cluster.sessions.questions import Question
from node.errors import StorageError
from node.ids import NodeName, SeqId
from node.message import Message
from node.queues.backing_queue import Publication
from node.queues.events import INTERNAL_SEQ_BASE, ConsumerSpec
from node.queues.queue_process import QueueProcess
from tests.support.entry_bench import EntryBench
from tests.support.queue_bench import SteeredQueue
from tests.support.session_network import QUEUE, RecordingSink, message, queue_record, stored

# --- publishes over sessions ---


def test_the_first_publish_opens_a_session_and_waits_for_it(bench: EntryBench) -> None:
    bench.publishes(1, 2)
    bench.publishes(3)
    assert bench.told() == ["n2 open 1"]

    bench.accepts(1)
    assert bench.told() == ["n2 publish 1: 1 2 3"]

    bench.publishes(4)
    assert bench.told() == ["n2 publish 1: 4"]


def test_what_no_master_confirmed_goes_to_the_next_one_in_order(opened: EntryBench) -> None:
    opened.publishes(2, 3, 4)
    opened.confirms(1, 3)
    opened.link_breaks("n2")
    opened.publishes(5)
    opened.sent()

    opened.moves("n3", 2)
    opened.publishes(6)
    assert opened.told() == ["n3 open 2"]
    opened.accepts(2)
    opened.publishes(7)
    assert opened.told() == ["n3 publish 2: 2 4 resent", "n3 publish 2: 5 6", "n3 publish 2: 7"]

    opened.confirms(2, 2, 4, 5, 6, 7)
    assert opened.sink.confirmed == [3, 2, 4, 5, 6, 7]


def test_a_session_that_broke_before_it_opened_has_carried_nothing(bench: EntryBench) -> None:
    bench.publishes(1)
    bench.link_breaks("n2")
    bench.publishes(2)
    bench.link_comes("n2")
    bench.accepts(2)
    assert bench.told() == ["n2 open 1", "n2 open 2", "n2 publish 2: 1 2"]


def test_what_was_published_before_confirms_were_asked_for_keeps_its_place(opened: EntryBench) -> None:
    """A channel numbers its publishes high until it asks for confirms, and then from 1."""
    opened.publishes(INTERNAL_SEQ_BASE + 1)
    opened.link_breaks("n2")
    opened.publishes(INTERNAL_SEQ_BASE + 2)
    opened.publishes(1)
    opened.sent()
    opened.link_comes("n2")
    opened.accepts(2)
    high = INTERNAL_SEQ_BASE
    assert opened.told() == ["n2 open 2", f"n2 publish 2: {high + 1} resent", f"n2 publish 2: {high + 2} 1"]


def test_what_is_sent_a_third_time_was_sent_before(opened: EntryBench) -> None:
    opened.publishes(2)
    opened.moves("n3", 2)
    opened.publishes(3)
    opened.accepts(2)
    opened.moves("n2", 3)
    opened.accepts(3)
    assert opened.told()[-1] == "n2 publish 3: 2 3 resent"


def test_a_late_confirm_of_the_old_session_is_ignored(opened: EntryBench) -> None:
    opened.publishes(2)
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.confirms(1, 2, node="n2")
    assert opened.sink.confirmed == []
    opened.confirms(2, 2)
    assert opened.sink.confirmed == [2]


def test_the_number_of_a_session_means_nothing_in_the_mouth_of_another_node(opened: EntryBench) -> None:
    opened.publishes(2)
    opened.confirms(1, 2, node="n3")
    assert opened.sink.confirmed == []


@pytest.mark.parametrize("rejected", [False, True])
def test_a_publish_is_answered_once(opened: EntryBench, rejected: bool) -> None:
    opened.publishes(2, 3)
    for publish_seqs in ([2], [2], [2, 3], [3]):
        opened.hears(SessionConfirm(QUEUE, 1, opened.channel.channel_id, publish_seqs, rejected))
    assert (opened.sink.rejected if rejected else opened.sink.confirmed) == [2, 3]
    assert (opened.sink.confirmed if rejected else opened.sink.rejected) == []


def test_channels_are_answered_each_for_its_own(opened: EntryBench) -> None:
    other_sink = RecordingSink()
    other = opened.entry.open_channel(other_sink)
    opened.publishes(2)
    opened.publishes(2, channel=other)
    opened.confirms(1, 2)
    assert (opened.sink.confirmed, other_sink.confirmed) == ([2], [])
    opened.moves("n3", 2)
    opened.accepts(2)
    assert opened.told()[-1] == "n3 publish 2: 2 resent"
    opened.hears(SessionConfirm(QUEUE, 2, other.channel_id, [2]))
    assert other_sink.confirmed == [2]


def test_a_deleted_queue_has_confirmed_everything(opened: EntryBench) -> None:
    opened.publishes(2, 3)
    opened.queue_is_deleted()
    assert opened.sink.confirmed == [2, 3]
    opened.publishes(4)
    assert opened.sink.confirmed == [2, 3, 4]
    assert opened.entry.routed_queues() == []


# --- sessions ---


def test_a_channel_forgets_a_deleted_queue(opened: EntryBench) -> None:
    """One that answers requests publishes to queue after queue, each of which lives for a moment."""
    opened.publishes(1)
    opened.entry.queue_deleted(QUEUE)
    assert opened.entry._used == {opened.channel.channel_id: {}}


def test_what_happens_to_a_queue_that_nobody_here_has_used_is_no_concern(bench: EntryBench) -> None:
    bench.moves("n3", 2)
    bench.entry.queue_stopped(QUEUE)
    bench.entry.reopen(QUEUE)
    bench.accepts(1)
    bench.queue_is_deleted()
    assert (bench.told(), bench.emitted(), bench.entry.routed_queues()) == ([], [], [])


def test_a_refused_session_is_tried_again_after_a_pause(bench: EntryBench) -> None:
    bench.publishes(1)
    bench.refuses(1)
    assert bench.told() == ["n2 open 1"]
    assert bench.emitted() == [ReopenLater(QUEUE, REOPEN_DELAY_S)]
    assert RaftConfig(bench.channel.node).heartbeat_interval_ms >= 1000 * REOPEN_DELAY_S, "the record is on its way"
    bench.link_comes("n3")
    assert bench.told() == []

    bench.entry.reopen(QUEUE)
    bench.accepts(2)
    assert bench.told() == ["n2 open 2", "n2 publish 2: 1"]


def refused_until(bench: EntryBench, end_s: float, first_session: int) -> int:
    """How many sessions are begun by then, if each is refused."""
    now_s, session = 0.0, first_session
    while now_s < end_s:
        bench.refuses(session)
        (again,) = bench.emitted()
        assert isinstance(again, ReopenLater)
        now_s += again.delay_s
        bench.entry.reopen(QUEUE)
        session += 1
    return session - first_session


def test_a_master_that_takes_long_to_open_its_copy_is_asked_ever_more_seldom(bench: EntryBench) -> None:
    """It may have thousands of queues to recover, of which each entry node asks for each."""
    bench.publishes(1)
    asked = refused_until(bench, 10.0, 1)
    assert asked <= 30
    bench.moves("n2", 1)
    bench.refuses(asked + 1)
    assert bench.emitted() == [ReopenLater(QUEUE, REOPEN_DELAY_MAX_S)], "it is still the same"
    bench.entry.reopen(QUEUE)
    bench.moves("n2", 2)
    bench.refuses(asked + 3)
    assert bench.emitted() == [ReopenLater(QUEUE, REOPEN_DELAY_S)], "the next record may be on its way"
    bench.entry.reopen(QUEUE)
    bench.accepts(asked + 4)
    bench.refuses(asked + 4)
    assert bench.emitted() == [ReopenLater(QUEUE, REOPEN_DELAY_S)]


def test_a_master_that_comes_back_over_a_new_link_is_asked_as_if_for_the_first_time(bench: EntryBench) -> None:
    """It may be in another life, of which the refusals before the break say nothing."""
    bench.linked.add(NodeName("n3"))
    bench.publishes(1)
    asked = refused_until(bench, 10.0, 1)
    bench.link_breaks("n3")
    bench.refuses(asked + 1)
    assert bench.emitted() == [ReopenLater(QUEUE, REOPEN_DELAY_MAX_S)], "that is no link to it"
    bench.link_breaks("n2")
    bench.link_comes("n2")
    bench.refuses(asked + 2)
    assert bench.emitted() == [ReopenLater(QUEUE, REOPEN_DELAY_S)]


def test_a_timer_that_comes_when_the_session_stands_changes_nothing(bench: EntryBench) -> None:
    bench.publishes(1)
    bench.refuses(1)
    bench.moves("n3", 2)
    bench.accepts(2)
    bench.sent()
    bench.entry.reopen(QUEUE)
    bench.queue_is_deleted()
    bench.entry.reopen(QUEUE)
    assert bench.told() == []


def test_a_master_that_ends_the_session_is_asked_for_another(opened: EntryBench) -> None:
    opened.publishes(2)
    opened.refuses(1)
    opened.entry.reopen(QUEUE)
    opened.accepts(2)
    assert opened.told() == ["n2 publish 1: 2", "n2 open 2", "n2 publish 2: 2 resent"]


def test_a_late_opening_of_an_earlier_session_opens_nothing(opened: EntryBench) -> None:
    opened.moves("n3", 2)
    opened.moves("n2", 3)
    opened.sent()
    opened.publishes(2)
    opened.accepts(1)
    opened.accepts(2)
    assert opened.told() == []
    opened.accepts(3)
    opened.accepts(3)
    assert opened.told() == ["n2 publish 3: 2"]


def test_a_record_that_moves_nothing_leaves_the_session_alone(opened: EntryBench) -> None:
    opened.moves("n2", 1)
    opened.publishes(2)
    assert opened.told() == ["n2 publish 1: 2"]


def test_a_session_waits_for_the_link_and_for_a_master(bench: EntryBench) -> None:
    bench.linked.clear()
    bench.publishes(1)
    assert bench.told() == []
    bench.moves("n3", 2, is_down=True)
    bench.link_comes("n3")
    assert bench.told() == []
    bench.moves("n3", 2)
    assert bench.told() == ["n3 open 1"]


def test_a_master_that_is_down_is_told_nothing(opened: EntryBench) -> None:
    opened.moves("n2", 1, is_down=True)
    opened.publishes(2)
    assert opened.told() == []
    opened.moves("n2", 1)
    opened.accepts(2)
    assert opened.told() == ["n2 open 2", "n2 publish 2: 2"]


def test_a_link_to_another_node_is_no_concern_of_the_session(opened: EntryBench) -> None:
    opened.link_breaks("n3")
    opened.link_comes("n3")
    opened.publishes(2)
    assert opened.told() == ["n2 publish 1: 2"]


def test_a_delivery_is_settled_in_its_own_session_only(opened: EntryBench) -> None:
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.sent()
    opened.entry.settle_ack(opened.channel, QUEUE, 1, [SeqId(5)])
    opened.entry.settle_requeue(opened.channel, QUEUE, 2, [SeqId(6)])
    opened.link_breaks("n3")
    opened.entry.settle_discard(opened.channel, QUEUE, 2, [SeqId(7)])
    assert opened.sent() == [("n3", SessionSettle(QUEUE, 2, opened.channel.channel_id, "requeue", [SeqId(6)]))]


# --- publishes that nobody tracks, channels that close ---


def test_untracked_publishes_wait_for_a_session_up_to_a_bound(
    bench: EntryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "UNTRACKED_MESSAGES_MAX", 2)
    for counter in (1, 2, 3):
        bench.entry.publish(bench.channel, QUEUE, [message_of(counter)], [0])
    bench.accepts(1)
    assert bench.told() == ["n2 open 1", "n2 publish 1: 2 3"]
    bench.entry.publish(bench.channel, QUEUE, [message_of(4)], [0])
    bench.moves("n3", 2)
    bench.accepts(2)
    assert bench.told() == ["n2 publish 1: 4", "n3 open 2"], "nobody keeps them once they were sent"


def test_what_closed_channels_leave_for_a_queue_without_a_master_is_bounded_in_bytes(
    opened: EntryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is given up comes back, publishes as much again and is given up again, as long as nobody serves."""
    monkeypatch.setattr(routes, "UNTRACKED_BYTES_MAX", 10_000)
    opened.moves("n2", 1, is_down=True)
    opened.sent()
    for counter in range(1, 101):
        channel = opened.entry.open_channel(RecordingSink())
        opened.entry.publish(channel, QUEUE, [message(counter, bytes(1_000))], [1])
        opened.entry.close_channel(channel)
        opened.entry.check_invariants()
    opened.moves("n3", 2)
    opened.accepts(2)
    told = [each for _, each in opened.sent() if isinstance(each, SessionPublish)]
    assert 0 < sum(len(each.envelopes) for each in told) < 12_000


def test_a_message_that_is_larger_than_the_bound_takes_the_place_of_all_others(
    bench: EntryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients may publish one of four times its size."""
    monkeypatch.setattr(routes, "UNTRACKED_BYTES_MAX", 10_000)
    large = b"x" * 20_000
    for counter, body in enumerate((b"1", large), 1):
        bench.entry.publish(bench.channel, QUEUE, [message(counter, body)], [0])
    bench.entry.check_invariants()
    bench.accepts(1)
    assert bench.told() == ["n2 open 1", f"n2 publish 1: {large.decode()}"]


def test_a_message_that_is_larger_than_the_bound_goes_when_there_is_a_newer_one(
    bench: EntryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "UNTRACKED_BYTES_MAX", 10_000)
    for counter, body in enumerate((bytes(20_000), b"2"), 1):
        bench.entry.publish(bench.channel, QUEUE, [message(counter, body)], [0])
    bench.accepts(1)
    assert bench.told() == ["n2 open 1", "n2 publish 1: 2"]


def test_the_master_is_not_asked_to_confirm_what_nobody_tracks(bench: EntryBench) -> None:
    """The number that it would confirm may be that of another publish."""
    bench.entry.publish(bench.channel, QUEUE, [message_of(1)], [0])
    bench.accepts(1)
    bench.entry.publish(bench.channel, QUEUE, [message_of(2)], [0])
    published = [each for _, each in bench.sent() if isinstance(each, SessionPublish)]
    assert [list(each.publish_seqs) for each in published] == [[0], [0]]


def test_a_closed_channel_is_told_to_the_master_that_has_heard_of_it(opened: EntryBench) -> None:
    opened.publishes(2)
    opened.closes()
    opened.confirms(1, 2)
    assert opened.told() == ["n2 publish 1: 2", "n2 channelclosed 1"]
    assert opened.sink.confirmed == []


def test_a_closed_channel_is_not_told_to_a_master_that_never_heard_of_it(opened: EntryBench) -> None:
    opened.moves("n3", 2)
    opened.accepts(2)
    opened.closes()
    assert opened.told() == ["n3 open 2"]


def test_what_a_closed_channel_published_still_finds_its_way(opened: EntryBench) -> None:
    opened.publishes(2)
    opened.link_breaks("n2")
    opened.publishes(3)
    opened.closes()
    opened.moves("n3", 2)
    opened.accepts(2)
    published = ["n2 publish 1: 2", "n3 open 2", "n3 publish 2: 2 resent", "n3 publish 2: 3"]
    assert opened.told() == [*published, "n3 channelclosed 2"], "or it would be remembered there for ever"


# --- the master is this node ---


class FullDisk(SteeredQueue):
    """Takes nothing."""

    def publish(self, publications: Sequence[Publication]) -> None:
        raise StorageError("no space left on device")


def test_a_queue_here_is_called_and_no_message_sent() -> None:
    bench = EntryBench("n1")
    bench.masters_here(SteeredQueue())
    bench.publishes(1, 2)
    assert bench.queue is not None
    assert bench.queue.ready == 2
    bench.end_turn()
    assert bench.sink.confirmed == [1, 2]
    assert bench.told() == []


def test_a_full_queue_here_rejects_what_it_does_not_take() -> None:
    bench = EntryBench("n1")
    full = replace(queue_record(QUEUE), arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    bench.queue = QueueProcess(full, SteeredQueue())
    bench.publishes(1)
    bench.publishes(2)
    bench.end_turn()
    assert (bench.sink.confirmed, bench.sink.rejected) == ([1], [2])


class UnreadableQueue(SteeredQueue):
    """Takes nothing back."""

    def ack(self, seq_ids: Sequence[SeqId]) -> int:
        raise StorageError("unreadable")


def test_a_queue_here_that_fails_under_a_settlement_waits_for_the_next_master() -> None:
    bench = EntryBench("n1", "n2")
    bench.masters_here(UnreadableQueue())
    bench.publishes(1)
    got = bench.proceeds(bench.asks(Question("get")))
    assert got is not None
    assert got.delivery is not None
    bench.entry.settle_ack(bench.channel, QUEUE, 1, [got.delivery.seq_id])
    assert len(bench.failures) == 1
    bench.publishes(2)
    bench.moves("n2", 2)
    bench.accepts(2)
    assert bench.told() == ["n2 open 2", "n2 publish 2: 1 resent", "n2 publish 2: 2"]


def test_publishes_wait_until_this_node_has_taken_up_its_role() -> None:
    bench = EntryBench("n1")
    bench.publishes(1)
    assert bench.failures == [], "no queue was called that is not there"
    bench.masters_here(SteeredQueue())
    bench.moves("n1", 2)
    bench.end_turn()
    assert bench.sink.confirmed == [1]


def test_what_a_queue_here_failed_to_take_goes_to_the_next_master() -> None:
    bench = EntryBench("n1", "n2")
    bench.masters_here(FullDisk())
    bench.publishes(1)
    bench.publishes(2)
    bench.moves("n2", 2)
    bench.accepts(2)
    assert bench.told() == ["n2 open 2", "n2 publish 2: 1 resent", "n2 publish 2: 2"]


def test_a_queue_that_fails_while_it_is_given_what_was_left_keeps_nothing_from_the_next() -> None:
    bench = EntryBench("n2", "n2")
    other = bench.entry.open_channel(RecordingSink())
    bench.publishes(1)
    bench.accepts(1)
    bench.consumes(1, ConsumerSpec("tag", no_ack=False, exclusive=False))
    bench.publishes(1, channel=other)
    bench.masters_here(FullDisk())
    bench.moves("n1", 2)
    assert len(bench.failures) == 1, "it is left alone after the first"
    bench.moves("n2", 3)
    bench.accepts(3)
    resent = "n2 publish 3: 1 resent"
    assert bench.told()[-4:] == ["n2 consume 3", "n2 counts 3", resent, resent]


def test_what_a_queue_that_fails_was_not_given_is_not_sent_again_but_for_the_first_time() -> None:
    bench = EntryBench("n1", "n2")
    other = bench.entry.open_channel(RecordingSink())
    bench.publishes(1)
    bench.publishes(2, channel=other)
    bench.masters_here(FullDisk())
    bench.moves("n1", 2)
    bench.moves("n2", 3)
    bench.accepts(2)
    assert bench.told() == ["n2 open 2", "n2 publish 2: 1 resent", "n2 publish 2: 2"]


def test_what_a_mirror_had_got_is_only_confirmed_by_the_next_master(opened: EntryBench) -> None:
    opened.publishes(2, 3)
    promoted = stored(message_of(2))
    opened.masters_here(promoted)
    opened.moves("n1", 2)
    opened.end_turn()
    assert sorted(opened.sink.confirmed) == [2, 3]
    found = promoted.fetch(10, ack_required=False)
    assert [each.message.body for each in found] == [b"2", b"3"]


def message_of(counter: int) -> Message:
    return message(counter, b"%d" % counter)

"""The queue process by example. `tests.support.queue_bench` explains how effects are written."""

from __future__ import annotations

import pytest

from node.errors import ChannelError
from node.queues.events import DELIVERY_WINDOW_MESSAGES, Deliver
from node.queues.options import QueueOptions, queue_options
from node.queues.queue_process import DISPATCH_MAX, QueueProcess
from tests.support.queue_bench import QueueBench, SteeredQueue, channel, message, queue_record

# --- publishing and confirms ---


def test_without_consumers_messages_wait_in_order() -> None:
    bench = QueueBench()
    bench.publish(3)
    assert bench.drain() == ["confirm 1 2 3"]
    assert bench.ready == [1, 2, 3]


def test_a_publish_without_sequence_number_is_not_confirmed() -> None:
    bench = QueueBench()
    bench.publish(2, confirm=False)
    bench.process.publish(channel(1000), [message(3), message(4)], [0, 7])
    assert bench.drain() == ["confirm 7"]


def test_confirms_wait_for_storage_and_are_grouped_by_channel() -> None:
    bench = QueueBench(durable=True)
    bench.publish(2)
    bench.process.publish(channel(5), [message(1, from_origin=5)], [1])
    bench.publish(1)
    assert bench.drain() == []
    bench.sync()
    assert bench.drain() == ["confirm 1 2 3", "confirm 1"]


def test_a_message_that_comes_again_is_confirmed_and_not_stored_twice() -> None:
    bench = QueueBench(durable=True)
    bench.publish(2)
    bench.publish_again(1, 2, 3)
    bench.published = 3
    assert bench.ready == [1, 2, 3]
    assert bench.drain() == [], "a confirm before the first copy is safe would be a lie"
    bench.sync()
    assert sorted(" ".join(bench.drain()).replace("confirm", "").split()) == ["1", "1", "2", "2", "3"]


def test_a_batch_of_several_origins_is_looked_through_message_by_message() -> None:
    bench = QueueBench()
    bench.publish(2)
    bench.process.publish(channel(1), [message(1, from_origin=9), message(2)], [1, 2])
    assert bench.ready == [1, 2, 3]


def test_what_a_dead_master_may_have_delivered_comes_flagged() -> None:
    """A publish that is sent again under a new master: known ones are confirmed, the others flagged on delivery."""
    bench = QueueBench()
    bench.publish(1)
    bench.process.publish(channel(1000), [message(1), message(2)], [1, 2], is_resent=True)
    deliveries = bench.storage.fetch(9, ack_required=True)
    assert [(delivery.message, delivery.redelivered) for delivery in deliveries] == [
        (message(1), True),  # it stood before the one sent again: flagged with it, which is allowed
        (message(2), True),
    ]


def test_what_is_sent_again_goes_to_waiting_consumers_flagged_too() -> None:
    bench = QueueBench()
    bench.consume()
    bench.process.publish(channel(1000), [message(1)], [1], is_resent=True)
    (deliver, _) = bench.process.drain()
    assert isinstance(deliver, Deliver)
    assert [delivery.redelivered for delivery in deliver.deliveries] == [True]


# --- direct delivery ---


def test_an_empty_queue_delivers_directly_and_holds_until_the_ack() -> None:
    bench = QueueBench()
    bench.consume()
    bench.publish(2)
    assert bench.process.unacked == 2
    assert bench.drain() == ["1.t: 1 2", "confirm 1 2"]
    bench.ack(1, 1, 2)
    assert (bench.process.ready, bench.process.unacked) == (0, 0)


def test_a_consumer_without_acks_gets_messages_that_are_never_stored() -> None:
    bench = QueueBench()
    bench.consume(no_ack=True)
    bench.publish(2)
    assert bench.storage.live == []
    assert bench.storage.status().next_seq_id == 1, "they never had a position"
    assert bench.storage.is_duplicate(message(2).msg_id)
    assert bench.drain() == ["1.t: 1 2", "confirm 1 2"]


def test_nothing_overtakes_what_is_ready() -> None:
    bench = QueueBench()
    bench.publish(2)
    bench.consume()
    bench.publish(1)
    assert bench.deliveries() == ["1.t: 1 2 3"]


def test_what_the_consumers_cannot_take_is_stored() -> None:
    bench = QueueBench()
    bench.consume(prefetch_count=2)
    bench.publish(5)
    assert bench.deliveries() == ["1.t: 1 2"]
    assert bench.ready == [3, 4, 5]


# --- consumers ---


def test_equal_consumers_take_turns_one_message_each() -> None:
    bench = QueueBench()
    for number in (1, 2, 3):
        bench.consume(number)
    assert bench.process.consumer_count == 3
    bench.publish(7)
    assert bench.deliveries() == ["1.t: 1 4 7", "2.t: 2 5", "3.t: 3 6"]
    bench.publish(1)
    assert bench.deliveries() == ["2.t: 8"], "the turn goes on where it stopped"


def test_consumers_of_one_channel_take_turns_and_it_has_everything_in_order() -> None:
    bench = QueueBench()
    bench.consume(1, "a")
    bench.consume(1, "b")
    bench.consume(2)
    bench.publish(7)
    assert bench.deliveries() == ["1.a: 1", "1.b: 2", "2.t: 3 6", "1.a: 4", "1.b: 5", "1.a: 7"]


def test_turns_skip_those_who_are_full() -> None:
    bench = QueueBench()
    bench.consume(1, prefetch_count=1)
    bench.consume(2, prefetch_count=3)
    bench.consume(3)
    bench.publish(9)
    assert bench.deliveries() == ["1.t: 1", "2.t: 2 4 6", "3.t: 3 5 7 8 9"]


def test_the_turn_goes_on_where_it_stopped_when_somebody_was_full_meanwhile() -> None:
    bench = QueueBench()
    bench.consume(1, prefetch_count=1)
    bench.consume(2)
    bench.consume(3)
    bench.publish(6)
    assert bench.deliveries() == ["1.t: 1", "2.t: 2 4 6", "3.t: 3 5"]
    bench.publish(1)
    assert bench.deliveries() == ["3.t: 7"]


def test_consumers_with_and_without_acks_share_fairly() -> None:
    bench = QueueBench()
    bench.consume(1)
    bench.consume(2, no_ack=True)
    bench.publish(5)
    assert bench.deliveries() == ["1.t: 1 3 5", "2.t: 2 4"]


def test_the_higher_priority_is_served_until_it_is_full() -> None:
    bench = QueueBench()
    bench.consume(1, prefetch_count=5)
    bench.consume(2, priority=10, prefetch_count=2)
    bench.publish(3)
    assert sorted(bench.deliveries()) == ["1.t: 3", "2.t: 1 2"]
    bench.ack(2, 1)
    bench.publish(1)
    assert bench.deliveries() == ["2.t: 4"]


def test_who_names_no_priority_has_that_of_zero() -> None:
    bench = QueueBench()
    bench.consume(1)
    bench.consume(2, priority=0)
    bench.consume(3, priority=-1)
    bench.publish(4)
    assert bench.deliveries() == ["1.t: 1 3", "2.t: 2 4"]


def test_prefetch_frees_as_messages_are_settled() -> None:
    bench = QueueBench()
    bench.consume(prefetch_count=2)
    bench.publish(5)
    assert bench.deliveries() == ["1.t: 1 2"]
    bench.ack(1, 2)
    assert bench.deliveries() == ["1.t: 3"]
    bench.process.discard(channel(1), [1, 3])  # type: ignore[list-item]
    assert bench.deliveries() == ["1.t: 4 5"]


def test_a_drain_delivers_a_bounded_number_and_says_that_there_is_more() -> None:
    bench = QueueBench()
    bench.publish(DISPATCH_MAX + 3, body=b"x")
    bench.consume(1, no_ack=True)
    bench.consume(2, no_ack=True)
    shares: list[list[int]] = []
    while not shares or bench.process.has_more:
        shares.append([len(each.deliveries) for each in bench.process.drain() if isinstance(each, Deliver)])
        bench.check()
    assert shares == [[DISPATCH_MAX // 2, DISPATCH_MAX // 2], [2, 1]]
    assert bench.process.ready == 0


def test_a_queue_to_which_nothing_happened_asks_for_no_turn() -> None:
    bench = QueueBench()
    assert not bench.process.has_more
    assert bench.drain() == []
    assert not bench.process.has_more


def test_nothing_is_left_to_a_later_drain_where_nobody_can_take_it() -> None:
    bench = QueueBench()
    bench.publish(DISPATCH_MAX + 1)
    bench.consume(prefetch_count=DISPATCH_MAX)
    bench.drain()
    # One message more than the limit was there when it was reached.
    assert bench.process.has_more
    assert not [each for each in bench.process.drain() if isinstance(each, Deliver)]
    assert not bench.process.has_more


def test_a_queue_with_a_maximal_length_drops_nothing_that_a_consumer_can_take() -> None:
    """However many are ready when the next one comes."""
    bench = QueueBench(max_length=DISPATCH_MAX + 1)
    bench.publish(DISPATCH_MAX + 1, body=b"x")
    bench.consume(no_ack=True)
    bench.publish(DISPATCH_MAX + 1, body=b"y")
    delivered = ""
    while not delivered or bench.process.has_more:
        delivered += "".join(bench.deliveries()).removeprefix("1.t: ").replace(" ", "")
    assert delivered == "x" * (DISPATCH_MAX + 1) + "y" * (DISPATCH_MAX + 1)


def test_a_queue_with_a_maximal_size_drops_nothing_that_a_consumer_can_take() -> None:
    """What is ready fits, what comes fits, and together they do not."""
    bench = QueueBench(max_length_bytes=10)
    bench.publish(2, body=b"abcd")
    bench.consume(prefetch_count=1)
    bench.publish(1, body=b"efgh")
    assert bench.deliveries() == ["1.t: abcd"]
    assert bench.storage.live == [1, 2, 3]
    bench.publish(1, body=b"ijkl")
    assert bench.storage.live == [1, 3, 4]


@pytest.mark.parametrize("how", ["requeue", "channel down", "new limit"])
def test_a_limit_counts_only_what_nobody_can_take(how: str) -> None:
    """Though the last drain left some for which there is a consumer to the next."""
    bench = QueueBench(max_length=DISPATCH_MAX + 10)
    held = DISPATCH_MAX + 50
    bench.consume(2, prefetch_count=held)
    bench.publish(held, body=b"held")
    bench.drain()
    bench.publish(DISPATCH_MAX + 10, body=b"x")
    bench.consume(1, no_ack=True)
    delivered = bench.deliveries()[0]
    assert (delivered.count("x"), bench.process.has_more) == (DISPATCH_MAX, True)
    if how == "requeue":
        bench.process.cancel(channel(2), "t")
        bench.requeue(2, *range(1, held + 1))
    elif how == "channel down":
        bench.process.channel_down(channel(2))
    else:
        bench.process.set_options(QueueOptions(max_length=1))
    delivered = ""
    while not delivered or bench.process.has_more:
        delivered += " ".join(bench.deliveries())
    # And of those that came back as many as the limit allows.
    assert (delivered.count("x"), delivered.count("held")) == (10, 0 if how == "new limit" else DISPATCH_MAX + 10)


def test_the_delivery_window_stops_a_consumer_until_it_is_granted_more() -> None:
    bench = QueueBench()
    bench.consume(no_ack=True)
    bench.publish(DELIVERY_WINDOW_MESSAGES + 10, body=b"x")
    assert len(bench.drain()[0].split()) == DELIVERY_WINDOW_MESSAGES + 1
    assert bench.process.ready == 10
    bench.process.grant(channel(1), "t", 4)
    bench.process.grant(channel(1), "unknown", 4)
    assert bench.deliveries() == ["1.t: x x x x"]
    bench.process.grant(channel(1), "t", 10**9)
    bench.check()


def test_a_consumer_with_a_small_window_leaves_the_rest_to_others() -> None:
    bench = QueueBench()
    bench.consume(1, window=1)
    bench.consume(2, window=DELIVERY_WINDOW_MESSAGES + 1)
    bench.publish(5, body=b"x")
    assert sorted(bench.deliveries()) == ["1.t: x", "2.t: x x x x"]
    bench.publish(1, body=b"y")
    bench.process.grant(channel(1), "t", 1)
    assert sum(line.count("y") for line in bench.deliveries()) == 1
    bench.check()


def test_exclusive_use() -> None:
    bench = QueueBench()
    bench.consume(1, exclusive=True)
    for exclusive in (False, True):
        with pytest.raises(ChannelError) as caught:
            bench.consume(2, exclusive=exclusive)
        assert caught.value.reply_text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    bench.process.cancel(channel(1), "t")
    bench.consume(2)
    with pytest.raises(ChannelError):
        bench.consume(1, exclusive=True)


def test_a_single_active_consumer_and_its_successors() -> None:
    bench = QueueBench(single_active_consumer=True)
    for number, priority in ((1, 0), (2, 0), (3, 5), (4, 5)):
        bench.consume(number, priority=priority, prefetch_count=2)
    bench.publish(8)
    assert bench.deliveries() == ["1.t: 1 2"], "a full active consumer stalls the queue"
    bench.process.cancel(channel(1), "t")
    assert bench.deliveries() == ["3.t: 3 4"], "the highest priority, then the oldest"
    bench.process.channel_down(channel(3))
    assert bench.deliveries() == ["4.t: 3* 4*"]
    assert [active for _, _, active in bench.process.consumers()] == [False, True]
    with pytest.raises(ChannelError):
        bench.consume(5, exclusive=True)


def test_a_single_active_consumer_stays_active_whoever_else_leaves() -> None:
    bench = QueueBench(single_active_consumer=True)
    for number, priority in ((1, 0), (2, 5), (3, 0)):
        bench.consume(number, priority=priority)
    bench.process.cancel(channel(3), "t")
    bench.publish(2)
    assert bench.deliveries() == ["1.t: 1 2"]


def test_cancel_leaves_unacked_messages_with_the_channel() -> None:
    bench = QueueBench()
    bench.consume()
    bench.publish(2)
    bench.process.cancel(channel(1), "t")
    bench.check()
    assert bench.deliveries() == ["1.t: 1 2"], "what was on its way goes before the cancel-ok"
    bench.publish(1)
    assert bench.deliveries() == []
    bench.ack(1, 1)
    bench.process.channel_down(channel(1))
    assert bench.ready == [2, 3]
    bench.process.cancel(channel(1), "never there")


def test_an_auto_delete_queue_asks_for_its_end_when_the_last_consumer_leaves() -> None:
    bench = QueueBench(auto_delete=True)
    bench.process.get(channel(3), no_ack=False)
    bench.process.channel_down(channel(3))
    assert bench.drain() == [], "it never had a consumer"
    bench.consume(1)
    bench.consume(2)
    bench.process.cancel(channel(1), "t")
    assert bench.drain() == []
    bench.process.channel_down(channel(2))
    assert bench.drain() == ["delete unused"]


def test_consumers_that_are_merely_cut_off_may_return_to_an_auto_delete_queue() -> None:
    """Who has the queue deleted waits for them then."""
    bench = QueueBench(auto_delete=True)
    bench.consume(1)
    bench.process.cancel(channel(1), "t")
    assert bench.drain() == ["delete unused"]
    for may_return in (False, True):
        bench.consume(1)
        bench.process.channel_down(channel(1), may_return=may_return)
        assert bench.drain() == ["delete unused, may return" if may_return else "delete unused"]
    bench.process.was_consumed()
    assert bench.drain() == ["delete unused, may return"], "by somebody who comes from an earlier master"
    bench.consume(1)
    bench.consume(2)
    bench.process.channel_down(channel(1), may_return=True)
    assert bench.drain() == ["delete unused, may return"], "the one that is there may be cancelled before"


# --- settling ---


def test_a_requeued_message_returns_to_its_place_and_is_flagged() -> None:
    bench = QueueBench()
    bench.consume(1, prefetch_count=3)
    bench.publish(4)
    bench.drain()
    bench.process.cancel(channel(1), "t")
    bench.requeue(1, 3, 1)
    assert bench.ready == [1, 3, 4]
    bench.consume(2)
    assert bench.deliveries() == ["2.t: 1* 3* 4"]


@pytest.mark.parametrize("by_death", [False, True])
def test_what_comes_back_goes_before_what_the_last_drain_left(by_death: bool) -> None:
    bench = QueueBench()
    bench.publish(DISPATCH_MAX + 3)
    assert bench.process.get(channel(2), no_ack=False) is not None
    bench.consume(1)
    bench.drain()
    if by_death:
        bench.process.channel_down(channel(2))
    else:
        bench.requeue(2, 1)
    assert bench.deliveries() == [f"1.t: 1* {DISPATCH_MAX + 2} {DISPATCH_MAX + 3}"]


def test_a_channel_settles_only_what_it_holds() -> None:
    bench = QueueBench()
    bench.consume(1)
    bench.publish(2)
    bench.drain()
    bench.ack(2, 1, 2)
    bench.requeue(2, 1)
    bench.ack(1, 99)
    assert bench.process.unacked == 2
    bench.ack(1, 1)
    bench.ack(1, 1)
    assert bench.storage.live == [2]


def test_channel_down_requeues_in_order_for_the_others() -> None:
    bench = QueueBench()
    bench.consume(1, prefetch_count=4)
    bench.publish(6)
    bench.process.get(channel(1), no_ack=False)
    bench.consume(2, prefetch_count=0)
    bench.drain()
    bench.process.channel_down(channel(1))
    assert bench.deliveries() == ["2.t: 1* 2* 3* 4* 5*"]
    bench.process.channel_down(channel(1))


def test_deliveries_that_were_not_drained_do_not_reach_a_channel_that_is_down() -> None:
    bench = QueueBench()
    bench.consume(1)
    bench.publish(1)
    bench.process.channel_down(channel(1))
    assert bench.drain() == ["confirm 1"]
    assert bench.ready == [1]


def test_get_takes_from_the_head() -> None:
    bench = QueueBench()
    assert bench.process.get(channel(1), no_ack=False) is None
    bench.publish(2)
    first = bench.process.get(channel(1), no_ack=False)
    second = bench.process.get(channel(1), no_ack=True)
    assert first is not None
    assert second is not None
    assert (first.seq_id, second.seq_id, bench.process.ready, bench.process.unacked) == (1, 2, 0, 1)
    bench.ack(1, 1)


def test_a_new_process_takes_back_what_its_predecessor_had_delivered() -> None:
    storage = SteeredQueue()
    before = QueueProcess(queue_record(), storage)
    before.publish(channel(9), [message(1), message(2)], [0, 0])
    before.get(channel(1), no_ack=False)
    QueueProcess(queue_record(), storage).check_invariants()
    assert storage.ready_seq_ids == [1, 2]


def test_a_short_fetch_is_tried_again_at_the_next_drain() -> None:
    bench = QueueBench()
    bench.publish(5)
    bench.storage.fetch_limit = 2
    bench.consume(1)
    bench.consume(2)
    assert bench.deliveries() == ["1.t: 1", "2.t: 2"]
    assert bench.deliveries() == []
    bench.storage.fetch_limit = 3
    assert bench.deliveries() == ["1.t: 3 5", "2.t: 4"]


# --- limits ---


def test_max_length_drops_the_oldest_ready_messages() -> None:
    bench = QueueBench(max_length=3)
    bench.publish(5)
    assert bench.ready == [3, 4, 5]
    assert bench.drain() == ["confirm 1 2 3 4 5"]


def test_what_a_channel_held_when_its_master_ended_is_within_the_limit_again_after_the_first_drain() -> None:
    """Nobody has to publish before (seed 13841)."""
    bench = QueueBench(max_length=2)
    bench.publish(1)
    bench.consume(prefetch_count=1)
    bench.publish(2)
    assert bench.deliveries() == ["1.t: 1"]
    bench.process = QueueProcess(queue_record(arguments={"x-max-length": 2}), bench.storage)
    assert bench.ready == [1, 2, 3]
    assert bench.process.has_more
    bench.drain()
    assert bench.ready == [2, 3]
    assert not bench.process.has_more


def test_max_length_counts_only_what_consumers_leave() -> None:
    bench = QueueBench(max_length=1)
    bench.publish(1)
    bench.consume(prefetch_count=2)
    bench.publish(3)
    assert bench.deliveries() == ["1.t: 1 2"]
    assert bench.storage.live == [1, 2, 4]
    bench.requeue(1, 1)
    assert bench.storage.live == [2, 4], "a requeue that overflows drops from the head too"


def test_max_length_bytes_counts_bodies() -> None:
    bench = QueueBench(max_length_bytes=10)
    bench.publish(3, body=b"1234")
    assert bench.ready == [2, 3]
    bench.publish(1, body=b"12345678901")
    assert bench.ready == [], "a message above the limit does not fit at all"


def test_reject_publish_refuses_the_newest() -> None:
    bench = QueueBench(max_length=2, overflow="reject-publish")
    bench.publish(3)
    bench.publish(1, confirm=False)
    assert bench.drain() == ["confirm 1 2", "reject 3"]
    bench.consume(prefetch_count=1)
    bench.publish(2)
    assert bench.deliveries() == ["1.t: 1"]
    assert bench.ready == [2, 3], "what was delivered made room for one"


def test_reject_publish_by_bytes_lets_smaller_ones_in() -> None:
    bench = QueueBench(max_length_bytes=10, overflow="reject-publish")
    bench.publish(1, body=b"x" * 8)
    bench.publish(1, body=b"x" * 3)
    bench.publish(1, body=b"x" * 2)
    bench.consume()
    bench.publish(1, body=b"x" * 11)
    assert [text for text in bench.drain() if "confirm" in text or "reject" in text] == ["confirm 1 3", "reject 2 4"]


def test_a_policy_lowers_a_limit_at_once_and_the_smaller_one_counts() -> None:
    bench = QueueBench(max_length=100)
    bench.publish(5)
    bench.process.set_options(queue_options({"x-max-length": 100}, {"max-length": 2}))
    assert bench.ready == [4, 5]
    assert queue_options({"x-max-length": 1, "x-overflow": "drop-head"}, {"max-length": 9, "overflow": "x"}) == (
        QueueOptions(max_length=1)
    )


# --- the queue as a whole ---


def test_purge_spares_unacked_messages() -> None:
    bench = QueueBench()
    bench.consume(prefetch_count=1)
    bench.publish(4)
    assert bench.process.purge() == 3
    assert bench.process.unacked == 1


def test_a_mastership_that_ends_delivers_nothing_any_more() -> None:
    bench = QueueBench()
    bench.publish(2)
    bench.consume(1)
    bench.process.hold()
    assert bench.process.is_closed
    bench.publish(1)
    assert bench.drain() == ["confirm 1 2"]
    with pytest.raises(ChannelError):
        bench.process.get(channel(2), no_ack=True)
    assert bench.ready == [1, 2]


def test_to_publish_nothing_does_nothing() -> None:
    bench = QueueBench()
    bench.process.publish(channel(1), [], [])
    assert bench.drain() == []

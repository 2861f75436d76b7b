"""Much that goes back to its queue goes in steps, and nobody sees the middle of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from node.errors import ChannelError
from node.ids import SeqId
from node.queues import returns
from node.queues.length_limits import DROP_MAX
from node.queues.options import queue_options
from node.queues.queue_process import DISPATCH_MAX
from node.queues.returns import RETURN_MAX
from tests.support.amounts import few_examples
from tests.support.queue_bench import QueueBench, channel

HOLDER, OTHER = channel(1), channel(2)


def holding(count: int, *, ready: int = 0, single: bool = False) -> QueueBench:
    """A queue of which channel 1 holds ``count`` messages, the first ones; ``ready`` are behind them."""
    bench = QueueBench()
    bench.publish(count + ready, confirm=False)
    while bench.process.unacked < count:
        delivery = bench.process.get(HOLDER, no_ack=False)
        assert delivery is not None
    return bench


def turns_to_return(bench: QueueBench) -> int:
    turns = 0
    while bench.process.ready and bench.storage.unacked:
        before = bench.storage.unacked
        assert bench.process.has_more
        bench.drain()
        assert before - bench.storage.unacked <= RETURN_MAX, "one turn returns so many"
        turns += 1
    return turns


def test_what_a_dead_channel_held_returns_in_bounded_turns() -> None:
    bench = holding(5_000, ready=10)
    bench.process.channel_down(HOLDER)
    assert (bench.process.ready, bench.process.unacked) == (5_010, 0), "to everybody who asks it is back"
    assert bench.storage.unacked == 5_000
    bench.check()
    assert turns_to_return(bench) == -(-5_000 // RETURN_MAX)
    assert bench.ready == list(range(1, 5_011))
    bench.drain()
    assert not bench.process.has_more


def test_what_is_little_returns_at_once() -> None:
    bench = holding(RETURN_MAX)
    bench.process.channel_down(HOLDER)
    assert bench.storage.unacked == 0
    assert not bench.process.has_more


def test_nobody_is_served_before_all_are_back_and_then_in_order() -> None:
    bench = holding(3_000, ready=100)
    bench.consume(2)
    bench.drain()  # what is ready is delivered
    bench.publish(50, confirm=False)
    bench.drain()
    bench.process.channel_down(HOLDER)
    bench.publish(50, confirm=False)
    seen: list[str] = []
    while not seen:
        assert bench.process.get(channel(3), no_ack=True) is None
        seen += bench.deliveries()
        assert bench.process.has_more
    assert bench.storage.unacked <= 100 + 50 + DISPATCH_MAX
    assert seen[0].startswith("2.t: 1* 2* 3* ")


def test_a_message_that_comes_meanwhile_does_not_go_past_those_that_return() -> None:
    bench = holding(3_000)
    bench.consume(2)
    bench.process.channel_down(HOLDER)
    bench.publish(1, confirm=False)
    bench.consume(3, no_ack=True)
    bench.publish(1, confirm=False)
    delivered = " ".join(text for _ in range(40) for text in bench.deliveries()).replace("*", "")
    numbers = [int(each) for each in delivered.split() if each.isdigit()]
    assert sorted(numbers) == list(range(1, 3_003))
    assert numbers.index(3_001) > 2_900


def test_pieces_of_a_live_channel_hold_deliveries_back_until_the_last() -> None:
    bench = holding(6, ready=2)
    bench.process.requeue(HOLDER, [SeqId(5), SeqId(6)], more_follow=True)
    bench.consume(2)
    assert bench.deliveries() == []
    assert not bench.process.has_more, "it waits for the channel, not for a turn"
    bench.process.requeue(HOLDER, [SeqId(1), SeqId(2)], more_follow=True)
    bench.publish(1, confirm=False)
    assert bench.deliveries() == []
    bench.requeue(1, 4)
    assert bench.deliveries() == [], "something else that comes back meanwhile is not the end"
    bench.process.requeue(HOLDER, [])
    assert bench.deliveries() == ["2.t: 1* 2* 4* 5* 6* 7 8 9"]


def test_a_channel_that_dies_between_two_pieces_holds_nobody_back() -> None:
    bench = holding(6)
    bench.process.requeue(HOLDER, [SeqId(6)], more_follow=True)
    bench.process.channel_down(HOLDER)
    bench.consume(2)
    assert bench.deliveries() == ["2.t: 1* 2* 3* 4* 5* 6*"]


def test_a_channel_that_says_more_follows_and_holds_nothing_is_forgotten_too() -> None:
    bench = QueueBench()
    bench.process.requeue(HOLDER, [], more_follow=True)
    bench.process.channel_down(HOLDER)
    bench.consume(2)
    bench.publish(1)
    assert bench.deliveries() == ["2.t: 1"]


def test_a_purge_takes_along_what_is_on_its_way_back() -> None:
    bench = holding(3_000, ready=10)
    bench.process.channel_down(HOLDER)
    bench.drain()
    assert bench.process.purge() == 3_010
    assert (bench.process.ready, bench.process.unacked) == (0, 0)
    bench.publish(1, confirm=False)
    bench.consume(2)
    assert bench.deliveries() == ["2.t: 3011"], "nothing is to come before it any more"
    turns = 0
    while bench.process.has_more:
        bench.drain()
        turns += 1
    assert 1 <= turns <= 3
    assert bench.storage.unacked == 1


def test_what_was_purged_on_its_way_back_is_gone_before_an_orderly_stop() -> None:
    """A stop leaves on disk, and with the mirrors, what is live."""
    bench = holding(3_000, ready=10)
    bench.process.channel_down(HOLDER)
    assert bench.process.purge() == 3_010
    bench.process.hold()
    bench.check()
    assert bench.storage.live == []


def test_a_queue_whose_messages_are_on_their_way_back_is_not_empty() -> None:
    bench = holding(3_000)
    bench.process.channel_down(HOLDER)
    with pytest.raises(ChannelError):
        bench.process.seal_for_delete(if_unused=False, if_empty=True)
    assert bench.process.seal_for_delete(if_unused=False, if_empty=False) == 3_000
    bench.process.unseal()
    turns_to_return(bench)
    assert bench.process.ready == 3_000


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_deletion_does_not_wait_for_them(is_purged: bool) -> None:
    bench = holding(3_000)
    bench.process.channel_down(HOLDER)
    if is_purged:
        bench.process.purge()
    bench.process.seal_for_delete(if_unused=False, if_empty=False)
    bench.process.delete()
    bench.process.check_invariants()
    assert not bench.storage.has_files
    assert not bench.process.has_more


def test_a_limit_is_applied_when_all_are_back_and_drops_what_one_requeue_would_have_dropped() -> None:
    bench = holding(3_000, ready=100)
    bench.process.set_options(queue_options({}, {"max-length": 100}))
    bench.process.channel_down(HOLDER)
    bench.publish(5, confirm=False)
    turns = 0
    while bench.process.has_more:
        bench.drain()
        turns += 1
    assert bench.ready == list(range(3_006, 3_106))
    assert turns <= -(-3_000 // RETURN_MAX) + -(-3_000 // DROP_MAX) + 1


FULL = [{"max-length": 3_000}, {"max-length-bytes": 3_000}]


@pytest.mark.parametrize("limit", FULL)
def test_a_full_queue_that_refuses_does_so_while_its_messages_are_on_their_way_back(limit: dict[str, int]) -> None:
    bench = QueueBench(overflow="reject-publish")
    bench.publish(3_000, body=b"1", confirm=False)
    for _ in range(3_000):
        bench.process.get(HOLDER, no_ack=False)
    bench.process.set_options(queue_options({"x-overflow": "reject-publish"}, limit))
    bench.process.channel_down(HOLDER)
    bench.publish(2, body=b"1")
    said = list(bench.drain())
    bench.publish(1, body=b"1")
    while bench.process.has_more:
        bench.check()
        said += bench.drain()
    assert said == ["reject 3001 3002 3003"]
    assert bench.process.ready == 3_000


def test_what_waits_for_room_is_taken_when_the_policy_refuses_no_longer() -> None:
    bench = QueueBench()
    bench.process.set_options(queue_options({}, {"max-length": 3_000, "overflow": "reject-publish"}))
    bench.publish(3_000, confirm=False)
    for _ in range(3_000):
        bench.process.get(HOLDER, no_ack=False)
    bench.process.channel_down(HOLDER)
    bench.publish(1)
    bench.process.set_options(queue_options({}, {}))
    bench.publish(1)
    assert bench.drain() == ["confirm 3001 3002"]
    drain_all(bench)
    assert bench.ready == list(range(1, 3_003))


def test_a_seal_that_ends_meanwhile_lets_nobody_past() -> None:
    bench = QueueBench(max_length=3_000, overflow="reject-publish")
    bench.publish(3_000, confirm=False)
    for _ in range(3_000):
        bench.process.get(HOLDER, no_ack=False)
    bench.process.channel_down(HOLDER)
    bench.publish(1)
    bench.process.seal_for_delete(if_unused=False, if_empty=False)
    bench.publish(1)
    assert bench.drain() == []
    bench.process.unseal()
    bench.check()
    bench.publish(1)
    said = list(bench.drain())
    while bench.process.has_more:
        said += bench.drain()
    assert said == ["reject 3001 3002 3003"]


def drain_all(bench: QueueBench) -> None:
    """Until there is no work left."""
    while bench.process.has_more:
        bench.drain()


@few_examples(
    30,
    300,
    held=st.lists(st.integers(1, 40), unique=True),
    acked=st.lists(st.integers(1, 40), unique=True, max_size=5),
    limit=st.one_of(
        st.none(), st.builds(lambda n: {"max-length": n}, st.integers(0, 40)), st.builds(
            lambda n: {"max-length-bytes": n}, st.integers(0, 90)
        )
    ),
    piece=st.integers(1, 7),
    by_death=st.booleans(),
)  # fmt: skip
def test_steps_end_where_one_step_does(
    held: Sequence[int], acked: Sequence[int], limit: dict[str, int] | None, piece: int, by_death: bool
) -> None:
    """Whatever is held and acked, whatever the limit, however small the steps."""
    ends = []
    for step in (piece, 1_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(returns, "RETURN_MAX", step)
            patch.setattr("node.queues.queue_process.DROP_MAX", step)
            patch.setattr("node.queues.queue_process.DROP_AT_ONCE", step)
            bench = QueueBench()
            bench.publish(40, confirm=False)
            for seq_id in range(1, 41):
                assert bench.process.get(HOLDER if seq_id in held else OTHER, no_ack=False) is not None
            bench.process.requeue(OTHER, [SeqId(each) for each in range(1, 41) if each not in held])
            bench.ack(1, *acked)
            bench.process.set_options(queue_options({}, limit or {}))
            drain_all(bench)
            given_back = [SeqId(each) for each in held]
            if by_death:
                bench.process.channel_down(HOLDER)
            else:
                for at in range(0, len(given_back), step):
                    bench.process.requeue(HOLDER, given_back[at : at + step], more_follow=True)
                bench.process.requeue(HOLDER, [])
            drain_all(bench)
            bench.check()
            assert bench.process.unacked == 0
            ends.append((bench.ready, bench.storage.status()))
    assert ends[0] == ends[1]

"""What a queue refused comes again, because its publisher's node did not hear of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from node.queues import refusals
from node.queues.events import ConfirmPublished, GrantCredit, RejectPublished
from node.queues.refusals import OF_ORIGIN_MAX, Refusals
from tests.support.amounts import few_examples
from tests.support.messages import make_msg_id
from tests.support.queue_bench import QueueBench, channel, message, origin

#: Who fills the queue.
FILLER = 9_999


@pytest.fixture
def little_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to nothing is remembered."""
    monkeypatch.setattr(refusals, "OF_ORIGIN_MAX", 8)
    monkeypatch.setattr(refusals, "REFUSED_MAX", 32)
    monkeypatch.setattr(refusals, "ORIGINS_MAX", 16)


def test_what_was_refused_and_comes_again_is_decided_on_anew_though_later_ones_were_accepted() -> None:
    """The link broke before the publisher's node heard any of it."""
    bench = answers_lost()
    bench.publish_again(1, 2, 3, 4)
    assert bench.drain() == ["confirm 3 1 2 4"], "there is room by now"
    assert bodies(bench) == [b"4", b"3"]
    bench.publish_again(3)
    assert bodies(bench) == [b"4", b"3"], "now it is known"


def test_what_was_accepted_after_a_refusal_is_known_when_it_comes_a_third_time() -> None:
    bench = QueueBench(max_length=2, overflow="reject-publish")
    bench.publish(3)
    bench.process.purge()
    bench.publish_again(3)
    assert bench.drain() == ["confirm 1 2 3", "reject 3"]
    bench.publish_again(3)
    assert bodies(bench) == [b"3"]


def test_what_comes_again_before_its_refusal_was_said_is_refused_or_taken_and_not_both() -> None:
    """The link was there again before the queue had its turn, as with thousands of others that have theirs first."""
    bench = QueueBench(max_length=2, overflow="reject-publish")
    bench.publish(4)
    bench.process.channel_down(channel(1000), may_return=True)
    bench.process.purge()
    bench.publish_again(1, 2, 3)
    assert bench.drain() == ["confirm 1 2 3 1 2"]
    bench.publish_again(4)
    assert bench.drain() == ["confirm 4"]
    assert bodies(bench) == [b"3", b"4"]


def test_what_was_refused_and_comes_again_to_a_full_queue_is_refused_again() -> None:
    bench = QueueBench(max_length_bytes=10, overflow="reject-publish")
    bench.publish(1, body=b"x" * 11)
    bench.publish(1, body=b"x" * 10)
    bench.drain()
    bench.process.publish(channel(1), [message(1, b"x" * 11), message(2, b"x" * 10)], [1, 2])
    assert bench.drain() == ["confirm 2", "reject 1"]


@pytest.mark.parametrize("others", [1, 2, 40])
def test_refusals_of_others_do_not_make_a_queue_forget_one(others: int) -> None:
    """They hear theirs at once, and go on publishing to the full queue."""
    bench = answers_lost()
    fill(bench)
    for first in range(1, 1 + OF_ORIGIN_MAX * 3, 64):
        refuse(bench, 1 + first // 64 % others, range(first, first + 64))
    bench.process.purge()
    bench.publish_again(1, 2, 3, 4)
    assert bench.drain() == ["confirm 3 1 2 4"]
    assert bodies(bench) == [b"3"], "what it accepted of them is known"


@pytest.mark.usefixtures("little_place")
def test_refusals_that_nobody_waits_for_are_not_remembered() -> None:
    """They are never sent again, once a master was given them."""
    bench = answers_lost()
    fill(bench)
    for number in range(1, 18):
        bench.process.publish(channel(number), [message(1, from_origin=10_000 + number)], [0])
    bench.process.purge()
    bench.publish_again(1, 2, 3, 4)
    assert bodies(bench) == [b"3"]


@pytest.mark.usefixtures("little_place")
def test_a_channel_that_is_closed_sends_nothing_again() -> None:
    bench = answers_lost()
    fill(bench)
    for number in range(1, 18):
        refuse(bench, number, [1])
        bench.process.channel_down(channel(number))
    bench.process.purge()
    bench.publish_again(1, 2, 3, 4)
    assert bodies(bench) == [b"3"]


def test_a_channel_that_may_return_sends_again() -> None:
    bench = answers_lost()
    bench.process.channel_down(channel(1000), may_return=True)
    bench.publish_again(1, 2, 3, 4)
    assert bodies(bench) == [b"4", b"3"]


def test_a_channel_that_is_closed_and_had_sent_for_two_takes_the_latest_with_it() -> None:
    """What it had sent for the first was refused to another since."""
    refusals = Refusals()
    refusals.add(channel(1), [make_msg_id(origin(1), 1)])
    refusals.add(channel(1), [make_msg_id(origin(2), 1)])
    refusals.add(channel(2), [make_msg_id(origin(1), 2)])
    refusals.check_invariants()
    refusals.channel_closed(channel(1))
    assert not refusals.take(make_msg_id(origin(2), 1))
    assert refusals.take(make_msg_id(origin(1), 1))


@pytest.mark.usefixtures("little_place")
def test_nothing_refused_is_confirmed_though_too_many_origins_were_refused_since() -> None:
    """The price: what this one had accepted may be there twice."""
    bench = answers_lost()
    fill(bench)
    for number in range(1, 18):
        refuse(bench, number, [1])
    bench.process.purge()
    bench.publish_again(3, 4)
    assert b"3" in bodies(bench)


@pytest.mark.usefixtures("little_place")
def test_of_an_origin_that_was_forgotten_and_is_refused_again_no_earlier_counter_is_believed() -> None:
    bench = answers_lost()
    fill(bench)
    for number in range(1, 18):
        refuse(bench, number, [1])
    refuse(bench, 1, [5], by=1000)
    bench.process.purge()
    bench.publish_again(3)
    assert bodies(bench) == [b"3"]


@pytest.mark.usefixtures("little_place")
def test_nothing_refused_is_confirmed_though_very_much_was_refused_since() -> None:
    bench = answers_lost()
    fill(bench)
    for number in range(1, 6):
        refuse(bench, number, range(1, 9))
    bench.process.purge()
    bench.publish_again(3, 4)
    assert bodies(bench) == [b"3"], "of what came later than any refusal it is known"


@pytest.mark.usefixtures("little_place")
def test_nothing_refused_is_confirmed_though_its_own_publisher_was_refused_very_often_since() -> None:
    bench = answers_lost()
    fill(bench)
    refuse(bench, 1, range(5, 14), by=1000)
    bench.process.purge()
    bench.publish_again(3)
    bench.drain()
    assert bodies(bench) == [b"3"]
    bench.publish_again(3)
    assert bodies(bench) == [b"3"], "it is decided on once"


def test_a_publisher_hears_of_refusals_before_it_may_send_more() -> None:
    """So who sends on has heard of them, whenever the link breaks."""
    bench = QueueBench(max_length=0, overflow="reject-publish")
    bench.process.flow.begin(channel(1000), 1)
    bench.publish(2)
    assert bench.process.drain() == [RejectPublished(channel(1000), [1, 2]), GrantCredit(channel(1000), 2)]


@few_examples(
    150,
    2_000,
    steps=st.lists(
        st.tuples(
            st.sampled_from(["publish", "publish", "publish again", "purge"]),
            st.integers(1, 4),
            st.integers(1, 6),
            st.booleans(),
        ),
        max_size=25,
    ),
)
def test_whatever_is_forgotten_nothing_is_confirmed_that_was_never_in_the_queue(
    steps: Sequence[tuple[str, int, int, bool]],
) -> None:
    """Four origins publish to a short queue, which remembers next to nothing. A publisher hears all answers so far, or
    none; it sends again whatever it has not heard of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refusals, "OF_ORIGIN_MAX", 3)
        patch.setattr(refusals, "REFUSED_MAX", 5)
        patch.setattr(refusals, "ORIGINS_MAX", 2)
        bench = QueueBench(max_length=2, overflow="reject-publish")
        unheard: dict[int, list[int]] = {number: [] for number in range(1, 5)}
        last = dict.fromkeys(unheard, 0)
        accepted: set[bytes] = set()
        for what, number, count, is_heard in steps:
            if what == "purge":
                bench.process.purge()
                continue
            if what == "publish":
                unheard[number] += range(last[number] + 1, last[number] + 1 + count)
                sent = unheard[number][-count:]
                last[number] += count
            else:
                sent = list(unheard[number])
            messages = [message(each, b"%d:%d" % (number, each), from_origin=number) for each in sent]
            bench.process.publish(channel(number), messages, sent)
            accepted.update(bodies(bench))
            confirmed = [each for each in bench.process.drain() if isinstance(each, ConfirmPublished)]
            assert {b"%d:%d" % (number, seq) for each in confirmed for seq in each.publish_seqs} <= accepted
            bench.check()
            if is_heard:
                unheard[number] = []


@few_examples(
    100,
    1_000,
    batches=st.lists(
        st.tuples(st.integers(1, 3), st.sets(st.integers(1, 12), min_size=1, max_size=6), st.booleans()), max_size=12
    ),
)
def test_as_long_as_there_is_place_exactly_what_was_refused_is_known(
    batches: Sequence[tuple[int, set[int], bool]],
) -> None:
    table = Refusals()
    refused: set[tuple[int, int]] = set()
    for number, counters, is_refused in batches:
        for counter in sorted(counters):
            assert table.take(make_msg_id(origin(number), counter)) == ((number, counter) in refused)
            refused.discard((number, counter))
        if is_refused:
            table.add(channel(number), [make_msg_id(origin(number), counter) for counter in sorted(counters)])
            refused |= {(number, counter) for counter in counters}
        table.check_invariants()


def answers_lost() -> QueueBench:
    """One publisher sent 1 to 4, of which 3 was refused; the answers are lost with the link. The queue has 4."""
    bench = QueueBench(max_length=2, overflow="reject-publish")
    bench.publish(3)
    bench.process.purge()
    bench.publish(1)
    assert bench.drain() == ["confirm 1 2 4", "reject 3"]
    return bench


def fill(bench: QueueBench) -> None:
    """By somebody else."""
    bench.process.publish(channel(FILLER), [message(1, from_origin=FILLER)], [1])
    assert bench.drain() == ["confirm 1"]


def refuse(bench: QueueBench, from_origin: int, counters: Sequence[int], by: int = 0) -> None:
    """Publishes of a channel to a full queue. What the channels 1, 2, ... send are the origins 10001, 10002, ..."""
    number = from_origin if by else 10_000 + from_origin
    messages = [message(counter, from_origin=number) for counter in counters]
    bench.process.publish(channel(by or from_origin), messages, list(counters))
    bench.process.drain()


def bodies(bench: QueueBench) -> list[bytes]:
    """Of what is ready."""
    return [each.body for each in bench.storage.ready_messages()]


@pytest.mark.usefixtures("little_place")
def test_an_origin_that_has_sent_all_of_it_again_is_in_nobodys_way() -> None:
    """It stays the least recently refused, of which nothing is left to forget."""
    refusals = Refusals()
    refusals.add(channel(1), [make_msg_id(origin(1), 1)])
    assert refusals.take(make_msg_id(origin(1), 1))
    for number in range(2, 8):
        refusals.add(channel(number), [make_msg_id(origin(number), counter) for counter in range(1, 9)])
        refusals.check_invariants()
    assert refusals.take(make_msg_id(origin(7), 8))
    assert not refusals.take(make_msg_id(origin(1), 1))

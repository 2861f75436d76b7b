"""What is counted over time, and when."""

from __future__ import annotations

import pytest

from chaos.judge.figures import STEPS_MAX, Figures, figures_of, step_us
from chaos.judge.latency import bin_of
from chaos.judge.windows import BUCKET_US, Bucket
from chaos.record.kinds import Ending, Kind
from tests.support.told import CONSUMING, HARNESS, PUBLISHING, QUEUE, SECOND_US, Told, key

#: Told happens a second after the other.
BUCKETS_PER_SECOND = SECOND_US // BUCKET_US


def of(told: Told, *lost: int) -> Figures:
    return figures_of(told.events, {key(number) for number in lost})


def buckets(told: Told, *lost: int) -> dict[int, Bucket]:
    """By the second, of the queue."""
    return {bucket.number // BUCKETS_PER_SECOND: bucket for bucket in of(told, *lost).buckets.get(QUEUE, ())}


def at(second: int, **counts: int) -> Bucket:
    return Bucket(second * BUCKETS_PER_SECOND, **counts)


def test_a_message_on_its_way() -> None:
    told = Told().publish(1).confirm(1).deliver(1).ack(1).prove(1)
    assert buckets(told) == {
        1: at(1, intended=1),
        2: at(2, concluded=1, stored=1, confirms=1),
        3: at(3, fetched=1, deliveries=1),
    }
    assert (of(told).begin_us, of(told).end_us) == (1 * SECOND_US, 3 * SECOND_US)


def test_what_is_late_was_intended_before() -> None:
    told = Told().add(HARNESS, Kind.PHASE).add(HARNESS, Kind.PHASE)
    told.add(PUBLISHING, Kind.PUBLISH, message=key(1), channel=100, tag=1, number=2 * SECOND_US).confirm(1)
    assert buckets(told) == {1: at(1, intended=1), 4: at(4, concluded=1, confirms=1)}
    [bins] = of(told).latencies.values()
    assert bins == {bin_of(3 * SECOND_US): 1}


def test_an_attempt_that_is_not_the_first_was_intended_with_it_and_concludes_the_message() -> None:
    told = Told().publish(1).answer(Kind.UNRESOLVED, 1).publish(1, attempt=2).answer(Kind.CONFIRM, 1, attempt=2)
    assert buckets(told) == {1: at(1, intended=1), 4: at(4, concluded=1, confirms=1)}


def test_what_is_given_up_is_concluded_and_has_no_latency() -> None:
    told = Told().publish(1).answer(Kind.REFUSE, 1).answer(Kind.GIVEN_UP, 1)
    assert buckets(told) == {1: at(1, intended=1), 3: at(3, concluded=1)}
    assert of(told).latencies == {}


def test_what_was_returned_is_not_concluded_by_its_confirm() -> None:
    told = Told().publish(1).answer(Kind.RETURN, 1).confirm(1)
    assert buckets(told) == {1: at(1, intended=1), 3: at(3, confirms=1)}


def test_what_is_delivered_before_its_confirm_was_never_waited_for() -> None:
    told = Told().publish(1).deliver(1).confirm(1)
    assert buckets(told) == {1: at(1, intended=1), 2: at(2, deliveries=1), 3: at(3, concluded=1, confirms=1)}


def test_every_delivery_of_a_message_but_the_first_is_a_repeat() -> None:
    told = Told().confirmed(1).deliver(1).release(1).again(1).release(1, on="B").again(1, on="A")
    found = buckets(told)
    assert {second: bucket.repeats for second, bucket in found.items() if bucket.deliveries} == {3: 0, 5: 1, 7: 1}


def test_what_is_lost_was_lost_when_it_was_confirmed() -> None:
    found = buckets(Told().confirmed(1, 2), 2)
    assert sum(bucket.lost for bucket in found.values()) == 1
    assert [second for second, bucket in found.items() if bucket.lost] == [
        second for second, bucket in found.items() if bucket.confirms
    ][-1:]


def test_what_is_said_of_the_cluster_is_kept_and_channels_that_were_closed_are_no_news() -> None:
    told = Told().promote(2).add(HARNESS, Kind.DEPTH, queue=QUEUE, number=7)
    for ending in Ending:
        told.add(CONSUMING["A"], Kind.CHANNEL_OVER, channel=200, number=ending)
    told.add(HARNESS, Kind.PROCESS_END)
    kinds = [(event.kind, event.number) for event in of(told).notices]
    assert kinds == [
        (Kind.PROMOTED, 0),
        (Kind.DEPTH, 7),
        (Kind.CHANNEL_OVER, Ending.BY_BROKER),
        (Kind.CHANNEL_OVER, Ending.LOST),
    ]


def test_nothing_happened() -> None:
    assert of(Told()) == Figures(0, 0, {}, {}, [])


@pytest.mark.parametrize("length_s", [0, 1, 47, 48, 3_600, 36_000, 1_000_000])
def test_steps_cover_the_time_and_are_few(length_s: int) -> None:
    begin_us = 1_790_000_000 * SECOND_US
    length_us = step_us(begin_us, begin_us + length_s * SECOND_US)
    assert length_us % BUCKET_US == 0
    assert length_s * SECOND_US // length_us < STEPS_MAX

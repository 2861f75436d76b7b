"""Times without service, from counts in buckets."""

from __future__ import annotations

import pytest

from chaos.judge.windows import (
    AFTERMATH_US,
    BUCKET_US,
    WINDOW_US_MIN,
    Bucket,
    Service,
    Span,
    Window,
    causes,
    longest_us,
    windows,
)

#: Buckets of the shortest window.
SHORT = WINDOW_US_MIN // BUCKET_US
ALWAYS = [Span(0)]


def publishing(begin: int, end: int) -> Window:
    return Window(Service.PUBLISH, 1, begin * BUCKET_US, end * BUCKET_US)


def consuming(begin: int, end: int) -> Window:
    return Window(Service.CONSUME, 1, begin * BUCKET_US, end * BUCKET_US)


def found(*buckets: Bucket, consumers: list[Span] = ALWAYS) -> list[Window]:
    return windows(1, buckets, consumers)


def test_steady_service_has_no_window() -> None:
    steady = [
        Bucket(number, intended=5, concluded=5, stored=5, fetched=5, confirms=5, deliveries=5) for number in range(1000)
    ]
    assert found(*steady) == []


def test_who_wants_nothing_misses_nothing() -> None:
    assert found(Bucket(0, intended=1, concluded=1, confirms=1), Bucket(900, intended=1, concluded=1, confirms=1)) == []


def test_a_message_that_waits_for_its_confirm_makes_a_window_up_to_it() -> None:
    assert found(Bucket(10, intended=2, concluded=1, confirms=1), Bucket(60, concluded=1, confirms=1)) == [
        publishing(11, 60)
    ]


def test_a_confirm_of_another_is_service() -> None:
    buckets = [Bucket(0, intended=1)]
    buckets += [Bucket(number, intended=1, concluded=1, confirms=1) for number in range(SHORT, 10 * SHORT, SHORT)]
    assert found(*buckets) == []


@pytest.mark.parametrize(("length", "is_told"), [(SHORT - 1, False), (SHORT, True)])
def test_short_windows_are_not_told_of(length: int, is_told: bool) -> None:
    assert bool(found(Bucket(0, intended=1), Bucket(1 + length, concluded=1, confirms=1))) == is_told


def test_what_is_given_up_is_wanted_no_longer() -> None:
    assert found(Bucket(0, intended=1), Bucket(50, concluded=1), Bucket(900)) == [publishing(1, 50)]


def test_what_is_never_confirmed_is_wanted_to_the_end() -> None:
    assert found(Bucket(0, intended=1), Bucket(99)) == [publishing(1, 100)]


def test_a_window_begins_where_somebody_begins_to_want() -> None:
    last = Bucket(0, intended=1, concluded=1, confirms=1)
    assert found(last, Bucket(500, intended=1), Bucket(600, concluded=1, confirms=1)) == [publishing(501, 600)]


def test_what_lies_in_the_queue_makes_a_window_of_consuming() -> None:
    assert found(Bucket(0, stored=2), Bucket(80, fetched=2, deliveries=2)) == [consuming(1, 80)]


def test_a_repeat_is_service_too() -> None:
    repeats = [Bucket(number, deliveries=1) for number in range(SHORT, 10 * SHORT, SHORT)]
    assert found(Bucket(0, stored=1), *repeats, Bucket(10 * SHORT, fetched=1, deliveries=1)) == []


def test_consumers_that_want_nothing_miss_nothing() -> None:
    buckets = [Bucket(0, stored=1), Bucket(200, fetched=1, deliveries=1)]
    assert found(*buckets, consumers=[]) == []
    assert found(*buckets, consumers=[Span(0, 50 * BUCKET_US), Span(150 * BUCKET_US)]) == [
        consuming(1, 50),
        consuming(150, 200),
    ]


def test_both_are_told_by_their_beginning() -> None:
    assert found(Bucket(0, intended=1), Bucket(5, stored=1), Bucket(100, 0, 1, 0, 1, 1, 1)) == [
        publishing(1, 100),
        consuming(6, 100),
    ]


def test_a_window_is_put_down_to_faults_that_held_or_had_just_ended() -> None:
    window = publishing(2_000, 2_100)
    began_us = window.begin_us
    faults = [
        (1, Span(began_us - 5_000_000)),
        (2, Span(began_us - 9_000_000, began_us - 1)),
        (3, Span(0, began_us - AFTERMATH_US - 1)),
        (4, Span(began_us + BUCKET_US)),
        (5, Span(began_us + BUCKET_US + 1)),
    ]
    assert causes(window, faults) == [1, 2, 4]


def test_the_longest_of_each() -> None:
    both = [publishing(0, 5), publishing(9, 12), consuming(0, 7)]
    assert longest_us(both, Service.PUBLISH) == 5 * BUCKET_US
    assert longest_us(both, Service.CONSUME) == 7 * BUCKET_US
    assert longest_us([], Service.CONSUME) == 0

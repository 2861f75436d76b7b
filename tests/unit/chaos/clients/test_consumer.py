"""What a consumer records of which frame, and what it writes then."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from chaos.clients import consumer as consumer_module
from chaos.clients.consumer import Ack, Ask, Consumer, Frame, Nack, Reject
from chaos.clients.options import ConsumerOptions, QueueTarget
from chaos.record.kinds import Ending, Flag, Kind
from chaos.record.message_key import MessageKey
from tests.support.recorded_rows import RecordedRows, Row

CHANNEL = 55
QUEUE = QueueTarget(2, "q")
MULTIPLE = int(Flag.MULTIPLE)


def key(sequence: int, queue: int = 2) -> int:
    return MessageKey(queue, 1, sequence, 1).pack()


class Chances(Random):
    """Draws these, then nothing but 0.99."""

    def __init__(self, *draws: float) -> None:
        super().__init__(0)
        self.draws = list(draws)

    def random(self) -> float:
        return self.draws.pop(0) if self.draws else 0.99


class Scene:
    """A consumer with an open channel, its rows, and a clock."""

    def __init__(self, *draws: float, **options: Any) -> None:
        self.rows = RecordedRows()
        self.consumer = Consumer(ConsumerOptions((QUEUE,), **options), QUEUE, self.rows, Chances(*draws))
        self.now_us = 1_000_000
        self.consumer.channel_opened(CHANNEL, node=1, since_us=self.now_us, now_us=self.now_us)
        self.tag = 0
        self.rows.news()

    def deliver(self, count: int = 1) -> list[bool]:
        """The next messages: message i has tag i."""
        due = []
        for _ in range(count):
            self.tag += 1
            due.append(self.consumer.received(self.tag, key(self.tag), True, False, self.now_us))
        self.consumer.check_invariants()
        self.rows.news()
        return due

    def take(self, after_ms: int = 0) -> list[Frame]:
        self.now_us += after_ms * 1000
        frames = self.consumer.take(self.now_us)
        self.consumer.check_invariants()
        return frames

    def answer(self) -> list[Row]:
        self.rows.news()
        self.consumer.answered(self.now_us)
        self.consumer.check_invariants()
        return self.rows.news()

    def lose(self) -> list[Row]:
        self.rows.news()
        self.consumer.channel_over(Ending.BY_BROKER, "404", self.now_us - 200, self.now_us)
        self.consumer.check_invariants()
        return self.rows.news()


def rows(kind: Kind, *tags: int, flags: int = 0) -> list[Row]:
    return [Row(kind, key(tag), CHANNEL, tag, flags) for tag in tags]


# --- deliveries


def test_a_delivery_is_recorded_as_it_came() -> None:
    scene = Scene()
    scene.consumer.received(1, key(1), True, False, scene.now_us)
    scene.consumer.received(2, key(2), False, True, scene.now_us)
    scene.consumer.received(3, 0, True, False, scene.now_us)
    scene.consumer.received(4, key(4, queue=1), True, True, scene.now_us)
    assert scene.rows.news() == [
        Row(Kind.DELIVER, key(1), CHANNEL, 1),
        Row(Kind.DELIVER, key(2), CHANNEL, 2, int(Flag.REDELIVERED | Flag.CORRUPT)),
        Row(Kind.DELIVER, 0, CHANNEL, 3),
        Row(Kind.DELIVER, key(4, queue=1), CHANNEL, 4, int(Flag.REDELIVERED), {"queue": 2}),
    ]


# --- settling


def test_a_full_group_is_settled_by_one_frame_and_a_question_follows() -> None:
    scene = Scene(group=3)
    assert scene.deliver(3) == [False, False, True]
    assert scene.take() == [Ack(3, True), Ask()]
    assert scene.rows.news() == rows(Kind.ACK, 1, 2, 3, flags=MULTIPLE)


def test_a_group_of_one_is_settled_by_itself() -> None:
    scene = Scene(group=1)
    scene.deliver(2)
    assert scene.take() == [Ack(1, False), Ack(2, False), Ask()]
    assert scene.rows.news() == rows(Kind.ACK, 1, 2)


def test_what_does_not_fill_a_group_is_settled_after_its_wait() -> None:
    scene = Scene(group=3, group_wait_ms=20)
    scene.deliver(2)
    assert scene.take(after_ms=19) == []
    scene.deliver(1)
    assert scene.take() == [Ack(3, True), Ask()]
    scene.deliver(1)
    assert scene.take(after_ms=20) == [Ack(4, False)]


def test_everything_is_held_as_long_as_asked() -> None:
    scene = Scene(group=2, hold_ms=100, group_wait_ms=20)
    scene.deliver(2)
    assert scene.take(after_ms=50) == []
    assert scene.deliver(2) == [False, False]
    assert scene.take(after_ms=49) == []
    assert scene.take(after_ms=1) == [Ack(2, True), Ask()]
    assert scene.take(after_ms=49) == []
    assert scene.take(after_ms=1) == [Ack(4, True)]


def test_who_is_told_to_hold_settles_nothing_until_released() -> None:
    scene = Scene(group=2, group_wait_ms=20)
    scene.consumer.hold()
    assert scene.deliver(3) == [False, False, False]
    assert scene.take(after_ms=1_000) == []
    assert scene.consumer.held == 3
    scene.consumer.release()
    assert scene.take() == [Ack(2, True), Ack(3, False), Ask()]
    assert scene.consumer.held == 0


def test_who_drains_does_not_hold() -> None:
    scene = Scene(group=2, group_wait_ms=20)
    scene.consumer.hold()
    scene.deliver(1)
    scene.consumer.drain()
    assert scene.take() == [Ack(1, False), Ask()]


def test_of_a_group_that_waited_only_what_was_held_long_enough_is_settled() -> None:
    scene = Scene(group=3, hold_ms=100, group_wait_ms=20)
    scene.deliver(1)
    scene.now_us += 110_000
    scene.deliver(1)
    assert scene.take(after_ms=9) == []
    assert scene.take(after_ms=1) == [Ack(1, False), Ask()]


def test_a_full_group_waits_until_its_last_was_held_long_enough() -> None:
    scene = Scene(group=2, hold_ms=100, group_wait_ms=50)
    scene.deliver(1)
    scene.now_us += 90_000
    scene.deliver(1)
    assert scene.take(after_ms=20) == []


def test_the_whole_prefetch_is_held_if_it_is_the_group() -> None:
    scene = Scene(prefetch=200, group=200, group_wait_ms=60_000)
    scene.deliver(199)
    assert scene.take(after_ms=1_000) == []
    scene.deliver(1)
    assert scene.take() == [Ack(200, True), Ask()]


def test_what_is_given_back_parts_the_group_into_runs() -> None:
    scene = Scene(0.9, 0.1, 0.2, 0.9, 0.9, 0.1, group=6, requeue_share=0.25)
    scene.deliver(6)
    assert scene.take() == [Ack(1, False), Nack(3), Ack(5, True), Reject(6), Ask()]
    assert scene.rows.news() == [
        *rows(Kind.ACK, 1),
        *rows(Kind.REQUEUE, 2, 3, flags=MULTIPLE),
        *rows(Kind.ACK, 4, 5, flags=MULTIPLE),
        *rows(Kind.REQUEUE, 6),
    ]
    assert scene.consumer.acknowledged == 3


def test_who_drains_holds_nothing_and_gives_nothing_back() -> None:
    scene = Scene(0.1, 0.1, group=3, hold_ms=1_000, requeue_share=0.5)
    scene.deliver(2)
    assert scene.take() == []
    scene.consumer.drain()
    assert scene.take() == [Ack(2, True), Ask()]


# --- proof


def test_one_question_at_a_time_proves_what_was_settled_before_it() -> None:
    scene = Scene(group=1)
    scene.deliver(1)
    assert scene.take() == [Ack(1, False), Ask()]
    scene.deliver(2)
    assert scene.take() == [Ack(2, False), Ack(3, False)]
    assert scene.answer() == rows(Kind.ACK_PROVEN, 1)
    assert scene.take() == [Ask()]
    assert scene.answer() == rows(Kind.ACK_PROVEN, 2, 3)
    assert scene.take() == []
    assert scene.consumer.outstanding == 0


def test_what_was_given_back_is_proven_too() -> None:
    scene = Scene(0.1, group=1, requeue_share=0.5)
    scene.deliver(1)
    assert scene.take() == [Reject(1), Ask()]
    assert scene.answer() == rows(Kind.ACK_PROVEN, 1)


def test_without_answers_settling_stops_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "UNPROVEN_MAX", 5)
    scene = Scene(group=2)
    scene.deliver(10)
    assert scene.take() == [Ack(2, True), Ack(4, True), Ack(6, True), Ask()]
    scene.answer()
    assert scene.take() == [Ack(8, True), Ack(10, True), Ask()]


# --- losses and ends


def test_a_lost_channel_releases_what_was_held_and_what_was_not_proven_to_be_acknowledged() -> None:
    scene = Scene(0.9, 0.9, 0.1, group=1, group_wait_ms=60_000, hold_ms=1, requeue_share=0.5)
    scene.deliver(1)
    scene.take(after_ms=1)
    scene.answer()
    scene.deliver(2)
    scene.take(after_ms=1)
    scene.deliver(1)
    assert [row.kind for row in scene.rows.of(Kind.ACK, Kind.REQUEUE)] == [Kind.ACK, Kind.ACK, Kind.REQUEUE]
    assert scene.lose() == [
        *rows(Kind.RELEASE, 2, 4),
        Row(Kind.CHANNEL_OVER, channel=CHANNEL, others={"number": int(Ending.BY_BROKER), "detail": "404"}),
    ]
    assert scene.rows.times_us[-3:] == [(scene.now_us - 200, scene.now_us)] * 3
    assert scene.take(after_ms=100) == []


def test_on_the_next_channel_nothing_of_the_last_is_settled_or_asked() -> None:
    scene = Scene(group=1)
    scene.deliver(2)
    scene.take()
    scene.lose()
    scene.consumer.channel_opened(56, 1, scene.now_us, scene.now_us)
    assert scene.take() == []
    scene.consumer.received(1, key(1), True, True, scene.now_us)
    assert scene.take() == [Ack(1, False), Ask()]
    assert [(row.channel, row.tag) for row in scene.rows.of(Kind.ACK)] == [(CHANNEL, 1), (CHANNEL, 2), (56, 1)]


def test_what_is_recorded_of_connections_and_subscriptions() -> None:
    scene = Scene(prefetch=30)
    scene.lose()
    scene.consumer.connect_failed(2, "refused", scene.now_us)
    scene.consumer.channel_opened(56, node=2, since_us=scene.now_us - 40, now_us=scene.now_us)
    scene.consumer.subscribed(scene.now_us)
    scene.consumer.cancelled(scene.now_us)
    scene.consumer.subscribed(scene.now_us)
    scene.consumer.blocked(True, scene.now_us)
    scene.consumer.blocked(False, scene.now_us)
    scene.consumer.unsubscribed(scene.now_us)
    assert not scene.consumer.is_subscribed
    assert scene.rows.news() == [
        Row(Kind.CONNECT_FAILED, others={"node": 2, "detail": "refused"}),
        Row(Kind.CHANNEL_OPEN, channel=56, others={"node": 2, "number": 40}),
        Row(Kind.SUBSCRIBED, channel=56, others={"queue": 2, "number": 30}),
        Row(Kind.CANCELLED, channel=56, others={"queue": 2}),
        Row(Kind.SUBSCRIBED, channel=56, others={"queue": 2, "number": 30}),
        Row(Kind.BLOCKED, channel=56),
        Row(Kind.UNBLOCKED, channel=56),
        Row(Kind.UNSUBSCRIBED, channel=56, others={"queue": 2}),
    ]

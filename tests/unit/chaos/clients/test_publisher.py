"""What a publisher records of which frame, and what it publishes then."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.clients import publisher as publisher_module
from chaos.clients.options import PublisherOptions, QueueTarget
from chaos.clients.publisher import FORGOTTEN, Publisher
from chaos.record.kinds import Ending, Flag, Kind, Stray
from chaos.record.message_key import MessageKey
from tests.support.recorded_rows import RecordedRows, Row

CHANNEL = 77
#: Instead of `publisher_module.ANSWERS_REMEMBERED`.
REMEMBERED = 20
QUEUES = (QueueTarget(1, "a"), QueueTarget(2, "b"))
MULTIPLE = int(Flag.MULTIPLE)


def key(sequence: int, attempt: int = 1, queue: int = 1) -> int:
    return MessageKey(queue, 9, sequence, attempt).pack()


class Scene:
    """A publisher with an open channel, its rows, and a clock."""

    def __init__(self, **options: Any) -> None:
        self.rows = RecordedRows()
        self.publisher = Publisher(PublisherOptions(9, **({"queues": QUEUES[:1]} | options)), self.rows)
        self.now_us = 1_000
        self.publisher.begin(self.now_us)
        self.open(CHANNEL)
        self.rows.news()

    def open(self, channel: int) -> None:
        self.publisher.channel_opened(channel, node=1, since_us=self.now_us, now_us=self.now_us)

    def publish(self, count: int = 1) -> list[int]:
        """Keys of the next so many, or of fewer if there are no more now."""
        keys: list[int] = []
        while len(keys) < count and (publication := self.publisher.next(self.now_us)) is not None:
            keys.append(publication.key)
        self.publisher.check_invariants()
        return keys

    def answer(self, tag: int, *, multiple: bool = False, taken: bool = True) -> list[Row]:
        """The rows that follow."""
        self.rows.news()
        self.publisher.answered(tag, multiple, taken, self.now_us)
        self.publisher.check_invariants()
        return self.rows.news()

    def lose(self) -> list[Row]:
        self.rows.news()
        self.publisher.channel_over(Ending.LOST, "gone", self.now_us - 300, self.now_us)
        self.publisher.check_invariants()
        return self.rows.news()


def published(tag: int, message: int, **others: int) -> Row:
    return Row(Kind.PUBLISH, message, CHANNEL, tag, others=dict(others))


def one(kind: Kind, tag: int) -> Row:
    """An answer to the first attempt of a message that has the number of its tag."""
    return Row(kind, key(tag), CHANNEL, tag)


def several(kind: Kind, *tags: int) -> list[Row]:
    """One frame for all of them."""
    return [Row(kind, key(tag), CHANNEL, tag, MULTIPLE) for tag in tags]


def stray(tag: int, kind: Stray, message: int = 0, **others: str) -> Row:
    return Row(Kind.STRAY, message, CHANNEL, tag, others={"number": int(kind), **others})


# --- answers


@pytest.mark.parametrize(
    ("frames", "rows"),
    [
        ([(1,)], [one(Kind.CONFIRM, 1)]),
        ([(2,), (1,)], [one(Kind.CONFIRM, 2), one(Kind.CONFIRM, 1)]),
        ([(2, "multiple")], several(Kind.CONFIRM, 1, 2)),
        # What was answered by itself is not answered again by one for several.
        ([(1,), (3, "multiple")], [one(Kind.CONFIRM, 1), *several(Kind.CONFIRM, 2, 3)]),
        # The last of them may have been.
        ([(3,), (3, "multiple")], [one(Kind.CONFIRM, 3), *several(Kind.CONFIRM, 1, 2)]),
        # Tag 0: everything outstanding.
        ([(2,), (0, "multiple")], [one(Kind.CONFIRM, 2), *several(Kind.CONFIRM, 1, 3)]),
        ([(1, "nack")], [one(Kind.REFUSE, 1)]),
        ([(2, "nack multiple")], several(Kind.REFUSE, 1, 2)),
        ([(1,), (1,)], [one(Kind.CONFIRM, 1), stray(1, Stray.TWICE, key(1))]),
        ([(1, "nack"), (1, "nack")], [one(Kind.REFUSE, 1), stray(1, Stray.TWICE, key(1))]),
        ([(1,), (1, "nack")], [one(Kind.CONFIRM, 1), stray(1, Stray.CONTRADICTION, key(1))]),
        ([(1, "nack"), (1,)], [one(Kind.REFUSE, 1), stray(1, Stray.CONTRADICTION, key(1))]),
        ([(1,), (1, "multiple")], [one(Kind.CONFIRM, 1), stray(1, Stray.TWICE, key(1))]),
        ([(4,)], [stray(4, Stray.UNKNOWN)]),
        ([(0,)], [stray(0, Stray.UNKNOWN)]),
        ([(4, "nack")], [stray(4, Stray.UNKNOWN)]),
        # For several, of which some were published.
        ([(4, "multiple")], [stray(4, Stray.UNKNOWN), *several(Kind.CONFIRM, 1, 2, 3)]),
    ],
)
def test_answers_to_three_messages(frames: list[tuple[Any, ...]], rows: list[Row]) -> None:
    """Each frame: its tag, and what else it is."""
    scene = Scene()
    scene.publish(3)
    recorded = []
    for tag, *words in frames:
        said = " ".join(words)
        recorded += scene.answer(tag, multiple="multiple" in said, taken="nack" not in said)
    assert recorded == rows


@pytest.fixture
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "ANSWERS_REMEMBERED", REMEMBERED)


@pytest.mark.usefixtures("short_memory")
def test_of_an_old_tag_it_is_only_known_that_it_was_answered() -> None:
    scene = Scene()
    for tag in range(1, REMEMBERED + 1):
        scene.publisher.next(scene.now_us)
        scene.publisher.answered(tag, False, True, scene.now_us)
    assert scene.answer(1, taken=False) == [stray(1, Stray.CONTRADICTION, key(1))]
    scene.publish(1)
    assert scene.answer(1, taken=False) == [stray(1, Stray.TWICE, detail=FORGOTTEN)]
    assert scene.answer(2, taken=False) == [stray(2, Stray.CONTRADICTION, key(2))]


@pytest.mark.usefixtures("short_memory")
def test_an_answer_of_long_ago_is_not_taken_for_one_of_the_tag_in_its_place() -> None:
    scene = Scene()
    scene.publish(1)
    for tag in range(2, REMEMBERED + 2):
        scene.publisher.next(scene.now_us)
        scene.publisher.answered(tag, False, True, scene.now_us)
    assert scene.answer(1, taken=False) == [one(Kind.REFUSE, 1)]
    last = REMEMBERED + 1
    assert scene.answer(last) == [stray(last, Stray.TWICE, key(last))]


# --- what is returned


def returned(scene: Scene, message: int) -> list[Row]:
    scene.rows.news()
    scene.publisher.returned(message, scene.now_us)
    scene.publisher.check_invariants()
    return scene.rows.news()


def test_what_is_returned_is_confirmed_and_published_again_after_the_pause() -> None:
    scene = Scene(is_mandatory=True, retry_pause_ms=100, messages_max=2)
    scene.publish(2)
    assert {row.flags for row in scene.rows.of(Kind.PUBLISH)} == {Flag.MANDATORY}
    assert returned(scene, key(1)) == [Row(Kind.RETURN, key(1), CHANNEL, 1)]
    assert scene.answer(2, multiple=True) == several(Kind.CONFIRM, 1, 2)
    assert scene.publisher.confirmed == 1
    assert scene.publish() == []
    assert scene.publisher.wait_us(scene.now_us) == 100_000
    scene.now_us += 100_000
    assert scene.publish() == [key(1, attempt=2)]


def test_returns_of_what_is_not_outstanding_are_strays() -> None:
    scene = Scene(is_mandatory=True, messages_max=1)
    scene.publish(1)
    assert returned(scene, key(2)) == [stray(0, Stray.UNKNOWN, key(2))]
    assert returned(scene, 0) == [stray(0, Stray.UNKNOWN)]
    assert returned(scene, MessageKey(1, 8, 1, 1).pack()) == [stray(0, Stray.UNKNOWN, MessageKey(1, 8, 1, 1).pack())]
    returned(scene, key(1))
    assert returned(scene, key(1)) == [stray(1, Stray.TWICE, key(1))]
    scene.answer(1)
    assert returned(scene, key(1)) == [stray(0, Stray.CONTRADICTION, key(1))]


def test_a_return_is_of_its_channel() -> None:
    scene = Scene(is_mandatory=True, messages_max=1)
    scene.publish(1)
    returned(scene, key(1))
    scene.lose()
    scene.open(CHANNEL + 1)
    assert scene.publish(10) == [key(1, attempt=2)]
    assert [row.kind for row in returned(scene, key(1))] == [Kind.STRAY]
    scene.answer(1)
    assert scene.publisher.confirmed == 1


# --- attempts


def test_what_was_cut_off_is_published_again_first_in_its_order() -> None:
    scene = Scene(messages_max=5)
    scene.publish(4)
    scene.answer(2)
    assert scene.lose() == [
        *(Row(Kind.UNRESOLVED, key(each), CHANNEL, each) for each in (1, 3, 4)),
        Row(Kind.CHANNEL_OVER, channel=CHANNEL, others={"number": int(Ending.LOST), "detail": "gone"}),
    ]
    assert scene.rows.times_us[-4:] == [(scene.now_us - 300, scene.now_us)] * 4
    assert scene.publish() == []
    scene.open(78)
    assert scene.publish(10) == [key(1, 2), key(3, 2), key(4, 2), key(5)]
    assert [row.tag for row in scene.rows.of(Kind.PUBLISH)][-4:] == [1, 2, 3, 4]


def test_what_waited_for_its_pause_comes_behind_what_was_cut_off_later() -> None:
    scene = Scene(messages_max=2)
    scene.publish(2)
    scene.answer(1, taken=False)
    scene.now_us += 1_000_000
    scene.lose()
    scene.open(78)
    assert scene.publish(10) == [key(2, 2), key(1, 2)]


def test_a_message_is_given_up_when_its_attempts_are_used_up() -> None:
    scene = Scene(attempts_max=2, messages_max=1, retry_pause_ms=0)
    scene.publish(1)
    scene.answer(1, taken=False)
    assert scene.publish() == [key(1, attempt=2)]
    assert scene.answer(2, taken=False) == [Row(Kind.REFUSE, key(1, 2), CHANNEL, 2), Row(Kind.GIVEN_UP, key(1, 2))]
    assert scene.publish() == []
    assert scene.publisher.is_drained


def test_at_the_end_what_was_not_attempted_again_is_given_up() -> None:
    scene = Scene()
    scene.publish(2)
    scene.answer(1)
    scene.lose()
    scene.publisher.end(scene.now_us)
    scene.publisher.end(scene.now_us)
    scene.publisher.check_invariants()
    assert scene.rows.news() == [Row(Kind.GIVEN_UP, key(2))]


def test_what_waits_for_its_next_attempt_needs_its_room_in_the_window() -> None:
    scene = Scene(window=3)
    assert len(scene.publish(10)) == 3
    scene.answer(2, taken=False)
    assert scene.publish(10) == []
    assert scene.publisher.wait_us(scene.now_us) == 100_000
    scene.answer(1)
    assert scene.publish(10) == [key(4)]


# --- the schedule


def test_messages_are_intended_by_the_rate_and_say_how_late_they_are() -> None:
    scene = Scene(rate_per_s=1_000, window=2)
    assert scene.publish(10) == [key(1)]
    assert scene.publisher.wait_us(scene.now_us) == 1_000
    scene.now_us += 2_500
    assert scene.publish(10) == [key(2)]
    assert scene.publisher.lag_us(scene.now_us) == 500
    assert scene.publisher.wait_us(scene.now_us) is None
    scene.now_us += 10_000
    scene.answer(2, multiple=True)
    assert scene.publish(10) == [key(3), key(4)]
    assert scene.rows.of(Kind.PUBLISH) == [
        published(1, key(1)),
        published(2, key(2), number=1_500),
        published(3, key(3), number=10_500),
        published(4, key(4), number=9_500),
    ]


def test_to_begin_again_moves_no_schedule() -> None:
    scene = Scene(rate_per_s=1_000, messages_max=2)
    scene.now_us += 5_000
    scene.publisher.begin(scene.now_us)
    assert scene.publisher.lag_us(scene.now_us) == 5_000
    assert scene.publish(10) == [key(1), key(2)]
    assert scene.publisher.lag_us(scene.now_us) == 0


def test_the_schedule_goes_on_where_it_was_held() -> None:
    scene = Scene(rate_per_s=1_000)
    assert scene.publish(10) == [key(1)]
    scene.now_us += 1_500
    scene.publisher.hold(scene.now_us)
    scene.now_us += 1_000_000
    scene.publisher.hold(scene.now_us)
    scene.publisher.begin(scene.now_us)
    assert scene.publisher.lag_us(scene.now_us) == 500
    assert scene.publish(10) == [key(2)]
    assert scene.publisher.wait_us(scene.now_us) == 500
    scene.lose()
    scene.open(78)
    assert scene.publish(10) == [key(1, 2), key(2, 2)]
    assert [row.others["number"] for row in scene.rows.of(Kind.PUBLISH)[-2:]] == [1_001_500, 500]


def test_who_was_held_before_the_beginning_begins_then() -> None:
    scene = Scene()
    fresh = Publisher(PublisherOptions(1, QUEUES, rate_per_s=1_000), scene.rows)
    fresh.hold(5_000)
    fresh.begin(7_000)
    assert fresh.lag_us(7_000) == 0


def test_a_further_attempt_is_as_late_as_its_message() -> None:
    scene = Scene(rate_per_s=10, messages_max=2)
    scene.now_us += 100_000
    scene.publish(2)
    scene.now_us += 1_000_000
    scene.lose()
    scene.open(78)
    assert scene.publish(10) == [key(1, 2), key(2, 2)]
    assert [row.others["number"] for row in scene.rows.of(Kind.PUBLISH)[-2:]] == [1_100_000, 1_000_000]


def test_without_a_rate_nothing_is_late() -> None:
    scene = Scene(messages_max=3)
    scene.now_us += 1_000_000
    scene.publish(3)
    assert [row.others for row in scene.rows.of(Kind.PUBLISH)] == [{}, {}, {}]
    assert scene.publisher.lag_us(scene.now_us) == 0


def test_queues_get_messages_in_turn_and_count_for_themselves() -> None:
    scene = Scene(queues=QUEUES, messages_max=3)
    assert scene.publish(10) == [key(1), key(1, queue=2), key(2)]
    publication = Scene(queues=QUEUES, messages_max=3).publisher.next(1_000)
    assert publication is not None
    assert publication.place == 0


def test_nothing_new_is_published_while_held_blocked_or_not_begun() -> None:
    scene = Scene()
    scene.publisher.blocked(True, scene.now_us)
    assert scene.publish() == []
    scene.publisher.blocked(False, scene.now_us)
    assert [row.kind for row in scene.rows.news()] == [Kind.BLOCKED, Kind.UNBLOCKED]
    assert scene.publish() == [key(1)]
    scene.publisher.blocked(True, scene.now_us)
    scene.lose()
    scene.open(CHANNEL + 1)
    assert scene.publish() == [key(1, attempt=2)]
    scene.publisher.hold(scene.now_us)
    assert scene.publish() == []
    scene.publisher.begin(scene.now_us)
    assert scene.publish() == [key(2)]
    fresh = Publisher(PublisherOptions(9, QUEUES), RecordedRows())
    fresh.channel_opened(1, 1, 0, 0)
    assert fresh.next(0) is None
    assert fresh.wait_us(0) is None


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_who_holds_is_drained_when_everything_is_answered(answered: int) -> None:
    scene = Scene()
    scene.publish(2)
    scene.publisher.hold(scene.now_us)
    scene.answer(answered, multiple=answered > 0)
    assert scene.publisher.is_drained == (answered == 2)


def test_what_is_recorded_of_connections() -> None:
    scene = Scene(is_persistent=False)
    scene.publisher.connect_failed(2, "refused", scene.now_us)
    scene.lose()
    scene.publisher.channel_opened(78, node=2, since_us=scene.now_us - 40, now_us=scene.now_us)
    scene.publish(1)
    assert [row for row in scene.rows.rows if row.kind is not Kind.CHANNEL_OVER][1:] == [
        Row(Kind.CONNECT_FAILED, others={"node": 2, "detail": "refused"}),
        Row(Kind.CHANNEL_OPEN, channel=78, others={"node": 2, "number": 40}),
        Row(Kind.PUBLISH, key(1), 78, 1, int(Flag.TRANSIENT)),
    ]

"""Whatever comes in whatever order: every publish has one end, and every delivery is accounted for."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chaos.clients.consumer import Ack, Ask, Consumer, Nack, Reject
from chaos.clients.options import ConsumerOptions, PublisherOptions, QueueTarget
from chaos.clients.publisher import Publisher
from chaos.record.kinds import Ending, Kind
from chaos.record.message_key import MessageKey, any_attempt, unpack
from tests.support.recorded_rows import RecordedRows, Row

QUEUES = (QueueTarget(1, "a"), QueueTarget(2, "b"))
ENDS = (Kind.CONFIRM, Kind.REFUSE, Kind.UNRESOLVED)
#: Beyond what is ever published here.
TAGS = st.integers(0, 25)


def rows_behind_the_end_of_their_channel(rows: list[Row]) -> list[Row]:
    over: set[int] = set()
    late = []
    for row in rows:
        if row.channel in over:
            late.append(row)
        if row.kind is Kind.CHANNEL_OVER:
            over.add(row.channel)
    return late


class Publishers(RuleBasedStateMachine):
    """A publisher and a broker that says anything."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = RecordedRows()
        self.publisher = Publisher(
            PublisherOptions(
                3, QUEUES, rate_per_s=1_000, window=5, is_mandatory=True, attempts_max=3, retry_pause_ms=2
            ),
            self.rows,
        )
        self.now_us = 0
        self.channel = 0
        self.channels = 0
        self.publisher.begin(0)

    @rule(passed_us=st.sampled_from([1, 500, 3_000]))
    def time_passes(self, passed_us: int) -> None:
        self.now_us += passed_us

    @precondition(lambda self: not self.channel)
    @rule()
    def open(self) -> None:
        self.channels += 1
        self.channel = self.channels
        self.publisher.channel_opened(self.channel, 1, self.now_us, self.now_us)

    @precondition(lambda self: self.channel)
    @rule()
    def lose(self) -> None:
        self.publisher.channel_over(Ending.LOST, "", self.now_us, self.now_us)
        self.channel = 0

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        for _ in range(count):
            before = len(self.rows.rows)
            publication = self.publisher.next(self.now_us)
            if publication is None:
                assert self.publisher.wait_us(self.now_us) != 0
                assert len(self.rows.rows) == before
                return
            assert self.rows.rows[-1].message == publication.key
            assert QUEUES[publication.place].index == unpack(publication.key).queue

    @precondition(lambda self: self.channel)
    @rule(tag=TAGS, is_multiple=st.booleans(), is_taken=st.booleans())
    def answer(self, tag: int, is_multiple: bool, is_taken: bool) -> None:
        before = len(self.rows.rows)
        self.publisher.answered(tag, is_multiple, is_taken, self.now_us)
        assert len(self.rows.rows) > before, "no answer is without a trace"

    @precondition(lambda self: self.channel)
    @rule(tag=TAGS)
    def come_back(self, tag: int) -> None:
        """Of this channel's publishes, the one with this tag, or what nobody published."""
        published = [row for row in self.rows.of(Kind.PUBLISH) if (row.channel, row.tag) == (self.channel, tag)]
        self.publisher.returned(published[0].message if published else 0, self.now_us)

    @rule()
    def hold(self) -> None:
        self.publisher.hold(self.now_us)

    @rule()
    def go_on(self) -> None:
        self.publisher.begin(self.now_us)

    @invariant()
    def holds(self) -> None:
        self.publisher.check_invariants()

    def teardown(self) -> None:
        if self.channel:
            self.lose()
        self.publisher.end(self.now_us)
        self.publisher.check_invariants()
        published = [(row.message, row.channel, row.tag) for row in self.rows.of(Kind.PUBLISH)]
        assert Counter((row.message, row.channel, row.tag) for row in self.rows.of(*ENDS)) == Counter(published)
        assert len(set(published)) == len(published)
        assert not rows_behind_the_end_of_their_channel(self.rows.rows)
        self.check_messages()

    def check_messages(self) -> None:
        attempts: dict[int, list[int]] = defaultdict(list)
        for row in self.rows.of(Kind.PUBLISH):
            attempts[any_attempt(row.message)].append(unpack(row.message).attempt)
        assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in attempts.values())
        returned = {(row.channel, row.tag) for row in self.rows.of(Kind.RETURN)}
        confirmed = [row for row in self.rows.of(Kind.CONFIRM) if (row.channel, row.tag) not in returned]
        concluded = [any_attempt(row.message) for row in [*confirmed, *self.rows.of(Kind.GIVEN_UP)]]
        assert Counter(concluded) == Counter(list(attempts)), "each message is confirmed or given up, once"


class Consumers(RuleBasedStateMachine):
    """A consumer and a broker that knows what it has handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = RecordedRows()
        options = ConsumerOptions((QUEUES[0],), group=3, group_wait_ms=2, hold_ms=1, requeue_share=0.4)
        self.consumer = Consumer(options, QUEUES[0], self.rows, Random(5))
        self.now_us = 0
        self.channel = 0
        self.channels = 0
        self.delivered = 0
        #: What the broker waits for on this channel.
        self.unacked: list[int] = []
        #: What was settled on this channel when it was asked, if a question is on its way.
        self.asked: list[Row] | None = None

    def settled(self) -> list[Row]:
        return [row for row in self.rows.of(Kind.ACK, Kind.REQUEUE) if row.channel == self.channel]

    @rule(passed_us=st.sampled_from([1, 1_000, 3_000]))
    def time_passes(self, passed_us: int) -> None:
        self.now_us += passed_us

    @precondition(lambda self: not self.channel)
    @rule()
    def open(self) -> None:
        self.channels += 1
        self.channel = self.channels
        self.delivered = 0
        self.consumer.channel_opened(self.channel, 1, self.now_us, self.now_us)

    @precondition(lambda self: self.channel)
    @rule()
    def lose(self) -> None:
        self.consumer.channel_over(Ending.LOST, "", self.now_us, self.now_us)
        self.channel, self.unacked, self.asked = 0, [], None

    @precondition(lambda self: self.channel)
    @rule(count=st.integers(1, 4), is_ours=st.booleans())
    def deliver(self, count: int, is_ours: bool) -> None:
        for _ in range(count):
            self.delivered += 1
            key = MessageKey(1, 1, self.delivered, 1).pack() if is_ours else 0
            self.unacked.append(self.delivered)
            self.consumer.received(self.delivered, key, True, False, self.now_us)

    @rule()
    def take(self) -> None:
        before = len(self.settled()) if self.channel else 0
        frames = self.consumer.take(self.now_us)
        covered: list[tuple[Kind, int]] = []
        for place, frame in enumerate(frames):
            if isinstance(frame, Ask):
                assert self.asked is None, "one question at a time"
                assert place == len(frames) - 1, "a question is asked behind what it proves"
                self.asked = self.settled()
                continue
            is_multiple = isinstance(frame, Nack) or (isinstance(frame, Ack) and frame.is_multiple)
            kind = Kind.REQUEUE if isinstance(frame, Nack | Reject) else Kind.ACK
            tags = [tag for tag in self.unacked if (tag <= frame.tag if is_multiple else tag == frame.tag)]
            assert tags, "a broker closes the channel of who settles what it does not have"
            covered += [(kind, tag) for tag in tags]
            self.unacked = [tag for tag in self.unacked if tag not in tags]
        if self.channel:
            assert [(row.kind, row.tag) for row in self.settled()[before:]] == covered

    @precondition(lambda self: self.asked is not None)
    @rule()
    def answer(self) -> None:
        self.consumer.answered(self.now_us)
        proven = [(row.message, row.tag) for row in self.rows.of(Kind.ACK_PROVEN) if row.channel == self.channel]
        assert self.asked is not None
        assert proven == [(row.message, row.tag) for row in self.asked]
        self.asked = None

    @rule()
    def drain(self) -> None:
        self.consumer.drain()

    @invariant()
    def holds(self) -> None:
        self.consumer.check_invariants()

    def teardown(self) -> None:
        if self.channel:
            self.lose()
        self.consumer.end()
        self.consumer.check_invariants()
        assert not rows_behind_the_end_of_their_channel(self.rows.rows)
        stories: dict[tuple[int, int], list[Kind]] = defaultdict(list)
        for row in self.rows.rows:
            if row.tag:
                stories[row.channel, row.tag].append(row.kind)
        legal = (
            [Kind.RELEASE],
            [Kind.ACK, Kind.ACK_PROVEN],
            [Kind.ACK, Kind.RELEASE],
            [Kind.REQUEUE, Kind.ACK_PROVEN],
            [Kind.REQUEUE],
        )
        for story in stories.values():
            assert story[0] is Kind.DELIVER
            assert story[1:] in legal


TestPublishers = Publishers.TestCase
TestConsumers = Consumers.TestCase
TestPublishers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConsumers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

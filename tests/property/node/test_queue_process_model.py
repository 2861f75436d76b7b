"""The queue process against a tiny model under random operations.

The model knows nothing of turns or batches. It keeps what must be true whatever the order of service: every published
message is ready, held by one channel, or settled (conservation); each consumer sees ascending positions except for
redeliveries; a prefetch is never exceeded; every publish is confirmed exactly once when storage is safe; and when
everything is quiet, no message waits while a consumer could take it.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from node.ids import ChannelKey, SeqId
from node.message import Message
from node.queues.events import CancelConsumer, ConfirmPublished, ConsumerSpec, Deliver
from node.queues.queue_process import QueueProcess
from tests.support.queue_bench import SteeredQueue, channel, message, queue_record
from tests.support.state_machines import run_machine

CHANNELS = [channel(number) for number in range(1, 4)]
TAGS = ["a", "b"]
PUBLISHER = channel(99)


class QueueProcessMachine(RuleBasedStateMachine):
    steps_run = 0

    @initialize(single_active=st.booleans(), durable=st.booleans())
    def start(self, single_active: bool, durable: bool) -> None:
        self.storage = SteeredQueue(durable=durable)
        record = queue_record(arguments={"x-single-active-consumer": single_active})
        self.process = QueueProcess(record, self.storage)
        self.single_active = single_active
        self.published = 0
        self.confirmed: list[int] = []
        self.consumers: dict[tuple[ChannelKey, str], ConsumerSpec] = {}
        #: msg counter -> where it is: a channel that holds it, or "gone". Absent: ready in the queue.
        self.held: dict[SeqId, tuple[ChannelKey, int]] = {}
        self.gone: set[int] = set()
        self.last_seen: dict[tuple[ChannelKey, str], int] = {}

    # --- operations ---

    @rule(count=st.integers(1, 7))
    def publish(self, count: int) -> None:
        counters = range(self.published + 1, self.published + count + 1)
        self.published += count
        self.process.publish(PUBLISHER, [message(each) for each in counters], list(counters))
        self.drain()

    @rule(counter=st.integers(1, 50))
    def publish_again(self, counter: int) -> None:
        if counter <= self.published:
            self.process.publish(PUBLISHER, [message(counter)], [0])
            self.drain()

    @rule(
        to=st.sampled_from(CHANNELS),
        tag=st.sampled_from(TAGS),
        no_ack=st.booleans(),
        prefetch=st.integers(0, 4),
        priority=st.integers(-1, 1),
    )
    def consume(self, to: ChannelKey, tag: str, no_ack: bool, prefetch: int, priority: int) -> None:
        if (to, tag) not in self.consumers:
            spec = ConsumerSpec(tag, no_ack=no_ack, exclusive=False, prefetch_count=prefetch, priority=priority)
            self.process.consume(to, spec)
            self.consumers[to, tag] = spec
            self.last_seen[to, tag] = 0
            self.drain()

    @rule(to=st.sampled_from(CHANNELS), tag=st.sampled_from(TAGS))
    def cancel(self, to: ChannelKey, tag: str) -> None:
        self.process.cancel(to, tag)
        self.consumers.pop((to, tag), None)
        self.drain()

    @rule(of=st.sampled_from(CHANNELS), number=st.integers(1, 5), again=st.booleans())
    def settle(self, of: ChannelKey, number: int, again: bool) -> None:
        mine = [seq_id for seq_id, (holder, _) in self.held.items() if holder == of][:number]
        if again:
            for seq_id in mine:
                del self.held[seq_id]
            self.process.requeue(of, mine)
        else:
            for seq_id in mine:
                self.gone.add(self.held.pop(seq_id)[1])
            self.process.ack(of, mine)
        self.drain()

    @rule(of=st.sampled_from(CHANNELS))
    def settle_what_another_holds(self, of: ChannelKey) -> None:
        self.process.ack(of, [seq_id for seq_id, (holder, _) in self.held.items() if holder != of])

    @rule(of=st.sampled_from(CHANNELS), no_ack=st.booleans())
    def get(self, of: ChannelKey, no_ack: bool) -> None:
        delivery = self.process.get(of, no_ack)
        if delivery is not None:
            self.arrived(of, delivery.seq_id, delivery.message, no_ack)

    @rule(of=st.sampled_from(CHANNELS))
    def channel_down(self, of: ChannelKey) -> None:
        self.process.channel_down(of)
        self.consumers = {key: spec for key, spec in self.consumers.items() if key[0] != of}
        self.held = {seq_id: entry for seq_id, entry in self.held.items() if entry[0] != of}
        self.drain()

    @rule()
    def purge(self) -> None:
        ready = {int(each.body) for each in self.storage.ready_messages()}
        assert self.process.purge() == len(ready)
        self.gone |= ready
        self.drain()

    @rule(limit=st.one_of(st.none(), st.integers(0, 5)))
    def limit_fetches(self, limit: int | None) -> None:
        self.storage.fetch_limit = limit
        self.drain()

    @precondition(lambda self: self.published)
    @rule()
    def sync(self) -> None:
        self.storage.sync()
        self.drain()
        assert sorted(self.confirmed) == list(range(1, self.published + 1)), "each publish is confirmed exactly once"

    # --- effects ---

    def drain(self) -> None:
        for effect in self.process.drain():
            if isinstance(effect, ConfirmPublished):
                assert effect.channel == PUBLISHER
                self.confirmed.extend(effect.publish_seqs)
                continue
            assert not isinstance(effect, CancelConsumer)
            assert isinstance(effect, Deliver)
            self.delivered(effect)

    def delivered(self, effect: Deliver) -> None:
        key = (effect.channel, effect.consumer_tag)
        spec = self.consumers.get(key)
        assert spec is not None, "operations are drained at once, so nothing is delivered to the dead"
        for delivery in effect.deliveries:
            counter = int(delivery.message.body)
            if not delivery.redelivered:
                assert counter > self.last_seen[key], "first deliveries come in the order of publishing"
                self.last_seen[key] = counter
            self.arrived(effect.channel, delivery.seq_id, delivery.message, spec.no_ack)

    def arrived(self, to: ChannelKey, seq_id: SeqId, delivered: Message, no_ack: bool) -> None:
        counter = int(delivered.body)
        assert counter not in self.gone, "a settled message never comes back"
        assert all(counter != other for _, other in self.held.values()), "nobody else holds it"
        if no_ack:
            self.gone.add(counter)
        else:
            self.held[seq_id] = (to, counter)

    # --- always true ---

    @invariant()
    def conservation(self) -> None:
        ready = [int(each.body) for each in self.storage.ready_messages()]
        held = [counter for _, counter in self.held.values()]
        assert ready == sorted(ready), "order by position is order by publishing"
        assert sorted([*ready, *held, *self.gone]) == list(range(1, self.published + 1))

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        QueueProcessMachine.steps_run += 1
        self.process.check_invariants()
        self.storage.check_invariants()
        fetch_limit = self.storage.fetch_limit
        if self.process.ready and (fetch_limit is None or fetch_limit > 0):
            idle = [consumer for consumer in self.process._consumers if consumer.in_rotation]
            assert not idle, "a message is ready and a consumer could take it"


QueueProcessMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestQueueProcess = QueueProcessMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_model_holds_for_long() -> None:
    """Half a minute."""
    before = QueueProcessMachine.steps_run
    run_machine(QueueProcessMachine, examples=1500, steps=60)
    assert QueueProcessMachine.steps_run - before > 20_000

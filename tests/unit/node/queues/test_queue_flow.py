"""A queue grants what it has taken, and withholds it while its store or a mirror is behind."""

from __future__ import annotations

import pytest

from node.flow.credit import MIRROR_BYTES, Credit, FlowControl
from node.ids import ChannelKey, NodeName, QueueId
from node.queues.backing_queue import MirrorInFlight
from node.queues.events import ConfirmPublished, GrantCredit, QueueEffect
from node.queues.queue_process import QueueProcess
from tests.support.queue_bench import SteeredQueue, channel, message, queue_record

N2, N3 = NodeName("n2"), NodeName("n3")
FLOW = FlowControl(in_process=Credit(20, 5), store=Credit(40, 8), between_nodes=Credit(30, 6))


class Bench:
    """A queue that publishers reach in batches; the disk is as slow as the test likes."""

    def __init__(self) -> None:
        self.storage = SteeredQueue(durable=True)
        self.process = QueueProcess(queue_record(), self.storage, flow=FLOW)
        self.published = 0
        for number in (1, 2):
            self.process.flow.begin(channel(number), 5)

    def publish(self, count: int, number: int = 1) -> None:
        counters = range(self.published + 1, self.published + count + 1)
        self.published += count
        self.process.publish(channel(number), [message(each, from_origin=number) for each in counters], counters)
        self.process.check_invariants()

    def drain(self) -> list[QueueEffect]:
        effects = self.process.drain()
        self.process.check_invariants()
        return effects

    def grants(self) -> dict[ChannelKey, int]:
        effects = self.drain()
        return {each.channel: each.messages for each in effects if isinstance(each, GrantCredit)}

    def state(self) -> str:
        return self.process.flow.stage.state(0)


def test_what_was_taken_is_granted_in_steps() -> None:
    bench = Bench()
    bench.publish(13)
    assert bench.grants() == {channel(1): 10}
    bench.publish(2)
    assert bench.grants() == {channel(1): 5}
    assert bench.grants() == {}


def test_a_channel_may_ask_for_its_own_grant_and_gets_it_once() -> None:
    bench = Bench()
    flow = bench.process.flow
    bench.publish(4)
    assert flow.take(channel(1)) == 0, "five is what is granted at a time"
    bench.publish(1)
    bench.publish(5, number=2)
    assert (flow.take(channel(1)), flow.take(channel(1))) == (5, 0)
    assert bench.grants() == {channel(2): 5}
    bench.storage.in_mirrors = [MirrorInFlight(N2, 99, 0, 0)]
    bench.publish(5)
    bench.drain()
    assert flow.take(channel(1)) == 0, "a mirror is behind"
    bench.storage.in_mirrors = []
    assert bench.grants() == {channel(1): 5}


def test_while_the_store_is_behind_every_channel_waits_and_then_all_are_paid() -> None:
    bench = Bench()
    bench.publish(40)
    assert bench.grants() == {}
    bench.publish(6, number=2)
    assert bench.grants() == {}
    assert bench.state() == "flow"
    slowest = bench.process.flow.slowest(0)
    assert slowest is not None
    assert slowest == ("store", -6, 0, "blocked")
    bench.storage.sync()
    assert bench.grants() == {channel(1): 40, channel(2): 5}
    assert bench.process.flow.slowest(0) == ("store", 34, 0, "freed")
    assert [each for each in bench.process.drain() if isinstance(each, ConfirmPublished)] == []


@pytest.mark.parametrize(
    ("mirror", "hop"),
    [
        (MirrorInFlight(N3, 30, 0, 0), "mirror n3"),
        (MirrorInFlight(N3, 29, 40, 0), "mirror n3 -> store"),
        (MirrorInFlight(N3, 0, 0, MIRROR_BYTES.initial), "mirror n3 (bytes)"),
    ],
)
def test_the_slowest_of_the_mirrors_is_named(mirror: MirrorInFlight, hop: str) -> None:
    bench = Bench()
    bench.storage.in_mirrors = [MirrorInFlight(N2, 29, 39, MIRROR_BYTES.initial - 1), mirror]
    bench.publish(5)
    assert bench.grants() == {}
    slowest = bench.process.flow.slowest(0)
    assert slowest is not None
    assert (slowest.receiver, slowest.state) == (hop, "blocked")
    bench.storage.in_mirrors = [MirrorInFlight(N2, 29, 39, 0), MirrorInFlight(N3, 0, 0, 0)]
    assert bench.grants() == {channel(1): 5}


def test_a_mirror_that_is_dropped_holds_nobody_up() -> None:
    bench = Bench()
    bench.storage.in_mirrors = [MirrorInFlight(N3, 99, 99, 0)]
    bench.publish(5)
    assert bench.grants() == {}
    bench.storage.in_mirrors = []
    assert bench.grants() == {channel(1): 5}


def test_before_anything_is_blocked_the_hop_nearest_to_it_is_named() -> None:
    bench = Bench()
    assert bench.process.flow.slowest(0) is None
    bench.storage.in_mirrors = [MirrorInFlight(N2, 15, 0, 0)]
    bench.publish(10)
    bench.grants()
    slowest = bench.process.flow.slowest(0)
    assert slowest == ("mirror n2", 15, 0, "open"), "a half of its credit is left, the store has three quarters"


def test_what_a_seal_holds_back_is_not_processed() -> None:
    bench = Bench()
    bench.process.seal_for_delete(if_unused=False, if_empty=False)
    bench.publish(10)
    assert bench.grants() == {}
    bench.process.unseal()
    assert bench.grants() == {channel(1): 10}


def test_a_channel_that_is_gone_is_owed_nothing() -> None:
    bench = Bench()
    bench.publish(10)
    bench.process.channel_down(channel(1))
    assert bench.grants() == {}


def test_a_channel_that_begins_anew_is_not_paid_for_its_earlier_life() -> None:
    bench = Bench()
    bench.publish(10)
    bench.process.flow.begin(channel(1), 5)
    assert bench.grants() == {}
    assert bench.process.record.queue_id == QueueId(1)

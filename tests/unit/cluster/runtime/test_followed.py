"""A command about all queues is followed queue by queue, and each says as of which entry it speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from cluster.metadata.codec import encode_request
from cluster.metadata.commands import NodeDown, Request, RequestId
from cluster.runtime.link_news import LinkNews
from cluster.runtime.queue_role import MasterRole
from node.ids import Incarnation, NodeName, QueueId
from tests.support.runtime_bench import N2, RuntimeBench


@pytest.fixture
async def bench() -> AsyncIterator[RuntimeBench]:
    bench = await RuntimeBench().active()
    yield bench
    await bench.close()


async def test_each_queue_follows_in_a_turn_of_its_own_and_says_so(bench: RuntimeBench) -> None:
    queue_ids = [bench.declare(f"q{number}", N2) for number in range(4)]
    untouched = bench.declare("mine")
    await bench.settle()
    metadata, queues, records = bench.runtime.metadata, bench.runtime.queues, bench.runtime.records
    before = bench.log.index
    index = bench.log.index = before + 1
    request = Request(RequestId(NodeName("test"), Incarnation(1), index), NodeDown(N2, Incarnation(1)))
    has_promoted: list[int] = []
    for _ in metadata.apply_in_pieces(index, encode_request(request)):
        bench.runtime.check_invariants()
        promoted = [queue_id for queue_id in queue_ids if isinstance(queues.roles[queue_id], MasterRole)]
        has_promoted.append(len(promoted))
        for queue_id in queue_ids:
            # What it says of its mirrors is of the entry that it has followed, and of no later one.
            assert records.applied_index_of(queue_id) == (index if queue_id in promoted else before)
    assert set(has_promoted) == {0, 1, 2, 3, 4}
    assert records.applied_index_of(untouched) == index
    assert not any(records.is_behind(queue_id) for queue_id in queue_ids)


async def test_a_queue_that_has_yet_to_follow_is_not_taken_up_by_the_way(bench: RuntimeBench) -> None:
    """Its new record is to be seen already; what it was meant to do before that would be begun too late."""
    queue_ids = [bench.declare(f"q{number}", N2) for number in range(2)]
    await bench.settle()
    index = bench.log.index = bench.log.index + 1
    request = Request(RequestId(NodeName("test"), Incarnation(1), index), NodeDown(N2, Incarnation(1)))
    pieces = bench.runtime.metadata.apply_in_pieces(index, encode_request(request))
    while not bench.runtime.records.is_behind(queue_ids[1]):
        next(pieces)
    bench.runtime.roles.take_up(queue_ids[1])
    assert not isinstance(bench.runtime.queues.roles[queue_ids[1]], MasterRole)
    for _ in pieces:
        pass
    assert all(isinstance(bench.runtime.queues.roles[queue_id], MasterRole) for queue_id in queue_ids)


def test_news_of_links_are_told_in_turns_and_in_their_order() -> None:
    turns: list[Callable[[], None]] = []
    heard: list[tuple[int, str, bool]] = []
    news = LinkNews(lambda *what: heard.append(what), turns.append, lambda: 0.0, per_turn=2)
    queues = [QueueId(number) for number in range(1, 6)]
    news.came(N2, queues, is_up=False)
    assert [queue for queue, _, _ in heard] == [1, 2]
    news.came(N2, queues, is_up=True)
    news.catch_up(QueueId(5))
    assert heard[2:] == [(5, N2, False), (5, N2, True)], "who is called hears all of it first"
    while turns:
        news.check_invariants()
        count = len(heard)
        turns.pop()()
        assert len({queue for queue, _, _ in heard[count:]}) <= 2
    for queue in queues:
        assert [is_up for each, _, is_up in heard if each == queue] == [False, True]

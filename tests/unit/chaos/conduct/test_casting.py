"""Which processes a scenario gets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from chaos.clients.options import Endpoint, Orders, Role
from chaos.conduct.casting import PUBLISHER_PROCESSES_MAX, Stage, cast
from chaos.plan.model import ClusterPlan, Expectation, LoadPlan, QueuePlan, Scenario

ENDPOINTS = [Endpoint(node, f"n{node}", f"amqp://127.0.0.1:{5670 + node}/") for node in (1, 2, 3)]
STAGE = Stage("run", Path("/run"), 5, ENDPOINTS, seed=9)


def play(*queues: QueuePlan, **load: float) -> list[Orders]:
    plan = LoadPlan(**load)  # type: ignore[arg-type]
    orders = cast(Scenario("X", "x", "x", ClusterPlan(), queues, plan, [], Expectation()), STAGE)
    for each in orders:
        each.check()
    return orders


def test_a_few_publishers_have_a_process_each_and_consumers_two() -> None:
    first, second, *consumers = play(QueuePlan("a", publishers=2, consumers=3), rate=100)
    for number, orders in enumerate((first, second), 1):
        assert orders.publisher is not None
        assert (orders.publisher.publisher, orders.publisher.rate_per_s) == (number, 100)
        assert [target.name for target in orders.publisher.queues] == ["a"]
    assert [orders.consumer.consumers for orders in consumers if orders.consumer is not None] == [2, 1]


def test_clients_begin_at_different_nodes_and_know_all() -> None:
    orders = play(QueuePlan("a", publishers=2))
    assert [each.endpoints[0].node for each in orders] == [1, 2, 3, 1]
    assert {frozenset(each.endpoints) for each in orders} == {frozenset(ENDPOINTS)}


def test_many_queues_share_a_few_processes_and_keep_their_rates() -> None:
    queues = [QueuePlan(f"q{number}", publishers=1 + number % 2) for number in range(20)]
    orders = play(*queues, rate=10)
    publishers = [each.publisher for each in orders if each.publisher is not None]
    consumers = [each.consumer for each in orders if each.consumer is not None]
    assert len(publishers) == PUBLISHER_PROCESSES_MAX
    assert sum(each.rate_per_s for each in publishers) == 10 * (10 * 1 + 10 * 2)
    assert len({each.publisher for each in publishers}) == len(publishers)
    assert Counter(target.name for each in publishers for target in each.queues) == {queue.name: 1 for queue in queues}
    assert Counter(target.name for each in consumers for target in each.queues) == {queue.name: 2 for queue in queues}


def test_queues_with_other_numbers_of_consumers_have_processes_of_their_own() -> None:
    orders = play(QueuePlan("a", consumers=1), QueuePlan("b", consumers=0), QueuePlan("c", consumers=1))
    consumers = [each.consumer for each in orders if each.role is Role.CONSUMER]
    assert [(each.consumers, [target.index for target in each.queues]) for each in consumers if each] == [(1, [1, 3])]


def test_a_queue_without_publishers_is_only_consumed() -> None:
    orders = play(QueuePlan("a", publishers=0))
    assert {each.role for each in orders} == {Role.CONSUMER}


def test_the_load_is_passed_on() -> None:
    publisher, consumer, _ = play(
        QueuePlan("a"), window=7, body_bytes=999, prefetch=9, acked_together=50, requeued_share=0.25
    )
    assert publisher.publisher is not None
    assert consumer.consumer is not None
    assert (publisher.publisher.window, publisher.publisher.body_bytes) == (7, 999)
    assert (consumer.consumer.prefetch, consumer.consumer.group) == (9, 9)
    assert (consumer.consumer.requeue_share, consumer.consumer.seed) == (0.25, 9)

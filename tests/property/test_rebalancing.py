"""Plans of rebalancing, against all that could be planned."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from cluster.policy.rebalancing import MovableQueue, RebalancePlan
from node.ids import NodeName, QueueId
from tests.support.amounts import few_examples

NODES = tuple(NodeName(f"n{number}") for number in range(1, 5))


def queues_of(nodes: tuple[NodeName, ...], count_max: int) -> st.SearchStrategy[list[MovableQueue]]:
    places = st.permutations(nodes).flatmap(
        lambda order: st.integers(0, len(nodes) - 1).map(lambda heirs: (order[0], tuple(order[1 : 1 + heirs])))
    )
    return st.lists(places, max_size=count_max).map(
        lambda chosen: [MovableQueue(QueueId(number), *place) for number, place in enumerate(chosen, 1)]
    )


def planned(nodes: tuple[NodeName, ...], queues: list[MovableQueue]) -> RebalancePlan:
    plan = RebalancePlan(nodes, queues)
    steps = 0
    while plan.advance():
        plan.check_invariants()
        steps += 1
        assert steps <= (len(queues) + 1) ** 2, "there is an end"
    return plan


def unevenness(nodes: tuple[NodeName, ...], masters: list[NodeName]) -> int:
    return sum(masters.count(node) ** 2 for node in nodes)


@few_examples(30, 300, queues_of(NODES, 6))
def test_no_plan_is_more_even_and_none_as_even_has_fewer_moves(queues: list[MovableQueue]) -> None:
    moves = planned(NODES, queues).moves()
    targets = {move.queue_id: move.target for move in moves}
    masters = [targets.get(queue.queue_id, queue.master) for queue in queues]
    best = min(
        (unevenness(NODES, list(choice)), sum(q.master != node for q, node in zip(queues, choice, strict=True)))
        for choice in product(*((queue.master, *queue.heirs) for queue in queues))
    )
    assert (unevenness(NODES, masters), len(moves)) == best


@few_examples(30, 300, queues_of(NODES, 60))
def test_masters_go_to_heirs_only_and_each_queue_once(queues: list[MovableQueue]) -> None:
    by_id = {queue.queue_id: queue for queue in queues}
    moves = planned(NODES, queues).moves()
    assert len({move.queue_id for move in moves}) == len(moves)
    for move in moves:
        assert move.source == by_id[move.queue_id].master
        assert move.target in by_id[move.queue_id].heirs


@given(st.lists(st.sampled_from(NODES), max_size=60))
def test_where_every_node_has_every_queue_numbers_differ_by_one_at_most(masters: list[NodeName]) -> None:
    queues = [
        MovableQueue(QueueId(number), master, tuple(node for node in NODES if node != master))
        for number, master in enumerate(masters, 1)
    ]
    plan = planned(NODES, queues)
    assert max(plan.master_count.values()) - min(plan.master_count.values()) <= 1
    surplus = sum(max(0, masters.count(node) - plan.master_count[node]) for node in NODES)
    assert len(plan.moves()) == surplus, "nobody gives away what it gets back"


@few_examples(30, 300, queues_of(NODES, 30))
def test_what_was_planned_once_needs_no_second_plan(queues: list[MovableQueue]) -> None:
    targets = {move.queue_id: move.target for move in planned(NODES, queues).moves()}
    moved = []
    for queue in queues:
        master = targets.get(queue.queue_id, queue.master)
        holders = [node for node in (queue.master, *queue.heirs) if node != master]
        moved.append(MovableQueue(queue.queue_id, master, tuple(holders)))
    assert planned(NODES, moved).moves() == []


def test_masters_on_nodes_that_are_not_asked_for_stay() -> None:
    stranger = NodeName("n9")
    queues = [MovableQueue(QueueId(1), stranger, (NODES[0],)), MovableQueue(QueueId(2), NODES[0], (stranger,))]
    assert planned(NODES, queues).moves() == []


def test_queues_pass_through_a_node_that_keeps_its_number() -> None:
    """n1 has two and cannot give to n3; n2 can, and takes one of n1's instead."""
    one, two, three = NODES[:3]
    queues = [
        MovableQueue(QueueId(1), one, (two,)),
        MovableQueue(QueueId(2), one, (two,)),
        MovableQueue(QueueId(3), two, (three,)),
    ]
    assert [tuple(move) for move in planned((one, two, three), queues).moves()] == [(1, one, two), (3, two, three)]

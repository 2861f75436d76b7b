"""Scenarios with other queues are the same scenarios otherwise."""

from __future__ import annotations

import pytest

from chaos.plan.reading import catalogue, catalogue_documents, scenario
from chaos.plan.variants import OF_MIRRORS, lacks_for_quorum, renamed, with_quorum_queues


@pytest.mark.parametrize("name", list(catalogue_documents()))
def test_no_old_name_of_a_queue_is_left(name: str) -> None:
    plan = scenario(catalogue_documents()[name])
    other = renamed(plan, lambda queue: f"chaos.run7.{queue}")
    assert [queue.name for queue in other.queues] == [f"chaos.run7.{queue.name}" for queue in plan.queues]
    names = {queue.name for queue in plan.queues}
    for step in other.steps:
        drawn = step.arguments.get("faults", ())
        for each in (step, *drawn):
            spoken = [nodes.queue for nodes in each.named_nodes()] + [each.queue]
            spoken += [each.when.queue] if each.when is not None else []
            assert not names & set(spoken)
    assert renamed(other, lambda queue: queue.removeprefix("chaos.run7.")) == renamed(plan, str)


def test_what_is_not_about_mirrors_has_quorum_queues_without_a_policy() -> None:
    other = with_quorum_queues(catalogue()["K01"])
    assert {queue.arguments["x-queue-type"] for queue in other.queues} == {"quorum"}
    assert other.cluster.policy == {}


def test_what_is_about_mirrors_says_so() -> None:
    for plan in catalogue().values():
        is_about_mirrors = any(step.action.name in OF_MIRRORS for step in plan.steps)
        assert bool(lacks_for_quorum(plan)) >= is_about_mirrors

"""Scenarios made of others: with queues of other names, or of another type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chaos.plan.model import QueuePlan, Round, Scenario, Step
from chaos.plan.words import Lines, Nodes

Rename = Callable[[str], str]
#: Steps that are about mirrors of a policy: quorum queues have none.
OF_MIRRORS = frozenset({"set policy", "clear policy", "sync", "cancel sync"})


def renamed(scenario: Scenario, rename: Rename) -> Scenario:
    """With other names of queues, wherever they are spoken of: a cluster that others use has queues of its own."""
    return replace(
        scenario,
        queues=[replace(queue, name=rename(queue.name)) for queue in scenario.queues],
        rounds=[
            Round([_step(step, rename) for step in each.steps], each.times) for each in scenario.rounds
        ],
    )  # fmt: skip


def _step(step: Step, rename: Rename) -> Step:
    arguments = dict(step.arguments)
    if "faults" in arguments:
        arguments["faults"] = [_step(each, rename) for each in arguments["faults"]]
    return replace(
        step,
        queue=rename(step.queue) if step.queue else step.queue,
        nodes=_nodes(step.nodes, rename),
        lines=_lines(step.lines, rename),
        when=replace(step.when, queue=rename(step.when.queue)) if step.when and step.when.queue else step.when,
        arguments=arguments,
    )


def _nodes(nodes: Nodes | None, rename: Rename) -> Nodes | None:
    return replace(nodes, queue=rename(nodes.queue)) if nodes is not None and nodes.queue else nodes


def _lines(lines: Lines | None, rename: Rename) -> Lines | None:
    if lines is None:
        return None
    return replace(lines, sources=_nodes(lines.sources, rename), destinations=_nodes(lines.destinations, rename))


def with_quorum_queues(scenario: Scenario) -> Scenario:
    """The same with queues that keep a majority by themselves, without a policy. `lacks_for_quorum` must be empty."""
    return replace(
        scenario,
        cluster=replace(scenario.cluster, policy={}),
        queues=[_quorum(queue) for queue in scenario.queues],
        expectation=replace(scenario.expectation, loss_permitted=""),
    )


def lacks_for_quorum(scenario: Scenario) -> str:
    """Why it makes no sense with quorum queues; empty if it does."""
    of_mirrors = sorted({step.action.name for step in scenario.steps} & OF_MIRRORS)
    if of_mirrors:
        return f"it is about mirrors, which quorum queues have not: {', '.join(of_mirrors)}"
    if not all(queue.is_durable for queue in scenario.queues):
        return "quorum queues are durable, all of them"
    return ""


def _quorum(queue: QueuePlan) -> QueuePlan:
    return replace(queue, arguments={**queue.arguments, "x-queue-type": "quorum"})

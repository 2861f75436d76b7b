"""Which client processes a scenario needs, and what each is told.

A few processes carry many queues: a machine with two cores measures its scheduler otherwise. With up to
`PUBLISHER_PROCESSES_MAX` publishers each has a process of its own; of more, each process publishes to several queues,
at the rate of all of them together. Consumers are two processes for all queues that have as many of them, so that one
may die and the other lives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.clients.options import ConsumerOptions, Endpoint, Orders, PublisherOptions, QueueTarget, Role
from chaos.plan.model import LoadPlan, QueuePlan, Scenario

PUBLISHER_PROCESSES_MAX = 4


@dataclass(frozen=True, slots=True)
class Stage:
    """What all clients of a run are told."""

    run: str
    run_directory: Path
    clock_offset_us: int
    endpoints: Sequence[Endpoint]
    #: Of the chance by which deliveries are given back.
    seed: int


def cast(scenario: Scenario, stage: Stage) -> list[Orders]:
    """Orders for every client, publishers first. Processes have no numbers yet."""
    targets = {queue.name: QueueTarget(index, queue.name) for index, queue in enumerate(scenario.queues, 1)}
    publishers = _publishers(scenario.queues, targets, scenario.load)
    consumers = _consumers(scenario.queues, targets, scenario.load, stage.seed)
    orders: list[Orders] = []
    for place, options in enumerate([*publishers, *consumers]):
        chosen = {"publisher": options} if isinstance(options, PublisherOptions) else {"consumer": options}
        role = Role.PUBLISHER if isinstance(options, PublisherOptions) else Role.CONSUMER
        endpoints = tuple(_from(stage.endpoints, place))
        run_at = (stage.run, stage.run_directory, stage.clock_offset_us)
        orders.append(Orders(role, 1, *run_at, endpoints, **chosen))
    return orders


def _from(endpoints: Sequence[Endpoint], place: int) -> list[Endpoint]:
    """All of them, another one first for each place: not all clients are at one node."""
    first = place % len(endpoints)
    return [*endpoints[first:], *endpoints[:first]]


def _publishers(queues: Sequence[QueuePlan], targets: dict[str, QueueTarget], load: LoadPlan) -> list[PublisherOptions]:
    wanted = [queue for queue in queues for _ in range(queue.publishers)]
    if len(wanted) <= PUBLISHER_PROCESSES_MAX:
        groups = [[queue] for queue in wanted]
        rates = [load.rate for _ in wanted]
    else:
        used = [queue for queue in queues if queue.publishers]
        groups = [used[first::PUBLISHER_PROCESSES_MAX] for first in range(min(PUBLISHER_PROCESSES_MAX, len(used)))]
        rates = [load.rate * sum(queue.publishers for queue in group) for group in groups]
    return [
        PublisherOptions(
            publisher,
            tuple(targets[queue.name] for queue in group),
            rate_per_s=rate,
            window=load.window,
            body_bytes=load.body_bytes,
            is_persistent=load.is_persistent,
            is_mandatory=load.is_mandatory,
        )
        for publisher, (group, rate) in enumerate(zip(groups, rates, strict=True), 1)
    ]


def _consumers(
    queues: Sequence[QueuePlan], targets: dict[str, QueueTarget], load: LoadPlan, seed: int
) -> list[ConsumerOptions]:
    alike: dict[int, list[QueueTarget]] = defaultdict(list)
    for queue in queues:
        alike[queue.consumers].append(targets[queue.name])
    return [
        ConsumerOptions(
            tuple(group),
            consumers=count,
            prefetch=load.prefetch,
            group=min(load.acked_together, load.prefetch),
            requeue_share=load.requeued_share,
            seed=seed,
        )
        for consumers, group in sorted(alike.items())
        for count in ((consumers + 1) // 2, consumers // 2)
        if count
    ]

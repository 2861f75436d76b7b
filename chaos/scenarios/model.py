"""What a scenario is: a queue, a policy, a workload, steps, and what must hold afterwards.

The expectation is not written by hand beside the steps; `loss_rule` derives from the policy whether losing confirmed
messages is forbidden or permitted. A permitted loss is still exact: the messages that the promoted mirror could not
have, no more and no fewer, are known from the run's own records (those confirmed in the phase named by
`Expectation.lost_phase`).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from chaos.cluster_under_test.protocol import ClusterUnderTest, QueueSample
from chaos.faults.nemesis import Nemesis
from chaos.faults.observer import Observer
from chaos.history import Kind, ProcessLog
from chaos.workload.traffic import Traffic, TrafficOptions

#: Queues of the laboratory; the policy's pattern.
QUEUE_PATTERN = r"^chaos\."


class LossRule(StrEnum):
    """What a policy promises about confirmed messages when a master dies."""

    FORBIDDEN = "forbidden"
    #: The promoted mirror lacks what was confirmed before it joined: exactly that is lost.
    EXACTLY_UNSYNCHRONISED = "exactly-unsynchronised"


def loss_rule(policy: Mapping[str, object], *, is_master_killed_while_unsynchronised: bool) -> LossRule:
    """The promise of a policy for a fault schedule.

    A confirmed message is on every replica of the queue's record. So it can only be lost when the master dies, no
    synchronised mirror lives, and ``ha-promote-on-failure`` lets an unsynchronised one lead (``always``, RabbitMQ's
    default).
    """
    promotes_always = policy.get("ha-promote-on-failure", "always") == "always"
    if is_master_killed_while_unsynchronised and promotes_always:
        return LossRule.EXACTLY_UNSYNCHRONISED
    return LossRule.FORBIDDEN


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the analysis judges a run by. Stored in run.json."""

    loss: LossRule
    #: Phase whose confirmed messages must be the lost ones; None when loss is forbidden.
    lost_phase: str | None
    #: Fewer confirmed messages or promotions than these prove nothing: VACUOUS.
    min_confirmed: int
    min_promotions: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Expectation:
        return cls(
            LossRule(document["loss"]), document["lost_phase"], document["min_confirmed"], document["min_promotions"]
        )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line may change."""

    #: Confirmed messages at least.
    messages: int
    #: Masters killed, where the scenario kills masters.
    failovers: int
    traffic: TrafficOptions = field(default_factory=TrafficOptions)
    #: Seconds for one step (a promotion, a restart, a synchronisation, the drain) before the run counts as hung.
    step_timeout_s: float = 60.0


@dataclass(slots=True)
class Stage:
    """Everything that the steps of a scenario act on."""

    cluster: ClusterUnderTest
    nemesis: Nemesis
    observer: Observer
    traffic: Traffic
    log: ProcessLog
    chance: random.Random
    options: RunOptions
    #: Told the name of each phase as it begins, for display.
    on_phase: Callable[[str], None]

    @property
    def nodes(self) -> Sequence[str]:
        return self.cluster.nodes

    @property
    def sample(self) -> QueueSample:
        """The queue as last seen."""
        assert self.observer.view.last is not None, "the run begins with a queue that has a master"
        return self.observer.view.last

    @property
    def master(self) -> str:
        """Node of the master as last seen."""
        assert self.sample.master is not None, "the observer keeps samples with a master only"
        return self.sample.master

    def phase(self, name: str) -> None:
        """Begin a phase; it lasts until the next one."""
        self.log.record(Kind.PHASE, detail=name)
        self.on_phase(name)

    async def confirmed_more(self, count: int) -> None:
        """Wait until ``count`` more messages have been confirmed."""
        goal = self.traffic.confirmed_count + count
        await self.traffic.wait_for(
            lambda: self.traffic.confirmed_count >= goal, f"{count} more confirms", self.options.step_timeout_s
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """One experiment of the catalogue."""

    name: str
    summary: str
    min_nodes: int
    #: Definition of the policy on `QUEUE_PATTERN`, given the nodes.
    policy: Callable[[Sequence[str]], Mapping[str, object]]
    #: Mirrors that must be synchronised before the steps begin.
    initial_mirrors: Callable[[Sequence[str]], int]
    steps: Callable[[Stage], Awaitable[None]]
    defaults: RunOptions
    #: Phase of which the confirmed messages may be lost; None for scenarios that kill synchronised queues only.
    lost_phase: str | None = None

    def expectation(self, nodes: Sequence[str], options: RunOptions) -> Expectation:
        """What must hold for a run on these nodes with these options."""
        rule = loss_rule(self.policy(nodes), is_master_killed_while_unsynchronised=self.lost_phase is not None)
        return Expectation(
            loss=rule,
            lost_phase=self.lost_phase if rule is LossRule.EXACTLY_UNSYNCHRONISED else None,
            min_confirmed=options.messages,
            min_promotions=options.failovers,
        )

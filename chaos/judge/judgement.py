"""What a judge says of a record: findings counted, some of them shown, and the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chaos.judge.figures import Figures
from chaos.judge.findings import ABSENCES, VIOLATIONS, Finding, Name, Place
from chaos.record.message_key import any_attempt
from chaos.record.schema import Event

#: Findings of each name (and place) that a judgement shows; all of them are in the evidence.
EXAMPLES_MAX = 10
#: Messages that are told of row by row: so many of each violation, and in all.
TOLD_OF_EACH, TOLD_MAX = 3, 24
#: Legal repeats of which one is told of as well: they show what a failover costs.
_TOLD_TOO = (Name.CAUSED, Name.AFTER_ACK)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a record shows, in few words."""

    rows: int
    messages: int
    #: Of these nothing was concluded: they were delivered too often.
    unjudged_messages: int
    counts: Mapping[Name, int]
    #: Of what is LOST.
    places: Mapping[Place, int]
    #: The first of each name.
    examples: Mapping[Name, Sequence[Finding]]
    #: Neighbours in a channel whose order was judged: without any, nothing is known of order.
    pairs_compared: int
    #: Processes of which something is missing: nothing was concluded from absences then.
    incomplete: frozenset[int]
    figures: Figures
    #: Every row of the messages that are told of (`messages_told`), in all their attempts.
    told: Sequence[Event] = ()

    @property
    def violations(self) -> dict[Name, int]:
        return {name: count for name, count in self.counts.items() if name in VIOLATIONS}

    @property
    def not_concluded(self) -> frozenset[Name]:
        """What may be there, and cannot be seen in what was recorded."""
        return ABSENCES if self.incomplete else frozenset()


def messages_told(examples: Mapping[Name, Iterable[Finding]]) -> list[int]:
    """Keys of messages whose story is told: violations first, a message once, whatever was found of it."""
    told: dict[int, int] = {}
    for name in [*sorted(VIOLATIONS), *_TOLD_TOO]:
        many = TOLD_OF_EACH if name in VIOLATIONS else 1
        for finding in [each for each in examples.get(name, ()) if each.message][:many]:
            told.setdefault(any_attempt(finding.message), finding.message)
    return list(told.values())[:TOLD_MAX]

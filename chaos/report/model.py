"""What is on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from chaos.conduct.sheet import Sheet
from chaos.judge.findings import Name
from chaos.judge.ledger import Row
from chaos.judge.verdict import Judged
from chaos.judge.windows import Window


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened in one short step of time, in all queues together."""

    at_us: int
    confirms: int = 0
    deliveries: int = 0
    #: Of those, deliveries of what had been delivered before.
    repeats: int = 0
    #: From the intended time of a publish to its confirm; None if nothing was confirmed.
    median_us: int | None = None
    p99_us: int | None = None
    longest_us: int | None = None


@dataclass(frozen=True, slots=True)
class Depth:
    """How long a queue was at a moment: ready and unacknowledged."""

    at_us: int
    messages: int


class Lane(StrEnum):
    """What is drawn beside each other below the curves."""

    PHASES = "phases"
    FAULTS = "faults"
    PROMOTIONS = "promotions"
    NO_PUBLISH = "no confirm"
    NO_CONSUME = "no delivery"
    MIRRORS = "mirrors"
    CLIENTS = "clients"
    STALLS = "stalls"


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that lasted, or a moment (both ends are the same)."""

    lane: Lane
    begin_us: int
    end_us: int
    text: str


class Actor(StrEnum):
    """Who does something in the story of a message."""

    PUBLISHER = "publisher"
    NODE = "node"
    CONSUMER = "consumer"
    CONDUCTOR = "conductor"


@dataclass(frozen=True, slots=True)
class Deed:
    """One line of a story."""

    #: Within these.
    t_lo_us: int
    t_hi_us: int
    actor: Actor
    #: Which of them: "publisher 1", "n2", "consumer 3".
    who: str
    text: str
    #: It is what a finding names.
    is_finding: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to one message."""

    #: Of the message, and in words.
    message: int
    title: str
    findings: Sequence[Name]
    deeds: Sequence[Deed]
    #: Lines of logs of nodes near it: name of the node, and the line.
    logs: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All of it."""

    sheet: Sheet
    judged: Judged
    counts: Mapping[Name, int]
    #: Places of what is lost: prefix, middle, postfix.
    places: Mapping[str, int]
    moments: Sequence[Moment]
    #: By name of the queue.
    depths: Mapping[str, Sequence[Depth]]
    marks: Sequence[Mark]
    windows: Sequence[Window]
    ledger: Sequence[Row]
    #: How often a fault of a kind met a state: {"kill": {"publishes under way": 2}}.
    coverage: Mapping[str, Mapping[str, int]]
    stories: Sequence[Story] = ()
    #: By which the run can be repeated.
    replay: str = ""
    #: Beside the page: name and relative address.
    files: Mapping[str, str] = field(default_factory=dict)

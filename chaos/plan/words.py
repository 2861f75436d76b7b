"""The small phrases of a scenario: durations, conditions, nodes, lines."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class PlanError(Exception):
    """A scenario says something that nobody understands; the text says where, and what would be right."""


# --- durations and sizes


_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|min)")
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}
_SIZE = re.compile(r"(\d+) ?(B|KB|MB|GB|KiB|MiB|GiB)")
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def duration_s(text: object) -> float:
    """Seconds of "250 ms", "3 s", "2 min". Raises `PlanError`."""
    found = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise PlanError(f'{text!r} is no duration; write it like "250 ms", "3 s" or "2 min"')
    return float(found[1]) * _SECONDS[found[2]]


def size_bytes(text: object) -> int:
    """Bytes of "64 KB", "16 MiB". Raises `PlanError`."""
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise PlanError(f'{text!r} is no size; write it like "64 KB" or "16 MiB"')
    return int(found[1]) * _BYTES[found[2]]


# --- conditions


class Quantity(StrEnum):
    """What a condition counts. Those of a queue are written ``ready of orders``."""

    #: Of all clients, since the round began.
    CONFIRMED = "confirmed"
    DELIVERED = "delivered"
    REDELIVERED = "redelivered"
    REFUSED = "refused"
    #: Of all clients, now: published and not answered; delivered and not acknowledged.
    OUTSTANDING = "outstanding"
    HELD = "held"
    #: Nodes that run, now.
    RUNNING = "running"
    #: Of one queue, now: messages; mirrors; mirrors that have everything.
    READY = "ready"
    UNACKED = "unacked"
    MIRRORS = "mirrors"
    SYNCHRONISED = "synchronised"
    #: Of one queue: masters that it got since the round began.
    FAILOVERS = "failovers"


OF_A_QUEUE = frozenset({Quantity.READY, Quantity.UNACKED, Quantity.MIRRORS, Quantity.SYNCHRONISED, Quantity.FAILOVERS})
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"(\w+)(?: of (\S+))? (>=|<=|=|>|<) (\d+)")


@dataclass(frozen=True, slots=True)
class Condition:
    """``ready of orders >= 2000``."""

    quantity: Quantity
    queue: str | None
    comparison: str
    number: int

    def holds(self, value: float) -> bool:
        """True if the quantity, being ``value``, is as it is waited for."""
        return COMPARISONS[self.comparison](value, self.number)

    def __str__(self) -> str:
        of = f" of {self.queue}" if self.queue else ""
        return f"{self.quantity}{of} {self.comparison} {self.number}"


def condition(text: object) -> Condition:
    """Raises `PlanError`."""
    found = _CONDITION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise PlanError(f'{text!r} is no condition; write it like "confirmed >= 5000" or "ready of orders >= 2000"')
    name, queue, comparison, number = found.groups()
    try:
        quantity = Quantity(name)
    except ValueError:
        raise PlanError(f"nobody counts {name!r}; there are: {', '.join(Quantity)}") from None
    if (queue is not None) != (quantity in OF_A_QUEUE):
        right = f"{quantity} of QUEUE" if quantity in OF_A_QUEUE else str(quantity)
        raise PlanError(f"in {text!r} it must be {right!r}")
    return Condition(quantity, queue, comparison, int(number))


# --- nodes


class Role(StrEnum):
    """Who a node is to a queue."""

    MASTER = "master"
    MIRROR = "mirror"
    SYNCHRONISED = "synchronised mirror"
    UNSYNCHRONISED = "unsynchronised mirror"


class Which(StrEnum):
    """Of several."""

    OLDEST = "oldest"
    NEWEST = "newest"
    EVERY = "every"


@dataclass(frozen=True, slots=True)
class Nodes:
    """Some nodes, found when they are needed. One of the fields says which."""

    #: Numbers from 1: ``n1, n3``.
    numbers: tuple[int, ...] = ()
    #: ``master of orders``, ``oldest synchronised mirror of orders``, ``every mirror of orders``.
    role: Role | None = None
    which: Which = Which.OLDEST
    queue: str | None = None
    #: So many that run, by chance: ``2 random nodes``.
    random_count: int = 0
    #: ``a minority``, ``a majority``, by chance.
    share: str = ""
    #: ``all nodes``.
    is_all: bool = False
    #: ``all but master of orders``: the others of those.
    are_others: bool = False

    def __str__(self) -> str:
        if self.are_others:
            return f"all but {replace(self, are_others=False)}"
        if self.numbers:
            return ", ".join(f"n{number}" for number in self.numbers)
        if self.role is not None:
            which = "" if self.role is Role.MASTER else f"{self.which} "
            return f"{which}{self.role} of {self.queue}"
        if self.random_count:
            return "a random node" if self.random_count == 1 else f"{self.random_count} random nodes"
        return f"a {self.share}" if self.share else "all nodes"


_NUMBERED = re.compile(r"n[1-9]\d*(?:, n[1-9]\d*)*")
_OF_QUEUE = re.compile(r"(?:(oldest|newest|every) )?(master|mirror|synchronised mirror|unsynchronised mirror) of (\S+)")
_RANDOM = re.compile(r"(a|[1-9]\d*) random nodes?")
_NODES_HELP = (
    '"n1, n3", "master of QUEUE", "oldest|newest|every [synchronised|unsynchronised] mirror of QUEUE", '
    '"a random node", "2 random nodes", "a minority", "a majority", "all nodes", or "all but ..." before one of these'
)


def nodes(text: object) -> Nodes:
    """Raises `PlanError`."""
    if not isinstance(text, str):
        raise PlanError(f"{text!r} names no nodes; write {_NODES_HELP}")
    if text.startswith("all but "):
        found = nodes(text.removeprefix("all but "))
        if found.are_others or found.is_all:
            raise PlanError(f"{text!r} names no nodes that could be left out")
        return replace(found, are_others=True)
    if _NUMBERED.fullmatch(text):
        return Nodes(numbers=tuple(int(name[1:]) for name in text.split(", ")))
    if match := _OF_QUEUE.fullmatch(text):
        which, role, queue = match.groups()
        if (role == Role.MASTER) != (which is None):
            raise PlanError(f"in {text!r}: a queue has one master; of mirrors say oldest, newest or every")
        return Nodes(role=Role(role), which=Which(which or Which.OLDEST), queue=queue)
    if match := _RANDOM.fullmatch(text):
        return Nodes(random_count=1 if match[1] == "a" else int(match[1]))
    if text in {"a minority", "a majority"}:
        return Nodes(share=text.removeprefix("a "))
    if text == "all nodes":
        return Nodes(is_all=True)
    raise PlanError(f"{text!r} names no nodes; write {_NODES_HELP}")


# --- lines


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines between nodes, or between clients and nodes (None: the clients). One way, or both."""

    sources: Nodes | None
    destinations: Nodes | None
    is_both_ways: bool

    def __str__(self) -> str:
        arrow = "<->" if self.is_both_ways else "->"
        source, destination = (
            str(side) if side is not None else "clients" for side in (self.sources, self.destinations)
        )
        return f"{source} {arrow} {destination}"


def lines(text: object) -> Lines:
    """``master of orders -> every mirror of orders``, ``clients <-> n1``. Raises `PlanError`."""
    arrow = " <-> " if isinstance(text, str) and " <-> " in text else " -> "
    sides = text.split(arrow) if isinstance(text, str) else []
    if len(sides) != 2:
        raise PlanError(f'{text!r} names no lines; write NODES -> NODES, NODES <-> NODES, or "clients" for one side')
    source, destination = (None if side == "clients" else nodes(side) for side in sides)
    if source is None and destination is None:
        raise PlanError(f"{text!r}: clients have lines to nodes only")
    return Lines(source, destination, arrow == " <-> ")

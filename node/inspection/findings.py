"""What a verification found wrong, in three kinds, and what the next start will do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

#: Problems kept in a list; more are told as they are found, and counted. A store in which every entry is damaged
#: has millions.
PROBLEMS_MAX = 10_000


class Kind(StrEnum):
    """How bad it is."""

    #: Something that was durable is not what it was.
    DAMAGE = "damage"
    #: A write that never finished before a crash: nobody was promised anything.
    TORN = "torn"
    #: What interrupted work left, and nobody needs.
    LEFTOVER = "leftover"


class Problem(NamedTuple):
    """One thing that is not as it should be."""

    kind: Kind
    path: str
    #: In the file; ``None`` if it concerns all of it.
    offset: int | None
    what: str
    #: What the next start does about it, or what follows from it.
    consequence: str


class Findings:
    """Collects problems."""

    def __init__(self, on_problem: Callable[[Problem], None] = lambda _problem: None) -> None:
        self._on_problem = on_problem
        self.problems: list[Problem] = []
        self.counts: Counter[Kind] = Counter()

    def add(self, kind: Kind, path: str, offset: int | None, what: str, consequence: str) -> None:
        problem = Problem(kind, path, offset, what, consequence)
        self.counts[kind] += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        self._on_problem(problem)

    def damage(self, path: str, offset: int | None, what: str, consequence: str) -> None:
        self.add(Kind.DAMAGE, path, offset, what, consequence)

    def leftover(self, path: str, offset: int | None, what: str, consequence: str) -> None:
        self.add(Kind.LEFTOVER, path, offset, what, consequence)

    def unfinished(self, was_clean: bool, path: str, offset: int | None, what: str, consequence: str) -> None:
        """Looks like a write that never finished, which there is not after a clean stop."""
        self.add(Kind.DAMAGE if was_clean else Kind.TORN, path, offset, what, consequence)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the counts contradict the list."""
        assert len(self.problems) == min(self.counts.total(), PROBLEMS_MAX), (
            "what is found is counted, and kept if it fits"
        )

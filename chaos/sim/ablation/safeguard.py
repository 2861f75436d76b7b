"""A safeguard of the product, and how it is taken away for the time of a run.

Taken away means: a method of the product is replaced by one that does without, and put back afterwards. What is left is
a defect that Warren once had, or could have; if no seed notices, the simulator is blind to it, or the safeguard is
another's shadow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol


class Patches(Protocol):
    """Who replaces an attribute and puts it back later (`Replacing`, or a test's `MonkeyPatch`)."""

    def setattr(self, target: Any, name: str, value: Any) -> None: ...


class Replacing:
    """Replaces attributes until its stack is left."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def setattr(self, target: Any, name: str, value: Any) -> None:
        """Also of a class or a module."""
        before = vars(target)[name]  # as it lies there: a static method stays one
        setattr(target, name, value)
        self._stack.callback(setattr, target, name, before)


class Safeguard(NamedTuple):
    """One of them, and the scenario that is aimed at it."""

    take_away: Callable[[Patches], None]
    #: What it does, in a sentence.
    says: str
    #: What would happen without it.
    protects: str
    #: Its module.
    where: str
    #: Of `chaos.sim.scenarios`; empty: the plain drawing.
    scenario: str = ""
    #: Why no seed has shown it yet, as far as is known; it is run only if it is named.
    unseen_because: str = ""

    @property
    def name(self) -> str:
        return self.take_away.__name__


@contextmanager
def without(safeguard: Safeguard | None) -> Iterator[None]:
    """The product without it; with all of them if it is ``None``."""
    with ExitStack() as stack:
        if safeguard is not None:
            safeguard.take_away(Replacing(stack))
        yield

"""Which faults a swarm draws, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from chaos.plan.model import Step


class Draw(NamedTuple):
    """One moment of a swarm."""

    #: Since its beginning.
    at_s: float
    #: None: a quiet time.
    step: Step | None


def draws(told: Mapping[str, Any], chance: Random) -> Sequence[Draw]:
    """Of an "any of" step. The k-th is somewhere in the k-th of equal parts of time, so they may meet and overlap."""
    every_s, quiet = float(told["every"]), float(told.get("quiet", 0.0))
    found: list[Draw] = []
    for number in range(told["draws"]):
        at_s = (number + chance.random()) * every_s
        step = None if chance.random() < quiet else chance.choice(told["faults"])
        found.append(Draw(at_s, step))
    return found

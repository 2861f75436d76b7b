"""The smallest scenario that still shows what a scenario showed.

Works on the document that a scenario is read from, so what is left can be written as a file again. One thing is left
out at a time: repetitions of a round, a round, a step, a queue that no step speaks of. Real clusters are no simulation:
what showed once may not show the next time. So a candidate is tried several times, and taken as soon as it shows the
same once; what cannot be left out stays, maybe by bad luck. The result shows it, since it did so when it was tried.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from chaos.plan.reading import scenario
from chaos.plan.words import PlanError

Document = Mapping[str, Any]
#: Runs a scenario, and says whether it shows the same.
Shows = Callable[[Document], Awaitable[bool]]


def candidates(document: Document) -> Iterator[dict[str, Any]]:
    """Everything that has one thing less, the largest parts first. All of them can be read."""
    for smaller in _smaller(document):
        try:
            scenario(smaller)
        except PlanError:
            continue
        yield smaller


def _smaller(document: Document) -> Iterator[dict[str, Any]]:
    rounds = document.get("round", [])
    for place, each in enumerate(rounds):
        yield _without(document, "round", place)
        times = each.get("times", 1)
        for fewer in sorted({1, times // 2} - {0, times}):
            smaller = copy.deepcopy(dict(document))
            smaller["round"][place]["times"] = fewer
            yield smaller
    for place, each in enumerate(rounds):
        for step in range(len(each.get("step", []))):
            smaller = copy.deepcopy(dict(document))
            del smaller["round"][place]["step"][step]
            yield smaller
    for place in range(len(document.get("queue", []))):
        yield _without(document, "queue", place)


def _without(document: Document, name: str, place: int) -> dict[str, Any]:
    smaller = copy.deepcopy(dict(document))
    del smaller[name][place]
    return smaller


async def shrink(document: Document, shows: Shows, tries: int, runs_max: int) -> tuple[dict[str, Any], int]:
    """The smallest that was found, and how many runs it took, at most ``runs_max``.

    ``tries``: how often a candidate may fail to show it before it is given up.
    """
    smallest = copy.deepcopy(dict(document))
    runs = 0
    refused: list[dict[str, Any]] = []
    while True:
        for candidate in candidates(smallest):
            if candidate in refused:
                continue
            for _ in range(tries):
                if runs >= runs_max:
                    return smallest, runs
                runs += 1
                if await shows(candidate):
                    break
            else:
                refused.append(candidate)
                continue
            smallest = candidate
            break
        else:
            return smallest, runs

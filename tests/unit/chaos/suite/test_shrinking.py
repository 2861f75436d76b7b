"""Leaving out what does not matter."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

from chaos.plan.reading import scenario
from chaos.suite.shrinking import candidates, shrink

KILL = {"do": "kill", "to": "master of a"}
WAIT = {"do": "wait", "after": "1 s"}
HEAL = {"do": "heal"}
DOCUMENT: dict[str, Any] = {
    "id": "X",
    "title": "x",
    "holds": "x",
    "queue": [{"name": "a"}, {"name": "b"}],
    "round": [
        {"times": 6, "step": [WAIT, KILL, WAIT, HEAL]},
        {"step": [WAIT, {"do": "purge", "to": "b"}]},
    ],
}


def kills(document: Any) -> bool:
    return any(step["do"] == "kill" for each in document["round"] for step in each["step"])


def purges_twice(document: Any) -> bool:
    purges = sum(each.get("times", 1) for each in document["round"] for step in each["step"] if step["do"] == "purge")
    return purges >= 1 and kills(document)


def shrunk(shows: Callable[[Any], bool], tries: int = 1, runs_max: int = 1000) -> tuple[dict[str, Any], int]:
    async def run(document: Any) -> bool:
        return shows(document)

    return asyncio.run(shrink(DOCUMENT, run, tries, runs_max))


def test_only_what_shows_it_stays() -> None:
    smallest, runs = shrunk(kills)
    assert smallest["round"] == [{"times": 1, "step": [KILL]}]
    assert smallest["queue"] == [{"name": "a"}]
    assert runs < 30


def test_what_belongs_together_stays_together() -> None:
    smallest, _ = shrunk(purges_twice)
    assert smallest["round"] == [{"times": 1, "step": [KILL]}, {"step": [{"do": "purge", "to": "b"}]}]
    assert [queue["name"] for queue in smallest["queue"]] == ["a", "b"], "steps speak of both"


def test_nothing_is_left_out_of_what_shows_nothing_smaller() -> None:
    smallest, runs = shrunk(lambda document: document == DOCUMENT)
    assert smallest == DOCUMENT
    assert runs == len(list(candidates(DOCUMENT)))


def test_what_is_tried_can_be_read_and_has_less() -> None:
    before = copy.deepcopy(DOCUMENT)
    tried = list(candidates(DOCUMENT))
    assert tried
    for candidate in tried:
        scenario(candidate)
        assert len(str(candidate)) < len(str(DOCUMENT)) or candidate["round"][0]["times"] < 6
    assert before == DOCUMENT, "nothing is changed in place"


@pytest.mark.parametrize(("tries", "is_found"), [(1, False), (3, True)])
def test_what_shows_it_seldom_is_tried_again(tries: int, is_found: bool) -> None:
    seen: dict[str, int] = {}

    def every_third_time(document: Any) -> bool:
        seen[str(document)] = seen.get(str(document), 0) + 1
        return kills(document) and seen[str(document)] % 3 == 0

    smallest, _ = shrunk(every_third_time, tries)
    assert (len(smallest["round"]) == 1) == is_found


def test_runs_are_bounded() -> None:
    _, runs = shrunk(lambda _: False, tries=5, runs_max=7)
    assert runs == 7

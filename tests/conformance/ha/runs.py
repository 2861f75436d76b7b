"""Running a case: a loop with virtual time for each, tests out of coroutines, and functions of a seed.

A case that RabbitMQ's suites gave up as flaky depends on when the fault comes. Here it is a function of a seed, which
decides that and how fast everything is: `seeded` makes a test of the first few seeds, and `SEEDED` keeps the function
for ``python -m tests.conformance.ha``, which runs as many as one likes.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from warnings import catch_warnings, simplefilter

import pytest

from chaos.sim.loop import SimulatedLoop, simulated_loop
from node.errors import StorageError
from tests.support.amounts import few_fast

#: Seeds that tests run of each case that depends on one, and how many of them the fast tests run.
SEEDS, FAST_SEEDS = 5, 1

SeededCase = Callable[[int], Coroutine[Any, Any, None]]
#: Case id (a variant stands behind a dash) -> function of a seed.
SEEDED: dict[str, SeededCase] = {}


class Witness(Protocol):
    """Is told what nodes log."""

    loop: SimulatedLoop

    def tell(self, text: str) -> None: ...

    def mistake(self, text: str) -> None: ...


#: Clusters of the run that is under way; the last of them is told.
WITNESSES: list[Witness] = []


def simulate(scenario: Coroutine[Any, Any, None]) -> int:
    """Run it on a loop of its own; the fingerprint of the run. Raises what it raises."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with _quiet():
            loop = simulated_loop()
            try:
                loop.run_until_complete(scenario)
            finally:
                loop.close()
            return loop.fingerprint
    finally:
        if was_enabled:
            gc.enable()


def simulated(case: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs on a simulated loop."""

    @functools.wraps(case)
    def test(*args: Any, **kwargs: Any) -> None:
        simulate(case(*args, **kwargs))

    return test


def seeded(case_id: str) -> Callable[[SeededCase], Callable[[int], None]]:
    """A test of a few seeds out of a function of one; `SEEDED` has it for as many as one likes."""

    def decorate(case: SeededCase) -> Callable[[int], None]:
        assert case_id not in SEEDED, f"{case_id} is there twice"
        SEEDED[case_id] = case

        @pytest.mark.parametrize("seed", few_fast(range(1, SEEDS + 1), FAST_SEEDS))
        @functools.wraps(case)
        def test(seed: int) -> None:
            simulate(case(seed))

        return test

    return decorate


class _NodeLog(logging.Handler):
    """What nodes log of mistakes that they contain."""

    def emit(self, record: logging.LogRecord) -> None:
        if not WITNESSES or WITNESSES[-1].loop.is_closed():
            return
        witness = WITNESSES[-1]
        where = witness.loop.current.name if witness.loop.current is not None else "harness"
        error = record.exc_info[1] if record.exc_info else None
        text = f"{where} {record.levelname.lower()}: {record.getMessage()}"
        if record.levelno >= logging.ERROR and error is not None and not isinstance(error, StorageError):
            witness.mistake(f"contained mistake: {text}: {error!r}")
        else:
            witness.tell(text)


@contextmanager
def _quiet() -> Iterator[None]:
    """Nodes' logs go into the story; coroutines of killed nodes are never awaited, which is no mistake."""
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, sys.unraisablehook
    root.handlers[:] = [_NodeLog()]
    root.setLevel(logging.INFO)
    sys.unraisablehook = lambda _unraisable: None
    try:
        with catch_warnings():
            simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        WITNESSES.clear()
        root.handlers[:] = handlers
        root.setLevel(level)
        sys.unraisablehook = hook

"""How much of many alike cases the fast tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings


def few_fast(cases: Iterable[Any], fast: int) -> list[Any]:
    """Parameters of a test: all of these, of which as many as ``fast``, spread evenly, are run by the fast tests.

    The first is always among them; the others are `slow`. A case that is a tuple is several arguments.
    """
    all_cases: Sequence[Any] = list(cases)
    chosen = {number * len(all_cases) // fast for number in range(fast)}
    return [case if number in chosen else slow(case) for number, case in enumerate(all_cases)]


def slow(case: Any) -> Any:
    """A case that `make test` leaves to `make integration`."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)


def few_examples(
    fast: int, long: int, *strategies: Any, **named: Any
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """As hypothesis' `given`: a test of so many examples among the fast ones, and of so many more among the long ones.

    For properties whose examples cost more than some milliseconds each.
    """

    def decorate(holds: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.timeout(600)
        @pytest.mark.parametrize("examples", [fast, slow(long)])
        def test(examples: int) -> None:
            limits: Any = settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
            tried: Any = given
            limits(tried(*strategies, **named)(holds))()

        test.__name__, test.__qualname__ = holds.__name__, holds.__qualname__
        test.__module__, test.__doc__ = holds.__module__, holds.__doc__
        return test

    return decorate

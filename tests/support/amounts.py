"""How much of many alike cases the fast tests run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


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

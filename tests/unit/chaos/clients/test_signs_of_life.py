"""What was read was sent after the buffer had been empty."""

from __future__ import annotations

import pytest

from chaos.clients.signs_of_life import SignsOfLife


@pytest.mark.parametrize(
    ("steps", "last_us", "before_last_us"),
    [
        # Nothing was ever read: only the beginning is certain.
        ("", 0, 0),
        ("empty", 0, 0),
        # What was read at 3 had not come at 2.
        ("empty empty read", 2, 0),
        # A piece behind which more lay says nothing new of the next one: it may have come together with it.
        ("empty part read", 1, 1),
        # Read to the end each time.
        ("read read read", 2, 1),
        ("read empty empty", 0, 0),
        ("read empty empty read", 3, 0),
    ],
)
def test_signs(steps: str, last_us: int, before_last_us: int) -> None:
    """Step i happens at i, from 1."""
    signs = SignsOfLife(0)
    for now_us, step in enumerate(steps.split(), 1):
        if step == "empty":
            signs.found_empty(now_us)
        else:
            signs.read(step == "read", now_us)
        signs.check_invariants()
    assert (signs.last_us, signs.before_last_us) == (last_us, before_last_us)

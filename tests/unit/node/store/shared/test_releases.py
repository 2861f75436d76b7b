"""References that are given back in pieces: each once, also if a descriptor is wanting for a while."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from node.errors import OpenFilesError, StorageError
from node.store.shared import port
from node.store.shared.port import release_in_pieces

TRIES = 3


class Releases:
    def __init__(self, *errors: StorageError) -> None:
        self._errors = list(errors)
        self.released: list[int] = []

    def __call__(self, entries: Sequence[int]) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.released += entries


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "REFERENCES_PER_STEP", 2)
    monkeypatch.setattr(port, "RELEASE_TRIES_MAX", TRIES)


@pytest.mark.parametrize(
    ("errors", "released", "steps"),
    [
        ([], [1, 2, 3, 4, 5], 3),
        ([OpenFilesError("too many open files")] * (TRIES - 1), [1, 2, 3, 4, 5], 3 + TRIES - 1),
        ([OpenFilesError("too many open files")] * TRIES, [3, 4, 5], 3 + TRIES),
        ([StorageError("read of 0.qi failed")], [3, 4, 5], 3),
    ],
    ids=["no error", "no descriptor for a while", "no descriptor", "unreadable"],
)
def test_what_is_given_back(errors: list[StorageError], released: list[int], steps: int) -> None:
    releases = Releases(*errors)
    unreleased: list[None] = []
    assert len(list(release_in_pieces([1, 2, 3, 4, 5], releases, lambda: unreleased.append(None)))) == steps
    assert releases.released == released
    assert len(unreleased) == (len(released) < 5), "of what could not be given back somebody hears"

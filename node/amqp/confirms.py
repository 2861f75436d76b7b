"""Publish sequence numbers of a channel, and their confirms made few.

The client counts its publishes from ``confirm.select`` on; so do we. Queues confirm in any order. At a flush, what
came since the last one goes out as one ``multiple`` up to just below the smallest number that is still open (or that
goes out with the other sign), and singly above that: the rule of the reference, and the most that is always true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Confirm(NamedTuple):
    """One ``basic.ack`` (``positive``) or ``basic.nack`` to the publisher."""

    publish_seq: int
    multiple: bool
    positive: bool


class ConfirmNumbers:
    """Which publishes of a channel are open, and which answers have not been sent."""

    __slots__ = ("_acked", "_lowest", "_nacked", "_next", "_open")

    def __init__(self) -> None:
        self._next = 1
        #: Issued, not answered by the broker.
        self._open: set[int] = set()
        #: No number below this is open. Moves up only.
        self._lowest = 1
        #: Answered by the broker, not yet sent to the client.
        self._acked: list[int] = []
        self._nacked: list[int] = []

    @property
    def open_count(self) -> int:
        return len(self._open)

    def issue(self, count: int) -> range:
        """Numbers for the next ``count`` publishes."""
        numbers = range(self._next, self._next + count)
        self._next += count
        self._open.update(numbers)
        return numbers

    def confirm(self, publish_seqs: Sequence[int]) -> None:
        """The broker took these. Numbers that are not open are skipped."""
        self._settle(publish_seqs, self._acked)

    def reject(self, publish_seqs: Sequence[int]) -> None:
        """The broker refused these. Numbers that are not open are skipped."""
        self._settle(publish_seqs, self._nacked)

    def _settle(self, publish_seqs: Sequence[int], answered: list[int]) -> None:
        still_open = self._open
        for publish_seq in publish_seqs:
            if publish_seq in still_open:
                still_open.remove(publish_seq)
                answered.append(publish_seq)

    def flush(self) -> list[Confirm]:
        """What to send now: nacks first, as the reference does."""
        if not (self._acked or self._nacked):
            return []
        acked, self._acked = sorted(self._acked), []
        nacked, self._nacked = sorted(self._nacked), []
        while self._lowest < self._next and self._lowest not in self._open:
            self._lowest += 1
        nack_below = min(self._lowest, acked[0]) if acked else self._lowest
        ack_below = min(self._lowest, nacked[0]) if nacked else self._lowest
        return [*_coalesce(nacked, nack_below, False), *_coalesce(acked, ack_below, True)]

    def take_outcome(self) -> tuple[int, int]:
        """How many were taken and how many refused since the last call or flush (for ``tx.commit``)."""
        outcome = len(self._acked), len(self._nacked)
        self._acked, self._nacked = [], []
        return outcome

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        if self._open:
            assert self._lowest <= min(self._open), "nothing below the lowest number is open"
            assert max(self._open) < self._next, "only issued numbers are open"
        answered = self._acked + self._nacked
        assert len(set(answered)) == len(answered), "a publish is answered once"
        assert not self._open & set(answered), "an answered publish is not open"


def _coalesce(numbers: list[int], below: int, positive: bool) -> list[Confirm]:
    """``numbers`` in growing order: one ``multiple`` for those under ``below``, the others singly."""
    split = 0
    while split < len(numbers) and numbers[split] < below:
        split += 1
    confirms = []
    if split:
        confirms.append(Confirm(numbers[split - 1], split > 1, positive))
    confirms += [Confirm(number, False, positive) for number in numbers[split:]]
    return confirms

"""Confirm tokens of one queue on their way back: from publish over the flush and the group commit to the publisher.

A token of a stored persistent message waits by seq id, first for the flush, then, in a FIFO of
(generation, seq ids), for the group commit. The stamp is taken when the bytes go to the file, so a generation never
closes over bytes still in memory. A message settled earlier gives its token back at once; so do messages that are not
stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence


class ConfirmTokens:
    """See the module text."""

    __slots__ = ("_confirmed", "_fifo", "_unflushed", "_unflushed_duplicates", "waiting")

    def __init__(self) -> None:
        #: Tokens of stored live messages that are not durable yet, by seq id.
        self.waiting: dict[int, Hashable] = {}
        #: Seq ids with a token, and tokens of duplicates, that wait for the next flush.
        self._unflushed: list[int] = []
        self._unflushed_duplicates: list[Hashable] = []
        #: (generation, seq ids with tokens, tokens of duplicates), generations ascending.
        self._fifo: deque[tuple[int, list[int], list[Hashable]]] = deque()
        self._confirmed: list[Hashable] = []

    def hold(self, seq_id: int, token: Hashable) -> None:
        """The message will be written by the next flush."""
        self.waiting[seq_id] = token
        self._unflushed.append(seq_id)

    def hold_duplicate(self, token: Hashable) -> None:
        """The earlier copy is among what the next flush writes."""
        self._unflushed_duplicates.append(token)

    def hold_duplicate_until(self, generation: int, token: Hashable) -> None:
        """The earlier copy was written in ``generation`` at the latest."""
        self._fifo.append((generation, [], [token]))

    def confirm(self, tokens: Iterable[Hashable]) -> None:
        """Nothing to wait for."""
        self._confirmed += tokens

    def settled(self, seq_ids: Sequence[int]) -> None:
        """These messages are gone: nothing is left to protect."""
        waiting = self.waiting
        if waiting:
            for seq_id in seq_ids:
                if seq_id in waiting:
                    self._confirmed.append(waiting.pop(seq_id))

    def flushed(self, generation: int) -> None:
        """Everything that waited for the flush was written; ``generation`` is that of the last message."""
        if self._unflushed or self._unflushed_duplicates:
            self._fifo.append((generation, self._unflushed, self._unflushed_duplicates))
            self._unflushed, self._unflushed_duplicates = [], []

    def release(self, durable_generation: int) -> None:
        """Everything up to this generation is on disk."""
        fifo = self._fifo
        waiting, confirmed = self.waiting, self._confirmed
        while fifo and fifo[0][0] <= durable_generation:
            _, seq_ids, duplicates = fifo.popleft()
            for seq_id in seq_ids:
                if seq_id in waiting:
                    confirmed.append(waiting.pop(seq_id))
            confirmed += duplicates

    @property
    def awaited_generation(self) -> int:
        """The last that something written waits for; 0: nothing does."""
        return self._fifo[-1][0] if self._fifo else 0

    def drain(self) -> list[Hashable]:
        """Tokens given back since the last call."""
        tokens, self._confirmed = self._confirmed, []
        return tokens

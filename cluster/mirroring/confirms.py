"""Which publishes may be confirmed: one entry per turn and kind, not per message and mirror.

Publishes of a turn travel in the same frame, so they are safe on a mirror at the same moment. The ledger keeps, for
each turn, at most two `HeldBatch` entries: one for what must be durable on every mirror, one for what must only
be applied there. The local queue reports its own safety token by token; a token comes out when both have happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence

from node.queues.backing_queue import Publication


class HeldBatch:
    """Tokens of one turn that wait for the mirrors together."""

    __slots__ = ("is_released", "mark", "safe_tokens", "turn")

    def __init__(self, mark: object, turn: int) -> None:
        #: That of its ledger, which is no reference back: both are freed when nobody uses them, without a collector.
        self.mark = mark
        #: The turn that every holding mirror must have reached.
        self.turn = turn
        #: True once they have. Tokens that become safe here later are returned at once.
        self.is_released = False
        #: Safe on this node, waiting for mirrors.
        self.safe_tokens: list[Hashable] = []


class HeldToken:
    """What the local queue carries instead of the owner's token."""

    __slots__ = ("batch", "token")

    def __init__(self, batch: HeldBatch, token: Hashable) -> None:
        self.batch = batch
        self.token = token


class ConfirmLedger:
    """Confirm bookkeeping of one mastership."""

    def __init__(self, durable_queue: bool, has_old_tokens: bool = False) -> None:
        """``has_old_tokens``: the local queue may return tokens of an earlier mastership, whose owner wrapped none; the
        owner of this one wraps all of its own then."""
        #: Of its batches, and of no others.
        self._mark = object()
        self._durable_queue = durable_queue
        self._has_old_tokens = has_old_tokens
        self._open_durable: HeldBatch | None = None
        self._open_applied: HeldBatch | None = None
        self._held_durable: deque[HeldBatch] = deque()
        self._held_applied: deque[HeldBatch] = deque()
        #: Tokens whose batch was released after they had become safe here.
        self._ready: list[Hashable] = []
        #: Holds tokens that were given to the local queue without wrapping, if mirrors must now have them too.
        self._unwrapped: HeldBatch | None = None

    def hold(self, publications: Sequence[Publication], turn: int, is_stored: bool = True) -> list[Publication]:
        """The publications with their tokens wrapped. ``is_stored`` is False for discards: applied is enough."""
        wrapped: list[Publication] = []
        durable_queue = self._durable_queue and is_stored
        for publication in publications:
            message, token = publication
            if token is None:
                wrapped.append(publication)
                continue
            batch = self._batch(durable_queue and message.persistent, turn)
            wrapped.append(Publication(message, HeldToken(batch, token)))
        return wrapped

    def hold_token(self, token: Hashable, turn: int) -> HeldToken:
        """Wrap the token of a duplicate: nothing is known of the earlier copy, so it must be durable everywhere."""
        return HeldToken(self._batch(self._durable_queue, turn), token)

    def hold_unwrapped(self, turn: int) -> None:
        """From now on a bare token of the local queue waits until every holding mirror has reached ``turn``."""
        if self._unwrapped is None or self._unwrapped.is_released:
            self._unwrapped = HeldBatch(self._mark, turn)
            (self._held_durable if self._durable_queue else self._held_applied).append(self._unwrapped)

    def _batch(self, must_be_durable: bool, turn: int) -> HeldBatch:
        batch = self._open_durable if must_be_durable else self._open_applied
        if batch is not None and batch.turn == turn and not batch.is_released:
            return batch
        batch = HeldBatch(self._mark, turn)
        if must_be_durable:
            self._open_durable = batch
            self._held_durable.append(batch)
        else:
            self._open_applied = batch
            self._held_applied.append(batch)
        return batch

    def release(self, applied_turn: float, durable_turn: float) -> None:
        """Every holding mirror has applied all up to ``applied_turn`` and made durable all up to ``durable_turn``."""
        for held, floor in ((self._held_durable, durable_turn), (self._held_applied, applied_turn)):
            while held and held[0].turn <= floor:
                batch = held.popleft()
                batch.is_released = True
                self._ready.extend(batch.safe_tokens)
                batch.safe_tokens.clear()

    def take(self, safe_here: Iterable[Hashable]) -> list[Hashable]:
        """Tokens the owner may have, given what the local queue just reported.

        Tokens of another mastership are dropped: their publishers have sent again, or are gone.
        """
        ready = self._ready
        self._ready = []
        append = ready.append
        for token in safe_here:
            if type(token) is HeldToken:
                batch = token.batch
                if batch.mark is not self._mark:
                    continue
                if batch.is_released:
                    append(token.token)
                else:
                    batch.safe_tokens.append(token.token)
            elif self._has_old_tokens:
                continue
            elif self._unwrapped is None or self._unwrapped.is_released:
                append(token)
            else:
                self._unwrapped.safe_tokens.append(token)
        return ready

    def check_invariants(self) -> None:
        for held in (self._held_durable, self._held_applied):
            turns = [batch.turn for batch in held]
            assert turns == sorted(turns), "batches are released from the front"
            assert not any(batch.is_released for batch in held), "a released batch would be confirmed twice"

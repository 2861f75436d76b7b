"""Which publishes of a batch are new to a queue: a publisher's node sends again what it has no answer to.

A publish was accepted before if its queue knows it (`BackingQueue.is_duplicate`) and has not refused it
(`node.queues.refusals`). It is not taken again, only confirmed when the first one is safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from node.ids import ORIGIN_BYTES, ChannelKey
from node.queues.backing_queue import BackingQueue, Publication
from node.queues.events import Token
from node.queues.refusals import Refusals


class Repetitions:
    """See the module text."""

    __slots__ = ("_backing_queue", "_refusals")

    def __init__(self, backing_queue: BackingQueue) -> None:
        self._backing_queue = backing_queue
        self._refusals = Refusals()

    def without(self, publications: list[Publication]) -> list[Publication]:
        """Those that are new, of a batch, which is not empty. The others get their confirms."""
        if self._may_be_among(publications):
            return self._new_ones(publications)
        if self._refusals:
            self._refusals.forget_from(publications[0].message.msg_id)
        return publications

    def _may_be_among(self, publications: Sequence[Publication]) -> bool:
        """Whether a batch needs the per-message look.

        The ids of one origin grow (`BackingQueue.is_duplicate`): if the first of a batch is new, so are the others.
        """
        backing_queue = self._backing_queue
        if backing_queue.knows_out_of_order:
            return True
        first = publications[0].message.msg_id
        if backing_queue.is_duplicate(first):
            return True
        return first[:ORIGIN_BYTES] != publications[-1].message.msg_id[:ORIGIN_BYTES]

    def _new_ones(self, publications: Sequence[Publication]) -> list[Publication]:
        backing_queue, was_refused = self._backing_queue, self._refusals.take
        new = []
        for publication in publications:
            msg_id = publication.message.msg_id
            if was_refused(msg_id) or not backing_queue.is_duplicate(msg_id):
                new.append(publication)
            elif publication.token is not None:
                backing_queue.confirm_when_safe(msg_id, publication.token)
        return new

    def refused(self, publications: Sequence[Publication]) -> list[Token]:
        """These are refused. Returns the tokens of those that somebody waits for; the others do not come again."""
        tracked = [publication for publication in publications if publication.token is not None]
        tokens = [cast(Token, publication.token) for publication in tracked]
        if tracked:
            channel, _ = tokens[0]
            self._refusals.add(channel, [publication.message.msg_id for publication in tracked])
        return tokens

    def channel_closed(self, channel: ChannelKey) -> None:
        """It sends nothing again."""
        self._refusals.channel_closed(channel)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if what is remembered contradicts itself."""
        self._refusals.check_invariants()

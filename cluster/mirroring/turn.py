"""What a master's queue did between two sends, as at most a handful of ops.

Within a turn the order of operations may be changed freely as long as a message is published before it is settled:
publishes have fresh positions, settles are final. So a turn always becomes, in this order: the horizon, all publishes,
origins without messages, all settles. The ops are shared by every mirror that is attached.

A long turn goes out as several frames, and the mirror may get only the first of them: its master dies, or the window is
exceeded. So what an op says of others must be true of every prefix that has the op.

- The *horizon* promises something about the publishes: it comes before them.
- What is *awaited* is said by each publish of the turn, for all of it.
- A *counter* accounts for every message of its origin up to it. That of a publish is carried by the publish itself, and
  publishes of one origin come in the order of their counters; that of a message which was never stored may be above
  those of publishes of this turn, so it comes after all of them, and in the last frame.
- *Settles* name published positions: they come last. Who lacks them delivers again, flagged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cluster.mirroring.messages import HorizonOp, MirrorOp, OriginsOp, PublishOp, SettleOp
from cluster.mirroring.ranges import compress
from node.ids import OriginId, SeqId, split_msg_id
from node.message import Message
from node.queues.backing_queue import Publication
from node.queues.events import is_confirm_awaited
from node.queues.replica import SeqRange

#: Bytes of ops in one frame. A longer turn goes out as several frames, so that no single message of the link exceeds
#: the transport's limit unless one AMQP message alone does.
FRAME_BYTES_MAX = 4 * 1024 * 1024
#: Estimate of what a range, an origin or an op costs on the wire.
_RANGE_BYTES = 16
_OP_BYTES = 16


class Turn:
    """The operations of the turn that is going on, while at least one mirror is attached."""

    __slots__ = ("_awaited", "_origins", "_ranges", "_runs", "_settled", "horizon")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        #: Published messages by first position; a run goes on as long as the positions are dense.
        self._runs: list[tuple[SeqId, list[Message]]] = []
        self._settled: list[int] = []
        self._ranges: list[SeqRange] = []
        self._origins: dict[OriginId, int] = {}
        #: Origins of which confirms are awaited, as far as somebody has to know, from which counter on.
        self._awaited: dict[OriginId, int] = {}
        #: New promise to send, ``None`` if it has not changed.
        self.horizon: SeqId | None = None

    def __bool__(self) -> bool:
        return bool(self._runs or self._settled or self._ranges or self._origins or self.horizon is not None)

    def publish(self, first_seq_id: SeqId, messages: Iterable[Message]) -> None:
        """Messages at ``first_seq_id`` and after."""
        if self._runs:
            first, run = self._runs[-1]
            if first + len(run) == first_seq_id:
                run.extend(messages)
                return
        self._runs.append((first_seq_id, list(messages)))

    def await_confirms(self, publications: Iterable[Publication]) -> None:
        """Clients do, of some of these, which are published in this turn; ids of one origin are ascending."""
        for message, token in publications:
            if is_confirm_awaited(token):
                origin, counter = split_msg_id(message.msg_id)
                self._awaited.setdefault(origin, counter)

    def settle(self, seq_ids: Sequence[SeqId]) -> None:
        self._settled.extend(seq_ids)

    def settle_ranges(self, ranges: Iterable[SeqRange]) -> None:
        self._ranges.extend(ranges)

    def discard(self, messages: Iterable[Message]) -> None:
        """Messages that were delivered without being stored."""
        for message in messages:
            origin, counter = split_msg_id(message.msg_id)
            if counter > self._origins.get(origin, 0):
                self._origins[origin] = counter

    def cut(self) -> tuple[list[tuple[tuple[MirrorOp, ...], int]], list[SeqRange]]:
        """End the turn: its frames as (ops, bytes), and the settled ranges. The object begins the next turn."""
        settled: list[SeqRange] = [*compress(self._settled), *self._ranges]
        frames: list[tuple[tuple[MirrorOp, ...], int]] = []
        ops: list[MirrorOp] = []
        size_bytes = 0
        if self.horizon is not None:
            ops.append(HorizonOp(self.horizon))
            size_bytes += _OP_BYTES
        for publish in self._publish_ops():
            if ops and size_bytes + len(publish.envelopes) > FRAME_BYTES_MAX:
                frames.append((tuple(ops), size_bytes))
                ops, size_bytes = [], 0
            ops.append(publish)
            size_bytes += _OP_BYTES + len(publish.envelopes) + _RANGE_BYTES * len(publish.awaited)
        if self._origins:
            ops.append(OriginsOp(self._origins))
            size_bytes += _OP_BYTES + _RANGE_BYTES * len(self._origins)
        if settled:
            ops.append(SettleOp(tuple(settled)))
            size_bytes += _OP_BYTES + _RANGE_BYTES * len(settled)
        if ops:
            frames.append((tuple(ops), size_bytes))
        self._begin()
        return frames, settled

    def _publish_ops(self) -> Iterator[PublishOp]:
        for first_seq_id, messages in self._runs:
            parts: list[bytes] = []
            size_bytes = 0
            for message in messages:
                envelope = message.envelope()
                if parts and size_bytes + len(envelope) > FRAME_BYTES_MAX:
                    yield PublishOp(first_seq_id, len(parts), b"".join(parts), self._awaited)
                    first_seq_id = SeqId(first_seq_id + len(parts))
                    parts, size_bytes = [], 0
                parts.append(envelope)
                size_bytes += len(envelope)
            yield PublishOp(first_seq_id, len(parts), b"".join(parts), self._awaited)

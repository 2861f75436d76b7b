"""One mirror: stores what the master of the highest epoch tells it, at the positions the master chose.

It decides nothing. It refuses older epochs, ignores conversations that are over, answers cumulatively, and can become
the master's queue as it stands (`promote`). What it may throw away and when is argued in `cluster.mirroring.promotion`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cluster.metadata.mastership import last_served_epoch
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.description import Description
from cluster.mirroring.gap import Gap, is_unconfirmed
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.messages import (
    Attach,
    AttachRefused,
    AttachReply,
    EndOp,
    HorizonOp,
    MirrorMessage,
    MirrorOp,
    Ops,
    OpsAck,
    OriginsOp,
    PublishOp,
    SettleOp,
    SyncBatchOp,
    end_in,
)
from cluster.mirroring.promotion import held_again, possibly_delivered_below
from cluster.mirroring.settings import MirroringSettings
from cluster.mirroring.succession import Succession
from node.ids import Epoch, NodeName, QueueId, SeqId
from node.message import Message, decode_envelope
from node.queues.origins import Origins
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, ReplicaQueue, SegmentDigest, SeqRange
from node.store.steps import Steps


class MirrorReplica:
    """A mirror of one queue on this node.

    The shell calls, in a turn: `receive` ..., `take_messages`; and that again in the next turn while it `has_more`.
    """

    def __init__(
        self,
        queue_id: QueueId,
        local: ReplicaQueue,
        epoch: Epoch,
        is_durable: bool = True,
        end: tuple[Epoch, SeqId] | None = None,
    ) -> None:
        """Mirror with the content that ``local`` has: new and empty, recovered from disk, or an old master's.

        ``epoch``: that of the record this node knows; older masters are refused. ``end``: an epoch, and how far the
        masters up to it have delivered; they have ended.
        """
        self.queue_id = queue_id
        self.local = local
        #: Highest epoch heard of.
        self.epoch = epoch
        self._is_durable = is_durable
        self._master: NodeName | None = None
        #: 0 while no conversation is going on.
        self._attach_id = 0
        self._applied_index = 0
        self._durable_index = 0
        #: (generation, index): everything up to the index is on disk when the generation is.
        self._undurable: deque[tuple[int, int]] = deque()
        #: Generation of the last write that matters for durability.
        self._last_generation = local.write_generation
        self._is_ack_due = False
        #: What is still to be said of the content here, to the latest attach.
        self._description = Description(local, (), SeqId(0))
        #: The master takes acknowledgements before all of that is said.
        self._hears_between: bool
        #: What the last acknowledgement said of the disk.
        self._said_disk_full = False
        self._outbox: list[tuple[NodeName, MirrorMessage]] = []
        #: What is here is being read and hashed for an attach, while it lasts; the attach, and what has followed it.
        self._preparation: Steps[None] | None = None
        self._waiting: list[tuple[NodeName, Attach | Ops]] = []
        #: Epoch of the last attach taken and the horizon promised since. Before the first: what is known of masters
        #: that have ended, if anything.
        self._heard_epoch: Epoch | None = None if end is None else end[0]
        self._heard_horizon = SeqId(0) if end is None else end[1]
        #: What is here below it may be of an earlier master, which had come further than this one knows, as long as
        #: something is missing.
        self._foreign_below = SeqId(0)
        #: Like ``end`` above, of the latest master that was heard of.
        self.end = end
        #: True if nothing is missing here, as far as the stream has come.
        self._is_complete = False
        #: Something may be here from two masters, until `_is_complete`: what was streamed was known, or nobody can say
        #: how the copy was left.
        self._may_hold_twice = end is None and local.first_live_seq_id < local.next_seq_id
        #: Since when something has been missing here, if anything is, and what came since.
        self._gap = Gap()
        #: High-water counters of the master at the attach, and of what was streamed since.
        self._streamed_origins = Origins()
        #: A master that this mirror followed may have refused publishes, by its policy then: they are below the
        #: counters, too, and nobody here was told of each. Masters of an older release do not say so.
        self._may_lack_refused = False

    def set_settings(self, settings: MirroringSettings) -> None:
        """What the policy says, in the beginning and whenever it has changed."""
        self._may_lack_refused |= settings.refuses_publishes

    def adopt_epoch(self, epoch: Epoch) -> None:
        """The record moved on: refuse masters of older epochs from now on."""
        if epoch > self.epoch:
            self.epoch = epoch
            self._end_conversation()

    def receive(self, node: NodeName, message: MirrorMessage) -> None:
        """Take what the master on ``node`` sends."""
        if not isinstance(message, Attach | Ops):
            return
        if message.epoch < self.epoch:
            end = end_in(message)
            if end is not None and message.epoch == self._heard_epoch:
                self._ended(message.epoch, end)
            else:
                self._outbox.append((node, AttachRefused(self.queue_id, message.epoch, self.epoch)))
        elif isinstance(message, Attach):
            self._prepare(node, message)
        elif self._waiting:
            self._waiting.append((node, message))
        else:
            self._apply(message)

    def link_lost(self) -> None:
        """The link from the master broke: nothing can follow in this conversation."""
        self._end_conversation()

    def records_skipped(self) -> None:
        """It may have been no mirror for a while, in which the master delivered without telling it."""
        self._heard_horizon = max(self._heard_horizon, self.local.next_seq_id)
        self.end = None
        self._forget_waiting()  # of before; its master will attach again

    def _end_conversation(self) -> None:
        self._forget_waiting()
        self._attach_id = 0
        self._description = Description(self.local, (), SeqId(0))

    # --- attach -------------------------------------------------------------------------------------------------------

    def _prepare(self, node: NodeName, attach: Attach) -> None:
        """Take an attach when what is here has been read and hashed: there may be millions of messages that nobody has
        compared yet, or that have changed since. Until then it is as if it were on its way."""
        self.adopt_epoch(attach.epoch)
        if attach.epoch == self._heard_epoch and attach.attach_id <= self._attach_id:
            return
        self._waiting = [(node, attach)]
        self._preparation = self.local.prepare_digests()
        self._go_on_preparing()

    def _forget_waiting(self) -> None:
        self._preparation = None
        self._waiting.clear()

    def _go_on_preparing(self) -> None:
        if self._preparation is None or next(self._preparation, self) is None:
            return
        self._preparation = None
        waiting, self._waiting = self._waiting, []
        for node, message in waiting:
            if isinstance(message, Attach):
                self._attach(node, message)
            else:
                self._apply(message)

    def _attach(self, node: NodeName, attach: Attach) -> None:
        if attach.epoch != self._heard_epoch or self._master is None:
            self._foreign_below = min(self.local.next_seq_id, attach.next_seq_id)
        self.epoch = attach.epoch
        self._master = node
        self._attach_id = attach.attach_id
        self._heard_epoch = attach.epoch
        self._heard_horizon = attach.horizon
        self.end = None
        self._is_complete = False
        self._streamed_origins = Origins()
        self._streamed_origins.merge(attach.origins)
        self._may_lack_refused |= attach.may_lack_refused
        is_equal = not self._drop_unknown(attach)
        self._description = Description(self.local, self._mismatched(attach.digests), attach.next_seq_id)
        self._hears_between = attach.hears_between
        if is_equal and not self._description:
            self._complete()
        else:
            self._gap.begin(attach.next_seq_id)
        self.local.advance_next_seq_id(attach.next_seq_id)
        self._undurable.clear()
        self._durable_index = attach.index - 1
        self._note_applied(attach.index)

    def _drop_unknown(self, attach: Attach) -> int:
        """Drop the diverged tail and the segments in which the master has nothing. Returns how many messages."""
        known = {digest.segment for digest in attach.digests}
        unknown = [
            SeqRange(
                SeqId(segment * DIGEST_SEGMENT_ENTRIES),
                SeqId(min((segment + 1) * DIGEST_SEGMENT_ENTRIES, attach.next_seq_id)),
            )
            for segment, _ in self.local.live_counts()
            if segment not in known and segment * DIGEST_SEGMENT_ENTRIES < attach.next_seq_id
        ]
        if self.local.next_seq_id > attach.next_seq_id:
            unknown.append(SeqRange(attach.next_seq_id, self.local.next_seq_id))
        return self.local.remove(unknown) if unknown else 0

    def _mismatched(self, digests: Sequence[SegmentDigest]) -> list[int]:
        """The segments whose digest differs from the master's."""
        mine = {digest.segment: digest for digest in self.local.digests()}
        return [digest.segment for digest in digests if mine.get(digest.segment) != digest]

    # --- operations ---------------------------------------------------------------------------------------------------

    def _apply(self, frame: Ops) -> None:
        if frame.epoch != self.epoch or not self._attach_id or frame.attach_id != self._attach_id:
            return
        if frame.first_index != self._applied_index + 1:
            # A gap: the link broke its promise. Fall silent; the master attaches again, or reports us.
            self._end_conversation()
            return
        self._may_lack_refused |= frame.may_lack_refused
        for op in frame.ops:
            self._apply_op(op)
        self._note_applied(self._applied_index + len(frame.ops))

    def _apply_op(self, op: MirrorOp) -> None:
        if isinstance(op, PublishOp):
            messages = self._insert(range(op.first_seq_id, op.first_seq_id + op.message_count), op.envelopes)
            self._raise_origins(messages)
            self._gap.published(op.awaited)
        elif isinstance(op, SettleOp):
            self.local.remove(op.ranges)
        elif isinstance(op, SyncBatchOp):
            if op.seq_ids:
                self._insert(op.seq_ids, op.envelopes)
            else:
                self._complete()
        elif isinstance(op, HorizonOp):
            self._heard_horizon = max(self._heard_horizon, op.horizon)
            self.end = None
        elif isinstance(op, EndOp):
            self._ended(self.epoch, op)
        else:
            self._merge_origins(op)

    def _ended(self, epoch: Epoch, end: EndOp) -> None:
        """The master that was heard last delivers nothing any more.

        What it says is of its positions. A mirror that is not filled may hold something else there, of an earlier
        master that had come further: for that the horizon is right.
        """
        if self._is_complete:
            self._heard_horizon = end.delivered_below
        self.end = (epoch, max(self._heard_horizon, self._foreign_below))

    def _insert(self, seq_ids: Sequence[int], packed: bytes) -> list[Message]:
        messages: list[Message] = []
        envelopes: list[bytes] = []
        start = 0
        for _ in seq_ids:
            message, end = decode_envelope(packed, start)
            messages.append(message)
            envelopes.append(packed[start:end])
            start = end
        assert start == len(packed), "a batch has one envelope per position"
        if not (self._is_complete or self._may_hold_twice):
            self._may_hold_twice = any(self.local.is_duplicate(message.msg_id) for message in messages)
        self.local.insert([SeqId(seq_id) for seq_id in seq_ids], messages, envelopes)
        if any(message.persistent for message in messages):
            self._last_generation = self.local.write_generation
        return messages

    def _raise_origins(self, messages: Sequence[Message]) -> None:
        """Ids of one origin come in growing order."""
        self._streamed_origins.accept([message.msg_id for message in messages])

    def _merge_origins(self, op: OriginsOp) -> None:
        self._streamed_origins.merge(op.origins)
        if self._is_complete:
            self.local.merge_origins(op.origins)

    def _complete(self) -> None:
        self._is_complete = True
        self._foreign_below = SeqId(0)
        self._may_hold_twice = False
        self._gap.close()
        self.local.merge_origins(self._streamed_origins.counters())

    # --- answers ------------------------------------------------------------------------------------------------------

    def _note_applied(self, index: int) -> None:
        self._applied_index = index
        self._is_ack_due = True
        if self._undurable and self._undurable[-1][0] == self._last_generation:
            self._undurable.pop()
        self._undurable.append((self._last_generation, index))

    def durable_advanced(self) -> None:
        """A group commit may have made something durable. Call after each round; `take_messages` looks as well."""
        self.local.drain_confirmed()
        durable_index = self._durable_index
        durable_generation = self.local.durable_generation
        while self._undurable and (self._undurable[0][0] <= durable_generation or not self._is_durable):
            durable_index = self._undurable.popleft()[1]
        if durable_index > self._durable_index:
            self._durable_index = durable_index
            self._is_ack_due = True
        if self.local.is_disk_full != self._said_disk_full:
            self._is_ack_due = True

    @property
    def has_more(self) -> bool:
        """True if `take_messages` has something to say in the next turn, too."""
        return bool(self._description) or self.is_preparing

    @property
    def is_preparing(self) -> bool:
        """An attach waits, and what follows it: `take_messages` applies that when it is time."""
        return self._preparation is not None

    def take_messages(self) -> list[tuple[NodeName, MirrorMessage]]:
        """Answers to send: at most one piece of the description, and one acknowledgement after it."""
        self._go_on_preparing()
        self.durable_advanced()
        outbox = self._outbox
        self._outbox = []
        if self._description:
            assert self._master is not None, "a description answers an attach"
            piece = self._description.next_piece()
            outbox.append((self._master, AttachReply(self.queue_id, self.epoch, self._attach_id, piece)))
            self._is_ack_due |= not self._description  # one more, at the end
        if self._description and not self._hears_between:
            return outbox
        if self._is_ack_due and self._attach_id and self._master is not None:
            outbox.append((self._master, self._acknowledgement()))
        self._is_ack_due = False
        return outbox

    def _acknowledgement(self) -> OpsAck:
        self._said_disk_full = self.local.is_disk_full
        return OpsAck(
            self.queue_id,
            self.epoch,
            self._attach_id,
            self._applied_index,
            self._durable_index,
            self._said_disk_full,
            bool(self._description),
        )

    def close_deliveries(self) -> None:
        """The copy is about to be closed. Unless its master has ended, that goes on delivering, and nobody is left here
        to hear of it. Nor is a copy believed in which something may be twice: whoever opens it has to look."""
        end = None if self._may_hold_twice else self.end
        epoch, delivered_below = end or (Epoch(0), self.local.next_seq_id)
        self.local.close_deliveries(epoch, min(delivered_below, self.local.next_seq_id))

    # --- change of role -----------------------------------------------------------------------------------------------

    def may_promote(self, record: MastershipRecord) -> bool:
        """False if a master of a later epoch than the record's was heard: the commit arrived here too late to act on.

        The node then stays a mirror; the commit that made that later master is on its way.
        """
        return record.epoch >= self.epoch

    def promote(
        self,
        node: NodeName,
        record: MastershipRecord,
        settings: MirroringSettings | None = None,
        attach_id_base: int = 0,
        followed: MastershipRecord | None = None,
    ) -> MirroredQueue:
        """Become the master that ``record`` names, with what is here. Ask `may_promote` first.

        ``followed``: the record that this node knew before, if there was one. The replica is dead afterwards.
        Everything that an earlier master may have delivered is flagged.
        """
        assert self.may_promote(record), "a later master was heard already"
        local = self.local
        if settings is not None:
            self.set_settings(settings)
        is_trusted = self._is_complete and not self._may_lack_refused
        if self._may_hold_twice:
            local.remove(held_again(local))
        if is_unconfirmed(node, followed, record):
            local.remove(self._gap.behind(local))
        served_epoch = last_served_epoch(record)
        succession = self._succession(record, served_epoch)
        horizon = max(self._heard_horizon, self._foreign_below)
        delivered_below = possibly_delivered_below(local, self._heard_epoch, horizon, served_epoch)
        local.mark_delivered_below(min(delivered_below, local.next_seq_id))
        return MirroredQueue(
            node,
            local,
            record,
            settings,
            delivered_below=delivered_below,
            trusted_origins=self._streamed_origins.counters() if is_trusted else {},
            has_old_tokens=True,
            attach_id_base=attach_id_base,
            succession=succession,
        )

    def _succession(self, record: MastershipRecord, served_epoch: Epoch) -> Succession | None:
        """The master before, if it may yet say how far it has delivered, and that is of use."""
        if self._master is None or self.end is not None or self._heard_epoch != served_epoch or not self._is_complete:
            return None
        flagged_below = self.local.delivered_below
        # If the link broke since it spoke it may be in another life, which knows nothing of this.
        is_awaited = self._attach_id != 0 and self._master in record.mirrors
        return Succession(self._master, served_epoch, flagged_below, is_awaited=is_awaited)

    def check_invariants(self) -> None:
        self.local.check_invariants()
        assert not self.local.unacked, "a mirror hands nothing out, and who was the master has taken everything back"
        assert self._durable_index <= self._applied_index, "what is durable is applied"
        generations = [generation for generation, _ in self._undurable]
        assert generations == sorted(set(generations)), "one entry per generation, in order"
        assert self._heard_epoch is None or self._heard_epoch <= self.epoch, "the highest epoch heard is adopted"
        assert not self._attach_id or self._heard_epoch == self.epoch, "nobody of an older epoch is listened to"
        assert self._attach_id or not self._description, "what is here is told to a master that has attached"
        assert bool(self._waiting) == (self._preparation is not None), "what waits begins with the attach it waits for"
        self._gap.check_invariants()
        assert not (self._is_complete and self._gap), "who has everything has no gap"
        assert not (self._is_complete and self._may_hold_twice), "a mirror without a difference has what its master has"


def demote(queue: MirroredQueue, epoch: Epoch) -> MirrorReplica:
    """An old master's queue goes on as a mirror: another node masters it in ``epoch``. ``queue`` is dead afterwards.

    What it has not streamed may diverge from the new master; the next attach finds that by content.
    """
    local = queue.local
    local.requeue_all()
    end = (queue.record.epoch, local.delivered_below)
    return MirrorReplica(queue.record.queue_id, local, epoch, queue.is_durable, end)

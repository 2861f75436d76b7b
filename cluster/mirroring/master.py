"""The mirrored queue: a `BackingQueue` that keeps copies of itself on other nodes.

It wraps the local engine and stays the object of the queue while it has no mirror (then it only passes through). The
protocol is described in `cluster.mirroring.messages`, the argument why nothing confirmed is lost in
`cluster.mirroring.promotion`, what is between the master and each mirror in `cluster.mirroring.conversations`. This
module is the flow:

- An operation is done on the local queue at once and noted in the `Turn`, if a mirror is attached to hear of it.
- `take_messages`, called by the shell once per turn of its loop, cuts the turn into frames that all attached mirrors
  share, adds to each mirror what only it needs (discards, batches of the difference), and begins due attaches. The
  order matters: an attach describes the queue after the turn, so its stream begins with the next one; a batch of the
  difference is read after the turn, so it holds nothing that the frame before it settles.
- Answers move the `Frontier`: the least advanced holding mirror releases confirms (`ConfirmLedger`) and its horizon
  limits deliveries.
- `Service` says what the record lets this master do at all: before it is in service it attaches to nobody.

`mirrors_in_flight` says what each mirror that holds confirms has still to do; publishers are slowed by credit
(`node.flow.credit`) before the window of a conversation is full.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.confirms import ConfirmLedger
from cluster.mirroring.conversations import NO_LIMIT, Conversations, LinkTest, never
from cluster.mirroring.messages import Attach, AttachRefused, EndOp, MirrorMessage, Ops, end_in
from cluster.mirroring.progress import RECEIVING, MirrorState
from cluster.mirroring.promotion import UntrustedOrigins, held_again, knows_deliveries, undelivered_start
from cluster.mirroring.published import PublishedTurns
from cluster.mirroring.ranges import gaps_between
from cluster.mirroring.reports import MirroringReport, ReportFenced, ReportTakesService
from cluster.mirroring.service import Service
from cluster.mirroring.settings import MirroringSettings
from cluster.mirroring.succession import Succession
from cluster.mirroring.turn import Turn
from node.ids import Epoch, MsgId, NodeName, OriginId, SeqId
from node.queues.backing_queue import NO_LIMIT_BYTES, BackingQueueStatus, Delivery, MirrorInFlight, Publication
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, ReplicaQueue

__all__ = ["MirroredQueue", "MirroringSettings", "recovered"]

#: The horizon moves this far ahead of deliveries at first; the step doubles when a delivery had to wait for a mirror's
#: answer. What lies between is flagged redelivered after a failover without need, so a quiet queue steps small.
HORIZON_STEP_MIN = 256
HORIZON_STEP_MAX = 4096


class MirroredQueue:
    """Master of one queue in one epoch (or several, if a commit names this node again)."""

    def __init__(
        self,
        node: NodeName,
        local: ReplicaQueue,
        record: MastershipRecord,
        settings: MirroringSettings | None = None,
        *,
        delivered_below: SeqId = SeqId(0),  # noqa: B008 - a number, immutable
        trusted_origins: Mapping[OriginId, int] | None = None,
        has_old_tokens: bool = False,
        attach_id_base: int = 0,
        succession: Succession | None = None,
        resumed: Collection[NodeName] | None = None,
    ) -> None:
        """Become master.

        ``delivered_below``: nothing at or above it was ever delivered (0 for a new queue). ``trusted_origins``: what a
        promoted replica can vouch for, see `cluster.mirroring.promotion`; empty for a queue recovered from disk,
        ``None`` if storage itself can be trusted. ``has_old_tokens``: the local queue may still return tokens of an
        earlier life. ``attach_id_base``: attach ids begin above it; a node that may master the same epoch again after a
        restart passes something that grows with its incarnation. ``succession``: the master before may yet say that
        ``delivered_below`` is less. ``resumed``: this node was the master of this epoch before, and required these
        mirrors; all of them may rely on what it promised then.
        """
        self.node = node
        self.local = local
        settings = settings or MirroringSettings()
        #: As the queue was declared.
        self.is_durable = settings.is_durable
        self.record = record
        self._service = Service(record)
        #: True once a higher epoch was heard of: nothing is delivered or confirmed any more.
        self.is_fenced = False
        self._fencing_epoch = record.epoch
        self._conversations = Conversations(local, record, settings, attach_id_base, resumed)
        #: See there.
        self.start_sync, self.sync_progress = self._conversations.start_sync, self._conversations.sync_progress
        #: The same dictionary, at hand for the paths of messages.
        self._mirrors = self._conversations.mirrors
        self._ledger = ConfirmLedger(self.is_durable, has_old_tokens)
        self._published = PublishedTurns()
        #: Tokens of an earlier life may come back, so it must know its own.
        self._wraps_always = has_old_tokens
        self._untrusted = UntrustedOrigins(local, trusted_origins) if trusted_origins is not None else None
        self._turn = Turn()
        #: Number of the last turn that was cut, and whether something was published since.
        self._cut_turn = 0
        self._has_published = False
        #: The node stops: nothing is delivered any more. Whether the mirrors have been told.
        self._is_ending = self._has_said_end = False
        #: True if some mirror of the record holds back confirms.
        self._is_held: bool
        #: 1 + the highest position that may have been delivered.
        self._delivered_end = undelivered_start(local, delivered_below)
        #: From here on, or from the lowest horizon if that is higher, positions are ready, undelivered, without holes.
        #: To mirrors that have yet to hear anew how far it goes, who goes on in an epoch has delivered nothing.
        self._dense_start = self._delivered_end if resumed is None else SeqId(0)
        #: The promise made to mirrors: nothing at or above it was delivered.
        self._horizon = self._delivered_end
        self._horizon_step = HORIZON_STEP_MIN
        #: Lowest horizon that the mirrors may rely on.
        self._delivery_limit = NO_LIMIT
        #: Until this master is in service.
        self._succession = None if record.in_service else succession
        #: What is flagged as long as nothing was delivered here.
        self._flagged_below = local.delivered_below
        assert record.master == node, "only the node that the record names is the master"
        self._adopt_mirrors()

    # --- the record and the links -------------------------------------------------------------------------------------

    def set_record(self, record: MastershipRecord) -> None:
        """A commit changed the record; it still names this node as master (otherwise: `demote`)."""
        assert record.master == self.node, "a node that is no longer the master must be demoted"
        assert record.epoch >= self.record.epoch, "records arrive in commit order"
        if record.epoch > self.record.epoch:
            self.is_fenced = record.epoch < self._fencing_epoch
        self.record = record
        self._service.follow(record)
        if record.in_service:
            self._succession = None
        self._adopt_mirrors()

    def _adopt_mirrors(self) -> None:
        if self._conversations.adopt(self.record):
            self._ledger.hold_unwrapped(self._cut_turn + 1)
            self._has_published = True
        self._forget_unheard()
        self._answers_changed()

    def mirror_link_up(self, node: NodeName) -> None:
        """The links to and from ``node`` work, anew: what was in flight is lost."""
        if self._conversations.is_reachable(node):
            self._note_break(node)
        self._conversations.link_up(node)
        self._forget_unheard()

    def mirror_link_down(self, node: NodeName) -> None:
        """A link to or from ``node`` broke."""
        self._conversations.link_down(node)
        self._note_break(node)
        self._forget_unheard()

    def _note_break(self, node: NodeName) -> None:
        """What the master before had to say may be lost with its link."""
        if self._succession is not None and self._succession.node == node:
            self._succession.heard()

    def _forget_unheard(self) -> None:
        """Whoever attaches next is told the whole state; what nobody listens to need not be kept."""
        if self._turn and not self._is_heard:
            self._turn = Turn()

    def receive(self, node: NodeName, message: MirrorMessage) -> None:
        """Take an answer of a mirror, or what an older or newer master of this queue sends."""
        if isinstance(message, Attach | Ops):
            self._other_master(node, message)
            return
        if isinstance(message, AttachRefused):
            self._fence(message.known_epoch)
            return
        self._conversations.receive(node, message)
        self._answers_changed()

    def _other_master(self, node: NodeName, said: Attach | Ops) -> None:
        end, succession = end_in(said), self._succession
        if end is not None and succession is not None and said.epoch == succession.epoch:
            self._predecessor_ended(succession, end)
        elif said.epoch < self.record.epoch:
            self._conversations.say(node, AttachRefused(said.queue_id, said.epoch, self.record.epoch))
        else:
            self._fence(said.epoch)

    def _predecessor_ended(self, succession: Succession, end: EndOp) -> None:
        """The master before has said how far it delivered, which is less than the horizon that was heard of it."""
        succession.heard()
        local = self.local
        if local.delivered_below != self._flagged_below:
            return  # something that was sent again was flagged since
        local.mark_none_delivered()
        local.mark_delivered_below(max(succession.delivered_below, min(end.delivered_below, local.next_seq_id)))
        self._flagged_below = local.delivered_below
        self._delivered_end = self._dense_start = self._horizon = undelivered_start(local, self._flagged_below)

    @property
    def _awaits_end(self) -> bool:
        """True while the master before is expected to say how far it delivered."""
        succession = self._succession
        return succession is not None and succession.is_awaited and self._conversations.is_reachable(succession.node)

    def _fence(self, epoch: Epoch) -> None:
        """There is a master of this epoch, or was."""
        if epoch > self.record.epoch and not self.is_fenced:
            self.is_fenced = True
            self._fencing_epoch = epoch
            self._conversations.report(ReportFenced(epoch))

    def _answers_changed(self) -> None:
        """Release what the least advanced mirrors allow."""
        frontier = self._conversations.frontier()
        self._is_held = frontier.is_held
        self._delivery_limit = frontier.delivery_limit
        self._published.forget(int(min(frontier.durable_turn, self._cut_turn)))
        if self._service.may_confirm:
            # Not before: a complete copy that is no mirror at the moment may be one again, and lacks it then.
            self._ledger.release(frontier.applied_turn, frontier.durable_turn)

    # --- sending ------------------------------------------------------------------------------------------------------

    def take_messages(self, as_of_index: int = 0, is_full: LinkTest = never) -> list[tuple[NodeName, MirrorMessage]]:
        """Cut the turn: everything to send now, in order. Call once per turn of the loop; cheap if nothing happened.

        ``as_of_index``: how far this node has applied the metadata log. ``is_full``: much waits to be sent there.
        """
        conversations = self._conversations
        if self._mirrors:
            probing = conversations.probing
            self._extend_horizon(self._horizon_step if probing else self._horizon_step // 2)
            if self._turn or self._has_published:
                self._cut()
            conversations.send_differences(self._cut_turn, is_full)
            if self._is_ending and not self._has_said_end:
                self._has_said_end = True
                conversations.say_end(self._cut_turn, self.local.delivered_below)
            if probing and self._service.may_deliver and not self.is_fenced and conversations.prepare_attaches():
                origins = self._vouched_origins()
                conversations.begin_attaches(probing, self._cut_turn, self._horizon, origins, as_of_index)
                self._has_said_end = False  # they have heard a horizon
                self._answers_changed()
        return conversations.take_outbox()

    def _cut(self) -> None:
        self._cut_turn += 1
        self._has_published = False
        horizon = self._turn.horizon or SeqId(0)
        frames, settled = self._turn.cut()
        self._conversations.stream(self._cut_turn, frames, settled, horizon)
        if not frames:
            self._answers_changed()

    def _vouched_origins(self) -> Mapping[OriginId, int]:
        origins = self.local.origins()
        return self._untrusted.vouched(origins) if self._untrusted else origins

    def _extend_horizon(self, ahead: int) -> None:
        """Promise a step more if the promise is less than ``ahead`` messages ahead of deliveries."""
        if self._delivered_end + ahead > self._horizon:
            self._horizon = SeqId(self._delivered_end + self._horizon_step)
            if self._is_heard and not self._has_said_end:
                self._turn.horizon = self._horizon

    def end(self) -> None:
        """The node stops: nothing is delivered from here on, which the mirrors are told with the next turn."""
        self._is_ending = True

    def take_leave(self) -> list[tuple[NodeName, MirrorMessage]]:
        """Nothing is delivered from here on, in this epoch: what is to be said of it to the mirrors that are attached,
        once another is the master. The queue is dead afterwards."""
        self._conversations.say_end(self._cut_turn, self.local.delivered_below)
        return self._conversations.take_outbox()

    def close_deliveries(self) -> None:
        """The copy is about to be closed: nothing is delivered any more in this epoch, which its files will say."""
        self.local.close_deliveries(self.record.epoch, self.local.delivered_below)

    @property
    def is_end_known(self) -> bool:
        """True if every mirror that is attached knows the end; ``end`` was called."""
        return not self._mirrors or (self._has_said_end and self._conversations.is_all_applied)

    @property
    def _is_plain(self) -> bool:
        """True if there is no mirror to wait for and every token is its publisher's: the local queue does it all."""
        return not self._mirrors and not self._wraps_always

    @property
    def _is_heard(self) -> bool:
        """True if some mirror is attached, so that the turn must be noted."""
        return self._conversations.is_heard

    # --- synchronisation, reports, time -------------------------------------------------------------------------------

    @property
    def is_sync_wanted(self) -> bool:
        """True while a mirror is to be filled that the record does not call synchronised yet."""
        return self._conversations.is_sync_wanted

    def cancel_sync(self) -> None:
        """Stop filling (`cancel_sync_queue`). What has arrived is kept (`Conversations.cancel_sync`)."""
        self._conversations.cancel_sync()

    def set_settings(self, settings: MirroringSettings) -> None:
        """The policy changed. ``is_durable`` is a property of the queue and cannot change."""
        assert settings.is_durable == self.is_durable, "a queue is declared durable or not"
        self._conversations.set_settings(settings)

    def take_reports(self) -> list[MirroringReport]:
        """What the node should propose to the metadata group now."""
        reports = self._conversations.take_reports()
        if not self.is_fenced and not self._awaits_end and self._service.take_request():
            reports.append(ReportTakesService())
        return reports

    def tick(self, now_ms: int) -> None:
        """Time passes: throttle, repeated reports, silent mirrors. Some times a second is right."""
        self._service.tick(now_ms)
        if self._succession is not None:
            self._succession.tick(now_ms)
        self._conversations.tick(now_ms, self._service.may_deliver)
        self._forget_unheard()

    @property
    def wants_turn(self) -> bool:
        """True if the passing of time may have given something to send or to report: take messages, then. A queue whose
        mirrors have all heard everything sleeps until it is used."""
        return self._conversations.wants_turn or self._service.wants_turn

    @property
    def has_more(self) -> bool:
        """The last `take_messages` has left something to do for which confirms wait: call it in the next turn, too."""
        return self._conversations.is_preparation_awaited and self._service.may_deliver and not self.is_fenced

    @property
    def wants_tick(self) -> bool:
        """True if the passing of time matters: there are mirrors, or service to be asked for."""
        return bool(self._mirrors) or not self._service.may_confirm

    @property
    def in_flight_messages(self) -> int:
        return self.local.in_flight_messages

    def mirrors_in_flight(self) -> Sequence[MirrorInFlight]:
        published = self._published
        return [
            MirrorInFlight(
                progress.node,
                published.after(progress.applied_turn),
                published.persistent_between(progress.durable_turn, progress.applied_turn),
                progress.in_flight_bytes,
            )
            for progress in self._mirrors.values()
            if progress.holds_confirms
        ]

    def streaming_mirrors(self) -> list[NodeName]:
        """Mirrors that receive every operation, oldest first: what is confirmed from here on is on them too, and the
        cluster knows it."""
        return [node for node in self.record.following if self._mirrors[node].state in RECEIVING]

    @property
    def required_mirrors(self) -> Collection[NodeName]:
        """Those that hold back confirms until they lack nothing."""
        return [node for node, progress in self._mirrors.items() if progress.is_required]

    def disk_full_mirrors(self) -> list[NodeName]:
        """Mirrors that wait for space on their disks, oldest first: confirms wait with them."""
        return [node for node in self.record.mirrors if self._mirrors[node].is_disk_full]

    def mirror_states(self) -> dict[NodeName, MirrorState]:
        """For the listing commands and logs."""
        return {node: progress.state for node, progress in self._mirrors.items()}

    # --- BackingQueue -------------------------------------------------------------------------------------------------

    def publish(self, publications: Sequence[Publication]) -> None:
        if self._is_plain:
            self.local.publish(publications)
            self._vouch(publications)
            return
        first_seq_id = self.local.next_seq_id
        self.local.publish(self._ledger.hold(publications, self._cut_turn + 1))
        self._note_published(first_seq_id, publications)

    @property
    def may_deliver(self) -> bool:
        return self._service.may_deliver and not self.is_fenced and not self._is_ending

    def publish_delivered(self, publications: Sequence[Publication]) -> list[Delivery]:
        assert self.may_deliver, "it is not in service, or fenced, or said that nothing is delivered any more"
        assert self.local.ready == 0, "only an empty queue may be bypassed"
        first_seq_id = self.local.next_seq_id
        is_plain = self._is_plain
        held = publications if is_plain else self._ledger.hold(publications, self._cut_turn + 1)
        deliveries = self.local.publish_delivered(held)
        self._gone_below(SeqId(first_seq_id + len(publications)))
        if is_plain:
            self._vouch(publications)
        else:
            # The promise that goes with this turn travels before the messages, so whoever has them has it.
            self._note_published(first_seq_id, publications)
        return deliveries

    def discard(self, publications: Sequence[Publication]) -> None:
        assert self.may_deliver, "what is not stored is delivered"
        if self._is_plain:
            self.local.discard(publications)
            self._vouch(publications)
            return
        self.local.discard(self._ledger.hold(publications, self._cut_turn + 1, is_stored=False))
        self._has_published = True
        self._published.publish(self._cut_turn + 1, len(publications), 0)
        if self._is_heard:
            self._turn.discard(publication.message for publication in publications)
        self._vouch(publications)

    def _note_published(self, first_seq_id: SeqId, publications: Sequence[Publication]) -> None:
        self._has_published = True
        persistent = sum([publication[0].persistent for publication in publications])
        self._published.publish(self._cut_turn + 1, len(publications), persistent)
        if self._is_heard:
            self._turn.publish(first_seq_id, [publication.message for publication in publications])
            if self._conversations.is_gap_open:
                self._turn.await_confirms(publications)
        self._vouch(publications)

    def _vouch(self, publications: Sequence[Publication]) -> None:
        if self._untrusted:
            self._untrusted.published(publication.message for publication in publications)

    def fetch(self, count_max: int, ack_required: bool, bytes_max: int = NO_LIMIT_BYTES) -> list[Delivery]:
        if not self.may_deliver:
            return []
        if self._delivery_limit != NO_LIMIT:
            count_max = min(count_max, self._deliverable())
            if count_max <= 0:
                return []
        deliveries = self.local.fetch(count_max, ack_required, bytes_max)
        if deliveries:
            self._delivered_end = max(self._delivered_end, SeqId(deliveries[-1].seq_id + 1))
            if self._untrusted:
                self._untrusted.delivered(delivery.message for delivery in deliveries)
            assert deliveries[-1].seq_id < max(self._delivery_limit, self._dense_start), (
                "delivered above the horizon: a failover would hand it out again without the flag"
            )
            if not ack_required:
                self._note_settled([delivery.seq_id for delivery in deliveries])
        return deliveries

    def _deliverable(self) -> int:
        """Ready messages that may be delivered: those below the lowest horizon, or delivered before."""
        local = self.local
        ready = local.ready
        undelivered = local.next_seq_id - max(self._delivery_limit, self._dense_start)
        if undelivered <= 0:
            return ready
        allowed = ready - undelivered
        if allowed <= 0:
            self._horizon_step = min(2 * self._horizon_step, HORIZON_STEP_MAX)
        return allowed

    def ack(self, seq_ids: Sequence[SeqId]) -> int:
        if not self._is_heard:
            return self.local.ack(seq_ids)
        known = self.local.ack(seq_ids)
        if known == len(seq_ids):
            self._note_settled(seq_ids)
        else:
            self._note_settled(self._not_live(seq_ids))
        return known

    def _not_live(self, seq_ids: Sequence[SeqId]) -> list[SeqId]:
        """Those that are settled by now. Some of ``seq_ids`` were refused: they may name ready messages."""
        segments = {seq_id // DIGEST_SEGMENT_ENTRIES for seq_id in seq_ids}
        live = {seq_id for segment in segments for seq_id in self.local.live_positions(segment)}
        end = self.local.next_seq_id
        return [seq_id for seq_id in seq_ids if 0 <= seq_id < end and seq_id not in live]

    def _note_settled(self, seq_ids: Sequence[SeqId]) -> None:
        if self._is_heard:
            self._turn.settle(seq_ids)

    def requeue(self, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> int:
        return self.local.requeue(seq_ids, more_follow=more_follow)

    def requeue_all(self) -> int:
        return self.local.requeue_all()

    def _gone_below(self, seq_id: SeqId) -> None:
        """Whatever is live below ``seq_id`` was delivered before: nothing else was left there."""
        self._delivered_end = max(self._delivered_end, seq_id)
        self._dense_start = max(self._dense_start, seq_id)

    def drop(self, count_max: int, bytes_wanted: int = NO_LIMIT_BYTES) -> list[SeqId]:
        dropped = self.local.drop(count_max, bytes_wanted)
        if dropped:
            self._gone_below(SeqId(dropped[-1] + 1))
            self._note_settled(dropped)
        return dropped

    def flag_redelivered(self) -> None:
        """The horizon goes with it, in this turn: whoever is promoted next flags the same messages."""
        self.local.flag_redelivered()
        self._delivered_end = max(self._delivered_end, self.local.next_seq_id)

    def purge(self) -> int:
        first = self.local.first_live_seq_id
        count = self.local.purge()
        end = self.local.next_seq_id
        self._gone_below(end)
        if count and self._is_heard:
            unacked = [at for segment, _ in self.local.live_counts() for at in self.local.live_positions(segment)]
            self._turn.settle_ranges(gaps_between(first, end, unacked))
        return count

    def is_duplicate(self, msg_id: MsgId) -> bool:
        if self._untrusted:
            return self._untrusted.is_duplicate(msg_id)
        return self.local.is_duplicate(msg_id)

    @property
    def knows_out_of_order(self) -> bool:
        return bool(self._untrusted)

    def confirm_when_safe(self, msg_id: MsgId, token: Hashable) -> None:
        if self._is_plain:
            self.local.confirm_when_safe(msg_id, token)
            return
        # The earlier copy is of this very turn at the latest.
        turn = self._cut_turn + self._has_published
        self.local.confirm_when_safe(msg_id, self._ledger.hold_token(token, turn))
        self._answers_changed()

    def drain_confirmed(self) -> list[Hashable]:
        if self.is_fenced or not self._service.may_confirm:
            return []
        if self._has_published and not self._is_held and not self._turn:
            # Nobody to hear of the turn or to wait for: cut it here, so that its confirms need only this node.
            self._cut_turn += 1
            self._has_published = False
            self._answers_changed()
        return self._ledger.take(self.local.drain_confirmed())

    @property
    def ready(self) -> int:
        return self.local.ready

    @property
    def unacked(self) -> int:
        return self.local.unacked

    def status(self) -> BackingQueueStatus:
        return self.local.status()

    def terminate(self) -> None:
        self.local.terminate()

    def delete(self) -> None:
        self.local.delete()

    def check_invariants(self) -> None:
        self.local.check_invariants()
        self._ledger.check_invariants()
        self._published.check_invariants()
        self._conversations.check_invariants()
        for progress in self._mirrors.values():
            known = progress.known_horizon
            assert known is None or known <= self._horizon, "a mirror cannot rely on what was not promised"
        assert self._succession is None or not self._service.may_deliver, "it puts right what nobody has relied on yet"
        assert self._is_heard or not self._turn, "a turn that nobody hears would grow for ever"
        assert self._dense_start <= max(self._delivered_end, self.local.next_seq_id), "what is gone was there"


def recovered(
    node: NodeName,
    local: ReplicaQueue,
    record: MastershipRecord,
    settings: MirroringSettings | None = None,
    attach_id_base: int = 0,
    resumed: Collection[NodeName] | None = None,
) -> MirroredQueue:
    """The queue of a master over its copy as it was just opened: what the disk has is all that is known."""
    if not local.delivered_epoch:
        local.remove(held_again(local))  # a mirror may have left it, or a crash
    if not knows_deliveries(local, node, record):
        # Others have served meanwhile; what they have delivered is not on this disk.
        local.mark_delivered_below(local.next_seq_id)
    return MirroredQueue(
        node,
        local,
        record,
        settings,
        delivered_below=local.next_seq_id,  # what the disk still has may have been delivered, all of it
        trusted_origins={},  # the copy may have been incomplete when this node stopped
        attach_id_base=attach_id_base,
        resumed=resumed,
    )

"""The queue process: consumers on one side, a backing queue on the other (mission Q1, Q2).

Calls come from channels, on this node or another, and return at once. What must be told to channels collects until
the owner calls `drain`, once after any number of calls, which also dispatches; so everything leaves in batches.

Publish. A message known already (its node sends it again after a failover) only gets its confirm. Otherwise, if the
queue is empty and a consumer has capacity, it goes straight there: through `publish_delivered` if it must be acked,
through `discard` (never stored) if not. Otherwise it is stored, ready. Last, the length limits are applied
(`node.queues.length_limits`); they count ready messages only, and before they are applied what can be delivered is.

Holding. A channel can settle only what it *holds* (`node.queues.holdings`). When a channel ends, what it held is ready
again, in its old place; if it is much, not at once (`node.queues.returns`).

Bounds. Whatever may be large goes in steps, one per `drain`: deliveries, drops, returns, publishes that were held back
(`node.queues.held_back`). While there is more to do, `has_more` says so, and the owner drains again in the next turn.

Links. Consumers on a node that ``is_full`` names are passed over; if messages stay for that, ``waits_for`` names the
node, and the owner drains when it has room again. What waits counts as ready, also for the length limits.

Confirms. The token for the backing queue is ``(channel, publish_seq)``; one effect per channel and drain has all.

Deleting takes two steps, because the decision must be agreed on by the cluster: `seal_for_delete` checks the
conditions and holds back later publishes, so that the answer stays true; then the queue is deleted (`delete`), or it is
known that it will not be (`unseal`) and the held publishes go on as if nothing had been. Who wants to use the queue
meanwhile waits, too (`when_unsealed`). A mastership that ends is closed likewise, but for no deletion (`hold`).

Credit. What a channel may publish is granted by `QueueFlow`: a batch counts as processed when `publish` has taken it,
and the grants wait while the store or a mirror is behind. Publishes that the seal holds back are not processed.

Crash behaviour: nothing here outlives the process. Its successor finds everything unacked ready, flagged redelivered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import repeat

from node.errors import ChannelError
from node.flow.credit import FlowControl
from node.ids import ChannelKey, NodeName, SeqId
from node.message import Message
from node.queues.backing_queue import BackingQueue, Delivery, Publication
from node.queues.consumers import Consumer, ConsumerSet, Turn, deal, never_full, until_bytes
from node.queues.events import CancelConsumer, ConsumerSpec, DeleteUnused, QueueEffect, Token
from node.queues.held_back import HeldBack, HeldBatch
from node.queues.holdings import Holdings
from node.queues.length_limits import (
    DROP_AT_ONCE,
    DROP_MAX,
    drop_excess,
    split_excess,
    split_oversized,
    would_exceed,
)
from node.queues.options import QueueOptions, queue_options
from node.queues.outgoing import Outgoing
from node.queues.queue_flow import QueueFlow
from node.queues.repetitions import Repetitions
from node.queues.returns import Returns
from node.topology.arguments import describe_queue
from node.topology.records import QueueRecord

#: Deliveries of one `QueueProcess.drain`: a millisecond or two. And their bytes, which one frame to another node
#: carries.
DISPATCH_MAX = 256
DISPATCH_BYTES_MAX = 4 * 1024 * 1024
#: Publishes that were held back and are taken in one turn: some milliseconds, if all are refused.
LET_IN_MAX = 1024
#: Position of a delivery that was never stored: its channel has nothing to settle. It may say so all the same, giving
#: back what it did not send; so it is a position that no message has.
UNSTORED_SEQ_ID = SeqId(1 << 63)


class QueueProcess:
    """See the top of this module."""

    def __init__(
        self,
        record: QueueRecord,
        backing_queue: BackingQueue,
        options: QueueOptions | None = None,
        flow: FlowControl | None = None,
        is_full: Callable[[NodeName], bool] = never_full,
    ) -> None:
        self.record = record
        self.flow = QueueFlow(flow or FlowControl())
        self._backing_queue = backing_queue
        self._options = options if options is not None else queue_options(record.arguments)
        self._consumers = ConsumerSet(self._options.single_active_consumer, is_full)
        self._holdings = Holdings(self._consumers)
        self._returns = Returns(backing_queue)
        self._outgoing = Outgoing()
        self._repetitions = Repetitions(backing_queue)
        #: A deletion is being decided on.
        self._is_sealed = False
        #: This mastership ends.
        self._is_held = False
        #: One of the two. (A field: every batch asks.)
        self._is_closed = False
        #: The last dispatch ended at its bounds, not for want of messages or consumers.
        self._may_dispatch_more = False
        #: There may be more to drop for the length limits.
        self._is_over_limit = False
        #: Publishes that wait (`_publishes_wait`), and what came behind them; bounded by the credit of the publishers.
        self._held_back = HeldBack()
        #: Of these, so many were there already when the queue was sealed.
        self._held_at_seal = 0
        #: Others who wait for it.
        self._waiting: list[Callable[[], None]] = []
        if backing_queue.unacked:
            backing_queue.requeue_all()
        if backing_queue.ready and (self._options.max_length, self._options.max_length_bytes) != (None, None):
            self._is_over_limit = True  # what was held is ready again, too

    # --- what listings show ---

    @property
    def ready(self) -> int:
        return self._backing_queue.ready + self._returns.ready

    @property
    def unacked(self) -> int:
        return self._backing_queue.unacked - self._returns.ready - self._returns.purged_messages

    @property
    def held_back(self) -> int:
        """Messages that were published, and may be ready when the queue has taken them."""
        return self._held_back.unpurged

    @property
    def consumer_count(self) -> int:
        return len(self._consumers)

    @property
    def backing_queue(self) -> BackingQueue:
        return self._backing_queue

    @property
    def options(self) -> QueueOptions:
        return self._options

    def consumers(self) -> list[tuple[ChannelKey, ConsumerSpec, bool]]:
        """Channel, request and whether it is active, of every consumer, oldest first."""
        active = self._consumers.active
        return [(each.channel, each.spec, active is None or each is active) for each in self._consumers]

    # --- publishing ---

    def publish(
        self,
        channel: ChannelKey,
        messages: Sequence[Message],
        publish_seqs: Sequence[int],
        *,
        is_resent: bool = False,
    ) -> None:
        """Enqueue, in order. ``publish_seqs[i]`` is 0 if nobody waits for the confirm of ``messages[i]``.

        ``is_resent``: an earlier master was given these and may have delivered them before it died, without any
        replica having heard of them. Those that are not known here are delivered with the redelivered flag.
        """
        if not messages:
            return
        if self._publishes_wait or self._held_back.must_wait(len(messages), 4 * LET_IN_MAX):
            self._held_back.add(HeldBatch(channel, messages, publish_seqs, is_resent, self.flow.tally(channel)))
            return
        self._take(channel, messages, publish_seqs, is_resent)
        self.flow.processed(channel, len(messages))

    @property
    def _publishes_wait(self) -> bool:
        """For the fate of a closed queue, or (overflow ``reject-publish``) to know if what returns leaves it room."""
        return self._is_closed or (self._returns.ready > 0 and self._options.refuses_publishes)

    @property
    def _may_let_in(self) -> bool:
        """Something waits no longer. (What is purged is handed out to nobody, which takes the same right.)"""
        held_back = self._held_back
        if not held_back.messages or self._publishes_wait:
            return False
        return not held_back.purged or self._backing_queue.may_deliver

    def _let_in(self) -> None:
        """Take what was held back, a piece of it."""
        left = LET_IN_MAX
        while left > 0 and self._may_let_in:
            left -= self._take_held(left)

    def _take_held(self, count_max: int) -> int:
        """The first of what was held back. Returns how many."""
        is_purged = self._held_back.purged > 0
        channel, messages, publish_seqs, is_resent, tally = self._held_back.take(count_max)
        told = len(self._outgoing.rejected)
        if is_purged:
            self._take_purged(channel, messages, publish_seqs)
        else:
            self._take(channel, messages, publish_seqs, is_resent)
        if not self.flow.processed_late(channel, len(messages), tally):
            del self._outgoing.rejected[told:]  # whoever began anew sends these again: what he is told is decided then
        return len(messages)

    def _take_purged(self, channel: ChannelKey, messages: Sequence[Message], publish_seqs: Sequence[int]) -> None:
        """These are accepted, and gone."""
        publications = self._new_ones(channel, messages, publish_seqs)
        if self._options.rejects_overflow:
            publications, refused = split_oversized(publications, self._options)
            self._refuse(refused)
        if publications:
            self._backing_queue.discard(publications)

    def _new_ones(
        self, channel: ChannelKey, messages: Sequence[Message], publish_seqs: Sequence[int]
    ) -> list[Publication]:
        """What of these is no repetition."""
        tokens: Sequence[Token | None]
        if 0 in publish_seqs:
            tokens = [(channel, seq) if seq else None for seq in publish_seqs]
        else:
            tokens = list(zip(repeat(channel), publish_seqs, strict=False))
        return self._repetitions.without(list(map(Publication, messages, tokens)))

    def _take(
        self, channel: ChannelKey, messages: Sequence[Message], publish_seqs: Sequence[int], is_resent: bool
    ) -> None:
        publications = self._new_ones(channel, messages, publish_seqs)
        options = self._options
        if options.is_limited:
            self._publish_within_limits(publications, is_resent)
            return
        if not is_resent:
            publications = self._deliver_directly(publications)
        self._store(publications, is_resent)

    def _publish_within_limits(self, publications: list[Publication], is_resent: bool) -> None:
        count_max = max(DROP_AT_ONCE, 2 * len(publications))
        if self._backing_queue.ready and would_exceed(publications, self._options, self._backing_queue):
            self._dispatch(count_max)
        if self._options.rejects_overflow:
            self._publish_or_reject(publications, is_resent)
            return
        if not is_resent:
            publications = self._deliver_directly(publications)
        self._store(publications, is_resent)
        self._drop_excess(count_max)

    def _deliver_directly(self, publications: list[Publication], *, is_all: bool = False) -> list[Publication]:
        """Give messages to waiting consumers if the queue is empty, not many more bytes than one drain does unless
        ``is_all``. Returns the others."""
        backing_queue = self._backing_queue
        if self._returns.is_under_way or not backing_queue.may_deliver:
            return publications
        taken, bytes_max = 0, DISPATCH_BYTES_MAX
        while taken < len(publications) and not backing_queue.ready:
            if bytes_max <= 0 and not is_all:
                self._may_dispatch_more = True
                break
            turn = self._consumers.take_turn(len(publications) - taken)
            if turn is None:
                break
            chunk = until_bytes(publications[taken : taken + turn.messages], turn.bytes_max)
            if turn.no_ack:
                backing_queue.discard(chunk)
                deliveries = [Delivery(UNSTORED_SEQ_ID, publication[0], False) for publication in chunk]
            else:
                deliveries = backing_queue.publish_delivered(chunk)
            bytes_max -= self._hand_out(turn, deliveries)
            taken += len(chunk)
        return publications[taken:] if taken else publications

    def _store(self, publications: Sequence[Publication], is_resent: bool) -> None:
        if publications:
            self._backing_queue.publish(publications)
            if is_resent:
                self._backing_queue.flag_redelivered()
                self._may_dispatch_more = True  # it went past consumers that may wait for it

    def _publish_or_reject(self, publications: list[Publication], is_resent: bool) -> None:
        """Overflow ``reject-publish``: take what fits, refuse the rest."""
        options = self._options
        fitting, refused = split_oversized(publications, options)
        self._refuse(refused)
        if options.max_length != 0 and not is_resent:
            fitting = self._deliver_directly(fitting, is_all=True)  # the others may be refused
        fitting, refused = split_excess(fitting, options, self._backing_queue)
        self._refuse(refused)
        self._store(fitting, is_resent)

    def _refuse(self, publications: Sequence[Publication]) -> None:
        if publications:
            self._outgoing.rejected += self._repetitions.refused(publications)

    # --- delivering ---

    def _dispatch(self, count_max: int) -> None:
        """Give ready messages, so many at most, to consumers with capacity. A fetch that falls short is tried at the
        next drain."""
        backing_queue = self._backing_queue
        self._may_dispatch_more = False
        if self._is_closed or self._returns.is_under_way:
            return
        bytes_max = DISPATCH_BYTES_MAX
        while (available := backing_queue.ready) > 0:
            if count_max <= 0 or bytes_max <= 0:
                self._may_dispatch_more = True
                return
            turn = self._consumers.take_turn(min(available, count_max))
            if turn is None:
                return
            turn_bytes_max = min(bytes_max, turn.bytes_max)
            deliveries = backing_queue.fetch(turn.messages, not turn.no_ack, turn_bytes_max)
            size = self._hand_out(turn, deliveries)
            if len(deliveries) < turn.messages and size < turn_bytes_max:
                return
            count_max -= len(deliveries)
            bytes_max -= size

    def _catch_up(self) -> None:
        """Go on where the last drain stopped: limits count what nobody can take."""
        if self._may_dispatch_more:
            self._dispatch(DISPATCH_MAX)

    def _drop_excess(self, count_max: int) -> None:
        """Keep the length limits, by so many drops at most; what is left goes with the next drains. Nothing is dropped
        that may yet be delivered, or before everything is back that is to come before it."""
        if self._may_dispatch_more or self._returns.is_under_way or not self._backing_queue.may_deliver:
            self._is_over_limit = True
        else:
            self._is_over_limit = drop_excess(self._options, self._backing_queue, count_max)

    def _hand_out(self, turn: Turn, deliveries: Sequence[Delivery]) -> int:
        """Deal them out. Returns the bytes of their bodies."""
        number = len(turn.consumers)
        total_bytes = 0
        self._outgoing.deal(turn.consumers, deliveries)
        by_channel = self._holdings.by_channel
        for position, consumer in enumerate(turn.consumers):
            share = deal(deliveries, number, position)
            if not share:
                break
            size_bytes = sum([len(each[1].body) for each in share])
            total_bytes += size_bytes
            consumer.handed_out(len(share), size_bytes)
            if not turn.no_ack:
                consumer.unacked += len(share)
                by_channel[consumer.channel].held.update(dict.fromkeys([each[0] for each in share], consumer))
        self._consumers.end_turn(turn, min(len(deliveries), number))
        return total_bytes

    def grant(self, channel: ChannelKey, consumer_tag: str, count: int) -> None:
        """``count`` deliveries to this consumer were written to its socket: as many more may follow."""
        consumer = self._consumers.find(channel, consumer_tag)
        if consumer is not None:
            consumer.written(count)
            self._consumers.refresh(consumer)

    # --- consumers ---

    def consume(self, channel: ChannelKey, spec: ConsumerSpec) -> None:
        """Start a consumer; its first deliveries come with the next `drain`.

        Raises `ChannelError` 403 if exclusive use stands against it, 404 if the queue is being deleted.
        """
        self._refuse_if_closed()
        consumers = self._consumers
        excluded = spec.exclusive and (len(consumers) > 0 or self._options.single_active_consumer)
        if excluded or consumers.has_exclusive():
            raise ChannelError(403, f"{self._description} in exclusive use")
        consumer = Consumer(channel, spec)
        consumers.add(consumer)
        self._holdings.of(channel).consumers[spec.consumer_tag] = consumer

    def cancel(self, channel: ChannelKey, consumer_tag: str) -> None:
        """Stop a consumer; unknown ones are ignored. What it holds stays held; what it was given still goes out."""
        consumer = self._consumers.find(channel, consumer_tag)
        if consumer is None:
            return
        self._remove_consumer(consumer)
        self._holdings.forget_if_idle(channel)
        self._delete_if_unused(may_return=False)

    def _remove_consumer(self, consumer: Consumer) -> None:
        self._consumers.remove(consumer)
        self._holdings.remove_consumer(consumer)

    @property
    def is_unused(self) -> bool:
        """An auto-delete queue without consumers. Whether it ever had one is not known here."""
        return self.record.auto_delete and not self._consumers

    def was_consumed(self) -> None:
        """Somebody who comes from an earlier session, or an earlier master, had consumers of this queue."""
        self._delete_if_unused(may_return=True)

    def _delete_if_unused(self, *, may_return: bool) -> None:
        if self.is_unused or (may_return and self.record.auto_delete):
            self._outgoing.others.append(DeleteUnused(may_return))

    def get(self, channel: ChannelKey, no_ack: bool) -> Delivery | None:
        """One message from the head, or ``None``: the queue is empty, or (if `ready` or `held_back` says otherwise) try
        again soon.

        Raises `ChannelError` 404 if the queue is being deleted.
        """
        self._refuse_if_closed()
        if self._returns.is_under_way:
            return None
        deliveries = self._backing_queue.fetch(1, not no_ack)
        if not deliveries:
            return None
        if not no_ack:
            self._holdings.of(channel).held[deliveries[0].seq_id] = None
        return deliveries[0]

    # --- settling ---

    def ack(self, channel: ChannelKey, seq_ids: Sequence[SeqId]) -> None:
        """Settle deliveries that ``channel`` holds; others are ignored."""
        settled = self._holdings.release(channel, seq_ids)
        if settled:
            self._backing_queue.ack(settled)

    def discard(self, channel: ChannelKey, seq_ids: Sequence[SeqId]) -> None:
        """Reject without requeue: the messages are gone."""
        self.ack(channel, seq_ids)

    def requeue(self, channel: ChannelKey, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> None:
        """Give deliveries that ``channel`` holds back to their places.

        ``more_follow``: the channel gives back more, in calls to come; nobody is given anything before one without
        positions, and without this flag, has ended it.
        """
        if self._options.is_limited:
            self._catch_up()
        settled = self._holdings.release(channel, seq_ids)
        if settled:
            self._backing_queue.requeue(settled, more_follow=more_follow)
        if more_follow:
            self._returns.expect_more(channel)
        elif not seq_ids:
            self._returns.expect_no_more(channel)
        self._drop_excess(DROP_AT_ONCE)

    def channel_down(self, channel: ChannelKey, *, may_return: bool = False) -> None:
        """The channel is gone: what it held is ready again, its consumers are removed.

        ``may_return``: it may merely be cut off, and attach its consumers again.
        """
        self.flow.end(channel)
        # Deliveries to be acked are requeued below, the others are lost on the way.
        self._outgoing.channel_gone(channel)
        self._returns.expect_no_more(channel)
        if not may_return:
            self._repetitions.channel_closed(channel)
        holdings = self._holdings.by_channel.get(channel)
        if holdings is None:
            return
        had_consumers = bool(holdings.consumers)
        for consumer in list(holdings.consumers.values()):
            self._remove_consumer(consumer)
        del self._holdings.by_channel[channel]
        if holdings.held:
            if self._options.is_limited:
                self._catch_up()
            self._returns.take_over(holdings.held)
            self._drop_excess(DROP_AT_ONCE)
        if had_consumers:
            self._delete_if_unused(may_return=may_return)

    # --- the queue as a whole ---

    def purge(self) -> int:
        """Remove every ready message, and what was published before and is held back. Returns how many; of what is held
        back, repetitions count, too."""
        self._held_at_seal = 0
        held_back = 0 if self._is_held else self._held_back.purge()  # that is sent to the next master
        return held_back + self._returns.purge() + self._backing_queue.purge()

    def set_options(self, options: QueueOptions) -> None:
        """A policy changed: new limits hold at once, for what is above them in as many drains as it takes."""
        assert options.single_active_consumer == self._options.single_active_consumer, "an argument, fixed for life"
        self._options = options
        self._drop_excess(DROP_AT_ONCE)

    def seal_for_delete(self, if_unused: bool, if_empty: bool) -> int:
        """Check the conditions of a deletion and close the queue to further use. Returns the ready messages, with what
        was published before and is held back.

        Raises `ChannelError` 406 if a condition fails. `unseal` undoes it, once nothing can delete the queue any more.
        Sealing twice is no error.
        """
        if if_unused and self._consumers:
            raise ChannelError(406, f"{self._description} in use")
        if not self._is_sealed:
            self._held_at_seal = self._held_back.unpurged
        messages = self.ready + self._held_at_seal
        if if_empty and messages:
            raise ChannelError(406, f"{self._description} is not empty")
        self._is_sealed = self._is_closed = True
        return messages

    @property
    def is_sealed(self) -> bool:
        """A deletion is being decided on."""
        return self._is_sealed

    @property
    def is_closed(self) -> bool:
        """Whoever wants to use the queue has to wait: it is sealed, or its mastership ends."""
        return self._is_closed

    def when_unsealed(self, go_on: Callable[[], None]) -> None:
        """Call this when the queue is closed no longer. If it is deleted, or goes elsewhere, nobody is called."""
        assert self._is_closed, "there is nothing to wait for"
        self._waiting.append(go_on)

    def hold(self) -> None:
        """This mastership ends in a moment, in an orderly way: deliver nothing any more, hold back what comes."""
        self._is_held = self._is_closed = True
        self._returns.finish_purge()
        while self._held_back.purged and self._backing_queue.may_deliver:
            self._take_held(self._held_back.purged)

    def unseal(self) -> None:
        """The deletion did not come about, and cannot any more: go on, unless the mastership ends."""
        self._is_sealed = False
        if self._is_held:
            return
        self._is_closed = False
        self._let_in()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def delete(self) -> list[QueueEffect]:
        """The queue is deleted: its last effects. Consumers are cancelled, what is unconfirmed counts as confirmed."""
        backing_queue = self._backing_queue
        self._is_sealed = self._is_closed = True
        for batch in self._held_back.take_all():
            self._outgoing.confirmed.extend((batch.channel, seq) for seq in batch.publish_seqs if seq)
        self._returns = Returns(backing_queue)
        backing_queue.requeue_all()
        backing_queue.purge()
        effects: list[QueueEffect] = [effect for effect in self.drain() if not isinstance(effect, DeleteUnused)]
        effects += [CancelConsumer(each.channel, each.spec.consumer_tag) for each in self._consumers]
        for consumer in list(self._consumers):
            self._consumers.remove(consumer)
        self._holdings.by_channel.clear()
        backing_queue.delete()
        return effects

    def drain(self) -> list[QueueEffect]:
        """Dispatch, then hand over everything there is to tell: deliveries, confirms, rejections, the rest.

        Not more than `DISPATCH_MAX` deliveries, or those of a queue with a backlog would hold the loop for tens of
        milliseconds, and one step of whatever else there is much of: see ``has_more``.
        """
        self._returns.step()
        self._let_in()
        self._held_back.taken = 0
        self._dispatch(DISPATCH_MAX)
        if self._is_over_limit:
            self._drop_excess(DROP_MAX)
        confirmed = self._backing_queue.drain_confirmed()
        self.flow.observe(self._backing_queue.in_flight_messages, self._backing_queue.mirrors_in_flight())
        return self._outgoing.take(confirmed, self.flow.take_all())

    @property
    def has_more(self) -> bool:
        """The last `drain` has left something to do that waits for nobody: drain again in the next turn."""
        if self._returns.has_steps or self._may_dispatch_more or self._may_let_in:
            return True
        return self._is_over_limit and not self._returns.is_under_way and self._backing_queue.may_deliver

    @property
    def waits_for(self) -> Collection[NodeName]:
        """Nodes for whose consumers the last `drain` has left messages because their links are full."""
        nodes = self._consumers.full_nodes
        is_giving = nodes and not self._is_closed and not self._returns.is_under_way and self._backing_queue.ready
        return nodes if is_giving else ()

    # --- helpers ---

    @property
    def _description(self) -> str:
        return describe_queue(self.record.vhost, self.record.name)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ChannelError(404, f"no {self._description}")

    def check_invariants(self) -> None:
        self._consumers.check_invariants()
        self.flow.check_invariants()
        self._returns.check_invariants()
        self._repetitions.check_invariants()
        self._held_back.check_invariants()
        self._holdings.check_invariants(self.unacked)
        self._outgoing.check_invariants()
        assert self._is_closed == (self._is_sealed or self._is_held), "the field says what it stands for"
        assert self._is_closed or not self._waiting, "only a closed queue has anybody wait for its fate"

"""One channel, as a pure machine.

Inputs: items of `codec.FrameReader` (`receive`), answers of the broker (`answered`, `call_failed`) and what the
broker tells the channel (`deliver`, `confirm`, ...). Outputs: frames, appended to the connection's ``output``, and
effects (`channel_events`), appended to ``effects``; the shell takes both after each input, effects in order.

Cold methods. One at a time goes to the broker; until its answer, later items of the channel wait in ``waiting``
(the shell stops reading the socket when they grow). A commit waits likewise, for its confirms, and so does whatever is
too long for a turn of the loop (`Work`): a large commit, a settlement of thousands, a publish to thousands of queues.

States::

    OPENING --channel.open--> OPEN --channel.close--> CLOSING_BY_CLIENT --answer--> CLOSED
                                |  --error--> CLOSING_BY_SERVER --close-ok--> CLOSED

While CLOSING_BY_SERVER everything but ``close`` and ``close-ok`` is dropped; deliveries are dropped too, the broker
requeues them when its channel is closed.

Errors: a `ChannelError` closes the channel from within. A `ConnectionFailure` is raised to the shell, with
``blamed_index`` set to the method; the machine is of no use after that.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pamqp import base, commands

from node.amqp.channel_events import (
    ChannelEffect,
    CheckPublishes,
    Closed,
    ColdCall,
    Detach,
    DoWork,
    PublishToBroker,
)
from node.amqp.channel_states import TRANSITIONS, ChannelState
from node.amqp.cold_methods import OK_METHODS, consumer_spec, new_consumer_tag
from node.amqp.confirms import ConfirmNumbers
from node.amqp.deliveries import Deliveries, Interrupted, Refused
from node.amqp.frames import (
    BASIC_PUBLISH,
    ContentTooLarge,
    FrameItem,
    MethodReceived,
    Publishes,
    Settlements,
    settle_index,
    weight_bytes,
)
from node.amqp.grants import Consumer
from node.amqp.methods import AccessRequest, AccessRequestOk, pack_method
from node.amqp.ports import DeliverySource, Got, PublishRequest, QueueDeclared, Work
from node.amqp.transaction import CommitWork, Transaction
from node.amqp.unacked import group_by_source
from node.amqp.writers import pack_confirm, pack_return
from node.errors import AmqpError, ChannelError, ConnectionFailure
from node.queues.backing_queue import Delivery

#: Bytes of uncommitted publishes, as a multiple of the largest message: a transaction lives in memory.
TRANSACTION_MESSAGES_MAX = 2


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """What the connection negotiated and the server was configured with."""

    #: Largest frame sent, overhead included, in bytes.
    frame_max: int
    max_message_size_bytes: int
    #: The client understands ``basic.cancel`` from the server.
    cancel_notify: bool


class ChannelMachine:
    """See the module's essay."""

    def __init__(self, number: int, output: list[bytes], limits: ChannelLimits, chance: random.Random) -> None:
        self.number = number
        self.effects: deque[ChannelEffect] = deque()
        self.state = ChannelState.OPENING
        #: Items held back while a cold call or a commit is under way, and their weight.
        self.waiting: deque[FrameItem] = deque()
        self.waiting_bytes = 0
        #: The method being handled, for ``connection.close``.
        self.blamed_index = 0
        self.confirms = ConfirmNumbers()
        self.deliveries = Deliveries(number, limits.frame_max, output, self.effects)
        self.confirm_mode = False
        #: What waits for the next commit, on a transactional channel.
        self._transaction: Transaction | None = None
        self._output = output
        self._limits = limits
        self._chance = chance
        self._consumers: dict[str, Consumer] = {}
        self._last_queue = ""
        #: For consumers started from now on; 0 = no limit.
        self.prefetch_count = 0
        self._call: ColdCall | None = None
        self._committing = False
        self._is_working = False
        #: The server ends the connection: nothing is confirmed, and no commit answered, any more.
        self.is_over = False
        #: What waited is being handled, see `_resume`.
        self._is_resuming = False

    # --- listing ---

    @property
    def consumer_count(self) -> int:
        return len(self._consumers)

    @property
    def tx_mode(self) -> bool:
        """The channel is transactional."""
        return self._transaction is not None

    @property
    def has_uncommitted_acks(self) -> bool:
        """Settlements wait for ``tx.commit``."""
        return self._transaction is not None and bool(self._transaction.settlements)

    @property
    def is_busy(self) -> bool:
        """A cold call, a commit or long work is under way."""
        return self._call is not None or self._committing or self._is_working

    # --- from the client ---

    def receive(self, item: FrameItem) -> None:
        """Handle an item of this channel, or queue it behind the cold call. May raise `ConnectionFailure`."""
        if self.state in (ChannelState.CLOSING_BY_SERVER, ChannelState.CLOSED):
            self._receive_while_closing(item)
        elif self.is_busy:
            self.waiting.append(item)
            self.waiting_bytes += weight_bytes(item)
        else:
            self._handle(item)

    def _receive_while_closing(self, item: FrameItem) -> None:
        if not isinstance(item, MethodReceived) or self.state is ChannelState.CLOSED:
            return
        if isinstance(item.method, commands.Channel.CloseOk):
            self._transition("closed")
            self.effects.append(Closed())
        elif isinstance(item.method, commands.Channel.Close):
            self._send(commands.Channel.CloseOk)

    def _handle(self, item: FrameItem) -> None:
        try:
            if type(item) is Publishes:
                self.blamed_index = BASIC_PUBLISH
                self._publish(item)
            elif type(item) is Settlements:
                outcome = self.deliveries.settle(item.settlements, self._transaction)
                if outcome is not None:
                    self._settle_on(outcome)
            elif type(item) is MethodReceived:
                self._handle_method(item.method)
            elif type(item) is ContentTooLarge:
                self.blamed_index = BASIC_PUBLISH
                limit = self._limits.max_message_size_bytes
                raise ChannelError(406, f"message size {item.body_bytes} is larger than configured max size {limit}")
        except ChannelError as error:
            self.fail(error, self.blamed_index)

    def _handle_method(self, method: base.Frame) -> None:
        self.blamed_index = method.index
        if self.state is ChannelState.OPENING:
            if not isinstance(method, commands.Channel.Open):
                raise ConnectionFailure(504, "expected 'channel.open'")
            self._start_call(ColdCall(method))
            return
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise ConnectionFailure(503, f"unexpected method {method.name} from a client")
        handler(self, method)

    def _resume(self) -> None:
        """Handle what waited, up to the next cold call. A commit among it that is done at once gets here again: it is
        the loop around it that goes on, or the stack would end with the commits of a client that waits for none."""
        if self._is_resuming:
            return
        self._is_resuming = True
        try:
            while self.waiting and not self.is_busy and self.state is ChannelState.OPEN:
                item = self.waiting.popleft()
                self.waiting_bytes -= weight_bytes(item)
                self._handle(item)
        except ConnectionFailure:
            self._forget_waiting()  # the connection ends with this
            raise
        finally:
            self._is_resuming = False

    # --- long work ---

    def _begin_work(self, work: Work) -> None:
        self._is_working = True
        self.effects.append(DoWork(work))

    def work_begun(self) -> None:
        """An effect turned out to be long: its shell will say when it is done (`work_done`)."""
        self._is_working = True

    def work_done(self) -> None:
        """Go on, unless there is more behind it. May raise `ConnectionFailure` (a later item was bad)."""
        self._is_working = any(isinstance(effect, DoWork) for effect in self.effects)
        self._finish_commit()
        self._resume()

    # --- publishing ---

    def _publish(self, item: Publishes) -> None:
        if self._transaction is not None:
            self.effects.append(CheckPublishes(self._transaction.publish(item)))
            if self._transaction.size_bytes > TRANSACTION_MESSAGES_MAX * self._limits.max_message_size_bytes:
                raise ConnectionFailure(506, "the transaction holds too much, commit more often")
            return
        seqs: Sequence[int] = self.confirms.issue(len(item.messages)) if self.confirm_mode else [0] * len(item.messages)
        self.effects.append(PublishToBroker(list(map(PublishRequest, item.messages, item.mandatory, seqs))))

    def confirm(self, publish_seqs: Sequence[int]) -> None:
        """These publishes are safe."""
        self.confirms.confirm(publish_seqs)
        self._finish_commit()

    def reject(self, publish_seqs: Sequence[int]) -> None:
        """These publishes were refused."""
        self.confirms.reject(publish_seqs)
        self._finish_commit()

    def returned(self, request: PublishRequest, reply_code: int, reply_text: str) -> None:
        """A mandatory message found no queue. Comes before its confirm, and goes out before it."""
        if self.state is ChannelState.OPEN:
            message = request.message
            self._output.append(pack_return(self.number, reply_code, reply_text, message, self._limits.frame_max))

    def flush_confirms(self) -> None:
        """Send what the broker confirmed since the last flush, coalesced. Called once before each write."""
        is_there = self.state in (ChannelState.OPEN, ChannelState.CLOSING_BY_CLIENT)
        if self.is_over or not self.confirm_mode or not is_there:
            return
        for publish_seq, multiple, positive in self.confirms.flush():
            self._output.append(pack_confirm(self.number, publish_seq, multiple, positive))

    def _select_confirms(self, method: commands.Confirm.Select) -> None:
        if self.tx_mode:
            raise ChannelError(406, "cannot switch from tx to confirm mode")
        self.confirm_mode = True
        if not method.nowait:
            self._send(commands.Confirm.SelectOk)

    # --- transactions ---

    def _select_transactions(self, _method: commands.Tx.Select) -> None:
        if self.confirm_mode:
            raise ChannelError(406, "cannot switch from confirm to tx mode")
        self._transaction = self._transaction or Transaction()
        self._send(commands.Tx.SelectOk)

    def _commit(self, _method: commands.Tx.Commit) -> None:
        ended = self._end_transaction()
        for _, entries in ended.settlements:
            self.deliveries.settled(entries)
        self._committing = True
        if ended.samples:
            self.effects.append(CheckPublishes(list(ended.samples.values())))
        if ended.is_small:
            self._commit_at_once(ended)
        else:
            self._begin_work(CommitWork(ended, self.confirms.issue))
        self._finish_commit()
        self.deliveries.send()

    def _commit_at_once(self, ended: Transaction) -> None:
        if ended.publishes:
            seqs = self.confirms.issue(len(ended.publishes))
            self.effects.append(
                PublishToBroker(
                    [request._replace(publish_seq=seq) for request, seq in zip(ended.publishes, seqs, strict=True)]
                )
            )
        for settlement, entries in ended.settlements:
            self.deliveries.perform(settlement, group_by_source(entries))

    def _finish_commit(self) -> None:
        if not self._committing or self.confirms.open_count or self.is_over or self.state is not ChannelState.OPEN:
            return
        if self._is_working:
            return  # what is confirmed so far is not all
        self._committing = False
        _, refused = self.confirms.take_outcome()
        if refused:
            self.fail(ChannelError(406, "partial tx completion"), commands.Tx.Commit.index)
            return
        self._send(commands.Tx.CommitOk)
        self._resume()

    def _rollback(self, _method: commands.Tx.Rollback) -> None:
        # All in one: each time that something is put back its neighbours are sorted.
        self.deliveries.unacked.put_back(self._end_transaction().all_settled())
        self._send(commands.Tx.RollbackOk)

    def _end_transaction(self) -> Transaction:
        """What waited for this; the next one begins."""
        if self._transaction is None:
            raise ChannelError(406, "channel is not transactional")
        ended, self._transaction = self._transaction, Transaction()
        return ended

    # --- consuming ---

    def deliver(self, consumer_tag: str, source: DeliverySource, deliveries: Sequence[Delivery]) -> None:
        """Send to a consumer, or hold what the channel-wide limit does not allow yet."""
        if self.state is not ChannelState.OPEN:
            return
        consumer = self._consumers.get(consumer_tag)
        if consumer is None:
            self.deliveries.requeue(source, deliveries)
        elif consumer.early is not None:
            consumer.early.append((source, deliveries))
        else:
            self.deliveries.send((consumer, source, deliveries))

    def source_over(self, source: DeliverySource) -> None:
        """See `ChannelSink`."""
        if self.state is ChannelState.OPEN:
            self.deliveries.forget_source(source, self._starting())

    def _starting(self) -> Consumer | None:
        """The consumer of whom its client has not been told yet. Cold calls go one at a time, so there is no other."""
        spec = None if self._call is None else self._call.spec
        return None if spec is None else self._consumers.get(spec.consumer_tag)

    def _settle_on(self, outcome: Refused | Interrupted) -> None:
        if isinstance(outcome, Refused):
            self.blamed_index = settle_index(outcome.bits)
            raise ChannelError(406, f"unknown delivery tag {outcome.tag}")
        if outcome.rest:
            rest = Settlements(self.number, outcome.rest)
            self.waiting.appendleft(rest)
            self.waiting_bytes += weight_bytes(rest)
        self._begin_work(outcome.work)
        self.deliveries.send()

    def consumer_cancelled(self, consumer_tag: str) -> None:
        """The broker ended this consumer. Clients that do not know ``basic.cancel`` just hear no more."""
        if self.state is not ChannelState.OPEN or consumer_tag not in self._consumers:
            return
        self._forget_consumer(consumer_tag)
        if self._limits.cancel_notify:
            self._send(commands.Basic.Cancel, consumer_tag, True)

    def _forget_consumer(self, consumer_tag: str) -> None:
        """Remove a consumer; what was held for it goes back to its queue."""
        consumer = self._consumers.pop(consumer_tag, None)
        if consumer is not None:
            self.deliveries.take_back(consumer)

    def _consume(self, method: commands.Basic.Consume) -> None:
        if method.consumer_tag in self._consumers:
            raise ConnectionFailure(530, f"attempt to reuse consumer tag '{method.consumer_tag}'")
        if not method.consumer_tag:
            method.consumer_tag = new_consumer_tag(self._chance)
        spec = consumer_spec(method, self.prefetch_count, self.deliveries.limit)
        method.queue = self._queue_or_last(method.queue)
        self._consumers[spec.consumer_tag] = Consumer(spec)
        self._start_call(ColdCall(method, spec))

    def _set_prefetch(self, method: commands.Basic.Qos) -> None:
        if method.prefetch_size:
            raise ConnectionFailure(540, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.deliveries.limit = method.prefetch_count
        else:
            self.prefetch_count = method.prefetch_count
            self.deliveries.limit = 0
        self._send(commands.Basic.QosOk)
        self.deliveries.send()

    def _recover(self, method: commands.Basic.Recover | commands.Basic.RecoverAsync) -> None:
        if not method.requeue:
            raise ConnectionFailure(540, "requeue=false")
        work = self.deliveries.recover()
        if work is not None:
            self._begin_work(work)
        if isinstance(method, commands.Basic.Recover):
            self._send(commands.Basic.RecoverOk)
        self.deliveries.send()

    # --- cold calls ---

    def _start_call(self, call: ColdCall) -> None:
        assert self._call is None, "cold calls go one at a time"
        self._call = call
        self.effects.append(call)

    def _start_plain_call(self, method: base.Frame) -> None:
        self._start_call(ColdCall(method))

    def _start_queue_call(self, method: Any) -> None:
        if not method.queue and isinstance(method, commands.Queue.Bind | commands.Queue.Unbind):
            method.queue = self._queue_or_last("")
            method.routing_key = method.routing_key or method.queue
        method.queue = self._queue_or_last(method.queue)
        self._start_call(ColdCall(method))

    def _queue_or_last(self, queue: str) -> str:
        if queue:
            return queue
        if not self._last_queue:
            raise ChannelError(404, "no previously declared queue")
        return self._last_queue

    def _client_closes(self, method: commands.Channel.Close) -> None:
        self._transition("client closes")
        self._start_call(ColdCall(method))

    def answered(self, call: ColdCall, result: object) -> None:
        """The broker has done ``call``. May raise `ConnectionFailure` (a later item was bad)."""
        if self._call is not call:
            return
        self._call = None
        if self.state in (ChannelState.OPENING, ChannelState.OPEN, ChannelState.CLOSING_BY_CLIENT):
            self._answer(call, result)
            self._resume()

    def _answer(self, call: ColdCall, result: object) -> None:
        method: Any = call.method
        if isinstance(method, commands.Channel.Open):
            self._transition("opened")
            self._send(commands.Channel.OpenOk, b"")
        elif isinstance(method, commands.Channel.Close):
            self.flush_confirms()
            self._transition("closed")
            self._send(commands.Channel.CloseOk)
            self.effects.append(Closed())
            if any(
                type(each) is MethodReceived and isinstance(each.method, commands.Channel.Open) for each in self.waiting
            ):
                self._forget_waiting()  # whoever has not waited for the answer would wait for this one for ever
                raise ConnectionFailure(504, "second 'channel.open' seen")
        elif isinstance(method, commands.Basic.Get):
            self._answer_get(method, result)
        elif isinstance(method, commands.Basic.Consume):
            self._answer_consume(method)
        elif isinstance(method, commands.Basic.Cancel):
            self._answer_cancel(method)
        elif isinstance(method, commands.Queue.Declare):
            assert isinstance(result, QueueDeclared), "that is what a declaration answers"
            self._last_queue = result.name
            if not method.nowait:
                self._send(commands.Queue.DeclareOk, result.name, result.ready, result.consumers)
        elif not getattr(method, "nowait", False):
            self._send(OK_METHODS[type(method)], *([] if result is None else [result]))

    def _answer_get(self, method: commands.Basic.Get, result: object) -> None:
        if result is None:
            self._send(commands.Basic.GetEmpty, "")
            return
        assert isinstance(result, Got), "that is what a get answers"
        self.deliveries.send_got(result, method.no_ack)

    def _answer_cancel(self, method: Any) -> None:
        self._forget_consumer(method.consumer_tag)
        if not method.nowait:
            self._send(commands.Basic.CancelOk, method.consumer_tag)

    def _answer_consume(self, method: Any) -> None:
        if not method.nowait:
            self._send(commands.Basic.ConsumeOk, method.consumer_tag)
        consumer = self._consumers.get(method.consumer_tag)
        if consumer is None:
            return
        early, consumer.early = consumer.early or [], None
        for source, deliveries in early:
            self.deliver(consumer.tag, source, deliveries)

    def call_failed(self, call: ColdCall, error: AmqpError) -> None:
        """The broker refused ``call``. Raises ``error`` if it is a `ConnectionFailure`."""
        if self._call is not call:
            return
        self._call = None
        self.blamed_index = call.method.index
        if not isinstance(error, ChannelError):
            self._forget_waiting()  # the connection ends with this
            raise error
        self.fail(error, call.method.index)

    # --- the end ---

    def refuse(self, error: ChannelError, method_index: int) -> None:
        """The broker does not do what an effect asked for: the channel fails, and what stood behind that (the
        settlements of a commit) does not happen. But if it was about to end it ends."""
        ends = list(filter(_is_end, self.effects))
        self.effects.clear()
        self.effects.extend(ends)
        self.fail(error, method_index)

    def fail(self, error: ChannelError, method_index: int) -> None:
        """Close the channel with ``error``; ``method_index`` is the method to blame, 0 if none."""
        if self.state not in (ChannelState.OPENING, ChannelState.OPEN):
            return
        self.flush_confirms()
        self._transition("failed")
        self._drop_state()
        self._send(
            commands.Channel.Close, error.reply_code, error.reply_text, method_index >> 16, method_index & 0xFFFF
        )
        self.effects.append(Detach(error, method_index))

    def _forget_waiting(self) -> None:
        self.waiting.clear()
        self.waiting_bytes = 0

    def _drop_state(self) -> None:
        self._forget_waiting()
        self.deliveries.drop()
        self.confirms = ConfirmNumbers()
        self._consumers.clear()
        if self._transaction is not None:
            self._transaction = Transaction()
        self._call = None
        self._committing = self._is_working = False

    def _change_flow(self, method: commands.Channel.Flow) -> None:
        if not method.active:
            raise ConnectionFailure(540, "active=false")
        self._send(commands.Channel.FlowOk, True)

    def _refuse_second_open(self, _method: commands.Channel.Open) -> None:
        raise ConnectionFailure(504, "second 'channel.open' seen")

    def _grant_access(self, _method: AccessRequest) -> None:
        self._send(AccessRequestOk, 1)

    def _ignore(self, _method: base.Frame) -> None:
        """Answers to what we never asked do no harm."""

    def _send(self, method_class: type[base.Frame], *arguments: Any) -> None:
        self._output.append(pack_method(self.number, method_class, *arguments))

    def _transition(self, happening: str) -> None:
        self.state = TRANSITIONS[self.state, happening]

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        self.deliveries.check_invariants(self._consumers)
        early = [consumer for consumer in self._consumers.values() if consumer.early is not None]
        if (starting := self._starting()) is not None:
            assert early == [starting], "only who is being started waits for that"
        self.confirms.check_invariants()
        assert not self.waiting or self.is_busy, "items wait only behind a cold call, a commit or work"
        assert self.waiting_bytes == sum(map(weight_bytes, self.waiting)), "the weight is that of what waits"
        assert not (self.confirm_mode and self.tx_mode), "the modes exclude each other"


def _is_end(effect: ChannelEffect) -> bool:
    """It closes the channel, in the broker or for good."""
    if isinstance(effect, ColdCall):
        return isinstance(effect.method, commands.Channel.Close)
    return isinstance(effect, Detach | Closed)


_HANDLERS: dict[type[base.Frame], Callable[[ChannelMachine, Any], None]] = {
    AccessRequest: ChannelMachine._grant_access,
    commands.Channel.Open: ChannelMachine._refuse_second_open,
    commands.Channel.Close: ChannelMachine._client_closes,
    commands.Channel.CloseOk: ChannelMachine._ignore,
    commands.Channel.Flow: ChannelMachine._change_flow,
    commands.Channel.FlowOk: ChannelMachine._ignore,
    commands.Exchange.Declare: ChannelMachine._start_plain_call,
    commands.Exchange.Delete: ChannelMachine._start_plain_call,
    commands.Exchange.Bind: ChannelMachine._start_plain_call,
    commands.Exchange.Unbind: ChannelMachine._start_plain_call,
    commands.Queue.Declare: ChannelMachine._start_plain_call,
    commands.Queue.Bind: ChannelMachine._start_queue_call,
    commands.Queue.Unbind: ChannelMachine._start_queue_call,
    commands.Queue.Purge: ChannelMachine._start_queue_call,
    commands.Queue.Delete: ChannelMachine._start_queue_call,
    commands.Basic.Qos: ChannelMachine._set_prefetch,
    commands.Basic.Consume: ChannelMachine._consume,
    commands.Basic.Cancel: ChannelMachine._start_plain_call,
    commands.Basic.CancelOk: ChannelMachine._ignore,
    commands.Basic.Get: ChannelMachine._start_queue_call,
    commands.Basic.Recover: ChannelMachine._recover,
    commands.Basic.RecoverAsync: ChannelMachine._recover,
    commands.Confirm.Select: ChannelMachine._select_confirms,
    commands.Tx.Select: ChannelMachine._select_transactions,
    commands.Tx.Commit: ChannelMachine._commit,
    commands.Tx.Rollback: ChannelMachine._rollback,
}

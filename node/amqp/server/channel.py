"""A channel's shell: performs the machine's effects on the broker, and is the broker's `ChannelSink`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from pamqp import commands

from node.amqp.channel import ChannelMachine
from node.amqp.channel_events import (
    ChannelEffect,
    CheckPublishes,
    Closed,
    ColdCall,
    Delivered,
    Detach,
    DoWork,
    PublishToBroker,
    Settle,
    Settlement,
)
from node.amqp.channel_states import ChannelState
from node.amqp.frames import BASIC_PUBLISH, FrameItem
from node.amqp.methods import METHOD_CLASSES
from node.amqp.ports import BrokerChannel, DeliverySource, PublishRequest, Work
from node.amqp.server.calls import call_broker
from node.amqp.server.listing import ChannelListing
from node.amqp.server.turns import InputTurns
from node.errors import AmqpError, ChannelError, ConnectionFailure
from node.queues.backing_queue import Delivery
from node.throttled_log import ThrottledLog

log = logging.getLogger(__name__)

#: Begun only while the turn has time.
_LONG_EFFECTS = (PublishToBroker, Settle)
#: What a client is told to have done wrong if its broker refuses it.
_PUBLISHING = (PublishToBroker, CheckPublishes, DoWork)


class ChannelOwner(Protocol):
    """The connection, as far as its channels know it."""

    @property
    def name(self) -> str:
        """For logs."""

    @property
    def turns(self) -> InputTurns: ...

    @property
    def channel_errors(self) -> ThrottledLog:
        """Where it is logged why channels were closed by the server."""

    def open_broker_channel(self, number: int, shell: ChannelShell) -> BrokerChannel: ...

    def channel_changed(self, channel: ChannelShell) -> None:
        """The channel may have confirms or frames to send, or more or less waiting."""

    def has_undone(self, channel: ChannelShell) -> None:
        """The channel has effects for which there was no time. It is told to go on in a later turn."""

    def work_begun(self, channel: ChannelShell) -> None:
        """The channel has begun something long. A connection that ends waits for it."""

    def work_done(self, channel: ChannelShell) -> None:
        """And is through with it, or has given it up."""

    def detach(self, number: int, ending: Coroutine[Any, Any, None]) -> None:
        """The server closes this channel; ``ending`` does so in the broker."""

    def forget_channel(self, number: int) -> None:
        """The number is free."""

    def spawn_call(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    def fail(self, error: ConnectionFailure, method_index: int) -> None:
        """Close the connection with ``error``."""

    def internal_error(self) -> None:
        """A mistake of ours, being handled as an exception: log it and close the connection."""


class ChannelShell:
    """Implements `node.amqp.ports.ChannelSink`.

    Long work (`Work`) has its steps in the turns of the connections, like input: the others of this connection and of
    all others go on. What the channel does next stands behind it. Once begun it is carried out to its end, whatever
    becomes of the channel or its client, so that nothing is left half done that was to be done as one."""

    __slots__ = ("_broker", "_draining", "_gone", "_owner", "_predecessor", "_task", "_unreported", "_work", "machine")

    def __init__(self, owner: ChannelOwner, machine: ChannelMachine, predecessor: asyncio.Task[None] | None) -> None:
        self.machine = machine
        self._owner = owner
        #: The end of the last channel with this number, to be waited for: its messages go back first.
        self._predecessor = predecessor
        self._broker: BrokerChannel | None = None
        #: The cold call that is running.
        self._task: asyncio.Task[None] | None = None
        #: (source, consumer tag) -> deliveries not yet reported as written.
        self._unreported: dict[tuple[DeliverySource, str], int] = {}
        self._draining = False
        self._gone = False
        #: Long work under way: later effects wait.
        self._work: Work | None = None

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The cold call under way."""
        return self._task

    def receive(self, item: FrameItem) -> None:
        """An item from the client."""
        try:
            self.machine.receive(item)
        except ConnectionFailure as error:
            self._drain()  # what came before the bad item counts
            self._owner.fail(error, self.machine.blamed_index)
            return
        self._drain()

    def go_on(self) -> None:
        """There is time again for what was left undone."""
        self._drain()

    def leave(self) -> None:
        """The connection is over: nothing reaches broker or client through this channel any more."""
        self._gone = True
        self.machine.effects.clear()
        self._unreported.clear()

    # --- effects ---

    def _drain(self) -> None:
        """Perform effects in order, as far as there is time. A broker call may cause more; they join the queue, not the
        stack."""
        if self._draining:
            return
        self._draining = True
        effects = self.machine.effects
        turns = self._owner.turns
        try:
            while effects and not self._gone and self._work is None:
                if isinstance(effects[0], _LONG_EFFECTS) and not turns.may_go_on():
                    self._owner.has_undone(self)
                    break
                effect = effects.popleft()
                try:
                    self._perform(effect)
                except ChannelError as error:
                    self.machine.refuse(error, BASIC_PUBLISH if isinstance(effect, _PUBLISHING) else 0)
                except ConnectionFailure as error:
                    self._owner.fail(error, BASIC_PUBLISH if isinstance(effect, _PUBLISHING) else 0)
                except Exception:
                    self._owner.internal_error()
        finally:
            self._draining = False
        if self._work is not None and self.machine.state is ChannelState.CLOSING_BY_SERVER:
            # The end of the channel stands behind the work, and so does the word of it: whoever has heard that may use
            # the number for another one.
            self._owner.has_undone(self)
        self._owner.channel_changed(self)

    # --- long work ---

    def _begin(self, work: Work) -> None:
        self._work = work
        self.machine.work_begun()
        self._owner.work_begun(self)
        self._owner.turns.wait(self._work_on)

    def _work_on(self) -> None:
        """There is time for a step, and as many more as fit into this turn."""
        work = self._work
        assert work is not None, "it is called as often as it asks"
        try:
            while not work.step(self._require_broker()):
                if not self._owner.turns.may_go_on():
                    self._owner.turns.wait(self._work_on)
                    return
            self._work = None
            if not self._gone:
                self.machine.work_done()
        except ChannelError as error:
            self._work = None
            self.machine.refuse(error, BASIC_PUBLISH)
        except ConnectionFailure as error:  # of the work, or of an item that waited behind it
            self._work = None
            self._owner.fail(error, self.machine.blamed_index)
        except Exception:
            self._work = None
            self._owner.internal_error()
        self._drain()
        if self._work is None:
            self._owner.work_done(self)

    def _perform(self, effect: ChannelEffect) -> None:
        if isinstance(effect, PublishToBroker):
            rest = self._require_broker().publish(effect.requests)
            if rest is not None:
                self._begin(rest)
        elif isinstance(effect, CheckPublishes):
            self._require_broker().check_publishes(effect.requests)
        elif isinstance(effect, DoWork):
            self._begin(effect.work)
        elif isinstance(effect, Settle):
            broker = self._require_broker()
            if effect.settlement is Settlement.ACK:
                broker.ack(effect.source, effect.seq_ids)
            elif effect.settlement is Settlement.REQUEUE:
                broker.requeue(effect.source, effect.seq_ids)
            else:
                broker.discard(effect.source, effect.seq_ids)
        elif isinstance(effect, Delivered):
            key = (effect.source, effect.consumer_tag)
            self._unreported[key] = self._unreported.get(key, 0) + effect.count
        elif isinstance(effect, ColdCall):
            self._task = self._owner.spawn_call(self._run(effect))
        elif isinstance(effect, Detach):
            kind = f"{self._owner.name}: {effect.error}"
            text = f"{self._owner.name}: channel {self.machine.number} closed by an error: {_reason(effect)}"
            self._owner.channel_errors.write(kind, text)
            self._unreported.clear()
            self._owner.detach(self.machine.number, self._detach())
        elif isinstance(effect, Closed):
            self._owner.forget_channel(self.machine.number)

    def _require_broker(self) -> BrokerChannel:
        assert self._broker is not None, "an open channel has its counterpart in the broker"
        return self._broker

    async def _run(self, call: ColdCall) -> None:
        """One cold call, and what waited for it."""
        try:
            try:
                result = await self._call_broker(call)
            except AmqpError as error:
                if not self._gone:
                    self.machine.call_failed(call, error)
            else:
                if not self._gone:
                    self.machine.answered(call, result)
        except ConnectionFailure as error:
            self._drain()
            self._owner.fail(error, self.machine.blamed_index)
        except Exception:
            log.exception("%s: %s failed", self._owner.name, call.method.name)
            self._owner.fail(ConnectionFailure(541, "internal error"), call.method.index)
        finally:
            if self._task is asyncio.current_task():
                self._task = None
        self._drain()

    async def _call_broker(self, call: ColdCall) -> object:
        method = call.method
        if isinstance(method, commands.Channel.Open):
            if self._predecessor is not None:
                await asyncio.wait([self._predecessor])
                self._predecessor = None
            if not self._gone:
                self._broker = self._owner.open_broker_channel(self.machine.number, self)
            return None
        broker = self._require_broker()
        if isinstance(method, commands.Channel.Close):
            self._unreported.clear()
            await broker.close()
            return None
        if isinstance(method, commands.Basic.Consume):
            assert call.spec is not None, "the machine made the consumer's specification"
            assert method.queue is not None, "the machine resolved the queue"
            await broker.consume(method.queue, call.spec)
            return None
        return await call_broker(broker, method)

    async def _detach(self) -> None:
        """End of a channel that the server closed."""
        task = self._task
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait([task])
        if self._broker is not None:
            await self._broker.close()

    # --- written ---

    def report_written(self) -> None:
        """The transport has room: the queues may send as much again."""
        if not self._unreported or self._broker is None or self._gone:
            return
        unreported, self._unreported = self._unreported, {}
        for (source, consumer_tag), count in unreported.items():
            self._broker.written(source, consumer_tag, count)

    # --- sink ---

    def _tell(self, tell: Callable[..., None], *arguments: object) -> None:
        """Pass news to the machine. Whatever goes wrong ends this connection, never the broker that brought them."""
        if self._gone:
            return
        try:
            tell(*arguments)
        except ConnectionFailure as error:  # a commit ended, and an item behind it was bad
            self._owner.fail(error, self.machine.blamed_index)
        except Exception:
            self._owner.internal_error()
        self._drain()

    def deliver(self, consumer_tag: str, source: DeliverySource, deliveries: Sequence[Delivery]) -> None:
        self._tell(self.machine.deliver, consumer_tag, source, deliveries)

    def confirm(self, publish_seqs: Sequence[int]) -> None:
        self._tell(self.machine.confirm, publish_seqs)

    def reject(self, publish_seqs: Sequence[int]) -> None:
        self._tell(self.machine.reject, publish_seqs)

    def returned(self, request: PublishRequest, reply_code: int, reply_text: str) -> None:
        self._tell(self.machine.returned, request, reply_code, reply_text)

    def source_over(self, source: DeliverySource) -> None:
        self._tell(self.machine.source_over, source)

    def consumer_cancelled(self, consumer_tag: str) -> None:
        self._tell(self.machine.consumer_cancelled, consumer_tag)

    def listing(self) -> ChannelListing:
        machine = self.machine
        state = machine.state.value
        if machine.state is ChannelState.OPEN:
            state = "running" if self._broker is None else self._broker.flow_state
        return ChannelListing(
            number=machine.number,
            channel_id=0 if self._broker is None else self._broker.channel_id,
            state=state,
            consumer_count=machine.consumer_count,
            messages_unacknowledged=len(machine.deliveries.unacked),
            messages_held=machine.deliveries.held_count,
            messages_unconfirmed=machine.confirms.open_count,
            acks_uncommitted=machine.has_uncommitted_acks,
            prefetch_count=machine.prefetch_count,
            global_prefetch_count=machine.deliveries.limit,
            confirm=machine.confirm_mode,
            transactional=machine.tx_mode,
        )


def _reason(effect: Detach) -> str:
    """Reply text and code, and the method to blame, on one line: the text may have names that a client chose."""
    text = effect.error.reply_text
    shown = text if text.isprintable() else repr(text)
    method = METHOD_CLASSES.get(effect.method_index)
    cause = "" if method is None else f", caused by {method.name.lower()}"
    return f"{shown} ({effect.error.reply_code}{cause})"

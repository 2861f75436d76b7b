"""`ChannelCalls`: the questions that channels of this node ask queues, until each is answered or refused.

The states of a call are drawn in `cluster.sessions.routes`. A caller asks, then proceeds: if the master is this node
the answer is there at once, otherwise the caller waits for `CallGoesOn` and proceeds again, as often as it takes.

Why the caller proceeds, and not the call by itself: a caller hears of things a turn of the loop after they happened,
and decides by what is true then. A queue that was down by one committed record and up again by the next refuses nobody.
An answer to `consume` or `get` whose session was replaced meanwhile is not heard, the question is asked again: what the
answer gave is gone. But not a message that nobody acknowledges, which its queue has forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.sessions.consumers import ChannelConsumers
from cluster.sessions.entry_node import EntryNode
from cluster.sessions.messages import SessionCall, SessionReply
from cluster.sessions.ports import NO_PROCESS, CallGoesOn
from cluster.sessions.questions import BOUND_TO_SESSION, Answer, Question, carry_out, must_wait
from cluster.sessions.routes import Call, CallState, ConsumerKey, Route, RouteState
from node.errors import ChannelError
from node.ids import ChannelKey, QueueId
from node.message import decode_envelope
from node.queues.backing_queue import Delivery
from node.topology.records import QueueRecord

#: How long a request waits for a queue that is changing its master before it is refused (the reference's
#: ``channel_operation_timeout``).
OPERATION_TIMEOUT_S = 15.0


class ChannelCalls:
    """Calls lie on the routes of their queues (`Route.calls`)."""

    def __init__(
        self,
        here: EntryNode,
        consumers: ChannelConsumers,
        find_route: Callable[[ChannelKey | None, QueueId], Route | None],
        queue_record: Callable[[QueueId], QueueRecord | None],
    ) -> None:
        self._here = here
        self._consumers = consumers
        self._find_route = find_route
        self._queue_record = queue_record

    # --- what callers do ---

    def ask(self, channel: ChannelKey | None, queue_id: QueueId, question: Question, now_s: float) -> Call:
        """A new call: `proceed` with it. It is over by the answer, by a refusal, by `time_is_up` or `abandon`."""
        call = Call(next(self._here.call_ids), channel, queue_id, question, now_s + OPERATION_TIMEOUT_S)
        if question.consumer is not None:
            self._consumers.starting(_key(call))
        return call

    def proceed(self, call: Call) -> Answer | None:
        """Carry on with a call that is READY or ANSWERED, as far as it goes.

        Returns the answer; or ``None``: the caller waits until `CallGoesOn`, except if the call is READY still. Then a
        queue on this node failed under it, and the caller proceeds in the next turn of the loop: by then the role of
        this node may be gone, and nothing would change before.

        Raises `ChannelError`: refused, the call is over.
        """
        try:
            answer = self._proceed(call)
        except ChannelError:
            self.abandon(call)
            raise
        if answer is not None:
            self._end(call)
        return answer

    def time_is_up(self, call: Call) -> ChannelError:
        """The deadline has passed, the call is over: what to tell the client."""
        was_asked = call.state in (CallState.ASKED, CallState.HELD, CallState.ANSWERED)
        self.abandon(call)
        if was_asked or call.route is None:
            return ChannelError(404, f"{self._describe(call.queue_id)} did not answer in time")
        return ChannelError(404, f"home node '{call.route.master}' of {self._describe(call.queue_id)} is inaccessible")

    def abandon(self, call: Call) -> None:
        """Nobody waits for the answer any more. A call that is over is left as it is."""
        if call.state is CallState.OVER:
            return
        if call.question.consumer is not None:
            self._consumers.given_up(_key(call))
        self._end(call)

    # --- what happens to calls ---

    def answered(self, route: Route, reply: SessionReply) -> None:
        """The master of an open session has answered."""
        call = route.calls.get(reply.call_id)
        if call is not None and call.state is CallState.ASKED:
            call.state = CallState.ANSWERED
            call.answer = _as_answer(reply)
            self._here.emit(CallGoesOn(call.call_id))

    def route_opened(self, route: Route) -> None:
        """There is a session to ask in."""
        self._go_on(route, CallState.WAITING)

    def session_over(self, route: Route) -> None:
        """Who was asked will not answer."""
        self._go_on(route, CallState.ASKED)
        self._go_on(route, CallState.HELD)

    def route_closed(self, route: Route) -> None:
        """The queue is deleted: whoever waits finds it gone."""
        self._go_on(route, CallState.ASKED)
        self._go_on(route, CallState.HELD)
        self._go_on(route, CallState.WAITING)
        for call in route.calls.values():
            call.route = None

    def _go_on(self, route: Route, state: CallState) -> None:
        for call in list(route.calls.values()):
            if call.state is state:
                call.state = CallState.READY
                self._here.emit(CallGoesOn(call.call_id))

    def _unsealed(self, call: Call) -> None:
        """The queue on this node is not deleted."""
        if call.state is CallState.HELD:
            call.state = CallState.READY
            self._here.emit(CallGoesOn(call.call_id))

    # --- one step of a call ---

    def _proceed(self, call: Call) -> Answer | None:
        assert call.state in (CallState.READY, CallState.ANSWERED), "its caller was told to wait, or that it is over"
        if call.answer is not None:
            answer, call.answer, call.state = call.answer, None, CallState.READY
            if self._still_means_something(call, answer):
                return self._accepted(call, answer)
        route = self._open_route(call)
        if route is None:
            return None
        if call.channel is not None and call.channel.channel_id not in self._here.sinks:
            # It closed while this waited: whatever it were given now, nobody would ever take it back.
            raise ChannelError(404, f"{self._describe(call.queue_id)}: the channel was closed meanwhile")
        call.session = route.session
        if route.master != self._here.name:
            self._ask_master(route, call)
            return None
        answer_here = self._ask_here(route, call)
        return None if answer_here is None else self._accepted(call, answer_here)

    def _still_means_something(self, call: Call, answer: Answer) -> bool:
        """What `consume` and `get` gave is gone with a session that was replaced before the caller came to hear."""
        if call.question.verb not in BOUND_TO_SESSION or (call.question.no_ack and answer.delivery is not None):
            return True
        return call.route is not None and call.route.session == call.session

    def _open_route(self, call: Call) -> Route | None:
        """The route, if it is open; ``None``: the call waits until it is."""
        route = self._find_route(call.channel, call.queue_id)
        if route is None:
            raise ChannelError(404, "the queue has been deleted")
        assert call.route in (None, route), "a queue has one route until it is deleted"
        call.route = route
        route.calls.pop(call.call_id, None)
        route.calls[call.call_id] = call
        if route.state is RouteState.OPEN:
            return route
        if route.is_down:
            text = f"home node '{route.master}' of {self._describe(call.queue_id)} is down or inaccessible"
            raise ChannelError(404, text)
        call.state = CallState.WAITING
        return None

    def _ask_here(self, route: Route, call: Call) -> Answer | None:
        """The answer of the queue process on this node, ``None`` if it failed, or has to be waited for."""
        channel = call.channel or ChannelKey(self._here.name, 0)
        try:
            process = self._here.local.process(route.queue_id)
            assert process is not None, NO_PROCESS
            if must_wait(process, call.question.verb):
                call.state = CallState.HELD
                process.when_unsealed(lambda: self._unsealed(call))
                return None
            answer = carry_out(self._here.local, route.queue_id, process, channel, call.question)
        except ChannelError:
            raise
        except Exception as error:
            self._here.local.out_of_service(route.queue_id, error)
            return None
        self._here.local.touch(route.queue_id)
        return answer

    def _ask_master(self, route: Route, call: Call) -> None:
        channel_id = 0 if call.channel is None else call.channel.channel_id
        route.local_channels.add(channel_id)
        call.state = CallState.ASKED
        asked = call.question
        self._here.outgoing.say(
            route,
            SessionCall(
                route.queue_id,
                route.session,
                call.call_id,
                asked.verb,
                channel_id,
                asked.consumer,
                asked.consumer_tag,
                asked.no_ack,
                asked.if_unused,
                asked.if_empty,
            ),
        )

    def _accepted(self, call: Call, answer: Answer) -> Answer:
        if answer.reply_code:
            raise ChannelError(answer.reply_code, answer.reply_text)
        if call.question.consumer is not None:
            assert call.route is not None, "who was asked had a route"
            if _key(call).channel.channel_id in self._here.sinks:
                call.route.consumers[_key(call)] = call.question.consumer
                call.route.has_consumed = True
        return answer

    def _end(self, call: Call) -> None:
        call.state = CallState.OVER
        call.answer = None
        if call.route is not None:
            call.route.calls.pop(call.call_id, None)

    def _describe(self, queue_id: QueueId) -> str:
        """As the reference writes it: ``durable queue 'q' in vhost '/'``."""
        queue = self._queue_record(queue_id)
        if queue is None:
            return "a deleted queue"
        durable = "durable " if queue.durable else ""
        return f"{durable}queue '{queue.name}' in vhost '{queue.vhost}'"


def _key(call: Call) -> ConsumerKey:
    assert call.channel is not None, "a channel asks to consume"
    assert call.question.consumer is not None, "what is asked is a consumer"
    return ConsumerKey(call.channel, call.question.consumer.consumer_tag)


def _as_answer(reply: SessionReply) -> Answer:
    delivery = None
    if reply.envelope:
        message, _ = decode_envelope(reply.envelope)
        delivery = Delivery(reply.seq_id, message, reply.redelivered)
    return Answer(reply.number, reply.consumers, delivery, reply.epoch, reply.reply_code, reply.reply_text)

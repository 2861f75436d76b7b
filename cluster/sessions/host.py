"""`SessionHost`: the master's end of the sessions of other nodes (see `cluster.sessions.messages`).

The channels of another node look to a queue process like any other: their `ChannelKey` names that node. The host turns
messages into calls and effects into messages, and it releases a node's channels (unacked messages go back to their
places) when its session ends, for whatever reason.

A node that is lost may have sessions with every queue here. All of them end at once: nothing of theirs is heard or said
any more. What that means to the queues each is told in a slice of some turn, but before the node begins another session
with it, whose channels have the same names.

A message that is asked for goes when the link has room for it, as those of consumers do (`QueueProcess`).

A node may come before the queue is open here, and is sent away; or its session ends because the queue is closed, and
opened again, or because the node, which lives and is linked, was declared down. It will come again, but not before it
has heard that, which a slow line can make late. So whoever had consumers is remembered: they are still on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cluster.sessions.messages import (
    SessionCall,
    SessionChannelClosed,
    SessionConfirm,
    SessionConsumerCancelled,
    SessionCredit,
    SessionDeliver,
    SessionGrant,
    SessionMessage,
    SessionOpen,
    SessionOpened,
    SessionPublish,
    SessionReply,
    SessionSettle,
)
from cluster.sessions.ports import LocalQueues, MasterLinks
from cluster.sessions.questions import Answer, carry_out, must_wait, settle
from node.errors import ChannelError
from node.ids import ChannelKey, Epoch, NodeName, QueueId
from node.message import iter_envelopes, pack_envelopes
from node.pieces import InTurns
from node.queues.events import CancelConsumer, ConfirmPublished, Deliver, GrantCredit, QueueEffect, RejectPublished
from node.queues.queue_process import QueueProcess

#: Releasing the sessions of a lost node has so much of a turn of the loop.
TURN_S = 0.002

_FOR_CHANNELS = (Deliver, ConfirmPublished, RejectPublished, CancelConsumer, GrantCredit)


class MasterSession:
    """One entry node's use of one queue."""

    __slots__ = (
        "channels",
        "epoch",
        "has_consumed",
        "has_sealed",
        "is_attaching",
        "more_credit_after",
        "number",
        "publishers",
        "to_attach",
    )

    def __init__(self, opening: SessionOpen) -> None:
        self.number = opening.session
        self.epoch = opening.epoch
        self.more_credit_after = opening.more_credit_after
        #: Consumers of an earlier session may be on their way. They come before everything else.
        self.is_attaching = opening.has_consumed
        #: It has, or had, consumers.
        self.has_consumed = opening.has_consumed
        #: Those of its channels that publish: the queue owes them credit.
        self.publishers: set[int] = set()
        #: Channel ids that this session has named: what to release at its end.
        self.channels: set[int] = set()
        #: Consumers that wait for the fate of a queue that is sealed: call id -> channel id and consumer tag.
        self.to_attach: dict[int, tuple[int, str]] = {}
        #: It has sealed the queue for a deletion, and not said what came of that.
        self.has_sealed = False

    def cancel_waiting(self, channel_id: int, consumer_tag: str) -> None:
        """This consumer is not to be attached any more. Another of the same tag may follow, and wait as well."""
        for call_id in [call_id for call_id, each in self.to_attach.items() if each == (channel_id, consumer_tag)]:
            del self.to_attach[call_id]

    def channel_closed(self, channel_id: int) -> None:
        """Its channel is released by whoever says so."""
        self.channels.discard(channel_id)
        self.publishers.discard(channel_id)
        self.to_attach = {call_id: each for call_id, each in self.to_attach.items() if each[0] != channel_id}


class SessionHost:
    """All sessions that other nodes hold with queues mastered here."""

    def __init__(
        self,
        local: LocalQueues,
        links: MasterLinks,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        per_turn: int,
    ) -> None:
        """The last three: see `node.pieces.InTurns`."""
        self._local = local
        self._links = links
        self._send = links.send
        self._sessions: dict[NodeName, dict[QueueId, MasterSession]] = {}
        #: Sessions of nodes that were lost, whose queues have yet to be told.
        self._ended: dict[NodeName, dict[QueueId, MasterSession]] = {}
        #: Who had consumers of queues that were not open here when it came, or were closed, and has not come again; and
        #: the epoch in which it came.
        self._sent_away: dict[NodeName, dict[QueueId, Epoch]] = {}
        self._turns = InTurns(self._release_next, TURN_S, call_soon, clock, per_turn)

    def _session(self, node: NodeName, queue_id: QueueId) -> MasterSession | None:
        sessions = self._sessions.get(node)
        return None if sessions is None else sessions.get(queue_id)

    def is_attaching(self, queue_id: QueueId) -> bool:
        """Some node has yet to attach again what consumers it has of this queue."""
        if any(queue_id in queues for queues in self._sent_away.values()):
            return True
        found = (sessions.get(queue_id) for sessions in self._sessions.values())
        return any(session.is_attaching for session in found if session is not None)

    # --- messages in ---

    def receive(self, node: NodeName, message: SessionMessage) -> None:
        """One message of an entry node. A straggler of an earlier session is ignored."""
        try:
            self._receive(node, message)
        except Exception as error:
            # Of one queue: the link goes on, and with it all others.
            self._local.out_of_service(message.queue_id, error)

    def _receive(self, node: NodeName, message: SessionMessage) -> None:
        queue_id = message.queue_id
        if isinstance(message, SessionOpen):
            self._open(node, message)
            return
        process = self._local.process(queue_id)
        session = self._session(node, queue_id)
        if session is None or session.number != message.session or process is None:
            return
        if not (isinstance(message, SessionCall) and message.verb == "consume"):
            session.is_attaching = False
        if isinstance(message, SessionPublish):
            session.channels.add(message.channel_id)
            channel = ChannelKey(node, message.channel_id)
            if message.channel_id not in session.publishers:
                session.publishers.add(message.channel_id)
                process.flow.begin(channel, session.more_credit_after)
            messages = list(iter_envelopes(message.envelopes))
            process.publish(channel, messages, message.publish_seqs, is_resent=message.is_resent)
        elif isinstance(message, SessionSettle):
            channel = ChannelKey(node, message.channel_id)
            settle(process, channel, message.outcome, message.seq_ids, message.more_follow)
        elif isinstance(message, SessionGrant):
            process.grant(ChannelKey(node, message.channel_id), message.consumer_tag, message.written)
        elif isinstance(message, SessionChannelClosed):
            session.channel_closed(message.channel_id)
            process.channel_down(ChannelKey(node, message.channel_id))
        elif isinstance(message, SessionCall):
            session.channels.add(message.channel_id)
            session.has_consumed |= message.verb == "consume"
            self._call(node, message, session, process)
        self._local.touch(queue_id)

    def _call(self, node: NodeName, call: SessionCall, session: MasterSession, process: QueueProcess) -> None:
        if must_wait(process, call.verb):
            if call.consumer is not None:
                session.to_attach[call.call_id] = call.channel_id, call.consumer.consumer_tag
            process.when_unsealed(lambda: self._call_again(node, call))
        elif call.verb == "get" and process.ready and self._links.is_full_now(node):
            key = (call.queue_id, call.session, call.call_id)
            self._links.when_room(node, key, lambda: self._call_again(node, call))
        else:
            if call.verb == "cancel":
                session.cancel_waiting(call.channel_id, call.consumer_tag)
            reply = self._answer(node, call, process)
            if reply.envelope:
                self._links.deliver(node, reply, len(reply.envelope))
            else:
                self._send(node, reply)

    def _call_again(self, node: NodeName, call: SessionCall) -> None:
        """What it has waited for is there; if the session and the channel are, too, it is answered. A consumer that was
        cancelled meanwhile is none."""
        session = self._session(node, call.queue_id)
        if session is None or session.number != call.session or call.channel_id not in session.channels:
            return
        if call.consumer is None or session.to_attach.pop(call.call_id, None) is not None:
            self.receive(node, call)
        else:
            self._send(node, SessionReply(call.queue_id, call.session, call.call_id))

    def _open(self, node: NodeName, message: SessionOpen) -> None:
        queue_id = message.queue_id
        for sessions in (self._ended, self._sessions):
            self._release(node, queue_id, sessions.get(node, {}).pop(queue_id, None))
        process = self._local.process(queue_id)  # not before: it may have failed at what it takes back
        refused = ""
        self._sent_away.get(node, {}).pop(queue_id, None)
        if process is None:
            refused = "this node does not master the queue"
            if message.has_consumed:
                self._sent_away.setdefault(node, {})[queue_id] = message.epoch
        else:
            self._sessions.setdefault(node, {})[queue_id] = MasterSession(message)
            if message.has_consumed:
                process.was_consumed()
                self._local.touch(queue_id)
        self._send(node, SessionOpened(queue_id, message.session, refused))

    def _answer(self, node: NodeName, call: SessionCall, process: QueueProcess) -> SessionReply:
        try:
            answer = carry_out(self._local, call.queue_id, process, ChannelKey(node, call.channel_id), call)
        except ChannelError as error:
            # The text without its "NAME - " prefix: the entry node's `ChannelError` puts it on again.
            text = error.reply_text.partition(" - ")[2]
            return SessionReply(call.queue_id, call.session, call.call_id, reply_code=error.reply_code, reply_text=text)
        if call.verb in ("delete_if", "unseal"):
            self._sessions[node][call.queue_id].has_sealed = answer.epoch > 0
        return _as_reply(call, answer)

    # --- effects out ---

    def remote_effects(self, queue_id: QueueId, effects: Sequence[QueueEffect]) -> None:
        """Effects of a queue process here for channels of other nodes."""
        for effect in effects:
            if not isinstance(effect, _FOR_CHANNELS):
                continue
            node, channel_id = effect.channel
            session = self._session(node, queue_id)
            if session is None:
                continue
            message = _as_message(queue_id, session.number, channel_id, effect)
            if isinstance(message, SessionDeliver):
                self._links.deliver(node, message, len(message.envelopes))
            else:
                self._send(node, message)

    # --- ends of sessions ---

    def node_lost(self, node: NodeName, *, is_linked: bool) -> None:
        """The node was declared down, or the link to it broke: its channels are released.

        If it lives it is told, as far as it can be, and opens new sessions: without a broken link it would never
        know that it talks to nobody. Then it is on its way, too: perhaps it was a life before that was declared down.
        """
        sessions = self._sessions.pop(node, {})
        if is_linked:
            self._sent_away.setdefault(node, {}).update(_had_consumers(sessions))
        else:
            self._sent_away.pop(node, None)
        self._ended.setdefault(node, {}).update(sessions)
        self._turns.go_on()

    def _release_next(self) -> bool:
        """Of the sessions that ended, one of the first node."""
        for node, sessions in list(self._ended.items()):
            if sessions:
                queue_id, session = sessions.popitem()
                self._say_ended(node, queue_id, session)
                self._release(node, queue_id, session)
                return True
            del self._ended[node]
        return False

    def queue_stopped(self, queue_id: QueueId) -> None:
        """This node no longer masters the queue, or has closed it: its process is gone, so are the sessions."""
        for node, sessions in self._sessions.items():
            session = sessions.get(queue_id)
            if session is not None and session.has_consumed:
                self._sent_away.setdefault(node, {})[queue_id] = session.epoch
        for node, sessions in (*self._sessions.items(), *self._ended.items()):
            if (session := sessions.pop(queue_id, None)) is not None:
                self._say_ended(node, queue_id, session)

    def awaited_queues(self) -> set[QueueId]:
        """Queues that nodes were sent away from."""
        return {queue_id for queues in self._sent_away.values() for queue_id in queues}

    def queue_elsewhere(self, queue_id: QueueId, epoch: Epoch) -> None:
        """By its record, of this epoch, another node masters this queue: nobody comes here for it who knows of that.
        Who came in a later one knows more than this node, which is its master then."""
        for queues in self._sent_away.values():
            if queue_id in queues and queues[queue_id] <= epoch:
                del queues[queue_id]

    def queue_deleted(self, queue_id: QueueId) -> None:
        """Nobody comes for it any more."""
        for queues in self._sent_away.values():
            queues.pop(queue_id, None)

    def _say_ended(self, node: NodeName, queue_id: QueueId, session: MasterSession) -> None:
        self._send(node, SessionOpened(queue_id, session.number, "the session has ended at the master"))

    def _release(self, node: NodeName, queue_id: QueueId, session: MasterSession | None) -> None:
        process = self._local.process(queue_id)
        if session is None or process is None:
            return
        try:
            if session.has_sealed:
                self._local.settle_deletion(queue_id)  # whoever wanted to delete it cannot say any more what came of it
            for channel_id in sorted(session.channels):
                process.channel_down(ChannelKey(node, channel_id), may_return=True)
        except Exception as error:
            self._local.out_of_service(queue_id, error)
        self._local.touch(queue_id)

    def check_invariants(self) -> None:
        for sessions in (*self._sessions.values(), *self._ended.values()):
            for queue_id in sessions:
                assert self._local.process(queue_id) is not None, "sessions end with the queue process they talk to"
        for node, ended in self._ended.items():
            assert self._turns.is_under_way, "what has ended has a turn coming"
            both = ended.keys() & self._sessions.get(node, {}).keys()
            assert not both, "a session begins when the one before it is released"
        for node, queues in self._sent_away.items():
            both = queues.keys() & self._sessions.get(node, {}).keys()
            assert not both, "who has a session is not on its way"


def _had_consumers(sessions: Mapping[QueueId, MasterSession]) -> dict[QueueId, Epoch]:
    return {queue_id: session.epoch for queue_id, session in sessions.items() if session.has_consumed}


def _as_reply(call: SessionCall, answer: Answer) -> SessionReply:
    base = (call.queue_id, call.session, call.call_id)
    got = answer.delivery
    if got is None:
        return SessionReply(*base, number=answer.number, consumers=answer.consumers, epoch=answer.epoch)
    return SessionReply(
        *base,
        number=answer.number,
        seq_id=got.seq_id,
        redelivered=got.redelivered,
        envelope=got.message.envelope(),
    )


def _as_message(
    queue_id: QueueId,
    session: int,
    channel_id: int,
    effect: Deliver | ConfirmPublished | RejectPublished | CancelConsumer | GrantCredit,
) -> SessionMessage:
    if isinstance(effect, Deliver):
        deliveries = effect.deliveries
        return SessionDeliver(
            queue_id,
            session,
            channel_id,
            effect.consumer_tag,
            [delivery.seq_id for delivery in deliveries],
            [delivery.redelivered for delivery in deliveries],
            pack_envelopes([delivery.message for delivery in deliveries]),
        )
    if isinstance(effect, GrantCredit):
        return SessionCredit(queue_id, session, channel_id, effect.messages)
    if isinstance(effect, CancelConsumer):
        return SessionConsumerCancelled(queue_id, session, channel_id, effect.consumer_tag)
    return SessionConfirm(
        queue_id, session, channel_id, effect.publish_seqs, rejected=isinstance(effect, RejectPublished)
    )

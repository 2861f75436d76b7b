"""Session messages as protobuf and back. See `cluster.wire.convert`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from cluster.wire import sessions_pb2 as pb
from node.amqp.values import pack_table, read_table
from node.ids import Epoch, QueueId, SeqId
from node.queues.events import ConsumerSpec

_OUTCOME_TO_WIRE = {"ack": pb.OUTCOME_ACK, "requeue": pb.OUTCOME_REQUEUE, "discard": pb.OUTCOME_DISCARD}
_OUTCOME_FROM_WIRE = {number: outcome for outcome, number in _OUTCOME_TO_WIRE.items()}


def _consumer_to_wire(consumer: ConsumerSpec) -> pb.Consumer:
    return pb.Consumer(
        consumer_tag=consumer.consumer_tag,
        no_ack=consumer.no_ack,
        exclusive=consumer.exclusive,
        prefetch_count=consumer.prefetch_count,
        priority=consumer.priority,
        cancel_on_failover=consumer.cancel_on_failover,
        arguments=pack_table(consumer.arguments),
        window=consumer.window,
    )


def _consumer_from_wire(w: pb.Consumer) -> ConsumerSpec:
    return ConsumerSpec(
        w.consumer_tag,
        w.no_ack,
        w.exclusive,
        w.prefetch_count,
        w.priority,
        w.cancel_on_failover,
        read_table(w.arguments)[0],
        w.window,
    )


def _open_to_wire(m: SessionOpen) -> pb.Open:
    return pb.Open(
        queue_id=m.queue_id,
        session=m.session,
        epoch=m.epoch,
        more_credit_after=m.more_credit_after,
        has_consumed=m.has_consumed,
    )


def _open_from_wire(w: pb.Open) -> SessionOpen:
    return SessionOpen(QueueId(w.queue_id), w.session, Epoch(w.epoch), w.more_credit_after, w.has_consumed)


def _publish_to_wire(m: SessionPublish) -> pb.Publish:
    return pb.Publish(
        queue_id=m.queue_id,
        session=m.session,
        channel_id=m.channel_id,
        publish_seqs=m.publish_seqs,
        envelopes=m.envelopes,
        is_resent=m.is_resent,
    )


def _publish_from_wire(w: pb.Publish) -> SessionPublish:
    return SessionPublish(QueueId(w.queue_id), w.session, w.channel_id, list(w.publish_seqs), w.envelopes, w.is_resent)


def _settle_to_wire(m: SessionSettle) -> pb.Settle:
    return pb.Settle(
        queue_id=m.queue_id,
        session=m.session,
        channel_id=m.channel_id,
        outcome=_OUTCOME_TO_WIRE[m.outcome],
        seq_ids=m.seq_ids,
        more_follow=m.more_follow,
    )


def _settle_from_wire(w: pb.Settle) -> SessionSettle:
    outcome = _OUTCOME_FROM_WIRE.get(w.outcome)
    if outcome is None:
        raise ValueError(f"an outcome of an unknown kind: {w.outcome}")
    seq_ids = list(map(SeqId, w.seq_ids))
    return SessionSettle(QueueId(w.queue_id), w.session, w.channel_id, outcome, seq_ids, w.more_follow)


def _grant_to_wire(m: SessionGrant) -> pb.Grant:
    return pb.Grant(
        queue_id=m.queue_id,
        session=m.session,
        channel_id=m.channel_id,
        consumer_tag=m.consumer_tag,
        written=m.written,
    )


def _grant_from_wire(w: pb.Grant) -> SessionGrant:
    return SessionGrant(QueueId(w.queue_id), w.session, w.channel_id, w.consumer_tag, w.written)


def _channel_closed_to_wire(m: SessionChannelClosed) -> pb.ChannelClosed:
    return pb.ChannelClosed(queue_id=m.queue_id, session=m.session, channel_id=m.channel_id)


def _channel_closed_from_wire(w: pb.ChannelClosed) -> SessionChannelClosed:
    return SessionChannelClosed(QueueId(w.queue_id), w.session, w.channel_id)


def _call_to_wire(m: SessionCall) -> pb.Call:
    return pb.Call(
        queue_id=m.queue_id,
        session=m.session,
        call_id=m.call_id,
        verb=m.verb,
        channel_id=m.channel_id,
        consumer=None if m.consumer is None else _consumer_to_wire(m.consumer),
        consumer_tag=m.consumer_tag,
        no_ack=m.no_ack,
        if_unused=m.if_unused,
        if_empty=m.if_empty,
    )


def _call_from_wire(w: pb.Call) -> SessionCall:
    return SessionCall(
        QueueId(w.queue_id),
        w.session,
        w.call_id,
        w.verb,
        w.channel_id,
        _consumer_from_wire(w.consumer) if w.HasField("consumer") else None,
        w.consumer_tag,
        w.no_ack,
        w.if_unused,
        w.if_empty,
    )


def _opened_to_wire(m: SessionOpened) -> pb.Opened:
    return pb.Opened(queue_id=m.queue_id, session=m.session, refused=m.refused)


def _opened_from_wire(w: pb.Opened) -> SessionOpened:
    return SessionOpened(QueueId(w.queue_id), w.session, w.refused)


def _deliver_to_wire(m: SessionDeliver) -> pb.Deliver:
    return pb.Deliver(
        queue_id=m.queue_id,
        session=m.session,
        channel_id=m.channel_id,
        consumer_tag=m.consumer_tag,
        seq_ids=m.seq_ids,
        redelivered=bytes(m.redelivered),
        envelopes=m.envelopes,
    )


def _deliver_from_wire(w: pb.Deliver) -> SessionDeliver:
    seq_ids = list(map(SeqId, w.seq_ids))
    redelivered = list(map(bool, w.redelivered))
    if len(seq_ids) != len(redelivered):
        raise ValueError("columns of different length")
    return SessionDeliver(
        QueueId(w.queue_id), w.session, w.channel_id, w.consumer_tag, seq_ids, redelivered, w.envelopes
    )


def _confirm_to_wire(m: SessionConfirm) -> pb.Confirm:
    return pb.Confirm(
        queue_id=m.queue_id,
        session=m.session,
        channel_id=m.channel_id,
        publish_seqs=m.publish_seqs,
        rejected=m.rejected,
    )


def _confirm_from_wire(w: pb.Confirm) -> SessionConfirm:
    return SessionConfirm(QueueId(w.queue_id), w.session, w.channel_id, list(w.publish_seqs), w.rejected)


def _credit_to_wire(m: SessionCredit) -> pb.Credit:
    return pb.Credit(queue_id=m.queue_id, session=m.session, channel_id=m.channel_id, messages=m.messages)


def _credit_from_wire(w: pb.Credit) -> SessionCredit:
    return SessionCredit(QueueId(w.queue_id), w.session, w.channel_id, w.messages)


def _consumer_cancelled_to_wire(m: SessionConsumerCancelled) -> pb.ConsumerCancelled:
    return pb.ConsumerCancelled(
        queue_id=m.queue_id, session=m.session, channel_id=m.channel_id, consumer_tag=m.consumer_tag
    )


def _consumer_cancelled_from_wire(w: pb.ConsumerCancelled) -> SessionConsumerCancelled:
    return SessionConsumerCancelled(QueueId(w.queue_id), w.session, w.channel_id, w.consumer_tag)


def _reply_to_wire(m: SessionReply) -> pb.Reply:
    return pb.Reply(
        queue_id=m.queue_id,
        session=m.session,
        call_id=m.call_id,
        reply_code=m.reply_code,
        reply_text=m.reply_text,
        number=m.number,
        consumers=m.consumers,
        seq_id=m.seq_id,
        redelivered=m.redelivered,
        envelope=m.envelope,
        epoch=m.epoch,
    )


def _reply_from_wire(w: pb.Reply) -> SessionReply:
    return SessionReply(
        QueueId(w.queue_id),
        w.session,
        w.call_id,
        w.reply_code,
        w.reply_text,
        w.number,
        w.consumers,
        SeqId(w.seq_id),
        w.redelivered,
        w.envelope,
        w.epoch,
    )


#: Per message type: its field of `QueueMessage`, and the conversion to it.
TO_WIRE: dict[type[SessionMessage], tuple[str, Callable[[Any], Any]]] = {
    SessionOpen: ("session_open", _open_to_wire),
    SessionPublish: ("session_publish", _publish_to_wire),
    SessionSettle: ("session_settle", _settle_to_wire),
    SessionGrant: ("session_grant", _grant_to_wire),
    SessionChannelClosed: ("session_channel_closed", _channel_closed_to_wire),
    SessionCall: ("session_call", _call_to_wire),
    SessionOpened: ("session_opened", _opened_to_wire),
    SessionDeliver: ("session_deliver", _deliver_to_wire),
    SessionConfirm: ("session_confirm", _confirm_to_wire),
    SessionCredit: ("session_credit", _credit_to_wire),
    SessionConsumerCancelled: ("session_consumer_cancelled", _consumer_cancelled_to_wire),
    SessionReply: ("session_reply", _reply_to_wire),
}

FROM_WIRE: dict[str, Callable[[Any], SessionMessage]] = {
    "session_open": _open_from_wire,
    "session_publish": _publish_from_wire,
    "session_settle": _settle_from_wire,
    "session_grant": _grant_from_wire,
    "session_channel_closed": _channel_closed_from_wire,
    "session_call": _call_from_wire,
    "session_opened": _opened_from_wire,
    "session_deliver": _deliver_from_wire,
    "session_confirm": _confirm_from_wire,
    "session_credit": _credit_from_wire,
    "session_consumer_cancelled": _consumer_cancelled_from_wire,
    "session_reply": _reply_from_wire,
}

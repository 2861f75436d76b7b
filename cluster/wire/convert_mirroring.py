"""Mirroring messages as protobuf and back, except the framing of `Ops`. See `cluster.wire.convert`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
    SegmentHoldings,
    SettleOp,
    SyncBatchOp,
)
from cluster.wire import mirroring_pb2 as pb
from node.ids import MSG_ID_BYTES, ORIGIN_BYTES, Epoch, MsgId, OriginId, QueueId, SeqId
from node.queues.replica import Holding, SegmentDigest, SeqRange


def _split(concatenation: bytes, size: int, count: int) -> list[bytes]:
    if len(concatenation) != size * count:
        raise ValueError(f"{count} ids of {size} bytes are not {len(concatenation)} bytes")
    return [concatenation[at : at + size] for at in range(0, len(concatenation), size)]


def _same_length(first: Sequence[object], *others: Sequence[object]) -> None:
    if any(len(other) != len(first) for other in others):
        raise ValueError("columns of different length")


def _origins_to_wire(origins: Mapping[OriginId, int]) -> pb.Origins:
    return pb.Origins(origin_ids=b"".join(origins), counters=origins.values())


def _origins_from_wire(wire: pb.Origins) -> dict[OriginId, int]:
    origin_ids = _split(wire.origin_ids, ORIGIN_BYTES, len(wire.counters))
    return {OriginId(origin): counter for origin, counter in zip(origin_ids, wire.counters, strict=True)}


def _attach_to_wire(m: Attach) -> pb.Attach:
    return pb.Attach(
        queue_id=m.queue_id,
        epoch=m.epoch,
        attach_id=m.attach_id,
        index=m.index,
        next_seq_id=m.next_seq_id,
        horizon=m.horizon,
        origins=_origins_to_wire(m.origins),
        digest_segments=[d.segment for d in m.digests],
        digest_entries=[d.entries for d in m.digests],
        digests=[d.digest for d in m.digests],
        as_of_index=m.as_of_index,
        hears_between=m.hears_between,
        may_lack_refused=m.may_lack_refused,
    )


def _attach_from_wire(w: pb.Attach) -> Attach:
    _same_length(w.digest_segments, w.digest_entries, w.digests)
    return Attach(
        QueueId(w.queue_id),
        Epoch(w.epoch),
        w.attach_id,
        w.index,
        SeqId(w.next_seq_id),
        SeqId(w.horizon),
        _origins_from_wire(w.origins),
        tuple(map(SegmentDigest, w.digest_segments, w.digest_entries, w.digests)),
        w.as_of_index,
        w.hears_between,
        w.may_lack_refused,
    )


def _attach_reply_to_wire(m: AttachReply) -> pb.AttachReply:
    mismatched = [
        pb.SegmentHoldings(
            segment=segment.segment,
            seq_ids=[holding.seq_id for holding in segment.holdings],
            msg_ids=b"".join([holding.msg_id for holding in segment.holdings]),
        )
        for segment in m.mismatched
    ]
    return pb.AttachReply(queue_id=m.queue_id, epoch=m.epoch, attach_id=m.attach_id, mismatched=mismatched)


def _attach_reply_from_wire(w: pb.AttachReply) -> AttachReply:
    mismatched = []
    for segment in w.mismatched:
        msg_ids = _split(segment.msg_ids, MSG_ID_BYTES, len(segment.seq_ids))
        pairs = zip(segment.seq_ids, msg_ids, strict=True)
        holdings = tuple([Holding(SeqId(seq_id), MsgId(msg_id)) for seq_id, msg_id in pairs])
        mismatched.append(SegmentHoldings(segment.segment, holdings))
    return AttachReply(QueueId(w.queue_id), Epoch(w.epoch), w.attach_id, tuple(mismatched))


def _op_to_wire(op: MirrorOp) -> pb.Op:
    match op:
        case PublishOp(first_seq_id, message_count, envelopes, awaited):
            publish = pb.Publish(first_seq_id=first_seq_id, message_count=message_count, envelopes=envelopes)
            if awaited:
                publish.awaited.CopyFrom(_origins_to_wire(awaited))
            return pb.Op(publish=publish)
        case SettleOp(ranges):
            return pb.Op(settle=pb.Settle(ranges=[bound for seq_range in ranges for bound in seq_range]))
        case SyncBatchOp(seq_ids, envelopes):
            return pb.Op(sync_batch=pb.SyncBatch(seq_ids=seq_ids, envelopes=envelopes))
        case HorizonOp(horizon):
            return pb.Op(horizon=horizon)
        case OriginsOp(origins):
            return pb.Op(origins=_origins_to_wire(origins))
        case EndOp(delivered_below):
            return pb.Op(end=delivered_below)


def _op_from_wire(wire: pb.Op) -> MirrorOp:
    match wire.WhichOneof("op"):
        case "publish":
            publish = wire.publish
            awaited = _origins_from_wire(publish.awaited) if publish.HasField("awaited") else {}
            return PublishOp(SeqId(publish.first_seq_id), publish.message_count, publish.envelopes, awaited)
        case "settle":
            bounds = list(map(SeqId, wire.settle.ranges))
            if len(bounds) % 2:
                raise ValueError("a range without an end")
            return SettleOp(tuple(map(SeqRange, bounds[::2], bounds[1::2])))
        case "sync_batch":
            return SyncBatchOp(tuple(map(SeqId, wire.sync_batch.seq_ids)), wire.sync_batch.envelopes)
        case "horizon":
            return HorizonOp(SeqId(wire.horizon))
        case "origins":
            return OriginsOp(_origins_from_wire(wire.origins))
        case "end":
            return EndOp(SeqId(wire.end))
        case _:
            raise ValueError("an op of an unknown kind")


def ops_to_wire(ops: Sequence[MirrorOp]) -> pb.OpList:
    return pb.OpList(ops=[_op_to_wire(op) for op in ops])


def _ops_from_wire(w: pb.Ops) -> Ops:
    ops = tuple([_op_from_wire(op) for op in w.ops.ops])
    return Ops(QueueId(w.queue_id), Epoch(w.epoch), w.attach_id, w.first_index, ops, w.may_lack_refused)


#: Per message type: its field of `QueueMessage`, and the conversion to it.
TO_WIRE: dict[type[MirrorMessage], tuple[str, Callable[[Any], Any]]] = {
    Attach: ("attach", _attach_to_wire),
    AttachReply: ("attach_reply", _attach_reply_to_wire),
    AttachRefused: (
        "attach_refused",
        lambda m: pb.AttachRefused(queue_id=m.queue_id, epoch=m.epoch, known_epoch=m.known_epoch),
    ),
    OpsAck: (
        "ops_ack",
        lambda m: pb.OpsAck(
            queue_id=m.queue_id,
            epoch=m.epoch,
            attach_id=m.attach_id,
            applied_index=m.applied_index,
            durable_index=m.durable_index,
            is_disk_full=m.is_disk_full,
            is_describing=m.is_describing,
        ),
    ),
}

FROM_WIRE: dict[str, Callable[[Any], MirrorMessage]] = {
    "attach": _attach_from_wire,
    "attach_reply": _attach_reply_from_wire,
    "attach_refused": lambda w: AttachRefused(QueueId(w.queue_id), Epoch(w.epoch), Epoch(w.known_epoch)),
    "ops": _ops_from_wire,
    "ops_ack": lambda w: OpsAck(
        *(QueueId(w.queue_id), Epoch(w.epoch), w.attach_id, w.applied_index, w.durable_index),
        *(w.is_disk_full, w.is_describing),
    ),
}

"""What channels ask of a queue process, carried out where the process is: by the entry node itself if it is the master
(`cluster.sessions.calls`), else by the master for it (`cluster.sessions.host`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.sessions.messages import SessionCall
from cluster.sessions.ports import LocalQueues
from node.ids import ChannelKey, QueueId, SeqId
from node.queues.backing_queue import Delivery
from node.queues.events import ConsumerSpec
from node.queues.queue_process import QueueProcess


@dataclass(frozen=True, slots=True)
class Question:
    """See `SessionCall`, which carries it to a master on another node."""

    verb: str
    consumer: ConsumerSpec | None = None
    consumer_tag: str = ""
    no_ack: bool = False
    if_unused: bool = False
    if_empty: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """See `SessionReply`, which carries it from a master on another node."""

    number: int = 0
    consumers: int = 0
    #: ``get``: the message, ``None`` if none could be delivered.
    delivery: Delivery | None = None
    #: ``delete_if``: see `SessionReply`.
    epoch: int = 0
    #: 0: it worked; else the channel error to raise.
    reply_code: int = 0
    reply_text: str = ""


#: Questions whose answer means nothing in the next session.
BOUND_TO_SESSION = frozenset({"consume", "get"})
#: Questions whose answer depends on whether a queue that is about to be deleted will be.
_WAITING_FOR_SEAL = frozenset({"consume", "get", "counts"})
_DONE = Answer()


def must_wait(process: QueueProcess, verb: str) -> bool:
    """True if it has to be known first whether the queue is deleted, or goes on here (`QueueProcess.when_unsealed`)."""
    return process.is_closed and verb in _WAITING_FOR_SEAL


def carry_out(
    local: LocalQueues, queue_id: QueueId, process: QueueProcess, channel: ChannelKey, asked: Question | SessionCall
) -> Answer:
    """Raises `ChannelError` if the queue refuses. Not for what `must_wait`."""
    verb = asked.verb
    if verb == "get":
        got = process.get(channel, asked.no_ack)
        # Without a message this says whether to ask again: what the channel has published before may be held back.
        return Answer(number=process.ready + (0 if got else process.held_back), delivery=got)
    if verb == "consume":
        assert asked.consumer is not None, "a consume call carries its consumer"
        process.consume(channel, asked.consumer)
        return _DONE
    if verb == "cancel":
        process.cancel(channel, asked.consumer_tag)
        local.run(queue_id)  # its last deliveries go before the answer
        return Answer(consumers=process.consumer_count)
    if verb == "purge":
        return Answer(number=process.purge())
    if verb == "delete_if":
        epoch = local.serving_epoch(queue_id)
        if epoch is None:
            return _DONE  # what is here may not be what will be served
        return Answer(number=process.seal_for_delete(asked.if_unused, asked.if_empty), epoch=epoch)
    if verb == "unseal":
        local.settle_deletion(queue_id)
        return _DONE
    assert verb == "counts", f"unknown verb {verb!r}"
    return Answer(number=process.ready, consumers=process.consumer_count)


def settle(
    process: QueueProcess, channel: ChannelKey, outcome: str, seq_ids: Sequence[SeqId], more_follow: bool
) -> None:
    """Settle deliveries: ``outcome`` and ``more_follow`` as in `SessionSettle`."""
    if outcome == "ack":
        process.ack(channel, seq_ids)
    elif outcome == "requeue":
        process.requeue(channel, seq_ids, more_follow=more_follow)
    else:
        process.discard(channel, seq_ids)

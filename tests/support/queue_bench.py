"""A queue process over real storage on a simulated disk, with what tests need to drive and read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from node.ids import ChannelKey, Epoch, MsgId, NodeName, OriginId, QueueId, SeqId
from node.message import Message, decode_envelope
from node.queues.backing_queue import NO_LIMIT_BYTES, Delivery, MirrorInFlight
from node.queues.events import (
    CancelConsumer,
    ConfirmPublished,
    ConsumerSpec,
    DeleteUnused,
    Deliver,
    RejectPublished,
)
from node.queues.queue_process import QueueProcess
from node.topology.records import QueueRecord
from tests.support.messages import make_msg_id
from tests.support.stores import StoreHarness

#: Property bytes without any property.
NO_PROPERTIES = b"\x00\x00"


def channel(number: int, node: str = "n1") -> ChannelKey:
    return ChannelKey(NodeName(node), number)


def origin(number: int) -> OriginId:
    return OriginId(number.to_bytes(8, "big"))


def message(counter: int, body: bytes | None = None, from_origin: int = 1) -> Message:
    """The ``counter``-th publish of an origin; its body says which it is."""
    msg_id: MsgId = make_msg_id(origin(from_origin), counter)
    return Message(msg_id, "", "q", NO_PROPERTIES, str(counter).encode() if body is None else body, persistent=True)


def queue_record(**fields: Any) -> QueueRecord:
    defaults: dict[str, Any] = {
        "queue_id": QueueId(1),
        "vhost": "/",
        "name": "q",
        "durable": True,
        "exclusive_owner": None,
        "auto_delete": False,
        "arguments": {},
    }
    return QueueRecord(**{**defaults, **fields})


class SteeredQueue(MirroredQueue):
    """The storage of a queue without mirrors, as its master has it. Positions begin with 1.

    If it is durable, its messages are safe when the test has called `sync`, otherwise at once. A test may hold it back
    as mirrors would, which bound how far deliveries run ahead, and take their time.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._harness = StoreHarness(durable=durable)
        self.stored = self._harness.open_queue()
        self.stored.advance_next_seq_id(SeqId(1))
        record = MastershipRecord(QueueId(1), Epoch(1), NodeName("n1"))
        super().__init__(NodeName("n1"), self.stored, record, MirroringSettings(is_durable=durable))
        #: Messages that may still be fetched; ``None``: no limit.
        self.fetch_limit: int | None = None
        #: What mirrors have still to do.
        self.in_mirrors: Sequence[MirrorInFlight] = ()

    def fetch(self, count_max: int, ack_required: bool, bytes_max: int = NO_LIMIT_BYTES) -> list[Delivery]:
        if self.fetch_limit is None:
            return super().fetch(count_max, ack_required, bytes_max)
        deliveries = super().fetch(min(count_max, self.fetch_limit), ack_required, bytes_max)
        self.fetch_limit -= len(deliveries)
        return deliveries

    def mirrors_in_flight(self) -> Sequence[MirrorInFlight]:
        return self.in_mirrors

    def sync(self) -> None:
        """What was accepted so far is durable now."""
        self._harness.sync()

    @property
    def live(self) -> list[SeqId]:
        """Positions of everything that is ready or unacked, in order."""
        return [seq_id for segment, _ in self.stored.live_counts() for seq_id in self.stored.live_positions(segment)]

    @property
    def ready_seq_ids(self) -> list[SeqId]:
        """In order."""
        unacked = self.stored.engine.content.unacked.messages
        return [seq_id for seq_id in self.live if seq_id not in unacked]

    def ready_messages(self) -> list[Message]:
        """In order; they stay where they are."""
        return [decode_envelope(envelope)[0] for _, envelope in self.stored.read(self.ready_seq_ids)]

    @property
    def has_files(self) -> bool:
        """False once it was deleted."""
        return any(path.startswith(self._harness.queue_directory) for path in self._harness.disk.snapshot())


class QueueBench:
    """Calls are checked for invariants; effects are written as short texts, in `drain`'s order."""

    def __init__(self, *, durable: bool = False, auto_delete: bool = False, **arguments: Any) -> None:
        """Confirms of a ``durable`` queue wait for `sync`, otherwise nothing does."""
        plain = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
        self.storage = SteeredQueue(durable=durable)
        #: Nodes to whose consumers nothing can be sent.
        self.full: set[NodeName] = set()
        record = queue_record(auto_delete=auto_delete, arguments=plain)
        self.process = QueueProcess(record, self.storage, is_full=self.full.__contains__)
        self.published = 0
        self._publisher = channel(1000)

    def publish(self, count: int = 1, body: bytes | None = None, confirm: bool = True) -> None:
        """One batch from the publishing channel; publish sequence numbers are 1, 2, 3, ..."""
        counters = range(self.published + 1, self.published + count + 1)
        self.published += count
        messages = [message(counter, body) for counter in counters]
        self.process.publish(self._publisher, messages, list(counters) if confirm else [0] * count)
        self.check()

    def publish_again(self, *counters: int) -> None:
        """The same publishes once more, as after a failover."""
        self.process.publish(self._publisher, [message(counter) for counter in counters], counters)
        self.check()

    def consume(
        self, number: int = 1, tag: str = "t", *, no_ack: bool = False, exclusive: bool = False, **fields: Any
    ) -> None:
        self.process.consume(channel(number), ConsumerSpec(tag, no_ack=no_ack, exclusive=exclusive, **fields))
        self.check()

    def ack(self, number: int, *seq_ids: int) -> None:
        self.process.ack(channel(number), [SeqId(each) for each in seq_ids])
        self.check()

    def requeue(self, number: int, *seq_ids: int) -> None:
        self.process.requeue(channel(number), [SeqId(each) for each in seq_ids])
        self.check()

    def drain(self) -> list[str]:
        """For example ``['1.t: 1 2*', 'confirm 1 2']``: to the consumer t of channel 1, the second redelivered."""
        texts = []
        for effect in self.process.drain():
            match effect:
                case Deliver():
                    bodies = " ".join(
                        each.message.body.decode() + ("*" if each.redelivered else "") for each in effect.deliveries
                    )
                    texts.append(f"{effect.channel.channel_id}.{effect.consumer_tag}: {bodies}")
                case ConfirmPublished():
                    texts.append("confirm " + " ".join(map(str, effect.publish_seqs)))
                case RejectPublished():
                    texts.append("reject " + " ".join(map(str, effect.publish_seqs)))
                case CancelConsumer():
                    texts.append(f"cancel {effect.channel.channel_id}.{effect.consumer_tag}")
                case DeleteUnused():
                    texts.append("delete unused, may return" if effect.may_return else "delete unused")
        self.check()
        return texts

    def deliveries(self) -> list[str]:
        return [text for text in self.drain() if ": " in text]

    def check(self) -> None:
        self.process.check_invariants()
        self.storage.check_invariants()

    def sync(self) -> None:
        """The disk has what was published."""
        self.storage.sync()

    @property
    def ready(self) -> Sequence[int]:
        """Seq ids of the ready messages."""
        return self.storage.ready_seq_ids

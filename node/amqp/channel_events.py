"""What a channel machine asks of its shell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pamqp import base

from node.amqp.ports import DeliverySource, PublishRequest, Work
from node.errors import ChannelError
from node.ids import SeqId
from node.queues.events import ConsumerSpec


class Settlement(Enum):
    """What becomes of a delivery."""

    ACK = "ack"
    REQUEUE = "requeue"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class PublishToBroker:
    """Call `BrokerChannel.publish`."""

    requests: Sequence[PublishRequest]


@dataclass(frozen=True, slots=True)
class CheckPublishes:
    """Call `BrokerChannel.check_publishes`."""

    requests: Sequence[PublishRequest]


@dataclass(frozen=True, slots=True)
class DoWork:
    """Do this, step by step and before any other effect; then call `ChannelMachine.work_done`."""

    work: Work


@dataclass(frozen=True, slots=True)
class Settle:
    """Call `BrokerChannel.ack`, ``requeue`` or ``discard``."""

    settlement: Settlement
    source: DeliverySource
    seq_ids: Sequence[SeqId]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Deliveries stand in the output: call `BrokerChannel.written` once the transport has taken them."""

    source: DeliverySource
    consumer_tag: str
    count: int


@dataclass(frozen=True, slots=True)
class ColdCall:
    """Run a coroutine of the broker for ``method``, then call ``answered`` or ``call_failed`` with this object.

    The machine holds back the channel's later frames until then. Names are resolved in ``method`` already (an
    empty queue name is the last declared one).
    """

    method: base.Frame
    #: Only for ``basic.consume``.
    spec: ConsumerSpec | None = None


@dataclass(frozen=True, slots=True)
class Detach:
    """The server closes the channel: tell the reader to ignore its content, and call `BrokerChannel.close`."""

    error: ChannelError
    #: The method to blame, 0 if none.
    method_index: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Both sides are done: the number is free."""


ChannelEffect = PublishToBroker | CheckPublishes | DoWork | Settle | Delivered | ColdCall | Detach | Closed

"""What `list_connections` and `list_channels` show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.flow.stage import SlowPath


@dataclass(frozen=True, slots=True)
class ChannelListing:
    """One channel, at the moment of asking."""

    number: int
    #: Of its key in the cluster (`node.ids.ChannelKey`); 0 until it is open.
    channel_id: int
    #: ``running``, ``flow`` ...
    state: str
    consumer_count: int
    messages_unacknowledged: int
    #: Deliveries held back by the channel-wide prefetch limit.
    messages_held: int
    messages_unconfirmed: int
    acks_uncommitted: bool
    prefetch_count: int
    global_prefetch_count: int
    confirm: bool
    transactional: bool


@dataclass(frozen=True, slots=True)
class ConnectionListing:
    """One client connection, at the moment of asking."""

    #: Counted on this node, never used twice in a life of it.
    number: int
    #: ``host:port -> host:port``, the reference's name of a connection.
    name: str
    peer_host: str
    peer_port: int
    local_port: int
    user: str
    vhost: str
    #: ``starting`` ... ``running``, ``flow``, ``blocking`` (an alarm is set), ``blocked`` (and a publish waits for it).
    state: str
    channels: tuple[ChannelListing, ...]
    #: For how long it has been there.
    age_s: float
    heartbeat_s: int
    frame_max: int
    channel_max: int
    received_bytes: int
    sent_bytes: int
    #: Bytes the socket has not taken yet.
    send_pending_bytes: int
    client_properties: Mapping[str, Any]
    #: Hops of the credit flow that slow it down, see `node.flow`.
    slow_paths: tuple[SlowPath, ...] = ()
    #: For how long an alarm has stopped it as a publisher; ``None`` if none has.
    alarmed_ms: int | None = None

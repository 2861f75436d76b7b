"""The life of a channel, as a table. `node.amqp.channel` draws it."""

from __future__ import annotations

from enum import Enum


class ChannelState(Enum):
    OPENING = "opening"
    OPEN = "open"
    CLOSING_BY_CLIENT = "closing by client"
    CLOSING_BY_SERVER = "closing by server"
    CLOSED = "closed"


#: (state, what happens) -> state. What is missing cannot happen.
TRANSITIONS = {
    (ChannelState.OPENING, "opened"): ChannelState.OPEN,
    (ChannelState.OPENING, "failed"): ChannelState.CLOSING_BY_SERVER,
    (ChannelState.OPEN, "client closes"): ChannelState.CLOSING_BY_CLIENT,
    (ChannelState.OPEN, "failed"): ChannelState.CLOSING_BY_SERVER,
    (ChannelState.CLOSING_BY_CLIENT, "closed"): ChannelState.CLOSED,
    (ChannelState.CLOSING_BY_SERVER, "closed"): ChannelState.CLOSED,
}

"""The AMQP server: connections, timers and tasks round the pure machines of `node.amqp`."""

from node.amqp.server.listener import AmqpServer, AmqpServerConfig
from node.amqp.server.listing import ChannelListing, ConnectionListing
from node.amqp.server.sockets import Listen, Listener, listen_on_sockets

__all__ = [
    "AmqpServer",
    "AmqpServerConfig",
    "ChannelListing",
    "ConnectionListing",
    "Listen",
    "Listener",
    "listen_on_sockets",
]

"""The AMQP server: sockets, timers and tasks round the pure machines of `node.amqp`."""

from node.amqp.server.listener import AmqpServer, AmqpServerConfig
from node.amqp.server.listing import ChannelListing, ConnectionListing

__all__ = ["AmqpServer", "AmqpServerConfig", "ChannelListing", "ConnectionListing"]

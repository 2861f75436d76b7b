"""The broker: what clients do to exchanges and queues, behind `node.amqp.ports`."""

from node.broker.broker import Broker

__all__ = ["Broker"]

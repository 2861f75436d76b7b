"""Whom a channel or a connection that is over tells what it still has to say.

While they live, the broker's side and the server's know each other. If they did so for ever, nothing but the garbage
collector would free them, and that looks at what has lived for some time once an hour: with a hundred connections a
second these would be gigabytes. So whoever is closed lets go of those it tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.amqp.ports import DeliverySource, PublishRequest
from node.queues.backing_queue import Delivery


class Nobody:
    """Implements `node.amqp.ports.ConnectionControl` and `ChannelSink`: all of it comes to nothing."""

    __slots__ = ()

    # --- as a connection ---

    def close(self, reply_code: int, text: str) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def blocked(self, reason: str) -> None: ...

    def unblocked(self) -> None: ...

    # --- as a channel ---

    def deliver(self, consumer_tag: str, source: DeliverySource, deliveries: Sequence[Delivery]) -> None: ...

    def confirm(self, publish_seqs: Sequence[int]) -> None: ...

    def reject(self, publish_seqs: Sequence[int]) -> None: ...

    def returned(self, request: PublishRequest, reply_code: int, reply_text: str) -> None: ...

    def source_over(self, source: DeliverySource) -> None: ...

    def consumer_cancelled(self, consumer_tag: str) -> None: ...


NOBODY = Nobody()

"""What the two ends of a session meet on their own node: its queues, its mesh, and the shell of the entry node."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from cluster.sessions.messages import SessionDeliver, SessionMessage, SessionReply
from node.ids import Epoch, NodeName, QueueId
from node.queues.queue_process import QueueProcess

#: What is wrong if a queue process is missing where one is called.
NO_PROCESS = "an open local route has its process: the runtime closes routes first"


class LocalQueues(Protocol):
    """The queues mastered on this node."""

    def process(self, queue_id: QueueId) -> QueueProcess | None: ...

    def touch(self, queue_id: QueueId) -> None:
        """The queue process was called: drain it at the end of this loop turn."""

    def run(self, queue_id: QueueId) -> None:
        """Drain the queue process now."""

    def serving_epoch(self, queue_id: QueueId) -> Epoch | None:
        """The epoch in which this node masters the queue, ``None`` if it is not (yet) in service there."""

    def settle_deletion(self, queue_id: QueueId) -> None:
        """Whoever had this queue sealed does not know, or cannot say, what became of the deletion: have it decided."""

    def out_of_service(self, queue_id: QueueId, error: Exception) -> None:
        """A call into the queue process raised this: end its role here."""


class Links(Protocol):
    """The mesh, as sessions use it."""

    def send(self, node: NodeName, message: SessionMessage) -> None: ...

    def is_up(self, node: NodeName) -> bool: ...

    def is_congested(self, node: NodeName) -> bool:
        """Much waits to be sent to ``node``; `Entry.link_free` follows."""

    def is_congested_now(self, node: NodeName) -> bool:
        """The same, with what was said to it in this turn."""


class MasterLinks(Protocol):
    """The mesh, as the masters here use it to answer other nodes."""

    def send(self, node: NodeName, message: SessionMessage) -> None: ...

    def deliver(self, node: NodeName, message: SessionDeliver | SessionReply, size_bytes: int) -> None:
        """`send`, of what carries messages: so many bytes of them."""

    def is_full_now(self, node: NodeName) -> bool:
        """So much waits to be sent to ``node``, with what was said in this turn, that messages have to wait."""

    def when_room(self, node: NodeName, key: Hashable, go_on: Callable[[], None]) -> None:
        """Call this when it is so no longer, or the link is gone; ``key`` is who waits."""


@dataclass(frozen=True, slots=True)
class CallGoesOn:
    """What this call waited for has happened: its caller proceeds with it (`ChannelCalls.proceed`)."""

    call_id: int


@dataclass(frozen=True, slots=True)
class ReopenLater:
    """A timer: `Entry.reopen` is called for this queue after so long."""

    queue_id: QueueId
    delay_s: float


#: What an entry node asks of its shell.
EntryEffect = CallGoesOn | ReopenLater

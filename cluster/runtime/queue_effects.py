"""Where it goes what the queue processes of this node have to say: to the channels, here or elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from cluster.metadata.records import MastershipRecord
from node.ids import NodeName, QueueId
from node.queues.events import DeleteUnused, QueueEffect
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)


class LocalChannels(Protocol):
    """The channels of this node (`cluster.sessions.gateway.ClusterGateway`)."""

    def mastership_changed(self, record: MastershipRecord) -> None: ...

    def local_effects(self, queue_id: QueueId, effects: Sequence[QueueEffect]) -> None: ...

    def queue_stopped(self, queue_id: QueueId) -> None: ...


class RemoteChannels(Protocol):
    """The channels of other nodes (`cluster.sessions.host.SessionHost`)."""

    def remote_effects(self, queue_id: QueueId, effects: Sequence[QueueEffect]) -> None: ...

    def queue_stopped(self, queue_id: QueueId) -> None: ...


class QueueEffects:
    """Implements `cluster.runtime.queue_set.EffectsPort`. ``delete_unused``: a queue has lost its last consumer, which
    may return."""

    def __init__(self, node: NodeName, delete_unused: Callable[[QueueRecord, bool], None]) -> None:
        self._node = node
        self._delete_unused = delete_unused
        self._here: LocalChannels
        self._elsewhere: RemoteChannels

    def connect(self, here: LocalChannels, elsewhere: RemoteChannels) -> None:
        """Both call the queues that speak to them from here: so they come last, and before there is a queue."""
        self._here = here
        self._elsewhere = elsewhere

    def dispatch(self, queue: QueueRecord, effects: Sequence[QueueEffect]) -> None:
        here: list[QueueEffect] = []
        elsewhere: list[QueueEffect] = []
        for effect in effects:
            if isinstance(effect, DeleteUnused):
                self._delete_unused(queue, effect.may_return)
            elif effect.channel.node == self._node:
                here.append(effect)
            else:
                elsewhere.append(effect)
        if here:
            self._here.local_effects(queue.queue_id, here)
        if elsewhere:
            self._elsewhere.remote_effects(queue.queue_id, elsewhere)

    def role_began(self, record: MastershipRecord) -> None:
        """The queue process that ``record`` asks for is there now."""
        self._here.mastership_changed(record)

    def role_ended(self, queue_id: QueueId) -> None:
        """The queue process of this queue is gone from this node.

        What a channel makes wrong of that is its own: the role ends all the same, and whoever else used it is told.
        """
        self._elsewhere.queue_stopped(queue_id)
        try:
            self._here.queue_stopped(queue_id)
        except Exception:
            log.exception("a channel could not be told that queue %d is served here no more", queue_id)

"""What is committed, as the parts of a node ask for it: records of queues, and what policies make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import MetadataState
from cluster.mirroring.settings import WINDOW_BYTES, MirroringSettings
from cluster.policy.validation import usable_setting
from cluster.runtime.followed import Followed
from node.config import NodeConfig
from node.ids import QueueId
from node.queues.options import QueueOptions, queue_options
from node.topology.records import ExchangeRecord, QueueRecord


class Records:
    """Implements `cluster.runtime.queue_set.QueueSettings`."""

    def __init__(self, config: NodeConfig, state: MetadataState, followed: Followed) -> None:
        self._config = config
        self._state = state
        self.applied_index_of = followed.of
        #: A change of this queue's record is applied, and is yet to be followed here.
        self.is_behind = followed.is_behind

    @property
    def is_changing(self) -> bool:
        """The records of all queues are being changed: what becomes of each will be told."""
        return self._state.is_changing

    def mastership(self, queue_id: QueueId) -> MastershipRecord | None:
        return self._state.masterships.get(queue_id)

    def is_mirror(self, queue_id: QueueId) -> bool:
        record = self._state.masterships.get(queue_id)
        return record is not None and self._config.node_name in record.mirrors

    def find_queue(self, queue_id: QueueId) -> QueueRecord | None:
        return self._state.topology.queue_by_id(queue_id)

    def describe(self, queue_id: QueueId) -> str:
        """A queue as the log calls it."""
        queue = self.find_queue(queue_id)
        return f"queue {queue_id}" if queue is None else str(queue.queue_name)

    def queue(self, queue_id: QueueId) -> QueueRecord:
        """Of a queue that exists."""
        queue = self.find_queue(queue_id)
        assert queue is not None, "a mastership record belongs to a queue that exists"
        return queue

    def was_consumed(self, queue: QueueRecord) -> bool:
        found = self.find_queue(queue.queue_id)
        return found is not None and found.was_consumed

    def mirroring_settings(self, queue: QueueRecord) -> MirroringSettings:
        policy = self._policy(queue)
        return MirroringSettings(
            is_durable=queue.durable,
            refuses_publishes=self.queue_options(queue).refuses_publishes,
            sync_automatically=policy.get("ha-sync-mode") == "automatic",
            sync_batch_messages=usable_setting(policy, "ha-sync-batch-size", self._config.mirroring_sync_batch_size),
            sync_throughput_bytes=self._config.mirroring_sync_max_throughput_bytes,
            unreachable_ms=self._config.cluster_silence_timeout_ms,
            window_bytes=WINDOW_BYTES,
        )

    def queue_options(self, queue: QueueRecord) -> QueueOptions:
        return queue_options(queue.arguments, self._policy(queue))

    def alternate_exchange(self, exchange: ExchangeRecord) -> str | None:
        """Argument or policy, whichever holds (RabbitMQ: the argument wins)."""
        name: str | None = self._state.exchange_settings(exchange).get("alternate-exchange")
        return name

    def _policy(self, queue: QueueRecord) -> Mapping[str, Any]:
        policy = self._state.policy_of_queue(queue)
        return {} if policy is None else policy.definition

"""What readers ask of the metadata: questions about several tables. What changes them: `cluster.metadata.state`."""

from __future__ import annotations

from typing import Any

from cluster.metadata.masterships import Masterships
from cluster.metadata.records import MemberRecord, PolicyRecord
from cluster.policy.matching import PolicyMatches
from node.ids import NodeName
from node.queues.options import exchange_settings
from node.topology.records import ExchangeRecord, QueueRecord


class MetadataView:
    """The questions. `MetadataState` has the tables."""

    members: dict[NodeName, MemberRecord]
    _matches: PolicyMatches
    _table: Masterships

    def running_nodes(self) -> list[NodeName]:
        """Nodes that are up, those with the fewest replicas first."""
        up = [member.node for member in self.members.values() if member.is_up]
        return sorted(up, key=lambda node: (self._table.replica_count[node], node))

    def policy_of_queue(self, queue: QueueRecord) -> PolicyRecord | None:
        return self._matches.of(queue.vhost, queue.name, "queue")

    def policy_of_exchange(self, vhost: str, name: str) -> PolicyRecord | None:
        return self._matches.of(vhost, name, "exchange")

    def exchange_settings(self, exchange: ExchangeRecord) -> dict[str, Any]:
        """What holds for an exchange, arguments and policy merged; ``alternate-exchange`` is the key of interest."""
        policy = self.policy_of_exchange(exchange.vhost, exchange.name)
        return exchange_settings(exchange.arguments, policy.definition if policy is not None else {})

    def _mirroring(self, queue: QueueRecord) -> dict[str, Any]:
        """The policy's definition as far as it concerns replicas; an exclusive queue is never mirrored."""
        policy = self.policy_of_queue(queue)
        if policy is None or queue.exclusive_owner is not None:
            return {}
        return dict(policy.definition)

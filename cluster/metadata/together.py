"""What must hold between the parts of the metadata, whatever was applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cluster.metadata.records import MastershipRecord, MemberRecord
from node.ids import NodeName, QueueId
from node.topology.topology import Topology


def check_together(
    topology: Topology,
    masterships: Mapping[QueueId, MastershipRecord],
    members: Mapping[NodeName, MemberRecord],
    policies: Iterable[tuple[str, str]],
    *,
    is_changing: bool,
) -> None:
    """``policies``: vhost and name of each. ``is_changing``: a command that changes all queues is on its way."""
    assert {queue.queue_id for queue in topology.all_queues()} == set(masterships), "a record for every queue, no other"
    for queue in topology.all_queues():
        record = masterships[queue.queue_id]
        assert queue.exclusive_owner is None or not record.mirrors, "exclusive queues are never mirrored"
        if is_changing:
            continue  # members change first, the queues one by one
        for node in record.mirrors:
            assert members[node].is_up, "a mirror that is down leaves the record at once"
        if record.master in members:
            is_up = members[record.master].is_up
            assert is_up or record.is_down, "a queue whose master is down is down itself"
    for vhost, _ in policies:
        assert topology.has_vhost(vhost), "policies go with their vhost"

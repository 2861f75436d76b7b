"""What refuses a command about the record of one queue."""

from __future__ import annotations

from cluster.metadata.commands import AddMirror, ForcePromote, MirrorCommand
from cluster.metadata.errors import (
    CompleteMasterError,
    NodeNotUpError,
    NoSuchNodeError,
    StaleMastershipError,
    StillServedError,
)
from cluster.metadata.mastership import last_served_epoch
from cluster.metadata.records import MastershipRecord, MemberRecord
from node.topology.records import QueueRecord


def check_force_promote(
    command: ForcePromote, queue: QueueRecord | None, record: MastershipRecord | None, member: MemberRecord | None
) -> None:
    """``queue`` and ``record`` as the command names them, ``member`` its node. Raises a `RefusedChangeError`."""
    if queue is None or record is None:
        raise StaleMastershipError(f"queue {command.queue_id} does not exist any more")
    if record.in_service:
        raise StillServedError(queue.name, record.master)
    if command.served_epoch not in (None, last_served_epoch(record)):
        raise StaleMastershipError(f"queue '{queue.name}' has been served since: look at it, and ask again")
    if member is None:
        raise NoSuchNodeError(command.node)
    if not member.is_up:
        raise NodeNotUpError(command.node)
    if not record.is_down and record.master in record.complete and command.node not in record.complete:
        raise CompleteMasterError(queue.name, record.master)


def check_mirror_command(command: MirrorCommand, record: MastershipRecord | None) -> MastershipRecord:
    """The record that the command means; raises `StaleMastershipError` if it is not what it was."""
    if record is None:
        raise StaleMastershipError(f"queue {command.queue_id} does not exist any more")
    if record.epoch != command.epoch:
        raise StaleMastershipError(
            f"queue {command.queue_id} is in epoch {record.epoch}, the command means {command.epoch}"
        )
    if command.node not in record.mirrors and not isinstance(command, AddMirror):
        raise StaleMastershipError(f"{command.node} is no mirror of queue {command.queue_id}")
    return record

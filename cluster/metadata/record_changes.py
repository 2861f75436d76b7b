"""How the mastership record of a queue changes: where its copies are, who serves it, who has everything.

The rules are `cluster.metadata.mastership`'s; here they meet the other tables: the policy, the nodes that run, since
when who is a mirror. Whatever changes a record comes by `_change_record`, which tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cluster.metadata import mastership as rules
from cluster.metadata.commands import (
    AddMirror,
    DropMirror,
    ForcePromote,
    MirrorCommand,
    MirrorFollows,
    MirrorSynchronised,
    MoveMaster,
    TakeService,
)
from cluster.metadata.errors import StaleMastershipError, UnwantedMirrorError
from cluster.metadata.events import ChangeReason, Event, MastershipChanged
from cluster.metadata.records import MastershipRecord
from cluster.metadata.refusals import check_force_promote, check_mirror_command
from cluster.metadata.view import MetadataView
from cluster.policy.placement import suggest_nodes
from node.ids import NodeName, QueueId
from node.pieces import Pieces
from node.topology.records import QueueRecord
from node.topology.topology import Topology


class RecordChanges(MetadataView):
    """See the top of this module. `MetadataState` has the tables."""

    topology: Topology
    masterships: Mapping[QueueId, MastershipRecord]
    rules_version: int
    applied_index: int
    _events: list[Event]

    def _put_record(self, record: MastershipRecord) -> None:
        if self.rules_version < rules.TAKING_SERVICE:
            record = rules.as_in_version_1(record)
        self._table.put(record, self.applied_index)

    def _change_record(self, new: MastershipRecord, reason: ChangeReason, discarded: tuple[NodeName, ...] = ()) -> None:
        old = self.masterships[new.queue_id]
        if new != old:
            self._put_record(new)
            self._events.append(MastershipChanged(new.queue_id, old, self.masterships[new.queue_id], reason, discarded))

    def _place(self, queue: QueueRecord, only_mode: str | None = None, *, is_replacing: bool = False) -> None:
        """Bring a queue to where its policy wants it, if somebody serves it and its mode is ``only_mode``.

        Who left it by himself gets a copy only if nobody else can; if that ``is_replacing`` somebody who left, never.
        """
        record = self.masterships[queue.queue_id]
        if not record.in_service:
            return
        definition = self._mirroring(queue)
        if only_mode is not None and definition.get("ha-mode") != only_mode:
            return
        running, left = self.running_nodes(), self._table.who_left(queue.queue_id)
        last = () if is_replacing else left
        running = [*(node for node in running if node not in left), *(node for node in last if node in running)]
        wanted = suggest_nodes(definition, rules.placement_of(record), running)
        placed, discarded = rules.place_copies(record, wanted, queue.durable)
        is_moved = placed.master != record.master
        self._change_record(placed, "moved" if is_moved else "mirrors", discarded)
        if is_moved:
            self._place(queue)  # the rest, under the rules of version 1 only: now the new master has to take service

    def _take_service(self, command: TakeService) -> Pieces[None]:
        for queue_id, epoch in command.queues:
            record = self.masterships.get(queue_id)
            if record is None or record.is_down or (record.master, record.epoch) != (command.node, epoch):
                continue
            served = rules.take_service(record)
            is_lossy = served.lossy_promotions > record.lossy_promotions
            self._change_record(served, "in_service_lossy" if is_lossy else "in_service")
            if not record.in_service:
                self._place(self._queue_of(queue_id))
            yield

    def _force_promote(self, command: ForcePromote) -> None:
        queue = self.topology.queue_by_id(command.queue_id)
        check_force_promote(command, queue, self.masterships.get(command.queue_id), self.members.get(command.node))
        record = self.masterships[command.queue_id]
        self._change_record(rules.force_promote(record, command.node), "forced")

    def _queue_of(self, queue_id: QueueId) -> QueueRecord:
        queue = self.topology.queue_by_id(queue_id)
        assert queue is not None, "a record goes with its queue"
        return queue

    def _change_mirrors(self, command: MirrorCommand) -> None:
        record = check_mirror_command(command, self.masterships.get(command.queue_id))
        node = command.node
        if isinstance(command, AddMirror):
            self._take_back(record, node)
            return
        match command:
            case DropMirror():
                self._change_record(rules.drop_mirror(record, node), "mirrors")
                if self.rules_version >= rules.REPLACING_MIRRORS:
                    self._table.mirror_left(command.queue_id, node)
                    self._place(self._queue_of(command.queue_id), "exactly", is_replacing=True)
            case MoveMaster():
                if not rules.may_move_to(record, node, self.rules_version):
                    raise StaleMastershipError(
                        f"{node} is not synchronised any more, or not complete: moving there would lose messages"
                    )
                self._change_record(rules.move_master(record, node, command.is_old_lost), "moved")
            case _:
                self._hear_of_mirror(command, record)

    def _hear_of_mirror(self, command: MirrorSynchronised | MirrorFollows, record: MastershipRecord) -> None:
        """What a master says about the copy of one of its mirrors."""
        node = command.node
        if command.as_of_index < self._table.mirror_since(command.queue_id, node):
            raise StaleMastershipError(f"{node} became a mirror of queue {command.queue_id} after that")
        if isinstance(command, MirrorSynchronised) and record.is_down:
            self._change_record(rules.mark_synchronised(record, node), "elected")
        elif not record.in_service:
            raise StaleMastershipError(f"queue {command.queue_id} is not in service")
        elif isinstance(command, MirrorFollows):
            self._change_record(rules.mark_following(record, node), "mirrors")
        else:
            self._change_record(rules.mark_synchronised(record, node), "mirrors")
            # A master that the policy does not want goes as soon as a listed mirror is synchronised.
            self._place(self._queue_of(command.queue_id), "nodes")

    def _take_back(self, record: MastershipRecord, node: NodeName) -> None:
        member = self.members.get(node)
        is_possible = record.in_service and node not in (record.master, *record.mirrors)
        if member is None or not member.is_up or not is_possible:
            raise StaleMastershipError(f"{node} cannot become a mirror of queue {record.queue_id} now")
        queue = self._queue_of(record.queue_id)
        running = self.running_nodes()
        if self.rules_version >= rules.REPLACING_MIRRORS:
            running = [node, *running]  # any place that is free is its own
        wanted = suggest_nodes(self._mirroring(queue), rules.placement_of(record), running)
        if node not in wanted.mirrors:
            raise UnwantedMirrorError(record.queue_id, node)
        self._change_record(rules.take_mirror(record, node, queue.durable), "mirrors")

    def _is_loss_allowed(self, queue: QueueRecord, reason: Literal["failure", "shutdown"]) -> bool:
        """Whether a mirror that lacks something may take over from a master that went for this reason."""
        return rules.is_loss_allowed(self._mirroring(queue), reason, self.rules_version)

"""Safeguards of what the record says about copies, and of copies that it does not name, taken away."""

from __future__ import annotations

from dataclasses import replace

from chaos.sim.ablation.safeguard import Patches
from cluster.metadata import mastership as rules
from cluster.metadata.records import MastershipRecord
from cluster.runtime.queue_set import QueueSet
from node.ids import NodeName
from node.topology.records import QueueRecord


def late_reports_elect_nobody(patches: Patches) -> None:
    """That a mirror lacks nothing is noted, and nothing else, also of a queue that is down."""
    mark = rules.mark_synchronised

    def note(record: MastershipRecord, node: NodeName) -> MastershipRecord:
        return replace(mark(replace(record, is_down=False), node), is_down=record.is_down)

    patches.setattr(rules, "mark_synchronised", note)


def lost_copies_count(patches: Patches) -> None:
    """Who hands over is taken to have everything still, also if the disk has failed."""
    move = rules.move_master

    def believe(record: MastershipRecord, node: NodeName, _is_old_lost: bool = False) -> MastershipRecord:
        return move(record, node)

    patches.setattr(rules, "move_master", believe)


def dropped_copies_are_deleted(patches: Patches) -> None:
    """A node deletes its copy of a queue when the record does not name it, for whatever reason."""
    leave = QueueSet._leave

    def delete(self: QueueSet, queue: QueueRecord, *, delete: bool) -> None:
        del delete
        leave(self, queue, delete=True)

    patches.setattr(QueueSet, "_leave", delete)

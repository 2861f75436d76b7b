"""Safeguards of what is known of copies, taken away: what they hold, who has one, how far they were delivered."""

from __future__ import annotations

from dataclasses import replace

from chaos.sim.ablation.safeguard import Patches
from cluster.metadata import mastership as rules
from cluster.metadata.records import MastershipRecord
from cluster.mirroring import master
from cluster.mirroring.messages import EndOp
from cluster.mirroring.mirror import MirrorReplica
from cluster.runtime.queue_set import QueueSet
from node.ids import Epoch, NodeName
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


def clean_stops_say_nothing(patches: Patches) -> None:
    """A master that recovers its copy flags everything in it, also after a stop in order."""
    patches.setattr(master, "knows_deliveries", lambda *_: False)


def ends_are_not_heard(patches: Patches) -> None:
    """A mirror goes by the horizon of its master, also when that has said how far it has delivered."""
    apply = MirrorReplica._ended

    def go_by_horizon(self: MirrorReplica, epoch: Epoch, end: EndOp) -> None:
        apply(self, epoch, replace(end, delivered_below=max(end.delivered_below, self._heard_horizon)))

    patches.setattr(MirrorReplica, "_ended", go_by_horizon)

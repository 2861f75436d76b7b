"""Safeguards of mirroring, taken away: confirms, promotions, flags, frames."""

from __future__ import annotations

from typing import Any

from chaos.sim.ablation.safeguard import Patches
from cluster.metadata.records import MastershipRecord
from cluster.mirroring import conversations, master, mirror, promotion
from cluster.mirroring.confirms import ConfirmLedger
from cluster.mirroring.conversations import NO_LIMIT, Conversations, Frontier
from cluster.mirroring.difference import compare
from cluster.mirroring.early import EarlyMessages
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.messages import Attach, OriginsOp
from cluster.mirroring.mirror import MirrorReplica
from cluster.mirroring.progress import MirrorProgress
from cluster.mirroring.service import Service
from cluster.mirroring.turn import Turn
from cluster.runtime.ended_masterships import EndedMasterships
from cluster.sessions.entry import Entry
from node.ids import SeqId
from node.queues.local_replica import LocalReplica
from node.queues.queue_process import QueueProcess
from node.queues.variable_queue import VariableQueue


def confirms_before_mirrors(patches: Patches) -> None:
    """A confirm waits for the disk of the master and for nobody else."""
    release = ConfirmLedger.release
    endless = float("inf")
    patches.setattr(ConfirmLedger, "release", lambda self, _applied, _durable: release(self, endless, endless))


def confirms_before_mirrors_have_synced(patches: Patches) -> None:
    """A mirror that has a persistent message in its memory counts as one that has it on its disk."""
    release = ConfirmLedger.release
    patches.setattr(ConfirmLedger, "release", lambda self, applied, _durable: release(self, applied, applied))


def confirms_without_complete_copies(patches: Patches) -> None:
    """A master in service confirms although a complete copy is not among its mirrors."""
    follow = Service.follow

    def hurry(self: Service, record: MastershipRecord) -> None:
        follow(self, record)
        self.may_confirm = record.in_service

    patches.setattr(Service, "follow", hurry)


def mirrors_filled_are_not_waited_for(patches: Patches) -> None:
    """A master reports a mirror as synchronised and does not wait for it until the record says so, too."""
    patches.setattr(MirrorProgress, "require", lambda _self: None)
    patches.setattr(MirrorProgress, "holds_confirms", property(lambda self: self.is_required))


def promotion_without_flags(patches: Patches) -> None:
    """What an earlier master may have delivered is delivered as if it were new."""
    patches.setattr(mirror, "possibly_delivered_below", lambda *_: SeqId(0))


def promoted_copy_marks_nothing(patches: Patches) -> None:
    """A promoted copy knows how far its master may have delivered, and does not tell its storage."""
    patches.setattr(LocalReplica, "mark_delivered_below", lambda _self, _seq_id: None)


def delivers_above_the_horizon(patches: Patches) -> None:
    """A master delivers messages though no mirror knows yet that it may have."""
    frontier = Conversations.frontier

    def unlimited(self: Conversations) -> Frontier:
        return frontier(self)._replace(delivery_limit=NO_LIMIT)

    patches.setattr(Conversations, "frontier", unlimited)


def next_life_knows_nothing(patches: Patches) -> None:
    """A master that goes on in its epoch, when its copy can be opened again, asks nobody what it has said before."""
    patches.setattr(EndedMasterships, "required_mirrors", lambda _self, _record: None)


def resent_as_new(patches: Patches) -> None:
    """What a dead master was given, and may have delivered before anybody else had it, comes again without a flag."""
    publish = QueueProcess.publish

    def forget(self: QueueProcess, *arguments: Any, is_resent: bool = False) -> None:
        publish(self, *arguments)

    patches.setattr(QueueProcess, "publish", forget)


def recovered_master_knows_deliveries(patches: Patches) -> None:
    """A master that recovered its copy believes it also of what others delivered meanwhile."""
    patches.setattr(master, "knows_deliveries", lambda *_: True)


def repetitions_are_stored(patches: Patches) -> None:
    """Nobody looks whether a message that is sent again is there already."""
    patches.setattr(VariableQueue, "is_duplicate", lambda _self, _msg_id: False)
    patches.setattr(promotion.UntrustedOrigins, "is_duplicate", lambda _self, _msg_id: False)


def origins_believed_too_early(patches: Patches) -> None:
    """A mirror that lacks messages takes their second sending for a repetition."""
    promote = MirrorReplica.promote

    def trust(self: MirrorReplica, *arguments: Any, **keywords: Any) -> Any:
        self._complete()
        return promote(self, *arguments, **keywords)

    patches.setattr(MirrorReplica, "promote", trust)


def stored_origins_are_believed(patches: Patches) -> None:
    """A promoted mirror believes the counters of its storage, which may be above those of messages that it lacks."""
    patches.setattr(promotion.UntrustedOrigins, "__bool__", lambda _self: False)


def repetitions_confirmed_at_once(patches: Patches) -> None:
    """A message that is sent again is confirmed because it is here, not when it is safe."""
    confirm = MirroredQueue.confirm_when_safe

    def hurry(self: MirroredQueue, msg_id: Any, token: Any) -> None:
        if self._is_plain:
            confirm(self, msg_id, token)
        else:
            self.local.confirm_when_safe(msg_id, token)
            self._ledger._ready.append(token)
            self._answers_changed()

    patches.setattr(MirroredQueue, "confirm_when_safe", hurry)


def counters_in_the_first_frame(patches: Patches) -> None:
    """Counters of messages that were never stored go before the publishes of the same turn."""
    cut = Turn.cut

    def counters_first(self: Turn) -> Any:
        frames, settled = cut(self)
        origins = [op for ops, _ in frames for op in ops if isinstance(op, OriginsOp)]
        if len(frames) > 1 and origins:
            last_ops, last_bytes = frames[-1]
            frames[-1] = (tuple(op for op in last_ops if op not in origins), last_bytes)
            frames[0] = ((*origins, *frames[0][0]), frames[0][1])
            frames = [frame for frame in frames if frame[0]]
        return frames, settled

    patches.setattr(Turn, "cut", counters_first)


def differences_are_not_looked_for(patches: Patches) -> None:
    """A mirror that is attached says that it has everything."""
    patches.setattr(MirrorReplica, "_mismatched", lambda _self, _digests: [])


def diverged_tail_is_kept(patches: Patches) -> None:
    """A mirror keeps what its new master has not."""
    patches.setattr(MirrorReplica, "_drop_unknown", lambda _self, _attach: 0)


def extras_are_kept(patches: Patches) -> None:
    """What a mirror has beyond its master is not settled there."""
    patches.setattr(conversations, "compare", lambda *arguments: (compare(*arguments)[0], []))


def older_masters_are_heard(patches: Patches) -> None:
    """A mirror takes an attach of an older epoch than it knows of."""
    receive = MirrorReplica.receive

    def take(self: MirrorReplica, node: Any, message: Any) -> None:
        if isinstance(message, Attach) and message.epoch < self.epoch:
            self.epoch = message.epoch
            self._heard_epoch = None
        receive(self, node, message)

    patches.setattr(MirrorReplica, "receive", take)
    patches.setattr(MirrorReplica, "adopt_epoch", lambda _self, _epoch: None)


def early_masters_are_heard(patches: Patches) -> None:
    """A node answers a master that is ahead of it in the log, in the part that it still plays."""
    patches.setattr(EarlyMessages, "is_early", lambda *_: False)


def settlements_are_not_told(patches: Patches) -> None:
    """Mirrors do not hear what consumers have settled."""
    patches.setattr(MirroredQueue, "_note_settled", lambda _self, _seq_ids: None)


def lives_share_channels(patches: Patches) -> None:
    """Each life of a node counts its channels from 1."""
    make = Entry.__init__

    def count_anew(self: Entry, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self._channel_ids = 0

    patches.setattr(Entry, "__init__", count_anew)

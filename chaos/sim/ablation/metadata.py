"""Safeguards of what the cluster decides, taken away: mastership, members, Raft."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from chaos.sim.ablation.safeguard import Patches
from cluster.metadata import mastership as rules
from cluster.metadata import state as metadata_state
from cluster.metadata.masterships import Masterships
from cluster.metadata.record_changes import RecordChanges
from cluster.metadata.records import MastershipRecord, is_owned_by_connection_of
from cluster.metadata.state import MetadataState
from cluster.policy.placement import suggest_nodes
from cluster.raft.core import RaftCore
from cluster.raft.log import RaftLog
from cluster.raft.messages import AppendResponse, VoteRequest, VoteResponse
from cluster.raft.storage import RaftStorage
from cluster.runtime.admission import Admission
from cluster.runtime.metadata_group import MetadataGroup
from cluster.runtime.pause_notice import PauseNotice
from cluster.runtime.queue_deletions import QueueDeletions
from cluster.runtime.raft_driver import RaftDriver
from cluster.runtime.standing import StandingWatch
from node.ids import NodeName
from node.queues.queue_process import QueueProcess
from node.topology.records import QueueRecord


def any_copy_may_take_over(patches: Patches) -> None:
    """A copy that lacks something is elected whatever the policy says, rather than that the queue waits."""
    patches.setattr(rules, "is_loss_allowed", lambda *_: True)


def mirrors_that_never_followed_take_over(patches: Patches) -> None:
    """Where a loss is allowed any mirror is elected, also one that has heard no living master since its start."""
    elect = rules._elect_any

    def any_mirror(record: MastershipRecord, is_loss_allowed: bool, up: Collection[NodeName] = ()) -> MastershipRecord:
        if is_loss_allowed and record.mirrors and not rules.heirs(record):
            return rules._elect(record, record.mirrors[0])
        return elect(record, is_loss_allowed, up)

    patches.setattr(rules, "_elect_any", any_mirror)


def placed_before_service(patches: Patches) -> None:
    """Policies are followed while a queue waits for its master: what is surplus is discarded though nobody who serves
    has it."""

    def discard(record: MastershipRecord, node: NodeName) -> MastershipRecord:
        return replace(rules.drop_mirror(record, node), complete=rules._without(record.complete, node))

    def place(record: MastershipRecord, wanted: Any) -> MastershipRecord:
        for node in record.mirrors:
            if node not in wanted.mirrors:
                record = discard(record, node)
        for node in wanted.mirrors:
            if node not in (record.master, *record.mirrors):
                record = rules.add_mirror(record, node)
        return record

    place_in_service = RecordChanges._place

    def place_always(
        self: RecordChanges, queue: QueueRecord, only_mode: str | None = None, *, is_replacing: bool = False
    ) -> None:
        record = self.masterships[queue.queue_id]
        definition = self._mirroring(queue)
        if record.in_service or record.is_down or (only_mode not in (None, definition.get("ha-mode"))):
            place_in_service(self, queue, only_mode, is_replacing=is_replacing)
            return
        wanted = suggest_nodes(definition, rules.placement_of(record), self.running_nodes())
        self._change_record(place(record, wanted), "mirrors")

    patches.setattr(RecordChanges, "_place", place_always)


def restart_unnoticed(patches: Patches) -> None:
    """A mirror in a new life is still taken for the one that had everything in its memory."""
    restarted = MetadataState._restarted_unnoticed

    def believe(self: MetadataState, queue: QueueRecord, node: NodeName) -> None:
        if is_owned_by_connection_of(queue, node) or node not in self.masterships[queue.queue_id].mirrors:
            restarted(self, queue, node)

    patches.setattr(MetadataState, "_restarted_unnoticed", believe)


def master_restart_unnoticed(patches: Patches) -> None:
    """A master in a new life goes on in its epoch as the one that had everything in its memory."""
    restarted = MetadataState._restarted_unnoticed

    def believe(self: MetadataState, queue: QueueRecord, node: NodeName) -> None:
        if is_owned_by_connection_of(queue, node) or self.masterships[queue.queue_id].master != node:
            restarted(self, queue, node)

    patches.setattr(MetadataState, "_restarted_unnoticed", believe)


def commands_break_off(patches: Patches) -> None:
    """What raises while a committed command is carried out raises out of the state machine."""
    patches.setattr(metadata_state, "check_command", lambda _command: None)
    patches.setattr(MetadataState, "_undo", _raise_on)


def _raise_on(_state: MetadataState, request: Any) -> None:
    raise AssertionError(f"{request} cannot be carried out")


def deletions_of_any_epoch(patches: Patches) -> None:
    """A deletion under a condition is carried out whenever it arrives."""
    patches.setattr(Masterships, "check_deletion", lambda *_: None)


def sealed_without_an_end(patches: Patches) -> None:
    """Nobody brings the deletion to an end of which the asker is gone."""
    patches.setattr(QueueDeletions, "settle", lambda *_: None)


def undecided_is_undone(patches: Patches) -> None:
    """A queue goes on when the answer to its deletion does not come, though that may be carried out later."""

    def unseal(self: QueueDeletions, queue: QueueRecord) -> None:
        process: QueueProcess | None = self._queues.process(queue.queue_id)
        if process is not None and process.is_sealed:
            process.unseal()
            self._queues.touch(queue.queue_id)

    patches.setattr(QueueDeletions, "settle", unseal)


def wiped_nodes_are_let_in(patches: Patches) -> None:
    """A node is known by its name, whatever became of its directory."""
    patches.setattr(Admission, "admit", lambda *_: None)
    patches.setattr(Admission, "heed", lambda *_: None)
    patches.setattr(Admission, "may_answer", lambda *_: True)


def words_of_the_past_are_heeded(patches: Patches) -> None:
    """A new node believes whoever says that it is none of the group."""
    patches.setattr(Admission, "_has_yet_to_hear", lambda *_: False)


def serves_out_of_date(patches: Patches) -> None:
    """A node serves clients as long as it hears a leader, however old what it has applied is."""
    patches.setattr(StandingWatch, "_age_ms", lambda *_: 0)


def declared_when_committed(patches: Patches) -> None:
    """A declaration is answered before the other nodes have applied it."""

    async def at_once(*_: object) -> bool:
        return True

    patches.setattr(RaftDriver, "wait_visible", at_once)


def returns_unheard(patches: Patches) -> None:
    """A node that has paused serves again as soon as it is current, whether the others know of it or not."""
    patches.setattr(PauseNotice, "over_for_all_ms", lambda *_: 0)


def told_when_found(patches: Patches) -> None:
    """Who repeats a declaration is answered as soon as the node at hand knows what it found."""

    async def at_once(_: object) -> None: ...

    patches.setattr(MetadataGroup, "wait_known", at_once)


def votes_before_they_are_kept(patches: Patches) -> None:
    """A vote is answered before it is on disk."""
    on_request = RaftCore._on_vote_request

    def hurry(self: RaftCore, request: VoteRequest) -> None:
        on_request(self, request)
        _send_now(self, VoteResponse)

    patches.setattr(RaftCore, "_on_vote_request", hurry)


def entries_acknowledged_before_they_are_kept(patches: Patches) -> None:
    """A follower acknowledges entries before they are on disk."""
    accept = RaftCore._accept

    def hurry(self: RaftCore, *arguments: Any) -> None:
        accept(self, *arguments)
        _send_now(self, AppendResponse)

    patches.setattr(RaftCore, "_accept", hurry)


def _send_now(core: RaftCore, kind: type) -> None:
    later = core._messages_after_append
    core._messages_now += [message for message in later if isinstance(message, kind)]
    later[:] = [message for message in later if not isinstance(message, kind)]


def raft_log_is_not_synced(patches: Patches) -> None:
    """The log of the metadata is written, and never synced."""
    patches.setattr(RaftStorage, "sync", lambda _self: None)


def any_log_may_lead(patches: Patches) -> None:
    """A node votes for whoever asks first, also if its log lacks something."""
    patches.setattr(RaftLog, "is_up_to_date", lambda *_: True)


def auto_delete_forgotten(patches: Patches) -> None:
    """That a queue has had consumers is known to those who had them, and to their master."""

    def keep_to_itself(_self: QueueDeletions, _queue: QueueRecord) -> None: ...

    patches.setattr(QueueDeletions, "note_consumer", keep_to_itself)

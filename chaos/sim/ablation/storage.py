"""Safeguards of the storage and of what connects a node with its clients, taken away."""

from __future__ import annotations

from typing import Any

from chaos.sim.ablation.safeguard import Patches
from cluster import composition
from cluster.runtime.drain_turns import DrainTurns
from cluster.runtime.queue_files import NodeQueueFiles
from cluster.runtime.recoveries import Recoveries
from cluster.sessions.consumers import ChannelConsumers
from cluster.sessions.messages import SessionCall
from cluster.sessions.routes import ConsumerKey, Route
from node.ids import QueueId
from node.queues import queue_process
from node.queues.backing_queue import BackingQueue
from node.queues.events import ConsumerSpec
from node.queues.options import QueueOptions
from node.queues.refusals import Refusals
from node.queues.vhost_store import VhostStore
from node.queues.writes import Writes
from node.store.disk.guarded import GuardedDisk
from node.store.index.held_references import HeldReferences
from node.store.index.v1.journals import Journals
from node.store.queue_storage import TERMS_NAME, GivenUp, QueueStorage
from node.store.shared.msg_store import MessageStore
from node.store.shared.store_files import StoreFiles


def confirms_before_the_sync(patches: Patches) -> None:
    """A message is confirmed when it is written, not when it is synced."""
    patches.setattr(Writes, "_durable_generation_of_writes", lambda self: self._last_generation)


def orphaned_consumer(patches: Patches) -> None:
    """The simulator's first find: a master that knew only a consumer of a channel, because it was attached again after
    its session broke, was not told when the channel closed."""

    def attach_silently(self: ChannelConsumers, route: Route, key: ConsumerKey, spec: ConsumerSpec) -> None:
        call_id = next(self._here.call_ids)
        route.attaching[call_id] = key
        call = SessionCall(route.queue_id, route.session, call_id, "consume", key.channel.channel_id, spec)
        self._here.outgoing.say(route, call)

    patches.setattr(ChannelConsumers, "_attach_elsewhere", attach_silently)


def nobody_looks_if_nothing_was_written(patches: Patches) -> None:
    """Queues that wait for a round of syncs are not looked at when there is nothing to sync."""
    patches.setattr(DrainTurns, "nothing_written", lambda _self: None)


def terms_before_the_store(patches: Patches) -> None:
    """A queue that stops leaves its terms, though the shared store may not be on disk."""
    patches.setattr(MessageStore, "sync", lambda _self: None)


def terms_are_believed_twice(patches: Patches) -> None:
    """The terms of a clean stop stay when the queue is opened, and are believed after a crash."""
    unlink = GuardedDisk.unlink

    def spare(self: GuardedDisk, path: str) -> None:
        if not path.endswith(TERMS_NAME):
            unlink(self, path)

    patches.setattr(GuardedDisk, "unlink", spare)


def copies_are_used_before_they_are_kept(patches: Patches) -> None:
    """Compaction gives up the old copy of a message before the new one is on disk."""
    patches.setattr(StoreFiles, "is_durable", lambda _self, _generation: True)


def journals_go_before_segments_are_kept(patches: Patches) -> None:
    """A journal is deleted when it was carried over, not when that is on disk."""
    delete_moved = Journals.delete_moved

    def hurry(self: Journals) -> None:
        self._waits_for_sync = False
        delete_moved(self)

    patches.setattr(Journals, "delete_moved", hurry)


def names_are_not_kept(patches: Patches) -> None:
    """Files are synced, and the directories that name them are not."""
    patches.setattr(GuardedDisk, "sync_directory", lambda _self, _path: None)
    patches.setattr(GuardedDisk, "directory", lambda _self, _path: _Forgotten())


class _Forgotten:
    """A directory that nobody syncs."""

    def sync(self) -> None:
        """Nothing."""


def positions_are_given_twice(patches: Patches) -> None:
    """After a crash a queue goes on behind what it finds, whatever positions it had given before."""
    recover = QueueStorage._recover

    def forget(self: QueueStorage, bounds: Any, short_files: Any) -> Any:
        bounds.reserved = 0
        yield from recover(self, bounds, short_files)

    patches.setattr(QueueStorage, "_recover", forget)


def failed_syncs_are_forgotten(patches: Patches) -> None:
    """A start takes what the kernel shows for what the disk has."""
    patches.setattr(composition, "reread_if_marked", lambda *_: None)


def refused_messages_make_room(patches: Patches) -> None:
    """A queue that refuses what is above its limit also drops what it has confirmed, when messages come back."""

    def drop(options: QueueOptions, backing_queue: BackingQueue, count_max: int) -> bool:
        excess = backing_queue.ready - (options.max_length or 0)
        if options.max_length is not None and excess > 0:
            backing_queue.drop(min(excess, count_max))
        return False

    patches.setattr(queue_process, "drop_excess", drop)


def refusals_are_forgotten(patches: Patches) -> None:
    """A queue does not remember what it has refused: below the counter of its origin everything counts as accepted."""
    patches.setattr(Refusals, "take", lambda _self, _msg_id: False)


def deleted_vhosts_stay(patches: Patches) -> None:
    """What a node has of a vhost stays when that is deleted."""
    patches.setattr(NodeQueueFiles, "vhosts_are", lambda _self, _vhosts: None)


def given_up_copies_forget(patches: Patches) -> None:
    """Of a copy that was given up nobody knows which references it held: its files are believed, as after a start."""

    def forget(self: VhostStore, queue_id: QueueId, held: HeldReferences | None, given_up: GivenUp) -> None:
        self._given_up[queue_id] = given_up

    patches.setattr(VhostStore, "_was_given_up", forget)


def given_up_copies_keep(patches: Patches) -> None:
    """A copy that was given up gives nothing back."""

    def keep(self: VhostStore, queue_id: QueueId, held: HeldReferences | None, _given_up: GivenUp) -> None:
        if held is None:
            self._held.pop(queue_id, None)
        else:
            self._held[queue_id] = held

    patches.setattr(VhostStore, "_was_given_up", keep)


def found_copies_are_durable(patches: Patches) -> None:
    """What a queue finds that is opened again counts as durable, also in files that wait for a sync."""
    patches.setattr(QueueStorage, "_note_found", lambda _self: None)


def refused_deletions_stay(patches: Patches) -> None:
    """What could not be deleted, or be seen for want of a descriptor, stays until the next start."""
    patches.setattr(NodeQueueFiles, "_delete_again", lambda _self, _now_ms: None)


def forgotten_openings_keep_their_place(patches: Patches) -> None:
    """When a queue is deleted that is being opened, nobody begins in its place."""

    def forget(self: Recoveries, queue_id: QueueId) -> None:
        self._drop(queue_id)

    patches.setattr(Recoveries, "forget", forget)

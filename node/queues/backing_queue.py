"""The seam between a queue process and its storage engine (mission Q1).

A `BackingQueue` owns the messages of one queue: which are ready, which are delivered and not yet settled
(*unacked*), and where they are kept. It knows nothing of consumers or channels. The local engine
(`node.queues.local_replica`) and the mirrored one (`cluster.mirroring.master`, which wraps a local one)
implement it and pass the same contract tests.

Positions. Every message has a `SeqId`; the order of the queue is the order of the seq ids, always. A requeued
message keeps its seq id and so returns to its place.

Confirms. A publication may carry a *token*, an opaque value that comes back exactly once, from
`drain_confirmed`, when the message is as safe as the queue promises:
  - persistent message in a durable queue: on disk and fsynced (on every replica, for a mirrored queue);
  - any other: accepted (applied on every replica, for a mirrored queue);
  - already settled or purged: at once, since nothing is left to protect.
Nothing blocks: durability arrives later, through the group commit (`node.store.disk.group_commit`), and the owner
calls `drain_confirmed` after it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from node.ids import MsgId, NodeName, SeqId
from node.message import Message

#: More than there can be.
NO_LIMIT_BYTES = 1 << 62


class Publication(NamedTuple):
    """One message on its way into one queue."""

    message: Message
    #: Returned by `drain_confirmed`; ``None`` when the publisher wants no confirm.
    token: Hashable | None = None


class Delivery(NamedTuple):
    """One message on its way to a consumer."""

    seq_id: SeqId
    message: Message
    #: True if an earlier delivery of this message may have happened.
    redelivered: bool


@dataclass(frozen=True, slots=True)
class BackingQueueStatus:
    """Counters for `list_queues`. Messages: number; bytes: body bytes."""

    ready: int
    unacked: int
    ready_bytes: int
    unacked_bytes: int
    #: Messages whose body is in memory.
    in_ram: int
    persistent: int
    next_seq_id: SeqId
    #: Estimate of the memory this queue holds, in bytes.
    memory_bytes: int


class MirrorInFlight(NamedTuple):
    """What one mirror has still to do, for the credit flow (`node.flow.credit`)."""

    node: NodeName
    #: Messages that it has not applied, as far as confirms count on it.
    unapplied: int
    #: Messages that it has applied and whose confirms wait for its disk.
    undurable: int
    #: Bytes sent to it and not applied, synchronisation included.
    unapplied_bytes: int


class BackingQueue(Protocol):
    """Storage of one queue. All methods return at once; none waits for a disk or a peer."""

    def publish(self, publications: Sequence[Publication]) -> None:
        """Append at the tail, ready."""

    @property
    def may_deliver(self) -> bool:
        """False: whoever holds the queue may hand nothing out at the moment, neither by `fetch`, which returns nothing
        then, nor past the store, by `publish_delivered` and `discard`."""

    def publish_delivered(self, publications: Sequence[Publication]) -> list[Delivery]:
        """Append straight into the unacked set (mission Q2): the queue is empty and a consumer waits."""

    def discard(self, publications: Sequence[Publication]) -> None:
        """Account for messages that were delivered without ack to a waiting consumer: never stored.

        Their tokens come back from `drain_confirmed`; duplicates are recognised afterwards as usual.
        """

    def fetch(self, count_max: int, ack_required: bool, bytes_max: int = NO_LIMIT_BYTES) -> list[Delivery]:
        """Take up to ``count_max`` ready messages from the head, and none behind the one whose body makes it
        ``bytes_max`` (> 0) bytes of bodies.

        With ``ack_required`` they become unacked, otherwise they are gone. May return fewer than are ready
        (a mirrored queue limits how far deliveries run ahead of what the mirrors know); the owner tries again
        after the next event.
        """

    def ack(self, seq_ids: Sequence[SeqId]) -> int:
        """Settle unacked messages for good. Unknown ids are skipped. Returns how many were known."""

    def requeue(self, seq_ids: Sequence[SeqId], *, more_follow: bool = False) -> int:
        """Make unacked messages ready again, in their old places, redelivered. Unknown ids are skipped.

        ``more_follow``: this is a piece of much, not worth having in memory what is not there now.
        """

    def requeue_all(self) -> int:
        """Requeue every unacked message (failover, restart of the owner)."""

    def drop(self, count_max: int, bytes_wanted: int = NO_LIMIT_BYTES) -> list[SeqId]:
        """Remove up to ``count_max`` ready messages from the head (length limits), and none behind the one that makes
        it ``bytes_wanted`` bytes of bodies. Returns their positions. No body is read for it."""

    def flag_redelivered(self) -> None:
        """Every message that is here now may have been delivered before, under an earlier master: flag its delivery."""

    def purge(self) -> int:
        """Remove every ready message, not the unacked ones. Returns how many."""

    def is_duplicate(self, msg_id: MsgId) -> bool:
        """True if this publish was accepted before (a publisher's node sends again after a failover).

        Decided by the high-water counter of the id's origin: ids of one origin arrive in growing order, so what follows
        a new message is new. `knows_out_of_order` tells when that does not hold.
        """

    @property
    def knows_out_of_order(self) -> bool:
        """A duplicate may follow a new message of its origin: of some origins only the messages that are here are known
        for sure, and not all that came before them."""

    def confirm_when_safe(self, msg_id: MsgId, token: Hashable) -> None:
        """Return ``token`` when the earlier copy of this duplicate is safe (at once if it is settled)."""

    def drain_confirmed(self) -> list[Hashable]:
        """Tokens whose publications became safe since the last call, each exactly once."""

    @property
    def ready(self) -> int:
        """Number of ready messages."""

    @property
    def unacked(self) -> int:
        """Number of delivered and unsettled messages."""

    @property
    def in_flight_messages(self) -> int:
        """Messages given to the local store that are not durable yet, with or without token; settled ones not."""

    def mirrors_in_flight(self) -> Sequence[MirrorInFlight]:
        """The same of each mirror that confirms wait for; nothing for a queue that is not mirrored."""

    def status(self) -> BackingQueueStatus:
        """Counters for the listing commands."""

    def terminate(self) -> None:
        """Clean stop: leave the files so that recovery needs no scan."""

    def delete(self) -> None:
        """Delete the queue and everything it stored. The object is dead afterwards."""

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself; each check gives its reason."""

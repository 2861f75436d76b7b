"""Safeguards of the sessions between channels and the masters of their queues, taken away: who consumes, in which
order, and how much of a link is for them."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.sim.ablation.safeguard import Patches
from cluster.runtime.switchboard import OutgoingFrames, Switchboard
from cluster.sessions.consumers import ChannelConsumers
from cluster.sessions.early import EarlyDeliveries, EarlyDelivery
from cluster.sessions.host import SessionHost
from cluster.sessions.messages import SessionReply
from cluster.sessions.routes import Route
from node.broker import Broker
from node.ids import Epoch, QueueId
from node.queues.backing_queue import Delivery
from node.queues.consumers import Consumer, deal
from node.queues.outgoing import Outgoing
from node.queues.queue_process import QueueProcess


def consumers_stay_behind(patches: Patches) -> None:
    """Consumers are the master's that they were made at, and no other's."""
    patches.setattr(ChannelConsumers, "attach_again", lambda _self, _route: None)


def moves_are_not_told(patches: Patches) -> None:
    """Who asked to be cancelled when the master changes is attached to the new one like everybody."""
    patches.setattr(ChannelConsumers, "mastership_moved", lambda _self, _route: None)


def refused_consumers_are_kept(patches: Patches) -> None:
    """A consumer that the new master will not have, because another is alone there, hears nothing of it."""

    def attached(_self: ChannelConsumers, route: Route, reply: SessionReply) -> None:
        route.attaching.pop(reply.call_id, None)

    patches.setattr(ChannelConsumers, "attached", attached)


def deliveries_ignore_links(patches: Patches) -> None:
    """What consumers elsewhere can take is sent, whatever waits for the link."""
    patches.setattr(OutgoingFrames, "is_full_now", lambda _self, _node: False)


def publishes_ignore_links(patches: Patches) -> None:
    """What is published to masters elsewhere is sent, whatever waits for the link."""
    patches.setattr(OutgoingFrames, "is_congested_now", lambda _self, _node: False)


def nobody_hears_of_room(patches: Patches) -> None:
    """Who has found a link full waits, and is not told that it is full no longer."""
    patches.setattr(Switchboard, "on_link_room", lambda _self, _peer: None)


def shares_are_dealt_whole(patches: Patches) -> None:
    """Each consumer is given its share at once, also if another one of its channel is to have what is in between."""

    def deal_whole(self: Outgoing, consumers: Sequence[Consumer], deliveries: Sequence[Delivery]) -> None:
        for position, consumer in enumerate(consumers[: len(deliveries)]):
            self.deliver(consumer, deal(deliveries, len(consumers), position))

    patches.setattr(Outgoing, "deal", deal_whole)


def early_deliveries_are_overtaken(patches: Patches) -> None:
    """Only what is for the consumer that is being started waits, and nothing behind it."""

    def keeps(self: EarlyDeliveries, early: EarlyDelivery) -> bool:
        if early.consumer_tag not in self._starting:
            return False
        self._kept.append(early)
        return True

    patches.setattr(EarlyDeliveries, "keeps", keeps)


def who_was_sent_away_is_forgotten(patches: Patches) -> None:
    """A node that came with consumers before their queue was open, or when it was closed, is not waited for."""

    attaching = SessionHost.is_attaching

    def is_attaching(self: SessionHost, queue_id: QueueId) -> bool:
        self._sent_away.clear()
        return attaching(self, queue_id)

    patches.setattr(SessionHost, "is_attaching", is_attaching)


def older_records_count_for_who_was_sent_away(patches: Patches) -> None:
    """A record by which another node is the master forgets who came to this one, though it is older than what they
    know."""
    elsewhere = SessionHost.queue_elsewhere
    endless = Epoch(2**62)
    patches.setattr(SessionHost, "queue_elsewhere", lambda self, queue_id, _epoch: elsewhere(self, queue_id, endless))


def attaching_is_not_awaited(patches: Patches) -> None:
    """A node that had consumers of a queue is not waited for until it has named them."""
    patches.setattr(SessionHost, "is_attaching", lambda _self, _queue_id: False)


def deleted_users_stay(patches: Patches) -> None:
    """Who is connected stays, also as a user that is deleted."""

    def object_to_vhosts(self: Broker, _user: str, vhost: str | None) -> str | None:
        is_gone = vhost is not None and not self.parts.catalogue.topology.has_vhost(vhost)
        return f"vhost '{vhost}' is deleted" if is_gone else None

    patches.setattr(Broker, "objection", object_to_vhosts)


def clients_of_deleted_vhosts_stay(patches: Patches) -> None:
    """Who is connected stays, also to a vhost that is deleted."""
    object_to = Broker.objection
    patches.setattr(Broker, "objection", lambda self, user, _vhost: object_to(self, user, None))


def held_publishes_are_forgotten(patches: Patches) -> None:
    """What a drain takes of publishes that waited is looked at again when somebody calls the queue, not when it is on
    disk."""
    patches.setattr(QueueProcess, "held_back", property(lambda _self: 0))

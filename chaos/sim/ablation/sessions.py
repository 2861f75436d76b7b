"""Safeguards of the sessions between channels and the masters of their queues, taken away: who consumes, and how
much of a link is for them."""

from __future__ import annotations

from chaos.sim.ablation.safeguard import Patches
from cluster.runtime.switchboard import OutgoingFrames, Switchboard
from cluster.sessions.consumers import ChannelConsumers
from cluster.sessions.messages import SessionReply
from cluster.sessions.routes import Route


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

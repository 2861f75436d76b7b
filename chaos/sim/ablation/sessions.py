"""Safeguards of the sessions between channels and the masters of their queues, taken away: who consumes."""

from __future__ import annotations

from chaos.sim.ablation.safeguard import Patches
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

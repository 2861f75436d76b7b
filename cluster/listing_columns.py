"""Columns of the listings, in rabbitmqctl's words: what the tool accepts and the nodes answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listing:
    """What one ``list_...`` command can show."""

    default: tuple[str, ...]
    columns: tuple[str, ...]

    def unknown(self, chosen: tuple[str, ...]) -> list[str]:
        """Those of ``chosen`` that this listing does not have."""
        return [name for name in chosen if name not in self.columns]


def _listing(default: str, columns: str = "") -> Listing:
    return Listing(tuple(default.split()), tuple((columns or default).split()))


LISTINGS: dict[str, Listing] = {
    "list_queues": _listing(
        "name messages",
        "name durable auto_delete arguments policy pid exclusive owner_pid messages messages_ready "
        "messages_unacknowledged messages_ram messages_persistent message_bytes consumers memory slave_pids "
        "synchronised_slave_pids mirror_pids synchronised_mirror_pids streaming_mirror_pids "
        "disk_full_pids recoverable_slaves complete_replicas lossy_promotions backing_queue_status flow_slowest_hop "
        "flow_state flow_balance flow_blocked_ms state",
    ),
    "list_policies": _listing("vhost name pattern apply-to definition priority"),
    "list_connections": _listing(
        "user peer_host peer_port state",
        "pid name host port peer_host peer_port protocol channels channel_max frame_max timeout user vhost "
        "client_properties connected_at recv_oct send_oct send_pend state",
    ),
    "list_channels": _listing(
        "pid user consumer_count messages_unacknowledged",
        "pid connection name number user vhost confirm consumer_count messages_unacknowledged messages_unconfirmed "
        "prefetch_count state",
    ),
    "list_flow": _listing(
        "chain slowest_hop balance blocked_ms",
        "node connection name channel vhost queue master chain slowest_hop balance blocked_ms state",
    ),
    "list_consumers": _listing("queue_name channel_pid consumer_tag ack_required prefetch_count active arguments"),
    "list_exchanges": _listing("name type", "name type durable auto_delete internal arguments policy"),
    "list_bindings": _listing("source_name source_kind destination_name destination_kind routing_key arguments"),
    "list_vhosts": _listing("name"),
    "list_users": _listing("user tags"),
    "list_permissions": _listing("user configure write read"),
}

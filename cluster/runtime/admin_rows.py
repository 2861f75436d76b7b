"""Rows of the listings: what a node knows about one queue, connection ... by rabbitmqctl's column names.

A process id is printed as the reference prints one, ``<node.incarnation.id.0>``; here it names a queue or a connection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from cluster.listing_columns import LISTINGS, Listing
from cluster.metadata.records import MastershipRecord, MemberRecord, PolicyRecord
from cluster.runtime.queue_role import MasterRole
from cluster.transport.admin_port import AdminRefused, ExitCode, Table
from cluster.transport.turns import ROWS_PER_TURN
from node.amqp.server.listing import ConnectionListing
from node.flow.stage import STAGE_MEMORY_MS, HopView, SlowPath
from node.ids import ChannelKey, NodeName
from node.pieces import Pieces, make_each
from node.queues.backing_queue import BackingQueueStatus
from node.topology.records import BindingRecord, ExchangeRecord, QueueRecord

Row = dict[str, Any]
_Item = TypeVar("_Item")

#: The state of a queue whose master's copy is out of service, and that no other copy can serve.
OUT_OF_SERVICE = "out_of_service"
#: Columns that every node can answer from the metadata alone.
STATIC_QUEUE_COLUMNS = frozenset(
    (
        "name",
        "durable",
        "auto_delete",
        "arguments",
        "policy",
        "pid",
        "exclusive",
        "owner_pid",
        "slave_pids",
        "synchronised_slave_pids",
        "mirror_pids",
        "synchronised_mirror_pids",
        "recoverable_slaves",
        "complete_replicas",
        "lossy_promotions",
    )
)


def table(listing: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of the chosen columns; raises `AdminRefused` for one that the listing does not have."""
    chosen = check_columns(LISTINGS[listing], columns)
    return Table(chosen, tuple(tuple(row.get(column) for column in chosen) for row in rows))


def table_in_pieces(
    listing: str, columns: Sequence[str], items: Iterable[_Item], row_of: Callable[[_Item], Mapping[str, Any]]
) -> Pieces[Table]:
    """As `table`, of what may be very many: ``row_of`` each of ``items``."""
    chosen = check_columns(LISTINGS[listing], columns)

    def cells(item: _Item) -> tuple[Any, ...]:
        row = row_of(item)
        return tuple(row.get(column) for column in chosen)

    rows = yield from make_each(cells, items, ROWS_PER_TURN)
    return Table(chosen, tuple(rows))


def check_columns(listing: Listing, columns: Sequence[str]) -> tuple[str, ...]:
    unknown = listing.unknown(tuple(columns))
    if unknown:
        valid = ", ".join(listing.columns)
        raise AdminRefused(ExitCode.USAGE, f"Info key(s) {','.join(unknown)} are not supported; valid are {valid}")
    return tuple(columns) or listing.default


def process_id(node: NodeName, number: int, members: Mapping[NodeName, MemberRecord]) -> str:
    member = members.get(node)
    return f"<{node}.{member.incarnation if member is not None else 0}.{number}.0>"


def static_queue_row(
    queue: QueueRecord,
    record: MastershipRecord,
    policy: PolicyRecord | None,
    members: Mapping[NodeName, MemberRecord],
) -> Row:
    """What the metadata says about a queue."""

    def pids(nodes: Sequence[NodeName]) -> list[str]:
        return [process_id(node, queue.queue_id, members) for node in nodes]

    mirrors, synchronised = pids(record.mirrors), pids(record.synchronised)
    return {
        "name": queue.name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": {key: _plain(value) for key, value in queue.arguments.items()},
        "policy": policy.name if policy is not None else None,
        "pid": process_id(record.master, queue.queue_id, members),
        "exclusive": queue.exclusive_owner is not None,
        "owner_pid": queue.exclusive_owner,
        "slave_pids": mirrors,
        "mirror_pids": mirrors,
        "synchronised_slave_pids": synchronised,
        "synchronised_mirror_pids": synchronised,
        "recoverable_slaves": list(record.complete) if record.is_down else [],
        "complete_replicas": list(record.complete),
        "lossy_promotions": record.lossy_promotions,
        "state": "down" if record.is_down else None if record.in_service else "elected",
    }


def live_queue_row(role: MasterRole, members: Mapping[NodeName, MemberRecord]) -> Row:
    """What only the master's node knows."""
    status: BackingQueueStatus = role.mirrored.status()
    slowest = role.process.flow.slowest(STAGE_MEMORY_MS)

    def pids(nodes: Sequence[NodeName]) -> list[str]:
        return [process_id(node, role.queue.queue_id, members) for node in nodes]

    return {
        "streaming_mirror_pids": pids(role.mirrored.streaming_mirrors()),
        "disk_full_pids": pids(disk_full_nodes(role)),
        "messages": status.ready + status.unacked,
        "messages_ready": status.ready,
        "messages_unacknowledged": status.unacked,
        "messages_ram": status.in_ram,
        "messages_persistent": status.persistent,
        "message_bytes": status.ready_bytes + status.unacked_bytes,
        "consumers": role.process.consumer_count,
        "memory": status.memory_bytes,
        "backing_queue_status": role.local.backing_queue_status(),
        "flow_slowest_hop": None if slowest is None else slowest.receiver,
        "flow_state": None if slowest is None else slowest.state,
        "flow_balance": None if slowest is None else slowest.balance,
        "flow_blocked_ms": None if slowest is None else slowest.blocked_ms,
        "state": queue_state(role),
    }


def unserved_row(percent: int | None, *, is_failed: bool) -> Row:
    """Of a queue that this node masters and does not serve; ``percent``: how much of it was read after a crash."""
    if is_failed:
        return {"state": OUT_OF_SERVICE}
    return {} if percent is None else {"state": f"{{recovering, {percent}%}}"}


def disk_full_nodes(role: MasterRole) -> list[NodeName]:
    """Nodes whose copy waits in memory for space on the disk."""
    return [*([role.mirrored.node] if role.local.is_disk_full else []), *role.mirrored.disk_full_mirrors()]


def queue_state(role: MasterRole) -> str:
    """``running``, ``flow``, ``elected`` (about to serve), ``disk_full`` (messages wait in memory for space, here
    or on a mirror), or ``{syncing, N}`` with the messages that the slowest mirror has got."""
    if not role.record.in_service:
        return "elected"
    if disk_full_nodes(role):
        return "disk_full"
    progress = role.mirrored.sync_progress()
    return role.process.flow.stage.state(STAGE_MEMORY_MS) if progress is None else f"{{syncing, {progress.synced}}}"


def policy_row(policy: PolicyRecord) -> Row:
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def exchange_row(exchange: ExchangeRecord, policy: PolicyRecord | None) -> Row:
    return {
        "name": exchange.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": {key: _plain(value) for key, value in exchange.arguments.items()},
        "policy": policy.name if policy is not None else None,
    }


def binding_row(binding: BindingRecord) -> Row:
    return {
        "source_name": binding.source,
        "source_kind": "exchange",
        "destination_name": binding.destination,
        "destination_kind": binding.destination_kind,
        "routing_key": binding.routing_key,
        "arguments": {key: _plain(value) for key, value in binding.arguments.items()},
    }


def consumer_rows(role: MasterRole, members: Mapping[NodeName, MemberRecord]) -> list[Row]:
    return [
        {
            "queue_name": role.queue.name,
            "channel_pid": process_id(channel.node, channel.number, members),
            "consumer_tag": spec.consumer_tag,
            "ack_required": not spec.no_ack,
            "prefetch_count": spec.prefetch_count,
            "active": is_active,
            "arguments": {key: _plain(value) for key, value in spec.arguments.items()},
        }
        for channel, spec, is_active in role.process.consumers()
    ]


def connection_id(node: NodeName, incarnation: int, connection: ConnectionListing) -> str:
    """The process id of a connection of this node."""
    return f"<{node}.{incarnation}.{connection.number}.0>"


def connection_row(node: NodeName, incarnation: int, connection: ConnectionListing, now_s: float | None) -> Row:
    """``now_s``: the time of day, since the epoch, if it is known."""
    return {
        "pid": connection_id(node, incarnation, connection),
        "name": connection.name,
        "host": connection.name.partition(" -> ")[2].rpartition(":")[0],
        "port": connection.local_port,
        "peer_host": connection.peer_host,
        "peer_port": connection.peer_port,
        "protocol": "{0,9,1}",
        "channels": len(connection.channels),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_max,
        "timeout": connection.heartbeat_s,
        "user": connection.user,
        "vhost": connection.vhost,
        "connected_at": None if now_s is None else int((now_s - connection.age_s) * 1000),
        "recv_oct": connection.received_bytes,
        "send_oct": connection.sent_bytes,
        "send_pend": connection.send_pending_bytes,
        "client_properties": {key: _plain(value) for key, value in connection.client_properties.items()},
        "state": connection.state,
    }


def channel_rows(node: NodeName, incarnation: int, connection: ConnectionListing) -> list[Row]:
    return [
        {
            # As `consumer_rows` has it.
            "pid": f"<{node}.{incarnation}.{ChannelKey(node, channel.channel_id).number}.0>",
            "connection": connection_id(node, incarnation, connection),
            "name": f"{connection.name} ({channel.number})",
            "number": channel.number,
            "user": connection.user,
            "vhost": connection.vhost,
            "transactional": channel.transactional,
            "confirm": channel.confirm,
            "consumer_count": channel.consumer_count,
            "messages_unacknowledged": channel.messages_unacknowledged,
            "messages_unconfirmed": channel.messages_unconfirmed,
            "acks_uncommitted": channel.acks_uncommitted,
            "prefetch_count": channel.prefetch_count,
            "global_prefetch_count": channel.global_prefetch_count,
            "state": channel.state,
        }
        for channel in connection.channels
    ]


def flow_row(
    node: NodeName,
    pid: str,
    name: str,
    path: SlowPath,
    queue: QueueRecord | None,
    record: MastershipRecord | None,
    beyond: HopView | None,
) -> Row:
    """One way down from a connection. ``beyond`` is the slowest hop behind the queue.

    The hops of a path are blocked, or were of late, each because of the next one: so the last is the slowest.
    """
    hops = list(path.hops)
    words = [f"{node} connection {name}"]
    words += [hop.receiver if isinstance(hop.receiver, str) else _queue_words(queue, record) for hop in hops]
    is_out_of_bytes = path.channel == 0
    if is_out_of_bytes and queue is not None:
        words.append(_queue_words(queue, record))
    # The credit behind the queue is in messages. Where bytes have run out it may be left, and yet it is there they are.
    if beyond is not None and (is_out_of_bytes or beyond.state != "open"):
        hops.append(beyond)
        words.append(str(beyond.receiver))
    slowest = hops[-1]
    state = "blocked" if any(hop.state == "blocked" for hop in hops) else "freed"
    return {
        "node": node,
        "connection": pid,
        "name": name,
        "channel": path.channel or None,
        "vhost": None if queue is None else queue.vhost,
        "queue": None if queue is None else queue.name,
        "master": None if record is None else record.master,
        "chain": f"{' -> '.join(words)}: {state}",
        "slowest_hop": " -> ".join(words[-2:]),
        "balance": slowest.balance,
        "blocked_ms": max(hop.blocked_ms for hop in hops),
        "state": state,
    }


def alarm_row(
    node: NodeName, pid: str, name: str, vhost: str, alarms: Sequence[Mapping[str, str]], blocked_ms: int
) -> Row:
    """A publisher that waits for the end of ``alarms``, whatever its credit says."""
    reason = "alarm: " + ", ".join(f"{alarm['resource']} on {alarm['node']}" for alarm in alarms)
    return {
        "node": node,
        "connection": pid,
        "name": name,
        "channel": None,
        "vhost": vhost,
        "queue": None,
        "master": None,
        "chain": f"{node} connection {name} -> {reason}: blocked",
        "slowest_hop": reason,
        "balance": None,
        "blocked_ms": blocked_ms,
        "state": "blocked",
    }


def _queue_words(queue: QueueRecord | None, record: MastershipRecord | None) -> str:
    if queue is None:
        return "a deleted queue"
    where = "" if record is None else f" on {record.master}"
    return f"queue {queue.vhost} {queue.name}{where}"


def _plain(value: Any) -> Any:
    """A value of an AMQP table as JSON can hold it."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_plain = isinstance(value, str | int | None) or (isinstance(value, float) and math.isfinite(value))
    return value if is_plain else str(value)

"""What operators may ask of a node. Implements `cluster.transport.admin_port.AdminPort`.

Any node answers for the whole cluster: the metadata is here, and what only another node knows is asked of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from cluster.listing_columns import LISTINGS
from cluster.metadata.commands import (
    AddUser,
    ChangePassword,
    ChangeTopology,
    ClearPermissions,
    ClearPolicy,
    Command,
    DeleteUser,
    ForcePromote,
    ForgetNode,
    SetPermissions,
    SetPolicy,
    SetUserTags,
)
from cluster.metadata.errors import NodeStillUpError, StillServedError
from cluster.metadata.kinds import FIRST_PROTOCOL
from cluster.metadata.records import MastershipRecord, PolicyRecord
from cluster.policy.validation import PolicyError, check_carried_out, validate_policy
from cluster.runtime.admin_copies import AdminCopies
from cluster.runtime.admin_peers import AdminPeers
from cluster.runtime.admin_rows import (
    STATIC_QUEUE_COLUMNS,
    Row,
    alarm_row,
    binding_row,
    channel_rows,
    check_columns,
    connection_id,
    connection_row,
    consumer_rows,
    exchange_row,
    flow_row,
    live_queue_row,
    policy_row,
    static_queue_row,
    table,
    table_in_pieces,
    unserved_row,
)
from cluster.runtime.admin_served import AdminServed, NotServedError
from cluster.runtime.admin_standing import AdminStanding
from cluster.runtime.joining import Joining
from cluster.runtime.node_runtime import NodeRuntime
from cluster.runtime.outside import ResourceProbe, SystemFacts
from cluster.runtime.queue_role import MasterRole
from cluster.runtime.rebalancing import Rebalancing
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection, SyncProgress, Table
from cluster.transport.turns import ROWS_PER_TURN, in_turns
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.amqp.server.listing import ConnectionListing
from node.auth import SALT_BYTES, hash_password
from node.broker.deletion import delete_queue
from node.flow.stage import CONNECTION_MEMORY_MS, HopView
from node.ids import NodeName, QueueId
from node.patterns import pattern_problem
from node.pieces import make_each
from node.topology.commands import CreateVhost, DeleteVhost, TopologyCommand
from node.topology.records import ExchangeRecord, QueueRecord

log = logging.getLogger(__name__)

#: How often a running synchronisation is looked at for whoever watches it.
SYNC_PROGRESS_INTERVAL_S = 0.2
#: For whoever would forget a node where nothing can be decided.
_MAJORITY_GONE = (
    "to forget a node takes a majority of all members, that node counted: start one that is lacking; if too many will "
    "never return, stop this node and use `warrenctl forget_cluster_node --offline`"
)


class ServedClients(Protocol):
    """The clients of this node (`cluster.runtime.client_service.ClientService`)."""

    @property
    def is_serving(self) -> bool: ...

    @property
    def has_roles(self) -> bool: ...

    def connections(self) -> Sequence[ConnectionListing]: ...


class NodeAdmin:
    """See the top of this module. ``stop`` begins an orderly stop of the node; ``chance`` salts passwords."""

    def __init__(
        self,
        runtime: NodeRuntime,
        peers: AdminPeers,
        clients: ServedClients,
        stop: Callable[[], None],
        probe: ResourceProbe,
        system: SystemFacts,
        chance: Random,
        joining: Joining,
    ) -> None:
        self._runtime = runtime
        self._joining = joining
        self._state = runtime.metadata.state
        self._peers = peers
        self._clients = clients
        self._stop = stop
        self._probe = probe
        self._system = system
        self._chance = chance
        self._standing = AdminStanding(runtime, clients)
        self._copies = AdminCopies(runtime, peers)
        self._served = AdminServed(runtime, peers)

    # --- policies ---

    async def set_policy(self, policy: PolicyRecord) -> None:
        try:
            validate_policy(policy)
            check_carried_out(policy.definition)
        except PolicyError as error:
            raise AdminRefused(ExitCode.SOFTWARE, str(error)) from None
        await self._change(SetPolicy(policy))

    async def clear_policy(self, vhost: str, name: str) -> None:
        await self._change(ClearPolicy(vhost, name))

    async def list_policies(self, vhost: str, columns: Sequence[str]) -> Table:
        self._require_vhost(vhost)
        policies = [policy for policy in self._state.policies.values() if policy.vhost == vhost]
        return table(
            "list_policies", columns, [policy_row(each) for each in sorted(policies, key=lambda each: each.name)]
        )

    # --- queues ---

    async def list_queues(self, vhost: str, columns: Sequence[str], selection: QueueSelection) -> Table:
        chosen = check_columns(LISTINGS["list_queues"], columns)
        self._require_vhost(vhost)
        rows: dict[str, Row] = {}
        elsewhere: set[NodeName] = set()
        queues = sorted(self._state.topology.queues(vhost), key=lambda queue: queue.name)
        await in_turns(
            make_each(lambda queue: self._add_queue_row(queue, selection, rows, elsewhere), queues, ROWS_PER_TURN)
        )
        if not selection.local and not STATIC_QUEUE_COLUMNS.issuperset(chosen):
            nodes = [name for name in sorted(elsewhere) if self._runtime.links.is_up(name)]
            live = [column for column in chosen if column not in STATIC_QUEUE_COLUMNS]
            for found in await self._peers.rows("ListQueues", nodes, vhost, ["name", *live]):
                if found["name"] in rows:
                    rows[found["name"]] |= found
        return await in_turns(table_in_pieces("list_queues", chosen, rows.values(), lambda row: row))

    def _add_queue_row(
        self, queue: QueueRecord, selection: QueueSelection, rows: dict[str, Row], elsewhere: set[NodeName]
    ) -> None:
        """What is known here of a queue; its master's node goes into ``elsewhere`` if that one knows more."""
        node = self._runtime.node
        record = self._state.masterships.get(queue.queue_id)
        if record is None or not _is_selected(record, selection, node):
            return  # deleted meanwhile, or not asked for
        policy = self._state.policy_of_queue(queue)
        row = rows[queue.name] = static_queue_row(queue, record, policy, self._state.members)
        role = self._runtime.queues.roles.get(queue.queue_id)
        if isinstance(role, MasterRole):
            row |= live_queue_row(role, self._state.members)
        elif record.master == node and not record.is_down:
            queues, queue_id = self._runtime.queues, queue.queue_id
            row |= unserved_row(queues.recovered_percent(queue_id), is_failed=queues.is_failed(queue_id))
        elif not record.is_down:
            elsewhere.add(record.master)

    async def sync_queue(self, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        queue, record = self._mirrored_queue(vhost, name)
        if record.master != self._runtime.node:
            master, queue_id = record.master, queue.queue_id
            watched = self._peers.sync_queue(master, vhost, name, lambda: self._is_to_be_synced(queue_id, name, master))
            last = SyncProgress(0, 0, is_finished=False)
            async for last in watched:
                yield last
            if not last.is_finished and not self._is_to_be_synced(queue_id, name, master):
                # The record had it before the master's last word came.
                yield SyncProgress(last.total_messages, last.total_messages, is_finished=True)
            return
        role = self._master_role(queue)
        role.mirrored.start_sync()
        last = SyncProgress(0, role.mirrored.ready, is_finished=False)
        self._runtime.queues.touch(queue.queue_id)
        while True:
            if not self._is_to_be_synced(queue.queue_id, name, self._runtime.node):
                break
            if self._runtime.queues.roles.get(queue.queue_id) is not role:  # it was elsewhere, or is out of service
                raise AdminRefused(ExitCode.TEMPORARY, f"queue '{name}' has changed its master: ask again")
            running = role.mirrored.sync_progress()
            if running is not None:
                last = SyncProgress(running.synced, running.total, is_finished=False)
                yield last
            elif not role.mirrored.is_sync_wanted:
                yield replace(last, is_finished=True)  # cancelled, which is no failure in RabbitMQ either
                return
            await asyncio.sleep(SYNC_PROGRESS_INTERVAL_S)
        ready = role.mirrored.ready
        yield SyncProgress(ready, ready, is_finished=True)

    def _is_to_be_synced(self, queue_id: QueueId, name: str, node: NodeName) -> bool:
        """False if all mirrors are synchronised. Raises `AdminRefused` if another node is the master now, or none, or
        the queue is gone."""
        record = self._state.masterships.get(queue_id)
        if record is None:
            raise AdminRefused(ExitCode.DATA, f"queue '{name}' was deleted meanwhile")
        if record.is_down:
            raise _queue_down(name)
        if set(record.synchronised) == set(record.mirrors):
            return False
        if record.master != node:
            raise AdminRefused(ExitCode.TEMPORARY, f"queue '{name}' has moved to {record.master}: ask again")
        return True

    async def cancel_sync_queue(self, vhost: str, name: str) -> None:
        queue, record = self._mirrored_queue(vhost, name)
        if record.master != self._runtime.node:
            await self._peers.cancel_sync_queue(record.master, vhost, name)
            return
        self._master_role(queue).mirrored.cancel_sync()
        self._runtime.queues.touch(queue.queue_id)

    async def force_promote(self, vhost: str, name: str, node: str, *, may_be_empty: bool = False) -> None:
        queue = self._queue(vhost, name)
        served_epoch = await self._copies.served_epoch(queue)
        if not may_be_empty:
            await self._copies.require_something(queue, NodeName(node))
        try:
            await self._change(ForcePromote(queue.queue_id, NodeName(node), served_epoch))
        except StillServedError:
            if (refusal := self._served.refusal(queue)) is not None:
                raise refusal from None
            raise

    async def held_copies(self, queue_ids: Sequence[QueueId]) -> Mapping[QueueId, int]:
        return await self._copies.held_here(queue_ids)

    async def purge_queue(self, vhost: str, name: str) -> int:
        try:
            return await self._served.purge(self._queue(vhost, name).queue_id)
        except NotServedError as error:
            raise error.refusal from None

    async def delete_queue(self, vhost: str, name: str, *, if_empty: bool, if_unused: bool) -> int:
        queue = self._queue(vhost, name)
        try:
            return await delete_queue(
                self._served, self._change_topology, queue, if_unused=if_unused, if_empty=if_empty
            )
        except NotServedError as error:
            raise error.refusal from None

    async def rebalance_queues(
        self, vhost_pattern: str, queue_pattern: str, *, is_dry_run: bool
    ) -> AsyncIterator[Mapping[str, Any]]:
        self._standing.require()
        for pattern in (vhost_pattern, queue_pattern):
            if problem := pattern_problem(pattern):
                raise AdminRefused(ExitCode.USAGE, f"'{pattern}' is no regular expression: {problem}")
        rebalancing = Rebalancing(self._state, self._change, vhost_pattern, queue_pattern)
        async for report in rebalancing.run(is_dry_run=is_dry_run):
            yield report

    # --- node and cluster ---

    async def forget_cluster_node(self, node: str, *, is_confirmed: bool = False) -> Mapping[str, Any]:
        name, as_of_index = NodeName(node), self._state.as_of_index
        member = self._state.members.get(name)
        is_linked = name in self._runtime.links.linked_nodes()
        if not is_linked:
            self._standing.require_majority(_MAJORITY_GONE)
        if is_linked or (member is not None and member.is_up):
            # It joins, and nobody has committed yet that it is up; or it is about to be found dead, and what it has is
            # not to be given away before.
            raise NodeStillUpError(name)
        found = await self._copies.inheritance(name)
        if not is_confirmed:
            self._copies.require_confirmation(found)
        await self._copies.hand_over(found, self._change)
        command = ForgetNode(name, name in self._runtime.metadata.consensus.voters, as_of_index)
        deleted = await self._change(command if is_confirmed else self._copies.forgetting(command, found))
        for queue in deleted or ():
            log.warning("%s is deleted: only %s had something of it, which was removed from the cluster", queue, node)
        return {
            "deleted_queues": list(deleted or ()),
            "lossy_queues": self._copies.served_by(found),
            "unheard_nodes": found.unheard,
        }

    async def join_cluster(self, address: str) -> Mapping[str, Any]:
        self._standing.require()
        return await self._joining.join(address)

    async def reset(self) -> None:
        self._joining.reset()

    async def cluster_status(self) -> Mapping[str, Any]:
        members = sorted(self._state.members.values(), key=lambda member: member.node)
        configured = self._runtime.member_names()
        running = [member.node for member in members if member.is_up]
        linked = sorted(self._runtime.links.linked_nodes())
        if self._standing.has_no_quorum or not self._clients.has_roles:
            running = sorted([self._runtime.node, *linked])  # the records say who was up
        peers = [node for node in running if node in linked]
        own = {
            **self._versions(),
            "listeners": self._listeners(),
            "paused": self._standing.document(),
            "cut_off": self._cut_off(),
        }
        statuses = dict(sorted(({self._runtime.node: own} | await self._peers.statuses(peers)).items()))
        return {
            "cluster_name": f"warren@{configured[0]}",
            "disk_nodes": configured,
            "running_nodes": running,
            "versions": {
                node: {name: document.get(name) for name in self._versions()} | {"protocol": _protocol_of(document)}
                for node, document in statuses.items()
            },
            "protocol": {"version": self._state.protocol, "held_back_by": self._runtime.metadata.held_back_by()},
            "alarms": self._runtime.alarms.listing(),
            "paused": {node: document["paused"] for node, document in statuses.items() if document.get("paused")},
            "partitions": {node: cut for node, document in statuses.items() if (cut := document.get("cut_off"))},
            "listeners": {node: document.get("listeners", []) for node, document in statuses.items()},
            "leader": self._runtime.metadata.consensus.leader,
            **self._joining.document(),
        }

    async def status(self) -> Mapping[str, Any]:
        data_dir = self._runtime.config.data_dir
        return {
            "pid": self._system.process_id,
            "os": self._system.platform,
            "uptime": int(self._runtime.uptime_s),
            **self._versions(),
            "node_name": self._runtime.node,
            "data_directory": str(data_dir),
            "disk_free": self._runtime.alarms.disk.free_bytes,
            "memory": {"Total memory used (bytes)": self._probe.used_memory_bytes()},
            **self._runtime.alarms.status(),
            "connection_count": len(self._clients.connections()),
            "queue_count": sum(1 for _ in self._state.topology.all_queues()),
            "virtual_host_count": len(self._state.topology.vhosts()),
            "listeners": self._listeners(),
            "is_serving": self._clients.is_serving,
            "paused": self._standing.document(),
            "cut_off": self._cut_off(),
        }

    def _cut_off(self) -> list[NodeName]:
        """Members that count as up, and that this node has no link with."""
        linked = {self._runtime.node, *self._runtime.links.linked_nodes()}
        return sorted(each.node for each in self._state.members.values() if each.is_up and each.node not in linked)

    def _versions(self) -> dict[str, Any]:
        return {
            "warren_version": self._system.version,
            "python_version": self._system.python_version,
            "protocol": self._runtime.metadata.spoken,
        }

    def _listeners(self) -> list[dict[str, Any]]:
        config = self._runtime.config
        return [
            _listener(*config.amqp_listener, "amqp", "AMQP 0-9-1"),
            _listener(*config.cluster_listener, "grpc", "cluster and administration"),
        ]

    async def set_memory_watermark(self, watermark: MemoryWatermark) -> None:
        self._runtime.set_memory_watermark(watermark)

    async def set_disk_free_limit(self, limit: DiskFreeLimit) -> None:
        self._runtime.set_disk_free_limit(limit)

    async def shutdown(self) -> None:
        self._stop()

    # --- listings ---

    async def list_connections(self, columns: Sequence[str], *, local: bool = False) -> Table:
        node, incarnation = self._runtime.node, self._runtime.incarnation
        chosen = check_columns(LISTINGS["list_connections"], columns)
        rows = [
            connection_row(node, incarnation, each, self._system.time_of_day()) for each in self._clients.connections()
        ]
        return table("list_connections", chosen, rows + await self._of_peers("ListConnections", "", chosen, local))

    async def list_channels(self, columns: Sequence[str], *, local: bool = False) -> Table:
        node, incarnation = self._runtime.node, self._runtime.incarnation
        chosen = check_columns(LISTINGS["list_channels"], columns)
        rows = [row for each in self._clients.connections() for row in channel_rows(node, incarnation, each)]
        return table("list_channels", chosen, rows + await self._of_peers("ListChannels", "", chosen, local))

    async def list_flow(self, columns: Sequence[str], *, local: bool = False) -> Table:
        chosen = check_columns(LISTINGS["list_flow"], columns)
        rows: list[Row] = []
        for connection in self._clients.connections():
            pid = connection_id(self._runtime.node, self._runtime.incarnation, connection)
            if connection.alarmed_ms is not None:
                alarms = self._runtime.alarms.listing()
                node = self._runtime.node
                rows.append(alarm_row(node, pid, connection.name, connection.vhost, alarms, connection.alarmed_ms))
            for path in connection.slow_paths:
                queue = None if path.queue_id is None else self._runtime.records.find_queue(path.queue_id)
                record = None if queue is None else self._state.masterships[queue.queue_id]
                beyond = None if queue is None or record is None else await self._hop_beyond(queue, record)
                rows.append(flow_row(self._runtime.node, pid, connection.name, path, queue, record, beyond))
        return table("list_flow", chosen, rows + await self._of_peers("ListFlow", "", chosen, local))

    async def _hop_beyond(self, queue: QueueRecord, record: MastershipRecord) -> HopView | None:
        """The slowest of the hops from a queue on, wherever its master is; ``None`` if nothing waits there."""
        role = self._runtime.queues.roles.get(queue.queue_id)
        if isinstance(role, MasterRole):
            return role.process.flow.slowest(CONNECTION_MEMORY_MS)
        if record.is_down or not self._runtime.links.is_up(record.master):
            return None
        columns = ("name", "flow_slowest_hop", "flow_balance", "flow_blocked_ms", "flow_state")
        for row in await self._peers.rows("ListQueues", [record.master], queue.vhost, columns):
            if row["name"] == queue.name and row["flow_slowest_hop"] is not None:
                return HopView(*(row[column] for column in columns[1:]))
        return None

    async def list_consumers(self, vhost: str, columns: Sequence[str], *, local: bool = False) -> Table:
        self._require_vhost(vhost)
        chosen = check_columns(LISTINGS["list_consumers"], columns)
        masters = [role for role in self._runtime.queues.roles.values() if isinstance(role, MasterRole)]
        of_queues = await in_turns(
            make_each(
                lambda role: consumer_rows(role, self._state.members),
                [role for role in masters if role.queue.vhost == vhost],
                ROWS_PER_TURN,
            )
        )
        rows = [row for its_rows in of_queues for row in its_rows]
        return table("list_consumers", chosen, rows + await self._of_peers("ListConsumers", vhost, chosen, local))

    async def list_exchanges(self, vhost: str, columns: Sequence[str]) -> Table:
        self._require_vhost(vhost)
        exchanges = sorted(self._state.topology.exchanges(vhost), key=lambda exchange: exchange.name)

        def row_of(exchange: ExchangeRecord) -> Row:
            return exchange_row(exchange, self._state.policy_of_exchange(vhost, exchange.name))

        return await in_turns(table_in_pieces("list_exchanges", columns, exchanges, row_of))

    async def list_bindings(self, vhost: str, columns: Sequence[str]) -> Table:
        self._require_vhost(vhost)
        bindings = self._state.topology.bindings(vhost)
        return await in_turns(table_in_pieces("list_bindings", columns, bindings, binding_row))

    async def list_vhosts(self, columns: Sequence[str]) -> Table:
        self._standing.require()
        return table("list_vhosts", columns, [{"name": vhost} for vhost in sorted(self._state.topology.vhosts())])

    async def list_users(self, columns: Sequence[str]) -> Table:
        self._standing.require()
        users = sorted(self._state.users.users(), key=lambda user: user.name)
        return table("list_users", columns, [{"user": user.name, "tags": list(user.tags)} for user in users])

    async def list_permissions(self, vhost: str, columns: Sequence[str]) -> Table:
        self._require_vhost(vhost)
        rows = [
            {"user": each.user, "configure": each.configure, "write": each.write, "read": each.read}
            for each in self._state.users.permissions()
            if each.vhost == vhost
        ]
        return table("list_permissions", columns, rows)

    # --- users and vhosts ---

    async def add_user(self, name: str, password: str, tags: Sequence[str]) -> None:
        await self._change(AddUser(name, self._hashed(password), tuple(tags)))

    async def delete_user(self, name: str) -> None:
        await self._change(DeleteUser(name))

    async def change_password(self, name: str, password: str) -> None:
        await self._change(ChangePassword(name, self._hashed(password)))

    async def set_user_tags(self, name: str, tags: Sequence[str]) -> None:
        await self._change(SetUserTags(name, tuple(tags)))

    async def set_permissions(self, vhost: str, user: str, configure: str, write: str, read: str) -> None:
        await self._change(SetPermissions(vhost, user, configure, write, read))

    async def clear_permissions(self, vhost: str, user: str) -> None:
        await self._change(ClearPermissions(vhost, user))

    async def add_vhost(self, name: str) -> None:
        await self._change_topology(CreateVhost(name))

    async def delete_vhost(self, name: str) -> None:
        self._require_vhost(name)
        await self._change_topology(DeleteVhost(name, self._state.as_of_index))

    # --- helpers ---

    async def _change(self, command: Command) -> Any:
        """Refusals go up as they are: `exit_code_of` knows what each is worth."""
        return await self._standing.decided(lambda: self._runtime.metadata.change_everywhere(command))

    async def _change_topology(self, command: TopologyCommand) -> None:
        """Not as clients do (`MetadataGroup.submit`): they are not told whether it is worth trying again."""
        await self._change(ChangeTopology(command, self._runtime.node))

    async def _of_peers(self, listing: str, vhost: str, columns: Sequence[str], local: bool) -> list[Row]:
        if local:
            return []
        return await self._peers.rows(listing, sorted(self._runtime.links.linked_nodes()), vhost, columns)

    def _hashed(self, password: str) -> str:
        return hash_password(password, self._chance.randbytes(SALT_BYTES))

    def _require_vhost(self, vhost: str) -> None:
        self._standing.require()
        if not self._state.topology.has_vhost(vhost):
            raise AdminRefused(ExitCode.DATA, f"Virtual host '{vhost}' does not exist")

    def _queue(self, vhost: str, name: str) -> QueueRecord:
        self._require_vhost(vhost)
        queue = self._state.topology.queue(vhost, name)
        if queue is None:
            raise AdminRefused(ExitCode.DATA, f"no queue '{name}' in vhost '{vhost}' (not_found)")
        return queue

    def _mirrored_queue(self, vhost: str, name: str) -> tuple[QueueRecord, MastershipRecord]:
        queue = self._queue(vhost, name)
        record = self._state.masterships[queue.queue_id]
        policy = self._state.policy_of_queue(queue)
        if not record.mirrors and (policy is None or "ha-mode" not in policy.definition):
            raise AdminRefused(ExitCode.SOFTWARE, f"queue '{name}' in vhost '{vhost}' is not mirrored (not_mirrored)")
        if record.is_down:
            raise _queue_down(name)
        return queue, record

    def _master_role(self, queue: QueueRecord) -> MasterRole:
        role = self._runtime.queues.roles.get(queue.queue_id)
        if not isinstance(role, MasterRole):
            if (refusal := self._served.refusal(queue)) is not None:
                raise refusal
            raise AdminRefused(ExitCode.TEMPORARY, f"queue '{queue.name}' is changing its master: ask again")
        return role


def _queue_down(name: str) -> AdminRefused:
    return AdminRefused(ExitCode.TEMPORARY, f"queue '{name}' is down: no live node may act as its master")


def _is_selected(record: MastershipRecord, selection: QueueSelection, node: NodeName) -> bool:
    if selection.local:
        return record.master == node and not record.is_down
    if selection.online == selection.offline:
        return True
    return record.is_down if selection.offline else not record.is_down


def _protocol_of(status: Mapping[str, Any]) -> int:
    """What a node speaks, by what it says of itself; the first releases say nothing."""
    return int(status.get("protocol", FIRST_PROTOCOL))


def _listener(host: str, port: int, protocol: str, purpose: str) -> dict[str, Any]:
    return {"interface": host, "port": port, "protocol": protocol, "purpose": purpose}

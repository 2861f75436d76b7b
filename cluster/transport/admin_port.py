"""What the admin service asks of a node, in plain values.

`cluster.runtime.admin.NodeAdmin` implements `AdminPort`; `cluster.transport.admin_server` carries it over gRPC and
`cluster.transport.admin_client.AdminClient` offers the same methods, blocking, to warrenctl and the laboratory.
An implementation refuses a request by raising `AdminRefused`, or lets any `WarrenError` through, see `exit_code_of`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from cluster.metadata.errors import NoQuorumError, NoSuchUserError, NoSuchVhostError
from cluster.metadata.records import PolicyRecord
from cluster.raft.core import ProposalRefusedError
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.errors import AmqpError, ConfigError, WarrenError
from node.ids import QueueId


class ExitCode(IntEnum):
    """Exit codes of rabbitmqctl (sysexits.h)."""

    OK = 0
    #: The arguments make no sense, or a condition (``--if-empty``) failed.
    USAGE = 64
    #: What is named does not exist, or cannot be parsed.
    DATA = 65
    NO_USER = 67
    #: The node does not answer, or refuses our cookie.
    UNAVAILABLE = 69
    SOFTWARE = 70
    #: Worth trying again: no quorum at the moment, timeout.
    TEMPORARY = 75
    CONFIG = 78


class AdminRefused(WarrenError):
    """A request that is refused, with the exit code and the text that the operator sees."""

    def __init__(self, exit_code: int, message: str) -> None:
        self.exit_code = ExitCode(exit_code)
        self.message = message
        super().__init__(message)


class WrongCookie(AdminRefused):
    """Who asks has another cookie than the node that is asked. Who that is, and what to do, the asker knows."""

    def __init__(self) -> None:
        super().__init__(ExitCode.UNAVAILABLE, "wrong cookie: the one given is not the node's")


def exit_code_of(error: WarrenError) -> ExitCode:
    """Exit code for an error that a node raised: `AdminRefused` says it itself, AMQP's 404 is a data error.

    `ExitCode.TEMPORARY` if the metadata group refused for the moment, or has not decided in time.
    """
    if isinstance(error, AdminRefused):
        return error.exit_code
    if isinstance(error, AmqpError):
        return {404: ExitCode.DATA, 406: ExitCode.USAGE}.get(error.reply_code, ExitCode.SOFTWARE)
    if isinstance(error, NoSuchUserError):
        return ExitCode.NO_USER
    if isinstance(error, NoSuchVhostError):
        return ExitCode.DATA
    if isinstance(error, ProposalRefusedError | NoQuorumError):
        return ExitCode.TEMPORARY
    if isinstance(error, ConfigError):
        return ExitCode.CONFIG
    return ExitCode.SOFTWARE


@dataclass(frozen=True, slots=True)
class Table:
    """A listing. Cells are JSON values (str, int, float, bool, None, list, dict), one per column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def as_dicts(self) -> list[dict[str, Any]]:
        """One dict per row, keyed by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """How far ``sync_queue`` is."""

    #: Messages that the slowest mirror being filled has, of ``total_messages`` that it must have.
    synchronised_messages: int
    total_messages: int
    is_finished: bool


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """Which queues `AdminPort.list_queues` lists; no flag: all of the vhost."""

    #: Only queues whose master is up.
    online: bool = False
    #: Only queues whose master is down.
    offline: bool = False
    #: Only queues whose master is on the node asked; overrides both others.
    local: bool = False


class AdminPort(Protocol):
    """A node as the admin service sees it. In listings, empty ``columns`` means the default columns of
    rabbitmqctl for that listing, and an unknown column is refused with `ExitCode.USAGE`."""

    async def set_policy(self, policy: PolicyRecord) -> None:
        """Create or replace a policy; an invalid definition is `ExitCode.SOFTWARE`, as in rabbitmqctl."""

    async def clear_policy(self, vhost: str, name: str) -> None: ...

    async def list_policies(self, vhost: str, columns: Sequence[str]) -> Table: ...

    async def list_queues(self, vhost: str, columns: Sequence[str], selection: QueueSelection) -> Table: ...

    def sync_queue(self, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        """Fill the unsynchronised mirrors; the last value, ``is_finished``, comes when every mirror is synchronised
        or the synchronisation was cancelled, and then has fewer messages than it must have. The caller going away does
        not cancel it."""

    async def cancel_sync_queue(self, vhost: str, name: str) -> None:
        """Stop filling; success too when nothing is being filled."""

    async def force_promote(self, vhost: str, name: str, node: str, *, may_be_empty: bool = False) -> None:
        """Have ``node`` serve a queue that waits for a complete copy, with what it has: what it lacks is lost.

        `ExitCode.SOFTWARE` if the queue is served, if the node is not up or no member, or, unless it ``may_be_empty``,
        if the node has nothing of it; `ExitCode.TEMPORARY` if the node does not say whether it has.
        """

    async def held_copies(self, queue_ids: Sequence[QueueId]) -> Mapping[QueueId, int]:
        """Of which of these queues the node asked has something, open or on its disk, and how far that is
        (`node.queues.stored_copies`)."""

    def rebalance_queues(
        self, vhost_pattern: str, queue_pattern: str, *, is_dry_run: bool
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Move masters to synchronised mirrors until the nodes serve nearly as many of these queues each.

        One JSON object for each move (``vhost``, ``queue``, ``from``, ``to``, ``state``: planned, moved or refused,
        ``reason``), then one with ``is_finished``, ``moves`` and ``masters`` (node -> number). A pattern that is no
        regular expression is `ExitCode.USAGE`; an empty one finds everything.
        """

    async def purge_queue(self, vhost: str, name: str) -> int:
        """Number of ready messages that were removed."""

    async def delete_queue(self, vhost: str, name: str, *, if_empty: bool, if_unused: bool) -> int:
        """Number of ready messages that went with it; a condition that fails is `ExitCode.USAGE`."""

    async def forget_cluster_node(self, node: str, *, is_confirmed: bool = False) -> Mapping[str, Any]:
        """Remove a node that is down and will not return.

        ``deleted_queues`` names those that went with it; ``lossy_queues`` those that waited for it alone, each with the
        node that serves it with what it has; ``unheard_nodes`` members that did not say what they have.

        `ExitCode.SOFTWARE` if it is up, or no member; or, unless it ``is_confirmed``, if queues would be deleted of
        which members that do not answer may have something, or whose heirs go before it is carried out.
        """

    async def join_cluster(self, address: str) -> Mapping[str, Any]:
        """Have the node asked, which is alone and has no data, join the cluster of the node at ``address``.

        Returns before it has; ``cluster`` names the members that it joins. The node begins again with an empty
        directory. `ExitCode.SOFTWARE` if it has data or is of a cluster, or if that cluster has its name already.
        """

    async def reset(self) -> None:
        """Begin again with an empty directory, as a node that is alone; returns before it has.

        `ExitCode.SOFTWARE` if it is of a cluster of several, `TEMPORARY` if it begins again already for another order.
        """

    async def cluster_status(self) -> Mapping[str, Any]:
        """JSON object with the keys of ``rabbitmqctl cluster_status --formatter json``."""

    async def status(self) -> Mapping[str, Any]:
        """JSON object about the node asked."""

    async def shutdown(self) -> None:
        """Begin an orderly stop of the node asked; returns before the node is gone."""

    async def set_memory_watermark(self, watermark: MemoryWatermark) -> None:
        """Of the node asked, until it stops."""

    async def set_disk_free_limit(self, limit: DiskFreeLimit) -> None:
        """Of the node asked, until it stops."""

    async def list_connections(self, columns: Sequence[str], *, local: bool = False) -> Table:
        """Of the cluster, or (``local``) of the node asked."""

    async def list_channels(self, columns: Sequence[str], *, local: bool = False) -> Table:
        """Of the cluster, or (``local``) of the node asked."""

    async def list_consumers(self, vhost: str, columns: Sequence[str], *, local: bool = False) -> Table:
        """Of the cluster's queues, or (``local``) of those mastered on the node asked."""

    async def list_flow(self, columns: Sequence[str], *, local: bool = False) -> Table:
        """Paths of the credit flow that slow connections down, and publishers that an alarm has stopped: of the
        cluster's connections, or (``local``) of the node's."""

    async def list_exchanges(self, vhost: str, columns: Sequence[str]) -> Table: ...

    async def list_bindings(self, vhost: str, columns: Sequence[str]) -> Table: ...

    async def list_vhosts(self, columns: Sequence[str]) -> Table: ...

    async def list_users(self, columns: Sequence[str]) -> Table: ...

    async def list_permissions(self, vhost: str, columns: Sequence[str]) -> Table: ...

    async def add_user(self, name: str, password: str, tags: Sequence[str]) -> None: ...

    async def delete_user(self, name: str) -> None: ...

    async def change_password(self, name: str, password: str) -> None: ...

    async def set_user_tags(self, name: str, tags: Sequence[str]) -> None: ...

    async def set_permissions(self, vhost: str, user: str, configure: str, write: str, read: str) -> None: ...

    async def clear_permissions(self, vhost: str, user: str) -> None: ...

    async def add_vhost(self, name: str) -> None: ...

    async def delete_vhost(self, name: str) -> None: ...

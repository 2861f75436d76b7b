"""Blocking client of one node's admin service, for warrenctl and the laboratory.

Methods are those of `cluster.transport.admin_port.AdminPort`, without ``await``. Every one raises `AdminError`;
a node that cannot be reached, or that refuses the cookie, is exit code 69.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import grpc

from cluster.metadata.records import PolicyRecord
from cluster.transport import admin_codec as codec
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection, SyncProgress, Table
from cluster.transport.admin_proof import NONCE_BYTES
from cluster.transport.grpc_silence import silence_options
from cluster.transport.grpc_stops import is_stop
from cluster.wire import admin_pb2 as pb
from cluster.wire.admin_pb2_grpc import AdminStub
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.errors import WarrenError
from node.pieces import at_once

#: Seconds for one request, as rabbitmqctl's listings; synchronisation has no limit unless asked for.
DEFAULT_TIMEOUT_S = 60.0
#: A node that does not even answer a ping for so long is gone. Far above what a busy or frozen one may take.
SILENCE_TIMEOUT_MS = 60_000

_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


class AdminError(WarrenError):
    """The node refused, or there is no node. ``exit_code`` is what warrenctl returns to the shell."""

    def __init__(self, exit_code: int, message: str) -> None:
        self.exit_code = exit_code
        self.message = message
        super().__init__(message)


class _CallDetails(NamedTuple):
    """`grpc.ClientCallDetails`, which has no constructor."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _Prover(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    """Puts into each request what ``prove`` (method, timeout in seconds) gives for it."""

    def __init__(self, prove: Callable[[str, float | None], list[tuple[str, bytes]]]) -> None:
        self._prove = prove

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._proven(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._proven(client_call_details), request)

    def _proven(self, details: Any) -> _CallDetails:
        metadata = [*(details.metadata or ()), *self._prove(details.method, details.timeout)]
        return _CallDetails(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


class AdminClient:
    """One node's admin service at ``host:port``, the address of its cluster listener.

    Use it as a context manager or call `close`. Safe to use from several threads. ``timeout_s`` bounds each request.
    ``channel_credentials`` secures the connection (TLS); without them it is plain. What has no time limit ends, too, if
    the node is silent for ``silence_timeout_ms``: a machine that vanishes hangs up on nobody.
    """

    def __init__(
        self,
        address: str,
        cookie: str = "",
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        channel_credentials: grpc.ChannelCredentials | None = None,
        silence_timeout_ms: int = SILENCE_TIMEOUT_MS,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._cookie = cookie.encode()
        options = (*codec.CHANNEL_OPTIONS, *silence_options(silence_timeout_ms))
        if channel_credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, channel_credentials, options)
        self._unproven = AdminStub(self._channel)
        self._stub = AdminStub(grpc.intercept_channel(self._channel, _Prover(self._prove)))

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- policies ---

    def set_policy(self, policy: PolicyRecord) -> None:
        self._call(self._stub.SetPolicy, codec.policy_to_wire(policy))

    def clear_policy(self, vhost: str, name: str) -> None:
        self._call(self._stub.ClearPolicy, pb.PolicyName(vhost=vhost, name=name))

    def list_policies(self, vhost: str = "/", columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListPolicies, vhost, columns)

    # --- queues ---

    def list_queues(
        self, vhost: str = "/", columns: Sequence[str] = (), selection: QueueSelection | None = None
    ) -> Table:
        request = codec.listing_to_wire(vhost, columns, selection)
        return at_once(codec.table_from_wire(self._call(self._stub.ListQueues, request)))

    def sync_queue(self, vhost: str, name: str, *, timeout_s: float | None = None) -> Iterator[SyncProgress]:
        """Progress until the queue is synchronised or the synchronisation is cancelled; no time limit by default."""
        request = pb.QueueRef(vhost=vhost, name=name)
        try:
            for progress in self._stub.SyncQueue(request, timeout=timeout_s):
                yield codec.progress_from_wire(progress)
        except grpc.RpcError as error:
            call: Any = error
            if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                text = f"queue '{name}' is not synchronised yet, which goes on: see list_queues"
                raise AdminError(ExitCode.TEMPORARY, text) from None
            raise self._admin_error(error) from None

    def cancel_sync_queue(self, vhost: str, name: str) -> None:
        self._call(self._stub.CancelSyncQueue, pb.QueueRef(vhost=vhost, name=name))

    def force_promote(self, vhost: str, name: str, node: str, *, may_be_empty: bool = False) -> None:
        """``node`` serves a queue that waits for a complete copy, with what it has: what it lacks is lost.

        ``may_be_empty``: even if it has nothing of it.
        """
        request = pb.ForcePromoteRequest(vhost=vhost, name=name, node=node, may_be_empty=may_be_empty)
        self._call(self._stub.ForcePromote, request)

    def purge_queue(self, vhost: str, name: str) -> int:
        """Number of ready messages that were removed."""
        return self._call(self._stub.PurgeQueue, pb.QueueRef(vhost=vhost, name=name)).messages

    def delete_queue(self, vhost: str, name: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Number of ready messages that went with the queue."""
        request = pb.DeleteQueueRequest(vhost=vhost, name=name, if_empty=if_empty, if_unused=if_unused)
        return self._call(self._stub.DeleteQueue, request).messages

    # --- node and cluster ---

    def cluster_status(self) -> dict[str, Any]:
        return self._document(self._stub.ClusterStatus)

    def status(self) -> dict[str, Any]:
        return self._document(self._stub.Status)

    def forget_cluster_node(self, node: str, *, is_confirmed: bool = False) -> dict[str, Any]:
        """Remove a node that is down and will not return; the answer is that of `AdminPort.forget_cluster_node`."""
        request = pb.ForgetNodeRequest(node=node, is_confirmed=is_confirmed)
        document: dict[str, Any] = json.loads(self._call(self._stub.ForgetNode, request).json)
        return document

    def rebalance_queues(
        self, vhost_pattern: str, queue_pattern: str, *, is_dry_run: bool, timeout_s: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """A report for each move, and a last one (`AdminPort.rebalance_queues`); no time limit by default."""
        request = pb.RebalanceRequest(vhost_pattern=vhost_pattern, queue_pattern=queue_pattern, is_dry_run=is_dry_run)
        try:
            for document in self._stub.RebalanceQueues(request, timeout=timeout_s):
                yield json.loads(document.json)
        except grpc.RpcError as error:
            raise self._admin_error(error) from None

    def join_cluster(self, address: str) -> dict[str, Any]:
        """Begin to join the cluster of the node at ``address``; ``cluster`` names its members."""
        document: dict[str, Any] = json.loads(self._call(self._stub.JoinCluster, pb.JoinRequest(address=address)).json)
        return document

    def reset(self) -> None:
        """Begin again with an empty directory, alone; returns before the node has."""
        self._call(self._stub.Reset, pb.Nothing())

    def shutdown(self) -> None:
        """Begin an orderly stop; returns before the node is gone."""
        self._call(self._stub.Shutdown, pb.Nothing())

    def set_memory_watermark(self, watermark: MemoryWatermark) -> None:
        """Of this node, until it stops."""
        self._call(self._stub.SetMemoryWatermark, codec.watermark_to_wire(watermark))

    def set_disk_free_limit(self, limit: DiskFreeLimit) -> None:
        """Of this node, until it stops."""
        self._call(self._stub.SetDiskFreeLimit, codec.disk_limit_to_wire(limit))

    # --- listings ---

    def list_connections(self, columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListConnections, "", columns)

    def list_channels(self, columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListChannels, "", columns)

    def list_flow(self, columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListFlow, "", columns)

    def list_consumers(self, vhost: str = "/", columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListConsumers, vhost, columns)

    def list_exchanges(self, vhost: str = "/", columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListExchanges, vhost, columns)

    def list_bindings(self, vhost: str = "/", columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListBindings, vhost, columns)

    def list_vhosts(self, columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListVhosts, "", columns)

    def list_users(self, columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListUsers, "", columns)

    def list_permissions(self, vhost: str = "/", columns: Sequence[str] = ()) -> Table:
        return self._list(self._stub.ListPermissions, vhost, columns)

    # --- users and vhosts ---

    def add_user(self, name: str, password: str, tags: Sequence[str] = ()) -> None:
        self._call(self._stub.AddUser, pb.User(name=name, password=password, tags=tags))

    def delete_user(self, name: str) -> None:
        self._call(self._stub.DeleteUser, pb.User(name=name))

    def change_password(self, name: str, password: str) -> None:
        self._call(self._stub.ChangePassword, pb.User(name=name, password=password))

    def set_user_tags(self, name: str, tags: Sequence[str]) -> None:
        self._call(self._stub.SetUserTags, pb.User(name=name, tags=tags))

    def set_permissions(self, vhost: str, user: str, configure: str, write: str, read: str) -> None:
        request = pb.Permissions(vhost=vhost, user=user, configure=configure, write=write, read=read)
        self._call(self._stub.SetPermissions, request)

    def clear_permissions(self, vhost: str, user: str) -> None:
        self._call(self._stub.ClearPermissions, pb.Permissions(vhost=vhost, user=user))

    def add_vhost(self, name: str) -> None:
        self._call(self._stub.AddVhost, pb.Vhost(name=name))

    def delete_vhost(self, name: str) -> None:
        self._call(self._stub.DeleteVhost, pb.Vhost(name=name))

    # --- plumbing ---

    def _prove(self, method: str, timeout_s: float | None) -> list[tuple[str, bytes]]:
        """Metadata that answer a challenge of the node, which has proved that it knows the cookie."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            said = self._unproven.Challenge(pb.ChallengeRequest(nonce=nonce), timeout=timeout_s or self.timeout_s)
        except grpc.RpcError as error:
            raise self._admin_error(error) from None
        try:
            return codec.answer_challenge(self._cookie, nonce, said, method)
        except AdminRefused as error:
            raise AdminError(error.exit_code, error.message) from None

    def _call(self, method: Callable[..., _Answer], request: object) -> _Answer:
        try:
            return method(request, timeout=self.timeout_s)
        except grpc.RpcError as error:
            raise self._admin_error(error) from None

    def _list(self, method: Callable[..., pb.Table], vhost: str, columns: Sequence[str]) -> Table:
        return at_once(codec.table_from_wire(self._call(method, codec.listing_to_wire(vhost, columns))))

    def _document(self, method: Callable[..., pb.Document]) -> dict[str, Any]:
        document: Mapping[str, Any] = json.loads(self._call(method, pb.Nothing()).json)
        return dict(document)

    def _admin_error(self, error: grpc.RpcError) -> AdminError:
        call: Any = error  # grpc raises the call itself as the error, which its types cannot express
        for key, value in call.trailing_metadata() or ():
            if key == codec.EXIT_CODE_METADATA_KEY:
                return AdminError(int(value), call.details() or "")
        status = call.code()
        if is_stop(call.details()):
            return AdminError(ExitCode.UNAVAILABLE, f"{self.address} stopped, or began again, before it had answered")
        if status is grpc.StatusCode.UNAVAILABLE:
            return AdminError(ExitCode.UNAVAILABLE, f"unable to connect to {self.address}: {call.details()}")
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            return AdminError(ExitCode.TEMPORARY, f"{self.address} did not answer in time")
        if status is grpc.StatusCode.UNIMPLEMENTED:
            return AdminError(ExitCode.UNAVAILABLE, f"{self.address} {codec.OLDER_RELEASE}")
        return AdminError(ExitCode.SOFTWARE, f"{self.address}: {status.name}: {call.details()}")

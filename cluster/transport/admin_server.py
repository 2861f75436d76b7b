"""The Admin service: unpacks requests, calls the `AdminPort`, packs answers, turns errors into statuses.

It is added to the gRPC server of the mesh, so a node has one cluster port.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

import grpc
import grpc.aio

from cluster.transport import admin_codec as codec
from cluster.transport.admin_port import AdminPort, AdminRefused, ExitCode, Table, WrongCookie, exit_code_of
from cluster.transport.admin_proof import Challenges
from cluster.transport.turns import in_turns
from cluster.wire import admin_pb2 as pb
from cluster.wire.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from node.errors import WarrenError
from node.ids import QueueId
from node.throttled_log import ThrottledLog

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Context = grpc.aio.ServicerContext[Any, Any]

_STATUS_OF_EXIT_CODE = {
    ExitCode.USAGE: grpc.StatusCode.INVALID_ARGUMENT,
    ExitCode.DATA: grpc.StatusCode.NOT_FOUND,
    ExitCode.NO_USER: grpc.StatusCode.NOT_FOUND,
    ExitCode.UNAVAILABLE: grpc.StatusCode.UNAUTHENTICATED,
    ExitCode.SOFTWARE: grpc.StatusCode.FAILED_PRECONDITION,
    ExitCode.TEMPORARY: grpc.StatusCode.UNAVAILABLE,
    ExitCode.CONFIG: grpc.StatusCode.FAILED_PRECONDITION,
}


async def _refuse(context: _Context, exit_code: ExitCode, message: str) -> NoReturn:
    metadata = ((codec.EXIT_CODE_METADATA_KEY, str(int(exit_code))),)
    await context.abort(_STATUS_OF_EXIT_CODE[exit_code], message, metadata)
    raise AssertionError("abort raises")


class AdminService(AdminServicer):
    """One node's admin service. ``cookie`` is the secret that callers must prove to know."""

    def __init__(self, port: AdminPort, cookie: str) -> None:
        self._port = port
        self._challenges = Challenges(cookie.encode(), time.monotonic, secrets.token_bytes)
        self._refusals = ThrottledLog(logger)

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Every request but `Challenge` is looked at by `_Guard` first: none can be added without."""
        collected = _Collected()
        add_AdminServicer_to_server(self, cast(grpc.aio.Server, collected))
        server.add_generic_rpc_handlers(
            tuple(_Guard(each, self._challenges, self._refusals) for each in collected.handlers)
        )

    async def Challenge(self, request: pb.ChallengeRequest, context: _Context) -> pb.ChallengeReply:
        try:
            nonce, proof = self._challenges.challenge(request.nonce)
        except ValueError as error:
            await _refuse(context, ExitCode.USAGE, str(error))
        return pb.ChallengeReply(nonce=nonce, proof=proof)

    # --- policies ---

    async def SetPolicy(self, request: pb.Policy, context: _Context) -> pb.Done:
        try:
            policy = codec.policy_from_wire(request)
        except ValueError as error:
            await _refuse(context, ExitCode.DATA, f"JSON decoding error. Reason: {error}")
        return await self._done(self._port.set_policy(policy), context)

    async def ClearPolicy(self, request: pb.PolicyName, context: _Context) -> pb.Done:
        return await self._done(self._port.clear_policy(request.vhost, request.name), context)

    async def ListPolicies(self, request: pb.Listing, context: _Context) -> pb.Table:
        return await self._table(self._port.list_policies(request.vhost, list(request.columns)), context)

    # --- queues ---

    async def ListQueues(self, request: pb.Listing, context: _Context) -> pb.Table:
        selection = codec.selection_from_wire(request)
        return await self._table(self._port.list_queues(request.vhost, list(request.columns), selection), context)

    async def SyncQueue(self, request: pb.QueueRef, context: _Context) -> AsyncIterator[pb.SyncProgress]:
        try:
            async for progress in self._port.sync_queue(request.vhost, request.name):
                yield codec.progress_to_wire(progress)
        except WarrenError as error:
            await _refuse(context, exit_code_of(error), str(error))

    async def CancelSyncQueue(self, request: pb.QueueRef, context: _Context) -> pb.Done:
        return await self._done(self._port.cancel_sync_queue(request.vhost, request.name), context)

    async def ForcePromote(self, request: pb.ForcePromoteRequest, context: _Context) -> pb.Done:
        promotion = self._port.force_promote(
            request.vhost, request.name, request.node, may_be_empty=request.may_be_empty
        )
        return await self._done(promotion, context)

    async def HeldCopies(self, request: pb.QueueIds, context: _Context) -> pb.Copies:
        queue_ids = [QueueId(queue_id) for queue_id in request.queue_ids]
        reaches = await self._run(self._port.held_copies(queue_ids), context)
        return pb.Copies(reaches=dict(reaches.items()))

    async def PurgeQueue(self, request: pb.QueueRef, context: _Context) -> pb.MessageCount:
        return pb.MessageCount(messages=await self._run(self._port.purge_queue(request.vhost, request.name), context))

    async def DeleteQueue(self, request: pb.DeleteQueueRequest, context: _Context) -> pb.MessageCount:
        deletion = self._port.delete_queue(
            request.vhost, request.name, if_empty=request.if_empty, if_unused=request.if_unused
        )
        return pb.MessageCount(messages=await self._run(deletion, context))

    # --- node and cluster ---

    async def ClusterStatus(self, request: pb.Nothing, context: _Context) -> pb.Document:
        return await self._document(self._port.cluster_status(), context)

    async def Status(self, request: pb.Nothing, context: _Context) -> pb.Document:
        return await self._document(self._port.status(), context)

    async def ForgetNode(self, request: pb.ForgetNodeRequest, context: _Context) -> pb.Document:
        forgetting = self._port.forget_cluster_node(request.node, is_confirmed=request.is_confirmed)
        return await self._document(forgetting, context)

    async def RebalanceQueues(self, request: pb.RebalanceRequest, context: _Context) -> AsyncIterator[pb.Document]:
        reports = self._port.rebalance_queues(
            request.vhost_pattern, request.queue_pattern, is_dry_run=request.is_dry_run
        )
        try:
            async for report in reports:
                yield pb.Document(json=json.dumps(dict(report)))
        except WarrenError as error:
            await _refuse(
                context, exit_code_of(error), error.message if isinstance(error, AdminRefused) else str(error)
            )

    async def JoinCluster(self, request: pb.JoinRequest, context: _Context) -> pb.Document:
        return await self._document(self._port.join_cluster(request.address), context)

    async def Reset(self, request: pb.Nothing, context: _Context) -> pb.Done:
        return await self._done(self._port.reset(), context)

    async def Shutdown(self, request: pb.Nothing, context: _Context) -> pb.Done:
        return await self._done(self._port.shutdown(), context)

    async def SetMemoryWatermark(self, request: pb.ResourceLimit, context: _Context) -> pb.Done:
        try:
            watermark = codec.watermark_from_wire(request)
        except ValueError as error:
            await _refuse(context, ExitCode.USAGE, str(error))
        return await self._done(self._port.set_memory_watermark(watermark), context)

    async def SetDiskFreeLimit(self, request: pb.ResourceLimit, context: _Context) -> pb.Done:
        try:
            limit = codec.disk_limit_from_wire(request)
        except ValueError as error:
            await _refuse(context, ExitCode.USAGE, str(error))
        return await self._done(self._port.set_disk_free_limit(limit), context)

    # --- listings ---

    async def ListConnections(self, request: pb.Listing, context: _Context) -> pb.Table:
        return await self._table(self._port.list_connections(list(request.columns), local=request.local), context)

    async def ListChannels(self, request: pb.Listing, context: _Context) -> pb.Table:
        return await self._table(self._port.list_channels(list(request.columns), local=request.local), context)

    async def ListFlow(self, request: pb.Listing, context: _Context) -> pb.Table:
        return await self._table(self._port.list_flow(list(request.columns), local=request.local), context)

    async def ListConsumers(self, request: pb.Listing, context: _Context) -> pb.Table:
        listing = self._port.list_consumers(request.vhost, list(request.columns), local=request.local)
        return await self._table(listing, context)

    async def ListExchanges(self, request: pb.Listing, context: _Context) -> pb.Table:
        return await self._table(self._port.list_exchanges(request.vhost, list(request.columns)), context)

    async def ListBindings(self, request: pb.Listing, context: _Context) -> pb.Table:
        return await self._table(self._port.list_bindings(request.vhost, list(request.columns)), context)

    async def ListVhosts(self, request: pb.Listing, context: _Context) -> pb.Table:
        return await self._table(self._port.list_vhosts(list(request.columns)), context)

    async def ListUsers(self, request: pb.Listing, context: _Context) -> pb.Table:
        return await self._table(self._port.list_users(list(request.columns)), context)

    async def ListPermissions(self, request: pb.Listing, context: _Context) -> pb.Table:
        return await self._table(self._port.list_permissions(request.vhost, list(request.columns)), context)

    # --- users and vhosts ---

    async def AddUser(self, request: pb.User, context: _Context) -> pb.Done:
        return await self._done(self._port.add_user(request.name, request.password, list(request.tags)), context)

    async def DeleteUser(self, request: pb.User, context: _Context) -> pb.Done:
        return await self._done(self._port.delete_user(request.name), context)

    async def ChangePassword(self, request: pb.User, context: _Context) -> pb.Done:
        return await self._done(self._port.change_password(request.name, request.password), context)

    async def SetUserTags(self, request: pb.User, context: _Context) -> pb.Done:
        return await self._done(self._port.set_user_tags(request.name, list(request.tags)), context)

    async def SetPermissions(self, request: pb.Permissions, context: _Context) -> pb.Done:
        change = self._port.set_permissions(request.vhost, request.user, request.configure, request.write, request.read)
        return await self._done(change, context)

    async def ClearPermissions(self, request: pb.Permissions, context: _Context) -> pb.Done:
        return await self._done(self._port.clear_permissions(request.vhost, request.user), context)

    async def AddVhost(self, request: pb.Vhost, context: _Context) -> pb.Done:
        return await self._done(self._port.add_vhost(request.name), context)

    async def DeleteVhost(self, request: pb.Vhost, context: _Context) -> pb.Done:
        return await self._done(self._port.delete_vhost(request.name), context)

    # --- plumbing ---

    async def _run(self, work: Awaitable[_Result], context: _Context) -> _Result:
        try:
            return await work
        except WarrenError as error:
            message = error.message if isinstance(error, AdminRefused) else str(error)
            await _refuse(context, exit_code_of(error), message)
        except TimeoutError as error:
            await _refuse(context, ExitCode.TEMPORARY, f"the cluster did not answer in time: {error}")

    async def _done(self, work: Awaitable[None], context: _Context) -> pb.Done:
        await self._run(work, context)
        return pb.Done()

    async def _table(self, work: Awaitable[Table], context: _Context) -> pb.Table:
        return await in_turns(codec.table_to_wire(await self._run(work, context)))

    async def _document(self, work: Awaitable[Mapping[str, Any]], context: _Context) -> pb.Document:
        return pb.Document(json=json.dumps(dict(await self._run(work, context))))


class _Collected:
    """Takes the handlers that the generated code would give to a server."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler[Any, Any]] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        self.handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """The same once more, for servers that look for methods by name; it would go round the guard."""


class _Guard(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Lets requests through to ``guarded`` whose caller has answered a challenge."""

    def __init__(
        self, guarded: grpc.GenericRpcHandler[Any, Any], challenges: Challenges, refusals: ThrottledLog
    ) -> None:
        self._guarded = guarded
        self._challenges = challenges
        self._refusals = refusals

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        handler: Any = self._guarded.service(handler_call_details)
        if handler is None or method == f"{codec.METHOD_PREFIX}Challenge":
            return handler
        given: dict[str, Any] = dict(handler_call_details.invocation_metadata or ())
        nonce = given.get(codec.CHALLENGE_METADATA_KEY, b"")
        proof = given.get(codec.PROOF_METADATA_KEY, b"")
        if nonce and self._challenges.is_proven(nonce, proof, method):
            return handler
        return _refusing(handler, "wrong cookie" if nonce else "no proof of the cookie", self._refusals)


def _refusing(handler: Any, what: str, refusals: ThrottledLog) -> Any:
    """A handler of the same kind that refuses."""

    async def refuse(_request: object, context: _Context) -> None:
        refusals.write(what, f"admin request from {context.peer()} refused: {what}")
        await _refuse(context, ExitCode.UNAVAILABLE, _REFUSALS[what])

    async def refuse_stream(request: object, context: _Context) -> AsyncIterator[None]:
        await refuse(request, context)
        yield

    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse_stream, handler.request_deserializer)
    return grpc.unary_unary_rpc_method_handler(refuse, handler.request_deserializer)


_REFUSALS = {
    "wrong cookie": WrongCookie().message,
    "no proof of the cookie": "the node asks for a proof of its cluster's cookie: use the warrenctl of its release",
}

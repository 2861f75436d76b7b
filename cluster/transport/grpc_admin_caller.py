"""Asks the admin service of other nodes over gRPC; channels stay open between questions.

Nodes may come back at other addresses, and an operator may name any (`join_cluster`). So channels are bounded: of too
many, those that were asked longest ago are closed when nobody waits for an answer there.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from cluster.transport import admin_codec as codec
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection, SyncProgress, Table
from cluster.transport.admin_proof import CHALLENGE_TIMEOUT_S, NONCE_BYTES
from cluster.transport.grpc_silence import silence_options
from cluster.transport.grpc_stops import is_stop
from cluster.transport.turns import in_turns
from cluster.wire import admin_pb2 as pb
from cluster.wire.admin_pb2_grpc import AdminStub
from node.ids import QueueId

#: What nodes are configured with by default (``cluster.silence_timeout_ms``).
SILENCE_TIMEOUT_MS = 5000
#: More than clusters have nodes.
CHANNELS_MAX = 64


class _KeptChannel:
    """A channel, and how many wait for answers there."""

    __slots__ = ("channel", "stub", "waiting")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.stub: Any = AdminStub(channel)
        self.waiting = 0


class GrpcAdminCaller:
    """Implements `cluster.transport.admin_caller.AdminCaller`. ``cookie`` is what the nodes ask for.

    ``channel_credentials`` secures the connections (TLS); without them they are plain. Whoever is silent for
    ``silence_timeout_ms`` while something is asked is gone: also what has no time limit ends when a machine vanishes.
    """

    def __init__(
        self,
        cookie: str,
        channel_credentials: grpc.ChannelCredentials | None = None,
        *,
        silence_timeout_ms: int = SILENCE_TIMEOUT_MS,
    ) -> None:
        self._channel_credentials = channel_credentials
        self._options = (*codec.CHANNEL_OPTIONS, *silence_options(silence_timeout_ms))
        self._cookie = cookie.encode()
        #: By address, the one that was asked last comes last.
        self._channels: dict[str, _KeptChannel] = {}

    async def close(self) -> None:
        while self._channels:  # somebody may ask meanwhile
            _, kept = self._channels.popitem()
            await kept.channel.close(None)

    async def listing(
        self, address: str, listing: str, vhost: str, columns: Sequence[str], *, timeout_s: float
    ) -> Table:
        request = codec.listing_to_wire(vhost, columns, QueueSelection(local=True))
        return await in_turns(codec.table_from_wire(await self._ask(address, listing, request, timeout_s)))

    async def status(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        answer = await self._ask(address, "Status", pb.Nothing(), timeout_s)
        document: dict[str, Any] = json.loads(answer.json)
        return document

    async def cluster_status(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        answer = await self._ask(address, "ClusterStatus", pb.Nothing(), timeout_s)
        document: dict[str, Any] = json.loads(answer.json)
        return document

    async def sync_queue(self, address: str, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        async with self._asked(address) as stub:
            metadata = await self._prove(stub, address, "SyncQueue", CHALLENGE_TIMEOUT_S)
            try:
                async for progress in stub.SyncQueue(pb.QueueRef(vhost=vhost, name=name), metadata=metadata):
                    yield codec.progress_from_wire(progress)
            except grpc.aio.AioRpcError as error:
                raise _refused(error) from None

    async def cancel_sync_queue(self, address: str, vhost: str, name: str, *, timeout_s: float) -> None:
        await self._ask(address, "CancelSyncQueue", pb.QueueRef(vhost=vhost, name=name), timeout_s)

    async def held_copies(
        self, address: str, queue_ids: Sequence[QueueId], *, timeout_s: float
    ) -> Mapping[QueueId, int]:
        answer = await self._ask(address, "HeldCopies", pb.QueueIds(queue_ids=queue_ids), timeout_s)
        return {QueueId(queue_id): reach for queue_id, reach in answer.reaches.items()}

    async def _ask(self, address: str, method: str, request: object, timeout_s: float) -> Any:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        async with self._asked(address) as stub:
            metadata = await self._prove(stub, address, method, timeout_s)
            try:
                return await getattr(stub, method)(request, timeout=max(0.0, until_s - loop.time()), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                raise _refused(error) from None

    async def _prove(self, stub: Any, address: str, method: str, timeout_s: float) -> list[tuple[str, bytes]]:
        """Metadata that answer a challenge of the node, which has proved that it knows the cookie."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            said = await stub.Challenge(pb.ChallengeRequest(nonce=nonce), timeout=timeout_s)
            return codec.answer_challenge(self._cookie, nonce, said, f"{codec.METHOD_PREFIX}{method}")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise AdminRefused(ExitCode.UNAVAILABLE, f"{address} {codec.OLDER_RELEASE}") from None
            raise _refused(error) from None

    @asynccontextmanager
    async def _asked(self, address: str) -> AsyncIterator[Any]:
        """The node there is being asked, by the stub that this gives."""
        kept = self._channels.pop(address, None) or _KeptChannel(self._open(address))
        self._channels[address] = kept
        kept.waiting += 1
        try:
            yield kept.stub
        finally:
            kept.waiting -= 1
            await self._close_excess()

    def _open(self, address: str) -> grpc.aio.Channel:
        credentials = self._channel_credentials
        if credentials is None:
            return grpc.aio.insecure_channel(address, self._options)
        return grpc.aio.secure_channel(address, credentials, self._options)

    async def _close_excess(self) -> None:
        """Of those where nobody waits."""
        idle = [address for address, kept in self._channels.items() if not kept.waiting]
        closed = [self._channels.pop(address) for address in idle[: max(0, len(self._channels) - CHANNELS_MAX)]]
        for kept in closed:
            await kept.channel.close(None)


def _refused(error: grpc.aio.AioRpcError) -> AdminRefused:
    code = ExitCode.UNAVAILABLE
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == codec.EXIT_CODE_METADATA_KEY:
            code = ExitCode(int(value))
    if is_stop(error.details()):
        return AdminRefused(ExitCode.UNAVAILABLE, "it stopped, or began again, before it had answered")
    return AdminRefused(code, error.details() or str(error.code()))

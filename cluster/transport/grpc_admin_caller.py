"""Asks the admin service of other nodes over gRPC; channels stay open between questions."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from cluster.transport import admin_codec as codec
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection, SyncProgress, Table
from cluster.transport.admin_proof import CHALLENGE_TIMEOUT_S, NONCE_BYTES
from cluster.transport.grpc_silence import silence_options
from cluster.transport.turns import in_turns
from cluster.wire import admin_pb2 as pb
from cluster.wire.admin_pb2_grpc import AdminStub
from node.ids import QueueId

#: What nodes are configured with by default (``cluster.silence_timeout_ms``).
SILENCE_TIMEOUT_MS = 5000


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
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()

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
        metadata = await self._prove(address, "SyncQueue", CHALLENGE_TIMEOUT_S)
        call = self._stub(address).SyncQueue(pb.QueueRef(vhost=vhost, name=name), metadata=metadata)
        try:
            async for progress in call:
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
        metadata = await self._prove(address, method, timeout_s)
        ask = getattr(self._stub(address), method)
        try:
            return await ask(request, timeout=max(0.0, until_s - loop.time()), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise _refused(error) from None

    async def _prove(self, address: str, method: str, timeout_s: float) -> list[tuple[str, bytes]]:
        """Metadata that answer a challenge of the node, which has proved that it knows the cookie."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            said = await self._stub(address).Challenge(pb.ChallengeRequest(nonce=nonce), timeout=timeout_s)
            return codec.answer_challenge(self._cookie, nonce, said, f"{codec.METHOD_PREFIX}{method}")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise AdminRefused(ExitCode.UNAVAILABLE, f"{address} {codec.OLDER_RELEASE}") from None
            raise _refused(error) from None

    def _stub(self, address: str) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            credentials = self._channel_credentials
            if credentials is None:
                channel = grpc.aio.insecure_channel(address, self._options)
            else:
                channel = grpc.aio.secure_channel(address, credentials, self._options)
            self._channels[address] = channel
        return AdminStub(channel)


def _refused(error: grpc.aio.AioRpcError) -> AdminRefused:
    code = ExitCode.UNAVAILABLE
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == codec.EXIT_CODE_METADATA_KEY:
            code = ExitCode(int(value))
    return AdminRefused(code, error.details() or str(error.code()))

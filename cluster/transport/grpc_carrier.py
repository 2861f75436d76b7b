"""The mesh over gRPC: one channel per connection, one bidirectional call per stream, beside the admin service.

Each connection has a channel (and so a TCP connection) of its own: a pool shared between channels would let a new
link inherit the backoff, or the break, of the old one. Silence is found by gRPC's keepalive
(`cluster.transport.grpc_silence`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import grpc
import grpc.aio

from cluster.transport.admin_server import AdminService
from cluster.transport.carrier import (
    LARGEST_FRAME_BYTES,
    Acceptor,
    AdminEndpoint,
    ProbeResult,
    StreamBroken,
    StreamKind,
)
from cluster.transport.grpc_silence import silence_options
from cluster.transport.grpc_stops import is_stop
from cluster.transport.grpc_tls import TlsCredentials
from cluster.transport.probe import bind_failure, probe

SERVICE_NAME = "warren.mesh.Mesh"
#: What reading from a stream gives at its end; grpc's type stubs do not know it.
_END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]

_ServerContext = grpc.aio.ServicerContext[Any, Any]


class GrpcCarrier:
    """Implements `cluster.transport.carrier.Carrier`; plain without ``tls``."""

    def __init__(self, tls: TlsCredentials | None = None) -> None:
        self._tls = tls
        self._server: grpc.aio.Server | None = None

    async def serve(
        self, address: str, acceptor: Acceptor, *, silence_timeout_ms: int, admin: AdminEndpoint | None = None
    ) -> int:
        server = grpc.aio.server(options=_options(silence_timeout_ms))
        handlers = {
            kind.value: grpc.stream_stream_rpc_method_handler(partial(_serve_stream, acceptor, kind))
            for kind in StreamKind
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
        if admin is not None:
            AdminService(admin.port, admin.cookie).add_to_server(server)
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._tls.server)
        except RuntimeError as error:
            # gRPC does not say why: ask the system.
            raise await bind_failure(address) or OSError(str(error)) from None
        await server.start()
        self._server = server
        return port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)

    def connect(self, address: str, *, silence_timeout_ms: int) -> _GrpcConnection:
        options = [
            *_options(silence_timeout_ms),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ]
        if self._tls is None:
            return _GrpcConnection(grpc.aio.insecure_channel(address, options=options))
        return _GrpcConnection(grpc.aio.secure_channel(address, self._tls.channel, options=options))

    async def probe(self, address: str, timeout_s: float) -> ProbeResult:
        return await probe(address, timeout_s)


class _GrpcConnection:
    """A channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def open_stream(self, kind: StreamKind) -> _OutgoingCall:
        open_call: Any = self._channel.stream_stream  # its type stub has no raw bytes
        return _OutgoingCall(open_call(f"/{SERVICE_NAME}/{kind.value}")())

    async def close(self) -> None:
        await self._channel.close(grace=None)


class _OutgoingCall:
    """The dialer's end of a call."""

    __slots__ = ("_call",)

    def __init__(self, call: Any) -> None:
        self._call = call

    async def write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise _broken(error) from None
        except asyncio.InvalidStateError as error:
            raise StreamBroken(str(error)) from None

    async def read(self) -> bytes | None:
        try:
            frame: Any = await self._call.read()
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise _broken(error) from None
        return None if frame is _END_OF_STREAM else frame

    def cancel(self) -> None:
        self._call.cancel()


class _IncomingCall:
    """The acceptor's end of a call."""

    __slots__ = ("_context",)

    def __init__(self, context: _ServerContext) -> None:
        self._context = context

    @property
    def caller(self) -> str:
        return self._context.peer()

    async def write(self, frame: bytes) -> None:
        try:
            await self._context.write(frame)
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise _broken(error) from None

    async def read(self) -> bytes | None:
        try:
            frame: Any = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise _broken(error) from None
        return None if frame is _END_OF_STREAM else frame


async def _serve_stream(acceptor: Acceptor, kind: StreamKind, _requests: object, context: _ServerContext) -> None:
    await acceptor(kind, _IncomingCall(context))


def _broken(error: Exception) -> StreamBroken:
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    if is_stop(details):
        details = "the peer stops, or begins again"
    return StreamBroken(details or repr(error))


def _options(silence_timeout_ms: int) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", LARGEST_FRAME_BYTES),
        *silence_options(silence_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]

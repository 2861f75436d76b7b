"""Is a node ready? Asked the way its users would: an AMQP handshake, and the admin service's own view."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Collection

from node.config import Address

_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
#: Frame type, channel, payload size; then class and method of the method frame.
_FRAME_START = struct.Struct(">BHIHH")
_METHOD_FRAME = 1
_CONNECTION_START = (10, 10)
#: One question; the caller asks again.
PROBE_TIMEOUT_S = 2.0


async def answers_amqp(address: Address) -> bool:
    """True if a broker there answers the protocol header with ``connection.start``."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(_PROTOCOL_HEADER)
                start = await reader.readexactly(_FRAME_START.size)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    frame_type, channel, _, class_id, method_id = _FRAME_START.unpack(start)
    return (frame_type, channel, (class_id, method_id)) == (_METHOD_FRAME, 0, _CONNECTION_START)


async def sees_running(admin_address: str, cookie: str, names: Collection[str]) -> bool:
    """True if the node at ``admin_address`` counts all of ``names`` among the running members."""
    return await asyncio.to_thread(_ask_running, admin_address, cookie, frozenset(names))


async def hindrance_of(admin_address: str, cookie: str) -> str:
    """Why the node there does not serve clients, in its own words; empty if it does, or does not say."""
    return await asyncio.to_thread(_ask_hindrance, admin_address, cookie)


def _ask_hindrance(admin_address: str, cookie: str) -> str:
    from cluster.transport.admin_client import AdminClient, AdminError  # noqa: PLC0415 - gRPC is slow to import

    with AdminClient(admin_address, cookie, timeout_s=PROBE_TIMEOUT_S) as client:
        try:
            paused = client.status().get("paused")
        except AdminError:
            return ""
    if not paused:
        return ""
    return f"{paused['reason']} (it lacks {', '.join(paused['lacks'])})" if paused["lacks"] else str(paused["reason"])


def _ask_running(admin_address: str, cookie: str, names: frozenset[str]) -> bool:
    from cluster.transport.admin_client import AdminClient, AdminError  # noqa: PLC0415 - gRPC is slow to import

    with AdminClient(admin_address, cookie, timeout_s=PROBE_TIMEOUT_S) as client:
        try:
            return names <= set(client.cluster_status()["running_nodes"])
        except AdminError:
            return False

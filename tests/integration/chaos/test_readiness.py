"""Who counts as an AMQP broker that answers."""

from __future__ import annotations

import asyncio

import pytest

from chaos.cluster_under_test.readiness import answers_amqp
from node.config import Address

pytestmark = pytest.mark.integration

#: The beginning of a ``connection.start`` frame: method frame on channel 0, its size, class 10, method 10.
START = bytes([1, 0, 0, 0, 0, 0, 9, 0, 10, 0, 10])


@pytest.mark.parametrize(
    ("answer", "is_broker"),
    [
        (START + b"\x00\x09\x00\x00\x00", True),
        (b"AMQP\x00\x00\x09\x01", False),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"", False),
    ],
)
async def test_only_connection_start_counts(answer: bytes, is_broker: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == b"AMQP\x00\x00\x09\x01"
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await answers_amqp(Address("127.0.0.1", port)) is is_broker
    assert not await answers_amqp(Address("127.0.0.1", port))

"""What asyncio's protocols know of sockets, over the simulated network: listeners, and transports with flow control.

The AMQP server of a node and the clients of the workload are ordinary `asyncio.Protocol`s; they cannot tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from chaos.sim.loop import Process
from chaos.sim.network import Address, End, Network

#: Of what a kernel takes without being asked to wait, and of what it wants back before it takes more (asyncio's).
HIGH_WATER_BYTES = 64 * 1024
LOW_WATER_BYTES = 16 * 1024


class SimulatedTransport(asyncio.Transport):
    """One end of a connection for an `asyncio.Protocol`. Satisfies `chaos.sim.network.Receiver`."""

    def __init__(self, end: End, protocol: asyncio.Protocol, peer: Address) -> None:
        super().__init__({"peername": peer, "sockname": (end.host, 0), "socket": None})
        self._end = end
        self._protocol = protocol
        self._is_closing = False
        self._is_lost = False
        self._is_protocol_paused = False
        self._low_bytes, self._high_bytes = LOW_WATER_BYTES, HIGH_WATER_BYTES

    # --- what the protocol does ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        self._end.send(bytes(data))
        if not self._is_protocol_paused and self._end.in_flight_bytes > self._high_bytes:
            self._is_protocol_paused = self._end.wants_room = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        raise NotImplementedError("AMQP closes both directions at once")

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.close()
            self._end.process.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._end.abort()
            self._end.process.call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._end.pause_reading()

    def resume_reading(self) -> None:
        self._end.resume_reading()

    def is_reading(self) -> bool:
        return self._end.is_reading

    def get_write_buffer_size(self) -> int:
        return self._end.in_flight_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = HIGH_WATER_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol), "streams only"
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    @property
    def heard(self) -> list[tuple[int, float]]:
        """Of what was received last: where each part of it ends, and when the other side has sent that."""
        return self._end.heard

    # --- what the network does ---

    def chunk_received(self, data: bytes) -> None:
        if not self._is_closing:
            self._protocol.data_received(data)

    def room_again(self) -> None:
        if self._is_protocol_paused and self._end.in_flight_bytes <= self._low_bytes:
            self._is_protocol_paused = self._end.wants_room = False
            self._protocol.resume_writing()

    def connection_closed(self, error: OSError | None) -> None:
        self._is_closing = True
        self._end.close()
        self._lose(error)

    def _lose(self, error: OSError | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._protocol.connection_lost(error)


class SimulatedServer:
    """A listening port. Satisfies `node.amqp.server.sockets.Listener`."""

    def __init__(self, network: Network, address: Address) -> None:
        self._network = network
        self.address = address

    @property
    def port(self) -> int:
        return self.address[1]

    def close(self) -> None:
        self._network.stop_listening(self.address)


def listen(
    network: Network, process: Process, address: Address, make_protocol: Callable[[], asyncio.Protocol]
) -> SimulatedServer:
    """Serve connections to an address on behalf of the process. Raises `OSError` if the port is taken."""

    def accept(end: End) -> SimulatedTransport:
        protocol = make_protocol()
        transport = SimulatedTransport(end, protocol, (end.other.host, 0))
        protocol.connection_made(transport)
        return transport

    network.listen(process, address, accept)
    return SimulatedServer(network, address)


async def connect(
    network: Network, process: Process, host: str, address: Address, make_protocol: Callable[[], asyncio.Protocol]
) -> asyncio.Protocol:
    """Like the loop's ``create_connection``; waits for ever where the network is silent. Raises `OSError`."""
    answer: asyncio.Future[asyncio.Protocol] = asyncio.get_running_loop().create_future()

    def connected(end: End) -> SimulatedTransport | None:
        if answer.done():
            return None
        protocol = make_protocol()
        transport = SimulatedTransport(end, protocol, address)
        protocol.connection_made(transport)
        answer.set_result(protocol)
        return transport

    def failed(error: OSError) -> None:
        if not answer.done():
            answer.set_exception(error)

    network.connect(process, host, address, connected, failed)
    return await answer

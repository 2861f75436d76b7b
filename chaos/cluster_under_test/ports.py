"""Ports for a cluster on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

#: Where Linux says which ports it hands to outgoing connections.
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Below everything a desktop or server usually listens on there is nothing to find.
_LOWEST_PORT = 20_000
_USUAL_EPHEMERAL_START = 32_768


class PortInUseError(Exception):
    """Somebody listens where a node should."""


def is_port_free(host: str, port: int) -> bool:
    """True if a server could listen there now (connections in TIME_WAIT do not matter to a server)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError:
            return False
    return True


def _ephemeral_start() -> int:
    try:
        return int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_EPHEMERAL_START


def choose_free_ports(host: str, count: int, taken: Iterable[int] = ()) -> list[int]:
    """``count`` ports that are free now and stay ours while a node is down.

    They lie below the range of outgoing connections: otherwise any client of this machine could sit on the port of a
    killed node when it is to start again. The search begins at a place that depends on the process, so that two
    clusters started at once seldom look at the same ports. Raises `PortInUseError` if there are not enough.
    """
    avoided = set(taken)
    high = max(_ephemeral_start(), _LOWEST_PORT + 1000)
    span = high - _LOWEST_PORT
    start = (os.getpid() * 97) % span
    chosen: list[int] = []
    for step in range(span):
        port = _LOWEST_PORT + (start + step) % span
        if port not in avoided and is_port_free(host, port):
            chosen.append(port)
            if len(chosen) == count:
                return chosen
    raise PortInUseError(f"no {count} free ports from {_LOWEST_PORT} to {high} on {host}; stop some servers")


def choose_amqp_ports(host: str, count: int, first: int | None) -> list[int]:
    """``first`` and the next ones, or free ones if it is ``None``. Raises `PortInUseError` naming the port."""
    if first is None:
        return choose_free_ports(host, count)
    ports = list(range(first, first + count))
    for port in ports:
        if port > 65535:
            raise PortInUseError(f"port {port} does not exist; choose a lower --amqp-port")
        if not is_port_free(host, port):
            raise PortInUseError(
                f"port {port} on {host} is in use; stop what listens there, "
                f"or choose others, for instance --amqp-port {first + 1000}"
            )
    return ports

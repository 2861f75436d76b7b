"""Is anybody listening at a TCP address, and why can nobody? Tells a process that is gone from a silent machine."""

from __future__ import annotations

import asyncio
import errno
import socket

from cluster.transport.carrier import ProbeResult

PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``. Raises `ValueError`."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or len(port) > len(str(PORT_MAX)) or int(port) > PORT_MAX:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def probe(address: str, timeout_s: float) -> ProbeResult:
    """Connect and hang up. `REFUSED` only if every address that the name stands for refuses. Never fails: where nobody
    can be, nobody answers."""
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        async with asyncio.timeout(timeout_s):
            candidates = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            results = [await _connect(loop, family, target) for family, _, _, _, target in candidates]
    except (TimeoutError, OSError, ValueError):
        return ProbeResult.SILENT
    if ProbeResult.ACCEPTED in results:
        return ProbeResult.ACCEPTED
    return ProbeResult.SILENT if ProbeResult.SILENT in results else ProbeResult.REFUSED


async def _connect(loop: asyncio.AbstractEventLoop, family: int, target: tuple[object, ...]) -> ProbeResult:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, target)
        except ConnectionRefusedError:
            return ProbeResult.REFUSED
        except OSError:
            return ProbeResult.SILENT
    return ProbeResult.ACCEPTED


async def bind_failure(address: str) -> OSError | None:
    """Why nobody can listen at ``address`` now; ``None`` if one could.

    Of a name that stands for several addresses, those that this machine does not have are no matter if it has another:
    so ``localhost`` is fine without IPv6. Never fails itself.
    """
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        candidates = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error
    except ValueError:  # also of a name that has no encoding for those who look it up
        return OSError(f"{address} is no host and port that can be looked up")
    failures = []
    for family, _, _, _, target in candidates:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(target)
        except OSError as error:
            failures.append(error)
    has_one = len(failures) < len(candidates)
    return next((error for error in failures if not (has_one and error.errno in _NOT_OURS)), None)


_NOT_OURS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})

"""The real Toxiproxy: a server of our own, and proxies that are as they were told to be.

The client library says nothing if the server fails, has no timeouts, and one address for the whole process. So this
module asks it for little, sets the address before each call, under a lock, and looks afterwards whether the proxy is
what it should be. All calls block: use a thread.

Facts of the server (2.5): ``enabled: false`` ends the connections of a proxy and refuses new ones; a ``timeout`` toxic
of 0 holds everything back and ends the connections when it is removed; a ``reset_peer`` toxic resets only connections
that began when it was there, others end in order. So for a reset the proxy is disabled and enabled with the toxic in
place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import requests
from toxiproxy import exceptions as refusals
from toxiproxy.api import APIConsumer
from toxiproxy.server import Toxiproxy as ToxiproxyClient

from chaos.cluster_under_test.ports import choose_free_ports
from chaos.harm.lines import Line, ProxyState, Toxic

_T = TypeVar("_T")

BINARY = "toxiproxy-server"
#: Names the server's binary, where it is not in PATH.
ENVIRONMENT = "TOXIPROXY_SERVER"
#: Seconds for the server to answer when it begins.
START_TIMEOUT_S = 10.0
#: Seconds for an answer, where the library lets us say so.
TIMEOUT_S = 5.0
_HOST = "127.0.0.1"
#: The library has no types. It has one address for all servers.
_API: Any = APIConsumer
_CLIENT: Any = ToxiproxyClient()
#: A KeyError: the answer of a server that fails lacks what the library looks for.
_FAILURES: tuple[type[Exception], ...] = (
    requests.RequestException,
    refusals.ProxyExists,
    refusals.NotFound,
    refusals.InvalidToxic,
    KeyError,
    ValueError,
)
_ONE_AT_A_TIME = threading.Lock()


class ToxiproxyMissingError(Exception):
    """There is no server on this machine; the text says how to get it."""


class ToxiproxyError(Exception):
    """It did not do what it was told."""


def find_server() -> Path:
    """The binary. Raises `ToxiproxyMissingError`."""
    named = os.environ.get(ENVIRONMENT)
    found = named or shutil.which(BINARY)
    if not found or not os.access(found, os.X_OK):
        where = f"{ENVIRONMENT} is {named}, which cannot be run" if named else f"there is no {BINARY} in PATH"
        raise ToxiproxyMissingError(
            f"faults of lines need the Toxiproxy server, and {where}; get it by: make toxiproxy (needs Go), "
            "or install the package toxiproxy"
        )
    return Path(found)


class Toxiproxy:
    """One server, and its proxies by line."""

    def __init__(
        self, log_path: Path, environment: Mapping[str, str] | None = None, taken_ports: Collection[int] = ()
    ) -> None:
        """Starts it, in this environment instead of ours. Raises `ToxiproxyMissingError`, `ToxiproxyError`.

        ``taken_ports`` are of others, who do not listen yet.
        """
        binary = find_server()
        self._taken_ports = set(taken_ports)
        self._port = self._take_port()
        self._proxies: dict[Line, Any] = {}
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [str(binary), "-host", _HOST, "-port", str(self._port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )
        try:
            self._await_answer(log_path)
        except BaseException:
            self.close()
            raise

    def _await_answer(self, log_path: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((_HOST, self._port), timeout=1.0):
                return
            time.sleep(0.02)
        raise ToxiproxyError(f"the Toxiproxy server does not answer; see {log_path}")

    def _take_port(self) -> int:
        [port] = choose_free_ports(_HOST, 1, self._taken_ports)
        self._taken_ports.add(port)
        return port

    def create(self, line: Line, upstream: str) -> str:
        """Begin a proxy to ``upstream`` (host:port). Returns where it listens.

        Not where the system would let it: on a port of those that it hands to outgoing connections somebody else may
        sit when the proxy is enabled again, or a client that is refused there again and again be met by itself.
        """
        listen = f"{_HOST}:{self._take_port()}"
        create = partial(_CLIENT.create, upstream=upstream, name=line.proxy, listen=listen)
        self._proxies[line] = self._ask(f"create {line.proxy}", create)
        return listen

    def set(self, line: Line, wanted: ProxyState) -> None:
        """Make the proxy of a line like that. Raises `ToxiproxyError` if it is not, afterwards."""
        proxy = self._proxies[line]
        current = self._state(proxy)
        new = wanted.toxics - current.toxics
        resets = any(toxic.type == "reset_peer" for toxic in new)
        if current.is_enabled and (resets or not wanted.is_enabled):
            self._ask(f"disable {line.proxy}", proxy.disable)
        for toxic in current.toxics - wanted.toxics:
            self._ask(f"remove {toxic.name}", partial(proxy.destroy_toxic, toxic.name))
        for toxic in new:
            self._ask(f"add {toxic.name}", partial(proxy.add_toxic, **_told(toxic)))
        if wanted.is_enabled and (resets or not current.is_enabled):
            self._ask(f"enable {line.proxy}", proxy.enable)
        became = self._state(proxy)
        if became != wanted:
            raise ToxiproxyError(f"the proxy {line.proxy} is {became}, and should be {wanted}")

    def _state(self, proxy: Any) -> ProxyState:
        told = self._ask(f"look at {proxy.name}", lambda: _API.get(f"/proxies/{proxy.name}", timeout=TIMEOUT_S).json())
        toxics = [
            Toxic(
                toxic["name"],
                toxic["type"],
                toxic["stream"],
                tuple(sorted((name, int(value)) for name, value in toxic["attributes"].items())),
            )
            for toxic in told["toxics"]
        ]
        return ProxyState(bool(told["enabled"]), frozenset(toxics))

    def _ask(self, what: str, call: Callable[[], _T]) -> _T:
        with _ONE_AT_A_TIME:
            _API.host, _API.port = _HOST, self._port
            try:
                return call()
            except _FAILURES as error:
                raise ToxiproxyError(f"Toxiproxy could not {what}: {error!r}") from error

    def close(self) -> None:
        """End the server, and all connections through it. May be called twice."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def _told(toxic: Toxic) -> Mapping[str, object]:
    return {
        "name": toxic.name,
        "type": toxic.type,
        "stream": toxic.stream,
        "attributes": dict(toxic.attributes),
    }


@contextlib.contextmanager
def toxiproxy_server(log_path: Path) -> Iterator[Toxiproxy]:
    """A server that ends whatever happens inside."""
    server = Toxiproxy(log_path)
    try:
        yield server
    finally:
        server.close()

"""A network in memory: carriers of the mesh between hosts of one process, with every fault that a network has.

It keeps the promises of `cluster.transport.carrier`, and uses the freedom that they leave as badly as a real network
would. It knows no clock but the running loop's and no chance but what it is given, so on a loop with virtual time one
seed is one run.

The model. A *host* is a machine with at most one process that matters, its carrier. A *path* is what the network does
to everything that one host sends to another, and only in that direction: how long it takes, whether it arrives. A
connection is two *ends*; what an end sends travels in one *pipe*, in order, like bytes of TCP:

- While a path is cut its pipes hold what is in them, and it arrives late when the path heals: TCP repeats, as long as
  the sending end lives. The notice that a connection is gone is not repeated. So cuts make half-open connections, as
  they do in the world.
- An end that hears nothing, because the way to it is cut or nobody is left at the other end, breaks after two thirds
  to the whole of its silence timeout: gRPC asks after one third, and waits for the rest of it.
- An end that is gone answers what still comes with a reset; the end of a lost machine does not (`vanish`).
- `reset` breaks both ends at once: of what was under way, and of what had arrived and was not read yet, only a
  beginning of random length is still read, in each direction and on each stream separately.
- A writer waits when a window of bytes is on its way or unread; what the reader took is granted anew by a notice that
  must travel too.
"""

from __future__ import annotations

import asyncio
import errno
from random import Random

from cluster.transport.carrier import Acceptor, AdminEndpoint, ProbeResult
from cluster.transport.probe import split_address
from tests.support.memory_connection import End, Knock, Listener
from tests.support.memory_path import Path

#: Bytes of one stream that may be on their way or unread before its writer waits.
WINDOW_BYTES = 256 * 1024
#: Where ports begin that a host chooses.
FIRST_CHOSEN_PORT = 49152
#: Addresses to listen on that mean the host itself.
ANY_ADDRESS = ("", "0.0.0.0", "::")


class MemoryNetwork:
    """The hosts and what lies between them. ``chance`` decides whatever a network leaves open."""

    def __init__(self, chance: Random, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.chance = chance
        self.window_bytes = window_bytes
        self.listeners: dict[str, Listener] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        #: By host, of its present process.
        self._carriers: dict[str, MemoryCarrier] = {}
        #: Hosts without power, see `vanish`.
        self._lost: set[str] = set()
        self._next_port = FIRST_CHOSEN_PORT

    def carrier(self, host: str) -> MemoryCarrier:
        """The carrier of a process that starts on ``host``; one that still ran there is killed."""
        if host in self._carriers:
            self._carriers[host].kill()
        self._lost.discard(host)
        carrier = self._carriers[host] = MemoryCarrier(self, host)
        return carrier

    def path(self, source: str, target: str) -> Path:
        """From one host to the other. Change it as you like, see `Path`."""
        path = self._paths.get((source, target))
        if path is None:
            path = self._paths[source, target] = Path(self.chance)
        return path

    def cut(self, one: str, other: str) -> None:
        """In both directions."""
        self.path(one, other).cut()
        self.path(other, one).cut()

    def heal(self, one: str, other: str) -> None:
        """In both directions."""
        self.path(one, other).heal()
        self.path(other, one).heal()

    def reset(self, one: str, other: str) -> None:
        """Break every connection between the two hosts; an unknown suffix of what was said is lost."""
        for host, peer in ((one, other), (other, one)):
            carrier = self._carriers.get(host)
            for end in [] if carrier is None else [end for end in carrier.ends if end.peer_host == peer]:
                end.reset()

    def vanish(self, host: str) -> None:
        """The machine loses its power: nobody there answers anything until `carrier` starts a new process on it."""
        self._lost.add(host)
        carrier = self._carriers.pop(host, None)
        if carrier is not None:
            carrier.kill(says_so=False)

    def has_power(self, host: str) -> bool:
        """Its system answers, if only that nobody listens."""
        return host not in self._lost

    def choose_port(self) -> int:
        self._next_port += 1
        return self._next_port - 1


class MemoryCarrier:
    """Implements `cluster.transport.carrier.Carrier` for the process on ``host``."""

    def __init__(self, network: MemoryNetwork, host: str) -> None:
        self.host = host
        self._network = network
        #: Of every connection, whoever dialed it, as long as this side believes in it.
        self.ends: dict[End, None] = {}
        self._is_killed = False

    async def serve(
        self, address: str, acceptor: Acceptor, *, silence_timeout_ms: int, admin: AdminEndpoint | None = None
    ) -> int:
        host, port = split_address(address)
        if host not in (*ANY_ADDRESS, self.host):
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self.host}")
        port = port or self._network.choose_port()
        address = f"{self.host}:{port}"
        if address in self._network.listeners:
            raise OSError(errno.EADDRINUSE, f"somebody listens at {address} already")
        self._network.listeners[address] = Listener(self.ends, acceptor, silence_timeout_ms / 1000, admin)
        return port

    async def stop(self) -> None:
        self._stop_listening()
        for end in [end for end in self.ends if not end.is_dialer]:
            end.break_("the node stopped", is_own=True)

    def kill(self, *, says_so: bool = True) -> None:
        """The process ends here and now; its system hangs up for it (``says_so``), unless the machine is lost too."""
        self._is_killed = True
        self._stop_listening()
        for end in list(self.ends):
            end.break_("the process was killed", is_own=True, says_so=says_so)

    def _stop_listening(self) -> None:
        listeners = self._network.listeners
        for address in [address for address, listener in listeners.items() if listener.ends is self.ends]:
            del listeners[address]

    def connect(self, address: str, *, silence_timeout_ms: int) -> End:
        dialer = End(self._network, self.host, split_address(address)[0], address, is_dialer=True)
        acceptor = End(self._network, dialer.peer_host, self.host, address, is_dialer=False)
        dialer.other, acceptor.other = acceptor, dialer
        if not self._is_killed:
            dialer.establish(self.ends, silence_timeout_ms / 1000)
            dialer.send(Knock())
        return dialer

    async def probe(self, address: str, timeout_s: float) -> ProbeResult:
        network = self._network
        target = split_address(address)[0]
        path = network.path(self.host, target)
        try:
            async with asyncio.timeout(timeout_s):
                await path.cross()
                if self._is_killed or not network.has_power(target):
                    await asyncio.Event().wait()
                is_refused = path.is_refusing or address not in network.listeners
                await network.path(target, self.host).cross()
        except TimeoutError:
            return ProbeResult.SILENT
        return ProbeResult.REFUSED if is_refused else ProbeResult.ACCEPTED

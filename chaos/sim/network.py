"""The network between simulated processes: connections that keep order and lose only what they have not delivered.

What is modelled is what TCP lets an application see. A connection carries chunks of bytes in both directions, in order,
each after the delay of its directed `Link`. Within a living connection nothing is lost or changes places; a connection
that breaks loses an unknown suffix in both directions, and the two ends need not learn of it together, or at all.

What can go wrong, per directed link (so that one direction may fail alone):

- **delay**: each chunk draws one, and a narrow link takes its time for each byte;
- **cut**: nothing passes, connections live on, and what was sent arrives late when the link heals (TCP repeats it);
- **refusal**: new connections are refused at once, as by a firewall that rejects;
- **reset** (`Network.reset`): connections break now, a suffix of what is under way is lost; one end alone may be told;
- **silence** (`Network.host_lost`): the machine is gone without a word; who sends to it hears nothing at all until the
  machine is back and knows of no connection: then its kernel answers with a reset.

A process that dies on a living machine closes its connections, as kernels do: what it had sent arrives, then the reset.
A paused process still has its kernel: chunks wait for it, and the sender sees its window fill.

Everything arrives on behalf of the process it is for (`chaos.sim.loop`). Nobody is called from within his own call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from chaos.sim.loop import Process, SimulatedLoop

Address = tuple[str, int]


@dataclass(slots=True)
class Link:
    """One direction between two hosts."""

    #: Draws the seconds that a chunk takes.
    delay_s: Callable[[], float]
    bytes_per_s: float = 1e9
    is_cut: bool = False
    is_refusing: bool = False


class Receiver(Protocol):
    """Who has one end of a connection; called on behalf of its process."""

    def chunk_received(self, data: bytes) -> None: ...

    def connection_closed(self, error: OSError | None) -> None:
        """Once, at the end: ``None`` if the other side has closed in an orderly way, after all it had sent."""

    def room_again(self) -> None:
        """Something was taken out of a connection; only called if `End.wants_room`."""


@dataclass(slots=True)
class _Pipe:
    """One direction of a connection."""

    link: Link
    #: What has been sent and not been received: (time of arrival, bytes, when it was sent). Without bytes: the orderly
    #: end.
    chunks: deque[tuple[float, bytes | None, float]] = field(default_factory=deque)
    in_flight_bytes: int = 0
    last_arrival_s: float = 0.0
    is_scheduled: bool = False
    #: Chunks that still arrive after a reset; what is sent later is answered by another reset. ``None``: no reset.
    last_words: int | None = None


class End:
    """One end of a connection. Made by `Network`; ``receiver`` is set by whoever gets it, before it returns."""

    __slots__ = (
        "_network",
        "_outgoing",
        "heard",
        "host",
        "is_open",
        "is_reading",
        "other",
        "process",
        "receiver",
        "wants_room",
    )

    def __init__(self, network: Network, process: Process, host: str, outgoing: _Pipe) -> None:
        self._network = network
        self.process = process
        self.host = host
        self._outgoing = outgoing
        self.other: End
        self.receiver: Receiver
        self.is_open = True
        self.is_reading = True
        #: Its receiver waits for `Receiver.room_again`; nobody else is woken for it.
        self.wants_room = False
        #: Of what was received last: where each part of it ends, and when that was sent.
        self.heard: list[tuple[int, float]] = []

    @property
    def in_flight_bytes(self) -> int:
        """What was sent here and has not been received there."""
        return self._outgoing.in_flight_bytes

    def send(self, data: bytes) -> None:
        """What is sent after the end goes nowhere."""
        if self.is_open and data:
            self._network.send(self, self._outgoing, data)

    def close(self) -> None:
        """Orderly: what was sent arrives first. Nothing more is received here."""
        if self.is_open:
            self.is_open = False
            self._network.send(self, self._outgoing, None)

    def abort(self) -> None:
        """At once: the other side gets what is on its way already, and then a reset."""
        if self.is_open:
            self.is_open = False
            self._network.tell_reset(self.other)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        if not self.is_reading:
            self.is_reading = True
            self._network.pump(self.other, self.other._outgoing)


class Network:
    """All hosts, who listens where, and all connections."""

    def __init__(self, loop: SimulatedLoop, make_link: Callable[[str, str], Link]) -> None:
        """``make_link(source, target)`` is asked once for every direction that is used."""
        self._loop = loop
        self._make_link = make_link
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Address, tuple[Process, Callable[[End], Receiver]]] = {}
        self._ends: list[End] = []
        self._lost_hosts: set[str] = set()

    def link(self, source: str, target: str) -> Link:
        """The direction from one host to another."""
        key = (source, target)
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = self._make_link(source, target)
        return found

    def links(self) -> Iterator[Link]:
        """All that were used."""
        return iter(self._links.values())

    # --- connections ---

    def listen(self, process: Process, address: Address, accept: Callable[[End], Receiver]) -> None:
        """``accept`` is called on behalf of the process for every connection. Raises `OSError` if the port is taken."""
        listener = self._listeners.get(address)
        if listener is not None and listener[0].is_alive:
            raise OSError(98, "Address already in use")
        self._listeners[address] = (process, accept)

    def stop_listening(self, address: Address) -> None:
        self._listeners.pop(address, None)

    def connect(
        self,
        process: Process,
        host: str,
        address: Address,
        connected: Callable[[End], Receiver | None],
        failed: Callable[[OSError], None],
    ) -> None:
        """Open a connection from ``host``; one of the two is called on behalf of the process, or none, ever, if the
        network is silent. ``connected`` may answer ``None``: it is no longer wanted."""
        if not process.is_alive:
            return  # it was killed in the midst of its turn
        there, back = self.link(host, address[0]), self.link(address[0], host)

        def arrive() -> None:
            if there.is_cut or address[0] in self._lost_hosts:
                return
            listener = self._listeners.get(address)
            if listener is None or not listener[0].is_alive or there.is_refusing:
                answer(lambda: failed(ConnectionRefusedError(111, "Connection refused")))
                return
            owner, accept = listener
            here = End(self, process, host, _Pipe(there))
            far = End(self, owner, address[0], _Pipe(back))
            here.other, far.other = far, here
            self._ends += [here, far]
            owner.call_soon(take_up, far, accept)
            answer(lambda: begin(here))

        def answer(call: Callable[[], None]) -> None:
            if not back.is_cut:
                process.call_later(back.delay_s(), call)

        def take_up(end: End, accept: Callable[[End], Receiver]) -> None:
            end.receiver = accept(end)
            self.pump(end.other, end.other._outgoing)

        def begin(end: End) -> None:
            receiver = connected(end)
            if receiver is None:
                end.abort()
            else:
                end.receiver = receiver
                self.pump(end.other, end.other._outgoing)

        self._loop.harness.call_later(there.delay_s(), arrive)

    def send(self, end: End, pipe: _Pipe, data: bytes | None) -> None:
        size = len(data) if data is not None else 0
        link, now_s = pipe.link, self._loop.now_s
        arrival_s = max(pipe.last_arrival_s, now_s + link.delay_s()) + size / link.bytes_per_s
        pipe.last_arrival_s = arrival_s
        pipe.chunks.append((arrival_s, data, now_s))
        pipe.in_flight_bytes += size
        if not pipe.is_scheduled:
            self.pump(end, pipe)

    def pump(self, end: End, pipe: _Pipe) -> None:
        """Have the next chunk from ``end`` arrive in its time, unless something holds it up."""
        target = end.other
        if pipe.is_scheduled or not pipe.chunks or pipe.link.is_cut or not target.is_reading:
            return
        if target.host in self._lost_hosts:
            return
        if not hasattr(target, "receiver") and target.is_open:
            return  # it is still being accepted
        pipe.is_scheduled = True
        owner = target.process if target.process.is_alive else self._loop.harness
        self._loop.call_at_true(pipe.chunks[0][0], self._arrive, end, pipe, context=owner.context)

    def _arrive(self, end: End, pipe: _Pipe) -> None:
        """Everything that is due, as a kernel hands it over."""
        pipe.is_scheduled = False
        target = end.other
        parts: list[bytes] = []
        heard: list[tuple[int, float]] = []
        received_bytes = 0
        is_end = False
        chunks, now_s = pipe.chunks, self._loop.now_s
        while chunks and chunks[0][0] <= now_s and not pipe.link.is_cut and target.is_reading:
            _, data, sent_s = chunks.popleft()
            pipe.in_flight_bytes -= len(data or b"")
            if pipe.last_words is not None:
                pipe.last_words -= 1
                if pipe.last_words < 0:
                    self.tell_reset(end)
                    continue
            if data is None:
                is_end = True
            else:
                received_bytes += len(data)
                parts.append(data)
                heard.append((received_bytes, sent_s))
        if not target.is_open or not target.process.is_alive:
            if parts and end.is_open:
                self.tell_reset(end)
            return
        if parts:
            target.heard = heard
            target.receiver.chunk_received(b"".join(parts))
            if end.wants_room and end.is_open and end.process.is_alive:
                end.process.call_soon(self._tell_room, end)
        if is_end and target.is_open:
            target.is_open = False
            target.receiver.connection_closed(None)
        if chunks:
            self.pump(end, pipe)

    def _tell_room(self, end: End) -> None:
        if end.is_open:
            end.receiver.room_again()

    def tell_reset(self, end: End) -> None:
        """A reset travels to this end, behind what was sent to it."""
        pipe = end.other._outgoing
        if end.is_open and end.process.is_alive:
            arrival_s = max(pipe.last_arrival_s, self._loop.now_s + pipe.link.delay_s())
            end.process.call_later(arrival_s - self._loop.now_s, self._lose, end, pipe.link)

    def _lose(self, end: End, link: Link) -> None:
        if link.is_cut or not end.is_open or not hasattr(end, "receiver"):
            return  # it will learn when it sends
        end.is_open = False
        end.receiver.connection_closed(ConnectionResetError(104, "Connection reset by peer"))

    # --- faults ---

    def changed(self) -> None:
        """Links were cut or healed: what waits may go on."""
        for end in self._living():
            self.pump(end, end._outgoing)

    def reset(self, host: str, other: str, keep: Callable[[int], int], *, told: tuple[str, ...]) -> int:
        """Break the connections between two hosts; how many there were.

        ``keep(n)``: so many of n chunks under way still arrive. Only the hosts in ``told`` (one at least) learn of it;
        the other end does when it sends.
        """
        broken = [end for end in self._living() if {end.host, end.other.host} == {host, other}]
        for end in broken:
            chunks = end._outgoing.chunks
            kept = keep(len(chunks))
            while len(chunks) > kept:
                _, data, _ = chunks.pop()
                end._outgoing.in_flight_bytes -= len(data or b"")
            end._outgoing.last_words = len(chunks)
        for end in broken:
            if end.host in told:
                self.tell_reset(end)
        return len(broken) // 2

    def process_died(self, process: Process) -> None:
        """Its kernel closes its connections."""
        for end in self._living():
            if end.process is process:
                end.other._outgoing.is_scheduled = False
                end.abort()
        self._forget(process)

    def host_lost(self, process: Process, host: str) -> None:
        """The machine is gone without a word, with what it had not sent yet."""
        self._lost_hosts.add(host)
        for end in self._living():
            if end.process is process:
                end.is_open = False
                end._outgoing.chunks.clear()
                end._outgoing.in_flight_bytes = 0
                end.other._outgoing.is_scheduled = False
        self._forget(process)

    def host_back(self, host: str) -> None:
        """The machine answers again, and knows of no connection."""
        self._lost_hosts.discard(host)
        self.changed()

    def connections_of(self, process: Process) -> list[str]:
        """The hosts to which it holds connections open."""
        own = [end for end in self._living() if end.process is process]
        return [end.other.host for end in own if end.is_open and hasattr(end, "receiver")]

    def _forget(self, process: Process) -> None:
        for address, (owner, _) in list(self._listeners.items()):
            if owner is process:
                del self._listeners[address]

    def _living(self) -> Iterator[End]:
        self._ends = [end for end in self._ends if end.is_open or end.other.is_open or end._outgoing.chunks]
        return iter(list(self._ends))

    def check_invariants(self) -> None:
        for end in self._ends:
            pipe = end._outgoing
            assert pipe.in_flight_bytes == sum(len(data or b"") for _, data, _ in pipe.chunks)
            arrivals = [arrival_s for arrival_s, _, _ in pipe.chunks]
            assert arrivals == sorted(arrivals), "a connection keeps the order of what is sent"

"""What is done to lines, as what proxies must be like: pure, and about any number of faults at once.

A line leads from one node to another, or from the clients (node 0) to a node. There is one proxy on each: the
connections that ``source`` opens to ``destination`` pass it. A connection carries bytes both ways, and two nodes have a
line each way, so what *one* sends to the *other* passes two proxies: upstream the proxy of its own line, downstream
that of the other's. A fault of bytes ("black hole", "delay", "throttle", "slice", "limit") is laid on both; so it hits
one direction, or both if it is said of both. A fault of connections ("cut", "reset") hits those that ``source`` opens;
"<->" is said of both.

Several faults may lie on one proxy. Each has a number, and what proxies must be like is computed from all that hold at
the moment, so faults may end in any order. A proxy with a cut on it lets nobody through, whatever else lies on it.

What can be done is what Toxiproxy can do: it works on TCP connections, not packets. So nothing is lost from a
connection that stays, and what was held back by a black hole is never delivered: its connections end with it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Stands for the clients where a line begins or ends.
CLIENTS = 0
UPSTREAM, DOWNSTREAM = "upstream", "downstream"


class Line(NamedTuple):
    """Connections that one opens to the other."""

    source: int
    destination: int

    @property
    def proxy(self) -> str:
        """Name of its proxy."""
        source = "clients" if self.source == CLIENTS else f"n{self.source}"
        return f"{source}-n{self.destination}"


@dataclass(frozen=True, slots=True)
class Toxic:
    """As Toxiproxy has them, one for each name of a proxy."""

    name: str
    type: str
    stream: str
    attributes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ProxyState:
    """What a proxy must be like."""

    is_enabled: bool = True
    toxics: frozenset[Toxic] = frozenset()


def _milliseconds(seconds: float) -> int:
    return max(round(seconds * 1e3), 1) if seconds else 0


def _of_bytes(fault: str, told: Mapping[str, Any]) -> tuple[str, dict[str, int]]:
    """Type and attributes of the toxic for a fault of bytes."""
    if fault == "black hole":
        return "timeout", {"timeout": 0}
    if fault == "delay":
        jitter_ms = _milliseconds(told.get("jitter", 0.0))
        return "latency", {"latency": _milliseconds(told["latency"]), "jitter": jitter_ms}
    if fault == "throttle":
        return "bandwidth", {"rate": max(told["rate"] // 1000, 1)}  # KB a second
    if fault == "slice":
        pause_us = round(told.get("pause", 0.0) * 1e6)
        return "slicer", {"average_size": told["size"], "size_variation": 0, "delay": pause_us}
    if fault == "limit":
        return "limit_data", {"bytes": told["size"]}
    raise KeyError(f"{fault!r} is no fault of bytes")


#: Faults of connections.
OF_CONNECTIONS = frozenset({"cut", "reset", "swizzle"})


@dataclass(slots=True)
class LineFaults:
    """All that lies on the lines of one cluster."""

    lines: frozenset[Line]
    #: What each fault has laid on proxies: toxics, or None for a cut.
    _laid: dict[int, dict[Line, frozenset[Toxic] | None]] = field(default_factory=dict)

    def lay(self, number: int, fault: str, on: Iterable[Line], told: Mapping[str, Any]) -> set[Line]:
        """Begin the fault ``number`` on directed lines of bytes or connections. Returns the proxies that change."""
        assert number not in self._laid, "every fault has its own number"
        laid: dict[Line, frozenset[Toxic] | None] = {}
        for line in on:
            if fault in {"cut", "swizzle"}:
                laid[self._known(line)] = None
            elif fault == "reset":
                # In both directions, as it acts when bytes come, from whomever.
                toxics = [
                    Toxic(f"f{number}_{stream}", "reset_peer", stream, (("timeout", 0),))
                    for stream in (UPSTREAM, DOWNSTREAM)
                ]
                laid[self._known(line)] = frozenset(toxics)
            else:
                for passed, stream in self._passed(line):
                    kind, attributes = _of_bytes(fault, told)
                    toxic = Toxic(f"f{number}_{stream}", kind, stream, tuple(sorted(attributes.items())))
                    laid[passed] = (laid.get(passed) or frozenset()) | {toxic}
        self._laid[number] = laid
        return set(laid)

    def _passed(self, line: Line) -> list[tuple[Line, str]]:
        """Which proxies the bytes from ``line.source`` to ``line.destination`` pass, and in which direction."""
        there, back = Line(*line), Line(line.destination, line.source)
        passed = [(there, UPSTREAM)] if there in self.lines else []
        if back in self.lines:
            passed.append((back, DOWNSTREAM))
        assert passed, f"there is no line between {line.source} and {line.destination}"
        return passed

    def _known(self, line: Line) -> Line:
        assert line in self.lines, f"there is no line from {line.source} to {line.destination}"
        return line

    def lift(self, number: int, only: Line | None = None) -> set[Line]:
        """End a fault, or what it has laid on one line. Returns the proxies that change."""
        laid = self._laid.get(number, {})
        lifted = set(laid) if only is None else {only} & laid.keys()
        for line in lifted:
            del laid[line]
        if not laid:
            self._laid.pop(number, None)
        return lifted

    def state(self, line: Line) -> ProxyState:
        """What the proxy of a line must be like now."""
        laid = [on[line] for on in self._laid.values() if line in on]
        toxics = frozenset(toxic for each in laid if each is not None for toxic in each)
        return ProxyState(None not in laid, toxics)

    @property
    def is_clear(self) -> bool:
        """True if nothing lies on any line."""
        return not self._laid

    def check_invariants(self) -> None:
        """Raise `AssertionError` if something lies where no line is."""
        for laid in self._laid.values():
            assert laid, "a fault that lies nowhere is over"
            assert laid.keys() <= self.lines, "faults lie on lines that there are"


def all_lines(nodes: Sequence[int], *, with_clients: bool) -> frozenset[Line]:
    """Of every node to every other, and of the clients to each."""
    between = {Line(source, destination) for source in nodes for destination in nodes if source != destination}
    return frozenset(between | ({Line(CLIENTS, node) for node in nodes} if with_clients else set()))


def directed(sources: Iterable[int], destinations: Iterable[int], *, is_both_ways: bool) -> list[Line]:
    """Every pair of two different ones, once. Of bytes: ``Line(1, CLIENTS)`` is what n1 sends to clients."""
    pairs = {Line(source, destination) for source in sources for destination in destinations if source != destination}
    if is_both_ways:
        pairs |= {Line(destination, source) for source, destination in pairs}
    return sorted(pairs)


def of_connections(lines: Iterable[Line]) -> list[Line]:
    """The same, of connections: only clients open those between clients and nodes."""
    return sorted({Line(CLIENTS, line.source) if line.destination == CLIENTS else line for line in lines})


def swizzled(lines: Iterable[Line], chance: random.Random, over_s: float) -> list[tuple[float, Line]]:
    """When each line goes, or comes back: in an order drawn by chance, spread evenly over so many seconds."""
    drawn = sorted(lines)
    chance.shuffle(drawn)
    return [(over_s * number / len(drawn), line) for number, line in enumerate(drawn)]

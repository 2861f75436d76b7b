"""What a run with nodes of two releases must keep to, read from the log of the metadata as every node applies it.

- The protocol of the cluster is the same on every node at the same entry, and never falls.
- It rises only when every member has announced it in its present start, and is up.
- Behind one in `COMPARED_EVERY` entries that change the members, all replicas are the same, byte for byte, whichever
  release applied it.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from cluster.metadata.commands import AdmitNode, ForgetNode, NodeDown, NodeUp, RaiseProtocol, Request
from cluster.metadata.events import Applied
from cluster.metadata.state import MetadataState
from node.ids import Incarnation, NodeName

#: Behind one in so many entries, if it is one of these, the whole state is compared.
COMPARED_EVERY = 3
_COMPARED = (NodeUp, NodeDown, ForgetNode, AdmitNode, RaiseProtocol)


class ReleaseWatch:
    """See the module text."""

    def __init__(self, violate: Callable[[str, str], None], note: Callable[[str], None]) -> None:
        self._violate = violate
        self._note = note
        #: Index -> the protocol of the cluster behind that entry, and what the whole state adds up to.
        self._protocols: dict[int, int] = {}
        self._digests: dict[int, int] = {}
        self._last_index = self._last_protocol = 0
        #: What the log has said of each node: its start, and what it speaks.
        self._announced: dict[NodeName, tuple[Incarnation, int]] = {}

    def applied(self, node: str, state: MetadataState, index: int, request: Request, outcome: Applied) -> None:
        """A node has applied a request; every node tells of every one, in the order of the log."""
        if self._protocols.setdefault(index, state.protocol) != state.protocol:
            self._violate("protocol", f"{node} has {state.protocol} at {index}, others {self._protocols[index]}")
        command = request.command
        if index % COMPARED_EVERY == 0 and isinstance(command, _COMPARED):
            digest = crc32(state.snapshot())
            if self._digests.setdefault(index, digest) != digest:
                self._violate("replicas", f"{node} has other metadata than others behind entry {index}, {command}")
        if index > self._last_index:
            self._last_index = index
            self._decided(state, command, outcome)

    def _decided(self, state: MetadataState, command: object, outcome: Applied) -> None:
        if isinstance(command, NodeUp) and outcome.error is None:
            self._announced[command.node] = (command.incarnation, command.rules_version)
        if state.protocol < self._last_protocol:
            self._violate("protocol", f"it has fallen from {self._last_protocol} to {state.protocol}")
        elif self._last_protocol and state.protocol > self._last_protocol:
            self._note("the protocol of the cluster was raised")
            for name in (*state.members, *state.admissions.admitted):
                incarnation, spoken = self._announced.get(name, (Incarnation(0), 0))
                member = state.members.get(name)
                if member is None or not member.is_up or member.incarnation != incarnation or spoken < state.protocol:
                    self._violate(
                        "protocol", f"it has risen to {state.protocol}; of {name} is known: {member}, {spoken}"
                    )
        self._last_protocol = state.protocol

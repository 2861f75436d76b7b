"""Which commands the cluster may use: as many as the oldest of its members knows.

A command of a kind that a node does not know is passed over there and carried out elsewhere: the replicas would differ
for ever. So releases are numbered by their *protocol*, every kind of command (and every new meaning of an old one) has
the protocol since which it exists, and the replicated state has the protocol of the cluster as a whole. Nothing newer
than that is proposed, and what is newer and found in the log all the same is refused, on nodes that know it as on those
that do not.

**How it rises.** By `RaiseProtocol`, which the leader proposes when it is linked with every member and each of them has
shown in its handshake that it speaks the new protocol. The command names the members and their starts; it is refused
unless these are all members there are (those that were admitted and have not come yet included), all up, each in that
very start. What is compared is known to every release alike, so every replica decides alike, whatever snapshot it began
with. (`NodeUp.rules_version` announces a node's protocol, too, but a snapshot of protocol 2 has no place to keep it: it
counts from protocol 3 on.) To require that all are up is a choice: a node that is away may come back with any release.

**It never falls.** From the moment at which it is raised, a `NodeUp` of an older release is refused, as is its
handshake (`cluster.transport.handshake`), and its data directory (`cluster.runtime.identity`).

**Refused without a trace.** A node of protocol 2 passes over what it does not know and does not even note that it was
asked for. So does everybody else with what is too new, or else the snapshots would differ.

While the protocol is 2 a snapshot is, byte for byte, what a release of protocol 2 makes and reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cluster.metadata.commands import Command, NodeUp, RaiseProtocol
from cluster.metadata.errors import (
    NewerReleaseError,
    OlderReleaseError,
    ProtocolNotRaisedError,
    RefusedChangeError,
    TooNewCommandError,
)
from cluster.metadata.kinds import FIRST_PROTOCOL, protocol_of
from cluster.metadata.records import MemberRecord
from cluster.metadata.wellformed import check_command
from node.ids import NodeName

#: Formats of a snapshot that this release reads; the last is made from protocol 3 on, before it is 2.
SNAPSHOT_VERSIONS = (1, 2, 3)


class ClusterProtocol:
    """The protocol of the cluster, and what its members have announced. Changed by committed commands only."""

    def __init__(self, spoken: int) -> None:
        """``spoken``: by this node, at most."""
        self._spoken = spoken
        #: The lowest of all members.
        self.protocol = FIRST_PROTOCOL
        #: What each member has announced; kept from protocol 3 on.
        self.announced: dict[NodeName, int] = {}

    def objection(
        self, command: Command, members: Mapping[NodeName, MemberRecord], admitted: Collection[NodeName]
    ) -> RefusedChangeError | None:
        """Why this is refused without a trace. Raises `NewerReleaseError` if this node must not follow the others."""
        try:
            if isinstance(command, RaiseProtocol):
                check_command(command)
                self._check_raise(command, members, admitted)
            else:
                self.check_kind(command)
        except RefusedChangeError as error:
            return error
        if isinstance(command, RaiseProtocol) and command.protocol > self._spoken:
            raise NewerReleaseError("the log of the metadata", f"protocol {command.protocol}", self._spoken)
        return None

    def check_kind(self, command: Command, held_back_by: Callable[[], Sequence[str]] = lambda: ()) -> None:
        """Does every member know what this is? ``held_back_by``: what keeps the cluster back, in words.

        Raises `TooNewCommandError`.
        """
        needed = protocol_of(command)
        if needed > self.protocol:
            raise TooNewCommandError(type(command).__name__, needed, self.protocol, held_back_by())

    def _check_raise(
        self, command: RaiseProtocol, members: Mapping[NodeName, MemberRecord], admitted: Collection[NodeName]
    ) -> None:
        if command.protocol <= self.protocol:
            raise ProtocolNotRaisedError(f"the cluster has protocol {self.protocol} already")
        if away := [name for name in admitted if name not in members]:
            raise ProtocolNotRaisedError(f"{', '.join(sorted(away))} has not come yet")
        present = tuple((name, member.incarnation) for name, member in sorted(members.items()) if member.is_up)
        if len(present) < len(members) or present != command.members:
            raise ProtocolNotRaisedError("a member has gone, come, or started again meanwhile")

    def raise_to(self, command: RaiseProtocol) -> None:
        """There is no `objection`."""
        self.protocol = command.protocol
        self.announced = {name: max(command.protocol, self.announced.get(name, 0)) for name, _ in command.members}

    def check_arrival(self, command: NodeUp) -> None:
        """Raises `OlderReleaseError`."""
        if command.rules_version < self.protocol > FIRST_PROTOCOL:
            raise OlderReleaseError(command.node, max(command.rules_version, FIRST_PROTOCOL), self.protocol)

    def note_arrival(self, command: NodeUp) -> None:
        """The node is up, and nobody minds."""
        if self.protocol > FIRST_PROTOCOL:
            self.announced[command.node] = command.rules_version

    def forget(self, node: NodeName) -> None:
        self.announced.pop(node, None)

    def snapshot(self) -> dict[str, Any]:
        """What a snapshot of the state has of it: only its format while a release of protocol 2 must read it."""
        if self.protocol == FIRST_PROTOCOL:
            return {"version": SNAPSHOT_VERSIONS[-2]}
        return {
            "version": SNAPSHOT_VERSIONS[-1],
            "protocol": self.protocol,
            "announced": sorted(self.announced.items()),
        }

    def check_snapshot(self, content: Mapping[str, Any]) -> int:
        """The format of a snapshot of the state. Raises `NewerReleaseError` for one that this node must not have."""
        version, protocol = content["version"], content.get("protocol", FIRST_PROTOCOL)
        if version not in SNAPSHOT_VERSIONS or protocol > self._spoken:
            raise NewerReleaseError(
                "a snapshot of the metadata", f"format {version}, protocol {protocol}", self._spoken
            )
        return int(version)

    def restore(self, content: Mapping[str, Any]) -> None:
        """``content`` of a snapshot that was checked."""
        self.protocol = content.get("protocol", FIRST_PROTOCOL)
        self.announced = {node: protocol for node, protocol in content.get("announced", ())}

    def check_invariants(self, members: Collection[NodeName]) -> None:
        assert self.protocol >= FIRST_PROTOCOL, "no release without a number is a member"
        if self.protocol > FIRST_PROTOCOL:
            assert set(self.announced) == set(members), "every member has announced its protocol"
            assert all(announced >= self.protocol for announced in self.announced.values()), "no member is older"

"""Raising the protocol of the cluster when all of its nodes run a new release, and what follows from it here.

The leader proposes it (`cluster.metadata.protocol` has the rule by which it is decided) when it is linked with every
other member and each link shows, by its handshake, that the very start of the member that the cluster knows as up
speaks the new protocol. No node that was asked to prove itself can be taken for a newer one, and none that is away for
anything at all.

When it is raised, every node

- writes it into its data directory before anything else, so that no older release begins with what is there
  (`cluster.runtime.identity`),
- says what it could not say before (`on_risen`), and
- cuts links on which less is spoken, a moment later: whoever that is started again with an older release just then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from cluster.metadata.commands import RaiseProtocol
from cluster.metadata.errors import NoQuorumError, ProtocolNotRaisedError
from cluster.metadata.kinds import FIRST_PROTOCOL
from cluster.metadata.state import MetadataState
from cluster.raft.config import ProposalRefusedError
from cluster.raft.core import RaftCore
from cluster.runtime.group_members import group_members
from cluster.runtime.identity import IdentityFile
from node.errors import StorageError
from node.ids import Incarnation, NodeName

log = logging.getLogger(__name__)

#: After a proposal that was refused, because a member came or went meanwhile.
RETRY_PAUSE_S = 1.0


class Group(Protocol):
    """The metadata group of this node (`cluster.runtime.raft_driver.RaftDriver`)."""

    @property
    def core(self) -> RaftCore:
        """To be looked at."""

    @property
    def applied_index(self) -> int: ...


class Links(Protocol):
    """`cluster.transport.mesh.Mesh`."""

    @property
    def up_peers(self) -> Sequence[NodeName]: ...

    def spoken_with(self, peer: NodeName) -> tuple[Incarnation, int]: ...

    def reset_link(self, peer: NodeName, reason: str) -> None: ...


class ProtocolWatch:
    """See the top of this module."""

    def __init__(
        self,
        node: NodeName,
        incarnation: Incarnation,
        spoken: int,
        state: MetadataState,
        identity: IdentityFile,
        *,
        change: Callable[[RaiseProtocol], Coroutine[Any, Any, Any]],
        spawn: Callable[[Coroutine[Any, Any, Any], str], object],
    ) -> None:
        """``spoken``: by this node. ``change``: have the cluster decide; ``spawn`` does so in the background."""
        self._node = node
        self._incarnation = incarnation
        self._spoken = spoken
        self._state = state
        self._identity = identity
        self._change = change
        self._spawn = spawn
        self._group: Group
        self._links: Links
        #: The cluster's has risen, or this node has begun and hears of it.
        self.on_risen: Callable[[], None] = lambda: None
        self._is_proposing = False
        #: The cluster's, as it was when this node last looked.
        self._followed = FIRST_PROTOCOL
        self._cuts_older_links = False

    def join(self, group: Group, links: Links) -> None:
        self._group = group
        self._links = links

    def follow(self) -> None:
        """Something was applied, or some time has passed."""
        if self._cuts_older_links:
            self._cut_older_links()
        if self._state.protocol > self._followed:
            self._rise()
        if self._spoken > self._state.protocol and not self._is_proposing and self._group.core.is_leader:
            newest = self._newest_of_all()
            if newest > self._state.protocol:
                self._is_proposing = True
                # Of the lives that were looked at: another may have begun by the next turn, with an older release.
                lives = tuple((name, member.incarnation) for name, member in sorted(self._state.members.items()))
                self._spawn(self._propose(RaiseProtocol(newest, lives)), f"raising the protocol to {newest}")

    def _rise(self) -> None:
        protocol = self._state.protocol
        try:
            self._identity.need(protocol)
        except StorageError as error:
            log.warning("that this directory needs protocol %d is noted later: %s", protocol, error)
            return
        self._followed = protocol
        log.info("the cluster has protocol %d: no node may run a release that does not speak it", protocol)
        self._cuts_older_links = True
        self.on_risen()

    def _cut_older_links(self) -> None:
        """Not at once: who does not speak the protocol is to hear first that it was raised, and stops by itself."""
        self._cuts_older_links = False
        protocol = self._followed
        for peer in self._links.up_peers:
            if self._links.spoken_with(peer)[1] < protocol:
                self._links.reset_link(peer, f"the cluster has protocol {protocol} now, and {peer} does not speak it")

    def _members(self) -> list[NodeName]:
        """All that have a say or follow the log, the known members among them."""
        return list(dict.fromkeys((*sorted(self._state.members), *group_members(self._group, self._state))))

    def _newest_of_all(self) -> int:
        """What all members speak, each in the start that the cluster knows as up; 0 if somebody is away."""
        lowest = self._spoken
        for name in self._members():
            member = self._state.members.get(name)
            spoken_with = (self._incarnation, self._spoken) if name == self._node else self._links.spoken_with(name)
            if member is None or not member.is_up or spoken_with[0] != member.incarnation:
                return 0
            lowest = min(lowest, spoken_with[1])
        return lowest

    async def _propose(self, command: RaiseProtocol) -> None:
        try:
            await self._change(command)
        except (ProtocolNotRaisedError, NoQuorumError, ProposalRefusedError) as error:
            log.info("the protocol is not raised yet: %s", error)
            await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            self._is_proposing = False

    def held_back_by(self) -> list[str]:
        """Why the protocol of the cluster is below that of this node, in words; nothing if it is not, or is about to
        be raised."""
        reasons = []
        if self._state.protocol >= self._spoken:
            return []
        for name in self._members():
            member = self._state.members.get(name)
            if name == self._node:
                continue
            if member is None or not member.is_up:
                reasons.append(f"{name} is not running")
                continue
            incarnation, protocol = self._links.spoken_with(name)
            if incarnation != member.incarnation:
                reasons.append(f"{name} cannot be reached")
            elif protocol < self._spoken:
                reasons.append(f"{name} still runs protocol {protocol}")
        return reasons

    def check_invariants(self) -> None:
        assert self._followed <= self._state.protocol, "what was followed is in the state"

"""What follows from committed admissions: who votes, who learns, and with whom this node keeps links.

The leader brings the voters into agreement with the records, one change at a time: who was forgotten loses the vote,
who was let in is taught the log and gets the vote once it has it, and a group of a release without identities notes
those of its voters. Every node keeps links with the members that its log and its records name, and with no others.
Where they are they have announced themselves (`NodeUp`); the configuration is believed where nobody is found there.

**Records behind the log.** After a start a node carries out again what its log has had for long, and meanwhile its
records tell of the past: that a member is forgotten which has come back since, or of the directory that it had then.
What a configuration of the log follows from stands before it, so until the records have reached it, the log is right
about whom it names, and the leader changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from cluster.metadata.state import MetadataState
from cluster.raft.config import ProposalRefusedError
from cluster.raft.core import RaftCore
from cluster.raft.messages import Voter
from node.ids import NodeName

log = logging.getLogger(__name__)


class Group(Protocol):
    """The metadata group of this node (`cluster.runtime.raft_driver.RaftDriver`)."""

    @property
    def core(self) -> RaftCore:
        """To be looked at."""

    @property
    def applied_index(self) -> int:
        """As far as the records are."""


class Voting(Group, Protocol):
    """The group as its leader changes it. Raises `ProposalRefusedError`."""

    def add_voter(self, voter: Voter) -> None: ...

    def remove_voter(self, node: NodeName) -> None: ...

    def set_learners(self, learners: Collection[Voter]) -> None: ...


class PeerLinks(Protocol):
    """`cluster.transport.mesh.Mesh`."""

    @property
    def peers(self) -> Sequence[NodeName]: ...

    def add_peer(self, name: NodeName, *addresses: str) -> None: ...

    def remove_peer(self, name: NodeName) -> None: ...


def are_records_behind(group: Group) -> bool:
    """What the newest configuration of the log follows from is not all in the records yet."""
    return group.applied_index < group.core.log.configuration_index


def meant_identity(group: Group, state: MetadataState, node: NodeName) -> str | None:
    """By which directory the group means a node; empty if by any, ``None`` if it is none of the group."""
    named = group.core.log.identity_of(node)
    if named is not None and are_records_behind(group):
        return named
    admitted = state.admissions.admitted.get(node)
    if admitted is not None:
        return admitted.identity
    return None if node in state.admissions.forgotten else named


def group_members(group: Group, state: MetadataState) -> tuple[NodeName, ...]:
    """Who votes, or is going to; not who is going to be removed."""
    admissions, is_behind = state.admissions, are_records_behind(group)
    voters = (voter for voter in group.core.log.voters if is_behind or not admissions.is_forgotten(voter))
    return tuple(dict.fromkeys((*voters, *admissions.admitted)))


class GroupMembers:
    """See the top of this module. ``addresses``: where the members are, by the configuration."""

    def __init__(
        self,
        node: NodeName,
        state: MetadataState,
        addresses: Mapping[NodeName, str],
        own_identity: Callable[[], str],
        linked: Mapping[NodeName, str],
        introduced: Callable[[], Mapping[NodeName, str]],
        watch: Callable[[Sequence[NodeName]], None],
    ) -> None:
        """``linked``: identities of the peers whose link is up. ``introduced``: peers of which this node has yet to
        learn that they are members, and where they are. ``watch``: told the peers when they change."""
        self._node = node
        self._state = state
        self._addresses = addresses
        self._own_identity = own_identity
        self._linked = linked
        self._introduced = introduced
        self._watch = watch
        self._group: Voting
        self._links: PeerLinks
        self._peers: tuple[NodeName, ...] | None = None
        #: Where they may be, as the links were last told.
        self._told: dict[NodeName, tuple[str, ...]] = {}
        self._votes = asyncio.Event()
        #: Called after `follow`.
        self.on_followed: Callable[[], None] = lambda: None

    def join(self, group: Voting, links: PeerLinks) -> None:
        self._group = group
        self._links = links

    async def wait_for_vote(self) -> None:
        """Until this node is of the group that decides: before that it is of no help, and must not count as up."""
        await self._votes.wait()

    def follow(self) -> None:
        """Something was applied, or some time has passed."""
        core = self._group.core
        if core.log.last_index == 0:
            return
        if self._node in core.log.voters:
            self._votes.set()
        self._follow_links(tuple(name for name in group_members(self._group, self._state) if name != self._node))
        if core.is_leader and not are_records_behind(self._group):
            with suppress(ProposalRefusedError):  # the change before is not committed yet, for instance
                self._change_voters(core)
        self.on_followed()

    def _follow_links(self, peers: tuple[NodeName, ...]) -> None:
        places = {name: self._places(name) for name in peers}
        for name, address in self._introduced().items():
            places.setdefault(name, (address,))
        if places == self._told and peers == self._peers:
            return  # who was introduced before is at the same place when it is a member: then it is to be watched, too
        self._told = places
        for name in self._links.peers:
            if name not in places:
                log.info("%s is no member any more: no link is kept with it", name)
                self._links.remove_peer(name)
        for name, addresses in places.items():
            if addresses:  # otherwise its record is yet to be applied
                self._links.add_peer(name, *addresses)
        if peers != self._peers:
            self._peers = peers
            self._watch(peers)

    def _places(self, name: NodeName) -> tuple[str, ...]:
        """Where a member may be: as it has announced, as it was let in, as this node's configuration says."""
        member = self._state.members.get(name)
        admitted = self._state.admissions.admitted.get(name)
        addresses = (
            "" if member is None else member.cluster_address,
            "" if admitted is None or member is not None else admitted.cluster_address,
            self._addresses.get(name, ""),
        )
        return tuple(dict.fromkeys(address for address in addresses if address))

    def _change_voters(self, core: RaftCore) -> None:
        admissions = self._state.admissions
        identities = {**self._linked, self._node: self._own_identity()}
        for name, identity in core.log.configuration:
            admitted = admissions.admitted.get(name)
            if admissions.is_forgotten(name) or (admitted is not None and admitted.identity != identity):
                log.info("taking the vote from %s", name)
                self._group.remove_voter(name)
                return
            if not identity and name in identities:
                self._group.add_voter(Voter(name, identities[name]))
                return
        learners = [
            Voter(name, record.identity) for name, record in admissions.admitted.items() if name not in core.voters
        ]
        self._group.set_learners(learners)
        for learner in learners:
            if core.has_learned(learner.name):
                log.info("%s has learned the log of the metadata: it votes from now on", learner.name)
                self._group.add_voter(learner)
                return

"""Which nodes this one links with, how a group is founded, and what becomes of a node that has lost its disk.

A node votes, and acknowledges entries of the log, in the trust that it never forgets either. One whose data directory
was wiped has forgotten both and still has its name: were it taken for what it was, it could vote twice in a term, and a
majority that needs it might know nothing of what was committed. So every directory has an *identity*
(`cluster.runtime.identity`), the log names each voter with it, and links are made between identities:

- **A known name under another identity is refused** by every node whose log names it; so is an empty directory under a
  name that the log has without an identity (a group of an earlier release). Each word of a handshake says by which
  identity its speaker knows the other, so the refused node finds out by itself, ends, and says what can be done.
- **What answers is checked again when it arrives** (`may_answer`): the log may have learned an identity since the link
  came up. Votes and acknowledgements count only for the identity that the log names at that moment.
- **An older copy of a directory** is known by its incarnation: the cluster has committed a later start. (A copy made
  since the last start cannot be told from the original.)

**Founding.** A node with an empty directory cannot know whether it is new or was wiped, and a majority of such nodes
cannot either: the rest may be down and have everything. So a new group needs every member of the configuration, once.
The one whose name sorts first is the *founder*, and its identity is the name of the group. The others bind themselves
to that group, durably, when the founder first calls; then they have links. As soon as the founder is linked with all of
them it writes their names and identities as the first entries of the log, stands for election and replicates the log
like any other. The others have empty logs until then: they never stand, and vote only for who is of their group.

Why this founds one group at most: an empty node binds itself to a founder that is empty, too. If the founder was wiped
after it wrote the log, the next one under its name founds another group only when all others are empty and bound to it;
then nobody has anything of the first group, or ever will: links are between nodes of one group, and who has bound
itself to the second refuses what is left of the first. If one of the others has the log, it is not empty; it refuses
the new founder, by the rule above. Who was wiped before the founder wrote the log has voted for nobody.

**Groups of an earlier release** have no identity (the empty one). Their nodes make identities at their next start, and
the leader has the group note them, one by one, as changes of voters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from cluster.metadata.records import MemberRecord
from cluster.raft.config import ProposalRefusedError
from cluster.raft.core import RaftCore
from cluster.raft.messages import Voter
from cluster.runtime.identity import IdentityFile, ways_out
from cluster.transport.mesh_port import HandshakeError
from cluster.wire.convert import Credentials
from node.errors import ConfigError
from node.ids import Incarnation, NodeName

log = logging.getLogger(__name__)


class Group(Protocol):
    """The metadata group of this node (`cluster.runtime.raft_driver.RaftDriver`)."""

    @property
    def core(self) -> RaftCore:
        """To be looked at."""

    @property
    def applied_index(self) -> int: ...

    def found(self, voters: Sequence[Voter]) -> None: ...

    def add_voter(self, voter: Voter) -> None:
        """Raises `ProposalRefusedError`."""


class Admission:
    """See the top of this module. Implements `cluster.transport.mesh_port.Gatekeeper`."""

    def __init__(
        self,
        node: NodeName,
        incarnation: Incarnation,
        members: Sequence[NodeName],
        identity: IdentityFile,
        records: Callable[[], Mapping[NodeName, MemberRecord]],
        on_refused: Callable[[str], None],
    ) -> None:
        """``members`` by the configuration, this node among them. ``records``: what is committed of them.

        ``on_refused``: this node has no place in its group, and must end.
        """
        self._node = node
        self._incarnation = incarnation
        self._members = tuple(sorted(members))
        self._founder = self._members[0]
        self._file = identity
        self._records = records
        self._on_refused = on_refused
        self._group: Group
        #: Peers whose link is up, and their identities.
        self._linked: dict[NodeName, str] = {}

    def join(self, group: Group) -> None:
        """The group as this node has it. Raises `ConfigError` if its log knows this node under another identity."""
        self._group = group
        own = group.core.log.identity_of(self._node)
        if own and own != self._identity:
            raise ConfigError(
                f"the data directory of {self._node} was put together from several: its log belongs to another "
                f"identity; {ways_out(self._node)}"
            )
        if self._is_empty and self._node == self._founder and self._file.current.group != self._identity:
            self._file.bind(self._identity)

    def start(self) -> None:
        """Begin to take part; a cluster of one founds itself."""
        if self._is_empty and len(self._members) > 1:
            log.info(
                "%s is new: a cluster is founded when all of its nodes have started (%s)",
                self._node,
                ", ".join(self._members),
            )
        self._found_if_complete()

    # --- what the group knows ---

    @property
    def _identity(self) -> str:
        return self._file.current.identity

    @property
    def _is_empty(self) -> bool:
        """Nothing of the group is here yet."""
        return self._group.core.log.last_index == 0

    def may_answer(self, peer: NodeName) -> bool:
        """What comes from the peer now comes from whom the log means by that name."""
        known = self._group.core.log.identity_of(peer)
        return not known or known == self._linked.get(peer)

    # --- Gatekeeper ---

    @property
    def _configuration(self) -> tuple[int, int]:
        """Term and index of the entry that made the group what it is. Of two nodes of a group the higher knows more."""
        raft_log = self._group.core.log
        return raft_log.term_at(raft_log.configuration_index) or 0, raft_log.configuration_index

    def _committed_incarnation(self, peer: NodeName) -> Incarnation:
        """Latest start of the peer under the identity that the log names; 0 if that is not known."""
        record = self._records().get(peer)
        is_of_log = self._group.applied_index >= self._group.core.log.configuration_index
        return record.incarnation if record is not None and is_of_log else Incarnation(0)

    def credentials(self, peer: NodeName) -> Credentials:
        raft_log = self._group.core.log
        return Credentials(
            self._identity,
            self._file.current.group,
            *self._configuration,
            self._members if self._is_empty else raft_log.voters,
            raft_log.identity_of(peer) or "",
            self._committed_incarnation(peer),
        )

    def heed(self, peer: NodeName, credentials: Credentials) -> None:
        """Whether this node still is whom the group means by its name."""
        theirs = _configuration_of(credentials)
        is_of_group = credentials.group == self._file.current.group
        if theirs == (0, 0) or theirs < self._configuration or not (is_of_group or self._is_empty):
            return  # the peer is new itself, has yet to hear of what this node knows, or is of another cluster
        meant = credentials.receiver_identity
        if self._node not in credentials.members:
            members = ", ".join(credentials.members)
            self._on_refused(
                f"{self._node} is no member of the cluster of {members}, to which {peer} belongs; by its own list "
                f"({', '.join(self._members)}) it would be: set `cluster_formation` to the same members everywhere"
            )
        elif meant not in ("", self._identity) or (self._is_empty and not meant):
            self._on_refused(
                f"the data of {self._node} is lost: {peer} knows it by another data directory, and it must not go on "
                f"under its name without what it has promised; {ways_out(self._node)}"
            )
        elif self._incarnation < credentials.receiver_incarnation and is_of_group:
            self._on_refused(
                f"the data of {self._node} is an older copy: it was started {credentials.receiver_incarnation} times, "
                f"and its directory knows of {self._incarnation}; {ways_out(self._node)}"
            )

    def admit(self, peer: NodeName, incarnation: Incarnation, credentials: Credentials) -> None:
        """Raises `HandshakeError`."""
        if not credentials.identity:
            raise HandshakeError(f"{peer} runs an earlier release: all nodes of a cluster have to run the same")
        if self._is_empty:
            self._admit_to_founding(peer, credentials)
        else:
            self._admit_to_group(peer, incarnation, credentials)

    def _admit_to_founding(self, peer: NodeName, credentials: Credentials) -> None:
        """Nothing is here yet: only who is, or will be, of the same group can be spoken to."""
        own = self._file.current
        is_empty = _configuration_of(credentials) == (0, 0)
        is_meant = credentials.receiver_identity == own.identity
        if peer == self._founder and credentials.group != own.group and (is_empty or is_meant):
            self._require_same_members(peer, credentials)
            self._file.bind(credentials.group)
            log.info("%s is of the cluster that %s founds", self._node, peer)
        elif credentials.group != own.group or not own.group:
            waits = peer if self._node == self._founder else self._node
            raise HandshakeError(f"{waits} waits until {self._founder} has asked it to found a cluster")

    def _require_same_members(self, peer: NodeName, credentials: Credentials) -> None:
        if tuple(sorted(credentials.members)) != self._members:
            raise HandshakeError(
                f"{self._node} is configured to be of a new cluster of {', '.join(self._members)}, and {peer} to be of "
                f"one of {', '.join(credentials.members)}: set the same `cluster_formation` on both"
            )

    def _admit_to_group(self, peer: NodeName, incarnation: Incarnation, credentials: Credentials) -> None:
        raft_log = self._group.core.log
        known = raft_log.identity_of(peer)
        theirs = _configuration_of(credentials)
        if credentials.group == self._file.current.group and theirs > self._configuration:
            return  # it knows of changes that this node has yet to hear of
        if known is None:
            raise HandshakeError(
                f"{peer} is no member of the cluster of {', '.join(raft_log.voters)}; its own list is "
                f"{', '.join(credentials.members)}"
            )
        is_wiped = known != credentials.identity if known else theirs == (0, 0)
        if is_wiped:
            raise HandshakeError(
                f"{peer} has lost its data: the cluster knows it by another data directory; {ways_out(peer)}"
            )
        if credentials.group != self._file.current.group:
            raise HandshakeError(f"{peer} waits for another cluster to be founded than that of {self._node}")
        committed = self._committed_incarnation(peer)
        if incarnation < committed:
            raise HandshakeError(
                f"{peer} has an older copy of its data: it was started {committed} times, and its directory knows of "
                f"{incarnation}; {ways_out(peer)}"
            )

    def linked(self, peer: NodeName, identity: str) -> None:
        self._linked[peer] = identity
        self._found_if_complete()

    def unlinked(self, peer: NodeName) -> None:
        self._linked.pop(peer, None)

    # --- founding, and groups of an earlier release ---

    def _found_if_complete(self) -> None:
        if not self._is_empty or self._node != self._founder:
            return
        identities = {self._node: self._identity, **self._linked}
        if all(member in identities for member in self._members):
            self._group.found([Voter(member, identities[member]) for member in self._members])

    def applied(self) -> None:
        """Something was committed, perhaps the change of voters before: the leader has the group note what it lacks."""
        core = self._group.core
        if not core.is_leader:
            return
        identities = {self._node: self._identity, **self._linked}
        for name, known in core.log.configuration:
            if not known and name in identities:
                with suppress(ProposalRefusedError):  # the change before is not committed yet, for instance
                    self._group.add_voter(Voter(name, identities[name]))
                return

    def check_invariants(self) -> None:
        assert self._node not in self._linked, "a node is not linked with itself"
        own = self._group.core.log.identity_of(self._node)
        assert not own or own == self._identity, "the log means this node by its name"


def _configuration_of(credentials: Credentials) -> tuple[int, int]:
    return credentials.configuration_term, credentials.configuration_index

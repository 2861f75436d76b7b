"""Which nodes this one links with, how a group is founded, and what becomes of a node that has lost its disk.

A node votes, and acknowledges entries of the log, in the trust that it never forgets either. One whose data directory
was wiped has forgotten both and still has its name: were it taken for what it was, it could vote twice in a term, and a
majority that needs it might know nothing of what was committed. So every directory has an *identity*
(`cluster.runtime.identity`), the log names each voter with it, and links are made between identities:

- **A known name under another identity is refused** by every node whose log names it; so is an empty directory under a
  name that the log has without an identity (a group of an earlier release). Each word of a handshake says by which
  identity its speaker knows the other, so the refused node finds out by itself, ends, and says what can be done.
- **What answers is checked again when it arrives** (`may_answer`): the log may have learned an identity since the link
  came up. Votes and acknowledgements count only for the identity that the log names at that moment; those of a node
  that learns, for the directory that was let in last: another may have taken its place before it voted.
- **Who was away while another came** may not know that one as a member, and would not call it, though it may lead by
  now. It is asked by who misses the link, and links with whoever then shows to be of its group, to mean it by its
  directory, and to know of a later configuration, until its own log tells (`introduced`).
- **A new node is let in** by a group that its own list names. It asks those of its list, and a member proposes
  `AdmitNode` (`cluster.metadata.admissions`), from which the rest follows (`cluster.runtime.group_members`). A name
  that was forgotten is free for another directory, and so is one whose directory was let in and does not come.
- **An older copy of a directory** is known by its incarnation: the cluster has committed a later start, or has heard of
  this one before this process was linked with anybody: then it was another process, of the directory that the copy was
  made of. (A copy made since the last start cannot be told from the original.)

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
the new founder, by the rule above. Who was wiped before the founder wrote the log has voted for nobody. And who has
joined a group that was there before, or begins again for one, belongs to that: it binds itself to nobody, though it may
have nothing of it yet.

**A majority that is gone for good.** `warrenctl forget_cluster_node --offline` makes what one node has the truth, and
the node the first of a *new group*, whose credentials name the groups that were given up for it (*superseded*). Nodes
of two groups have no links, so those that were given up cannot elect anybody together with it, or be heard. Who hears
that its group was superseded, and follows no leader, cannot go on: it ends if it was forgotten, and if it was not it
drops its log, keeps its queues, and begins again as a voter of the new group that has not voted yet; whatever it had
promised, it had promised the old group. What is said for a group that was given up counts for nothing to who is of the
new one, and who was forgotten can be told only by a peer that has the new group's log. A majority that lives is not to
be ended by a node that somebody took for its last one, also while it elects (`cluster.runtime.living_group`). Then
there are two clusters, which refuse each other and say so.

**Groups of an earlier release** all have the same name. Their nodes make identities at their next start, and the leader
has the group note them, one by one, as changes of voters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from cluster.metadata.commands import AdmitNode
from cluster.metadata.errors import AS_A_NEW_NODE
from cluster.metadata.records import AdmittedRecord
from cluster.metadata.state import MetadataState
from cluster.raft.core import RaftCore
from cluster.raft.messages import Voter
from cluster.runtime.group_members import are_records_behind, group_members, meant_identity
from cluster.runtime.identity import IdentityFile, ways_out
from cluster.runtime.living_group import LivingGroup
from cluster.transport.mesh_port import HandshakeError, Spoken
from cluster.wire.convert_handshake import Credentials
from node.errors import ConfigError
from node.ids import Incarnation, NodeName

log = logging.getLogger(__name__)

#: Starts of the directory before that the group may not know of, when it forgets a node. What such a start has proposed
#: as its last may be in the log all the same: a start of the same number would be answered with the refusal of that. So
#: a new directory passes over them, also if it was started more often than the group knows of the one before.
UNHEARD_STARTS = 100

#: Who was let in begins again, perhaps, and makes a link within this time.
COMING_MS = 5000


class Group(Protocol):
    """The metadata group of this node (`cluster.runtime.raft_driver.RaftDriver`)."""

    @property
    def core(self) -> RaftCore:
        """To be looked at."""

    @property
    def applied_index(self) -> int: ...

    def found(self, voters: Sequence[Voter]) -> None: ...


class Admission:
    """See the top of this module. Implements `cluster.transport.mesh_port.Gatekeeper`."""

    def __init__(
        self,
        node: NodeName,
        incarnation: Incarnation,
        members: Sequence[NodeName],
        identity: IdentityFile,
        cluster_address: str,
        state: MetadataState,
        spoken: int,
        *,
        now_ms: Callable[[], int],
        told_to_join: str = "",
        on_refused: Callable[[str], None],
        count_on_from: Callable[[Incarnation], None],
        begin_again: Callable[[], None],
        admit_node: Callable[[AdmitNode], Coroutine[Any, Any, Any]],
        spawn: Callable[[Coroutine[Any, Any, Any], str], object],
    ) -> None:
        """``members`` by the configuration, this node among them; ``state``: what is committed. ``spoken``: its
        protocol.

        ``told_to_join``: the group that an operator has named, if one has; while this node has nothing it waits for
        that one only, whoever its members are by then, and founds none.

        ``on_refused``: this node has no place in its group, and must end. ``count_on_from``: it must begin again, as a
        start above this one; ``begin_again``: it must begin again. ``admit_node``: have the group let a node in;
        ``spawn`` does so in the background.
        """
        self._node = node
        self._incarnation = incarnation
        self._members = tuple(sorted(members))
        self._founder = self._members[0]
        self._told_to_join = told_to_join
        self._file = identity
        self._cluster_address = cluster_address
        self._state = state
        self._spoken = spoken
        self._now_ms = now_ms
        self._on_refused = on_refused
        self._count_on_from = count_on_from
        self._begin_again = begin_again
        self._admit_node = admit_node
        self._spawn = spawn
        self._group: Group
        self._living_group: LivingGroup
        #: Peers whose link is up, and their identities.
        self.linked_identities: dict[NodeName, str] = {}
        #: With anybody, since this process began.
        self._was_linked = False
        #: Peers of the group that this node does not know as members as yet: where they are, and how far their log is.
        self._introduced: dict[NodeName, tuple[tuple[int, int], str]] = {}
        #: Of those that this node was told to join, who is of that cluster, and who of another (dicts for their order).
        self._hosts: dict[NodeName, None] = {}
        self._strangers: dict[NodeName, None] = {}
        #: What the log has already; of each peer some texts at most.
        self._warnings: dict[str, None] = {}
        #: How far the newest records were of which a peer of the group has said that they mean this directory.
        self._meant_at = identity.current.meant_at
        #: Which directories were let in last, and since when this node waits for them.
        self._awaited: dict[NodeName, tuple[str, int]] = {}
        #: New nodes that are being proposed.
        self._proposed: dict[NodeName, None] = {}
        self._reported = ""

    def join(self, group: Group) -> None:
        """The group as this node has it. Raises `ConfigError` if its log knows this node under another identity."""
        self._group = group
        self._living_group = LivingGroup(group.core, self.linked_identities, self._now_ms)
        own = group.core.log.identity_of(self._node)
        if own and own != self._identity and not self._file.current.has_joined:
            raise ConfigError(
                f"the data directory of {self._node} was put together from several: its log belongs to another "
                f"identity; {ways_out(self._node)}"
            )
        if self._may_found and self._file.current.group != self._identity:
            self._file.bind(self._identity)

    def start(self) -> None:
        """Begin to take part; a cluster of one founds itself."""
        if self._file.current.superseded:
            log.info("this cluster goes on for one of which others were given up (`forget_cluster_node --offline`)")
        if self._is_empty and self._told_to_join:
            log.info("%s is new, and joins the cluster of %s", self._node, ", ".join(self._members))
        elif self._is_empty and len(self._members) > 1:
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

    @property
    def _may_found(self) -> bool:
        """Not if its log was dropped for a group that goes on: it is of that one, and waits for what that one has."""
        is_of_a_group = bool(self._told_to_join or self._file.current.superseded)
        return self._is_empty and self._node == self._founder and not is_of_a_group

    def may_answer(self, peer: NodeName) -> bool:
        """What comes from the peer now comes from whom the log means by that name, or, as long as it only learns, from
        whom was let in under it."""
        known = self._group.core.log.identity_of(peer)
        if known is None:
            known = self._meant(peer)
        return not known or known == self.linked_identities.get(peer)

    # --- Gatekeeper ---

    @property
    def _configuration(self) -> tuple[int, int]:
        """Term and index of the entry that made the group what it is. Of two nodes of a group the higher knows more."""
        return self._group.core.log.configuration_term, self._group.core.log.configuration_index

    @property
    def _applied_index(self) -> int:
        """How far the records are; 0 is said by who has nothing, and by a release that does not say it."""
        return 0 if self._is_empty else max(1, self._group.applied_index)

    def _has_yet_to_hear(self, credentials: Credentials) -> bool:
        """The peer's records are older than some that mean this node by its name: what the peer has against it is of
        the past. Configurations do not tell, because who is let in, and learns, is in the records only."""
        own_index = self._applied_index if self._meant(self._node) == self._identity else 0
        return 0 < credentials.applied_index < max(own_index, self._meant_at)

    def _committed_incarnation(self, peer: NodeName) -> Incarnation:
        """Latest start of the peer under the identity that the log names; 0 if that is not known."""
        record = self._state.members.get(peer)
        admitted = self._state.admissions.admitted.get(peer)
        if record is None:
            return admitted.after_incarnation if admitted is not None else Incarnation(0)
        return Incarnation(0) if are_records_behind(self._group) else record.incarnation

    def _meant(self, peer: NodeName) -> str | None:
        return meant_identity(self._group, self._state, peer)

    @property
    def _group_members(self) -> tuple[NodeName, ...]:
        return group_members(self._group, self._state)

    def spoken(self) -> Spoken:
        return Spoken(self._state.protocol, self._spoken)

    def credentials(self, peer: NodeName) -> Credentials:
        return Credentials(
            self._identity,
            self._file.current.group,
            *self._configuration,
            self._listed_to(peer) if self._is_empty else self._group_members,
            self._meant(peer) or "",
            self._committed_incarnation(peer),
            self._cluster_address,
            self._file.current.superseded,
            self._applied_index,
        )

    def _listed_to(self, peer: NodeName) -> tuple[NodeName, ...]:
        """Who has nothing is let in by whom its list names. A peer of its list may be of another cluster by now: who
        was told which one to join shows the list only to who has shown to be of that."""
        return self._members if not self._told_to_join or peer in self._hosts else ()

    def introduced(self) -> dict[NodeName, str]:
        """Peers to link with until the log tells of them, and where they are.

        A node that was away while another came into the group neither knows it as a member nor calls it; if that one
        leads by now, this node would hear of nothing any more.
        """
        for peer, (configuration, _) in list(self._introduced.items()):
            if configuration <= self._configuration:
                del self._introduced[peer]
        return {peer: address for peer, (_, address) in self._introduced.items()}

    def must_ask(self) -> bool:
        """The others may have removed this node, or not know it yet, or not know where it is: then nobody calls it.

        So a node that follows no leader asks before it stands for election, together with others that were removed.
        """
        own = self._state.members.get(self._node)
        has_moved = own is not None and own.cluster_address != self._cluster_address
        return self._is_empty or has_moved or not self.linked_identities or self._group.core.leader is None

    def is_known(self, peer: NodeName, incarnation: Incarnation, credentials: Credentials) -> bool:
        return (
            credentials.group == self._file.current.group
            and self._meant(peer) in ("", credentials.identity)
            and incarnation >= self._committed_incarnation(peer)
        )

    def heed(self, peer: NodeName, credentials: Credentials) -> None:
        """Whether this node still is whom the group means by its name."""
        theirs = _configuration_of(credentials)
        meant = credentials.receiver_identity
        if self._file.current.is_log_dropped or self._is_of_superseded(credentials):
            return  # it is on its way to begin again; or the peer speaks for a cluster that was given up
        if self._is_superseded_by(credentials):
            self._given_up(peer, credentials)
            return
        if theirs == (0, 0) and not self._is_empty:
            self._consider(peer, credentials)
        is_of_group = credentials.group == self._file.current.group
        if is_of_group and meant == self._identity and self._is_older_than(credentials.receiver_incarnation):
            self._on_refused(
                f"the data of {self._node} is an older copy: it was started {credentials.receiver_incarnation} times, "
                f"and its directory knew of {self._incarnation - 1} before this start; {ways_out(self._node)}"
            )
            return  # whatever else the peer has yet to hear of: it knows of a later start of this directory
        if theirs == (0, 0) and self._is_empty and self._told_to_join and not self._file.current.has_joined:
            self._warn_once(
                f"{peer} has nothing of the cluster that {self._node} was told to join: if it was told to join another "
                f"itself, and both wait, `warrenctl reset --confirm` on one of them ends that"
            )
        if theirs == (0, 0) or theirs < self._configuration or not (is_of_group or self._is_empty):
            return  # the peer is new itself, has yet to hear of what this node knows, or is of another cluster
        if self._is_empty and self._told_to_join and not self._follow_list(peer, credentials):
            return
        is_meant = self._node in credentials.members and meant in ("", self._identity)
        if is_of_group and not is_meant and self._has_yet_to_hear(credentials):
            return
        if is_of_group and is_meant and meant and theirs > self._configuration and credentials.cluster_address:
            self._introduced[peer] = theirs, credentials.cluster_address
        if meant == self._identity:
            self._meant_at = max(self._meant_at, credentials.applied_index)
        if self._node not in credentials.members:
            self._not_a_member(peer, credentials.members)
        elif meant not in ("", self._identity) or (self._is_empty and not meant):
            is_new = self._is_empty and self._told_to_join and not self._file.current.has_joined
            self._on_refused(
                f"the data of {self._node} is lost: {peer} knows it by another data directory, and it must not go on "
                f"under its name without what it has promised; {ways_out(self._node)}"
                + (f". Or there are two nodes of this name: {self._way_out_of_two(peer)}" if is_new else "")
            )
        elif self._is_empty and not is_of_group:
            self._join(credentials)

    def _way_out_of_two(self, peer: NodeName) -> str:
        return (
            f"the cluster of {peer} has taken in the other, which was told to join it, too. Then set another "
            "`node_name` here, start this one with an empty data directory, and run `warrenctl join_cluster` again"
        )

    def _is_older_than(self, known: Incarnation) -> bool:
        """The cluster has ``known`` as the latest start of this directory: was that a process of which this one knows
        nothing? Nobody hears of a start before its first link, unless a voter decides alone."""
        is_another = not self._was_linked and self._group.core.voters != (self._node,)
        return self._incarnation < known or (self._incarnation == known and is_another)

    def _follow_list(self, peer: NodeName, credentials: Credentials) -> bool:
        """This node has nothing yet, and was told which cluster to join: its members are what they are now. False if
        the peer is of another one: it may have left, and begun again, when the list was made or since."""
        if self._told_to_join in (credentials.group, *credentials.superseded_groups):
            self._members = tuple(sorted({*self._members, *credentials.members}))
            self._hosts[peer] = None
            self._strangers.pop(peer, None)
            return True
        self._strangers[peer] = None
        self._hosts.pop(peer, None)
        text = f"{peer} is of another cluster than the one that {self._node} was told to join"
        if {*self._members} <= {*self._strangers, self._node}:
            self._on_refused(f"{text}: start it with an empty data directory, and run `warrenctl join_cluster` again")
        else:
            self._warn_once(f"{text}: if it has left that one, run `warrenctl forget_cluster_node {peer}` there")
        return False

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings[text] = None
            log.warning("%s", text)

    def _is_superseded_by(self, credentials: Credentials) -> bool:
        own = self._file.current.group
        return own in credentials.superseded_groups and own != credentials.group

    def _is_of_superseded(self, credentials: Credentials) -> bool:
        current = self._file.current
        return credentials.group in current.superseded and credentials.group != current.group

    def _given_up(self, peer: NodeName, credentials: Credentials) -> None:
        """An operator has made what the peer has the truth, in place of what this node's group has."""
        if _configuration_of(credentials) == (0, 0):
            return  # it has nothing yet itself, and does not know who was forgotten
        if not self._living_group.gives_way():
            level = logging.ERROR if self._living_group.lives else logging.INFO
            text = self._rivalry_with(peer)
            if self._reported != f"{level} {text}":
                self._reported = f"{level} {text}"
                log.log(level, "%s", text)
        elif self._node in credentials.members and credentials.receiver_identity == self._identity:
            log.warning("%s goes on as a member of the cluster of %s, with what that one knows", self._node, peer)
            self._file.adopt(credentials.group, credentials.superseded_groups)
            self._begin_again()
        else:
            self._on_refused(
                f"{self._node} was forgotten while {peer} was down, which goes on without it: delete its data "
                f"directory and start it again, {AS_A_NEW_NODE}"
            )

    def _rivalry_with(self, survivor: NodeName) -> str:
        """For the operators of both clusters."""
        return (
            f"{self._node} is of the cluster that was given up for that of {survivor}, offline, and that may live: one "
            f"of the two must not go on. To keep that of {self._node}, stop {survivor}, run `warrenctl "
            f"forget_cluster_node {survivor}` on {self._node}, delete the data directory of {survivor} and start it "
            f"again, {AS_A_NEW_NODE}. To keep that of {survivor}, stop all nodes of the other, and start them again"
        )

    def admit(self, peer: NodeName, incarnation: Incarnation, credentials: Credentials) -> None:
        """Raises `HandshakeError`."""
        if self._file.current.is_log_dropped:
            # What it votes with its old log it would not remember in the new one.
            raise HandshakeError(f"{self._node} begins again, with an empty log")
        if not credentials.identity:
            raise HandshakeError(f"{peer} runs an earlier release: all nodes of a cluster have to run the same")
        if self._is_of_superseded(credentials):
            raise HandshakeError(f"{peer} is of the cluster that was given up for that of {self._node}, offline")
        if self._is_superseded_by(credentials):
            raise HandshakeError(self._rivalry_with(peer))
        if self._is_empty:
            self._admit_to_founding(peer, credentials)
        else:
            self._admit_to_group(peer, incarnation, credentials)

    def _admit_to_founding(self, peer: NodeName, credentials: Credentials) -> None:
        """Nothing is here yet: only who is, or will be, of the same group can be spoken to."""
        own = self._file.current
        # One that joins another group, as yet with an empty log, founds nothing.
        founds = _configuration_of(credentials) == (0, 0) and credentials.group == credentials.identity
        if peer == self._founder and credentials.group != own.group and founds and not self._told_to_join:
            if own.has_joined or own.superseded:
                raise HandshakeError(
                    f"{self._node} is of a cluster that was founded before, and waits for its members: {peer} has no "
                    "place in that one yet"
                )
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
        known = self._meant(peer)
        theirs = _configuration_of(credentials)
        committed = self._committed_incarnation(peer)
        is_of_group = credentials.group == self._file.current.group
        if is_of_group and known in ("", credentials.identity) and incarnation < committed:
            raise HandshakeError(
                f"{peer} has an older copy of its data: it was started {committed} times, and its directory knows of "
                f"{incarnation}; {ways_out(peer)}"
            )
        if is_of_group and theirs > self._configuration:
            return  # it knows of changes that this node has yet to hear of
        if known is None:
            raise HandshakeError(
                f"{peer} is no member of the cluster of {', '.join(self._group_members)}; its own list is "
                f"{', '.join(credentials.members)}"
            )
        is_wiped = known != credentials.identity if known else theirs == (0, 0)
        if is_wiped:
            raise HandshakeError(
                f"{peer} has lost its data: the cluster knows it by another data directory; {ways_out(peer)}"
            )
        if not is_of_group:
            raise HandshakeError(f"{peer} waits for another cluster to be founded than that of {self._node}")

    def _not_a_member(self, peer: NodeName, members: Sequence[NodeName]) -> None:
        group = ", ".join(members)
        own = ", ".join(self._members)
        if not self._is_empty:
            self._on_refused(
                f"{self._node} was removed from the cluster of {group}: delete its data directory and start it again, "
                f"{AS_A_NEW_NODE}"
            )
        elif not set(members) <= set(self._members):
            self._on_refused(
                f"{self._node} cannot join the cluster of {group}, to which {peer} belongs, with the list {own}: set "
                f"`cluster_formation` to the members of the cluster and {self._node}"
            )
        elif self._reported != group:
            self._reported = group
            log.info("%s has asked to join the cluster of %s", self._node, group)

    def _join(self, credentials: Credentials) -> None:
        """The group means this node, which has nothing yet, by its identity."""
        known = credentials.receiver_incarnation
        after = Incarnation(known + UNHEARD_STARTS if known else 0)
        if self._incarnation <= after:
            log.info("%s counts its starts on from %d", self._node, after)
            self._count_on_from(after)
        else:
            self._file.join(credentials.group, credentials.superseded_groups, credentials.applied_index)
            log.info("%s joins the cluster of %s", self._node, ", ".join(credentials.members))

    def _consider(self, peer: NodeName, credentials: Credentials) -> None:
        """A node that has nothing: let it in if its name is free, and it knows to whom it comes."""
        admitted = self._state.admissions.admitted.get(peer)
        for name in [name for name in self._awaited if name not in self._state.admissions.admitted]:
            del self._awaited[name]  # it was forgotten: who is let in under its name, the same even, comes anew
        is_free = peer not in self._state.members and (
            self._meant(peer) is None or (admitted is not None and peer not in self._group.core.voters)
        )
        is_taken = admitted is not None and self._is_coming(admitted)
        is_asked_for = not is_taken and (admitted is None or admitted.identity != credentials.identity)
        knows_us = {*self._group_members, peer} <= {*credentials.members}
        if not (is_free and is_asked_for and knows_us and credentials.identity and credentials.cluster_address):
            return
        if peer not in self._proposed:
            self._proposed[peer] = None
            as_of_index = self._state.as_of_index
            command = AdmitNode(peer, credentials.identity, credentials.cluster_address, as_of_index)
            self._spawn(self._let_in(command), f"letting {peer} in")

    def _is_coming(self, admitted: AdmittedRecord) -> bool:
        """The directory that was let in is here, or has had no time to come yet: no other is to take its place. Two may
        have been told to join under one name, and each would end at the word that the group means the other."""
        identity, since_ms = self._awaited.get(admitted.node, ("", 0))
        if identity != admitted.identity:
            since_ms = self._now_ms()
            self._awaited[admitted.node] = admitted.identity, since_ms
        is_here = self.linked_identities.get(admitted.node) == admitted.identity
        return is_here or self._now_ms() - since_ms < COMING_MS

    async def _let_in(self, command: AdmitNode) -> None:
        try:
            await self._admit_node(command)
            log.info("%s at %s may join the cluster", command.node, command.cluster_address)
        finally:
            self._proposed.pop(command.node, None)

    def look(self) -> None:
        """To be called about once in a second."""
        self._living_group.look()

    def linked(self, peer: NodeName, identity: str) -> None:
        self._was_linked = True
        self._living_group.look()
        self.linked_identities[peer] = identity
        self._found_if_complete()

    def unlinked(self, peer: NodeName) -> None:
        self._living_group.look()
        self.linked_identities.pop(peer, None)

    # --- founding ---

    def _found_if_complete(self) -> None:
        if not self._may_found:
            return
        identities = {self._node: self._identity, **self.linked_identities}
        if all(member in identities for member in self._members):
            self._group.found([Voter(member, identities[member]) for member in self._members])

    def check_invariants(self) -> None:
        assert self._node not in self.linked_identities, "a node is not linked with itself"
        own = self._group.core.log.identity_of(self._node)
        is_learning = self._file.current.has_joined  # what it has so far may be of its predecessor's time
        assert not own or own == self._identity or is_learning, "the log means this node by its name"


def _configuration_of(credentials: Credentials) -> tuple[int, int]:
    return credentials.configuration_term, credentials.configuration_index

"""Links and votes that follow from the log and the records. (With whole nodes: test_admission, the simulator.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from cluster.metadata.commands import AdmitNode
from cluster.metadata.state import MetadataState
from cluster.raft.log import RaftLog
from cluster.raft.messages import Snapshot
from cluster.runtime.group_members import GroupMembers
from node.ids import NodeName

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")


class Core:
    def __init__(self) -> None:
        self.log = RaftLog(Snapshot(7, 1, (N1, N2), b"", ("one", "two")))
        self.is_leader = False


class Group:
    """That of n1, whose log names n1 and n2."""

    def __init__(self) -> None:
        self.core = Core()
        self.applied_index = 7


class Links:
    def __init__(self) -> None:
        self.peers: list[NodeName] = []

    def add_peer(self, name: NodeName, *addresses: str) -> None:
        self.peers.append(name)

    def remove_peer(self, name: NodeName) -> None:
        self.peers.remove(name)


def test_who_was_linked_before_it_was_known_as_a_member_is_watched_as_soon_as_it_is_one() -> None:
    """A node that came while n1 was away leads now: it is linked first, and heard of as a member later, at the address
    that it had given. Who is not watched would never be declared down by n1."""
    state, links, introduced, watched = MetadataState(), Links(), {N3: "n3:1"}, list[Sequence[NodeName]]()
    members = GroupMembers(N1, state, {N2: "n2:1"}, lambda: "one", {}, lambda: introduced, watched.append)
    members.join(cast(Any, Group()), links)
    members.follow()
    assert (links.peers, watched) == ([N2, N3], [(N2,)])
    state.admissions.admit(AdmitNode(N3, "three", "n3:1"), None)
    members.follow()
    assert watched[1:] == [(N2, N3)]

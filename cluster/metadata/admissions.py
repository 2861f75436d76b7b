"""Nodes on their way out of the cluster, and in: which names were forgotten, and which directories may join.

To forget a node is one commit. From it follow its removal from the voters, which the leader sees to, and that nothing
of the old life is heard any more. A node with a directory that was *admitted* follows the log, votes as soon as it has
learned it, and is a member from its first `NodeUp` on. The name may be one that was forgotten; so that no start of it
is taken for one of the node before, its starts are counted on from there.

What nobody has decided in time is proposed again, and may be decided when the name stands for another directory, or
the node has been up in between. So these commands say of when they are, and what is older than the latest *turn* of
the name (it was let in, it started, it was forgotten) is refused.
"""

from __future__ import annotations

from typing import Any

from cluster.metadata.commands import AdmitNode, ForgetNode, NodeUp
from cluster.metadata.errors import (
    ForgottenNodeError,
    NodeStillUpError,
    NoSuchNodeError,
    StaleNodeChangeError,
    StillMemberError,
)
from cluster.metadata.records import AdmittedRecord, MemberRecord
from node.ids import Incarnation, NodeName


class Admissions:
    """Readers may look at everything; only committed commands change anything."""

    def __init__(self) -> None:
        #: Names that were forgotten, and the latest start that is known of each.
        self.forgotten: dict[NodeName, Incarnation] = {}
        #: Nodes that were let in after the cluster was founded.
        self.admitted: dict[NodeName, AdmittedRecord] = {}
        #: Index of the entry that was the latest turn of each name; kept since commands say of when they are.
        self._turned: dict[NodeName, int] = {}

    def turn(self, node: NodeName, index: int) -> None:
        """The entry at ``index`` has let it in, told of a start, or forgotten it."""
        self._turned[node] = index

    def _check_time(self, command: AdmitNode | ForgetNode) -> None:
        if 0 < command.as_of_index < self._turned.get(command.node, 0):
            raise StaleNodeChangeError(command.node)

    def check_forgetting(self, command: ForgetNode, member: MemberRecord | None) -> None:
        """Raises `NoSuchNodeError`, `NodeStillUpError`, `StaleNodeChangeError`."""
        if member is None and command.node not in self.admitted and not command.is_voter:
            raise NoSuchNodeError(command.node)
        if member is not None and member.is_up:
            raise NodeStillUpError(command.node)
        self._check_time(command)

    def forget(self, command: ForgetNode, member: MemberRecord | None) -> None:
        """Raises as `check_forgetting`."""
        self.check_forgetting(command, member)
        node = command.node
        admitted = self.admitted.get(node)
        latest = [self.forgotten.get(node, Incarnation(0))]
        latest += [] if member is None else [member.incarnation]
        latest += [] if admitted is None else [admitted.after_incarnation]
        self.forgotten[node] = max(latest)
        self.admitted.pop(node, None)

    def admit(self, command: AdmitNode, member: MemberRecord | None) -> bool:
        """False if this directory was let in before. Raises `StillMemberError`, `StaleNodeChangeError`."""
        if member is not None:
            raise StillMemberError(command.node)
        admitted = self.admitted.get(command.node)
        is_another = admitted is None or admitted.identity != command.identity
        if is_another:
            self._check_time(command)
        after = self.forgotten.get(command.node, Incarnation(0))
        self.admitted[command.node] = AdmittedRecord(command.node, command.identity, command.cluster_address, after)
        return is_another

    def arrive(self, command: NodeUp, member: MemberRecord | None) -> None:
        """A node is up. Raises `ForgottenNodeError` if it is none of the cluster any more."""
        if member is not None or command.node not in self.forgotten:
            return
        admitted = self.admitted.get(command.node)
        if admitted is None or command.incarnation <= admitted.after_incarnation:
            raise ForgottenNodeError(command.node)
        del self.forgotten[command.node]

    def snapshot(self) -> list[Any]:
        tables = [sorted(self.forgotten.items()), [record for _, record in sorted(self.admitted.items())]]
        return [*tables, sorted(self._turned.items())] if self._turned else tables

    def restore(self, data: list[Any]) -> None:
        self.forgotten = {node: incarnation for node, incarnation in data[0]}
        self.admitted = {record.node: record for record in data[1]}
        self._turned = dict(data[2]) if len(data) > 2 else {}

    def is_forgotten(self, node: NodeName) -> bool:
        """And not let in again."""
        return node in self.forgotten and node not in self.admitted

"""Changes that the cluster agrees on. Every one travels as a `Request` through the Raft log.

The order of a command's fields is its encoding (`cluster.metadata.codec`): new fields go to the end, with a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cluster.metadata.records import PolicyRecord
from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.topology.commands import TopologyCommand


@dataclass(frozen=True, slots=True)
class RequestId:
    """Identity of one proposal, the same however often it is repeated.

    ``counter`` grows by one from 1 in each incarnation of the proposing node.
    """

    node: NodeName
    incarnation: Incarnation
    counter: int


@dataclass(frozen=True, slots=True)
class ChangeTopology:
    """A change of vhosts, exchanges, queues or bindings, asked for by a client of ``origin``.

    A new queue's id is the log index of this command; its master is ``origin`` unless a locator says otherwise.
    """

    command: TopologyCommand
    origin: NodeName


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node has started (or became reachable again, under the same incarnation).

    ``rules_version``: the protocol that the node speaks (`cluster.metadata.protocol`). Up to 2 it was that of the
    rules of mastership, of which the highest announced holds.
    """

    node: NodeName
    incarnation: Incarnation
    cluster_address: str
    amqp_address: str
    rules_version: int = 1


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A node is gone. Means only that ``incarnation``: a node that came back meanwhile is not touched.

    ``shutdown``: it said goodbye before (``ha-promote-on-shutdown`` decides); ``failure``: it did not.
    """

    node: NodeName
    incarnation: Incarnation
    reason: Literal["failure", "shutdown"] = "failure"


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """Remove a node that is down and will not return. Queues that, by the record, only it could bring back are deleted.

    ``is_voter``: it votes, though it may never have been up. The result names the queues that were deleted.
    ``as_of_index`` as in `AdmitNode`.

    ``is_confirmed``: whatever has to be deleted is. If not, nothing is done if a durable queue would be deleted that is
    not one of ``lost_queues``: those of which nobody else was found to have anything.
    """

    node: NodeName
    is_voter: bool = False
    as_of_index: int = 0
    is_confirmed: bool = True
    lost_queues: tuple[QueueId, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmitNode:
    """Let a node that has nothing yet join, with this data directory: it follows the log, then votes, then is up.

    ``as_of_index``: index of the log that the proposer had applied when it was asked for. Whoever has come, started or
    gone under that name after that index is not meant. 0: it is not said.
    """

    node: NodeName
    identity: str
    cluster_address: str
    as_of_index: int = 0


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Create or replace a policy; refused with `PolicyError` if it is invalid (`cluster.policy.validation`)."""

    policy: PolicyRecord


@dataclass(frozen=True, slots=True)
class ClearPolicy:
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class AddUser:
    """Create a user. ``password_hash`` as `node.auth.hash_password` makes it; the password itself never travels."""

    name: str
    password_hash: str = field(repr=False)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteUser:
    """Remove a user with all permissions."""

    name: str


@dataclass(frozen=True, slots=True)
class ChangePassword:
    name: str
    password_hash: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SetUserTags:
    name: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetPermissions:
    vhost: str
    user: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class ClearPermissions:
    vhost: str
    user: str


@dataclass(frozen=True, slots=True)
class MirrorSynchronised:
    """The master of ``epoch`` says that a mirror holds everything.

    ``as_of_index``: index of the log that the master had applied when it said so. A mirror that was taken out of the
    record and put back after that index is not meant: it may have missed what was confirmed in between.
    """

    queue_id: QueueId
    epoch: Epoch
    node: NodeName
    as_of_index: int


@dataclass(frozen=True, slots=True)
class DropMirror:
    """The master of ``epoch`` goes on without a mirror that does not answer. Its confirms no longer count."""

    queue_id: QueueId
    epoch: Epoch
    node: NodeName


@dataclass(frozen=True, slots=True)
class AddMirror:
    """Take a dropped mirror back, as the youngest and unsynchronised, if the policy still wants it there."""

    queue_id: QueueId
    epoch: Epoch
    node: NodeName


@dataclass(frozen=True, slots=True)
class MoveMaster:
    """Make a synchronised mirror the master (a complete one, if none is synchronised); the old master stays as the
    youngest mirror, complete too.

    ``is_old_lost``: the disk of the old master has failed, so its copy no longer counts.
    """

    queue_id: QueueId
    epoch: Epoch
    node: NodeName
    is_old_lost: bool = False


@dataclass(frozen=True, slots=True)
class MirrorFollows:
    """The master of ``epoch`` says that a mirror hears of every operation, whatever it lacks of what was before.

    ``as_of_index`` as in `MirrorSynchronised`: a mirror that restarted after that index is not meant.
    """

    queue_id: QueueId
    epoch: Epoch
    node: NodeName
    as_of_index: int


@dataclass(frozen=True, slots=True)
class TakeService:
    """``node`` has opened its copies of these queues and serves them as the master of these epochs.

    From here on it goes on without the complete copies that are not among its mirrors: they are complete no longer.
    Queues whose record has moved on meanwhile are left alone.
    """

    node: NodeName
    queues: tuple[tuple[QueueId, Epoch], ...]


@dataclass(frozen=True, slots=True)
class ForcePromote:
    """An operator stops waiting for the complete copies of a queue that nobody serves: ``node`` is to serve it with
    what it has. What it lacks is lost, and counted.

    ``served_epoch``: the last before it was looked at in which a master may have served it that has ended
    (`mastership.last_served_epoch`), if that is said. What has been confirmed since is not given up.
    """

    queue_id: QueueId
    node: NodeName
    served_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """Make what every cluster has: a vhost, a user, and all permissions of the one in the other.

    All or nothing, and refused once it was done, or a vhost was made in any other way. A user of that name who is there
    (of a release that made them one by one, and stopped on the way) stays as it is.
    """

    vhost: str
    user: str
    password_hash: str = field(repr=False)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RaiseProtocol:
    """All members speak ``protocol``, in these starts of theirs: from here on the cluster uses what it brings.

    Refused, without a trace, unless these are all members, and all are up.
    """

    protocol: int
    members: tuple[tuple[NodeName, Incarnation], ...]


MirrorCommand = MirrorSynchronised | MirrorFollows | DropMirror | AddMirror | MoveMaster
UserCommand = AddUser | DeleteUser | ChangePassword | SetUserTags | SetPermissions | ClearPermissions
Command = (
    ChangeTopology
    | NodeUp
    | NodeDown
    | ForgetNode
    | AdmitNode
    | SetPolicy
    | ClearPolicy
    | UserCommand
    | MirrorCommand
    | TakeService
    | ForcePromote
    | FoundCluster
    | RaiseProtocol
)


@dataclass(frozen=True, slots=True)
class Request:
    """What one entry of the Raft log carries."""

    request_id: RequestId
    command: Command

"""Changes that the state machine refuses to operators. Clients get `node.errors.AmqpError` instead."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from node.errors import ConfigError, QueueMovedError, WarrenError

#: What an operator can do whose command would delete queues of which somebody may have something.
ASK_OR_CONFIRM = "start what is down and ask again, or give --confirm"
#: More queues than that are counted only.
NAMED_QUEUES_MAX = 10


def some_of(queues: Sequence[str]) -> str:
    """Names of queues, one at least, as an operator reads them."""
    named, more = queues[:NAMED_QUEUES_MAX], len(queues) - NAMED_QUEUES_MAX
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


class NoQuorumError(WarrenError):
    """The cluster could not decide in time: too few nodes are up, or they do not reach each other."""


class OutcomeUnknownError(NoQuorumError):
    """The request was decided on before, and this node has not seen how: a snapshot that it was sent has the entry."""

    def __init__(self) -> None:
        super().__init__("the cluster has decided, and this node missed what; it may have been carried out, or refused")


class RefusedChangeError(WarrenError):
    """The change makes no sense in the present state; nothing was changed."""


class NoSuchUserError(RefusedChangeError):
    def __init__(self, user: str) -> None:
        super().__init__(f'User "{user}" does not exist')


class UserExistsError(RefusedChangeError):
    def __init__(self, user: str) -> None:
        super().__init__(f'User "{user}" already exists')


class NoSuchVhostError(RefusedChangeError):
    def __init__(self, vhost: str) -> None:
        super().__init__(f"Virtual host '{vhost}' does not exist")


class NoSuchPolicyError(RefusedChangeError):
    def __init__(self) -> None:
        super().__init__("Parameter does not exist")


class NodeStillUpError(RefusedChangeError):
    def __init__(self, node: str) -> None:
        super().__init__(f"node {node} must be stopped before it can be removed")


class QueuesWouldBeDeletedError(RefusedChangeError):
    """Somebody was to serve them when it was asked for that their node be forgotten."""

    def __init__(self, queues: Sequence[str]) -> None:
        super().__init__(
            f"{some_of(queues)} would be deleted: whoever else had something of it is down by now, or gave it up; "
            f"{ASK_OR_CONFIRM}"
        )


class NoSuchNodeError(RefusedChangeError):
    def __init__(self, node: str) -> None:
        super().__init__(f"{node} is no member of this cluster")


class StaleNodeChangeError(RefusedChangeError):
    """It was asked for before the latest that is known of the node."""

    def __init__(self, node: str) -> None:
        super().__init__(f"{node} has come, started or been removed since that was asked for: ask again")


class StaleVhostChangeError(RefusedChangeError):
    """It was asked for when there was another vhost of that name, or none."""

    def __init__(self, vhost: str) -> None:
        super().__init__(f"virtual host '{vhost}' has been made anew since that was asked for: ask again")


class StillMemberError(RefusedChangeError):
    def __init__(self, node: str) -> None:
        super().__init__(f"{node} is a member of this cluster already: it cannot join under another data directory")


#: How a node with an empty directory comes into a cluster: what is in its configuration is not enough for all.
AS_A_NEW_NODE = "to join as a new node: by its `cluster_formation` or, if it has none, by `warrenctl join_cluster`"


class ForgottenNodeError(RefusedChangeError):
    def __init__(self, node: str) -> None:
        super().__init__(
            f"{node} was removed from the cluster: delete its data directory and start it again, {AS_A_NEW_NODE}"
        )


class AlreadyFoundedError(RefusedChangeError):
    def __init__(self) -> None:
        super().__init__("the cluster has what every cluster has, or had it until an operator took it away")


class TooNewCommandError(RefusedChangeError):
    """A member may not know this kind of command."""

    def __init__(self, kind: str, needed: int, protocol: int, holders: Collection[str] = ()) -> None:
        because = f": {'; '.join(holders)}" if holders else ""
        super().__init__(
            f"{kind} needs protocol {needed}, and the cluster has {protocol}{because}. It is possible when all nodes "
            "run a release that knows it"
        )


class NewerReleaseError(ConfigError):
    """What is stored here, or sent to this node, is of a release that this one does not know."""

    def __init__(self, what: str, needs: str, spoken: int) -> None:
        super().__init__(
            f"{what} needs {needs}, of a newer release of Warren, and this one speaks protocol {spoken}: upgrade this "
            "node; what it has stays as it is until then"
        )


class ProtocolNotRaisedError(RefusedChangeError):
    """Not all members speak the new protocol, as far as is known for certain."""


class OlderReleaseError(RefusedChangeError):
    """A node of a release that does not know what the cluster uses."""

    def __init__(self, node: str, protocol: int, lowest: int) -> None:
        super().__init__(older_release(node, protocol, lowest))


def older_release(node: str, protocol: int, lowest: int) -> str:
    """What an operator reads of a node that does not know what its cluster uses."""
    return (
        f"{node} speaks protocol {protocol}, and the cluster needs {lowest} at least: start {node} with the release of "
        "the other nodes"
    )


class EarlierLifeError(RefusedChangeError):
    """The request was made in an earlier life of its node, or by a node that counts its starts anew."""

    def __init__(self, node: str, incarnation: int) -> None:
        super().__init__(f"{node} has started again since its start {incarnation}, in which this was asked for")


class StaleMastershipError(RefusedChangeError):
    """The command names another epoch, or a mirror, that the record no longer has."""


class UnwantedMirrorError(StaleMastershipError):
    """A place as a mirror was asked for that no policy gives: to ask again is of no use."""

    def __init__(self, queue_id: int, node: str) -> None:
        super().__init__(f"no policy wants queue {queue_id} on {node}")


class StaleDeletionError(StaleMastershipError, QueueMovedError):
    """The conditions of a deletion were checked by a master of another epoch."""


class StillServedError(RefusedChangeError):
    def __init__(self, queue: str, master: str) -> None:
        super().__init__(
            f"queue '{queue}' is served by {master}, so nobody waits for it; "
            f"to have it elsewhere, change its policy or stop {master}"
        )


class CompleteMasterError(RefusedChangeError):
    def __init__(self, queue: str, master: str) -> None:
        super().__init__(
            f"{master} has everything that is in queue '{queue}' and is about to serve it; "
            f"if it does not within seconds, see its log, or stop {master} and try again"
        )


class NodeNotUpError(RefusedChangeError):
    def __init__(self, node: str) -> None:
        super().__init__(f"{node} is not running: start it first, or name a node that runs")


class MalformedCommandError(RefusedChangeError):
    """A field of the command holds what its type does not allow (see `cluster.metadata.wellformed`)."""


class EmptyNameError(RefusedChangeError):
    """Not proposed; what an older release has put into the log is carried out."""

    def __init__(self, what: str) -> None:
        super().__init__(f"a {what} needs a name; an empty one means none")


class ChangeFailedError(RefusedChangeError):
    """Carrying out the command failed, which is a mistake of ours. The state is what it was before.

    Clients get the first 255 bytes: what to do comes before what happened, which is in the log.
    """

    def __init__(self, command: object, error: Exception) -> None:
        super().__init__(
            f"{type(command).__name__} could not be carried out; nothing was changed. "
            f"This is a mistake of Warren: report it with the node's log ({error!r})"
        )

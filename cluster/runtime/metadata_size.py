"""How large the metadata may become.

Whoever needs a snapshot gets the state in one message, which no peer takes if it is larger than
`cluster.transport.mesh` allows, and which costs the leader time in one piece. So a cluster that is large enough takes
no more definitions. How large it is nobody knows without encoding it; but the last snapshot was measured, and what
came since is no more than the log that brought it. A snapshot is due when that log is as long as `DriverConfig` says,
and when something went of what is too large.

Only who proposes looks at this. What is in the log is carried out.
"""

from __future__ import annotations

from cluster.metadata.commands import (
    AddUser,
    ChangeTopology,
    ClearPermissions,
    ClearPolicy,
    Command,
    DeleteUser,
    ForgetNode,
    NodeDown,
    SetPermissions,
    SetPolicy,
)
from node.errors import ChannelError
from node.topology.commands import (
    Bind,
    CreateVhost,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    Unbind,
)

#: A snapshot of so many bytes is the last that grows: some sixty thousand queues with three hundred thousand bindings.
SNAPSHOT_BYTES_MAX = 64 * 1024 * 1024
#: Nor may what came since make it so large. Together with what is not applied yet it stays below what a peer takes.
ALTOGETHER_BYTES_MAX = 144 * 1024 * 1024

_GROWING = (AddUser, SetPermissions, SetPolicy)
_GROWING_TOPOLOGY = (Bind, CreateVhost, DeclareExchange, DeclareQueue)
#: What sets may take the place of something larger.
_SHRINKING = (ClearPermissions, ClearPolicy, DeleteUser, ForgetNode, NodeDown, SetPermissions, SetPolicy)
_SHRINKING_TOPOLOGY = (DeleteExchange, DeleteQueue, DeleteVhost, Unbind)


class MetadataSize:
    """See the top of this module."""

    def __init__(self) -> None:
        self._snapshot_bytes = 0
        #: Of entries applied since it was begun, and of those that the one being taken has.
        self._log_bytes = self._taken_bytes = 0
        #: Of those up to the last by which something went; 0 if nothing did.
        self._shrunk_bytes = 0

    def applied(self, payload: bytes, command: Command) -> None:
        """An entry of the log."""
        self._log_bytes += len(payload)
        if _is_one_of(command, _SHRINKING, _SHRINKING_TOPOLOGY):
            self._shrunk_bytes = self._log_bytes

    def begin(self) -> None:
        """A snapshot of what is applied now is being taken; it may come to nothing."""
        self._taken_bytes = self._log_bytes

    def taken(self, snapshot: bytes) -> None:
        """The one that was begun last is in force."""
        self._snapshot_bytes = len(snapshot)
        self._log_bytes -= self._taken_bytes
        self._shrunk_bytes = max(0, self._shrunk_bytes - self._taken_bytes)
        self._taken_bytes = 0

    def restored(self, snapshot: bytes) -> None:
        """The state is what this one says."""
        self._snapshot_bytes = len(snapshot)
        self._log_bytes = self._taken_bytes = self._shrunk_bytes = 0

    @property
    def is_large(self) -> bool:
        """Nothing may be added."""
        return (
            self._snapshot_bytes >= SNAPSHOT_BYTES_MAX or self._snapshot_bytes + self._log_bytes >= ALTOGETHER_BYTES_MAX
        )

    @property
    def is_doubtful(self) -> bool:
        """Perhaps something may be added: another snapshot would tell."""
        return self._shrunk_bytes > 0 and self.is_large

    def check(self, command: Command) -> None:
        """Raises `ChannelError` 406 if ``command`` adds something and there is enough already."""
        if self.is_large and _is_one_of(command, _GROWING, _GROWING_TOPOLOGY):
            raise ChannelError(
                406,
                f"the definitions of this cluster take some {self._snapshot_bytes + self._log_bytes:,} bytes, and more "
                f"than {SNAPSHOT_BYTES_MAX:,} are too many: delete queues, exchanges or bindings that nobody uses, "
                "or those with large arguments",
            )


def _is_one_of(command: Command, kinds: tuple[type, ...], topology_kinds: tuple[type, ...]) -> bool:
    return (
        isinstance(command.command, topology_kinds)
        if isinstance(command, ChangeTopology)
        else isinstance(command, kinds)
    )

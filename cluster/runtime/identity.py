"""Who a node is, kept in its data directory: an identity made once, at random, and the group that it belongs to.

```
<data_dir>/identity     identity = <hex>     of the directory; made before anything of the node is seen by others
                        group = <hex>        identity of the founder of its group; zeros if it was founded before
                                             directories had identities, empty if it is of none yet
                        log = begun          once the log of the metadata exists;
                              dropped        it is of a group that was given up: the next start removes it
                        joined = late        if the group was there before: the log that it learns may mean, by the name
                                             of its node, the directory before
                        meant = <index>      how far the records were of the member that let it join: who knows less
                                             of the group has yet to hear of this directory
                        superseded = <hex> ...   groups that were given up for this one, newest first
                        forgetting = <hex>   `forget_cluster_node --offline` began to make this the group
```

From protocol 3 on (`cluster.metadata.protocol`) the file begins with what older releases are to say when they find it,
and the identity has another name, so that they do not take the directory for theirs:

```
                        protocol = <number>  the lowest that a release must speak to use the directory
                        note = <what to do>
                        directory = <hex>    what was ``identity``
```

A name says where a node is, the identity says that it remembers: its term, its votes, what it acknowledged, its queues.
Whoever comes under a known name with another identity has lost all that (`cluster.runtime.admission`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from cluster.metadata.errors import AS_A_NEW_NODE, NewerReleaseError
from cluster.metadata.kinds import FIRST_PROTOCOL
from node.errors import ConfigError, ShortageError, StorageError
from node.ids import NodeName
from node.store.disk.disk import Disk, read_whole, write_durably

IDENTITY_FILE = "identity"
RAFT_DIRECTORY = "raft"
IDENTITY_BYTES = 16
#: Of every group that was founded by a release without identities.
EARLIER_GROUP = "0" * 2 * IDENTITY_BYTES
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
#: Of a damaged file an operator is shown so much.
_SHOWN_CHARACTERS = 300
#: For whoever starts an older release with the directory: it shows the file.
_NOTE = "a newer release of Warren uses this directory: start that one, or a later one"


@dataclass(frozen=True, slots=True)
class Identity:
    """What the file says."""

    identity: str
    group: str = ""
    has_log: bool = False
    #: That a release must speak to use the directory.
    protocol: int = FIRST_PROTOCOL
    has_joined: bool = False
    is_log_dropped: bool = False
    superseded: tuple[str, ...] = ()
    forgetting: str = ""
    meant_at: int = 0


#: The first protocol whose releases know that groups are given up.
GIVING_UP_GROUPS = 3
#: Groups of which a cluster remembers that it has given them up.
SUPERSEDED_MAX = 64


class IdentityFile:
    """The file in ``data_dir``. `current` is what it durably holds."""

    def __init__(self, disk: Disk, data_dir: str, current: Identity) -> None:
        """Use `open`."""
        self._disk = disk
        self._path = f"{data_dir}/{IDENTITY_FILE}"
        self.current = current
        #: Told why it could not be written, unless that is for want of room, in which case it can be tried again.
        self.on_failed: Callable[[StorageError], None] = lambda _error: None

    @classmethod
    def open(cls, disk: Disk, data_dir: str, node: NodeName, chance: Random) -> IdentityFile:
        """Read the identity, or make one: for a new directory, and for one of a release without identities.

        Raises `ConfigError` if a part of the directory is missing, `StorageError` for a file that cannot be read.
        """
        identity = read_identity(disk, data_dir)
        raft = f"{data_dir}/{RAFT_DIRECTORY}"
        has_log = disk.exists(f"{raft}/log")
        if identity is None:
            group = EARLIER_GROUP if has_log else ""
            file = cls(disk, data_dir, Identity(chance.randbytes(IDENTITY_BYTES).hex(), group, has_log))
            file._write(file.current)
            return file
        if identity.forgetting:
            raise ConfigError(
                f"`warrenctl forget_cluster_node --offline` was interrupted on {node}: run it again, for the same nodes"
            )
        if identity.has_log and not has_log:
            raise ConfigError(
                f"data_dir {data_dir} has lost the log of the metadata (raft/log), without which {node} does not know "
                f"how it has voted: {ways_out(node)}"
            )
        file = cls(disk, data_dir, identity)
        if identity.is_log_dropped:
            if disk.exists(raft):
                for name in disk.list(raft):
                    disk.unlink(f"{raft}/{name}")
                disk.sync_directory(raft)
            file._write(replace(identity, is_log_dropped=False))
        return file

    def bind(self, group: str, superseded: Sequence[str] = ()) -> None:
        """Belong to ``group`` from now on. Durable on return. Raises `StorageError`."""
        self._write(replace(self.current, group=group, superseded=tuple(superseded)[:SUPERSEDED_MAX]))

    def adopt(self, group: str, superseded: Sequence[str]) -> None:
        """Belong to the group that goes on for this one's, from the next start on, and with an empty log."""
        superseded = tuple(superseded)[:SUPERSEDED_MAX]
        current = replace(
            self.current, group=group, superseded=superseded, has_log=False, is_log_dropped=True, meant_at=0
        )
        self._write(current)

    def begin_forgetting(self, group: str) -> None:
        """The log is about to be rewritten for a new group: without `end_forgetting` no node may start from it."""
        self._write(replace(self.current, forgetting=group))

    def end_forgetting(self) -> None:
        """It is rewritten: this is the group now, and goes on for the one before."""
        own = self.current
        superseded = (own.group, *own.superseded)[:SUPERSEDED_MAX]
        self._write(replace(own, group=own.forgetting, superseded=superseded, forgetting="", meant_at=0))

    def require(self, spoken: int) -> None:
        """Raises `NewerReleaseError` if a release that speaks this must not use the directory."""
        if self.current.protocol > spoken:
            raise NewerReleaseError(self._path, f"protocol {self.current.protocol}", spoken)

    def need(self, protocol: int) -> None:
        """No release that speaks less may use the directory any more. Durable on return. Raises `StorageError`."""
        if self.current.protocol < protocol:
            self._write(replace(self.current, protocol=protocol))

    def join(self, group: str, superseded: Sequence[str] = (), meant_at: int = 0) -> None:
        """Belong to a group that was there before, whose records mean this directory from an index on that is this one
        at most. Durable on return. Raises `StorageError`."""
        superseded = tuple(superseded)[:SUPERSEDED_MAX]
        self._write(replace(self.current, group=group, superseded=superseded, has_joined=True, meant_at=meant_at))

    def note_log(self) -> None:
        """The log of the metadata exists. Durable on return. Raises `StorageError`."""
        if not self.current.has_log:
            self._write(replace(self.current, has_log=True))

    def _write(self, identity: Identity) -> None:
        if identity.superseded or identity.forgetting or identity.is_log_dropped:
            # A release that does not know of it would go back to the group that was given up.
            identity = replace(identity, protocol=max(identity.protocol, GIVING_UP_GROUPS))
        lines = [f"identity = {identity.identity}", f"group = {identity.group}"]
        if identity.protocol > FIRST_PROTOCOL:
            lines[:1] = [
                f"protocol = {identity.protocol}",
                f"note = {_NOTE}",
                f"directory = {identity.identity}",
            ]
        if identity.has_log or identity.is_log_dropped:
            lines.append(f"log = {'begun' if identity.has_log else 'dropped'}")
        if identity.has_joined:
            lines.append("joined = late")
        if identity.meant_at:
            lines.append(f"meant = {identity.meant_at}")
        if identity.superseded:
            lines.append(f"superseded = {' '.join(identity.superseded)}")
        if identity.forgetting:
            lines.append(f"forgetting = {identity.forgetting}")
        try:
            write_durably(self._disk, self._path, "".join(f"{line}\n" for line in lines).encode())
        except ShortageError:
            raise
        except StorageError as error:
            self.on_failed(error)
            raise
        self.current = identity


def read_identity(disk: Disk, data_dir: str) -> Identity | None:
    """What the file says, if there is one. Raises `StorageError`."""
    path = f"{data_dir}/{IDENTITY_FILE}"
    return _parse(read_whole(disk, path).decode(errors="replace"), path) if disk.exists(path) else None


def written_number(text: str) -> int | None:
    """The number that a file of the data directory holds; ``None`` if that is none of 63 bits."""
    return int(text) if _NUMBER.fullmatch(text) else None


def shown(text: str) -> str:
    """What a damaged file holds, for its operator: the beginning, if it is long."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r} and more"


def ways_out(node: NodeName) -> str:
    """What an operator can do about a node that has lost its data."""
    return (
        f"restore the whole directory as {node} left it, or run `warrenctl forget_cluster_node {node}` on another node "
        f"and start {node} with an empty directory, {AS_A_NEW_NODE}"
    )


def _parse(text: str, path: str) -> Identity:
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" = ")
        values[name] = value
    identity = values.get("identity") or values.get("directory", "")
    protocol = values.get("protocol", str(FIRST_PROTOCOL))
    number = written_number(protocol)
    if number is None or len(identity) != 2 * IDENTITY_BYTES:
        raise StorageError(f"{path} should hold the identity of this data directory and holds {shown(text)}")
    group = values.get("group", "")
    return Identity(
        identity,
        group,
        has_log=values.get("log") == "begun",
        protocol=number,
        has_joined=values.get("joined") == "late",
        is_log_dropped=values.get("log") == "dropped",
        superseded=tuple(values.get("superseded", "").split()),
        forgetting=values.get("forgetting", ""),
        meant_at=written_number(values.get("meant", "")) or 0,
    )

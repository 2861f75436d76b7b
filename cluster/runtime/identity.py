"""Who a node is, kept in its data directory: an identity made once, at random, and the group that it belongs to.

```
<data_dir>/identity     identity = <hex>     of the directory; made before anything of the node is seen by others
                        group = <hex>        identity of the founder of its group; zeros if it was founded before
                                             directories had identities, empty if it is of none yet
                        log = begun          once the log of the metadata exists
                        joined = late        if the group was there before: the log that it learns may mean, by the name
                                             of its node, the directory before
```

A name says where a node is, the identity says that it remembers: its term, its votes, what it acknowledged, its queues.
Whoever comes under a known name with another identity has lost all that (`cluster.runtime.admission`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from node.errors import ConfigError, StorageError
from node.ids import NodeName
from node.store.disk.disk import Disk, read_whole, write_durably

IDENTITY_FILE = "identity"
IDENTITY_BYTES = 16
#: Of every group that was founded by a release without identities.
EARLIER_GROUP = "0" * 2 * IDENTITY_BYTES


@dataclass(frozen=True, slots=True)
class Identity:
    """What the file says."""

    identity: str
    group: str = ""
    has_log: bool = False
    has_joined: bool = False


class IdentityFile:
    """The file in ``data_dir``. `current` is what it durably holds."""

    def __init__(self, disk: Disk, data_dir: str, current: Identity) -> None:
        """Use `open`."""
        self._disk = disk
        self._path = f"{data_dir}/{IDENTITY_FILE}"
        self.current = current

    @classmethod
    def open(cls, disk: Disk, data_dir: str, node: NodeName, chance: Random) -> IdentityFile:
        """Read the identity, or make one: for a new directory, and for one of a release without identities.

        Raises `ConfigError` if a part of the directory is missing, `StorageError` for a file that cannot be read.
        """
        path = f"{data_dir}/{IDENTITY_FILE}"
        has_log = disk.exists(f"{data_dir}/raft/log")
        if not disk.exists(path):
            group = EARLIER_GROUP if has_log else ""
            file = cls(disk, data_dir, Identity(chance.randbytes(IDENTITY_BYTES).hex(), group, has_log))
            file._write(file.current)
            return file
        identity = _parse(read_whole(disk, path).decode(errors="replace"), path)
        if identity.has_log and not has_log:
            raise ConfigError(
                f"data_dir {data_dir} has lost the log of the metadata (raft/log), without which {node} does not know "
                f"how it has voted: {ways_out(node)}"
            )
        return cls(disk, data_dir, identity)

    def bind(self, group: str) -> None:
        """Belong to ``group`` from now on. Durable on return. Raises `StorageError`."""
        self._write(replace(self.current, group=group))

    def join(self, group: str) -> None:
        """Belong to a group that was there before. Durable on return. Raises `StorageError`."""
        self._write(replace(self.current, group=group, has_joined=True))

    def note_log(self) -> None:
        """The log of the metadata exists. Durable on return. Raises `StorageError`."""
        if not self.current.has_log:
            self._write(replace(self.current, has_log=True))

    def _write(self, identity: Identity) -> None:
        lines = [f"identity = {identity.identity}", f"group = {identity.group}"]
        if identity.has_log:
            lines.append("log = begun")
        if identity.has_joined:
            lines.append("joined = late")
        write_durably(self._disk, self._path, "".join(f"{line}\n" for line in lines).encode())
        self.current = identity


def ways_out(node: NodeName) -> str:
    """What an operator can do about a node that has lost its data."""
    return (
        f"restore the whole directory as {node} left it, or run `warrenctl forget_cluster_node {node}` on another node "
        f"and start {node} with an empty directory, to join as a new node"
    )


def _parse(text: str, path: str) -> Identity:
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" = ")
        values[name] = value
    identity = values.get("identity", "")
    if len(identity) != 2 * IDENTITY_BYTES:
        raise StorageError(f"{path} should hold the identity of this data directory and holds {text!r}")
    group = values.get("group", "")
    return Identity(identity, group, values.get("log") == "begun", values.get("joined") == "late")

"""Beginning again with an empty directory, and joining a cluster that the configuration does not name.

```
<data_dir>/reset      the next start empties the directory first; its content becomes the file `joined`, if it has any
<data_dir>/joined     group = <hex>            the cluster that this node was told to join (`warrenctl join_cluster`)
                      member = <name> <host:port>    one line for each of its members at that time
```

Both are written whole or not at all, and what was begun is done by whichever start comes next. `joined` stays: it says
where the members were to a node whose own configuration does not. Once the node has the log of its cluster, that
counts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.runtime.identity import IDENTITY_FILE, RAFT_DIRECTORY, shown
from node.config import NodeConfig, parse_address
from node.config_keys import Member
from node.errors import StorageError
from node.ids import NodeName
from node.store.disk.disk import Disk, read_whole, write_durably

log = logging.getLogger(__name__)

RESET_FILE = "reset"
JOINED_FILE = "joined"
#: What of a directory is a node's memory. Its name, its lock, and the number of its starts stay.
_MEMORY = (IDENTITY_FILE, RAFT_DIRECTORY, "vhosts", JOINED_FILE)


@dataclass(frozen=True, slots=True)
class JoinedCluster:
    """A cluster that a node was told to join."""

    group: str
    #: Addresses by name.
    members: Mapping[NodeName, str]


def order_reset(disk: Disk, data_dir: str, joined: JoinedCluster | None) -> None:
    """Have the next start begin with an empty directory. Durable on return. Raises `StorageError`: it does not."""
    lines = [] if joined is None else [f"group = {joined.group}"]
    lines += [] if joined is None else [f"member = {name} {address}" for name, address in joined.members.items()]
    path = f"{data_dir}/{RESET_FILE}"
    try:
        write_durably(disk, path, "".join(f"{line}\n" for line in lines).encode())
    except StorageError as error:
        # Who is told that it failed goes on, and a start in some weeks would empty what is here then.
        try:
            disk.unlink(path)
            disk.sync_directory(data_dir)
        except StorageError:
            raise StorageError(f"{error}; delete {path}, or the next start carries it out all the same") from error
        raise


def carry_out_reset(disk: Disk, data_dir: str) -> None:
    """Empty the directory if that was ordered. Nothing in it is open. Raises `StorageError`."""
    path = f"{data_dir}/{RESET_FILE}"
    if not disk.exists(path):
        return
    log.warning("%s is emptied, as it was ordered before this start", data_dir)
    for name in _MEMORY:
        disk.remove_directory(f"{data_dir}/{name}")
        disk.unlink(f"{data_dir}/{name}")
    disk.sync_directory(data_dir)
    if read_whole(disk, path):
        disk.rename(path, f"{data_dir}/{JOINED_FILE}")
    else:
        disk.unlink(path)
    disk.sync_directory(data_dir)


def joined_cluster(disk: Disk, data_dir: str) -> JoinedCluster | None:
    """The cluster that this directory's node was told to join, if it was. Raises `StorageError`."""
    path = f"{data_dir}/{JOINED_FILE}"
    if not disk.exists(path):
        return None
    text = read_whole(disk, path).decode(errors="replace")
    group, members = "", {}
    for line in text.splitlines():
        key, _, value = line.partition(" = ")
        if key == "group":
            group = value
        elif key == "member":
            name, _, address = value.partition(" ")
            members[NodeName(name)] = address
    if not group or not members or not all(name and _is_address(at) for name, at in members.items()):
        raise StorageError(
            f"{path} should name the cluster that this node was told to join and holds {shown(text)}: restore it, or "
            "write into it the line `group = ...` of the file `identity` of a member, and "
            "`member = <name> <host:port>` for each of the members"
        )
    return JoinedCluster(group, members)


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except ValueError:
        return False
    return True


def as_joined(config: NodeConfig, joined: JoinedCluster | None) -> NodeConfig:
    """The configuration with the members that were joined behind those that it lists."""
    if joined is None:
        return config
    listed = {member.name for member in config.members}
    more = [Member(name, parse_address(at)) for name, at in joined.members.items() if name not in listed]
    return replace(config, members=(*config.members, *more))

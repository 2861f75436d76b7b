"""Taking possession of a data directory: it can be used, by nobody else, and it belongs to this node.

What a node keeps is tied to its name: members of the cluster, masters and mirrors are written down by name, and the log
of the metadata says who votes. Under another name the same files would be those of a stranger, who waits for a majority
that will never know him. So the name is kept beside them, as RabbitMQ has it in the directory's own name.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Protocol

from cluster.runtime.fresh_start import JOINED_FILE, RESET_FILE
from cluster.runtime.identity import IDENTITY_FILE, RAFT_DIRECTORY, shown, written_number
from node.errors import ConfigError, StorageError
from node.ids import Incarnation, NodeName
from node.store.disk.disk import Disk, read_whole, write_durably
from node.store.disk.distrust import MARK_FILE

NAME_FILE = "node_name"
INCARNATION_FILE = "incarnation"
#: What the operator can change: the directory cannot be one, or is not for us. Other failures are the disk's.
_WRONG_PLACE = frozenset(
    {errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}
)
#: A directory that has one of these is a node's, whatever else somebody has put into it.
_MARKS = frozenset({NAME_FILE, INCARNATION_FILE, IDENTITY_FILE})
#: What a first start that was cut short, or the maker of a file system, may have left.
_HARMLESS = frozenset({"lock", RAFT_DIRECTORY, "vhosts", RESET_FILE, JOINED_FILE, MARK_FILE, "lost+found"})
_KNOWN = _MARKS | _HARMLESS
#: Everything that a node has made there, and will read.
OWN_NAMES = _KNOWN - {"lost+found"}
#: So many foreign names are told.
_TOLD_MAX = 3


class DirectoryLock(Protocol):
    """Held from the claim to the end of the node (`cluster.real_world.data_lock.DataLock`)."""

    def release(self) -> None:
        """The directory may be used again."""


def claim_data_directory(
    disk: Disk,
    data_dir: str,
    node: NodeName,
    lock_directory: Callable[[str], DirectoryLock],
    others: Collection[str] = (),
) -> DirectoryLock:
    """Create the directory if need be, lock it, and see that it is this node's; the lock is to be kept.

    ``others`` are names in it that the operator has chosen for this node, as that of its log. Raises `ConfigError` if
    it cannot be a directory, is in use, has what no node made, or belongs to a node of another name, `StorageError` if
    the disk fails.
    """
    try:
        disk.mkdir(data_dir)
        _sync_names_above(disk, data_dir)
        _require_ours(data_dir, [name for name in disk.list(data_dir) if name not in others])
        lock = lock_directory(data_dir)
    except (StorageError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _WRONG_PLACE:
            raise
        what = "is a file" if isinstance(cause, FileExistsError) else f"cannot be used ({cause.strerror})"
        raise ConfigError(
            f"data_dir {data_dir} {what}: set `data_dir` to a directory that this user may write, or to one that does "
            "not exist yet"
        ) from None
    owner = owner_of(disk, data_dir)
    if owner not in ("", node):
        lock.release()
        raise _foreign(data_dir, f"node {owner}", node, owner)
    return lock


def _sync_names_above(disk: Disk, data_dir: str) -> None:
    """The directory may be new, and so may those above it: nothing in it is durable if their names are not. Where a
    directory may not be read, somebody else has made it."""
    for above in PurePath(data_dir).parents:
        with suppress(StorageError):
            disk.sync_directory(str(above))


def keep_data_directory(disk: Disk, data_dir: str, node: NodeName, voters: Collection[NodeName]) -> None:
    """Write down, durably, that the directory is this node's.

    ``voters`` are those of the metadata's log, by which a directory without a name (of an older version) is known; none
    if it is empty. Raises `ConfigError` if ``node`` is none of those, `StorageError`.
    """
    if not owner_of(disk, data_dir):  # whose name is there may be learning the log, and has no vote yet
        if voters and node not in voters:
            raise _foreign(data_dir, f"a cluster of {', '.join(sorted(voters))}", node, min(voters, default=node))
        write_durably(disk, f"{data_dir}/{NAME_FILE}", f"{node}\n".encode())


def next_incarnation(disk: Disk, data_dir: str) -> Incarnation:
    """Count a start of this node, durably, before anything else of it can be seen by others. Raises `StorageError`."""
    number = incarnation_of(disk, data_dir) + 1
    write_durably(disk, f"{data_dir}/{INCARNATION_FILE}", str(number).encode())
    return Incarnation(number)


def incarnation_of(disk: Disk, data_dir: str) -> Incarnation:
    """The last start of this node, 0 if there was none. Raises `StorageError`."""
    path = f"{data_dir}/{INCARNATION_FILE}"
    if not disk.exists(path):
        return Incarnation(0)
    text = read_whole(disk, path).decode(errors="replace").strip()
    number = written_number(text)
    if number is None:
        raise StorageError(
            f"{path} should hold the number of starts of this node and holds {shown(text)}: restore it, or write a "
            "number into it that is higher than that of any start"
        )
    return Incarnation(number)


def count_on_from(disk: Disk, data_dir: str, incarnation: Incarnation) -> None:
    """Let the next start of this node be the one after ``incarnation``. Durable on return. Raises `StorageError`."""
    write_durably(disk, f"{data_dir}/{INCARNATION_FILE}", str(incarnation).encode())


def owner_of(disk: Disk, data_dir: str) -> str:
    """Name of the node whose directory it is, empty if that is not written down. Raises `StorageError`."""
    path = f"{data_dir}/{NAME_FILE}"
    return read_whole(disk, path).decode(errors="replace").strip() if disk.exists(path) else ""


def _require_ours(data_dir: str, names: Sequence[str]) -> None:
    """Raises `ConfigError` for a directory that holds ``names`` and was never a node's. Hidden files are no matter."""
    if not _MARKS.isdisjoint(names):
        return
    foreign = [name for name in names if not name.startswith(".") and name.removesuffix(".tmp") not in _KNOWN]
    if foreign:
        more = len(foreign) - _TOLD_MAX
        told = ", ".join(foreign[:_TOLD_MAX]) + (f" and {more} more" if more > 0 else "")
        raise ConfigError(
            f"data_dir {data_dir} holds what no node of Warren has made ({told}): set `data_dir` to an empty "
            "directory, or to one that does not exist yet"
        )


def _foreign(data_dir: str, owner: str, node: NodeName, right_name: str) -> ConfigError:
    return ConfigError(
        f"data_dir {data_dir} belongs to {owner}, and `node_name` is {node}: set `node_name = {right_name}` to go on "
        f"with what is stored there, or give {node} a `data_dir` of its own"
    )

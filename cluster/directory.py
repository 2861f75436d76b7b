"""The directory of a local cluster: what `warren cluster up` leaves for the commands that come after it.

::

    DIR/cluster.json      the nodes and where they listen (`ClusterDirectory`)
    DIR/cookie            the secret they share, readable by the owner only
    DIR/n1.conf           configuration of a node
    DIR/n1.log            what it writes to standard error
    DIR/n1.process        which process it is now
    DIR/n1/               its data

`warrenctl` looks a node's name up in ``cluster.json``; `find_cluster_directory` says which directory is meant.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.config import why_unreadable
from node.errors import ConfigError

DESCRIPTOR_FILE = "cluster.json"
COOKIE_FILE = "cookie"
#: Grows when an old tool could misread a new file.
FORMAT_VERSION = 1
#: Where a cluster is kept, and looked for, if nobody says otherwise.
DEFAULT_DIRECTORY = Path(".warren")
ENVIRONMENT_VARIABLE = "WARREN_CLUSTER_DIR"


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node: its name and where it listens (``host:port``)."""

    name: str
    amqp_address: str
    cluster_address: str


@dataclass(frozen=True, slots=True)
class ClusterDirectory:
    """A cluster on this machine."""

    path: Path
    nodes: tuple[NodeEntry, ...]

    def node(self, name: str) -> NodeEntry:
        """The entry of a node. Raises `ConfigError` that lists the names there are."""
        for entry in self.nodes:
            if entry.name == name:
                return entry
        names = ", ".join(entry.name for entry in self.nodes)
        raise ConfigError(f"there is no node `{name}` in {self.path / DESCRIPTOR_FILE}; it has {names}")

    @property
    def cookie_path(self) -> Path:
        return self.path / COOKIE_FILE

    def config_path(self, name: str) -> Path:
        return self.path / f"{name}.conf"

    def log_path(self, name: str) -> Path:
        return self.path / f"{name}.log"

    def process_path(self, name: str) -> Path:
        return self.path / f"{name}.process"

    def data_path(self, name: str) -> Path:
        return self.path / name

    def read_cookie(self) -> str:
        """The shared secret. Raises `ConfigError`."""
        try:
            return self.cookie_path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = why_unreadable(error)
            raise ConfigError(f"{self.cookie_path}: cannot read the cluster's cookie: {reason}") from None

    def remove(self) -> None:
        """Remove everything the cluster put here, and the directory if nothing else is in it. No node may run."""
        for entry in self.nodes:
            if self.data_path(entry.name).is_dir():
                shutil.rmtree(self.data_path(entry.name))
            for file in (self.config_path(entry.name), self.log_path(entry.name), self.process_path(entry.name)):
                file.unlink(missing_ok=True)
        self.cookie_path.unlink(missing_ok=True)
        (self.path / DESCRIPTOR_FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: it holds something of somebody else
            self.path.rmdir()

    def write(self) -> None:
        """Put ``cluster.json`` in place, whole or not at all."""
        nodes = [
            {"name": entry.name, "amqp_address": entry.amqp_address, "cluster_address": entry.cluster_address}
            for entry in self.nodes
        ]
        text = json.dumps({"version": FORMAT_VERSION, "nodes": nodes}, indent=2) + "\n"
        scratch = self.path / f"{DESCRIPTOR_FILE}.new"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(self.path / DESCRIPTOR_FILE)


def read_cluster_directory(path: Path) -> ClusterDirectory:
    """The cluster in directory ``path``. Raises `ConfigError` if there is none or its file is damaged."""
    file = path / DESCRIPTOR_FILE
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no cluster in {path}; start one with `warren cluster up --dir {path}`") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{file}: is not JSON; stop the nodes by hand and remove the file") from None
    if not isinstance(document, dict) or document.get("version") != FORMAT_VERSION:
        raise ConfigError(f"{file}: was written by another version of Warren; use that one, or another directory")
    try:
        nodes = tuple(NodeEntry(**entry) for entry in document["nodes"])
    except (KeyError, TypeError):
        raise ConfigError(f"{file}: is damaged; stop the nodes by hand and remove the file") from None
    if not nodes:
        raise ConfigError(f"{file}: names no nodes; remove it")
    return ClusterDirectory(path, nodes)


def find_cluster_directory(chosen: Path | None, environment: Mapping[str, str], start: Path) -> ClusterDirectory | None:
    """The cluster that ``--dir``, else the environment, else ``.warren`` here or above ``start`` names.

    ``None`` if nobody named one and none is near. Raises `ConfigError` if one was named but is not there.
    """
    named: Any = chosen or environment.get(ENVIRONMENT_VARIABLE)
    if named:
        return read_cluster_directory(Path(named))
    for place in (start, *start.parents):
        with contextlib.suppress(OSError):  # another user's, who shows it to nobody
            if (place / DEFAULT_DIRECTORY / DESCRIPTOR_FILE).is_file():
                return read_cluster_directory(place / DEFAULT_DIRECTORY)
    return None

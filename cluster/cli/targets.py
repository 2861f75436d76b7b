"""Which node `warrenctl` talks to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.directory import ClusterDirectory, find_cluster_directory
from node.config import parse_address
from node.errors import ConfigError

DEFAULT_ADDRESS = "127.0.0.1:25672"
NODE_VARIABLE = "WARREN_NODE"
COOKIE_VARIABLE = "WARREN_COOKIE"
COOKIE_FILE_VARIABLE = "WARREN_COOKIE_FILE"


@dataclass(frozen=True, slots=True)
class Target:
    """A node as the operator called it, and how to reach it."""

    name: str
    #: ``host:port`` of the cluster listener.
    address: str
    cookie: str = field(repr=False)


def resolve_target(node: str | None, directory: Path | None, environment: Mapping[str, str], start: Path) -> Target:
    """The node that ``-n``, else the environment, else the nearest cluster directory names; else this machine's.

    A name is looked up in the cluster directory; ``host:port`` is taken as it is. The cookie is the environment's,
    else the directory's. Raises `ConfigError`.
    """
    chosen = node or environment.get(NODE_VARIABLE)
    found = find_cluster_directory(directory, environment, start)
    cookie = _cookie(found, environment)
    if chosen is None:
        if found is None:
            return Target(DEFAULT_ADDRESS, DEFAULT_ADDRESS, cookie)
        first = found.nodes[0]
        return Target(first.name, first.cluster_address, cookie)
    if ":" in chosen:
        try:
            return Target(chosen, str(parse_address(chosen)), cookie)
        except ValueError as error:
            raise ConfigError(f"bad node `{chosen}`: {error}") from None
    if found is None:
        raise ConfigError(
            f"where node `{chosen}` listens is not known: no cluster directory is near; "
            "name one with --dir, or write host:port instead of the name"
        )
    return Target(chosen, found.node(chosen).cluster_address, cookie)


def _cookie(directory: ClusterDirectory | None, environment: Mapping[str, str]) -> str:
    if COOKIE_VARIABLE in environment:
        return environment[COOKIE_VARIABLE]
    if COOKIE_FILE_VARIABLE in environment:
        path = Path(environment[COOKIE_FILE_VARIABLE])
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{COOKIE_FILE_VARIABLE}: cannot read {path}: {error.strerror}") from None
    return directory.read_cookie() if directory is not None else ""

"""Which node `warrenctl` talks to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.directory import DEFAULT_DIRECTORY, ENVIRONMENT_VARIABLE, ClusterDirectory, find_cluster_directory
from cluster.home_cookie import FILE_NAME, home_cookie_path, read_home_cookie
from node.config import TlsFiles, parse_address, why_unreadable
from node.errors import ConfigError

DEFAULT_ADDRESS = "127.0.0.1:25672"
NODE_VARIABLE = "WARREN_NODE"
COOKIE_VARIABLE = "WARREN_COOKIE"
COOKIE_FILE_VARIABLE = "WARREN_COOKIE_FILE"
#: In the order of `TlsFiles`.
TLS_VARIABLES = ("WARREN_SSL_CACERTFILE", "WARREN_SSL_CERTFILE", "WARREN_SSL_KEYFILE")


@dataclass(frozen=True, slots=True)
class Target:
    """A node as the operator called it, and how to reach it."""

    name: str
    #: ``host:port`` of the cluster listener.
    address: str
    cookie: str = field(repr=False)
    tls: TlsFiles | None = None
    #: Nobody named a node, and no cluster directory was found: this is where one would listen by default.
    is_guess: bool = False
    #: Nobody named a node: this is the first of a cluster directory, which has these others.
    others: tuple[str, ...] = field(default=(), compare=False)
    #: For people: where the cookie was found. Empty if it was not.
    cookie_source: str = field(default="", compare=False)


def resolve_target(node: str | None, directory: Path | None, environment: Mapping[str, str], start: Path) -> Target:
    """The node that ``-n``, else the environment, else the nearest cluster directory names; else this machine's.

    A name is looked up in the cluster directory; ``host:port`` is taken as it is. The cookie is the environment's,
    else the directory's, else that of the user's home. Raises `ConfigError`.
    """
    _require_text(environment)
    if node == "":
        raise ConfigError("`-n` names no node: is a variable of your shell empty?")
    chosen = node or environment.get(NODE_VARIABLE) or None
    found = find_cluster_directory(directory, environment, start)
    cookie, source = _cookie(found, environment)
    tls = tls_files(environment)
    if chosen is None:
        if found is None:
            return Target(DEFAULT_ADDRESS, DEFAULT_ADDRESS, cookie, tls, is_guess=True, cookie_source=source)
        first, *others = found.nodes
        names = tuple(entry.name for entry in others)
        return Target(first.name, first.cluster_address, cookie, tls, others=names, cookie_source=source)
    if ":" in chosen:
        try:
            return Target(chosen, str(parse_address(chosen)), cookie, tls, cookie_source=source)
        except ValueError as error:
            raise ConfigError(f"bad node `{chosen}`: {error}") from None
    if found is None:
        raise ConfigError(
            f"where node `{chosen}` listens is not known: there is no {DEFAULT_DIRECTORY} in {start} or above; "
            "name one with --dir, write host:port instead of the name, or start a cluster with `warren cluster up`"
        )
    return Target(chosen, found.node(chosen).cluster_address, cookie, tls, cookie_source=source)


def working_directory() -> Path:
    """Where this process is; the root if that was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


def _require_text(environment: Mapping[str, str]) -> None:
    """Raises `ConfigError` for a variable that goes over the wire and has no encoding."""
    for name in (NODE_VARIABLE, COOKIE_VARIABLE):
        try:
            environment.get(name, "").encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{name} is not UTF-8 text; set it anew, or unset it") from None


def _cookie(directory: ClusterDirectory | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """The cookie, and where it was found. Both are empty if there is none. Raises `ConfigError`."""
    if COOKIE_VARIABLE in environment:
        return environment[COOKIE_VARIABLE], COOKIE_VARIABLE
    if COOKIE_FILE_VARIABLE in environment:
        path = Path(environment[COOKIE_FILE_VARIABLE])
        try:
            return path.read_text(encoding="utf-8").strip(), f"{path} ({COOKIE_FILE_VARIABLE})"
        except (OSError, UnicodeDecodeError) as error:
            reason = why_unreadable(error)
            raise ConfigError(f"{COOKIE_FILE_VARIABLE}: cannot read {path}: {reason}") from None
    if directory is not None:
        return directory.read_cookie(), str(directory.cookie_path)
    home = home_cookie_path(environment)
    cookie = None if home is None else read_home_cookie(home)
    return (cookie, str(home)) if cookie else ("", "")


def tls_files(environment: Mapping[str, str]) -> TlsFiles | None:
    """What this program shows of itself at cluster ports that ask for it. Raises `ConfigError`."""
    given = [environment[name] for name in TLS_VARIABLES if environment.get(name)]
    if not given:
        return None
    if len(given) < len(TLS_VARIABLES):
        missing = next(name for name in TLS_VARIABLES if not environment.get(name))
        raise ConfigError(f"{missing} is not set; TLS needs all of {', '.join(TLS_VARIABLES)}")
    return TlsFiles(*map(Path, given))


def advice(target: Target, refusal: str, environment: Mapping[str, str], start: Path) -> list[str]:
    """What the operator has left out, if ``target`` cannot be asked for the reason ``refusal``; a paragraph each."""
    paragraphs = []
    if target.is_guess:
        paragraphs.append(
            f"No node was named, and there is no {DEFAULT_DIRECTORY} in {start} or above, so {target.address} was "
            "tried. Start a cluster with\n`warren cluster up`, or name a node: --dir DIR, or -n HOST:PORT."
        )
    if target.others:
        paragraphs.append(
            f"No node was named, so {target.name} was asked, the first of its cluster directory. Others, by -n: "
            f"{', '.join(target.others)}."
        )
    if target.cookie and "wrong cookie" in refusal:
        paragraphs.append(
            f"warrenctl and the node at {target.address} have different cookies. warrenctl has its own from "
            f"{target.cookie_source}; give it the node's:\nset {COOKIE_VARIABLE} or {COOKIE_FILE_VARIABLE}, or name "
            "the node's cluster directory with --dir."
        )
    if not target.cookie and "cookie" in refusal:
        emptied = next((name for name in (COOKIE_VARIABLE, COOKIE_FILE_VARIABLE) if name in environment), "")
        if emptied:
            where = f"{emptied} is empty."
        else:
            where = (
                f"{COOKIE_VARIABLE} and {COOKIE_FILE_VARIABLE} are not set, no cluster directory was found "
                f"(--dir,\n{ENVIRONMENT_VARIABLE}, {DEFAULT_DIRECTORY} in {start} or above), and there is no "
                f"~/{FILE_NAME}."
            )
        paragraphs.append(f"No cookie was found: {where}")
    return paragraphs

"""A file that tells of a cluster that somebody else runs: where its nodes are, and how to hurt and heal them.

    name = "staging"

    [management]
    url = "http://10.0.0.1:15672"
    user = "chaos"
    password = "${CHAOS_PASSWORD}"

    [[node]]
    name = "rabbit@a"
    amqp = "amqp://chaos:${CHAOS_PASSWORD}@10.0.0.1:5672/"
    kill = "ssh a sudo pkill -KILL beam.smp"
    start = "ssh a sudo systemctl start rabbitmq-server"
    stop = "ssh a sudo systemctl stop rabbitmq-server"
    pause = "ssh a sudo pkill -STOP beam.smp"
    resume = "ssh a sudo pkill -CONT beam.smp"

Every command is given to a shell of this machine, and has done its work when it ends with 0. What has no command cannot
be done, and a scenario that needs it is skipped. ``${NAME}`` stands for a variable of the environment, in every text,
so that no password has to be in the file; none is shown.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chaos.plan.actions import Capability

#: What a command does, by its name; a pair is needed for what it makes possible.
PAIRS: Mapping[Capability, tuple[str, str]] = {
    Capability.KILL: ("kill", "start"),
    Capability.STOP: ("stop", "start"),
    Capability.PAUSE: ("pause", "resume"),
    Capability.DISCONNECT: ("disconnect", "connect"),
    Capability.FILL_DISK: ("fill_disk", "free_disk"),
    Capability.SLOW_DISK: ("slow_disk", "restore_disk"),
    Capability.MEMORY_ALARM: ("raise_alarm", "clear_alarm"),
}
COMMANDS = frozenset(name for pair in PAIRS.values() for name in pair)
#: What only an operator's interface can do or tell.
OF_MANAGEMENT = frozenset({Capability.POLICY, Capability.MASTER, Capability.SYNC, Capability.CANCEL_SYNC})
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_NODE_KEYS = {"name", "amqp"} | COMMANDS


class OutsideError(Exception):
    """The file tells something that nobody understands; the text says where, and what would be right."""


@dataclass(frozen=True, slots=True)
class OutsideNode:
    """One node, as the file tells."""

    name: str
    amqp: str = field(repr=False)
    #: By their names, see `COMMANDS`.
    commands: Mapping[str, str] = field(repr=False, default_factory=dict)


@dataclass(frozen=True, slots=True)
class Management:
    """The HTTP interface of RabbitMQ's management plugin."""

    url: str
    user: str
    password: str = field(repr=False)
    vhost: str = "/"


@dataclass(frozen=True, slots=True)
class OutsideCluster:
    """A file, read and checked."""

    name: str
    nodes: Sequence[OutsideNode]
    management: Management | None = None
    #: The file; empty if there is none.
    source: str = ""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What all of its nodes can be made to do, and who can be asked."""
        able = {
            capability
            for capability, pair in PAIRS.items()
            if all(name in node.commands for node in self.nodes for name in pair)
        }
        return frozenset(able | (OF_MANAGEMENT if self.management is not None else set()) | {Capability.EXPIRY})

    @property
    def missing(self) -> Mapping[Capability, str]:
        """Why it cannot do the rest."""
        reasons = {
            capability: f"not every node has the commands {' and '.join(pair)}" for capability, pair in PAIRS.items()
        }
        reasons |= dict.fromkeys(OF_MANAGEMENT, "the file tells of no [management]")
        others = dict.fromkeys(Capability, "it cannot be done to a cluster that somebody else runs")
        return {name: why for name, why in (others | reasons).items() if name not in self.capabilities}


def read_outside(path: Path, environment: Mapping[str, str] = os.environ) -> OutsideCluster:
    """Raises `OutsideError`, with the name of the file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OutsideError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OutsideError(f"{path}: this is no TOML: {error}") from None
    try:
        return replace(_cluster(document, environment), source=str(path.absolute()))
    except OutsideError as error:
        raise OutsideError(f"{path}: {error}") from None


def _cluster(document: Mapping[str, Any], environment: Mapping[str, str]) -> OutsideCluster:
    _only(document, {"name", "node", "management"}, "the file")
    tables = document.get("node", [])
    if not isinstance(tables, list) or not tables:
        raise OutsideError("there is no [[node]]; a cluster has at least one")
    nodes = [_node(table, f"node {number}", environment) for number, table in enumerate(tables, 1)]
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        raise OutsideError(f"two nodes have one name: {', '.join(sorted(names))}")
    management = document.get("management")
    return OutsideCluster(
        _text(document, "name", "the file", environment),
        nodes,
        None if management is None else _management(management, environment),
    )


def _node(table: object, where: str, environment: Mapping[str, str]) -> OutsideNode:
    if not isinstance(table, Mapping):
        raise OutsideError(f"{where}: it must be a table, [[node]]")
    _only(table, _NODE_KEYS, where)
    amqp = _text(table, "amqp", where, environment)
    if not amqp.startswith(("amqp://", "amqps://")):
        raise OutsideError(f'{where}: amqp must be like "amqp://user:password@host:5672/"')
    for name in sorted(COMMANDS & table.keys()):
        _text(table, name, where, environment)
    # The shell replaces their variables: what is in them is not written down anywhere.
    commands = {name: str(table[name]) for name in sorted(COMMANDS & table.keys())}
    return OutsideNode(_text(table, "name", where, environment), amqp, commands)


def _management(table: object, environment: Mapping[str, str]) -> Management:
    if not isinstance(table, Mapping):
        raise OutsideError("management: it must be a table, [management]")
    _only(table, {"url", "user", "password", "vhost"}, "management")
    url = _text(table, "url", "management", environment)
    if not url.startswith(("http://", "https://")):
        raise OutsideError('management: url must be like "http://host:15672"')
    vhost = _text(table, "vhost", "management", environment) if "vhost" in table else "/"
    user, password = (_text(table, name, "management", environment) for name in ("user", "password"))
    return Management(url.rstrip("/"), user, password, vhost)


def _only(table: Mapping[str, Any], known: set[str] | frozenset[str], where: str) -> None:
    unknown = sorted(table.keys() - known)
    if unknown:
        raise OutsideError(f"{where}: nobody knows {', '.join(unknown)}; there are: {', '.join(sorted(known))}")


def _text(table: Mapping[str, Any], name: str, where: str, environment: Mapping[str, str]) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value:
        raise OutsideError(f"{where}: {name} must be there, and be a text")
    absent = [variable for variable in _VARIABLE.findall(value) if variable not in environment]
    if absent:
        raise OutsideError(f"{where}: {name}: the environment has no {', '.join(absent)}")
    return _VARIABLE.sub(lambda found: environment[found[1]], value)

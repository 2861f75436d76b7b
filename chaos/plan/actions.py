"""What a step may do: the actions, what each needs of a target, and what it is told.

One table, `ACTIONS`; reading a scenario, running it and documenting it all go by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from chaos.plan import words
from chaos.plan.words import PlanError


class Capability(StrEnum):
    """What a cluster under test may be able to do or to tell. A scenario that needs more is skipped."""

    KILL = "kill"
    STOP = "stop"
    PAUSE = "pause"
    #: Nodes can be cut off from everything, as a container is disconnected.
    DISCONNECT = "disconnect"
    #: Lines between nodes pass proxies.
    NODE_LINES = "node lines"
    #: Lines from clients pass proxies.
    CLIENT_LINES = "client lines"
    FILL_DISK = "fill disk"
    SLOW_DISK = "slow disk"
    WIPE_DISK = "wipe disk"
    MEMORY_ALARM = "memory alarm"
    #: Policies can be set and cleared.
    POLICY = "policy"
    #: It tells who leads a queue, who mirrors it, and who of them has everything.
    MASTER = "master"
    SYNC = "sync"
    CANCEL_SYNC = "cancel sync"
    FORGET = "forget"
    #: Messages can expire (``x-message-ttl``).
    EXPIRY = "expiry"
    #: Its nodes tell of each message.
    TAPS = "taps"


class Subject(StrEnum):
    """What ``to`` names."""

    NOTHING = "nothing"
    NODES = "nodes"
    LINES = "lines"
    QUEUE = "queue"


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise PlanError(f"{value!r} is no number")
    return value


def _share(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise PlanError(f"{value!r} is no share between 0 and 1")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise PlanError(f"{value!r} is no text")
    return value


def _table(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PlanError(f"{value!r} is no table")
    return value


@dataclass(frozen=True, slots=True)
class Action:
    """One of the table."""

    name: str
    summary: str
    subject: Subject = Subject.NOTHING
    needs: frozenset[Capability] = frozenset()
    #: Readers of its arguments by their names; those that must be there.
    arguments: Mapping[str, Callable[[object], Any]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    #: It is undone by ``heal``, so it may be given a time (``for``) and a name.
    is_fault: bool = False


def _fault(
    name: str,
    summary: str,
    subject: Subject,
    *needs: Capability,
    required: Mapping[str, Callable[[object], Any]] | None = None,
    optional: Mapping[str, Callable[[object], Any]] | None = None,
) -> Action:
    arguments = {**(required or {}), **(optional or {})}
    return Action(name, summary, subject, frozenset(needs), arguments, frozenset(required or ()), is_fault=True)


_NODE_FAULTS = (
    _fault("kill", "SIGKILL; healed by starting it again", Subject.NODES, Capability.KILL),
    _fault("stop", "an orderly stop (SIGTERM); healed by starting it again", Subject.NODES, Capability.STOP),
    _fault("pause", "SIGSTOP: it stands still with its sockets open", Subject.NODES, Capability.PAUSE),
    _fault("disconnect", "no line leads to it or from it", Subject.NODES, Capability.DISCONNECT),
    _fault(
        "fill disk",
        "nothing more can be written",
        Subject.NODES,
        Capability.FILL_DISK,
        optional={"leave": words.size_bytes},
    ),
    _fault(
        "slow disk",
        "every sync takes so long",
        Subject.NODES,
        Capability.SLOW_DISK,
        required={"latency": words.duration_s},
    ),
    _fault("memory alarm", "it has used too much memory, as far as it knows", Subject.NODES, Capability.MEMORY_ALARM),
)
_LINE_FAULTS = (
    _fault("cut", "connections are broken and refused", Subject.LINES),
    _fault("black hole", "nothing arrives, and nobody is told", Subject.LINES),
    _fault("reset", "connections end with a reset, once", Subject.LINES),
    _fault(
        "delay",
        "everything arrives later",
        Subject.LINES,
        required={"latency": words.duration_s},
        optional={"jitter": words.duration_s},
    ),
    _fault("throttle", "so many bytes a second", Subject.LINES, required={"rate": words.size_bytes}),
    _fault(
        "slice",
        "in pieces of some bytes, with pauses",
        Subject.LINES,
        required={"size": words.size_bytes},
        optional={"pause": words.duration_s},
    ),
    _fault("limit", "connections end after so many bytes", Subject.LINES, required={"size": words.size_bytes}),
    _fault(
        "swizzle",
        "lines are cut one by one, and come back in another order",
        Subject.LINES,
        required={"over": words.duration_s},
    ),
)
_ORDERS = (
    Action("heal", "all faults end, or the one that is named", arguments={"what": _text}),
    Action("start", "nodes that are down are started again", Subject.NODES),
    Action("wait", "nothing is done"),
    Action(
        "rolling restart",
        "one after the other is stopped and started, each when the one before is back",
        Subject.NODES,
        frozenset({Capability.STOP}),
    ),
    Action(
        "wipe",
        "it is killed, its disk is emptied, it is forgotten, and joins as a new one",
        Subject.NODES,
        frozenset({Capability.KILL, Capability.WIPE_DISK}),
    ),
    Action("stop publishers", "they publish nothing new"),
    Action("start publishers", "they go on"),
    Action("stop consumers", "they cancel; what they hold they acknowledge"),
    Action("start consumers", "they subscribe again"),
    Action("hold", "consumers acknowledge nothing, up to their prefetch"),
    Action("release", "consumers acknowledge again"),
    Action("pause consumers", "SIGSTOP: they stand still with what they hold"),
    Action("resume consumers", "SIGCONT"),
    Action("purge", "the queue is emptied", Subject.QUEUE),
    Action(
        "set policy",
        "the policy of the scenario's queues becomes this",
        needs=frozenset({Capability.POLICY}),
        arguments={"policy": _table},
        required=frozenset({"policy"}),
    ),
    Action("clear policy", "there is none", needs=frozenset({Capability.POLICY})),
    Action("sync", "unsynchronised mirrors are filled", Subject.QUEUE, frozenset({Capability.SYNC})),
    Action("cancel sync", "the filling of mirrors ends", Subject.QUEUE, frozenset({Capability.CANCEL_SYNC})),
    Action(
        "any of",
        "some faults are drawn by chance, again and again, and quiet times between them",
        arguments={"faults": lambda value: value, "every": words.duration_s, "quiet": _share, "draws": _count},
        required=frozenset({"faults", "every", "draws"}),
    ),
)
ACTIONS: Mapping[str, Action] = {action.name: action for action in (*_NODE_FAULTS, *_LINE_FAULTS, *_ORDERS)}

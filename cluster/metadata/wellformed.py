"""Is a command what its dataclass says? Asked of every committed command before it is carried out.

The codec tells values apart by tags and builds whatever the bytes name: a `DeleteQueue` whose name is a list comes
out of it as readily as one whose name is text. Who may write into the log is trusted, but the log outlives the
release that wrote it, and what raises while a committed entry is applied raises on every node, at every start. So
nothing is carried out whose fields are not of the types that their declarations name, to any depth.

Bounds are part of a type. Text can be encoded and integers have 64 bits, since what was accepted goes into snapshots,
listings and frames; a name that is new must be one that a client can say; a table may be nested as deep as AMQP lets
a client nest it, since a snapshot puts it some levels deeper than a command does, and what the codec cannot read back
must never get in (`cluster.metadata.codec.MAX_DEPTH`).

The checks are made from the annotations, once: a new command is checked without anything being added here, and a
field of a type unknown here fails at import.

What is about to be proposed is checked, too, and held to more (`check_proposal`): an empty name of a user or a vhost
means that there is none, wherever connections are looked after, but older releases have let it into their logs.

Operators and clients read what is wrong, so it is said of the innermost field alone, in words: not in which records
that field is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cluster.metadata import commands
from cluster.metadata.errors import EmptyNameError, MalformedCommandError
from node.amqp.values import SHORT_STRING_BYTES_MAX, TABLE_DEPTH_MAX, Timestamp
from node.ids import Epoch, Incarnation, QueueId
from node.topology import commands as topology

#: A password hash, an address or a pattern of permissions; names are shorter.
TEXT_BYTES_MAX = 65_536
#: Tables within a table of arguments, that one included.
ARGUMENTS_DEPTH_MAX = TABLE_DEPTH_MAX + 1
#: Powers of ten of a decimal: AMQP has 255.
DECIMAL_EXPONENT_MAX = 1000
_INT64_MIN, _INT64_END, _UINT64_END = -(2**63), 2**63, 2**64
#: Fields that become names in the commands that make something: a client must be able to say them.
_NEW_NAMES: Mapping[type, tuple[str, ...]] = {
    commands.FoundCluster: ("vhost",),
    topology.CreateVhost: ("vhost",),
    topology.DeclareExchange: ("name",),
    topology.DeclareQueue: ("name",),
    topology.Bind: ("routing_key",),
}
_NEVER_EMPTY = (
    (commands.FoundCluster, "vhost", "virtual host"),
    (commands.FoundCluster, "user", "user"),
    (commands.AddUser, "name", "user"),
    (topology.CreateVhost, "vhost", "virtual host"),
)
_TOO_LONG_NAME = f"more than {SHORT_STRING_BYTES_MAX} bytes (a name may have {SHORT_STRING_BYTES_MAX})"

#: What is wrong with a value; empty if nothing is.
Check = Callable[[Any], str]


def check_command(command: object) -> None:
    """Raises `MalformedCommandError` unless this is a command with fields as they are declared."""
    if problem := problem_of(command, commands.Command):
        raise MalformedCommandError(problem)


def check_proposal(command: commands.Command) -> None:
    """``command`` as it would come out of the log. Raises `MalformedCommandError`, and `EmptyNameError`."""
    check_command(command)
    made: object = command.command if isinstance(command, commands.ChangeTopology) else command
    for kind, field, what in _NEVER_EMPTY:
        if isinstance(made, kind) and not getattr(made, field):
            raise EmptyNameError(what)


def problem_of(value: object, annotation: Any) -> str:
    """Why ``value`` is not what the annotation says, to any depth; empty if it is."""
    return _check_of(annotation)(value)


@cache
def _check_of(annotation: Any) -> Check:
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if hasattr(annotation, "__supertype__"):
        return _check_of(annotation.__supertype__)
    if is_dataclass(annotation):
        return _record_check(annotation)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _union_check(parts)
    if origin is Literal:
        return lambda value: "" if type(value) is str and value in parts else f"expected one of {parts}"
    if origin is tuple:
        return _tuple_check(parts)
    if origin is Mapping or annotation is Mapping:
        return _table_problem
    raise AssertionError(f"there is no check for fields of type {annotation}")


def _record_check(cls: Any) -> Check:
    hints = get_type_hints(cls)
    checks = tuple((field.name, _check_of(hints[field.name])) for field in fields(cls))
    new_names = _NEW_NAMES.get(cls, ())

    def check(value: Any) -> str:
        if type(value) is not cls:
            return f"a {type(value).__name__} where a {cls.__name__} belongs"
        for name, check_field in checks:
            item = getattr(value, name)
            if problem := check_field(item):
                return problem if is_dataclass(item) else _said_of(name, problem)
        for name in new_names:
            if len(getattr(value, name).encode()) > SHORT_STRING_BYTES_MAX:
                return _said_of(name, _TOO_LONG_NAME)
        return ""

    return check


def _said_of(name: str, problem: str) -> str:
    """As people read it: the field ``routing_key`` is a routing key."""
    return f"{name.replace('_', ' ')}: {problem}"


def _union_check(parts: tuple[Any, ...]) -> Check:
    by_type: dict[type, Check] = {part: _check_of(part) for part in parts if isinstance(part, type)}
    assert len(by_type) == len(parts), "a union of types that can be told apart"

    def check(value: Any) -> str:
        chosen = by_type.get(type(value))
        return chosen(value) if chosen is not None else f"a {type(value).__name__} does not belong here"

    return check


def _tuple_check(parts: tuple[Any, ...]) -> Check:
    if len(parts) == 2 and parts[1] is Ellipsis:
        check_item = _check_of(parts[0])

        def check_all(value: Any) -> str:
            if type(value) is not tuple:
                return f"a {type(value).__name__} where a tuple belongs"
            return next(filter(None, map(check_item, value)), "")

        return check_all
    checks = [_check_of(part) for part in parts]

    def check_each(value: Any) -> str:
        if type(value) is not tuple or len(value) != len(checks):
            return f"a {type(value).__name__} where {len(checks)} values belong"
        return next(filter(None, (check(item) for check, item in zip(checks, value, strict=True))), "")

    return check_each


def _text_problem(value: Any, bytes_max: int = TEXT_BYTES_MAX) -> str:
    if type(value) is not str:
        return f"a {type(value).__name__} where text belongs"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "text that has no encoding"
    return "" if size <= bytes_max else f"text of more than {bytes_max} bytes"


def _flag_problem(value: Any) -> str:
    return "" if type(value) is bool else f"a {type(value).__name__} where true or false belongs"


def _integer_problem(value: Any, minimum: int = _INT64_MIN) -> str:
    if type(value) is not int:
        return f"a {type(value).__name__} where an integer belongs"
    return "" if minimum <= value < _INT64_END else "an integer out of its range"


def _count_problem(value: Any) -> str:
    return _integer_problem(value, 0)


def _none_problem(value: Any) -> str:
    return "" if value is None else f"a {type(value).__name__} where nothing belongs"


_SIMPLE: Mapping[Any, Check] = {
    str: _text_problem,
    bool: _flag_problem,
    int: _integer_problem,
    NoneType: _none_problem,
    QueueId: _count_problem,
    Epoch: _count_problem,
    Incarnation: _count_problem,
}


# --- tables of arguments, definitions of policies ---


def _table_problem(value: Any, depth: int = 1) -> str:
    if not isinstance(value, Mapping):
        return f"a {type(value).__name__} where a table belongs"
    if depth > ARGUMENTS_DEPTH_MAX:
        return f"nested deeper than {ARGUMENTS_DEPTH_MAX}"
    for key, item in value.items():
        if problem := _text_problem(key, SHORT_STRING_BYTES_MAX):
            return f"a key: {problem}"
        if problem := _item_problem(item, depth):
            return f"'{key}': {problem}"
    return ""


def _item_problem(value: Any, depth: int) -> str:
    """What is wrong with a value in a table (or list) that is ``depth`` deep."""
    kind = type(value)
    if value is None or kind in (bool, float, bytes):
        return ""
    if kind is str:
        # As long as a frame lets it be.
        return _text_problem(value, len(value) * 4)
    if kind is int or kind is Timestamp:
        return "" if _INT64_MIN <= value < _UINT64_END else "an integer out of its range"
    if kind is Decimal:
        is_plain = value.is_finite() and abs(value.adjusted()) <= DECIMAL_EXPONENT_MAX
        return "" if is_plain else "a decimal out of its range"
    if kind is datetime:
        return "" if value.tzinfo is not None else "a time without a zone"
    if kind in (list, tuple):
        if depth >= ARGUMENTS_DEPTH_MAX:
            return f"nested deeper than {ARGUMENTS_DEPTH_MAX}"
        return next(filter(None, (_item_problem(item, depth + 1) for item in value)), "")
    if isinstance(value, Mapping):
        return _table_problem(value, depth + 1)
    return f"a {kind.__name__} in a table"


# Made now rather than with the first entry: what cannot be checked must not wait in the log to be found.
_check_of(commands.Command)
_check_of(commands.RequestId)
